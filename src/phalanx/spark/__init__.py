"""Phalanx in Spark: `format("phalanx")`, and the steps of a pipeline."""

from phalanx.planning.import_plan import ImportPlan
from phalanx.planning.joins.plan import JoinPlan
from phalanx.spark.ingested import Ingested
from phalanx.spark.pipelines.ingest import ingest
from phalanx.spark.pipelines.join import join
from phalanx.spark.pipelines.merge import merge
from phalanx.spark.pipelines.search import search
from phalanx.spark.pipelines.table_imports import Imported, import_table, plan_import
from phalanx.spark.session import configure, local_session
from phalanx.spark.source.distribution import Distribution, write
from phalanx.table.joins.prepare import plan_join

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
