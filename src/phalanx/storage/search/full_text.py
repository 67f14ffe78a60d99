"""The documents of a leaf for a full-text search: by its index, or else by its texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import lance
import numpy as np
import pyarrow as pa

from phalanx.model.search.bm25 import CorpusStats, CountArray, recover_term_counts
from phalanx.model.search.ranking import RowIdArray
from phalanx.storage.lance.scanning import scan_batches, scan_table
from phalanx.storage.lance.version_cache import compute_table_once
from phalanx.storage.leaf.indexes import LeafIndex, list_indexes
from phalanx.storage.search.open_leaf import OpenLeaf
from phalanx.storage.search.tokenizer import (
    Tokenizer,
    count_terms,
    read_document_lengths,
    score_term,
)

_FRAGMENT_BITS = np.uint64(32)
# The number of texts to tokenize at once.
_CHUNK_TEXTS = 50_000


@dataclass(frozen=True, slots=True)
class TextQuery:
    """Terms to search for in a text column, each with a text that has only this term."""

    column: str
    field_id: int
    terms: tuple[tuple[str, str], ...]
    tokenizer: Tokenizer
    every_term: bool
    use_index: bool


@dataclass(frozen=True, slots=True)
class CountedDocuments:
    """Documents of a leaf with a term of the query: their lengths and term counts."""

    leaf_number: int
    ids: RowIdArray
    lengths: CountArray
    counts: CountArray


@dataclass(frozen=True, slots=True)
class UncountedTexts:
    """Documents of a leaf that must be tokenized; `are_new` if no statistics include them."""

    leaf_number: int
    ids: RowIdArray
    texts: pa.Array
    are_new: bool


@dataclass(frozen=True, slots=True)
class LeafDocuments:
    """The statistics and counts from a leaf's index, and what must be tokenized.

    These are the texts of some `fragments` (None: of all). If `has_unusable_scores`, they are also
    the texts that the index finds.
    """

    indexed: CorpusStats
    counted: tuple[CountedDocuments, ...] = ()
    fragments: tuple[int, ...] | None = ()
    has_unusable_scores: bool = False


def read_indexed_documents(leaf: OpenLeaf, leaf_number: int, query: TextQuery) -> LeafDocuments:
    """Return what a leaf's index stores of all its documents.

    Statistics include all rows, so they do not depend on the filter of the search.
    """
    index = _find_index(leaf, query)
    if index is None:
        return LeafDocuments(CorpusStats(), fragments=None)
    fragments = leaf.dataset.get_fragments()
    covered = index.covered_fragments
    others = tuple(each.fragment_id for each in fragments if each.fragment_id not in covered)
    live = _live_lengths(leaf, index, fragments)
    documents = CorpusStats(live.num_rows, int(live.column(1).to_numpy().sum()))
    counted = None
    if not any(each.num_deletions for each in fragments if each.fragment_id in covered):
        counted = _count_by_scores(leaf.dataset, leaf_number, query, live, documents)
    if counted is None:
        return LeafDocuments(documents, (), others, True)
    return LeafDocuments(documents, (counted,), others)


def read_uncounted_texts(
    leaf: OpenLeaf, leaf_number: int, query: TextQuery, documents: LeafDocuments
) -> Iterator[UncountedTexts]:
    """Yield the texts of a leaf that must be tokenized."""
    if documents.has_unusable_scores:
        yield from _read_matching_texts(leaf.dataset, leaf_number, query)
    chosen = None
    if documents.fragments is not None:
        wanted = set(documents.fragments)
        chosen = [each for each in leaf.dataset.get_fragments() if each.fragment_id in wanted]
    if chosen is None or chosen:
        for batch, ids in leaf.read_filtered([query.column], chosen, all_rows=True):
            yield UncountedTexts(leaf_number, ids, batch.column(0), True)


def count_documents(
    texts: Iterable[UncountedTexts], query: TextQuery
) -> Iterator[tuple[CorpusStats, list[CountedDocuments]]]:
    """Tokenize texts. Yield the documents with a term, and the statistics of the new ones."""
    chunk: list[UncountedTexts] = []
    size = 0
    for each in texts:
        chunk.append(each)
        size += len(each.ids)
        if size >= _CHUNK_TEXTS:
            yield _count_chunk(chunk, query)
            chunk, size = [], 0
    if chunk:
        yield _count_chunk(chunk, query)


def _count_chunk(
    chunk: Sequence[UncountedTexts], query: TextQuery
) -> tuple[CorpusStats, list[CountedDocuments]]:
    column = pa.concat_arrays([each.texts.cast(pa.large_string()) for each in chunk])
    found = count_terms(column, query.terms, query.tokenizer)
    documents, counted, start = CorpusStats(), [], 0
    for each in chunk:
        lengths = found.lengths[start : start + len(each.ids)]
        counts = found.counts[start : start + len(each.ids)]
        start += len(each.ids)
        if each.are_new:
            documents += CorpusStats(int(np.count_nonzero(lengths)), int(lengths.sum()))
        rows = np.flatnonzero(counts.any(axis=1))
        if len(rows):
            counted.append(
                CountedDocuments(each.leaf_number, each.ids[rows], lengths[rows], counts[rows])
            )
    return documents, counted


def _find_index(leaf: OpenLeaf, query: TextQuery) -> LeafIndex | None:
    if not query.use_index or not leaf.is_plain or leaf.dataset.has_stable_row_ids:
        return None
    if leaf.scan.location.has_reused_paths:
        # A cached version may belong to another table at the same path.
        return None
    for index in list_indexes(leaf.dataset):
        if index.field_id == query.field_id and query.tokenizer.is_used_by(index):
            return index
    return None


def _live_lengths(
    leaf: OpenLeaf, index: LeafIndex, fragments: Sequence[lance.LanceFragment]
) -> pa.Table:
    """Return the row ids and lengths of the documents that an index covers and the leaf has."""

    def read() -> pa.Table:
        found = pa.concat_tables(
            read_document_lengths(
                f"{leaf.scan.location.uri}/_indices/{segment.uuid}",
                leaf.scan.location.storage_options,
            )
            for segment in index.segments
        )
        ids = found.column(0).to_numpy()
        covered = [each for each in fragments if each.fragment_id in index.covered_fragments]
        numbers = np.array([each.fragment_id for each in covered], np.uint64)
        is_live = np.isin(ids >> _FRAGMENT_BITS, numbers)
        if partial := [each for each in covered if each.num_deletions]:
            rows = scan_table(leaf.dataset, columns=[], fragments=partial, with_row_id=True)
            partial_ids = np.array([each.fragment_id for each in partial], np.uint64)
            inside = np.isin(ids >> _FRAGMENT_BITS, partial_ids)
            is_live &= ~inside | np.isin(ids, rows.column("_rowid").to_numpy())
        return found.filter(pa.array(is_live)).sort_by("_rowid")

    return compute_table_once(leaf.dataset, ("lengths", index.name), read)


def _count_by_scores(
    dataset: lance.LanceDataset,
    leaf_number: int,
    query: TextQuery,
    live: pa.Table,
    documents: CorpusStats,
) -> CountedDocuments | None:
    """Derive term counts from the scores of the index; None if the scores do not allow it."""
    all_ids, all_lengths = live.column(0).to_numpy(), live.column(1).to_numpy().astype(np.int64)
    found = []
    for _, text in query.terms:
        ids, score = score_term(dataset, query.column, text)
        rows = np.searchsorted(all_ids, ids)
        if len(ids) and (rows.max() >= len(all_ids) or (all_ids[rows] != ids).any()):
            return None
        term_counts = recover_term_counts(score, all_lengths[rows], documents)
        if term_counts is None:
            return None
        found.append((rows, term_counts))
    rows = np.unique(np.concatenate([rows for rows, _ in found]))
    counts = np.zeros((len(rows), len(found)), np.int64)
    for term, (matches, term_counts) in enumerate(found):
        counts[np.searchsorted(rows, matches), term] = term_counts
    return CountedDocuments(leaf_number, all_ids[rows], all_lengths[rows], counts)


def _read_matching_texts(
    dataset: lance.LanceDataset, leaf_number: int, query: TextQuery
) -> Iterator[UncountedTexts]:
    """Yield the texts that the index finds: its scores include deleted rows."""
    text = " ".join(text for _, text in query.terms)
    found = scan_batches(
        dataset,
        full_text_query={"query": text, "columns": [query.column]},
        columns=[query.column],
        with_row_id=True,
        fast_search=True,
    )
    for batch in found:
        ids = batch.column("_rowid").to_numpy()
        yield UncountedTexts(leaf_number, ids, batch.column(query.column), False)
