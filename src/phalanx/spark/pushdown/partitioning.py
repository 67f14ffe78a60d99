"""What Spark is told of the partitions it reads: by which columns, and the key of each task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSpec
from phalanx.model.schema.grouping import group, order_of
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import next_spec
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.specs.spec import PartitionField
from phalanx.model.transforms.buckets import Bucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.transform import Identity
from phalanx.spark.pushdown.queries import Found
from phalanx.spark.runtime.types import arrow_schema, fitted, is_collated, spark_schema
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.read.scan_tasks import Piece, ScanTask, packed_tasks

# With more leaves than these, a task for each of them costs more than a shuffle saves.
MOST_PARTITIONS = 2_000


@dataclass(frozen=True, slots=True)
class Key:
    """A partition field that Spark can compute itself, from a column that it reads.

    Or several, if they are the first parts of the date chain: one number has them as its digits
    then (2025 and 12 are 202512), of which Spark can take the first ones.
    """

    fields: tuple[PartitionField, ...]
    column: str

    def to_json(self) -> dict[str, Any]:
        """The field as the classes in Java take it."""
        if len(self.fields) > 1:
            chain = DATE_CHAIN[: len(self.fields)]
            return {"column": self.column, "type": "_".join(part.name for part in chain)}
        return {"column": self.column, **self.fields[0].derivation.to_json()}

    @property
    def derivations(self) -> tuple[object, ...]:
        """How the fields come from the column."""
        return tuple(field.derivation for field in self.fields)

    def values(self, found: Found) -> pa.Array:
        """The key of each leaf."""
        if len(self.fields) == 1:
            return found.values(self.fields[0])
        digits = pa.nulls(len(found.leaves), pa.int64()).fill_null(0)
        for field in self.fields:
            digits = pc.add(pc.multiply(digits, 100), found.values(field).cast(pa.int64()))
        return digits

    def texts(self, values: pa.Array, found: Found) -> list[str | None]:
        """Keys as text, from which Java makes what Spark has for them."""
        is_column = isinstance(self.fields[0].derivation, Identity)
        kind = found.schema.arrow.field(self.column).type if is_column else values.type
        return texts(values, pa.field("", kind))


def plain_type(kind: pa.DataType) -> bool:
    """Whether equal values of the type are the same to Spark, and it loses none of them."""
    if pt.is_dictionary(kind):
        return plain_type(kind.value_type)
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


def identity_columns(found: Found) -> dict[str, PartitionField]:
    """The columns that have one value in each leaf, and the field that holds it."""
    return {
        path[0]: field
        for field, path in _of_columns(found)
        if isinstance(field.derivation, Identity) and plain_type(field.result_type)
    }


def keys_of(found: Found, columns: Sequence[str]) -> list[Key]:
    """By what the leaves are partitioned, all of them, as far as Spark reads the columns."""
    if not 0 < len(found.leaves) <= MOST_PARTITIONS:
        return []
    known: list[tuple[PartitionField, str]] = [
        (field, path[0])
        for field, path in _of_columns(found)
        if path[0] in columns and is_known_to_java(field, found.schema.arrow.field(path[0]))
    ]
    return _chained(known)


def _chained(known: Sequence[tuple[PartitionField, str]]) -> list[Key]:
    """The fields as keys: those of a column that are the date chain from the year on as one."""
    keys: list[Key] = []
    for field, column in known:
        part = field.derivation
        coarser = DATE_CHAIN[: DATE_CHAIN.index(part)] if part in DATE_CHAIN else ()
        for place, key in enumerate(keys):
            if coarser and key.column == column and key.derivations == coarser:
                keys[place] = Key((*key.fields, field), column)
                break
        else:
            keys.append(Key((field,), column))
    return keys


def _of_columns(found: Found) -> Iterator[tuple[PartitionField, tuple[str, ...]]]:
    for field in found.common_fields():
        paths = [found.schema.path_of(source) for source in field.source_ids]
        if len(paths) != 1 or paths[0] is None or len(paths[0]) > 1:
            continue
        # Texts that are equal to Spark may be in several partitions.
        if not is_collated(found.schema.field(field.source_ids[0])):
            yield field, paths[0]


def is_known_to_java(field: PartitionField, column: pa.Field) -> bool:
    """Whether the classes in Java compute the same value from what Spark sees of the column."""
    source = column.type
    if not plain_type(source) or pt.is_boolean(source) or is_collated(column):
        return False
    if isinstance(field.derivation, Identity):
        return True
    if isinstance(field.derivation, Bucket):
        # Spark has decimals for them, which are hashed in another way.
        return source != pa.uint64() and not (pt.is_decimal(source) and source.scale < 0)
    return field.derivation in DATE_CHAIN


def source_columns(manifest: LeafListing) -> dict[str, list[PartitionField]]:
    """The columns that partitions of any spec are made of, and the fields that are made of each."""
    properties = manifest.properties
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
    """Refuse partitions by texts that Spark compares otherwise than byte by byte."""
    numbered = Schema.of(schema)
    for field in next_spec(partition_by, numbered, {}).fields:
        for source in field.source_ids:
            column = numbered.field(source)
            if is_collated(column):
                kind = spark_schema(pa.schema([column])).fields[0].dataType
                raise InvalidSpec(
                    f"Cannot partition by {field.label(numbered)}: column {column.name!r} is "
                    f"{kind.simpleString()}, and texts that are equal by it may be in several "
                    "partitions. Partition by another column, or use string."
                )


def keyed_tasks(
    found: Found, keys: Sequence[Key], wanted_bytes: int | None
) -> tuple[list[ScanTask], list[list[str | None]]]:
    """Tasks that have rows of one key each, in the order of the keys, and these keys."""
    table = pa.table([key.values(found) for key in keys], names=[str(n) for n in range(len(keys))])
    groups = group(table, len(found.leaves))
    members: list[list[Piece]] = [[] for _ in range(groups.count)]
    for code, leaf in zip(groups.codes.tolist(), found.leaves, strict=True):
        members[code].extend(leaf.pieces)
    shown = [
        key.texts(column.combine_chunks(), found)
        for key, column in zip(keys, groups.keys.columns, strict=True)
    ]
    tasks: list[ScanTask] = []
    values: list[list[str | None]] = []
    for place in order_of(groups.keys).to_pylist():
        made = packed_tasks(members[place], wanted_bytes)
        tasks += made
        values += [[column[place] for column in shown]] * len(made)
    return tasks, values


def texts(values: pa.Array, field: pa.Field) -> list[str | None]:
    """Values of a column as text, from which Java makes what Spark has for them."""
    wanted = arrow_schema(spark_schema(pa.schema([field]))).field(0)
    kind = wanted.type
    array = fitted(values, wanted)
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


def counted(found: Found) -> tuple[int, int]:
    """The rows and the bytes of the leaves."""
    sizes = [(piece.rows, piece.size) for piece in found.pieces]
    rows, size = np.sum(np.array(sizes, dtype=np.int64).reshape(-1, 2), axis=0)
    return int(rows), int(size)
