"""What was found out about a version of a leaf: it never changes, so it is found out once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import lance
import pyarrow as pa

Fact = TypeVar("Fact")
# All facts go when there are too many, or when they are too large together.
_MOST = 1 << 17
_MOST_BYTES = 128 << 20
_facts: dict[tuple[Hashable, ...], Any] = {}
_tables: dict[tuple[Hashable, ...], pa.Table] = {}


def known(dataset: lance.LanceDataset, what: Hashable, find: Callable[[], Fact]) -> Fact:
    """A fact about this version, by the place and the number that no other version has."""
    key = (dataset.uri, dataset.version, what)
    try:
        fact: Fact = _facts[key]
    except KeyError:
        if len(_facts) >= _MOST:
            _facts.clear()
        fact = _facts[key] = find()
    return fact


def known_table(
    dataset: lance.LanceDataset, what: Hashable, find: Callable[[], pa.Table]
) -> pa.Table:
    """The same for what takes memory: only the last such facts are remembered."""
    key = (dataset.uri, dataset.version, what)
    found = _tables.get(key)
    if found is None:
        found = find()
        if sum(each.nbytes for each in list(_tables.values())) + found.nbytes > _MOST_BYTES:
            _tables.clear()
        if found.nbytes <= _MOST_BYTES:
            _tables[key] = found
    return found
