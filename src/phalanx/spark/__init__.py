"""Phalanx in Spark: `format("phalanx")`, and the steps of a pipeline."""

from phalanx.planning.join_plan import JoinPlan
from phalanx.spark.join import join
from phalanx.spark.session import configure
from phalanx.table.join import plan_join

__all__ = ["JoinPlan", "configure", "join", "plan_join"]
