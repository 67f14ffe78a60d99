"""What was found out about a version of a leaf: it never changes, so it is found out once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import lance

Fact = TypeVar("Fact")
# Small facts: all of them go when there are too many.
_MOST = 1 << 17
_facts: dict[tuple[Hashable, ...], Any] = {}


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
