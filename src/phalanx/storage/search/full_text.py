"""The documents of a leaf for a full-text search: by its index where it has one, else its texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import lance
import numpy as np
import pyarrow as pa

from phalanx.model.best import RowIds
from phalanx.model.search.bm25 import Documents, Numbers, frequencies
from phalanx.storage.lance.scanning import batches_of, table_of
from phalanx.storage.lance.version_cache import known_table
from phalanx.storage.leaf_indexes import LeafIndex, indexes_of
from phalanx.storage.search.open_leaf import OpenLeaf
from phalanx.storage.search.tokenizer import Tokenizer, lengths_in, tally, term_scores

_FRAGMENT_BITS = np.uint64(32)
# So many texts are taken apart at once.
_TEXTS = 50_000


@dataclass(frozen=True, slots=True)
class TextQuery:
    """What is looked for in a column of texts: terms, each with the text that means it."""

    column: str
    field_id: int
    terms: tuple[tuple[str, str], ...]
    tokenizer: Tokenizer
    every_term: bool
    use_index: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """Documents of a leaf with a term of the query: how long each is, and which terms it has."""

    place: int
    ids: RowIds
    lengths: Numbers
    counts: Numbers


@dataclass(frozen=True, slots=True)
class Uncounted:
    """Documents of a leaf that have to be taken apart; `are_new` if no statistics have them yet."""

    place: int
    ids: RowIds
    texts: pa.Array
    are_new: bool


@dataclass(frozen=True, slots=True)
class LeafDocuments:
    """What the index of a leaf tells, and what it does not.

    The texts of some `fragments` (None: of all) have to be taken apart; and those that the index
    finds, where it only finds them.
    """

    known: Documents
    counted: tuple[Counted, ...] = ()
    fragments: tuple[int, ...] | None = ()
    found: bool = False


def documents_of(leaf: OpenLeaf, place: int, query: TextQuery) -> LeafDocuments:
    """What is known of all documents of a leaf, whatever else is looked for in a row.

    Statistics are of all rows, and so do not depend on what a row must be besides.
    """
    index = _index(leaf, query)
    if index is None:
        return LeafDocuments(Documents(), fragments=None)
    fragments = leaf.dataset.get_fragments()
    covered = index.covered
    others = tuple(each.fragment_id for each in fragments if each.fragment_id not in covered)
    live = _live_lengths(leaf, index, fragments)
    documents = Documents(live.num_rows, int(live.column(1).to_numpy().sum()))
    counted = None
    if not any(each.num_deletions for each in fragments if each.fragment_id in covered):
        counted = _counted(leaf.dataset, place, query, live, documents)
    if counted is None:
        return LeafDocuments(documents, (), others, True)
    return LeafDocuments(documents, (counted,), others)


def texts_of(
    leaf: OpenLeaf, place: int, query: TextQuery, told: LeafDocuments
) -> Iterator[Uncounted]:
    """The texts of a leaf that have to be taken apart, as they are read."""
    if told.found:
        yield from _found_texts(leaf.dataset, place, query)
    chosen = None
    if told.fragments is not None:
        wanted = set(told.fragments)
        chosen = [each for each in leaf.dataset.get_fragments() if each.fragment_id in wanted]
    if chosen is None or chosen:
        for batch, ids in leaf.filtered([query.column], chosen, all_rows=True):
            yield Uncounted(place, ids, batch.column(0), True)


def taken_apart(
    texts: Iterable[Uncounted], query: TextQuery
) -> Iterator[tuple[Documents, list[Counted]]]:
    """The documents with a term among some texts, and what the new ones add to the statistics."""
    chunk: list[Uncounted] = []
    size = 0
    for each in texts:
        chunk.append(each)
        size += len(each.ids)
        if size >= _TEXTS:
            yield _tallied(chunk, query)
            chunk, size = [], 0
    if chunk:
        yield _tallied(chunk, query)


def _tallied(chunk: Sequence[Uncounted], query: TextQuery) -> tuple[Documents, list[Counted]]:
    column = pa.concat_arrays([each.texts.cast(pa.large_string()) for each in chunk])
    found = tally(column, query.terms, query.tokenizer)
    documents, counted, start = Documents(), [], 0
    for each in chunk:
        lengths = found.lengths[start : start + len(each.ids)]
        counts = found.counts[start : start + len(each.ids)]
        start += len(each.ids)
        if each.are_new:
            documents += Documents(int(np.count_nonzero(lengths)), int(lengths.sum()))
        rows = np.flatnonzero(counts.any(axis=1))
        if len(rows):
            counted.append(Counted(each.place, each.ids[rows], lengths[rows], counts[rows]))
    return documents, counted


def _index(leaf: OpenLeaf, query: TextQuery) -> LeafIndex | None:
    if not query.use_index or not leaf.is_plain or leaf.dataset.has_stable_row_ids:
        return None
    if leaf.scan.location.has_reused_paths:
        # What is known of a version there may be that of another table.
        return None
    for index in indexes_of(leaf.dataset):
        if index.field_id == query.field_id and query.tokenizer.is_of(index):
            return index
    return None


def _live_lengths(
    leaf: OpenLeaf, index: LeafIndex, fragments: Sequence[lance.LanceFragment]
) -> pa.Table:
    """The documents that an index covers and the leaf still has, by row id, with their lengths."""

    def read() -> pa.Table:
        found = pa.concat_tables(
            lengths_in(
                f"{leaf.scan.location.uri}/_indices/{segment.uuid}",
                leaf.scan.location.storage_options,
            )
            for segment in index.segments
        )
        ids = found.column(0).to_numpy()
        covered = [each for each in fragments if each.fragment_id in index.covered]
        numbers = np.array([each.fragment_id for each in covered], np.uint64)
        alive = np.isin(ids >> _FRAGMENT_BITS, numbers)
        if torn := [each for each in covered if each.num_deletions]:
            rows = table_of(leaf.dataset, columns=[], fragments=torn, with_row_id=True)
            torn_numbers = np.array([each.fragment_id for each in torn], np.uint64)
            inside = np.isin(ids >> _FRAGMENT_BITS, torn_numbers)
            alive &= ~inside | np.isin(ids, rows.column("_rowid").to_numpy())
        return found.filter(pa.array(alive)).sort_by("_rowid")

    return known_table(leaf.dataset, ("lengths", index.name), read)


def _counted(
    dataset: lance.LanceDataset,
    place: int,
    query: TextQuery,
    live: pa.Table,
    documents: Documents,
) -> Counted | None:
    """The terms by the scores that the index gives; None where these tell nothing."""
    all_ids, all_lengths = live.column(0).to_numpy(), live.column(1).to_numpy().astype(np.int64)
    found = []
    for _, text in query.terms:
        ids, score = term_scores(dataset, query.column, text)
        rows = np.searchsorted(all_ids, ids)
        if len(ids) and (rows.max() >= len(all_ids) or (all_ids[rows] != ids).any()):
            return None
        often = frequencies(score, all_lengths[rows], documents)
        if often is None:
            return None
        found.append((rows, often))
    rows = np.unique(np.concatenate([rows for rows, _ in found]))
    counts = np.zeros((len(rows), len(found)), np.int64)
    for term, (places, often) in enumerate(found):
        counts[np.searchsorted(rows, places), term] = often
    return Counted(place, all_ids[rows], all_lengths[rows], counts)


def _found_texts(dataset: lance.LanceDataset, place: int, query: TextQuery) -> Iterator[Uncounted]:
    """The texts that the index finds: it counts rows that are deleted, and its scores do not do."""
    text = " ".join(text for _, text in query.terms)
    found = batches_of(
        dataset,
        full_text_query={"query": text, "columns": [query.column]},
        columns=[query.column],
        with_row_id=True,
        fast_search=True,
    )
    for batch in found:
        ids = batch.column("_rowid").to_numpy()
        yield Uncounted(place, ids, batch.column(query.column), False)
