"""Exact comparison of constants of different Arrow types.

Numbers, dates, times and timestamps are compared as exact fractions, so that nothing is rounded.
A date or time is the number of nanoseconds since the epoch or since midnight.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from phalanx.model.sql.literals import from_ordinal, to_ordinal

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY_NANOSECONDS = 86_400 * 10**9


def can_compare_exactly(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether both are numbers (`source` exact), dates or timestamps, or times of day."""
    if _is_exact_number(source):
        return _is_exact_number(target) or pt.is_floating(target)
    if pt.is_time(source):
        return bool(pt.is_time(target))
    zones = [getattr(kind, "tz", None) is not None for kind in (source, target)]
    return is_date_or_timestamp(source) and is_date_or_timestamp(target) and zones[0] == zones[1]


def _is_exact_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_decimal(kind))


def is_date_or_timestamp(kind: pa.DataType) -> bool:
    return bool(pt.is_date(kind) or pt.is_timestamp(kind))


def find_floor(source: pa.DataType, value: pa.Scalar) -> tuple[pa.Scalar | None, bool]:
    """Return the largest value of `source` not above the constant, and whether they are equal.

    If the constant is out of the range of `source`, return None and whether it is below the range.
    """
    if pt.is_floating(value.type) and not math.isfinite(value.as_py()):
        if pt.is_floating(source):
            return value.cast(source), True
        return None, math.copysign(1, value.as_py()) < 0
    exact = to_fraction(value)
    if pt.is_floating(source):
        # Keep the sign of a zero: a long IN in DataFusion distinguishes 0.0 and -0.0.
        return (value.cast(source), True) if exact == 0 else _find_float_floor(source, exact)
    step = _step_of(source)
    steps = math.floor(exact / step)
    low, high = find_ordinal_range(source)
    if not low <= steps <= high:
        return None, steps < low
    return from_ordinal(steps, source), steps * step == exact


def _find_float_floor(source: pa.DataType, exact: Fraction) -> tuple[pa.Scalar | None, bool]:
    kind = np.float16 if source == pa.float16() else np.float32
    with np.errstate(over="ignore"):
        nearest = kind(float(exact))
    if np.isinf(nearest) or Fraction(float(nearest)) > exact:
        nearest = np.nextafter(nearest, kind(-np.inf))
    if not np.isfinite(nearest):
        return pa.scalar(float(nearest), pa.float64()).cast(source), False
    return pa.scalar(nearest, source), Fraction(float(nearest)) == exact


def to_fraction(value: pa.Scalar) -> Fraction:
    if (step := count_nanoseconds(value.type)) is not None:
        return Fraction(to_ordinal(value) * step)
    return Fraction(value.as_py())


def _step_of(source: pa.DataType) -> Fraction:
    if pt.is_decimal(source):
        return Fraction(1, 10**source.scale) if source.scale >= 0 else Fraction(10**-source.scale)
    return Fraction(count_nanoseconds(source) or 1)


def count_nanoseconds(kind: pa.DataType) -> int | None:
    """Return the nanoseconds between adjacent values of a date or time type; else None."""
    if pt.is_date32(kind):
        return DAY_NANOSECONDS
    if pt.is_date64(kind):
        return _NANOSECONDS["ms"]
    if pt.is_timestamp(kind) or pt.is_time(kind):
        return _NANOSECONDS[kind.unit]
    return None


def find_ordinal_range(source: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest ordinal of a type."""
    if pt.is_decimal(source):
        limit = 10**source.precision - 1
        return -limit, limit
    if pt.is_time(source):
        return 0, DAY_NANOSECONDS // _NANOSECONDS[source.unit] - 1
    bits = source.bit_width
    if pt.is_unsigned_integer(source):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
