"""By this module Spark finds `format("phalanx")`: it imports all whose names begin like this one."""

from phalanx.spark.source import PhalanxSource as DefaultSource

__all__ = ["DefaultSource"]
