"""Phalanx: one logical table made of many Lance tables."""

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
