"""By this module Spark finds `format("phalanx")`: it imports all that are named like it."""

from phalanx.spark.source.source import PhalanxSource as DefaultSource

__all__ = ["DefaultSource"]
