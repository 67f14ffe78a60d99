"""Phalanx in Spark: `format("phalanx")`, and the steps of a pipeline."""

from phalanx.spark.distributing import Distribution, write
from phalanx.spark.session import configure

__all__ = ["Distribution", "configure", "write"]
