"""Removal of casts: compare the column itself with a constant, not the cast column.

DataFusion writes `int_column > 2.5` as `CAST(int_column AS Float64) > 2.5`. If the cast is exact
and keeps the order, the same rows satisfy `int_column > 2`, a form that pruning and Lance
understand. Values are compared as exact fractions, so nothing is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
from phalanx.model.sql.exact_order import (
    DAY_NANOSECONDS,
    count_nanoseconds,
    find_floor,
    find_ordinal_range,
    is_date_or_timestamp,
    to_fraction,
)
from phalanx.model.sql.literals import drop_duplicates, from_ordinal, has_utc_calendar, to_ordinal
from phalanx.model.sql.syntax import Node

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_EXACT_INTEGERS = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): 2**53}


def uncast_comparison(
    term: Node, source: pa.DataType, operator: str, value: pa.Scalar
) -> Predicate | None:
    """Rewrite `CAST(term AS value's type) operator value` without the cast; None if unsafe."""
    if source == value.type:
        return Compare(term, operator, value)
    if _is_cast_to_date(source, value.type):
        return _compare_day(term, source, operator, value)
    if not _is_exact_cast(source, value):
        return None
    floor, exact = find_floor(source, value)
    if floor is None:
        below_all = exact
        matches = (operator in (">", ">=")) == below_all
        return NotNull(term) if matches else FALSE
    if not exact:
        operator = {"<": "<=", ">=": ">"}.get(operator, operator)
    return Compare(term, operator, floor)


def uncast_membership(
    term: Node, source: pa.DataType, values: pa.Array, negated: bool
) -> Predicate | None:
    """Rewrite `CAST(term AS …) [NOT] IN values` without the cast; None if unsafe."""
    if source == values.type:
        return NotIn(term, values) if negated else In(term, values)
    if _is_cast_to_date(source, values.type):
        if negated or len(values) != 1:
            return None
        return all_of(_compare_day(term, source, operator, values[0]) for operator in (">=", "<="))
    kept = []
    for value in values:
        if not _is_exact_cast(source, value):
            return None
        floor, exact = find_floor(source, value)
        if floor is not None and exact:
            kept.append(floor)
    if not kept:
        return NotNull(term) if negated else FALSE
    return (NotIn if negated else In)(term, drop_duplicates(pa.array(kept, source)))


def uncast_year_comparison(
    term: Node, source: pa.DataType, operator: str, year: int, starts: Sequence[pa.Scalar | None]
) -> Predicate | None:
    """Rewrite a comparison of the calendar year as comparisons with the ends of the year.

    In UTC any year works. In another time zone, `starts` are the instants when this year and the
    next begin. Return None if these are unknown, and for types that are not a date or timestamp.
    """
    if not is_date_or_timestamp(source):
        return None
    if has_utc_calendar(source):
        start, end = (_count_days_until(each) * DAY_NANOSECONDS for each in (year, year + 1))
    elif None in starts:
        return None
    else:
        start, end = (int(to_fraction(each)) for each in starts if each is not None)
    match operator:
        case "<" | ">=":
            return _compare_instant(term, source, operator, start)
        case "<=" | ">":
            return _compare_instant(term, source, {"<=": "<", ">": ">="}[operator], end)
        case "=":
            ends = ((">=", start), ("<", end))
            return all_of(_compare_instant(term, source, each, at) for each, at in ends)
    ends = (("<", start), (">=", end))
    return any_of(_compare_instant(term, source, each, at) for each, at in ends)


def _count_days_until(year: int) -> int:
    """Count the days from 1970 to the first day of a year in the Gregorian calendar."""
    before = year - 1
    return 365 * before + before // 4 - before // 100 + before // 400 - 719_162


def _is_cast_to_date(source: pa.DataType, target: pa.DataType) -> bool:
    return bool(pt.is_timestamp(source) and pt.is_date32(target) and has_utc_calendar(source))


def _compare_day(term: Node, source: pa.DataType, operator: str, day: pa.Scalar) -> Predicate:
    """Rewrite `CAST(timestamp AS DATE) operator day` with the first instant of a day."""
    first = to_ordinal(day)
    if operator in ("<=", ">"):
        first, operator = first + 1, {"<=": "<", ">": ">="}[operator]
    return _compare_instant(term, source, operator, first * DAY_NANOSECONDS)


def _compare_instant(term: Node, source: pa.DataType, operator: str, nanoseconds: int) -> Predicate:
    """Return `term < instant` or `term >= instant`; every unit can represent the instant."""
    instant = nanoseconds // (count_nanoseconds(source) or 1)
    low, high = find_ordinal_range(source)
    if low <= instant <= high:
        return Compare(term, operator, from_ordinal(instant, source))
    every = (instant > high) == (operator == "<")
    return NotNull(term) if every else FALSE


def _is_exact_cast(source: pa.DataType, value: pa.Scalar) -> bool:
    """Return whether the cast of `source` to the value's type is exact around the value."""
    target = value.type
    if pt.is_integer(source):
        if pt.is_floating(target):
            # Beyond the range of integers nothing can be rounded.
            size = abs(value.as_py())
            return not math.isfinite(size) or size < _EXACT_INTEGERS[target] or size > 2**65
        return bool(pt.is_decimal(target) or _is_wider_integer(source, target))
    if pt.is_decimal(source):
        return bool(pt.is_decimal(target) and target.scale >= source.scale)
    if pt.is_floating(source):
        return bool(pt.is_floating(target) and source.bit_width < target.bit_width)
    if pt.is_date32(source):
        return bool(pt.is_timestamp(target) and target.tz is None)
    if pt.is_timestamp(source) and pt.is_timestamp(target):
        finer = _NANOSECONDS[target.unit] <= _NANOSECONDS[source.unit]
        return bool(finer and source.tz == target.tz)
    return False


def _is_wider_integer(source: pa.DataType, target: pa.DataType) -> bool:
    if not pt.is_integer(target):
        return False
    signs = pt.is_signed_integer(source), pt.is_signed_integer(target)
    if signs[0] == signs[1]:
        return bool(source.bit_width <= target.bit_width)
    return signs == (False, True) and bool(source.bit_width < target.bit_width)
