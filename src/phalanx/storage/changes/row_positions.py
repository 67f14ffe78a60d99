"""Where rows are, whichever version lists them: the data file, and the place in it.

Names of files are given once. Numbers of fragments are not: those of two writers may be the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.storage.lance.scanning import batches_of
from phalanx.storage.leaf.leaf import OFFSET_BITS, OFFSET_MASK

Codes = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]
_SHIFT = np.int64(32)


def file_of(fragment: FragmentMetadata) -> str:
    """The file that tells a fragment from all others in a version of a leaf."""
    return fragment.files[0].path


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Rows by their files, each file a number in `files`, and their places there."""

    files: tuple[str, ...]
    codes: Codes
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def none(cls) -> Places:
        """No rows."""
        return cls((), np.empty(0, np.int64), np.empty(0, np.uint32))

    @classmethod
    def of(cls, files: Sequence[str | None] | pa.Array, rows: Iterable[int]) -> Places:
        """Rows by the name of the file that each is in."""
        names = pa.array(files, pa.string()).dictionary_encode()
        codes = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(tuple(names.dictionary.to_pylist()), codes, np.asarray(rows, np.uint32))

    @classmethod
    def at(cls, fragments: Iterable[FragmentMetadata], addresses: npt.NDArray[np.uint64]) -> Places:
        """Rows by their addresses in a version of a leaf, which has these fragments."""
        known = sorted((fragment.id, file_of(fragment)) for fragment in fragments)
        numbers = np.array([number for number, _ in known], np.uint64)
        codes = np.searchsorted(numbers, addresses >> OFFSET_BITS)
        rows = (addresses & OFFSET_MASK).astype(np.uint32)
        return cls(tuple(file for _, file in known), codes.astype(np.int64), rows)

    @classmethod
    def written(cls, fragments: Sequence[FragmentMetadata]) -> Places:
        """All rows of files that were just written, in the order in which they were."""
        counts = [int(fragment.physical_rows) for fragment in fragments]
        codes = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        rows = [np.arange(count, dtype=np.uint32) for count in counts]
        files = tuple(file_of(fragment) for fragment in fragments)
        return cls(files, codes, np.concatenate([np.empty(0, np.uint32), *rows]))

    @classmethod
    def all_of(cls, parts: Iterable[Places]) -> Places:
        """The rows of several, one after the other."""
        files: dict[str, int] = {}
        codes, rows = [np.empty(0, np.int64)], [np.empty(0, np.uint32)]
        for part in parts:
            codes.append(_renumbering(part.files, files)[part.codes])
            rows.append(part.rows)
        return cls(tuple(files), np.concatenate(codes), np.concatenate(rows))

    def take(self, places: Codes | Mask) -> Places:
        """Some of the rows."""
        return Places(self.files, self.codes[places], self.rows[places])

    def positions_in(self, others: Places) -> Codes:
        """For each row where it is among others, which are all different; -1 where it is not."""
        if not len(others):
            return np.full(len(self), -1, np.int64)
        files = {file: code for code, file in enumerate(others.files)}
        wanted = self._keys(_renumbering(self.files, files))
        known = others._keys(np.arange(len(others.files), dtype=np.int64))
        order = np.argsort(known, kind="stable")
        found = np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)
        return np.where(known[order[found]] == wanted, order[found], -1).astype(np.int64)

    def are_in(self, files: Iterable[str]) -> Mask:
        """For each row whether it is in one of these files."""
        wanted = set(files)
        held = np.array([file in wanted for file in self.files], np.bool_)
        return held[self.codes] if len(held) else np.zeros(len(self), np.bool_)

    def order(self) -> Codes:
        """What sorts the rows by file and place."""
        ranks = np.argsort(np.argsort(np.array(self.files, np.str_)))
        return self.order_by(ranks)

    def order_by(self, ranks: Codes) -> Codes:
        """What sorts the rows by the rank of each file, then by place."""
        # One key, and a sort that is quick with what comes in order, as rows mostly do.
        return np.argsort(self._keys(ranks), kind="stable")

    def _keys(self, renumbered: Codes) -> Codes:
        codes = renumbered[self.codes] if len(renumbered) else self.codes
        return (codes << _SHIFT) | self.rows.astype(np.int64)


def _renumbering(files: Sequence[str], known: dict[str, int]) -> Codes:
    """The number of each file among those that are known, from now on with these."""
    return np.array([known.setdefault(file, len(known)) for file in files], np.int64)


def live_places(dataset: lance.LanceDataset, fragment: FragmentMetadata) -> Rows:
    """The places of the rows in a fragment that are not deleted, in order."""
    if fragment.deletion_file is None:
        return np.arange(fragment.physical_rows, dtype=np.uint32)
    chosen = [each for each in dataset.get_fragments() if each.fragment_id == fragment.id]
    batches = batches_of(
        dataset, columns=[], fragments=chosen, with_row_address=True, scan_in_order=True
    )
    found = [
        (batch.column("_rowaddr").to_numpy() & OFFSET_MASK).astype(np.uint32) for batch in batches
    ]
    return np.concatenate([np.empty(0, np.uint32), *found])
