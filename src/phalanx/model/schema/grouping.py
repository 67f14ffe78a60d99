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
# So many times fewer rows are sought than there are: it pays to look at these alone.
_FEW = 16


@dataclass(frozen=True, slots=True)
class Groups:
    """Which group each row is in, and the values each group has."""

    codes: npt.NDArray[np.int64]
    keys: pa.Table
    count: int


def group(values: pa.Table, rows: int) -> Groups:
    """The groups of rows that are equal in every column; without columns all rows are one."""
    codes, count = np.zeros(rows, dtype=np.int64), min(1, rows)
    encoded = [_sortable(column.combine_chunks()).dictionary_encode() for column in values.columns]
    # For each column the group's place in its dictionary, which has NULL behind its end.
    places: list[npt.NDArray[np.int64]] = []
    for column in encoded:
        size = len(column.dictionary) + 1
        codes, used = _dense(codes * size + _indices(column))
        places = [*(inner[used // size] for inner in places), used % size]
        count = len(used)
    keys = [
        _decoded(column, inner, kind)
        for column, inner, kind in zip(encoded, places, values.schema.types, strict=True)
    ]
    return Groups(codes, pa.Table.from_arrays(keys, schema=values.schema), count)


def positions(sought: pa.Table, among: pa.Table) -> npt.NDArray[np.int64]:
    """For each sought row the place of the equal row among the others, −1 where there is none."""
    if sought.num_rows * _FEW > among.num_rows:
        return _positions(sought, among)
    candidates = _candidates(sought, among)
    return np.append(candidates, -1)[_positions(sought, among.take(pa.array(candidates)))]


def _positions(sought: pa.Table, among: pa.Table) -> npt.NDArray[np.int64]:
    both = group(pa.concat_tables([among, sought]), among.num_rows + sought.num_rows)
    places = np.full(both.count, -1, dtype=np.int64)
    known = both.codes[: among.num_rows]
    places[known[::-1]] = np.arange(among.num_rows)[::-1]
    found: npt.NDArray[np.int64] = places[both.codes[among.num_rows :]]
    return found


def _candidates(sought: pa.Table, among: pa.Table) -> npt.NDArray[np.int64]:
    """The places of the rows that have, in each column, a value which is sought there."""
    kept = np.ones(among.num_rows, dtype=bool)
    for wanted, column in zip(sought.columns, among.columns, strict=True):
        # Equal floats are not always the same.
        if not pt.is_floating(column.type):
            values = _sortable(wanted.combine_chunks())
            found = pc.is_in(_sortable(column.combine_chunks()), value_set=values)
            kept &= found.to_numpy(zero_copy_only=False)
    return np.flatnonzero(kept)


def order_of(values: pa.Table) -> pa.Array:
    """The rows' numbers in ascending order of their values, column by column, NULL last."""
    names = [str(place) for place in range(values.num_columns)]
    columns = [_sortable(column.combine_chunks()) for column in values.columns]
    keys = [(name, "ascending", "at_end") for name in names]
    return pc.sort_indices(pa.table(columns, names=names), sort_keys=keys)


def _indices(encoded: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """Each row's place in the dictionary, NULL behind its end."""
    filled = pc.fill_null(encoded.indices, pa.scalar(len(encoded.dictionary), pa.int32()))
    places: npt.NDArray[np.int64] = filled.to_numpy(zero_copy_only=False).astype(np.int64)
    return places


def _decoded(
    encoded: pa.DictionaryArray, places: npt.NDArray[np.int64], kind: pa.DataType
) -> pa.Array:
    missing = places == len(encoded.dictionary)
    return encoded.dictionary.take(pa.array(places, mask=missing)).cast(kind)


def _dense(
    codes: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The codes renumbered without gaps, and the code that each number stands for."""
    if not len(codes):
        return codes, codes
    slots = int(codes.max()) + 1
    if slots > max(_MOST_SLOTS, 4 * len(codes)):
        used, dense = np.unique(codes, return_inverse=True)
        return dense.astype(np.int64), used
    present = np.zeros(slots, dtype=bool)
    present[codes] = True
    numbers = np.cumsum(present) - 1
    return numbers[codes], np.flatnonzero(present)


def _sortable(column: pa.Array) -> pa.Array:
    """The column in a type that Arrow can compare: the same values, the same order."""
    kind = column.type
    if pt.is_float16(kind):
        return column.cast(pa.float32())
    if pt.is_time(kind) or pt.is_duration(kind) or pt.is_timestamp(kind):
        return column.cast(pa.int32() if pt.is_time32(kind) else pa.int64())
    return column
