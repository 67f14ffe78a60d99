"""The best rows of many leaves: offered by several threads, kept in one stable order."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

RowIds = npt.NDArray[np.uint64]
Ranks = npt.NDArray[Any]


class Best:
    """The k rows with the least value so far, ties by the order of the leaves and of their rows.

    The value of the last of them is a bound: no row above it can be among the best any more.
    """

    def __init__(self, k: int, least: float = -np.inf) -> None:
        self._k = k
        self._least = least
        self._lock = threading.Lock()
        self.values: Ranks = np.empty(0, np.float32)
        self.leaves: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.rows: RowIds = np.empty(0, np.uint64)
        self.bound: float = np.inf

    def can_take_from(self, leaf: int) -> bool:
        """Whether a row of a leaf may be among the best, as far as is known.

        Where k rows of earlier leaves have a value that none is below, none of its own comes
        before them.
        """
        if self.bound > self._least:
            return True
        with self._lock:
            return bool(self.leaves[-1] >= leaf)

    def offer(self, values: Ranks, leaf: int, rows: RowIds) -> None:
        """Rows of a leaf; those without a value (NaN) are none."""
        places = np.flatnonzero(values <= self.bound)
        if not len(places):
            return
        if len(places) > self._k:
            worst = np.partition(values[places], self._k - 1)[self._k - 1]
            places = places[values[places] <= worst]
        values, rows = values[places], rows[places]
        with self._lock:
            values = np.concatenate([self.values, values])
            leaves = np.concatenate([self.leaves, np.full(len(rows), leaf, np.int64)])
            rows = np.concatenate([self.rows, rows])
            order = np.lexsort((rows, leaves, values))[: self._k]
            self.values, self.leaves, self.rows = values[order], leaves[order], rows[order]
            if len(order) == self._k:
                self.bound = float(self.values[-1])
