"""Find files that may hold a matching row, by the minimum and maximum of each column.

The bounds of all files are Arrow columns. Unknown bounds may match.
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
    AtomicPredicate,
    Compare,
    In,
    IsNull,
    NotNull,
    Opaque,
    Or,
    Predicate,
)
from phalanx.model.schema.names import FieldPath
from phalanx.model.sql.syntax import Column

FileFlags = npt.NDArray[np.bool_]
# Compare only the minimum and maximum of longer lists.
_MAX_VALUES = 64


@dataclass(frozen=True, slots=True)
class FileBounds:
    """The bounds of a column in each file; NULL is unknown.

    The flags say whether a file may hold NULL, other values, and values that the bounds do not
    cover, such as NaN.
    """

    low: pa.Array
    high: pa.Array
    may_have_nulls: FileFlags
    may_have_values: FileFlags
    may_have_uncovered: FileFlags

    def slice(self, start: int, files: int) -> FileBounds:
        """Return the bounds of consecutive files."""
        end = start + files
        return FileBounds(
            self.low.slice(start, files),
            self.high.slice(start, files),
            self.may_have_nulls[start:end],
            self.may_have_values[start:end],
            self.may_have_uncovered[start:end],
        )


def find_matching_files(
    predicate: Predicate, bounds: Mapping[FieldPath, FileBounds], files: int
) -> FileFlags:
    """Return for each file whether the predicate can be TRUE for one of its rows."""
    match predicate:
        case Always(value=value):
            return np.full(files, value)
        case And(parts=parts):
            found = np.ones(files, dtype=bool)
            for part in parts:
                found &= find_matching_files(part, bounds, files)
            return found
        case Or(parts=parts):
            found = np.zeros(files, dtype=bool)
            for part in parts:
                found |= find_matching_files(part, bounds, files)
            return found
        case Opaque():
            return np.ones(files, dtype=bool)
    term = predicate.term
    known = bounds.get(term.path) if isinstance(term, Column) else None
    if known is None:
        return np.ones(files, dtype=bool)
    try:
        return _match_atom(predicate, known)
    except pa.ArrowException:
        # Arrow cannot compare the constant with the bounds, so every file may match.
        return known.may_have_values


def _match_atom(atom: AtomicPredicate, known: FileBounds) -> FileFlags:
    match atom:
        case IsNull():
            return known.may_have_nulls
        case NotNull():
            return known.may_have_values
        case Compare(operator=operator, value=value):
            return known.may_have_values & (
                known.may_have_uncovered | _match_comparison(known, operator, value)
            )
        case In(values=values):
            return known.may_have_values & (known.may_have_uncovered | _match_values(known, values))
    return known.may_have_values


def _match_comparison(known: FileBounds, operator: str, value: pa.Scalar) -> FileFlags:
    # −0.0 and 0.0 are equal bounds, but different values.
    loose = pt.is_floating(value.type)
    if operator in ("<", "<="):
        compare = pc.less_equal if loose or operator == "<=" else pc.less
        return _fill_unknown(compare(known.low, value))
    compare = pc.greater_equal if loose or operator == ">=" else pc.greater
    return _fill_unknown(compare(known.high, value))


def _match_values(known: FileBounds, values: pa.Array) -> FileFlags:
    """Return for each file whether a value lies within the bounds."""
    if pt.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        return np.ones(len(known.low), dtype=bool)
    if len(values) > _MAX_VALUES:
        ordered = values.take(pc.sort_indices(values))
        return _fill_unknown(
            pc.and_kleene(
                pc.less_equal(known.low, ordered[-1]), pc.greater_equal(known.high, ordered[0])
            )
        )
    found = np.zeros(len(known.low), dtype=bool)
    for value in values:
        found |= _fill_unknown(
            pc.and_kleene(pc.less_equal(known.low, value), pc.greater_equal(known.high, value))
        )
    return found


def _fill_unknown(verdicts: pa.Array) -> FileFlags:
    found: FileFlags = pc.fill_null(verdicts, True).to_numpy(zero_copy_only=False)
    return found
