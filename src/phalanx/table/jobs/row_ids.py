"""Row ids for row-level changes: a leaf, and a row address in the version that was read.

An id is two numbers. The first is the index of the leaf among all leaves of one manifest version,
combined in weak mode, where the manifest names no versions, with the leaf version that was read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import CommitConflict, PhalanxError
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION, LEAF_OBJECT_ID
from phalanx.storage.commit.writing import LeafWrite, plan_leaf_writes
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.leaf import OFFSET_BITS, FragmentChange
from phalanx.storage.leaf.reading import ROW_ID_ADDRESS, ROW_ID_FIELDS, ROW_ID_LEAF
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.jobs.task_files import ReplacedPositions
from phalanx.table.read.scan_tasks import ScanPiece

_VERSION_BITS = 32
_VERSION_MASK = (1 << _VERSION_BITS) - 1


def number_leaves(manifest: Manifest, spec_id: int, locations: pa.Array) -> npt.NDArray[np.int64]:
    """Return the indices of some leaves of a spec, by their locations."""
    start = 0
    for number, leaves in _sort_leaves(manifest):
        if number == spec_id:
            places = pc.index_in(locations, value_set=leaves.column(LEAF_LOCATION))
            found: npt.NDArray[np.int64] = places.to_numpy(zero_copy_only=False).astype(np.int64)
            return found + start
        start += leaves.num_rows
    raise AssertionError(spec_id)


def encode_leaf(manifest: Manifest, number: int, version: int) -> int:
    """Return the first number of the ids of a leaf's rows, if it is read at this version."""
    if manifest.properties.mode == "strong":
        return number << _VERSION_BITS
    if version > _VERSION_MASK:
        raise PhalanxError(
            f"Cannot change rows of {manifest.root} in weak mode: a partition has version "
            f"{version:,}, expected at most {_VERSION_MASK:,}. Use strong mode."
        )
    return number << _VERSION_BITS | version


def add_row_ids(manifest: Manifest, number: int, piece: ScanPiece) -> ScanPiece:
    """Return the piece with a scan that reads row ids."""
    version = piece.scan.version
    assert version is not None
    scan = replace(piece.scan, leaf_number=encode_leaf(manifest, number, version))
    return replace(piece, scan=scan)


def _sort_leaves(manifest: Manifest) -> Iterator[tuple[int, pa.Table]]:
    yield from sorted(manifest.list_leaves().items())


@dataclass(frozen=True, slots=True)
class ReplacedById:
    """Finds by row ids which rows of a manifest are replaced; a NULL id replaces none."""

    manifest: Manifest
    columns: ClassVar[pa.Schema] = pa.schema([(name, pa.int64()) for name in ROW_ID_FIELDS.names])

    def find_replaced(self, ids: pa.Table) -> ReplacedPositions | None:
        """Return the positions that rows with these ids replace; None if they replace none."""
        numbers = pc.shift_right(ids.column(ROW_ID_LEAF), _VERSION_BITS).combine_chunks()
        used = pc.unique(numbers).drop_null()
        if not len(used):
            return None
        names = [
            each
            for _, found in _sort_leaves(self.manifest)
            for each in found[LEAF_OBJECT_ID].chunks
        ]
        leaves = pa.chunked_array(names, pa.string()).take(used).to_pylist()
        places = pc.index_in(numbers, used)
        old = pa.table({"leaf": places, "address": ids.column(ROW_ID_ADDRESS)})
        return ReplacedPositions.of(leaves, old)


@dataclass(frozen=True, slots=True)
class RowIds:
    """Row ids of one leaf, compressed."""

    leaf: int
    packed: bytes

    @classmethod
    def of(cls, leaves: npt.NDArray[np.int64], addresses: npt.NDArray[np.int64]) -> list[RowIds]:
        """Group rows by leaf; sorted addresses compress best."""
        order = np.lexsort((addresses, leaves))
        leaves, addresses = leaves[order], addresses[order]
        numbers, starts = np.unique(leaves, return_index=True)
        return [
            cls(int(number), zlib.compress(np.diff(each, prepend=0).tobytes(), 1))
            for number, each in zip(numbers, np.split(addresses, starts[1:]), strict=True)
        ]

    @property
    def addresses(self) -> npt.NDArray[np.uint64]:
        """The row addresses."""
        steps = np.frombuffer(zlib.decompress(self.packed), np.int64)
        return np.cumsum(steps).astype(np.uint64)


@dataclass(frozen=True, slots=True)
class RowRemoval:
    """The removal of rows from a leaf, and their number."""

    write: LeafWrite
    rows: int


def plan_removals(manifest: Manifest, rows: Iterable[RowIds]) -> list[RowRemoval]:
    """Plan the removal of rows from the leaves they were read from; duplicates count once."""
    by_leaf: dict[int, list[RowIds]] = {}
    for each in rows:
        by_leaf.setdefault(each.leaf, []).append(each)
    numbers = np.array(sorted(by_leaf), np.int64)
    places = numbers >> _VERSION_BITS
    _check_single_version(manifest, places)
    found: list[RowRemoval] = []
    start = 0
    for spec_id, leaves in _sort_leaves(manifest):
        is_here = (places >= start) & (places < start + leaves.num_rows)
        chosen = leaves.take(pa.array(places[is_here] - start))
        writes = plan_leaf_writes(manifest, spec_id, chosen, [None] * chosen.num_rows)
        for write, number in zip(writes, numbers[is_here].tolist(), strict=True):
            version = write.version if write.version is not None else number & _VERSION_MASK
            repeated = np.concatenate([each.addresses for each in by_leaf[number]])
            addresses = np.unique(repeated)
            write.deletion, write.is_edit = _Removal(write.location, version, addresses), True
            found.append(RowRemoval(write, len(addresses)))
        start += leaves.num_rows
    return found


def _check_single_version(
    manifest: Manifest, places: Sequence[int] | npt.NDArray[np.int64]
) -> None:
    """Refuse ids of two versions of a leaf, which two scans of a weak-mode statement may read."""
    if len(np.unique(places)) < len(places):
        raise CommitConflict(
            f"Cannot commit to {manifest.root}: another writer changed a partition while it was "
            "read, and this statement read both versions of it. Run it again."
        )


@dataclass(frozen=True, slots=True)
class _Removal:
    """Removes rows from a leaf by their addresses in one of its versions."""

    location: Location
    version: int
    addresses: npt.NDArray[np.uint64]

    def __call__(self, dataset: lance.LanceDataset) -> FragmentChange:
        """Return the change that removes them, also from a later version with unchanged files."""
        if dataset.version != self.version:
            before, now = (
                self._read_touched(self.location.open_leaf(self.version)),
                self._read_touched(dataset),
            )
            if before != now:
                raise CommitConflict(
                    f"Cannot change rows of {self.location}: another writer changed the same files "
                    f"since version {self.version} was read. Run the statement again."
                )
        return leaf.write_deletions_at(dataset, self.addresses)

    def _read_touched(self, dataset: lance.LanceDataset) -> dict[int, object]:
        wanted = set(np.unique(self.addresses >> OFFSET_BITS).tolist())
        return {
            each.fragment_id: each.metadata
            for each in dataset.get_fragments()
            if each.fragment_id in wanted
        }
