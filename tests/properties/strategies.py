"""Random schemas, rows, specs and predicates, for which the laws of pruning must hold."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from phalanx.errors import InvalidSpec
from phalanx.model.murmur3 import is_hashable
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import (
    PartitionTerm,
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
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql.literals import from_ordinal, render_typed

YEAR = 365 * 86_400
# Around midnight of a new year in UTC, Paris and New York; before 1970; far away.
MOMENTS = st.one_of(
    st.integers(-2 * YEAR, 60 * YEAR),
    st.builds(
        lambda start, offset: start + offset,
        st.sampled_from([1_735_689_600, 1_704_067_200, 0, -YEAR, 1_740_787_200, 951_782_400]),
        st.integers(-6 * 3600, 6 * 3600),
    ),
    st.sampled_from([-62_135_596_800, 253_402_300_799, -4_000_000_000_000, 4_000_000_000_000]),
)
NANOSECOND_MOMENTS = st.one_of(
    st.integers(-2 * YEAR, 60 * YEAR),
    st.builds(
        lambda start, offset: start + offset,
        st.sampled_from([1_735_689_600, 1_704_067_200, 0, -YEAR]),
        st.integers(-6 * 3600, 6 * 3600),
    ),
)
TEXT = st.one_of(
    st.text("abé%_\\'\"`😀", max_size=5),
    st.sampled_from(["", "a", "ab", "abc", "abcd", "US", "us", "%", "a%b", "é", "\U0010ffff"]),
)
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclasses.dataclass(frozen=True)
class Kind:
    """An Arrow type and how to draw values of it (as scalars)."""

    type: pa.DataType
    values: st.SearchStrategy[pa.Scalar]


def _scalars(data_type: pa.DataType, values: st.SearchStrategy[Any]) -> Kind:
    return Kind(data_type, values.map(lambda value: pa.scalar(value, data_type)))


def _ordinals(data_type: pa.DataType, values: st.SearchStrategy[int]) -> Kind:
    return Kind(data_type, values.map(lambda value: from_ordinal(value, data_type)))


def _integers(data_type: pa.DataType) -> Kind:
    signed = str(data_type).startswith("int")
    bits = data_type.bit_width
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    small = st.integers(max(low, -130), min(high, 130))
    return _scalars(data_type, st.one_of(small, st.sampled_from([low, high, high - 1]), small))


def _timestamps(unit: str, zone: str | None = None) -> Kind:
    seconds = NANOSECOND_MOMENTS if unit == "ns" else MOMENTS
    per_second = PER_SECOND[unit]
    ticks = st.builds(
        lambda second, tick: second * per_second + tick,
        seconds,
        st.sampled_from([0, 0, per_second - 1, per_second // 2]),
    )
    return _ordinals(pa.timestamp(unit, zone), ticks)


FLOATS = st.one_of(
    st.sampled_from(
        [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 0.5, -1.5, 1e300, 5e-324, 0.1]
    ),
    st.floats(-130, 130),
    st.integers(-30, 30).map(float),
)
FLOATS32 = st.one_of(
    st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 0.5]), st.floats(width=32)
)
DAYS = st.one_of(st.integers(-800, 22_000), st.integers(20_080, 20_100), st.just(-700_000))

KINDS: tuple[Kind, ...] = (
    _scalars(pa.bool_(), st.booleans()),
    *(_integers(kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *(_integers(kind) for kind in (pa.uint8(), pa.uint32(), pa.uint64())),
    _scalars(pa.float64(), FLOATS),
    _scalars(pa.float32(), FLOATS32),
    _scalars(pa.decimal128(9, 2), st.integers(-3000, 3000).map(lambda n: Decimal(n) / 100)),
    _scalars(pa.decimal128(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    _scalars(pa.string(), TEXT),
    _scalars(pa.large_string(), TEXT),
    _scalars(pa.binary(), st.binary(max_size=4)),
    _ordinals(pa.date32(), DAYS),
    _ordinals(pa.date64(), DAYS.map(lambda days: days * 86_400_000)),
    *(_timestamps(unit) for unit in PER_SECOND),
    _timestamps("us", "Europe/Paris"),
    _timestamps("ms", "America/New_York"),
    _timestamps("ns", "UTC"),
    _ordinals(pa.time32("s"), st.integers(0, 86_399)),
    _ordinals(pa.time64("us"), st.integers(0, 86_399_999_999)),
)


def _with_one_zero(kind: Kind) -> Kind:
    if not pa.types.is_floating(kind.type):
        return kind
    zero = pa.scalar(0.0, kind.type)
    values = kind.values.map(lambda value: zero if value.as_py() == 0 else value)
    return dataclasses.replace(kind, values=values)


# A long IN of DataFusion distinguishes −0.0 from 0.0, unlike its =, its short IN, Lance and
# Phalanx.
ONE_ZERO_KINDS = tuple(map(_with_one_zero, KINDS))


@dataclasses.dataclass(frozen=True)
class Rows:
    """A schema and some rows of it, with the kind of every column."""

    schema: Schema
    kinds: dict[str, Kind]
    table: pa.Table


@st.composite
def rows(draw: st.DrawFn, kinds: Sequence[Kind] = KINDS, max_rows: int = 12) -> Rows:
    """Up to four columns of any kind, with NULLs."""
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))
    names = ["a", "b", "Case", "select"][: len(chosen)]
    by_name = dict(zip(names, chosen, strict=True))
    count = draw(st.integers(0, max_rows))
    arrays = []
    for kind in chosen:
        values = draw(st.lists(st.one_of(kind.values, st.none()), min_size=count, max_size=count))
        arrays.append(array_of(values, kind.type))
    schema = Schema.of(pa.schema([(name, kind.type) for name, kind in by_name.items()]))
    return Rows(schema, by_name, pa.table(arrays, schema=schema.arrow))


def array_of(values: Sequence[pa.Scalar | None], data_type: pa.DataType) -> pa.Array:
    """Build an array of scalars and None, which keeps every bit of the values."""
    if pa.types.is_nested(data_type):
        return pa.array([None if v is None else v.as_py() for v in values], data_type)
    return pa.array([pa.scalar(None, data_type) if v is None else v for v in values], data_type)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


# DataFusion would cast between text and numbers row by row, and fail on some rows.
EXPRESSIONS: tuple[tuple[str, pa.DataType, Callable[[pa.DataType], bool]], ...] = (
    ("upper(col0)", pa.string(), _is_text),
    ("coalesce(left(col0, 1), '~')", pa.string(), _is_text),
    ("md5_int(col0) % 3", pa.int64(), _is_text),
    ("col0 % 7", pa.int64(), pa.types.is_integer),
    ("(col0 % 100) * 2 + 1", pa.int64(), pa.types.is_integer),
    (
        "CASE WHEN col0 > 10 THEN 'big' WHEN col0 > 0 THEN 'small' END",
        pa.string(),
        pa.types.is_integer,
    ),
    ("date_part('year', col0) * 100 + date_part('month', col0)", pa.int32(), pa.types.is_timestamp),
    ("abs(murmur3(col0)) % 5 + 1", pa.int64(), is_hashable),
    ("murmur3(col0) > 0", pa.bool_(), is_hashable),
    ("col0 IS NULL", pa.bool_(), is_hashable),
)
TermOf = Callable[[str], PartitionTerm]


def _custom(place: int) -> TermOf:
    sql, result, _ = EXPRESSIONS[place]
    return lambda name: expression(sql, [name], result, field_id=f"{name}_x{place}")


TERMS: tuple[TermOf, ...] = (
    *(identity, year, month, day, hour),
    *(lambda name, n=n: bucket(name, n) for n in (4, 1000)),
    *(lambda name, width=width: truncate(name, width) for width in (1, 3, 10)),
)


@lru_cache
def terms_for(data_type: pa.DataType) -> tuple[TermOf, ...]:
    """Return the terms by which a column of this type can be partitioned."""
    custom = [_custom(n) for n, (_, _, takes) in enumerate(EXPRESSIONS) if takes(data_type)]
    return tuple(term for term in (*TERMS, *custom) if _fits(term("x"), data_type))


def _fits(term: PartitionTerm, data_type: pa.DataType) -> bool:
    try:
        build_next_spec([term], Schema.of(pa.schema([("x", data_type)])), {})
    except InvalidSpec:
        return False
    return True


def terms_over(data: Rows) -> list[PartitionTerm]:
    """Every partition term that fits some column."""
    found = [make(name) for name, kind in data.kinds.items() for make in terms_for(kind.type)]
    names = list(data.kinds)
    return [*found, multi_bucket(names, 3), multi_bucket(names[:2], 8)]


@st.composite
def specs(draw: st.DrawFn, data: Rows) -> PartitionSpec:
    """One to three fields over any transform or expression that fits, the date chain often."""
    terms = terms_over(data)
    dated = [n for n, kind in data.kinds.items() if pa.types.is_timestamp(kind.type)]
    if dated and draw(st.booleans()):
        name = draw(st.sampled_from(dated))
        chain = [year(name), month(name), day(name), hour(name)]
        return build_next_spec(chain[: draw(st.integers(2, 4))], data.schema, {})
    chosen = draw(st.lists(st.sampled_from(terms), min_size=1, max_size=3, unique_by=repr))
    return build_next_spec(chosen, data.schema, {})


@st.composite
def constants(draw: st.DrawFn, data: Rows, name: str) -> str:
    """Draw a constant to compare a column with: often an existing value, or one next to it."""
    kind = data.kinds[name]
    there = [value for value in data.table.column(name) if value.is_valid]
    if there and draw(st.integers(0, 2)):
        return render_typed(draw(st.sampled_from(there)))
    return render_typed(draw(kind.values))


def quote(name: str) -> str:
    """The name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


@st.composite
def conditions(draw: st.DrawFn, data: Rows) -> str:
    """Draw one comparison in any of its usual forms."""
    name = draw(st.sampled_from(list(data.kinds)))
    kind = data.kinds[name].type
    column = quote(name)
    constant = constants(data, name)
    forms = ["compare"] * 4 + ["flipped", "between", "in", "not in", "in", "null", "not null"]
    forms += ["columns", "hash"]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        forms += ["like"] * 4
    if pa.types.is_integer(kind):
        forms += ["fraction", "fraction", "cast", "modulo"]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        forms += ["part", "part", "date text", "day"]
    if pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        forms += ["fraction", "integer"]
    operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    match draw(st.sampled_from(forms)):
        case "compare":
            return f"{column} {operator} {draw(constant)}"
        case "flipped":
            return f"{draw(constant)} {operator} {column}"
        case "between":
            negation = draw(st.sampled_from(["", "NOT "]))
            return f"{column} {negation}BETWEEN {draw(constant)} AND {draw(constant)}"
        case "in" | "not in" as test:
            listed = draw(st.lists(constant, min_size=1, max_size=6))
            if draw(st.integers(0, 5)) == 0:
                listed.append("NULL")
            return f"{column} {test} ({', '.join(listed)})"
        case "null":
            return f"{column} IS NULL"
        case "not null":
            return f"{column} IS NOT NULL"
        case "columns":
            other = draw(st.sampled_from(list(data.kinds)))
            if data.kinds[other].type != kind:
                return f"{column} IS NOT NULL"
            return f"{column} {operator} {quote(other)}"
        case "hash":
            return f"abs(murmur3({column})) % 4 {operator} {draw(st.integers(0, 4))}"
        case "like":
            negation = draw(st.sampled_from(["", "NOT "]))
            pattern = draw(st.text("abé%_", max_size=4)) + draw(st.sampled_from(["%", "", "%"]))
            test = draw(st.sampled_from(["LIKE", "LIKE", "ILIKE"]))
            return f"{column} {negation}{test} '{pattern}'"
        case "fraction":
            return f"{column} {operator} {draw(st.sampled_from(['2.5', '-0.5', '3.0', '1e3']))}"
        case "integer":
            return f"{column} {operator} {draw(st.integers(-20, 20))}"
        case "cast":
            return f"CAST({column} AS DOUBLE) {operator} {draw(st.integers(-20, 20))}"
        case "modulo":
            return f"{column} % 7 = {draw(st.integers(-6, 6))}"
        case "part":
            part = draw(st.sampled_from(["year", "month", "day"]))
            number = draw(st.sampled_from([1, 2, 12, 31, 1970, 2023, 2024, 2025]))
            return f"date_part('{part}', {column}) {operator} {number}"
        case "date text":
            text = draw(st.sampled_from(["2025-01-01", "2024-12-31", "1969-12-31"]))
            return f"{column} {operator} '{text}'"
        case "day":
            text = draw(st.sampled_from(["2025-01-01", "2024-12-31", "1969-12-31"]))
            return f"CAST({column} AS DATE) {operator} DATE '{text}'"
    raise AssertionError


def predicates(data: Rows) -> st.SearchStrategy[str]:
    """Conditions combined with AND, OR and NOT, up to four deep."""

    def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.builds(lambda x, y: f"({x}) AND ({y})", inner, inner),
            st.builds(lambda x, y: f"({x}) OR ({y})", inner, inner),
            st.builds(lambda x: f"NOT ({x})", inner),
        )

    level = conditions(data)
    for _ in range(4):
        level = st.one_of(level, combined(level))
    return level
