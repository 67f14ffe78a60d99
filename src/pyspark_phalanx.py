"""Registers `format("phalanx")`: PySpark imports every module named `pyspark_*`."""

from phalanx.spark.source.source import PhalanxSource as DefaultSource

__all__ = ["DefaultSource"]
