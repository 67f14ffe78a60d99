"""Removal of dictionary values that no row uses.

A slice of a column keeps the whole dictionary, so a file would store values of rows that are in
other files, or that were deleted.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.model.schema.rows import copy_array


def has_dictionaries(kind: pa.DataType) -> bool:
    """Return whether a type is, or contains, a dictionary."""
    if pt.is_dictionary(kind):
        return True
    return any(has_dictionaries(kind.field(place).type) for place in range(kind.num_fields))


def drop_unused_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows with dictionaries of only the values that the rows use."""
    return pa.RecordBatch.from_arrays(
        [
            _drop_unused(column) if has_dictionaries(column.type) else column
            for column in batch.columns
        ],
        schema=batch.schema,
    )


def _drop_unused(array: pa.Array) -> pa.Array:
    if pt.is_dictionary(array.type):
        return _shrink_dictionary(array)
    # Copy, so that buffers have only the rows of the slice.
    array = copy_array(array)
    children = [
        _drop_unused(child) if has_dictionaries(child.type) else child
        for child in _list_children(array)
    ]
    count = 1 if pt.is_struct(array.type) or pt.is_fixed_size_list(array.type) else 2
    if pt.is_map(array.type):
        entries = pa.StructArray.from_arrays(
            children, fields=[array.type.key_field, array.type.item_field]
        )
        children = [entries]
    buffers = array.buffers()[:count]
    return pa.Array.from_buffers(array.type, len(array), buffers, children=children)


def _list_children(array: pa.Array) -> list[pa.Array]:
    if pt.is_struct(array.type):
        return [array.field(place) for place in range(array.type.num_fields)]
    return [array.keys, array.items] if pt.is_map(array.type) else [array.values]


def _shrink_dictionary(array: pa.DictionaryArray) -> pa.DictionaryArray:
    used = np.sort(pc.unique(array.indices.drop_null()).to_numpy())
    if len(used) == len(array.dictionary):
        return array
    indices = np.searchsorted(used, pc.fill_null(array.indices, 0).to_numpy())
    missing = array.indices.is_null().to_numpy(zero_copy_only=False)
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, array.type.index_type, mask=missing),
        array.dictionary.take(pa.array(used)),
        ordered=array.type.ordered,
    )


class DictionaryUsage:
    """The values that a file's dictionaries store, and those that its rows use."""

    def __init__(self) -> None:
        self._stored: dict[str, pa.Array] = {}
        self._used: dict[str, pa.Array] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the file."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for path, found in _find_dictionaries(name, column):
                used = found.dictionary.take(pc.unique(found.indices.drop_null()))
                for values, more in ((self._stored, found.dictionary), (self._used, used)):
                    before = [values[path]] if path in values else []
                    values[path] = pc.unique(pa.chunked_array([*before, more]))

    @property
    def has_unused_values(self) -> bool:
        """Whether a dictionary stores a value that no row uses."""
        return any(len(self._used[path]) < len(known) for path, known in self._stored.items())


def _find_dictionaries(path: str, array: pa.Array) -> Iterator[tuple[str, pa.DictionaryArray]]:
    if not has_dictionaries(array.type):
        return
    if pt.is_dictionary(array.type):
        yield path, array
        return
    for place, child in enumerate(_list_children(copy_array(array))):
        yield from _find_dictionaries(f"{path}/{place}", child)
