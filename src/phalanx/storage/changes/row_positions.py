"""Row positions: the data file of a row and its offset there, whichever version lists it.

File names are unique. Fragment numbers are not: two writers may use the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.storage.lance.scanning import scan_batches
from phalanx.storage.leaf.leaf import OFFSET_BITS, OFFSET_MASK

Codes = npt.NDArray[np.int64]
RowOffsets = npt.NDArray[np.uint32]
RowMask = npt.NDArray[np.bool_]
_SHIFT = np.int64(32)


def data_file_of(fragment: FragmentMetadata) -> str:
    """Return the path of the file that identifies a fragment in a version of a leaf."""
    return fragment.files[0].path


@dataclass(frozen=True, slots=True, eq=False)
class RowPositions:
    """Rows by file, as codes into `files`, and by their offsets in the file."""

    files: tuple[str, ...]
    codes: Codes
    offsets: RowOffsets

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def empty(cls) -> RowPositions:
        """Return no rows."""
        return cls((), np.empty(0, np.int64), np.empty(0, np.uint32))

    @classmethod
    def of(cls, files: Sequence[str | None] | pa.Array, offsets: Iterable[int]) -> RowPositions:
        """Return rows given by their file names and offsets."""
        names = pa.array(files, pa.string()).dictionary_encode()
        codes = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(tuple(names.dictionary.to_pylist()), codes, np.asarray(offsets, np.uint32))

    @classmethod
    def from_addresses(
        cls, fragments: Iterable[FragmentMetadata], addresses: npt.NDArray[np.uint64]
    ) -> RowPositions:
        """Return rows given by their addresses in a version with these fragments."""
        known = sorted((fragment.id, data_file_of(fragment)) for fragment in fragments)
        numbers = np.array([number for number, _ in known], np.uint64)
        codes = np.searchsorted(numbers, addresses >> OFFSET_BITS)
        rows = (addresses & OFFSET_MASK).astype(np.uint32)
        return cls(tuple(file for _, file in known), codes.astype(np.int64), rows)

    @classmethod
    def from_new_files(cls, fragments: Sequence[FragmentMetadata]) -> RowPositions:
        """Return all rows of new files, in the order in which they were written."""
        counts = [int(fragment.physical_rows) for fragment in fragments]
        codes = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        rows = [np.arange(count, dtype=np.uint32) for count in counts]
        files = tuple(data_file_of(fragment) for fragment in fragments)
        return cls(files, codes, np.concatenate([np.empty(0, np.uint32), *rows]))

    @classmethod
    def concat(cls, parts: Iterable[RowPositions]) -> RowPositions:
        """Concatenate rows."""
        files: dict[str, int] = {}
        codes, rows = [np.empty(0, np.int64)], [np.empty(0, np.uint32)]
        for part in parts:
            codes.append(_renumber_files(part.files, files)[part.codes])
            rows.append(part.offsets)
        return cls(tuple(files), np.concatenate(codes), np.concatenate(rows))

    def take(self, chosen: Codes | RowMask) -> RowPositions:
        """Return the chosen rows."""
        return RowPositions(self.files, self.codes[chosen], self.offsets[chosen])

    def find_in(self, others: RowPositions) -> Codes:
        """Return the index of each row among others, which must be distinct; -1 if absent."""
        if not len(others):
            return np.full(len(self), -1, np.int64)
        files = {file: code for code, file in enumerate(others.files)}
        wanted = self._sort_keys(_renumber_files(self.files, files))
        known = others._sort_keys(np.arange(len(others.files), dtype=np.int64))
        order = np.argsort(known, kind="stable")
        found = np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)
        return np.where(known[order[found]] == wanted, order[found], -1).astype(np.int64)

    def is_in_files(self, files: Iterable[str]) -> RowMask:
        """Return for each row whether it is in one of these files."""
        wanted = set(files)
        is_wanted = np.array([file in wanted for file in self.files], np.bool_)
        return is_wanted[self.codes] if len(is_wanted) else np.zeros(len(self), np.bool_)

    def argsort(self) -> Codes:
        """Return the indices that sort the rows by file and offset."""
        ranks = np.argsort(np.argsort(np.array(self.files, np.str_)))
        return self.argsort_by(ranks)

    def argsort_by(self, ranks: Codes) -> Codes:
        """Return the indices that sort the rows by the rank of their file, then by offset."""
        # A stable sort by one key is fast for rows that are mostly in order.
        return np.argsort(self._sort_keys(ranks), kind="stable")

    def _sort_keys(self, renumbered: Codes) -> Codes:
        codes = renumbered[self.codes] if len(renumbered) else self.codes
        return (codes << _SHIFT) | self.offsets.astype(np.int64)


def _renumber_files(files: Sequence[str], known: dict[str, int]) -> Codes:
    """Return the code of each file in `known`, adding the files that it lacks."""
    return np.array([known.setdefault(file, len(known)) for file in files], np.int64)


def read_live_offsets(dataset: lance.LanceDataset, fragment: FragmentMetadata) -> RowOffsets:
    """Return the offsets of the rows of a fragment that are not deleted, in order."""
    if fragment.deletion_file is None:
        return np.arange(fragment.physical_rows, dtype=np.uint32)
    chosen = [each for each in dataset.get_fragments() if each.fragment_id == fragment.id]
    batches = scan_batches(
        dataset, columns=[], fragments=chosen, with_row_address=True, scan_in_order=True
    )
    found = [
        (batch.column("_rowaddr").to_numpy() & OFFSET_MASK).astype(np.uint32) for batch in batches
    ]
    return np.concatenate([np.empty(0, np.uint32), *found])
