"""Grouping of rows by equal values, in whole columns without a loop over rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

# Up to this many, a table with one slot per possible code is cheaper than sorting.
_MAX_SLOTS = 1 << 22
# With this many times fewer rows sought than present, filter candidates first.
_FEW_RATIO = 16


@dataclass(frozen=True, slots=True)
class Groups:
    """The group of each row, and the values of each group."""

    codes: npt.NDArray[np.int64]
    keys: pa.Table
    count: int


def group_rows(values: pa.Table, rows: int) -> Groups:
    """Group the rows that are equal in every column; without columns all rows are one group."""
    codes, count = np.zeros(rows, dtype=np.int64), min(1, rows)
    encoded = [
        _to_sortable(column.combine_chunks()).dictionary_encode() for column in values.columns
    ]
    # Per column, each group's index in the dictionary; NULL has the index after the last value.
    indices: list[npt.NDArray[np.int64]] = []
    for column in encoded:
        size = len(column.dictionary) + 1
        codes, used = _make_dense(codes * size + _to_indices(column))
        indices = [*(inner[used // size] for inner in indices), used % size]
        count = len(used)
    keys = [
        _decode(column, inner, kind)
        for column, inner, kind in zip(encoded, indices, values.schema.types, strict=True)
    ]
    return Groups(codes, pa.Table.from_arrays(keys, schema=values.schema), count)


def find_positions(sought: pa.Table, among: pa.Table) -> npt.NDArray[np.int64]:
    """Return for each sought row the position of the first equal row, or −1."""
    if sought.num_rows * _FEW_RATIO > among.num_rows:
        return _find_positions(sought, among)
    candidates = _find_candidates(sought, among)
    return np.append(candidates, -1)[_find_positions(sought, among.take(pa.array(candidates)))]


def _find_positions(sought: pa.Table, among: pa.Table) -> npt.NDArray[np.int64]:
    both = group_rows(pa.concat_tables([among, sought]), among.num_rows + sought.num_rows)
    indices = np.full(both.count, -1, dtype=np.int64)
    known = both.codes[: among.num_rows]
    indices[known[::-1]] = np.arange(among.num_rows)[::-1]
    found: npt.NDArray[np.int64] = indices[both.codes[among.num_rows :]]
    return found


def _find_candidates(sought: pa.Table, among: pa.Table) -> npt.NDArray[np.int64]:
    """Return the positions of rows that have, in every column, one of the sought values."""
    kept = np.ones(among.num_rows, dtype=bool)
    for values_sought, column in zip(sought.columns, among.columns, strict=True):
        # Equal floats may differ in their bits.
        if not pt.is_floating(column.type):
            values = _to_sortable(values_sought.combine_chunks())
            found = pc.is_in(_to_sortable(column.combine_chunks()), value_set=values)
            kept &= found.to_numpy(zero_copy_only=False)
    return np.flatnonzero(kept)


def sort_indices(values: pa.Table) -> pa.Array:
    """Return the positions of the rows in ascending order, column by column, NULL last."""
    names = [str(place) for place in range(values.num_columns)]
    columns = [_to_sortable(column.combine_chunks()) for column in values.columns]
    keys = [(name, "ascending", "at_end") for name in names]
    return pc.sort_indices(pa.table(columns, names=names), sort_keys=keys)


def _to_indices(encoded: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """Return each row's index in the dictionary; NULL has the index after the last value."""
    filled = pc.fill_null(encoded.indices, pa.scalar(len(encoded.dictionary), pa.int32()))
    indices: npt.NDArray[np.int64] = filled.to_numpy(zero_copy_only=False).astype(np.int64)
    return indices


def _decode(
    encoded: pa.DictionaryArray, indices: npt.NDArray[np.int64], kind: pa.DataType
) -> pa.Array:
    missing = indices == len(encoded.dictionary)
    return encoded.dictionary.take(pa.array(indices, mask=missing)).cast(kind)


def _make_dense(
    codes: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Renumber the codes without gaps; return the new codes, and the old code of each."""
    if not len(codes):
        return codes, codes
    slots = int(codes.max()) + 1
    if slots > max(_MAX_SLOTS, 4 * len(codes)):
        used, dense = np.unique(codes, return_inverse=True)
        return dense.astype(np.int64), used
    present = np.zeros(slots, dtype=bool)
    present[codes] = True
    numbers = np.cumsum(present) - 1
    return numbers[codes], np.flatnonzero(present)


def _to_sortable(column: pa.Array) -> pa.Array:
    """Cast the column to a type that Arrow can compare, with the same order."""
    kind = column.type
    if pt.is_float16(kind):
        return column.cast(pa.float32())
    if pt.is_time(kind) or pt.is_duration(kind) or pt.is_timestamp(kind):
        return column.cast(pa.int32() if pt.is_time32(kind) else pa.int64())
    return column
