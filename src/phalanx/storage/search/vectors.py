"""The nearest vectors of a leaf: by its index where it has one, else by all its vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from lance.dataset import serialize_row_addrs

from phalanx.model.best import Best, RowIds
from phalanx.model.predicates.predicate import TRUE
from phalanx.model.predicates.rendering import to_lance
from phalanx.model.search.vectors import Vectors, distances, vectors_in
from phalanx.storage.lance.scanning import table_of
from phalanx.storage.leaf.path_values import for_leaf
from phalanx.storage.leaf_indexes import LeafIndex, described, indexes_of
from phalanx.storage.search.open_leaf import OpenLeaf

_NO_ROWS = np.empty(0, np.uint64)
# Times k candidates that are compared exactly, by how much of a vector is left in an index.
_REFINE = {"SQ": 2, "PQ": 10, "RQ": 10}


@dataclass(frozen=True, slots=True)
class IndexUse:
    """Whether indexes are used, and how thoroughly; what is None is as Lance has it."""

    use_index: bool = True
    nprobes: int | None = None
    refine_factor: int | None = None
    ef: int | None = None


@dataclass(frozen=True, slots=True)
class Nearest:
    """Vectors to look for in a column, and how: the k nearest of each."""

    column: str
    field_id: int
    metric: str
    k: int
    queries: Vectors
    use: IndexUse

    def search(self, leaf: OpenLeaf, place: int, best: list[Best]) -> None:
        """Offer the rows of a leaf to the best of each query."""
        if not any(each.can_take_from(place) for each in best):
            return
        index = self._index(leaf)
        if index is None:
            self._all(leaf, place, best)
        else:
            self._by_index(leaf, index, place, best)

    def _index(self, leaf: OpenLeaf) -> LeafIndex | None:
        if not self.use.use_index or not leaf.is_plain:
            return None
        is_reused = leaf.scan.location.has_reused_paths
        for index in (described if is_reused else indexes_of)(leaf.dataset):
            if index.field_id == self.field_id and index.metric == self.metric:
                return index
        return None

    def _all(self, leaf: OpenLeaf, place: int, best: list[Best]) -> None:
        """Compare with every vector: exact."""
        for batch, ids in leaf.searched(self.column):
            vectors, present = vectors_in(batch.column(self.column))
            if present is not None:
                ids = ids[present]
            if len(ids):
                for query, found in zip(self.queries, best, strict=True):
                    found.offer(distances(vectors, query, self.metric), place, ids)

    def _by_index(self, leaf: OpenLeaf, index: LeafIndex, place: int, best: list[Best]) -> None:
        """Ask Lance, which compares with the vectors that the index does not cover itself."""
        inner, rest = for_leaf(leaf.scan.predicate, leaf.scan.path)
        allowed = None
        if rest != TRUE:
            # What Lance cannot filter by is known by its rows.
            parts = [ids for _, ids in leaf.filtered([])]
            ids = np.concatenate([_NO_ROWS, *parts])
            if not len(ids):
                return
            allowed = serialize_row_addrs(ids.tolist())
        for query, found in zip(self.queries, best, strict=True):
            rows = table_of(
                leaf.dataset,
                columns=["_distance"],
                nearest=self._asked(query, index),
                filter=None if inner == TRUE else to_lance(inner),
                prefilter=True,
                row_addr_allowlist=allowed,
                with_row_id=True,
            )
            values = rows.column("_distance").to_numpy()
            row_ids: RowIds = rows.column("_rowid").to_numpy()
            found.offer(values, place, row_ids)

    def _asked(self, query: Vectors, index: LeafIndex) -> dict[str, object]:
        # What a quantized index tells is no distance that could be compared with another leaf's.
        refine = _REFINE.get(index.kind.rpartition("_")[2])
        if self.use.refine_factor is not None:
            refine = self.use.refine_factor
        chosen = {"nprobes": self.use.nprobes, "refine_factor": refine, "ef": self.use.ef}
        return {
            "column": self.column,
            "q": query,
            "k": self.k,
            "metric": self.metric,
            **{name: value for name, value in chosen.items() if value is not None},
        }
