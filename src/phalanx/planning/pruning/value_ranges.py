"""Whether a condition on partition values can hold for any of many, of which only ranges are known.

Catalogs keep the range of each field over all files of a manifest: a manifest whose ranges rule
the condition out is not read. What is unknown may hold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.model.predicates.predicate import (
    Always,
    And,
    Compare,
    In,
    IsNull,
    Like,
    NotIn,
    NotNull,
    Or,
    Predicate,
)
from phalanx.model.sql.literals import ordinal
from phalanx.model.sql.syntax import Column


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The least and the greatest value, as ordinals; None if all are NULL or NaN."""

    low: Any
    high: Any
    has_null: bool
    has_nan: bool

    @property
    def is_empty(self) -> bool:
        """Whether there is no value to compare."""
        return self.low is None


def may_hold_within(predicate: Predicate, ranges: Mapping[str, ValueRange]) -> bool:
    """Whether the predicate can be TRUE for values in these ranges, by column.

    A column that has no range may hold anything.
    """
    match predicate:
        case Always(value=value):
            return value
        case And(parts=parts):
            return all(may_hold_within(part, ranges) for part in parts)
        case Or(parts=parts):
            return any(may_hold_within(part, ranges) for part in parts)
        case Compare(term=term) | In(term=term) | NotIn(term=term) | Like(term=term):
            pass
        case IsNull(term=term) | NotNull(term=term):
            pass
        case _:
            return True
    if not isinstance(term, Column) or (known := ranges.get(".".join(term.path))) is None:
        return True
    try:
        return _leaf_may_hold(predicate, known)
    except TypeError:
        # Constants of another kind than the bounds: nothing can be said.
        return True


def _leaf_may_hold(leaf: Predicate, known: ValueRange) -> bool:
    match leaf:
        case IsNull():
            return known.has_null
        case In(values=values):
            wanted = [ordinal(value) for value in values]
            if known.has_nan and any(value != value for value in wanted):
                return True
            return not known.is_empty and _any_between(wanted, known.low, known.high)
    if known.has_nan:
        return True
    if known.is_empty:
        return False
    match leaf:
        case Compare(operator=operator, value=value):
            return _compares(known, operator, ordinal(value))
        case NotIn(values=values):
            excluded = [ordinal(value) for value in values]
            return known.low != known.high or known.low not in excluded
        case Like(prefix=prefix, negated=False, case_sensitive=True):
            return bool(known.low[: len(prefix)] <= prefix <= known.high[: len(prefix)])
        case Like(prefix=prefix, negated=True, is_prefix_test=True):
            # What is between two texts with a prefix has it too.
            return not (known.low.startswith(prefix) and known.high.startswith(prefix))
    return True


def _compares(known: ValueRange, operator: str, value: Any) -> bool:
    if value != value:
        return True
    match operator:
        case "<":
            return bool(known.low < value)
        case "<=":
            return bool(known.low <= value)
        case ">":
            return bool(known.high > value)
    return bool(known.high >= value)


def _any_between(wanted: list[Any], low: Any, high: Any) -> bool:
    ordered = sorted(value for value in wanted if value == value)
    place = bisect_left(ordered, low)
    return place < len(ordered) and bool(ordered[place] <= high)
