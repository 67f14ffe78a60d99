"""Phalanx in Spark: `format("phalanx")`, and the steps of a pipeline."""

from phalanx.planning.import_plan import ImportPlan
from phalanx.planning.join_plan import JoinPlan
from phalanx.spark.distributing import Distribution, write
from phalanx.spark.importing import Imported, import_table, plan_import
from phalanx.spark.ingested import Ingested
from phalanx.spark.ingesting import ingest
from phalanx.spark.join import join
from phalanx.spark.merging import merge
from phalanx.spark.search import search
from phalanx.spark.session import configure, local_session
from phalanx.table.join import plan_join

__all__ = [
    "Distribution",
    "ImportPlan",
    "Imported",
    "Ingested",
    "JoinPlan",
    "configure",
    "import_table",
    "ingest",
    "join",
    "local_session",
    "merge",
    "plan_import",
    "plan_join",
    "search",
    "write",
]
