"""Arrow and Spark types: what a column is to Spark, and its values in the form that Spark takes.

Spark has no unsigned integers, half floats, vectors of a fixed size or dictionaries, and counts
time in microseconds. A column of such a type arrives as the next wider type that holds all its
values; nanoseconds are cut to microseconds. On the way back `conformed` restores the table's types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from phalanx.errors import SchemaMismatch

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
        return to_arrow_schema(schema, timezone="UTC")
    except Exception as error:
        raise SchemaMismatch(
            f"Cannot take the columns {schema.simpleString()}: {error}. Cast the column to a type "
            "that Arrow has."
        ) from None


def for_spark(batches: Iterable[pa.RecordBatch], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in the Arrow schema that Spark expects of them, columns by name."""
    for batch in batches:
        arrays = [_fitted(batch.column(field.name), field.type) for field in target]
        yield pa.RecordBatch.from_arrays(arrays, schema=target)


def _spark_type(kind: pa.DataType, path: str) -> st.DataType:
    if (simple := _SIMPLE.get(kind)) is not None:
        return simple
    if pt.is_fixed_size_binary(kind):
        return st.BinaryType()
    if pt.is_decimal(kind):
        # Spark knows no negative scales.
        scale = max(0, kind.scale)
        digits = kind.precision + scale - kind.scale
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


def _fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values in a type that holds them all; nanoseconds are cut to microseconds."""
    if array.type == kind:
        return array
    if pt.is_dictionary(array.type):
        return _fitted(array.dictionary_decode(), kind)
    if pt.is_nested(kind) and array.offset:
        # Arrow builds no nested array with NULLs from a slice.
        array = array.take(pa.array(np.arange(len(array))))
    if pt.is_struct(kind):
        children = [_fitted(array.field(place), child.type) for place, child in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=_nulls(array))
    if pt.is_map(kind):
        keys, items = _fitted(array.keys, kind.key_type), _fitted(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=_nulls(array))
    if pt.is_list(kind):
        same = pa.list_(pa.field(kind.value_field.name, array.type.value_type))
        lists = array.cast(same)
        values = _fitted(lists.values, kind.value_type)
        return pa.ListArray.from_arrays(lists.offsets, values, type=kind, mask=_nulls(lists))
    if pt.is_timestamp(kind) and array.type.unit == "ns":
        array = pc.floor_temporal(array, unit="microsecond")
    if pt.is_duration(kind) and array.type.unit == "ns":
        return pc.divide(array.cast(pa.int64()), 1000).cast(kind)
    return array.cast(kind)


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
