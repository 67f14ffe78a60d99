"""Search: the best rows of all planned partitions, by a vector, by words, or by both.

Rows come in the order of their distance or score; equal ones in the order of a scan: spec,
partition values, and the leaf's own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from phalanx.errors import PhalanxError, SchemaMismatch, shown
from phalanx.model.best import Best
from phalanx.model.schema.rows import chosen_schema, is_short
from phalanx.model.schema.schema import Schema
from phalanx.model.search.indexes import INVERTED, is_text
from phalanx.model.search.ranking import Hits, fused
from phalanx.model.search.vectors import (
    checked_metric,
    is_vector,
    least_distance,
    metrics_of,
    query_vector,
    searched_column,
)
from phalanx.planning.pruning.fields import source_columns
from phalanx.planning.search_options import SearchOptions, checked_count
from phalanx.storage.lance.failures import told
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.leaf.reading import SCAN_THREADS, LeafScan
from phalanx.storage.search.full_text import TextQuery
from phalanx.storage.search.open_leaf import OpenLeaf
from phalanx.storage.search.tokenizer import Tokenizer, asked
from phalanx.storage.search.vectors import IndexUse, Nearest
from phalanx.storage.state.properties import Properties
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.read.scan import checked_columns, scan_of
from phalanx.table.text_search import best_texts

DISTANCE, SCORE, RELEVANCE = "_distance", "_score", "_relevance_score"
_OWN = (DISTANCE, SCORE, RELEVANCE)
# A row that both searches find late may be better than one that a single search finds early.
_FUSED = 60
# So many leaves stay open until their rows are read.
_MOST_OPEN = 1024
_FEW_LEAVES = 8


@dataclass(frozen=True, slots=True)
class Searcher:
    """The leaves to be searched, in order, and what a result has of a row."""

    scans: tuple[LeafScan, ...]
    schema: Schema
    columns: tuple[str, ...]
    _opened: dict[int, OpenLeaf] = field(default_factory=dict, init=False, repr=False)

    def opened(self, place: int) -> OpenLeaf:
        """A leaf; its rows are often wanted soon after it was searched."""
        leaf = self._opened.get(place)
        if leaf is None:
            leaf = OpenLeaf.of(self.scans[place], self._beside())
            if len(self._opened) < _MOST_OPEN:
                self._opened[place] = leaf
        return leaf

    def _beside(self) -> tuple[str, ...]:
        """All columns of a result, where these are short and of a few leaves only."""
        if len(self.scans) > _FEW_LEAVES:
            return ()
        kinds = chosen_schema(self.schema, self.columns).types
        return self.columns if all(map(is_short, kinds)) else ()

    def __getstate__(self) -> tuple[Any, ...]:
        return self.scans, self.schema, self.columns

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(("scans", "schema", "columns"), state, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_opened", {})

    def nearest(self, looked_for: Nearest) -> list[Hits]:
        """The nearest rows of each query."""
        best = [Best(looked_for.k, least_distance(looked_for.metric)) for _ in looked_for.queries]

        def run(place: int) -> None:
            if any(each.can_take_from(place) for each in best):
                looked_for.search(self.opened(place), place, best)

        in_parallel(run, range(len(self.scans)), SCAN_THREADS)
        return [Hits(each.leaves, each.rows, {DISTANCE: each.values}) for each in best]

    def matching(self, looked_for: TextQuery, k: int) -> Hits:
        """The rows that match words best."""
        best = best_texts(self.scans, looked_for, k)
        return Hits(best.leaves, best.rows, {SCORE: -best.values})

    def rows(self, hits: Hits) -> pa.Table:
        """The rows of some hits, in their order, with what was measured of them."""
        wanted = chosen_schema(self.schema, self.columns)
        places, start = np.unique(hits.leaves, return_inverse=True)

        def take(number: int) -> pa.Table:
            mine = np.flatnonzero(start == number)
            leaf = self.opened(int(places[number]))
            return leaf.taken(hits.rows[mine], self.columns).cast(wanted)

        parts = in_parallel(take, range(len(places)), SCAN_THREADS)
        found = pa.concat_tables(parts) if parts else wanted.empty_table()
        # Parts are leaf by leaf: where is the row of each hit?
        order = np.empty(len(hits), np.int64)
        order[np.argsort(start, kind="stable")] = np.arange(len(hits))
        found = found.take(pa.array(order)) if len(places) > 1 else found
        for name, values in hits.measures.items():
            found = found.append_column(pa.field(name, pa.float32()), _nullable(values))
        return found


def _nullable(values: np.ndarray) -> pa.Array:
    """Float32 values; what was not measured is NULL."""
    return pa.array(values.astype(np.float32), pa.float32(), from_pandas=True)


def search(
    manifest: LeafListing,
    column: str,
    query: Any,
    k: int,
    where: str | None,
    columns: Sequence[str] | None,
    options: SearchOptions,
) -> pa.Table:
    """The k best rows of the partitions that a predicate plans."""
    checked_count("k", k)
    searcher = searcher_of(manifest, where, columns)
    properties = manifest.properties
    found = searched_column(column, properties.schema)
    with told(f"search {manifest.root}"):
        if is_text(found.type):
            if options.hybrid is not None:
                raise PhalanxError(
                    f"Cannot search column {found.name!r} ({found.type}) with hybrid: expected a "
                    "column of vectors first, and the column of text in hybrid."
                )
            return searcher.rows(searcher.matching(words_of(found, query, properties, options), k))
        looked_for = nearest_of(found, [query], k, properties, options)
        if options.hybrid is None:
            (hits,) = searcher.nearest(looked_for)
            return searcher.rows(hits)
        text_field = searched_column(options.hybrid[0], properties.schema)
        words = words_of(text_field, options.hybrid[1], properties, options)
        deep = max(k, _FUSED)
        (near,) = searcher.nearest(replace(looked_for, k=deep))
        both = fused(near, searcher.matching(words, deep), options.rrf, k, RELEVANCE)
        return searcher.rows(both)


def searcher_of(
    manifest: LeafListing, where: str | None, columns: Sequence[str] | None
) -> Searcher:
    """What is searched: the leaves that a predicate plans, and the columns of a result."""
    schema, spec = manifest.properties.schema, manifest.properties.spec
    names = checked_columns(columns, schema)
    if taken := [name for name in _OWN if name in schema.names]:
        raise SchemaMismatch(
            f"Cannot search a table with a column {taken[0]!r}: that is where a search tells how "
            "well a row matches. Rename the column."
        )
    sources = source_columns(spec, schema) if spec.fields else []
    names = tuple(dict.fromkeys([*names, *sources]))
    scans = tuple(scan_of(manifest, where, names, None).leaf_scans())
    return Searcher(scans, schema, names)


def nearest_of(
    column: pa.Field, queries: Sequence[Any], k: int, properties: Properties, options: SearchOptions
) -> Nearest:
    """What is looked for among vectors; the metric is that of the declared index, if any."""
    if not is_vector(column.type):
        raise SchemaMismatch(
            f"Cannot search column {column.name!r} ({column.type}): expected text, or a fixed-size "
            "list of float16, float32, float64 or uint8."
        )
    field_id = properties.schema.id_of(tuple(column.name.split(".")))
    metrics = [each.metric for each in properties.indexes if each.field_id == field_id]
    usual = next((each for each in metrics if each), metrics_of(column.type)[0])
    metric = checked_metric(usual if options.metric is None else options.metric, column)
    vectors = np.array([query_vector(query, column, metric) for query in queries])
    use = IndexUse(options.use_index, options.nprobes, options.refine_factor, options.ef)
    return Nearest(column.name, field_id, metric, k, vectors, use)


def words_of(
    column: pa.Field, query: Any, properties: Properties, options: SearchOptions
) -> TextQuery:
    """What is looked for among texts, taken apart as the declared index does."""
    if not isinstance(query, str):
        raise PhalanxError(
            f"Cannot search column {column.name!r} ({column.type}) by {shown(query)}: expected "
            "text."
        )
    if not is_text(column.type):
        raise SchemaMismatch(
            f"Cannot search column {column.name!r} ({column.type}) by words: expected text."
        )
    field_id = properties.schema.id_of(tuple(column.name.split(".")))
    chosen = [
        each.keywords
        for each in properties.indexes
        if each.field_id == field_id and each.kind == INVERTED
    ]
    tokenizer = Tokenizer.of(chosen[0] if chosen else {})
    return TextQuery(
        column.name,
        field_id,
        asked(query, tokenizer),
        tokenizer,
        options.operator == "and",
        options.use_index,
    )
