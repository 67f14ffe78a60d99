"""Where a row of a DataFrame goes: columns of Spark that tell its partition.

Rows are shuffled by them, so they need not be the partition values: any function that tells
partitions apart does. Spark's own functions are used where one follows from the partition value,
and Python computes the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql import types as st

from phalanx.model.schema.grouping import group
from phalanx.model.schema.rows import conformed
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import plain_values
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
    """Columns whose values are the same for all rows of a partition, and rarely for others."""
    columns: list[Column] = []
    computed: list[PartitionField] = []
    for field in spec.fields:
        column = native_column(field, schema, rows)
        if column is None:
            computed.append(field)
        else:
            columns.append(column)
    if computed:
        columns.append(_by_python(PartitionSpec(spec.id, tuple(computed)), schema))
    return columns


def native_column(field: PartitionField, schema: Schema, rows: st.StructType) -> Column | None:
    """A function of a partition value by Spark alone; None where Spark has none."""
    path = schema.path_of(field.source_ids[0])
    if path is None or len(field.source_ids) != 1:
        return None
    kind, column = _type_at(rows, path), fn.col(_quoted(path))
    match field.derivation:
        case Identity():
            # Both zeros are one partition.
            return column + fn.lit(0.0) if isinstance(kind, _FLOATS) else column
        case Truncate(width=width) if isinstance(kind, st.StringType):
            return fn.substring(column, 1, width)
        case Truncate(width=width) if isinstance(kind, _WHOLE):
            return column - column % fn.lit(width)
        case CalendarPart() as part:
            return _calendar_column(part, column, kind)
    return None


def _calendar_column(part: CalendarPart, column: Column, kind: st.DataType) -> Column | None:
    """A calendar part in UTC, whatever the time zone of the session is."""
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


def _by_python(spec: PartitionSpec, schema: Schema) -> Column:
    """A number for each row that is the same for all rows of a partition, computed by Python."""
    names = _source_columns(spec, schema)
    wanted = pa.schema([schema.arrow.field(name) for name in names])

    def number(*arrays: pa.Array) -> pa.Array:
        given = pa.RecordBatch.from_arrays(list(arrays), names=names)
        reader = pa.RecordBatchReader.from_batches(given.schema, [given])
        (rows,) = conformed(reader, wanted)
        return partition_numbers(spec, rows, schema)

    # Spark reads the kinds of the arguments from the annotations, of which there are many.
    number.__annotations__ = {"arrays": pa.Array, "return": pa.Array}
    computed = fn.arrow_udf(number, st.LongType())  # type: ignore[attr-defined]
    found: Column = computed(*[fn.col(_quoted((name,))) for name in names])
    return found


def partition_numbers(spec: PartitionSpec, rows: pa.RecordBatch, schema: Schema) -> pa.Array:
    """A number for each row: equal for rows of one partition, wherever they are computed."""
    groups = group(spec.partition_values(rows, schema), rows.num_rows)
    values = zip(*(plain_values(column) for column in groups.keys.columns), strict=True)
    numbers = np.array([_number(each) for each in values], np.int64)
    return pa.array(numbers[groups.codes])


def _number(values: tuple[object, ...]) -> int:
    digest = hashlib.blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)


def most_partitions(spec: PartitionSpec) -> int | None:
    """How many partitions the spec can have; None where nobody knows."""
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
    """The columns that the fields read, each once."""
    paths = (schema.path_of(source) for field in spec.fields for source in field.source_ids)
    return list(dict.fromkeys(path[0] for path in paths if path is not None))


def _type_at(rows: st.StructType, path: Sequence[str]) -> st.DataType:
    kind: st.DataType = rows
    for name in path:
        assert isinstance(kind, st.StructType)
        kind = kind[name].dataType
    return kind


def _quoted(path: Sequence[str]) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in path)
