"""The nearest vectors of a leaf: by its index if it has one, otherwise by exact comparison."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from lance.dataset import serialize_row_addrs

from phalanx.model.predicates.predicate import TRUE
from phalanx.model.predicates.rendering import to_lance
from phalanx.model.search.ranking import RowIdArray, TopK
from phalanx.model.search.vectors import Vectors, compute_distances, to_vectors
from phalanx.storage.lance.scanning import scan_table
from phalanx.storage.leaf.indexes import LeafIndex, list_indexes, read_indexes
from phalanx.storage.leaf.path_values import split_for_leaf
from phalanx.storage.search.open_leaf import OpenLeaf

_NO_ROWS = np.empty(0, np.uint64)
# Refine factors: how many times k candidates are compared exactly, by quantization.
_REFINE = {"SQ": 2, "PQ": 10, "RQ": 10}


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Whether to use indexes, and their search options; None is Lance's default."""

    use_index: bool = True
    nprobes: int | None = None
    refine_factor: int | None = None
    ef: int | None = None


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """Vectors to search for in a column: the k nearest rows of each."""

    column: str
    field_id: int
    metric: str
    k: int
    queries: Vectors
    options: IndexOptions

    def search(self, leaf: OpenLeaf, leaf_number: int, best: list[TopK]) -> None:
        """Offer the rows of a leaf to the best rows of each query."""
        if not any(each.can_include(leaf_number) for each in best):
            return
        index = self._find_index(leaf)
        if index is None:
            self._search_exact(leaf, leaf_number, best)
        else:
            self._search_index(leaf, index, leaf_number, best)

    def _find_index(self, leaf: OpenLeaf) -> LeafIndex | None:
        if not self.options.use_index or not leaf.is_plain:
            return None
        is_reused = leaf.scan.location.has_reused_paths
        for index in (read_indexes if is_reused else list_indexes)(leaf.dataset):
            if index.field_id == self.field_id and index.metric == self.metric:
                return index
        return None

    def _search_exact(self, leaf: OpenLeaf, leaf_number: int, best: list[TopK]) -> None:
        """Compare with every vector."""
        for batch, ids in leaf.read_searched(self.column):
            vectors, present = to_vectors(batch.column(self.column))
            if present is not None:
                ids = ids[present]
            if len(ids):
                for query, found in zip(self.queries, best, strict=True):
                    found.add(compute_distances(vectors, query, self.metric), leaf_number, ids)

    def _search_index(
        self, leaf: OpenLeaf, index: LeafIndex, leaf_number: int, best: list[TopK]
    ) -> None:
        """Search with Lance, which also compares vectors that the index does not cover."""
        inner, rest = split_for_leaf(leaf.scan.predicate, leaf.scan.path)
        allowed = None
        if rest != TRUE:
            # Lance cannot evaluate the rest: pass it the ids of the matching rows.
            parts = [ids for _, ids in leaf.read_filtered([])]
            ids = np.concatenate([_NO_ROWS, *parts])
            if not len(ids):
                return
            allowed = serialize_row_addrs(ids.tolist())
        for query, found in zip(self.queries, best, strict=True):
            rows = scan_table(
                leaf.dataset,
                columns=["_distance"],
                nearest=self._nearest_options(query, index),
                filter=None if inner == TRUE else to_lance(inner),
                prefilter=True,
                row_addr_allowlist=allowed,
                with_row_id=True,
            )
            values = rows.column("_distance").to_numpy()
            row_ids: RowIdArray = rows.column("_rowid").to_numpy()
            found.add(values, leaf_number, row_ids)

    def _nearest_options(self, query: Vectors, index: LeafIndex) -> dict[str, object]:
        # Distances of a quantized index are not comparable between leaves.
        refine = _REFINE.get(index.kind.rpartition("_")[2])
        if self.options.refine_factor is not None:
            refine = self.options.refine_factor
        chosen = {"nprobes": self.options.nprobes, "refine_factor": refine, "ef": self.options.ef}
        return {
            "column": self.column,
            "q": query,
            "k": self.k,
            "metric": self.metric,
            **{name: value for name, value in chosen.items() if value is not None},
        }
