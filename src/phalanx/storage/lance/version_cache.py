"""A cache of values computed from a version of a leaf, which never changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import lance
import pyarrow as pa

_Value = TypeVar("_Value")
# The cache is cleared when it exceeds one of these.
_MAX_VALUES = 1 << 17
_MAX_TABLE_BYTES = 128 << 20
_values: dict[tuple[Hashable, ...], Any] = {}
_tables: dict[tuple[Hashable, ...], pa.Table] = {}


def compute_once(
    dataset: lance.LanceDataset, key: Hashable, compute: Callable[[], _Value]
) -> _Value:
    """Return the cached value for this version and key, computing it if needed."""
    entry = (dataset.uri, dataset.version, key)
    try:
        value: _Value = _values[entry]
    except KeyError:
        if len(_values) >= _MAX_VALUES:
            _values.clear()
        value = _values[entry] = compute()
    return value


def compute_table_once(
    dataset: lance.LanceDataset, key: Hashable, compute: Callable[[], pa.Table]
) -> pa.Table:
    """Like `compute_once`, for large tables; limited to 128 MB."""
    entry = (dataset.uri, dataset.version, key)
    found = _tables.get(entry)
    if found is None:
        found = compute()
        if sum(each.nbytes for each in list(_tables.values())) + found.nbytes > _MAX_TABLE_BYTES:
            _tables.clear()
        if found.nbytes <= _MAX_TABLE_BYTES:
            _tables[entry] = found
    return found
