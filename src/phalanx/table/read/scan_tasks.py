"""Scans split into tasks: large leaves are split by fragment, small leaves share a task."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.model.predicates.predicate import TRUE
from phalanx.planning.splits import choose_task_bytes, fits_in_one_task, pack_in_tasks
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.leaf.reading import LeafScan, read_in_order
from phalanx.table.read.inspection import bytes_of
from phalanx.table.read.scan import Scan

# Small, because other tasks run on the same machine.
_LEAVES_AHEAD = 2


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A task that reads parts of leaves, each at the version of the plan."""

    scans: tuple[LeafScan, ...]

    def select_columns(self, columns: tuple[str, ...]) -> ScanTask:
        """Return the same task with other columns."""
        return ScanTask(tuple(replace(scan, columns=columns) for scan in self.scans))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows in the order of the plan."""
        with translate_errors("read a part of a scan"):
            yield from read_in_order(self.scans, _LEAVES_AHEAD, LeafScan.read_batches)


@dataclass(frozen=True, slots=True)
class ScanPiece:
    """Some fragments of a leaf, with their bytes and their number of rows without deleted ones."""

    scan: LeafScan
    size: int
    rows: int


def plan_tasks(scan: Scan, wanted_bytes: int | None = None) -> list[ScanTask]:
    """Split a scan into tasks of about equal bytes, in its order."""
    leaves = split_leaves(scan.leaf_scans())
    return pack_tasks([piece for each in leaves for piece in each], wanted_bytes)


def pack_tasks(found: list[ScanPiece], wanted_bytes: int | None = None) -> list[ScanTask]:
    """Pack pieces into tasks of about equal bytes; adjacent pieces of a leaf become one scan."""
    most = choose_task_bytes(sum(piece.size for piece in found), wanted_bytes)
    return [
        ScanTask(tuple(_combine_fragments(task)))
        for task in pack_in_tasks(found, lambda each: each.size, most)
    ]


def is_one_task(found: Sequence[ScanPiece], wanted_bytes: int | None = None) -> bool:
    """Return whether `pack_tasks` would return one task."""
    most = choose_task_bytes(sum(piece.size for piece in found), wanted_bytes)
    return fits_in_one_task(found, lambda each: each.size, most)


def limit_pieces(found: Iterable[ScanPiece], limit: int) -> list[ScanPiece]:
    """Return the first pieces that are certain to hold `limit` rows, each limited to that."""
    kept: list[ScanPiece] = []
    left = limit
    for piece in found:
        if left <= 0:
            break
        kept.append(replace(piece, scan=replace(piece.scan, limit=limit)))
        # The number of rows that pass a filter is unknown.
        left -= piece.rows if piece.scan.predicate == TRUE else 0
    return kept


def split_leaves(scans: Sequence[LeafScan]) -> list[list[ScanPiece]]:
    """Split each leaf into its fragments; leaves that are not cached are opened in parallel."""
    unknown = [scan for scan in scans if _FRAGMENTS.find(scan) is None]
    opened = dict(zip(map(id, unknown), map_parallel(split_leaf, unknown), strict=True))
    return [opened[id(scan)] if id(scan) in opened else split_leaf(scan) for scan in scans]


def split_leaf(scan: LeafScan) -> list[ScanPiece]:
    """Split a leaf into its fragments, at the newest version if the scan names none."""
    version, fragments = _FRAGMENTS.find(scan) or _FRAGMENTS.load(scan)
    pinned = replace(scan, version=version)
    wanted = None if scan.fragments is None else set(scan.fragments)
    return [make_piece(pinned, each) for each in fragments if wanted is None or each.id in wanted]


class _FragmentCache:
    """A cache of the fragments of leaf versions, which never change."""

    _CAPACITY = 1 << 14

    def __init__(self) -> None:
        self._fragments: OrderedDict[tuple[Location, int], list[FragmentMetadata]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, scan: LeafScan) -> tuple[int, list[FragmentMetadata]] | None:
        """Return the version to read and its fragments if they are cached."""
        if scan.version is None:
            return None
        with self._lock:
            found = self._fragments.get((scan.location, scan.version))
            return None if found is None else (scan.version, found)

    def load(self, scan: LeafScan) -> tuple[int, list[FragmentMetadata]]:
        """Open the leaf, and return the version that is read and its fragments."""
        dataset = scan.location.open_leaf(scan.version)
        fragments = [each.metadata for each in dataset.get_fragments()]
        if not scan.location.has_reused_paths:
            with self._lock:
                self._fragments[scan.location, dataset.version] = fragments
                while len(self._fragments) > self._CAPACITY:
                    self._fragments.popitem(last=False)
        return dataset.version, fragments


_FRAGMENTS = _FragmentCache()


def make_piece(scan: LeafScan, fragment: FragmentMetadata) -> ScanPiece:
    """Return one fragment of a leaf as a piece."""
    alone = replace(scan, fragments=(fragment.id,))
    return ScanPiece(alone, bytes_of(fragment), fragment.num_rows)


def _combine_fragments(task: tuple[ScanPiece, ...]) -> Iterator[LeafScan]:
    """Return the scans of a task, one for all adjacent fragments of a leaf."""
    waiting: LeafScan | None = None
    for piece in task:
        scan = piece.scan
        if waiting is not None and (waiting.location, waiting.version) == (
            scan.location,
            scan.version,
        ):
            both = (*(waiting.fragments or ()), *(scan.fragments or ()))
            waiting = replace(waiting, fragments=both)
            continue
        if waiting is not None:
            yield waiting
        waiting = scan
    if waiting is not None:
        yield waiting
