"""Dictionary columns with no other values than those of their rows.

A slice of a column keeps the whole dictionary, and a file would get values of rows that go
elsewhere, or that are gone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.model.schema.rows import copied


def has_dictionaries(kind: pa.DataType) -> bool:
    """Whether a type is a dictionary, or one is in it."""
    if pt.is_dictionary(kind):
        return True
    return any(has_dictionaries(kind.field(place).type) for place in range(kind.num_fields))


def with_own_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, whose dictionaries have only the values that the rows have."""
    return pa.RecordBatch.from_arrays(
        [_own(column) if has_dictionaries(column.type) else column for column in batch.columns],
        schema=batch.schema,
    )


def _own(array: pa.Array) -> pa.Array:
    if pt.is_dictionary(array.type):
        return _with_used(array)
    # Without what a slice leaves away.
    array = copied(array)
    children = [
        _own(child) if has_dictionaries(child.type) else child for child in _children(array)
    ]
    count = 1 if pt.is_struct(array.type) or pt.is_fixed_size_list(array.type) else 2
    if pt.is_map(array.type):
        entries = pa.StructArray.from_arrays(
            children, fields=[array.type.key_field, array.type.item_field]
        )
        children = [entries]
    buffers = array.buffers()[:count]
    return pa.Array.from_buffers(array.type, len(array), buffers, children=children)


def _children(array: pa.Array) -> list[pa.Array]:
    if pt.is_struct(array.type):
        return [array.field(place) for place in range(array.type.num_fields)]
    return [array.keys, array.items] if pt.is_map(array.type) else [array.values]


def _with_used(array: pa.DictionaryArray) -> pa.DictionaryArray:
    used = np.sort(pc.unique(array.indices.drop_null()).to_numpy())
    if len(used) == len(array.dictionary):
        return array
    places = np.searchsorted(used, pc.fill_null(array.indices, 0).to_numpy())
    missing = array.indices.is_null().to_numpy(zero_copy_only=False)
    return pa.DictionaryArray.from_arrays(
        pa.array(places, array.type.index_type, mask=missing),
        array.dictionary.take(pa.array(used)),
        ordered=array.type.ordered,
    )


class Unused:
    """Whether the dictionaries in a file have values that none of its rows has."""

    def __init__(self) -> None:
        self._known: dict[str, pa.Array] = {}
        self._used: dict[str, pa.Array] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """More rows of the file."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for path, found in _dictionaries(name, column):
                used = found.dictionary.take(pc.unique(found.indices.drop_null()))
                for values, more in ((self._known, found.dictionary), (self._used, used)):
                    before = [values[path]] if path in values else []
                    values[path] = pc.unique(pa.chunked_array([*before, more]))

    @property
    def any(self) -> bool:
        """Whether there is such a value."""
        return any(len(self._used[path]) < len(known) for path, known in self._known.items())


def _dictionaries(path: str, array: pa.Array) -> Iterator[tuple[str, pa.DictionaryArray]]:
    if not has_dictionaries(array.type):
        return
    if pt.is_dictionary(array.type):
        yield path, array
        return
    for place, child in enumerate(_children(copied(array))):
        yield from _dictionaries(f"{path}/{place}", child)
