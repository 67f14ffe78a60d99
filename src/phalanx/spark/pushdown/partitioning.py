"""The partitioning that a scan reports to Spark: key columns, and the key of each task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSpec
from phalanx.model.schema.grouping import group_rows, sort_indices
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.specs.spec import PartitionField
from phalanx.model.transforms.buckets import Bucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.transform import Identity
from phalanx.spark.pushdown.queries import QueryLeaves
from phalanx.spark.runtime.types import arrow_schema, cast_for_spark, is_collated, spark_schema
from phalanx.storage.state.table_state import TableState
from phalanx.table.read.scan_tasks import ScanPiece, ScanTask, pack_tasks

# Above this, a task for each leaf costs more than a shuffle saves.
MAX_REPORTED_PARTITIONS = 2_000


@dataclass(frozen=True, slots=True)
class SparkKey:
    """A partition field that Spark can compute from a column that it reads.

    Fields that form the start of the date chain are one key: a number with the parts as its digits
    (2025 and 12 are 202512), which Spark can reduce to its first parts.
    """

    fields: tuple[PartitionField, ...]
    column: str

    def to_json(self) -> dict[str, Any]:
        """Describe the key for the Java classes."""
        if len(self.fields) > 1:
            chain = DATE_CHAIN[: len(self.fields)]
            return {"column": self.column, "type": "_".join(part.name for part in chain)}
        return {"column": self.column, **self.fields[0].derivation.to_json()}

    @property
    def derivations(self) -> tuple[object, ...]:
        """The transforms of the fields."""
        return tuple(field.derivation for field in self.fields)

    def values(self, found: QueryLeaves) -> pa.Array:
        """Return the key of each leaf."""
        if len(self.fields) == 1:
            return found.partition_values(self.fields[0])
        digits = pa.nulls(len(found.leaves), pa.int64()).fill_null(0)
        for field in self.fields:
            digits = pc.add(
                pc.multiply(digits, 100), found.partition_values(field).cast(pa.int64())
            )
        return digits

    def to_texts(self, values: pa.Array, found: QueryLeaves) -> list[str | None]:
        """Format keys as texts, which Java parses to Spark's values."""
        is_column = isinstance(self.fields[0].derivation, Identity)
        kind = found.schema.arrow.field(self.column).type if is_column else values.type
        return to_texts(values, pa.field("", kind))


def is_plain_type(kind: pa.DataType) -> bool:
    """Return whether Spark represents all values of the type, and compares them in the same way."""
    if pt.is_dictionary(kind):
        return is_plain_type(kind.value_type)
    if pt.is_timestamp(kind):
        return bool(kind.unit != "ns")
    return bool(
        pt.is_boolean(kind)
        or pt.is_integer(kind)
        or pt.is_decimal(kind)
        or pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_date32(kind)
    )


def identity_fields(found: QueryLeaves) -> dict[str, PartitionField]:
    """Return the identity fields of the leaves by column: each leaf has one value of these."""
    return {
        path[0]: field
        for field, path in _single_column_fields(found)
        if isinstance(field.derivation, Identity) and is_plain_type(field.result_type)
    }


def spark_keys(found: QueryLeaves, columns: Sequence[str]) -> list[SparkKey]:
    """Return the keys that all leaves share, of the columns that Spark reads."""
    if not 0 < len(found.leaves) <= MAX_REPORTED_PARTITIONS:
        return []
    known: list[tuple[PartitionField, str]] = [
        (field, path[0])
        for field, path in _single_column_fields(found)
        if path[0] in columns and is_computable_in_java(field, found.schema.arrow.field(path[0]))
    ]
    return _chain_keys(known)


def _chain_keys(known: Sequence[tuple[PartitionField, str]]) -> list[SparkKey]:
    """Build keys; the fields of a column that form the date chain become one key."""
    keys: list[SparkKey] = []
    for field, column in known:
        part = field.derivation
        coarser = DATE_CHAIN[: DATE_CHAIN.index(part)] if part in DATE_CHAIN else ()
        for place, key in enumerate(keys):
            if coarser and key.column == column and key.derivations == coarser:
                keys[place] = SparkKey((*key.fields, field), column)
                break
        else:
            keys.append(SparkKey((field,), column))
    return keys


def _single_column_fields(found: QueryLeaves) -> Iterator[tuple[PartitionField, tuple[str, ...]]]:
    for field in found.common_fields():
        paths = [found.schema.path_of(source) for source in field.source_ids]
        if len(paths) != 1 or paths[0] is None or len(paths[0]) > 1:
            continue
        # Strings that a collation treats as equal may be in several partitions.
        if not is_collated(found.schema.field(field.source_ids[0])):
            yield field, paths[0]


def is_computable_in_java(field: PartitionField, column: pa.Field) -> bool:
    """Return whether the Java classes compute the same value from Spark's value of the column."""
    source = column.type
    if not is_plain_type(source) or pt.is_boolean(source) or is_collated(column):
        return False
    if isinstance(field.derivation, Identity):
        return True
    # `multi_bucket`, a subclass, has no class in Java.
    if type(field.derivation) is Bucket:
        # Spark has decimals for these, which hash differently.
        return source != pa.uint64() and not (pt.is_decimal(source) and source.scale < 0)
    return field.derivation in DATE_CHAIN


def fields_by_column(state: TableState) -> dict[str, list[PartitionField]]:
    """Return the partition fields of all specs by their source column."""
    properties = state.properties
    found: dict[str, list[PartitionField]] = {}
    for spec in properties.specs.values():
        for field in spec.fields:
            for source in field.source_ids:
                path = properties.schema.path_of(source)
                if path is None or len(path) > 1:
                    continue
                if not is_collated(properties.schema.field(source)):
                    found.setdefault(path[0], []).append(field)
    return found


def check_partitioning(schema: pa.Schema, partition_by: PartitionBy) -> None:
    """Refuse partitioning by collated columns."""
    numbered = Schema.of(schema)
    for field in build_next_spec(partition_by, numbered, {}).fields:
        for source in field.source_ids:
            column = numbered.field(source)
            if is_collated(column):
                kind = spark_schema(pa.schema([column])).fields[0].dataType
                raise InvalidSpec(
                    f"Cannot partition by {field.label(numbered)}: column {column.name!r} is "
                    f"{kind.simpleString()}, and its equal strings could be in several "
                    "partitions. Partition by another column, or use string."
                )


def plan_keyed_tasks(
    found: QueryLeaves, keys: Sequence[SparkKey], wanted_bytes: int | None
) -> tuple[list[ScanTask], list[list[str | None]]]:
    """Plan tasks that each read rows of one key, in the order of keys; return their keys too."""
    table = pa.table([key.values(found) for key in keys], names=[str(n) for n in range(len(keys))])
    groups = group_rows(table, len(found.leaves))
    members: list[list[ScanPiece]] = [[] for _ in range(groups.count)]
    for code, leaf in zip(groups.codes.tolist(), found.leaves, strict=True):
        members[code].extend(leaf.pieces)
    shown = [
        key.to_texts(column.combine_chunks(), found)
        for key, column in zip(keys, groups.keys.columns, strict=True)
    ]
    tasks: list[ScanTask] = []
    values: list[list[str | None]] = []
    for place in sort_indices(groups.keys).to_pylist():
        made = pack_tasks(members[place], wanted_bytes)
        tasks += made
        values += [[column[place] for column in shown]] * len(made)
    return tasks, values


def to_texts(values: pa.Array, field: pa.Field) -> list[str | None]:
    """Format values of a column as texts, which Java parses to Spark's values."""
    wanted = arrow_schema(spark_schema(pa.schema([field]))).field(0)
    kind = wanted.type
    array = cast_for_spark(values, wanted)
    if pt.is_date32(kind):
        array = array.cast(pa.int32())
    elif pt.is_timestamp(kind):
        array = array.cast(pa.int64())
    found = array.to_pylist()
    if pt.is_binary(kind):
        return [None if value is None else value.hex() for value in found]
    if pt.is_boolean(kind):
        return [None if value is None else str(value).lower() for value in found]
    if pt.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in found]
    return [None if value is None else str(value) for value in found]


def count_rows_and_bytes(found: QueryLeaves) -> tuple[int, int]:
    """Return the numbers of rows and bytes of the leaves."""
    sizes = [(piece.rows, piece.size) for piece in found.pieces]
    rows, size = np.sum(np.array(sizes, dtype=np.int64).reshape(-1, 2), axis=0)
    return int(rows), int(size)
