"""Phalanx: one logical table made of many Lance tables."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from phalanx.errors import (
    CommitConflict,
    ForeignWrite,
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
from phalanx.model.specs.partition_by import (
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

# Where it is defined, `hash` would take the place of Python's own.
from phalanx.model.specs.partition_by import hashed as hash
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.table.history.change_feed import ChangeFeed
from phalanx.table.maintenance.upgrade import Upgrade
from phalanx.table.maintenance.vacuum import Vacuumed
from phalanx.table.opening import create, open
from phalanx.table.read.scan import Scan
from phalanx.table.table import Table
from phalanx.table.write.transaction import Transaction

if TYPE_CHECKING:
    from phalanx import ducklake as ducklake
    from phalanx import iceberg as iceberg
    from phalanx import spark as spark
    from phalanx.namespace import PartitionedNamespace

try:
    __version__ = version("phalanx-lance")
except PackageNotFoundError:
    # Run from its sources, which carry no version.
    __version__ = "0+sources"

__all__ = [
    "ChangeFeed",
    "CommitConflict",
    "ForeignWrite",
    "InvalidCatalog",
    "InvalidManifest",
    "InvalidPredicate",
    "InvalidSchema",
    "InvalidSpec",
    "NotPartitioned",
    "PartialWrite",
    "PartitionField",
    "PartitionSpec",
    "PartitionedNamespace",
    "PhalanxError",
    "Scan",
    "SchemaMismatch",
    "StorageFailure",
    "Table",
    "Transaction",
    "UnknownOutcome",
    "UnknownSpec",
    "UntrustedLocation",
    "Upgrade",
    "Vacuumed",
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


def __getattr__(name: str) -> object:
    # Lance's catalog client takes longer to import than all the rest.
    if name == "PartitionedNamespace":
        from phalanx.namespace import PartitionedNamespace

        return PartitionedNamespace
    # They need what not everyone has installed.
    if name in ("ducklake", "iceberg", "spark"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
