"""One column against constants, as Spark compares them: what Lance is asked for the same rows.

The types are Arrow's; the constants are in the type that Spark has for the column. None says that
there is no way to ask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date

import pyarrow as pa
import pyarrow.types as pt

from phalanx.model.predicates.predicate import (
    FALSE,
    Compare,
    In,
    NotIn,
    NotNull,
    Predicate,
    all_of,
    any_of,
)
from phalanx.model.predicates.uncast import uncast_comparison, uncast_membership
from phalanx.model.sql.literals import distinct, from_ordinal
from phalanx.model.sql.syntax import Call, Column, Literal, Node

# Longer lists of what is no plain value are left to Spark.
_MOST_RANGES = 16
_MICROSECONDS_PER_DAY = 86_400 * 10**6


def comparison(
    column: Column, source: pa.DataType, operator: str, value: pa.Scalar
) -> Predicate | None:
    """`column operator value`, where the operator is one of `= != < <= > >=`."""
    if operator in ("=", "!="):
        return membership(column, source, [value], operator == "!=")
    if pt.is_floating(source):
        return _float(column, source, operator, value)
    if pt.is_timestamp(source):
        if not pt.is_timestamp(value.type) or (source.tz is None) != (value.type.tz is None):
            return None
        return _moment(column, source, operator, _microseconds(value))
    if _is_comparable(source, value.type):
        return uncast_comparison(column, source, operator, _as_stored(source, value))
    return None


def membership(
    column: Column, source: pa.DataType, values: Sequence[pa.Scalar], negated: bool
) -> Predicate | None:
    """`column [NOT] IN values`, none of which is NULL."""
    if pt.is_floating(source) or _is_nanoseconds(source):
        if len(values) > _MOST_RANGES:
            return None
        single = [_equal(column, source, value, negated) for value in values]
        found = [each for each in single if each is not None]
        if len(found) < len(values):
            return None
        return all_of(found) if negated else any_of(found)
    kinds = {value.type for value in values}
    if len(kinds) > 1 or not _is_equatable(source, *kinds):
        return None
    stored = [_as_stored(source, value) for value in values]
    listed = distinct(pa.array(stored, stored[0].type))
    if listed.type == source:
        return NotIn(column, listed) if negated else In(column, listed)
    return uncast_membership(column, source, listed, negated)


def days(
    column: Column, source: pa.DataType, operator: str, day: int, margin: int
) -> Predicate | None:
    """`CAST(timestamp AS DATE) operator day`, with so many days more at both ends."""
    return _span(column, source, operator, day, day + 1, margin)


def years(
    column: Column, source: pa.DataType, operator: str, year: int, margin: int
) -> Predicate | None:
    """`YEAR(column) operator year`, with so many days more at both ends."""
    if not 1 <= year < 9999:
        return None
    epoch = date(1970, 1, 1)
    start, end = ((date(each, 1, 1) - epoch).days for each in (year, year + 1))
    return _span(column, source, operator, start, end, margin)


def part(column: Column, name: str, operator: str, value: int) -> Predicate:
    """A calendar part of a column, in the form that partition fields have."""
    if not -(2**31) <= value < 2**31:
        return NotNull(column)
    term: Node = Call("date_part", (Literal(pa.scalar(name.lower())), column))
    constant = pa.scalar(value, pa.int32())
    if operator in ("=", "!="):
        values = pa.array([constant])
        return NotIn(term, values) if operator == "!=" else In(term, values)
    return Compare(term, operator, constant)


def _span(
    column: Column, source: pa.DataType, operator: str, start: int, end: int, margin: int
) -> Predicate | None:
    """A comparison with a span of days, from its start to before its end."""
    match operator:
        case "<":
            return _on_day(column, source, "<", start + margin)
        case "<=":
            return _on_day(column, source, "<", end + margin)
        case ">":
            return _on_day(column, source, ">=", end - margin)
        case ">=":
            return _on_day(column, source, ">=", start - margin)
        case "=":
            ends = [
                _on_day(column, source, ">=", start - margin),
                _on_day(column, source, "<", end + margin),
            ]
            return None if None in ends else all_of(each for each in ends if each is not None)
    if margin:
        return NotNull(column)
    ends = [_on_day(column, source, "<", start), _on_day(column, source, ">=", end)]
    return None if None in ends else any_of(each for each in ends if each is not None)


def _on_day(column: Column, source: pa.DataType, operator: str, day: int) -> Predicate | None:
    if pt.is_date32(source):
        return Compare(column, operator, pa.scalar(day, pa.int32()).cast(source))
    return _moment(column, source, operator, day * _MICROSECONDS_PER_DAY)


def _moment(
    column: Column, source: pa.DataType, operator: str, microseconds: int
) -> Predicate | None:
    """A comparison with a moment; Spark sees the microsecond that a nanosecond is in."""
    if not -(2**63) <= microseconds < 2**63:
        return None
    if source.unit != "ns":
        value = from_ordinal(microseconds, pa.timestamp("us", source.tz))
        return uncast_comparison(column, source, operator, value)
    if operator in ("<=", ">"):
        microseconds, operator = microseconds + 1, {"<=": "<", ">": ">="}[operator]
    nanoseconds = 1000 * microseconds
    if not -(2**63) <= nanoseconds < 2**63:
        above_all = nanoseconds > 0
        return NotNull(column) if above_all == (operator == "<") else FALSE
    return Compare(column, operator, from_ordinal(nanoseconds, source))


def _equal(
    column: Column, source: pa.DataType, value: pa.Scalar, negated: bool
) -> Predicate | None:
    operators = ("<", ">") if negated else ("<=", ">=")
    found = [comparison(column, source, operator, value) for operator in operators]
    kept = [each for each in found if each is not None]
    if len(kept) < 2:
        return None
    return any_of(kept) if negated else all_of(kept)


def _float(
    column: Column, source: pa.DataType, operator: str, value: pa.Scalar
) -> Predicate | None:
    """As Spark compares floats: all zeros are equal, and every NaN is above all numbers.

    To DataFusion and Lance a NaN with its sign set is below all numbers.
    """
    if value.type != source or pt.is_float16(source):
        return None
    number = value.as_py()
    lowest = Compare(column, ">=", pa.scalar(-math.inf, source))
    negative_nan = Compare(column, "<", pa.scalar(-math.inf, source))
    positive_nan = Compare(column, ">", pa.scalar(math.inf, source))
    if math.isnan(number):
        match operator:
            case "<":
                return all_of((lowest, Compare(column, "<=", pa.scalar(math.inf, source))))
            case "<=":
                return NotNull(column)
            case ">":
                return FALSE
        return any_of((positive_nan, negative_nan))
    if number == 0:
        # Whichever zero a system takes for the smaller one, both are on the right side.
        number = -0.0 if operator in ("<", ">=") else 0.0
    compared = Compare(column, operator, pa.scalar(number, source))
    if operator in ("<", "<="):
        return all_of((compared, lowest))
    return any_of((compared, negative_nan))


def _is_comparable(source: pa.DataType, value: pa.DataType) -> bool:
    """Whether the order of the type is Spark's, and the constant is of the type Spark has."""
    return bool(
        (_is_number(source) and _is_number(value))
        or (_is_text(source) and pt.is_string(value))
        or (pt.is_date32(source) and pt.is_date32(value))
    )


def _is_equatable(source: pa.DataType, value: pa.DataType) -> bool:
    zoned = pt.is_timestamp(source) and pt.is_timestamp(value)
    return bool(
        _is_comparable(source, value)
        or (pt.is_boolean(source) and pt.is_boolean(value))
        or ((pt.is_binary(source) or pt.is_large_binary(source)) and pt.is_binary(value))
        or (zoned and (source.tz is None) == (value.tz is None))
    )


def _is_number(data_type: pa.DataType) -> bool:
    return bool(pt.is_integer(data_type) or pt.is_decimal(data_type))


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pt.is_string(data_type) or pt.is_large_string(data_type))


def _is_nanoseconds(data_type: pa.DataType) -> bool:
    return bool(pt.is_timestamp(data_type) and data_type.unit == "ns")


def _as_stored(source: pa.DataType, value: pa.Scalar) -> pa.Scalar:
    """The constant in the column's own type where the values of both are the same."""
    if pt.is_timestamp(source):
        return from_ordinal(_microseconds(value), pa.timestamp("us", source.tz))
    if _is_number(source):
        return value
    return value.cast(source)


def _microseconds(value: pa.Scalar) -> int:
    found: int = value.cast(pa.int64()).as_py()
    return found
