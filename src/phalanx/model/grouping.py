"""Rows by equal partition values: one pass over whole columns, no loop over rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

# Up to here a table with one slot for every possible code is cheaper than sorting.
_MOST_SLOTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Groups:
    """Which group each row is in, and the values each group has."""

    codes: npt.NDArray[np.int64]
    keys: pa.Table

    def __len__(self) -> int:
        return int(self.keys.num_rows)


def group(values: pa.Table) -> Groups:
    """The groups of rows that are equal in every column, in the order of their first rows."""
    codes = np.zeros(values.num_rows, dtype=np.int64)
    count = min(1, values.num_rows)
    for column in values.columns:
        encoded = _encoded(column.combine_chunks())
        codes, count = _dense(codes * (len(encoded.dictionary) + 1) + _indices(encoded))
    firsts = np.empty(count, dtype=np.int64)
    # The first of equal rows wins: later ones are written first, and overwritten.
    firsts[codes[::-1]] = np.arange(values.num_rows)[::-1]
    order = np.argsort(firsts, kind="stable")
    ranks = np.empty(count, dtype=np.int64)
    ranks[order] = np.arange(count)
    return Groups(ranks[codes], values.take(pa.array(firsts[order])))


def positions(sought: pa.Table, among: pa.Table) -> npt.NDArray[np.int64]:
    """For each sought row the place of the equal row among the others, −1 where there is none."""
    both = group(pa.concat_tables([among, sought]))
    places = np.full(len(both), -1, dtype=np.int64)
    known = both.codes[: among.num_rows]
    places[known[::-1]] = np.arange(among.num_rows)[::-1]
    found: npt.NDArray[np.int64] = places[both.codes[among.num_rows :]]
    return found


def order_of(values: pa.Table) -> pa.Array:
    """The rows' numbers in ascending order of their values, column by column, NULL last."""
    names = [str(place) for place in range(values.num_columns)]
    columns = [_sortable(column.combine_chunks()) for column in values.columns]
    keys = [(name, "ascending", "at_end") for name in names]
    return pc.sort_indices(pa.table(columns, names=names), sort_keys=keys)


def _encoded(column: pa.Array) -> pa.DictionaryArray:
    return _sortable(column).dictionary_encode()


def _indices(encoded: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """The codes, NULL last."""
    filled = pc.fill_null(encoded.indices, pa.scalar(len(encoded.dictionary), pa.int32()))
    codes: npt.NDArray[np.int64] = filled.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _dense(codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """The codes renumbered without gaps, and how many there are."""
    if not len(codes):
        return codes, 0
    slots = int(codes.max()) + 1
    if slots > max(_MOST_SLOTS, 4 * len(codes)):
        unique, dense = np.unique(codes, return_inverse=True)
        return dense.astype(np.int64), len(unique)
    used = np.zeros(slots, dtype=bool)
    used[codes] = True
    numbers = np.cumsum(used) - 1
    return numbers[codes], int(numbers[-1]) + 1


def _sortable(column: pa.Array) -> pa.Array:
    """The column in a type that Arrow can compare: the same values, the same order."""
    kind = column.type
    if pt.is_float16(kind):
        return column.cast(pa.float32())
    if pt.is_time(kind) or pt.is_duration(kind) or pt.is_timestamp(kind):
        return column.cast(pa.int32() if pt.is_time32(kind) else pa.int64())
    return column
