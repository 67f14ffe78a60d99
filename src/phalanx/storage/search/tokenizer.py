"""Texts as Lance's full-text indexes take them apart: the terms of a query, and how often each is
in every document.
"""

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
from phalanx.model.best import RowIds
from phalanx.model.search.bm25 import Documents, Numbers, frequencies
from phalanx.storage.lance.failures import reading
from phalanx.storage.lance.scanning import table_of
from phalanx.storage.leaf_indexes import INVERTED, LeafIndex

_COLUMN = "text"
# What an index may have beside the way it takes texts apart.
_OF_STORAGE = frozenset({"lance_tokenizer", "with_position", "block_size"})


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """How texts are taken apart: options of an INVERTED index, those that are not its defaults."""

    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer of an index with these options."""
        chosen = {name: value for name, value in options.items() if name not in _OF_STORAGE}
        frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()}
        return cls(tuple(sorted(frozen.items())))

    @property
    def keywords(self) -> dict[str, Any]:
        """The options as Lance takes them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.options}

    def terms(self, text: str) -> tuple[str, ...]:
        """The different terms of a text, in the order in which they first come."""
        found = lance.tokenize(text, **self.keywords)
        return tuple(dict.fromkeys(token.text for token in found))

    def is_of(self, index: LeafIndex) -> bool:
        """Whether an index takes texts apart in this way."""
        return index.kind == INVERTED and _told(index.details) == _settings(self)


@lru_cache(maxsize=64)
def _settings(tokenizer: Tokenizer) -> tuple[tuple[str, str], ...]:
    """All settings of the tokenizer, defaults too, as an index that has them tells them."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = lance.write_dataset(pa.table({_COLUMN: ["a"]}), f"{folder}/texts")
        dataset.create_scalar_index(_COLUMN, "INVERTED", **tokenizer.keywords)
        (index,) = lance.dataset(dataset.uri).describe_indices()
        return _told(index.details)


def _told(details: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted((name, repr(each)) for name, each in details.items() if name not in _OF_STORAGE)
    )


@lru_cache(maxsize=256)
def asked(text: str, tokenizer: Tokenizer) -> tuple[tuple[str, str], ...]:
    """The terms of a query, each with a text that is this term and nothing else.

    An index takes the texts that it is asked for apart as it does with all: what is left of a
    word may be changed again.
    """
    words = [*text.split(), text]
    found = []
    for term in tokenizer.terms(text):
        own = next((each for each in (term, *words) if tokenizer.terms(each) == (term,)), None)
        if own is None:
            raise PhalanxError(
                f"Cannot search for {text!r}: the index's tokenizer makes of it {term!r}, which "
                "cannot be looked up by itself. Use a tokenizer with min_ngram_length equal to "
                "max_ngram_length, or other words."
            )
        found.append((term, own))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Tally:
    """For some documents how many tokens each has, and how often each term is among them."""

    lengths: Numbers
    counts: Numbers

    @property
    def documents(self) -> Documents:
        """What they are together."""
        return Documents(int(np.count_nonzero(self.lengths)), int(self.lengths.sum()))


def tally(texts: pa.Array, terms: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> Tally:
    """Take documents apart and count, by an index of Lance that is made for it and thrown away."""
    counts = np.zeros((len(texts), len(terms)), np.int64)
    lengths = np.zeros(len(texts), np.int64)
    if not len(texts):
        return Tally(lengths, counts)
    # As many short documents again: what every one contains would be told with too few digits.
    filler = _filler({term for term, _ in terms}, tokenizer)
    fill = pa.array([filler] * len(texts), pa.large_string())
    column = pa.concat_arrays([texts.cast(pa.large_string()), fill])
    with tempfile.TemporaryDirectory() as folder:
        dataset = lance.write_dataset(pa.table({_COLUMN: column}), f"{folder}/texts")
        dataset.create_scalar_index(_COLUMN, "INVERTED", **tokenizer.keywords)
        dataset = lance.dataset(dataset.uri)
        (index,) = dataset.describe_indices()
        documents, known = Documents(), []
        for segment in index.segments:
            found = lengths_in(f"{dataset.uri}/_indices/{segment.uuid}", None)
            documents += Documents(len(found), int(found.column(1).to_numpy().sum()))
            known.append(found)
        found = pa.concat_tables(known)
        everything = np.zeros(len(column), np.int64)
        everything[found.column(0).to_numpy()] = found.column(1).to_numpy()
        for place, (_, text) in enumerate(terms):
            rows, score = term_scores(dataset, _COLUMN, text)
            often = frequencies(score, everything[rows], documents)
            if often is None:
                raise PhalanxError(
                    f"Cannot count {text!r}: Lance {lance.__version__} scores full-text matches in "
                    "another way than this version of Phalanx knows. Use pylance 14."
                )
            counts[rows, place] = often
    lengths[:] = everything[: len(texts)]
    return Tally(lengths, counts)


def _filler(terms: set[str], tokenizer: Tokenizer) -> str:
    """A word that is one token at least, and none of the terms."""
    for number in range(1000):
        word = f"zq{number}x"
        found = tokenizer.terms(word)
        if found and not terms.intersection(found):
            return word
    raise PhalanxError(
        f"Cannot take texts apart with {tokenizer.keywords}: no word is left of any text."
    )


def term_scores(
    dataset: lance.LanceDataset, column: str, text: str
) -> tuple[RowIds, npt.NDArray[np.float32]]:
    """The ids of all rows with a term that an index covers, and their scores for it."""
    found = table_of(
        dataset,
        full_text_query={"query": text, "columns": [column]},
        columns=["_score"],
        with_row_id=True,
        fast_search=True,
    )
    return found.column("_rowid").to_numpy(), found.column("_score").to_numpy()


def lengths_in(segment: str, storage_options: dict[str, str] | None) -> pa.Table:
    """The row ids of the documents in a segment of an index, and the number of their tokens."""

    def opened(name: str) -> LanceFileReader:
        return LanceFileReader(f"{segment}/{name}.lance", storage_options=storage_options)

    with reading(f"read the index {segment}"):
        head = opened("metadata").metadata().schema.metadata or {}
        if b"partitions" not in head:
            raise ValueError("its metadata does not tell its parts")
        numbers = json.loads(head[b"partitions"])
        parts = [opened(f"part_{number}_docs").read_all().to_table() for number in numbers]
        return pa.concat_tables([part.select(["_rowid", "_num_tokens"]) for part in parts])
