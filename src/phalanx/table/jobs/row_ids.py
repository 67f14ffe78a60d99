"""Rows by their ids: which leaf of a manifest, and where in the version of it that was read.

An id is two numbers. The leaf's is its place among all leaves of one version of the manifest; in
weak mode, where the manifest names no versions, also the version of the leaf that was read.
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
from phalanx.planning.pruning.scan_plan import LOCATION, OBJECT_ID
from phalanx.storage.commit.writing import LeafWrite, leaf_writes
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.leaf import OFFSET_BITS, Change
from phalanx.storage.leaf.reading import ROW_ADDRESS, ROW_ID, ROW_LEAF
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.jobs.task_files import StandsFor
from phalanx.table.read.scan_tasks import Piece

_VERSION_BITS = 32
_VERSION_MASK = (1 << _VERSION_BITS) - 1


def leaf_numbers(manifest: Manifest, spec_id: int, locations: pa.Array) -> npt.NDArray[np.int64]:
    """The numbers of some leaves of a spec, by their locations."""
    start = 0
    for number, leaves in _in_order(manifest):
        if number == spec_id:
            places = pc.index_in(locations, value_set=leaves.column(LOCATION))
            found: npt.NDArray[np.int64] = places.to_numpy(zero_copy_only=False).astype(np.int64)
            return found + start
        start += leaves.num_rows
    raise AssertionError(spec_id)


def leaf_id(manifest: Manifest, number: int, version: int) -> int:
    """What the rows of a leaf have as their leaf, if they are read in this version."""
    if manifest.properties.mode == "strong":
        return number << _VERSION_BITS
    if version > _VERSION_MASK:
        raise PhalanxError(
            f"Cannot change rows of {manifest.root} in weak mode: a partition has version "
            f"{version:,}, and more than {_VERSION_MASK:,} are not counted. Use strong mode."
        )
    return number << _VERSION_BITS | version


def identified(manifest: Manifest, number: int, piece: Piece) -> Piece:
    """A part of a leaf, of which rows come with their ids."""
    version = piece.scan.version
    assert version is not None
    scan = replace(piece.scan, leaf=leaf_id(manifest, number, version))
    return replace(piece, scan=scan)


def _in_order(manifest: Manifest) -> Iterator[tuple[int, pa.Table]]:
    yield from sorted(manifest.leaves().items())


@dataclass(frozen=True, slots=True)
class ReplacedByIds:
    """Tells by their ids which rows of a manifest others replace; NULL stands for none."""

    manifest: Manifest
    columns: ClassVar[pa.Schema] = pa.schema([(name, pa.int64()) for name in ROW_ID.names])

    def stands_for(self, ids: pa.Table) -> StandsFor | None:
        """What rows with these ids beside them replace; None if none of them does."""
        numbers = pc.shift_right(ids.column(ROW_LEAF), _VERSION_BITS).combine_chunks()
        used = pc.unique(numbers).drop_null()
        if not len(used):
            return None
        names = [each for _, found in _in_order(self.manifest) for each in found[OBJECT_ID].chunks]
        leaves = pa.chunked_array(names, pa.string()).take(used).to_pylist()
        places = pc.index_in(numbers, used)
        old = pa.table({"leaf": places, "address": ids.column(ROW_ADDRESS)})
        return StandsFor.of(leaves, old)


@dataclass(frozen=True, slots=True)
class RowIds:
    """Rows of one leaf, in few bytes."""

    leaf: int
    packed: bytes

    @classmethod
    def of(cls, leaves: npt.NDArray[np.int64], addresses: npt.NDArray[np.int64]) -> list[RowIds]:
        """Rows by leaf; neighbours are the cheapest to tell."""
        order = np.lexsort((addresses, leaves))
        leaves, addresses = leaves[order], addresses[order]
        numbers, starts = np.unique(leaves, return_index=True)
        return [
            cls(int(number), zlib.compress(np.diff(each, prepend=0).tobytes(), 1))
            for number, each in zip(numbers, np.split(addresses, starts[1:]), strict=True)
        ]

    @property
    def addresses(self) -> npt.NDArray[np.uint64]:
        """Where the rows are."""
        steps = np.frombuffer(zlib.decompress(self.packed), np.int64)
        return np.cumsum(steps).astype(np.uint64)


@dataclass(frozen=True, slots=True)
class RowRemoval:
    """The removal of so many rows from a leaf."""

    write: LeafWrite
    rows: int


def removals(manifest: Manifest, rows: Iterable[RowIds]) -> list[RowRemoval]:
    """The removal of rows, each of which counts once, from the leaves that they were read in."""
    by_leaf: dict[int, list[RowIds]] = {}
    for each in rows:
        by_leaf.setdefault(each.leaf, []).append(each)
    numbers = np.array(sorted(by_leaf), np.int64)
    places = numbers >> _VERSION_BITS
    _check_once(manifest, places)
    found: list[RowRemoval] = []
    start = 0
    for spec_id, leaves in _in_order(manifest):
        is_here = (places >= start) & (places < start + leaves.num_rows)
        chosen = leaves.take(pa.array(places[is_here] - start))
        writes = leaf_writes(manifest, spec_id, chosen, [None] * chosen.num_rows)
        for write, number in zip(writes, numbers[is_here].tolist(), strict=True):
            version = write.version if write.version is not None else number & _VERSION_MASK
            told = np.concatenate([each.addresses for each in by_leaf[number]])
            addresses = np.unique(told)
            write.deletion, write.edits = _Removal(write.location, version, addresses), True
            found.append(RowRemoval(write, len(addresses)))
        start += leaves.num_rows
    return found


def _check_once(manifest: Manifest, places: Sequence[int] | npt.NDArray[np.int64]) -> None:
    """In weak mode a leaf may be read in two versions, by two scans of one statement."""
    if len(np.unique(places)) < len(places):
        raise CommitConflict(
            f"Cannot commit to {manifest.root}: another writer changed a partition while it was "
            "read, and this change has seen both states of it. Run it again."
        )


@dataclass(frozen=True, slots=True)
class _Removal:
    """Takes rows out of a leaf by where they were in a version of it."""

    location: Location
    version: int
    addresses: npt.NDArray[np.uint64]

    def __call__(self, dataset: lance.LanceDataset) -> Change:
        """What removes them from a later version, if the files they are in are as they were."""
        if dataset.version != self.version:
            before, now = (
                self._touched(self.location.open_leaf(self.version)),
                self._touched(dataset),
            )
            if before != now:
                raise CommitConflict(
                    f"Cannot change rows of {self.location}: another writer changed the same files "
                    f"since version {self.version} was read. Run the statement again."
                )
        return leaf.deletion_by_address(dataset, self.addresses)

    def _touched(self, dataset: lance.LanceDataset) -> dict[int, object]:
        wanted = set(np.unique(self.addresses >> OFFSET_BITS).tolist())
        return {
            each.fragment_id: each.metadata
            for each in dataset.get_fragments()
            if each.fragment_id in wanted
        }
