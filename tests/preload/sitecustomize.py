"""Imports Phalanx in the daemon that forks Spark's Python workers, once for all of them."""

import sys

if "pyspark.daemon" in sys.orig_argv:
    import phalanx.spark.source.source  # noqa: F401
