"""Rankings of rows, and how two of them become one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.model.best import RowIds


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows in the order of a ranking: by leaf and id, with what was measured of each."""

    leaves: npt.NDArray[np.int64]
    rows: RowIds
    measures: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.rows)


def fused(one: Hits, other: Hits, constant: int, k: int, name: str) -> Hits:
    """The k best rows of two rankings by reciprocal rank fusion, with what both measured.

    A row counts 1 / (constant + rank) for each ranking that it is in, ranks from 1 on. Equal ones
    come in the order of their leaves and rows.
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
