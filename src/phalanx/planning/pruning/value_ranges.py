"""Decide whether a condition can hold for any partition value in known ranges.

Catalogs store the range of each field over all files of a manifest. A manifest is skipped if its
ranges contradict the condition. Unknown ranges may match.
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
from phalanx.model.sql.literals import to_ordinal
from phalanx.model.sql.syntax import Column


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The minimum and maximum, as ordinals; None if all values are NULL or NaN."""

    low: Any
    high: Any
    has_null: bool
    has_nan: bool

    @property
    def is_empty(self) -> bool:
        """Whether all values are NULL or NaN."""
        return self.low is None


def can_match_ranges(predicate: Predicate, ranges: Mapping[str, ValueRange]) -> bool:
    """Return whether the predicate can be TRUE for values in the ranges of these columns.

    A column without a range may have any value.
    """
    match predicate:
        case Always(value=value):
            return value
        case And(parts=parts):
            return all(can_match_ranges(part, ranges) for part in parts)
        case Or(parts=parts):
            return any(can_match_ranges(part, ranges) for part in parts)
        case Compare(term=term) | In(term=term) | NotIn(term=term) | Like(term=term):
            pass
        case IsNull(term=term) | NotNull(term=term):
            pass
        case _:
            return True
    if not isinstance(term, Column) or (known := ranges.get(".".join(term.path))) is None:
        return True
    try:
        return _can_atom_match(predicate, known)
    except TypeError:
        # Constants and bounds of different kinds cannot be compared, so the range may match.
        return True


def _can_atom_match(atom: Predicate, known: ValueRange) -> bool:
    match atom:
        case IsNull():
            return known.has_null
        case In(values=values):
            ordinals = [to_ordinal(value) for value in values]
            if known.has_nan and any(value != value for value in ordinals):
                return True
            return not known.is_empty and _is_any_between(ordinals, known.low, known.high)
    if known.has_nan:
        return True
    if known.is_empty:
        return False
    match atom:
        case Compare(operator=operator, value=value):
            return _can_comparison_match(known, operator, to_ordinal(value))
        case NotIn(values=values):
            excluded = [to_ordinal(value) for value in values]
            return known.low != known.high or known.low not in excluded
        case Like(prefix=prefix, negated=False, case_sensitive=True):
            return bool(known.low[: len(prefix)] <= prefix <= known.high[: len(prefix)])
        case Like(prefix=prefix, negated=True, is_prefix_test=True):
            # All strings between two strings with a common prefix have that prefix.
            return not (known.low.startswith(prefix) and known.high.startswith(prefix))
    return True


def _can_comparison_match(known: ValueRange, operator: str, value: Any) -> bool:
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


def _is_any_between(ordinals: list[Any], low: Any, high: Any) -> bool:
    ordered = sorted(value for value in ordinals if value == value)
    first = bisect_left(ordered, low)
    return first < len(ordered) and bool(ordered[first] <= high)
