"""A partitioned table as a plain list of rows: what every operation should have done."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

Row = tuple[Any, ...]


def as_multiset(table: pa.Table | pa.RecordBatch) -> Counter[Row]:
    """Count each row. Floats are compared bit by bit, except for the payload of NaN."""
    return Counter(as_rows(table))


def as_rows(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """Return the rows as values that can be compared and hashed."""
    columns = [list(_plain(column)) for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _plain(column: pa.ChunkedArray | pa.Array) -> Iterator[Any]:
    for scalar in column:
        yield plain_value(scalar)


def plain_value(value: pa.Scalar) -> Any:
    """A scalar as a hashable value."""
    if not value.is_valid:
        return None
    kind = value.type
    if pt.is_floating(kind):
        number = value.as_py()
        return "NaN" if number != number else struct.pack("<d", number)
    if pt.is_temporal(kind):
        return value.value
    if pt.is_struct(kind):
        return tuple((name, plain_value(child)) for name, child in value.items())
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return tuple(map(plain_value, value.values))
    return value.as_py()


def change_field(
    table: pa.Table, path: tuple[str, ...], change: Callable[[pa.Array, str], list[Any]]
) -> pa.Table:
    """Return the table with the field at a path replaced by the fields that `change` returns."""
    arrays: list[pa.Array] = []
    names: list[str] = []
    for name in table.column_names:
        found = [(table.column(name).combine_chunks(), name)]
        if name == path[0]:
            found = _change_field(found[0][0], name, path[1:], change)
        for array, kept in found:
            arrays.append(array)
            names.append(kept)
    return pa.table(arrays, names=names)


def _change_field(
    array: pa.Array, name: str, rest: tuple[str, ...], change: Callable[[pa.Array, str], list[Any]]
) -> list[tuple[pa.Array, str]]:
    if not rest:
        return change(array, name)
    children: list[pa.Array] = []
    names: list[str] = []
    for place, child in enumerate(array.type):
        found = [(array.field(place), child.name)]
        if child.name == rest[0]:
            found = _change_field(array.field(place), child.name, rest[1:], change)
        for inner, kept in found:
            children.append(inner)
            names.append(kept)
    return [(pa.StructArray.from_arrays(children, names=names, mask=array.is_null()), name)]
