"""Which files can hold a matching row, by the least and greatest value of each column in them.

A column of bounds says something of every file at once. What is unknown may match.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.model.predicates.predicate import (
    Always,
    And,
    Compare,
    In,
    IsNull,
    Leaf,
    NotNull,
    Opaque,
    Or,
    Predicate,
)
from phalanx.model.sql.syntax import Column
from phalanx.planning.pruning.fields import Path

Verdicts = npt.NDArray[np.bool_]
# More values than these are looked at only by their least and greatest.
_MOST_VALUES = 64


@dataclass(frozen=True, slots=True)
class FileBounds:
    """For each file: the bounds of a column (NULL: unknown), and whether it may hold such values.

    `others` are those that the bounds do not cover, such as NaN.
    """

    low: pa.Array
    high: pa.Array
    nulls: Verdicts
    values: Verdicts
    others: Verdicts

    def slice(self, start: int, files: int) -> FileBounds:
        """The bounds of some of the files, which follow each other."""
        end = start + files
        return FileBounds(
            self.low.slice(start, files),
            self.high.slice(start, files),
            self.nulls[start:end],
            self.values[start:end],
            self.others[start:end],
        )


def may_match(predicate: Predicate, bounds: Mapping[Path, FileBounds], files: int) -> Verdicts:
    """For each file whether the predicate can be TRUE for a row of it."""
    match predicate:
        case Always(value=value):
            return np.full(files, value)
        case And(parts=parts):
            found = np.ones(files, dtype=bool)
            for part in parts:
                found &= may_match(part, bounds, files)
            return found
        case Or(parts=parts):
            found = np.zeros(files, dtype=bool)
            for part in parts:
                found |= may_match(part, bounds, files)
            return found
        case Opaque():
            return np.ones(files, dtype=bool)
    term = predicate.term
    known = bounds.get(term.path) if isinstance(term, Column) else None
    if known is None:
        return np.ones(files, dtype=bool)
    try:
        return _leaf_may_match(predicate, known)
    except pa.ArrowException:
        # A constant that Arrow does not compare with the bounds: nothing can be said.
        return known.values


def _leaf_may_match(leaf: Leaf, known: FileBounds) -> Verdicts:
    match leaf:
        case IsNull():
            return known.nulls
        case NotNull():
            return known.values
        case Compare(operator=operator, value=value):
            return known.values & (known.others | _compares(known, operator, value))
        case In(values=values):
            return known.values & (known.others | _meets(known, values))
    return known.values


def _compares(known: FileBounds, operator: str, value: pa.Scalar) -> Verdicts:
    # Zeros of both signs are one bound, but not one value.
    loose = pt.is_floating(value.type)
    if operator in ("<", "<="):
        compare = pc.less_equal if loose or operator == "<=" else pc.less
        return _or_unknown(compare(known.low, value))
    compare = pc.greater_equal if loose or operator == ">=" else pc.greater
    return _or_unknown(compare(known.high, value))


def _meets(known: FileBounds, values: pa.Array) -> Verdicts:
    """Whether any of the values lies within the bounds."""
    if pt.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        return np.ones(len(known.low), dtype=bool)
    if len(values) > _MOST_VALUES:
        ordered = values.take(pc.sort_indices(values))
        return _or_unknown(
            pc.and_kleene(
                pc.less_equal(known.low, ordered[-1]), pc.greater_equal(known.high, ordered[0])
            )
        )
    found = np.zeros(len(known.low), dtype=bool)
    for value in values:
        found |= _or_unknown(
            pc.and_kleene(pc.less_equal(known.low, value), pc.greater_equal(known.high, value))
        )
    return found


def _or_unknown(verdicts: pa.Array) -> Verdicts:
    found: Verdicts = pc.fill_null(verdicts, True).to_numpy(zero_copy_only=False)
    return found
