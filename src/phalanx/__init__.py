"""Phalanx: one logical table made of many Lance tables.

`create` and `open` return a `Table`, whose methods do the rest: `help(phalanx.Table)`. This package
exports the errors (see `phalanx.errors`), the types of arguments, and every class that a documented
member of an exported class returns. Members that a docstring calls "Internal" are for the packages
of Phalanx only: they may change at any time, and their classes are not exported. `phalanx.spark`,
`phalanx.ducklake`, `phalanx.iceberg` and `PartitionedNamespace` are imported when they are first
used.
"""

import logging
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from phalanx.arguments import (
    ArrowStreamExportable,
    HealthArguments,
    IndexArguments,
    IndexKind,
    Isolation,
    JobOrder,
    JoinHow,
    Layout,
    Metric,
    Mode,
    ProgressCallback,
    RewriteArguments,
    SaveMode,
    Shuffle,
    SparkWriteArguments,
    TimeParts,
    WhenMatched,
    WhenNotMatched,
    WordOperator,
    WriteOperation,
)
from phalanx.errors import (
    CommitConflict,
    ForeignWrite,
    InvalidArgument,
    InvalidCatalog,
    InvalidManifest,
    InvalidPredicate,
    InvalidSchema,
    InvalidSpec,
    NotPartitioned,
    PartialWrite,
    PhalanxError,
    SchemaMismatch,
    StorageFailure,
    UnknownOutcome,
    UnknownSpec,
    UntrustedLocation,
)
from phalanx.model.search.indexes import IndexSpec
from phalanx.model.specs.partition_by import (
    PartitionBy,
    PartitionTerm,
    bucket,
    day,
    expression,
    hour,
    identity,
    month,
    multi_bucket,
    truncate,
    year,
)

# In its own module, `hash` would shadow the built-in.
from phalanx.model.specs.partition_by import hive_hash as hash
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.transform import Transform
from phalanx.planning.change_plan import ChangePlan, PlannedChange
from phalanx.planning.pruning.projection import Reason
from phalanx.planning.pruning.scan_plan import PlannedPartition, ScanPlan, ScanSizes
from phalanx.planning.rewrite import (
    DeleteFile,
    Diagnostic,
    FilterStats,
    LeftOut,
    RewriteFile,
    RewriteGroup,
    RewriteOptions,
    RewritePlan,
)
from phalanx.planning.rewrites.plan import SpecSummary
from phalanx.table.history.change_feed import ChangeFeed
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.work import Runner, register_runner
from phalanx.table.jobs.write_job import WriteJob, WriteResult
from phalanx.table.maintenance.erase import Erased
from phalanx.table.maintenance.health import Finding, Health, HealthLimits, PartitionSize
from phalanx.table.maintenance.indexes import Indexed
from phalanx.table.maintenance.rewrite import Rewritten
from phalanx.table.maintenance.upgrade import Upgrade, UpgradePlan
from phalanx.table.maintenance.vacuum import Vacuumed
from phalanx.table.maintenance.verify import Damage, Verified
from phalanx.table.opening import create, open
from phalanx.table.read.scan import Scan
from phalanx.table.table import Table, TableInspection, TableMaintenance
from phalanx.table.write.merge import MergeCounts
from phalanx.table.write.retention import ExpiredPartition, Retained
from phalanx.table.write.transaction import Transaction

if TYPE_CHECKING:
    from phalanx import ducklake as ducklake
    from phalanx import iceberg as iceberg
    from phalanx import spark as spark
    from phalanx.namespace import PartitionedNamespace

try:
    __version__ = version("phalanx-lance")
except PackageNotFoundError:
    # Running from a source checkout, which has no installed version.
    __version__ = "0+sources"

__all__ = [
    "ArrowStreamExportable",
    "ChangeFeed",
    "ChangePlan",
    "CommitConflict",
    "Damage",
    "DeleteFile",
    "Diagnostic",
    "Erased",
    "ExpiredPartition",
    "FilterStats",
    "Finding",
    "ForeignWrite",
    "Health",
    "HealthArguments",
    "HealthLimits",
    "IndexArguments",
    "IndexKind",
    "IndexSpec",
    "Indexed",
    "InvalidArgument",
    "InvalidCatalog",
    "InvalidManifest",
    "InvalidPredicate",
    "InvalidSchema",
    "InvalidSpec",
    "Isolation",
    "JobOrder",
    "JoinHow",
    "Layout",
    "LeftOut",
    "MergeCounts",
    "Metric",
    "Mode",
    "NotPartitioned",
    "PartialWrite",
    "PartitionBy",
    "PartitionField",
    "PartitionKey",
    "PartitionSize",
    "PartitionSpec",
    "PartitionTerm",
    "PartitionedNamespace",
    "PhalanxError",
    "PlannedChange",
    "PlannedPartition",
    "ProgressCallback",
    "Reason",
    "Retained",
    "RewriteArguments",
    "RewriteFile",
    "RewriteGroup",
    "RewriteOptions",
    "RewritePlan",
    "Rewritten",
    "SaveMode",
    "Scan",
    "ScanPlan",
    "ScanSizes",
    "SchemaMismatch",
    "Shuffle",
    "SparkWriteArguments",
    "SpecSummary",
    "StorageFailure",
    "Table",
    "TableInspection",
    "TableMaintenance",
    "TaskFiles",
    "TimeParts",
    "Transaction",
    "Transform",
    "UnknownOutcome",
    "UnknownSpec",
    "UntrustedLocation",
    "Upgrade",
    "UpgradePlan",
    "Vacuumed",
    "Verified",
    "WhenMatched",
    "WhenNotMatched",
    "WordOperator",
    "WriteJob",
    "WriteOperation",
    "WriteResult",
    "__version__",
    "bucket",
    "create",
    "day",
    "expression",
    "hash",
    "hour",
    "identity",
    "month",
    "multi_bucket",
    "open",
    "truncate",
    "year",
]


def _make_spark_runner(session: Any) -> Runner:
    # PySpark takes long to import, and not everyone has it.
    from phalanx.spark.source.runner import SparkRunner

    return SparkRunner(session)


register_runner(_make_spark_runner)

# Silent unless the application configures logging. Each layer has a logger: phalanx.storage, ...
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    # Lance's catalog client takes longer to import than all the rest.
    if name == "PartitionedNamespace":
        from phalanx.namespace import PartitionedNamespace

        return PartitionedNamespace
    # These need optional dependencies.
    if name in ("ducklake", "iceberg", "spark"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
