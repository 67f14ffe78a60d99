"""Rankings of rows: the best k rows, and the fusion of two rankings."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows in the order of a ranking, by leaf and row id, with their measures by name."""

    leaves: npt.NDArray[np.int64]
    rows: RowIdArray
    measures: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.rows)


def fuse_rankings(one: Hits, other: Hits, constant: int, k: int, name: str) -> Hits:
    """Return the k best rows of two rankings by reciprocal rank fusion, with all measures.

    A row gets 1 / (constant + rank) for each ranking that contains it; ranks start at 1. Ties are
    broken by leaf and row.
    """
    leaves = np.concatenate([one.leaves, other.leaves])
    rows = np.concatenate([one.rows, other.rows])
    keys = np.empty(len(rows), [("leaf", np.int64), ("row", np.uint64)])
    keys["leaf"], keys["row"] = leaves, rows
    unique, first, place = np.unique(keys, return_index=True, return_inverse=True)
    ranks = np.concatenate([np.arange(len(one)), np.arange(len(other))]) + 1
    sums = np.zeros(len(unique))
    np.add.at(sums, place, 1.0 / (constant + ranks))
    order = np.lexsort((unique["row"], unique["leaf"], -sums))[:k]
    measures: dict[str, npt.NDArray[Any]] = {}
    for hits, start in ((one, 0), (other, len(one))):
        for measure, values in hits.measures.items():
            whole = np.full(len(unique), np.nan, np.float32)
            whole[place[start : start + len(hits)]] = values
            measures[measure] = whole[order]
    measures[name] = sums[order].astype(np.float32)
    return Hits(leaves[first[order]], rows[first[order]], measures)


RowIdArray = npt.NDArray[np.uint64]
RankValues = npt.NDArray[Any]


class TopK:
    """The k rows with the smallest values so far; ties are broken by leaf and row.

    `bound` is the value of the last of k rows: no row above it can be among the best.
    """

    def __init__(self, k: int, min_value: float = -np.inf) -> None:
        self._k = k
        self._min_value = min_value
        self._lock = threading.Lock()
        self.values: RankValues = np.empty(0, np.float32)
        self.leaves: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.rows: RowIdArray = np.empty(0, np.uint64)
        self.bound: float = np.inf

    def can_include(self, leaf: int) -> bool:
        """Return whether a row of a leaf may still be among the best.

        If k rows of earlier leaves have the smallest possible value, no row of a later leaf can
        precede them.
        """
        if self.bound > self._min_value:
            return True
        with self._lock:
            return bool(self.leaves[-1] >= leaf)

    def add(self, values: RankValues, leaf: int, rows: RowIdArray) -> None:
        """Add rows of a leaf; rows without a value (NaN) are ignored."""
        candidates = np.flatnonzero(values <= self.bound)
        if not len(candidates):
            return
        if len(candidates) > self._k:
            worst = np.partition(values[candidates], self._k - 1)[self._k - 1]
            candidates = candidates[values[candidates] <= worst]
        values, rows = values[candidates], rows[candidates]
        with self._lock:
            values = np.concatenate([self.values, values])
            leaves = np.concatenate([self.leaves, np.full(len(rows), leaf, np.int64)])
            rows = np.concatenate([self.rows, rows])
            order = np.lexsort((rows, leaves, values))[: self._k]
            self.values, self.leaves, self.rows = values[order], leaves[order], rows[order]
            if len(order) == self._k:
                self.bound = float(self.values[-1])
