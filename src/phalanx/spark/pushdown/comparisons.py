"""Comparisons of a column with constants, translated to predicates with Spark's meaning.

Column types are Arrow types; constants have the type that Spark has for the column. A function
returns None if no predicate has the same meaning.
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
from phalanx.model.sql.literals import drop_duplicates, from_ordinal
from phalanx.model.sql.syntax import Call, Column, Constant, Node

# Spark evaluates longer lists of floats and nanoseconds.
_MAX_RANGES = 16
_MICROSECONDS_PER_DAY = 86_400 * 10**6


def compare(
    column: Column, source: pa.DataType, operator: str, value: pa.Scalar
) -> Predicate | None:
    """Translate `column operator value`; the operator is one of `= != < <= > >=`."""
    if operator in ("=", "!="):
        return match_values(column, source, [value], operator == "!=")
    if pt.is_floating(source):
        return _compare_float(column, source, operator, value)
    if pt.is_timestamp(source):
        if not pt.is_timestamp(value.type) or (source.tz is None) != (value.type.tz is None):
            return None
        return _compare_moment(column, source, operator, _to_microseconds(value))
    if _is_comparable(source, value.type):
        return uncast_comparison(column, source, operator, _to_stored(source, value))
    return None


def match_values(
    column: Column, source: pa.DataType, values: Sequence[pa.Scalar], negated: bool
) -> Predicate | None:
    """Translate `column [NOT] IN values`, none of which is NULL."""
    if pt.is_floating(source) or _is_nanoseconds(source):
        if len(values) > _MAX_RANGES:
            return None
        single = [_compare_equal(column, source, value, negated) for value in values]
        found = [each for each in single if each is not None]
        if len(found) < len(values):
            return None
        return all_of(found) if negated else any_of(found)
    kinds = {value.type for value in values}
    if len(kinds) > 1 or not _is_equatable(source, *kinds):
        return None
    stored = [_to_stored(source, value) for value in values]
    listed = drop_duplicates(pa.array(stored, stored[0].type))
    if listed.type == source:
        return NotIn(column, listed) if negated else In(column, listed)
    return uncast_membership(column, source, listed, negated)


def compare_day(
    column: Column, source: pa.DataType, operator: str, day: int, margin: int
) -> Predicate | None:
    """Translate `CAST(timestamp AS DATE) operator day`, widened by `margin` days."""
    return _compare_span(column, source, operator, day, day + 1, margin)


def compare_year(
    column: Column, source: pa.DataType, operator: str, year: int, margin: int
) -> Predicate | None:
    """Translate `YEAR(column) operator year`, widened by `margin` days."""
    if not 1 <= year < 9999:
        return None
    epoch = date(1970, 1, 1)
    start, end = ((date(each, 1, 1) - epoch).days for each in (year, year + 1))
    return _compare_span(column, source, operator, start, end, margin)


def compare_part(column: Column, name: str, operator: str, value: int) -> Predicate:
    """Translate a comparison of a calendar part, in the form of partition fields."""
    if not -(2**31) <= value < 2**31:
        return NotNull(column)
    term: Node = Call("date_part", (Constant(pa.scalar(name.lower())), column))
    constant = pa.scalar(value, pa.int32())
    if operator in ("=", "!="):
        values = pa.array([constant])
        return NotIn(term, values) if operator == "!=" else In(term, values)
    return Compare(term, operator, constant)


def _compare_span(
    column: Column, source: pa.DataType, operator: str, start: int, end: int, margin: int
) -> Predicate | None:
    """Compare a column with the days from `start` until before `end`."""
    match operator:
        case "<":
            return _compare_start_of_day(column, source, "<", start + margin)
        case "<=":
            return _compare_start_of_day(column, source, "<", end + margin)
        case ">":
            return _compare_start_of_day(column, source, ">=", end - margin)
        case ">=":
            return _compare_start_of_day(column, source, ">=", start - margin)
        case "=":
            ends = [
                _compare_start_of_day(column, source, ">=", start - margin),
                _compare_start_of_day(column, source, "<", end + margin),
            ]
            return None if None in ends else all_of(each for each in ends if each is not None)
    if margin:
        return NotNull(column)
    ends = [
        _compare_start_of_day(column, source, "<", start),
        _compare_start_of_day(column, source, ">=", end),
    ]
    return None if None in ends else any_of(each for each in ends if each is not None)


def _compare_start_of_day(
    column: Column, source: pa.DataType, operator: str, day: int
) -> Predicate | None:
    if pt.is_date32(source):
        return Compare(column, operator, pa.scalar(day, pa.int32()).cast(source))
    return _compare_moment(column, source, operator, day * _MICROSECONDS_PER_DAY)


def _compare_moment(
    column: Column, source: pa.DataType, operator: str, microseconds: int
) -> Predicate | None:
    """Compare a column with a timestamp. Spark floors nanoseconds to microseconds."""
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


def _compare_equal(
    column: Column, source: pa.DataType, value: pa.Scalar, negated: bool
) -> Predicate | None:
    operators = ("<", ">") if negated else ("<=", ">=")
    found = [compare(column, source, operator, value) for operator in operators]
    kept = [each for each in found if each is not None]
    if len(kept) < 2:
        return None
    return any_of(kept) if negated else all_of(kept)


def _compare_float(
    column: Column, source: pa.DataType, operator: str, value: pa.Scalar
) -> Predicate | None:
    """Compare floats as Spark does: zeros are equal, and NaN is greater than all numbers.

    In DataFusion and Lance a NaN with the sign bit set is less than all numbers.
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
        # Keep both zeros on the same side, whichever of them sorts first.
        number = -0.0 if operator in ("<", ">=") else 0.0
    compared = Compare(column, operator, pa.scalar(number, source))
    if operator in ("<", "<="):
        return all_of((compared, lowest))
    return any_of((compared, negative_nan))


def _is_comparable(source: pa.DataType, value: pa.DataType) -> bool:
    """Return whether values of the types order as in Spark."""
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


def _to_stored(source: pa.DataType, value: pa.Scalar) -> pa.Scalar:
    """Cast the constant to the type of the column, where that keeps its value."""
    if pt.is_timestamp(source):
        return from_ordinal(_to_microseconds(value), pa.timestamp("us", source.tz))
    if _is_number(source):
        return value
    return value.cast(source)


def _to_microseconds(value: pa.Scalar) -> int:
    found: int = value.cast(pa.int64()).as_py()
    return found
