"""Phalanx in Spark: `format("phalanx")`, and the steps of a pipeline."""

from phalanx.planning.join_plan import JoinPlan
from phalanx.spark.distributing import Distribution, write
from phalanx.spark.ingesting import Ingested, ingest
from phalanx.spark.join import join
from phalanx.spark.session import configure, local_session
from phalanx.table.join import plan_join

__all__ = [
    "Distribution",
    "Ingested",
    "JoinPlan",
    "configure",
    "ingest",
    "join",
    "local_session",
    "plan_join",
    "write",
]
