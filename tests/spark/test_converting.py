"""Values converted for Spark, compared with Python values; no Spark is needed."""

from __future__ import annotations

import decimal
import functools
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType

from phalanx.errors import SchemaMismatch
from phalanx.spark.runtime.types import arrow_schema, spark_schema, to_spark_batches

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DIGITS = decimal.Context(prec=80)
UNITS = st.sampled_from(list(_PER_SECOND))
# The first is a zone with hours that come twice.
ZONES = st.sampled_from(["America/New_York", "UTC", "+02:00", "Asia/Kathmandu"])


def _decimals() -> st.SearchStrategy[pa.DataType]:
    limits = [(pa.decimal32, 9), (pa.decimal64, 18), (pa.decimal128, 38), (pa.decimal256, 38)]

    def with_scale(make: Callable[[int, int], pa.DataType], digits: int) -> Any:
        # Arrow makes no short decimals of negative scales from values of Python.
        least = max(-5, digits - 38) if make in (pa.decimal128, pa.decimal256) else 0
        return st.integers(least, digits).map(functools.partial(make, digits))

    return st.one_of(
        st.integers(1, most).flatmap(functools.partial(with_scale, make)) for make, most in limits
    )


PLAIN = st.one_of(
    st.sampled_from(
        [
            *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
            *(pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()),
            *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3)),
            *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        ]
    ),
    _decimals(),
    st.builds(pa.timestamp, UNITS, st.none() | ZONES),
    st.builds(pa.duration, UNITS),
    st.builds(pa.dictionary, st.sampled_from([pa.int8(), pa.uint32()]), st.just(pa.string())),
)


def _fields(kinds: st.SearchStrategy[pa.DataType], name: str) -> st.SearchStrategy[pa.Field]:
    return st.builds(
        lambda kind, nullable: pa.field(name, kind, nullable or kind == pa.null()),
        kinds,
        st.booleans(),
    )


def _keys() -> st.SearchStrategy[pa.DataType]:
    return PLAIN.filter(lambda kind: kind != pa.null() and not pt.is_dictionary(kind))


# Lance stores vectors of these, and vectors of such vectors.
NUMBERS = st.sampled_from([pa.float16(), pa.float32(), pa.float64(), pa.uint8(), pa.int64()])
# "element" is the name that Spark gives to the items of a list.
TYPES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.builds(lambda *children: pa.struct(children), _fields(inner, "a"), _fields(inner, "b")),
        st.builds(pa.list_, _fields(inner, "element") | _fields(inner, "item")),
        st.builds(pa.large_list, _fields(inner, "item")),
        st.builds(pa.list_, _fields(NUMBERS, "item"), st.integers(1, 3)),
        st.builds(
            lambda field, n: pa.list_(pa.list_(field, n), n),
            _fields(NUMBERS, "item"),
            st.integers(1, 2),
        ),
        st.builds(pa.map_, _keys(), _fields(inner, "value")),
    ),
    max_leaves=4,
)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values as Arrow takes them: of times the numbers that are stored."""
    if pt.is_null(kind):
        return st.none()
    if pt.is_boolean(kind):
        return st.booleans()
    if pt.is_integer(kind):
        bits, signed = kind.bit_width, pt.is_signed_integer(kind)
        return st.integers(-(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1)
    if pt.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if pt.is_decimal(kind):
        most = 10**kind.precision - 1
        whole = st.integers(-most, most)
        return whole.map(lambda number: Decimal(number).scaleb(-kind.scale, _DIGITS))
    if pt.is_date(kind):
        unit = 1 if pt.is_date32(kind) else 86_400_000
        return st.integers(-(10**6), 10**6).map(lambda days: days * unit)
    if pt.is_time(kind):
        return st.integers(0, 86_400 * _PER_SECOND[kind.unit] - 1)
    if pt.is_timestamp(kind) or pt.is_duration(kind):
        most = (2**63 - 1) // max(1, 10**6 // _PER_SECOND[kind.unit])
        return st.integers(-most, most)
    if pt.is_dictionary(kind) or pt.is_string(kind) or pt.is_large_string(kind):
        return st.text(max_size=5)
    if pt.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return st.binary(max_size=5)
    if pt.is_struct(kind):
        return st.fixed_dictionaries({child.name: _of_field(child) for child in kind})
    if pt.is_map(kind):
        return st.lists(st.tuples(values_of(kind.key_type), _of_field(kind.item_field)), max_size=3)
    size = kind.list_size if pt.is_fixed_size_list(kind) else None
    items = _of_field(kind.value_field)
    return st.lists(items, min_size=size or 0, max_size=size or 3)


def _of_field(field: pa.Field) -> st.SearchStrategy[Any]:
    values = values_of(field.type)
    return values | st.none() if field.nullable else values


def compute_expected(value: Any, kind: pa.DataType) -> Any:
    """Compute what Spark should get: times in microseconds, days, floats by their bits."""
    if value is None:
        return None
    if pt.is_uint64(kind):
        return Decimal(value)
    if pt.is_float64(kind):
        return _bits(value)
    if pt.is_floating(kind):
        return _bits(float(np.float16(value) if pt.is_float16(kind) else np.float32(value)))
    if pt.is_date64(kind):
        return value // 86_400_000
    if pt.is_time(kind) or pt.is_timestamp(kind):
        return value * 10**6 // _PER_SECOND[kind.unit]
    if pt.is_duration(kind):
        # The fraction is cut off, also for negative values.
        sign = -1 if value < 0 else 1
        return sign * (abs(value) * 10**6 // _PER_SECOND[kind.unit])
    if pt.is_struct(kind):
        return {child.name: compute_expected(value[child.name], child.type) for child in kind}
    if pt.is_map(kind):
        return [
            (compute_expected(k, kind.key_type), compute_expected(v, kind.item_type))
            for k, v in value
        ]
    if isinstance(value, list):
        return [compute_expected(item, kind.value_type) for item in value]
    return value


def read_value(scalar: pa.Scalar) -> Any:
    """Read a value as Spark gets it, in the form of `compute_expected`."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pt.is_time(kind):
        assert kind == pa.time64("ns")
        assert scalar.value % 1000 == 0
        return scalar.value // 1000
    if pt.is_timestamp(kind) or pt.is_duration(kind):
        assert kind.unit == "us"
        return scalar.value
    if pt.is_date(kind):
        return scalar.value
    if pt.is_floating(kind):
        return _bits(scalar.as_py())
    if pt.is_struct(kind):
        return {child.name: read_value(scalar[child.name]) for child in kind}
    if pt.is_map(kind):
        return [(read_value(pair["key"]), read_value(pair["value"])) for pair in scalar.values]
    if pt.is_list(kind):
        return [read_value(item) for item in scalar.values]
    return scalar.as_py()


def _bits(number: float) -> bytes | str:
    return "NaN" if number != number else struct.pack("d", number)


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Field, list[Any]]:
    field = draw(_fields(TYPES, "x"))
    return field, draw(st.lists(_of_field(field), max_size=5))


_HALF = pa.field("item", pa.float16(), nullable=False)
_TWICE = 1_667_712_600_000_000_001  # 01:30 in New York on the day when it comes twice.


@given(columns(), st.integers(0, 3))
@example((pa.field("x", pa.timestamp("ns", "America/New_York")), [_TWICE, None, -1]), 0)
@example((pa.field("x", pa.timestamp("ns")), [-(2**63), 2**63 - 1]), 0)
@example((pa.field("x", pa.list_(pa.field("element", pa.time64("ns")))), [[1], [None], None]), 1)
@example((pa.field("x", pa.decimal128(2, 4)), [None]), 0)
@example((pa.field("x", pa.list_(pa.list_(_HALF, 1))), [[None], None, [[1.5]]]), 0)
@example((pa.field("x", pa.list_(pa.list_(_HALF, 1), 1)), [[None], None, [[1.5]]]), 1)
def test_every_value_arrives_as_the_same_in_a_wider_type(
    column: tuple[pa.Field, list[Any]], start: int
) -> None:
    field, values = column
    schema = pa.schema([field])
    target = arrow_schema(spark_schema(schema))
    batch = pa.RecordBatch.from_arrays([pa.array(values, field.type)], schema=schema)
    [sent] = to_spark_batches([batch.slice(start)], target)
    sent.validate(full=True)
    assert sent.schema == target
    assert target.field("x").nullable == field.nullable
    assert [read_value(each) for each in sent.column("x")] == [
        compute_expected(value, field.type) for value in values[start:]
    ]


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (pa.decimal256(39, 2), "x"),
        (pa.decimal128(38, -1), "x"),
        (pa.month_day_nano_interval(), "x"),
        (pa.struct([("inner", pa.list_(pa.decimal256(50, 0)))]), "x.inner[]"),
        (pa.map_(pa.string(), pa.decimal256(50, 0)), "x[]"),
    ],
    ids=str,
)
def test_what_spark_cannot_hold_is_reported_with_its_path_and_type(
    kind: pa.DataType, path: str
) -> None:
    with pytest.raises(SchemaMismatch, match="Spark has no type for column") as error:
        spark_schema(pa.schema([("fine", pa.int8()), ("x", kind)]))
    assert repr(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_value_beyond_the_years_of_spark_is_reported_with_its_column() -> None:
    schema = pa.schema([("far", pa.timestamp("s"))])
    batch = pa.RecordBatch.from_arrays([pa.array([2**62], pa.timestamp("s"))], schema=schema)
    with pytest.raises(SchemaMismatch, match=r"'far' \(timestamp\[s\]\).*4611686018427387904") as e:
        list(to_spark_batches([batch], arrow_schema(spark_schema(schema))))
    assert "\n" not in str(e.value)


def test_what_spark_notes_of_a_column_is_no_part_of_a_table() -> None:
    noted = StructField("a", LongType(), True, {"scale": 0})
    assert arrow_schema(StructType([noted])).field("a").metadata is None
