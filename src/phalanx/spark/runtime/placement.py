"""Spark columns that identify the partition of each row of a DataFrame.

Rows are shuffled by them, so they need not be the partition values: any function that distinguishes
partitions works. Spark's own functions are used where possible, and Python computes the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql import types as st

from phalanx.model.schema.grouping import group_rows
from phalanx.model.schema.rows import conform_rows
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import to_python_values
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.buckets import Bucket
from phalanx.model.transforms.calendar_parts import CalendarPart, Hour
from phalanx.model.transforms.transform import Identity
from phalanx.model.transforms.truncate import Truncate

_MICROS_A_DAY = 86_400_000_000
_MICROS_AN_HOUR = 3_600_000_000
_WHOLE = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
_FLOATS = (st.FloatType, st.DoubleType)


def partition_columns(spec: PartitionSpec, schema: Schema, rows: st.StructType) -> list[Column]:
    """Return columns that are equal for all rows of a partition, and rarely for others."""
    columns: list[Column] = []
    computed: list[PartitionField] = []
    for field in spec.fields:
        column = native_column(field, schema, rows)
        if column is None:
            computed.append(field)
        else:
            columns.append(column)
    if computed:
        columns.append(_python_column(PartitionSpec(spec.id, tuple(computed)), schema))
    return columns


def native_column(field: PartitionField, schema: Schema, rows: st.StructType) -> Column | None:
    """Return a Spark function that identifies a partition value; None if there is none."""
    path = schema.path_of(field.source_ids[0])
    if path is None or len(field.source_ids) != 1:
        return None
    kind, column = _type_at(rows, path), fn.col(_quote(path))
    match field.derivation:
        case Identity():
            # 0.0 and -0.0 are one partition.
            return column + fn.lit(0.0) if isinstance(kind, _FLOATS) else column
        case Truncate(width=width) if isinstance(kind, st.StringType):
            return fn.substring(column, 1, width)
        case Truncate(width=width) if isinstance(kind, _WHOLE):
            return column - column % fn.lit(width)
        case CalendarPart() as part:
            return _calendar_column(part, column, kind)
    return None


def _calendar_column(part: CalendarPart, column: Column, kind: st.DataType) -> Column | None:
    """Return a calendar part in UTC, independent of the session's time zone."""
    if isinstance(kind, st.TimestampType):
        micros = fn.unix_micros(column)
        within = fn.pmod(micros, fn.lit(_MICROS_A_DAY))
        if isinstance(part, Hour):
            return fn.floor(within / fn.lit(_MICROS_AN_HOUR))
        days = (micros - within) / fn.lit(_MICROS_A_DAY)
        column = fn.date_from_unix_date(days.cast("int"))
    elif not isinstance(kind, st.DateType | st.TimestampNTZType):
        return None
    return {"year": fn.year, "month": fn.month, "day": fn.day, "hour": fn.hour}[part.name](column)


def _python_column(spec: PartitionSpec, schema: Schema) -> Column:
    """Return a number for each row, equal for all rows of a partition, computed by Python."""
    names = _source_columns(spec, schema)
    wanted = pa.schema([schema.arrow.field(name) for name in names])

    def number(*arrays: pa.Array) -> pa.Array:
        given = pa.RecordBatch.from_arrays(list(arrays), names=names)
        reader = pa.RecordBatchReader.from_batches(given.schema, [given])
        (rows,) = conform_rows(reader, wanted)
        return partition_numbers(spec, rows, schema)

    # Spark infers the kind of the function from the annotations of its arguments.
    number.__annotations__ = {"arrays": pa.Array, "return": pa.Array}
    computed = fn.arrow_udf(number, st.LongType())  # type: ignore[attr-defined]
    found: Column = computed(*[fn.col(_quote((name,))) for name in names])
    return found


def partition_numbers(spec: PartitionSpec, rows: pa.RecordBatch, schema: Schema) -> pa.Array:
    """Return a number for each row: equal for rows of one partition, on every executor."""
    groups = group_rows(spec.compute_partition_values(rows, schema), rows.num_rows)
    values = zip(*(to_python_values(column) for column in groups.keys.columns), strict=True)
    numbers = np.array([_hash_values(each) for each in values], np.int64)
    return pa.array(numbers[groups.codes])


def _hash_values(values: tuple[object, ...]) -> int:
    digest = hashlib.blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)


def max_partitions(spec: PartitionSpec) -> int | None:
    """Return the maximal number of partitions of a spec; None if it is unbounded."""
    most = 1
    for field in spec.fields:
        match field.derivation:
            case Bucket(num_buckets=number):
                most *= number + 1
            case CalendarPart(name="month" | "day" | "hour" as name):
                most *= {"month": 13, "day": 32, "hour": 25}[name]
            case _:
                return None
    return most


def _source_columns(spec: PartitionSpec, schema: Schema) -> list[str]:
    """Return the columns that the fields read, each once."""
    paths = (schema.path_of(source) for field in spec.fields for source in field.source_ids)
    return list(dict.fromkeys(path[0] for path in paths if path is not None))


def _type_at(rows: st.StructType, path: Sequence[str]) -> st.DataType:
    kind: st.DataType = rows
    for name in path:
        assert isinstance(kind, st.StructType)
        kind = kind[name].dataType
    return kind


def _quote(path: Sequence[str]) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in path)
