"""Arrow and Spark types: what a column is to Spark, and its values in the form that Spark takes.

Spark has no unsigned integers, half floats, vectors of a fixed size or dictionaries, and counts
time in microseconds. A column of such a type arrives as the next wider type that holds all its
values; nanoseconds are cut to microseconds. On the way back `conformed` restores the table's types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from phalanx.errors import SchemaMismatch
from phalanx.model.rows import copied, offsets_and_items
from phalanx.spark.workers import settle

_MOST_DIGITS = 38
_SIMPLE: dict[pa.DataType, st.DataType] = {
    pa.null(): st.NullType(),
    pa.bool_(): st.BooleanType(),
    pa.int8(): st.ByteType(),
    pa.int16(): st.ShortType(),
    pa.int32(): st.IntegerType(),
    pa.int64(): st.LongType(),
    pa.uint8(): st.ShortType(),
    pa.uint16(): st.IntegerType(),
    pa.uint32(): st.LongType(),
    pa.uint64(): st.DecimalType(20, 0),
    pa.float16(): st.FloatType(),
    pa.float32(): st.FloatType(),
    pa.float64(): st.DoubleType(),
    pa.string(): st.StringType(),
    pa.large_string(): st.StringType(),
    pa.string_view(): st.StringType(),
    pa.binary(): st.BinaryType(),
    pa.large_binary(): st.BinaryType(),
    pa.binary_view(): st.BinaryType(),
    pa.date32(): st.DateType(),
    pa.date64(): st.DateType(),
}


def spark_schema(schema: pa.Schema) -> st.StructType:
    """The schema that Spark sees; `SchemaMismatch` names a column that Spark cannot hold."""
    return st.StructType(
        [
            st.StructField(field.name, _spark_type(field.type, field.name), field.nullable)
            for field in schema
        ]
    )


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """The schema of the Arrow batches that Spark exchanges for a schema of its own."""
    try:
        found = to_arrow_schema(schema, timezone="UTC")
        # What Spark notes of a column, such as its type in a database, is no part of a table.
        return pa.schema([field.remove_metadata() for field in found])
    except Exception as error:
        raise SchemaMismatch(
            f"Cannot take the columns {schema.simpleString()}: {error}. Cast the column to a type "
            "that Arrow has."
        ) from None


def for_spark(batches: Iterable[pa.RecordBatch], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in the Arrow schema that Spark expects of them, columns by name."""
    settle()
    for batch in batches:
        arrays = [_column(batch.column(field.name), field) for field in target]
        yield pa.RecordBatch.from_arrays(arrays, schema=target)


def _column(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return fitted(array, field.type)
    except pa.ArrowInvalid as error:
        reason = " ".join(str(error).split())
        raise SchemaMismatch(
            f"Spark cannot hold all values of column {field.name!r} ({array.type}) as "
            f"{field.type}: {reason}. Leave it out with the option `columns`."
        ) from None


def _spark_type(kind: pa.DataType, path: str) -> st.DataType:
    if (simple := _SIMPLE.get(kind)) is not None:
        return simple
    if pt.is_fixed_size_binary(kind):
        return st.BinaryType()
    if pt.is_decimal(kind):
        # Spark knows no negative scales, and no more digits after the point than there are at all.
        scale = max(0, kind.scale)
        digits = max(kind.precision + scale - kind.scale, scale)
        if digits <= _MOST_DIGITS:
            return st.DecimalType(digits, scale)
    elif pt.is_timestamp(kind):
        return st.TimestampNTZType() if kind.tz is None else st.TimestampType()
    elif pt.is_time(kind):
        return st.TimeType(6)
    elif pt.is_duration(kind):
        return st.DayTimeIntervalType()
    elif pt.is_dictionary(kind):
        return _spark_type(kind.value_type, path)
    elif pt.is_struct(kind):
        return st.StructType(
            [
                st.StructField(
                    child.name, _spark_type(child.type, f"{path}.{child.name}"), child.nullable
                )
                for child in kind
            ]
        )
    elif pt.is_map(kind):
        return st.MapType(
            _spark_type(kind.key_type, f"{path}[]"),
            _spark_type(kind.item_type, f"{path}[]"),
            kind.item_field.nullable,
        )
    elif _is_list(kind):
        element = kind.value_field
        return st.ArrayType(_spark_type(element.type, f"{path}[]"), element.nullable)
    raise SchemaMismatch(
        f"Spark has no type for column {path!r} ({kind}). Leave it out with the option `columns`."
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pt.is_list(kind)
        or pt.is_large_list(kind)
        or pt.is_fixed_size_list(kind)
        or pt.is_list_view(kind)
        or pt.is_large_list_view(kind)
    )


def fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values in a type that holds them all; nanoseconds are cut to microseconds."""
    if pt.is_time64(array.type) and array.type.unit == "ns":
        # Spark takes nanoseconds, but expects none in its times.
        return _microseconds(array, pa.time64("us")).cast(kind)
    if array.type == kind and not pt.is_nested(kind):
        return array
    if pt.is_dictionary(array.type):
        return fitted(array.dictionary_decode(), kind)
    if pt.is_nested(kind) and array.offset:
        # Arrow builds no nested array with NULLs from a slice.
        array = copied(array)
    if pt.is_struct(kind):
        # What is below NULL has no value, not even one that could be cast.
        inner = array.flatten() if array.null_count else map(array.field, range(len(kind)))
        children = [fitted(each, child.type) for each, child in zip(inner, kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=_nulls(array))
    if pt.is_map(kind):
        keys, items = fitted(array.keys, kind.key_type), fitted(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=_nulls(array))
    if pt.is_list(kind):
        offsets, items = offsets_and_items(array)
        values = fitted(items, kind.value_type)
        return pa.ListArray.from_arrays(
            offsets.cast(pa.int32()), values, type=kind, mask=_nulls(array)
        )
    if pt.is_timestamp(kind) and array.type.unit == "ns":
        return _microseconds(array, kind)
    if pt.is_duration(kind) and array.type.unit == "ns":
        return pc.divide(array.cast(pa.int64()), 1000).cast(kind)
    return array.cast(kind)


def _microseconds(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Nanoseconds as the microseconds that they are in, also before 1970.

    Arrow's own functions for this go by the clocks of a zone, which show some hours twice.
    """
    numbers = array.cast(pa.int64())
    whole = pc.divide(numbers, 1000)
    is_later = pc.greater(pc.multiply(whole, 1000), numbers)
    return pc.subtract(whole, is_later.cast(pa.int64())).cast(kind)


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
