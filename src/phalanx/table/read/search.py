"""Search: the global top k of the planned partitions, by vector, by full text, or by both.

Rows are ordered by distance or score. Ties keep the order of a scan: spec, partition values, and
the order within the leaf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from phalanx.errors import InvalidArgument, SchemaMismatch, format_value
from phalanx.model.predicates.predicate import TRUE
from phalanx.model.schema.rows import is_small_type, select_schema
from phalanx.model.schema.schema import Schema
from phalanx.model.search.bm25 import CorpusStats, score_documents
from phalanx.model.search.indexes import INVERTED, is_searchable_text
from phalanx.model.search.ranking import Hits, TopK, fuse_rankings
from phalanx.model.search.vectors import (
    is_vector,
    metrics_of,
    min_distance_of,
    resolve_metric,
    resolve_search_column,
    to_query_vector,
)
from phalanx.planning.pruning.fields import list_source_columns
from phalanx.planning.search_options import SearchOptions, check_count
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.leaf.reading import SCAN_THREADS, LeafScan, read_in_order
from phalanx.storage.search.full_text import (
    CountedDocuments,
    LeafDocuments,
    TextQuery,
    UncountedTexts,
    count_documents,
    read_indexed_documents,
    read_uncounted_texts,
)
from phalanx.storage.search.open_leaf import OpenLeaf
from phalanx.storage.search.tokenizer import Tokenizer, parse_query
from phalanx.storage.search.vectors import IndexOptions, VectorQuery
from phalanx.storage.state.properties import Properties
from phalanx.storage.state.table_state import TableState
from phalanx.table.read.scan import make_scan, resolve_columns

DISTANCE, SCORE, RELEVANCE = "_distance", "_score", "_relevance_score"
_RESULT_COLUMNS = (DISTANCE, SCORE, RELEVANCE)
# At least so many rows of each search are fused: a row with two low ranks may beat a row with one
# high rank.
_FUSION_DEPTH = 60
# The number of leaves that stay open until their rows are fetched.
_MAX_OPEN = 1024
_FEW_LEAVES = 8


@dataclass(frozen=True, slots=True)
class Searcher:
    """The leaves to search, in order, and the columns of a result."""

    scans: tuple[LeafScan, ...]
    schema: Schema
    columns: tuple[str, ...]
    _opened: dict[int, OpenLeaf] = field(default_factory=dict, init=False, repr=False)

    def open_leaf(self, place: int) -> OpenLeaf:
        """Open a leaf, and keep it open: its rows are often fetched soon after the search."""
        leaf = self._opened.get(place)
        if leaf is None:
            leaf = OpenLeaf.of(self.scans[place], self._extra_columns())
            if len(self._opened) < _MAX_OPEN:
                self._opened[place] = leaf
        return leaf

    def _extra_columns(self) -> tuple[str, ...]:
        """Return the result columns to read along: all if they are short and leaves are few."""
        if len(self.scans) > _FEW_LEAVES:
            return ()
        kinds = select_schema(self.schema, self.columns).types
        return self.columns if all(map(is_small_type, kinds)) else ()

    def __getstate__(self) -> tuple[Any, ...]:
        return self.scans, self.schema, self.columns

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(("scans", "schema", "columns"), state, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_opened", {})

    def find_nearest(self, query: VectorQuery) -> list[Hits]:
        """Find the nearest rows of each query vector."""
        best = [TopK(query.k, min_distance_of(query.metric)) for _ in query.queries]

        def run(place: int) -> None:
            if any(each.can_include(place) for each in best):
                query.search(self.open_leaf(place), place, best)

        map_parallel(run, range(len(self.scans)), SCAN_THREADS)
        return [Hits(each.leaves, each.rows, {DISTANCE: each.values}) for each in best]

    def find_matching(self, query: TextQuery, k: int) -> Hits:
        """Find the rows that match a full-text query best."""
        best = rank_texts(self.scans, query, k)
        return Hits(best.leaves, best.rows, {SCORE: -best.values})

    def fetch_rows(self, hits: Hits) -> pa.Table:
        """Fetch the rows of some hits, in their order, with their distances and scores."""
        wanted = select_schema(self.schema, self.columns)
        places, start = np.unique(hits.leaves, return_inverse=True)

        def take(number: int) -> pa.Table:
            chosen = np.flatnonzero(start == number)
            leaf = self.open_leaf(int(places[number]))
            return leaf.take(hits.rows[chosen], self.columns).cast(wanted)

        parts = map_parallel(take, range(len(places)), SCAN_THREADS)
        found = pa.concat_tables(parts) if parts else wanted.empty_table()
        # The parts are in leaf order: restore the order of the hits.
        order = np.empty(len(hits), np.int64)
        order[np.argsort(start, kind="stable")] = np.arange(len(hits))
        found = found.take(pa.array(order)) if len(places) > 1 else found
        for name, values in hits.measures.items():
            found = found.append_column(pa.field(name, pa.float32()), _to_float32(values))
        return found


def _to_float32(values: np.ndarray) -> pa.Array:
    """Return float32 values, with NULL for NaN."""
    return pa.array(values.astype(np.float32), pa.float32(), from_pandas=True)


def search_leaves(
    state: TableState,
    column: str,
    query: Any,
    k: int,
    where: str | None,
    columns: Sequence[str] | None,
    options: SearchOptions,
) -> pa.Table:
    """Return the k best rows of the partitions that a predicate needs."""
    check_count("k", k)
    searcher = make_searcher(state, where, columns)
    properties = state.properties
    found = resolve_search_column(column, properties.schema)
    with translate_errors(f"search {state.root}"):
        if is_searchable_text(found.type):
            if options.hybrid is not None:
                raise InvalidArgument(
                    f"Cannot search column {found.name!r} ({found.type}) with hybrid: expected a "
                    "vector column first, and the text column in hybrid."
                )
            return searcher.fetch_rows(
                searcher.find_matching(make_text_query(found, query, properties, options), k)
            )
        looked_for = make_vector_query(found, [query], k, properties, options)
        if options.hybrid is None:
            (hits,) = searcher.find_nearest(looked_for)
            return searcher.fetch_rows(hits)
        text_field = resolve_search_column(options.hybrid[0], properties.schema)
        words = make_text_query(text_field, options.hybrid[1], properties, options)
        deep = max(k, _FUSION_DEPTH)
        (near,) = searcher.find_nearest(replace(looked_for, k=deep))
        both = fuse_rankings(near, searcher.find_matching(words, deep), options.rrf, k, RELEVANCE)
        return searcher.fetch_rows(both)


def make_searcher(state: TableState, where: str | None, columns: Sequence[str] | None) -> Searcher:
    """Plan a search: the leaves that a predicate needs, and the columns of a result."""
    schema, spec = state.properties.schema, state.properties.spec
    names = resolve_columns(columns, schema)
    if taken := [name for name in _RESULT_COLUMNS if name in schema.names]:
        raise SchemaMismatch(
            f"Cannot search a table with a column {taken[0]!r}: a search returns its distances and "
            "scores under that name. Rename the column."
        )
    sources = list_source_columns(spec, schema) if spec.fields else []
    names = tuple(dict.fromkeys([*names, *sources]))
    scans = tuple(make_scan(state, where, names, None).leaf_scans())
    return Searcher(scans, schema, names)


def make_vector_query(
    column: pa.Field, queries: Sequence[Any], k: int, properties: Properties, options: SearchOptions
) -> VectorQuery:
    """Build a vector query; the default metric is that of the declared index, if any."""
    if not is_vector(column.type):
        raise SchemaMismatch(
            f"Cannot search column {column.name!r} ({column.type}): expected text, or a fixed-size "
            "list of float16, float32, float64 or uint8."
        )
    field_id = properties.schema.id_of(tuple(column.name.split(".")))
    metrics = [each.metric for each in properties.indexes if each.field_id == field_id]
    usual = next((each for each in metrics if each), metrics_of(column.type)[0])
    metric = resolve_metric(usual if options.metric is None else options.metric, column)
    vectors = np.array([to_query_vector(query, column, metric) for query in queries])
    use = IndexOptions(options.use_index, options.nprobes, options.refine_factor, options.ef)
    return VectorQuery(column.name, field_id, metric, k, vectors, use)


def make_text_query(
    column: pa.Field, query: Any, properties: Properties, options: SearchOptions
) -> TextQuery:
    """Build a full-text query, tokenized as by the declared index."""
    if not isinstance(query, str):
        raise InvalidArgument(
            f"Cannot search column {column.name!r} ({column.type}) by {format_value(query)}: "
            "expected text."
        )
    if not is_searchable_text(column.type):
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
        parse_query(query, tokenizer),
        tokenizer,
        options.operator == "and",
        options.use_index,
    )


def rank_texts(scans: Sequence[LeafScan], query: TextQuery, k: int) -> TopK:
    """Return the k best matches with their negated scores: the best is the smallest.

    Scores use the statistics of all rows of all these leaves, so that scores of different leaves
    are comparable, whether a leaf has an index or not.
    """
    best = TopK(k)
    if not query.terms:
        return best

    def load(place: int) -> LeafDocuments:
        return read_indexed_documents(OpenLeaf.of(scans[place]), place, query)

    def read(place: int) -> Iterator[UncountedTexts]:
        return read_uncounted_texts(OpenLeaf.of(scans[place]), place, query, leaves[place])

    leaves = map_parallel(load, range(len(scans)), SCAN_THREADS)
    documents = sum((each.indexed for each in leaves), CorpusStats())
    counted = [part for each in leaves for part in each.counted]
    unread = [
        place
        for place, each in enumerate(leaves)
        if each.fragments != () or each.has_unusable_scores
    ]
    for more, parts in count_documents(read_in_order(unread, SCAN_THREADS, read), query):
        documents += more
        counted += parts
    containing = sum(
        (np.count_nonzero(part.counts, axis=0) for part in counted),
        np.zeros(len(query.terms), np.int64),
    )

    def offer(part: CountedDocuments) -> None:
        matched = np.ones(len(part.ids), bool)
        if query.every_term:
            matched &= (part.counts > 0).all(axis=1)
        if scans[part.leaf_number].predicate != TRUE and matched.any():
            leaf = OpenLeaf.of(scans[part.leaf_number])
            allowed = np.concatenate([ids for _, ids in leaf.read_filtered([])] or [part.ids[:0]])
            matched &= np.isin(part.ids, allowed)
        values = score_documents(part.counts[matched], part.lengths[matched], documents, containing)
        best.add(-values.astype(np.float32), part.leaf_number, part.ids[matched])

    map_parallel(offer, counted, SCAN_THREADS)
    return best
