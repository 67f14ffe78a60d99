"""Phalanx in Spark: `format("phalanx")`, an SQL catalog, and functions for pipelines.

May import `phalanx.table` and below, and pyspark; nothing below imports it.
Begin with `session.configure`, then `source.source` for reads and writes and `sql.planner` for SQL.
"""

from phalanx.planning.import_plan import (
    ColumnMapping,
    FieldMapping,
    ImportPlan,
    ImportSize,
    SpecMapping,
)
from phalanx.planning.joins.compatibility import GroupKey
from phalanx.planning.joins.keys import JoinKey
from phalanx.planning.joins.leaves import (
    JoinedTable,
    JoinFragment,
    JoinLeaf,
    LeafMatch,
    SpecLeaves,
    SpecPair,
)
from phalanx.planning.joins.plan import JoinGroup, JoinPlan
from phalanx.spark.pipelines.ingest import Ingested, ingest
from phalanx.spark.pipelines.join import join
from phalanx.spark.pipelines.merge import merge
from phalanx.spark.pipelines.search import search
from phalanx.spark.pipelines.table_imports import Imported, import_table, plan_import
from phalanx.spark.session import configure, local_session
from phalanx.spark.source.distribution import Distribution, write
from phalanx.table.joins.prepare import plan_join

__all__ = [
    "ColumnMapping",
    "Distribution",
    "FieldMapping",
    "GroupKey",
    "ImportPlan",
    "ImportSize",
    "Imported",
    "Ingested",
    "JoinFragment",
    "JoinGroup",
    "JoinKey",
    "JoinLeaf",
    "JoinPlan",
    "JoinedTable",
    "LeafMatch",
    "SpecLeaves",
    "SpecMapping",
    "SpecPair",
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
