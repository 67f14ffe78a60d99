"""A scan in tasks for other machines: large leaves cut by fragment, small ones put together."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.model.predicates.predicate import TRUE
from phalanx.planning.splits import fits_one, packed, split_size
from phalanx.storage.lance.failures import told
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.leaf.reading import LeafScan, in_order
from phalanx.table.read.inspection import bytes_of
from phalanx.table.read.scan import Scan

# Other tasks run beside this one.
_LEAVES_AHEAD = 2


@dataclass(frozen=True, slots=True)
class ScanTask:
    """What one task reads: parts of leaves, each in the version that the plan has seen."""

    scans: tuple[LeafScan, ...]

    def reading(self, columns: tuple[str, ...]) -> ScanTask:
        """The same task, with other columns."""
        return ScanTask(tuple(replace(scan, columns=columns) for scan in self.scans))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in the order of the plan."""
        with told("read a part of a scan"):
            yield from in_order(self.scans, _LEAVES_AHEAD, LeafScan.batches)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some fragments of a leaf, with their bytes, and the rows that are not deleted."""

    scan: LeafScan
    size: int
    rows: int


def tasks_of(scan: Scan, wanted_bytes: int | None = None) -> list[ScanTask]:
    """The scan in tasks of about equal bytes, in its order."""
    leaves = pieces_of_all(scan.leaf_scans())
    return packed_tasks([piece for each in leaves for piece in each], wanted_bytes)


def packed_tasks(found: list[Piece], wanted_bytes: int | None = None) -> list[ScanTask]:
    """The pieces in tasks of about equal bytes, neighbours of one leaf put together again."""
    most = split_size(sum(piece.size for piece in found), wanted_bytes)
    return [ScanTask(tuple(_joined(task))) for task in packed(found, lambda each: each.size, most)]


def is_one_task(found: Sequence[Piece], wanted_bytes: int | None = None) -> bool:
    """Whether `packed_tasks` has one task for them."""
    most = split_size(sum(piece.size for piece in found), wanted_bytes)
    return fits_one(found, lambda each: each.size, most)


def first_rows(found: Iterable[Piece], limit: int) -> list[Piece]:
    """The first pieces that have so many rows for sure, none of which gives more than that."""
    kept: list[Piece] = []
    left = limit
    for piece in found:
        if left <= 0:
            break
        kept.append(replace(piece, scan=replace(piece.scan, limit=limit)))
        # How many rows pass a filter is not known.
        left -= piece.rows if piece.scan.predicate == TRUE else 0
    return kept


def pieces_of_all(scans: Sequence[LeafScan]) -> list[list[Piece]]:
    """The fragments of each leaf; leaves that are not known yet are opened side by side."""
    unknown = [scan for scan in scans if _VERSIONS.known(scan) is None]
    opened = dict(zip(map(id, unknown), in_parallel(pieces, unknown), strict=True))
    return [opened[id(scan)] if id(scan) in opened else pieces(scan) for scan in scans]


def pieces(scan: LeafScan) -> list[Piece]:
    """The fragments of a leaf, in the version that is its newest now if none is named."""
    version, fragments = _VERSIONS.known(scan) or _VERSIONS.opened(scan)
    pinned = replace(scan, version=version)
    wanted = None if scan.fragments is None else set(scan.fragments)
    return [piece_of(pinned, each) for each in fragments if wanted is None or each.id in wanted]


class _Versions:
    """The fragments of the last leaves that were opened in a version: that never changes."""

    _MOST = 1 << 14

    def __init__(self) -> None:
        self._fragments: OrderedDict[tuple[Location, int], list[FragmentMetadata]] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, scan: LeafScan) -> tuple[int, list[FragmentMetadata]] | None:
        """The version that is to be read and its fragments, without a look at the leaf."""
        if scan.version is None:
            return None
        with self._lock:
            found = self._fragments.get((scan.location, scan.version))
            return None if found is None else (scan.version, found)

    def opened(self, scan: LeafScan) -> tuple[int, list[FragmentMetadata]]:
        """The version that is read, and its fragments, as the leaf has them."""
        dataset = scan.location.open_leaf(scan.version)
        fragments = [each.metadata for each in dataset.get_fragments()]
        if not scan.location.has_reused_paths:
            with self._lock:
                self._fragments[scan.location, dataset.version] = fragments
                while len(self._fragments) > self._MOST:
                    self._fragments.popitem(last=False)
        return dataset.version, fragments


_VERSIONS = _Versions()


def piece_of(scan: LeafScan, fragment: FragmentMetadata) -> Piece:
    """One fragment of a leaf."""
    alone = replace(scan, fragments=(fragment.id,))
    return Piece(alone, bytes_of(fragment), fragment.num_rows)


def _joined(task: tuple[Piece, ...]) -> Iterator[LeafScan]:
    """The scans of a task: one for all its fragments of a leaf."""
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
