"""Texts tokenized as Lance's full-text indexes do: the terms of a query and their counts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.file import LanceFileReader

from phalanx.errors import PhalanxError
from phalanx.model.search.bm25 import CorpusStats, CountArray, recover_term_counts
from phalanx.model.search.indexes import INVERTED
from phalanx.model.search.ranking import RowIdArray
from phalanx.storage.lance.failures import translate_read_errors
from phalanx.storage.lance.scanning import scan_table
from phalanx.storage.leaf.indexes import LeafIndex

_COLUMN = "text"
# Options of an index that do not affect tokenization.
_STORAGE_OPTIONS = frozenset({"lance_tokenizer", "with_position", "block_size"})


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The options of an INVERTED index that control tokenization and are not defaults."""

    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Tokenizer:
        """Return the tokenizer of an index with these options."""
        chosen = {name: value for name, value in options.items() if name not in _STORAGE_OPTIONS}
        frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()}
        return cls(tuple(sorted(frozen.items())))

    @property
    def keywords(self) -> dict[str, Any]:
        """The options as keyword arguments of Lance."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.options}

    def terms(self, text: str) -> tuple[str, ...]:
        """Return the distinct terms of a text, in order of first occurrence."""
        found = lance.tokenize(text, **self.keywords)
        return tuple(dict.fromkeys(token.text for token in found))

    def is_used_by(self, index: LeafIndex) -> bool:
        """Whether an index tokenizes in this way."""
        return index.kind == INVERTED and _settings_in(index.details) == _read_settings(self)


@lru_cache(maxsize=64)
def _read_settings(tokenizer: Tokenizer) -> tuple[tuple[str, str], ...]:
    """Return all settings of the tokenizer, including defaults, from an index that has them."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = lance.write_dataset(pa.table({_COLUMN: ["a"]}), f"{folder}/texts")
        dataset.create_scalar_index(_COLUMN, "INVERTED", **tokenizer.keywords)
        (index,) = lance.dataset(dataset.uri).describe_indices()
        return _settings_in(index.details)


def _settings_in(details: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted((name, repr(each)) for name, each in details.items() if name not in _STORAGE_OPTIONS)
    )


@lru_cache(maxsize=256)
def parse_query(text: str, tokenizer: Tokenizer) -> tuple[tuple[str, str], ...]:
    """Return the terms of a query, each with a text that yields only this term.

    An index tokenizes the texts it is asked for, and tokenizing a term may change it again.
    """
    words = [*text.split(), text]
    found = []
    for term in tokenizer.terms(text):
        own = next((each for each in (term, *words) if tokenizer.terms(each) == (term,)), None)
        if own is None:
            raise PhalanxError(
                f"Cannot search for {text!r}: the index's tokenizer returns the term {term!r}, "
                "which cannot be looked up alone. Use a tokenizer with min_ngram_length equal to "
                "max_ngram_length, or other words."
            )
        found.append((term, own))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class TermCounts:
    """The number of tokens of some documents, and how often each term occurs in them."""

    lengths: CountArray
    counts: CountArray

    @property
    def documents(self) -> CorpusStats:
        """The statistics of all documents together."""
        return CorpusStats(int(np.count_nonzero(self.lengths)), int(self.lengths.sum()))


def count_terms(
    texts: pa.Array, terms: Sequence[tuple[str, str]], tokenizer: Tokenizer
) -> TermCounts:
    """Count the terms of documents by a temporary full-text index of Lance."""
    counts = np.zeros((len(texts), len(terms)), np.int64)
    lengths = np.zeros(len(texts), np.int64)
    if not len(texts):
        return TermCounts(lengths, counts)
    # Add as many short documents: scores of a term that every document has lack precision.
    filler = _find_filler_word({term for term, _ in terms}, tokenizer)
    fill = pa.array([filler] * len(texts), pa.large_string())
    column = pa.concat_arrays([texts.cast(pa.large_string()), fill])
    with tempfile.TemporaryDirectory() as folder:
        dataset = lance.write_dataset(pa.table({_COLUMN: column}), f"{folder}/texts")
        dataset.create_scalar_index(_COLUMN, "INVERTED", **tokenizer.keywords)
        dataset = lance.dataset(dataset.uri)
        (index,) = dataset.describe_indices()
        documents, known = CorpusStats(), []
        for segment in index.segments:
            found = read_document_lengths(f"{dataset.uri}/_indices/{segment.uuid}", None)
            documents += CorpusStats(len(found), int(found.column(1).to_numpy().sum()))
            known.append(found)
        found = pa.concat_tables(known)
        all_lengths = np.zeros(len(column), np.int64)
        all_lengths[found.column(0).to_numpy()] = found.column(1).to_numpy()
        for position, (_, text) in enumerate(terms):
            rows, score = score_term(dataset, _COLUMN, text)
            term_counts = recover_term_counts(score, all_lengths[rows], documents)
            if term_counts is None:
                raise PhalanxError(
                    f"Cannot count {text!r}: this version of Phalanx does not know how Lance "
                    f"{lance.__version__} scores full-text matches. Use pylance 14."
                )
            counts[rows, position] = term_counts
    lengths[:] = all_lengths[: len(texts)]
    return TermCounts(lengths, counts)


def _find_filler_word(terms: set[str], tokenizer: Tokenizer) -> str:
    """Return a word with at least one token, none of which is one of the terms."""
    for number in range(1000):
        word = f"zq{number}x"
        found = tokenizer.terms(word)
        if found and not terms.intersection(found):
            return word
    raise PhalanxError(
        f"Cannot tokenize texts with {tokenizer.keywords}: it leaves no word of any text. Use "
        "other tokenizer options."
    )


def score_term(
    dataset: lance.LanceDataset, column: str, text: str
) -> tuple[RowIdArray, npt.NDArray[np.float32]]:
    """Return the row ids of all indexed rows with a term, and their scores for it."""
    found = scan_table(
        dataset,
        full_text_query={"query": text, "columns": [column]},
        columns=["_score"],
        with_row_id=True,
        fast_search=True,
    )
    return found.column("_rowid").to_numpy(), found.column("_score").to_numpy()


def read_document_lengths(segment: str, storage_options: dict[str, str] | None) -> pa.Table:
    """Read the row ids and the token counts of the documents in an index segment."""

    def open_file(name: str) -> LanceFileReader:
        return LanceFileReader(f"{segment}/{name}.lance", storage_options=storage_options)

    with translate_read_errors(f"read the index {segment}"):
        head = open_file("metadata").metadata().schema.metadata or {}
        if b"partitions" not in head:
            raise ValueError("its metadata does not list its partitions")
        numbers = json.loads(head[b"partitions"])
        parts = [open_file(f"part_{number}_docs").read_all().to_table() for number in numbers]
        return pa.concat_tables([part.select(["_rowid", "_num_tokens"]) for part in parts])
