"""Comparisons of a cast column with a constant, as comparisons of the column itself.

DataFusion writes `int_column > 2.5` as `CAST(int_column AS Float64) > 2.5`. Where the cast keeps
order and loses nothing, the same rows satisfy `int_column > 2`: a form that pruning and Lance
understand. Values meet on a line of exact fractions, so nothing is rounded on the way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
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
from phalanx.model.sql.literals import distinct, from_ordinal, has_utc_meaning, ordinal
from phalanx.model.sql.syntax import Node

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9
_EXACT_INTEGERS = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): 2**53}


def uncast_comparison(
    term: Node, source: pa.DataType, operator: str, value: pa.Scalar
) -> Predicate | None:
    """`CAST(term AS value's type) operator value` on the term itself; None where that is unsafe."""
    if source == value.type:
        return Compare(term, operator, value)
    if _floors_to_days(source, value.type):
        return _by_day(term, source, operator, value)
    if not _keeps_order(source, value):
        return None
    floor, exact = line_floor(source, value)
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
    """`CAST(term AS …) [NOT] IN values` on the term itself; None where that is unsafe."""
    if source == values.type:
        return NotIn(term, values) if negated else In(term, values)
    if _floors_to_days(source, values.type):
        if negated or len(values) != 1:
            return None
        return all_of(_by_day(term, source, operator, values[0]) for operator in (">=", "<="))
    kept = []
    for value in values:
        if not _keeps_order(source, value):
            return None
        floor, exact = line_floor(source, value)
        if floor is not None and exact:
            kept.append(floor)
    if not kept:
        return NotNull(term) if negated else FALSE
    return (NotIn if negated else In)(term, distinct(pa.array(kept, source)))


def compare_year(
    term: Node, source: pa.DataType, operator: str, year: int, starts: Sequence[pa.Scalar | None]
) -> Predicate | None:
    """The calendar year of a moment against a number, as the moment against the year's ends.

    In UTC no year is too far. In a zone of the column's own `starts` are when this year and the
    next begin. None where that is not known, and for types without moments.
    """
    if not _is_moment(source):
        return None
    if has_utc_meaning(source):
        start, end = (_first_day(each) * _DAY for each in (year, year + 1))
    elif None in starts:
        return None
    else:
        start, end = (int(_on_line(each)) for each in starts if each is not None)
    match operator:
        case "<" | ">=":
            return _from_instant(term, source, operator, start)
        case "<=" | ">":
            return _from_instant(term, source, {"<=": "<", ">": ">="}[operator], end)
        case "=":
            ends = ((">=", start), ("<", end))
            return all_of(_from_instant(term, source, each, at) for each, at in ends)
    ends = (("<", start), (">=", end))
    return any_of(_from_instant(term, source, each, at) for each, at in ends)


def _first_day(year: int) -> int:
    """The days from 1970 to the first day of any year, by the Gregorian calendar."""
    before = year - 1
    return 365 * before + before // 4 - before // 100 + before // 400 - 719_162


def _floors_to_days(source: pa.DataType, target: pa.DataType) -> bool:
    return bool(pt.is_timestamp(source) and pt.is_date32(target) and has_utc_meaning(source))


def _by_day(term: Node, source: pa.DataType, operator: str, day: pa.Scalar) -> Predicate:
    """`CAST(timestamp AS DATE) operator day`: compare with the first instant of a day."""
    first = ordinal(day)
    if operator in ("<=", ">"):
        first, operator = first + 1, {"<=": "<", ">": ">="}[operator]
    return _from_instant(term, source, operator, first * _DAY)


def _from_instant(term: Node, source: pa.DataType, operator: str, nanoseconds: int) -> Predicate:
    """`term < instant` or `term >= instant`, for one that every unit has."""
    instant = nanoseconds // (_nanoseconds(source) or 1)
    low, high = _range(source)
    if low <= instant <= high:
        return Compare(term, operator, from_ordinal(instant, source))
    every = (instant > high) == (operator == "<")
    return NotNull(term) if every else FALSE


def _keeps_order(source: pa.DataType, value: pa.Scalar) -> bool:
    """Whether the cast of `source` to the value's type is exact, at least around the value."""
    target = value.type
    if pt.is_integer(source):
        if pt.is_floating(target):
            # Past all integers there is nothing that could be rounded.
            size = abs(value.as_py())
            return not math.isfinite(size) or size < _EXACT_INTEGERS[target] or size > 2**65
        return bool(pt.is_decimal(target) or _widens(source, target))
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


def _widens(source: pa.DataType, target: pa.DataType) -> bool:
    if not pt.is_integer(target):
        return False
    signs = pt.is_signed_integer(source), pt.is_signed_integer(target)
    if signs[0] == signs[1]:
        return bool(source.bit_width <= target.bit_width)
    return signs == (False, True) and bool(source.bit_width < target.bit_width)


def lines_meet(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of two types lie on one line: exact numbers, moments, or times of day."""
    if _is_exact_number(source):
        return _is_exact_number(target) or pt.is_floating(target)
    if pt.is_time(source):
        return bool(pt.is_time(target))
    zones = [getattr(kind, "tz", None) is not None for kind in (source, target)]
    return _is_moment(source) and _is_moment(target) and zones[0] == zones[1]


def _is_exact_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_decimal(kind))


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pt.is_date(kind) or pt.is_timestamp(kind))


def line_floor(source: pa.DataType, value: pa.Scalar) -> tuple[pa.Scalar | None, bool]:
    """The largest source value not above the constant, and whether it equals it.

    Outside the range of `source` there is none: then the flag says that the constant lies below.
    """
    if pt.is_floating(value.type) and not math.isfinite(value.as_py()):
        if pt.is_floating(source):
            return value.cast(source), True
        return None, math.copysign(1, value.as_py()) < 0
    exact = _on_line(value)
    if pt.is_floating(source):
        # A zero keeps its sign: a long IN of DataFusion tells the two apart.
        return (value.cast(source), True) if exact == 0 else _floor_float(source, exact)
    step = _step(source)
    steps = math.floor(exact / step)
    low, high = _range(source)
    if not low <= steps <= high:
        return None, steps < low
    return from_ordinal(steps, source), steps * step == exact


def _floor_float(source: pa.DataType, exact: Fraction) -> tuple[pa.Scalar | None, bool]:
    kind = np.float16 if source == pa.float16() else np.float32
    with np.errstate(over="ignore"):
        nearest = kind(float(exact))
    if np.isinf(nearest) or Fraction(float(nearest)) > exact:
        nearest = np.nextafter(nearest, kind(-np.inf))
    if not np.isfinite(nearest):
        return pa.scalar(float(nearest), pa.float64()).cast(source), False
    return pa.scalar(nearest, source), Fraction(float(nearest)) == exact


def _on_line(value: pa.Scalar) -> Fraction:
    if (step := _nanoseconds(value.type)) is not None:
        return Fraction(ordinal(value) * step)
    return Fraction(value.as_py())


def _step(source: pa.DataType) -> Fraction:
    if pt.is_decimal(source):
        return Fraction(1, 10**source.scale) if source.scale >= 0 else Fraction(10**-source.scale)
    return Fraction(_nanoseconds(source) or 1)


def _nanoseconds(kind: pa.DataType) -> int | None:
    """How many nanoseconds lie between two values of a type; None if it has no moments."""
    if pt.is_date32(kind):
        return _DAY
    if pt.is_date64(kind):
        return _NANOSECONDS["ms"]
    if pt.is_timestamp(kind) or pt.is_time(kind):
        return _NANOSECONDS[kind.unit]
    return None


def _range(source: pa.DataType) -> tuple[int, int]:
    if pt.is_decimal(source):
        limit = 10**source.precision - 1
        return -limit, limit
    if pt.is_time(source):
        return 0, _DAY // _NANOSECONDS[source.unit] - 1
    bits = source.bit_width
    if pt.is_unsigned_integer(source):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
