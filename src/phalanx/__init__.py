"""Phalanx: one logical table made of many Lance tables."""

from importlib.metadata import PackageNotFoundError, version

from phalanx.errors import (
    CommitConflict,
    ForeignWrite,
    InvalidPredicate,
    InvalidSchema,
    InvalidSpec,
    NotPartitioned,
    PhalanxError,
    SchemaMismatch,
    UnknownSpec,
)
from phalanx.model.partition_by import (
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
from phalanx.model.spec import PartitionField, PartitionSpec

try:
    __version__ = version("phalanx-lance")
except PackageNotFoundError:
    # Run from its sources, which carry no version.
    __version__ = "0+sources"

__all__ = [
    "CommitConflict",
    "ForeignWrite",
    "InvalidPredicate",
    "InvalidSchema",
    "InvalidSpec",
    "NotPartitioned",
    "PartitionField",
    "PartitionSpec",
    "PhalanxError",
    "SchemaMismatch",
    "UnknownSpec",
    "__version__",
    "bucket",
    "day",
    "expression",
    "hour",
    "identity",
    "month",
    "multi_bucket",
    "truncate",
    "year",
]
