"""Incremental scans: the rows that snapshots added, as a stream reads them.

Rows that a snapshot only moved, rewrote or restored are not new: compactions, schema changes and
rollbacks add none. The rows that a snapshot added are read as of that snapshot, so that the result
depends neither on how many snapshots are read at once nor on later changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Protocol

from phalanx.errors import PhalanxError
from phalanx.planning.pruning.leaf_columns import LEAF_OBJECT_ID
from phalanx.storage.changes.equivalent_files import find_old_files
from phalanx.storage.commit.head import Head, read_head
from phalanx.storage.commit.history_rows import (
    LeafChange,
    begins_history,
    list_snapshots,
    read_leaf_changes,
    read_snapshot_range,
    read_versions_at,
)
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.manifest.dropped import include_dropped
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.read.scan import make_scan
from phalanx.table.read.scan_tasks import ScanPiece, make_piece, split_leaf

# The position before anything was read: the whole table is read first.
NOTHING_READ = -1
# How many snapshots are measured at once.
_BATCH_SNAPSHOTS = 16


@dataclass(frozen=True, slots=True)
class Position:
    """The snapshot up to which rows were read.

    The time, if known, distinguishes it from a snapshot with the same number of a restarted
    history.
    """

    snapshot: int
    time: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one read, which has whole snapshots and at least one. None means no limit."""

    snapshots: int | None = None
    rows: int | None = None
    bytes: int | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether no limit is set."""
        return self == Limits()


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows and columns to read."""

    where: str | None = None
    columns: Sequence[str] | None = None


def find_newest_position(manifest: Manifest) -> Position:
    """Return the position of the newest snapshot; requires strong mode."""
    newest = _require_head(manifest)
    return Position(newest.sequence, newest.time)


def _require_head(manifest: Manifest) -> Head:
    found = read_head(manifest) if manifest.properties.mode == "strong" else None
    if found is None:
        raise PhalanxError(
            f"Cannot stream from {manifest.root}: it is in weak mode, which has no snapshots. "
            "Change it with set_mode('strong')."
        )
    return found


def find_position_before(manifest: Manifest, first: int | datetime) -> Position:
    """Return the position from which to read the rows of a snapshot and of all later ones.

    A time means the first snapshot since then, which must exist already: a writer with a slow
    clock could commit an earlier one.
    """
    newest = _require_head(manifest)
    if isinstance(first, int):
        if not 1 <= first <= newest.sequence + 1:
            raise PhalanxError(
                f"Cannot stream from snapshot {first} of {manifest.root}: expected one from 1 to "
                f"{newest.sequence}, or {newest.sequence + 1} for the next one."
            )
        return Position(first - 1)
    moment = first if first.tzinfo else first.replace(tzinfo=UTC)
    found = list_snapshots(manifest)
    since = [each for each in found if datetime.fromisoformat(each["time"]) >= moment]
    if not since:
        raise PhalanxError(
            f"Cannot stream from {manifest.root} since {moment.isoformat()}: it has no snapshot "
            f"since then, the newest is {newest.sequence} of {newest.time}. Pass the one that "
            f"comes next: {newest.sequence + 1}."
        )
    start = int(since[0]["id"])
    if since[0] is found[0] and not begins_history(found[0]):
        raise _lost_error(manifest, f"since {moment.isoformat()}", start)
    return Position(start - 1)


class ReadAmount(Protocol):
    """The size of rows that are read together."""

    @property
    def rows(self) -> int:
        """The number of rows, before filters."""

    @property
    def size(self) -> int:
        """The number of bytes."""


# Lists what the snapshots after one, up to another, added: each part with its snapshot.
ListAmounts = Callable[[int, int], Iterable[tuple[int, ReadAmount]]]


def find_next_position(
    manifest: Manifest,
    after: Position,
    until: Position,
    limits: Limits,
    selection: Selection,
    list_amounts: ListAmounts | None = None,
) -> Position:
    """Return the position to read up to within the limits; `after` if nothing is new.

    Advances over snapshots that added nothing: vacuum may remove them. `list_amounts` measures
    what snapshots added; by default, new rows.
    """
    if after == until or (until.snapshot == after.snapshot and after.time is None):
        return after
    retained = check_retained(manifest, after, until)
    if after.snapshot == NOTHING_READ or limits.is_unlimited:
        return until
    last = until.snapshot
    if limits.snapshots is not None:
        last = min(last, after.snapshot + limits.snapshots)
    if limits.rows is not None or limits.bytes is not None:
        list_added = list_amounts or functools.partial(_find_added, manifest, selection=selection)
        last = _find_last_within(after.snapshot, last, limits, list_added)
    return until if last == until.snapshot else Position(last, retained[last])


def _find_last_within(after: int, until: int, limits: Limits, list_amounts: ListAmounts) -> int:
    rows = size = 0
    for first in range(after, until, _BATCH_SNAPSHOTS):
        last = min(first + _BATCH_SNAPSHOTS, until)
        found = list(list_amounts(first, last))
        for number in range(first + 1, last + 1):
            added = [piece for snapshot, piece in found if snapshot == number]
            rows += sum(piece.rows for piece in added)
            size += sum(piece.size for piece in added)
            is_over = _exceeds(rows, limits.rows) or _exceeds(size, limits.bytes)
            if is_over and number > after + 1:
                return number - 1
    return until


def _exceeds(amount: int, limit: int | None) -> bool:
    return limit is not None and amount > limit


def find_new_rows(
    manifest: Manifest, after: Position, until: Position, selection: Selection
) -> list[ScanPiece]:
    """Return the rows added after one position, up to another, in the order of their snapshots.

    From `NOTHING_READ` returns all rows of the table at the last position. Raises `PhalanxError`
    if vacuum has removed a snapshot that is needed.
    """
    if after.snapshot == until.snapshot:
        return []
    with detect_lost(manifest, after, until):
        if after.snapshot == NOTHING_READ:
            return _find_all_rows(manifest, until.snapshot, selection)
        found = _find_added(manifest, after.snapshot, until.snapshot, selection)
        return [piece for _, piece in found]


@contextmanager
def detect_lost(manifest: Manifest, after: Position, until: Position) -> Iterator[None]:
    """Raise a clear error for removed snapshots, before they are read and if reading fails."""
    check_retained(manifest, after, until)
    try:
        yield
    except (PhalanxError, OSError, ValueError):
        check_retained(manifest.load_latest(), after, until)
        raise


def _find_all_rows(manifest: Manifest, snapshot: int, selection: Selection) -> list[ScanPiece]:
    versions = read_versions_at(manifest, snapshot)
    scans = [
        replace(scan, version=versions[name])
        for name, scan in _plan_leaf_scans(manifest, selection).items()
        if name in versions
    ]
    return [piece for each in map_parallel(split_leaf, scans) for piece in each]


def _find_added(
    manifest: Manifest, after: int, until: int, selection: Selection
) -> list[tuple[int, ScanPiece]]:
    """Return what each snapshot added to the leaves that may have selected rows."""
    scans = _plan_leaf_scans(manifest, selection)
    changes = [
        change
        for change in read_leaf_changes(manifest, after, until)
        if change.version_row.may_add_rows and change.object_id in scans
    ]

    def find_pieces(change: LeafChange) -> list[ScanPiece]:
        scan = replace(scans[change.object_id], version=change.version_row.version)
        known: set[str] = set()
        if change.before is not None:
            known = find_old_files(scan.location, change.before, change.version_row)
        return [
            make_piece(scan, fragment.metadata)
            for fragment in scan.location.open_leaf(scan.version).get_fragments()
            if not any(file.path in known for file in fragment.metadata.files)
        ]

    found = map_parallel(find_pieces, changes)
    return [
        (change.version_row.snapshot, piece)
        for change, each in zip(changes, found, strict=True)
        for piece in each
    ]


def _plan_leaf_scans(manifest: Manifest, selection: Selection) -> dict[str, LeafScan]:
    """Plan the scan of each leaf that may have selected rows, by object id.

    Plans on the current table including dropped partitions: files are read in its schema by their
    field ids.
    """
    scan = make_scan(include_dropped(manifest), selection.where, selection.columns, None)
    names = [
        name
        for spec in scan.plan.pruning.specs
        for name in scan.plan.leaves[spec.spec_id].column(LEAF_OBJECT_ID).to_pylist()
    ]
    return dict(zip(names, scan.leaf_scans(), strict=True))


def check_retained(manifest: Manifest, after: Position, until: Position) -> Mapping[int, str]:
    """Return the times of all snapshots in between; `PhalanxError` if a needed one is gone."""
    newest = _require_head(manifest)
    if until.snapshot > newest.sequence or until.snapshot < after.snapshot:
        raise _restarted_error(manifest, max(until.snapshot, after.snapshot))
    first = until.snapshot if after.snapshot == NOTHING_READ else after.snapshot
    retained = read_snapshot_range(manifest, first, until.snapshot)
    for position in (after, until):
        found = retained.get(position.snapshot)
        if found is not None and position.time not in (None, found["time"]):
            raise _restarted_error(manifest, position.snapshot)
    missing = _find_missing(range(first, until.snapshot + 1), retained)
    # The first snapshot of a history needs no predecessor to compare with.
    if missing == [first] and first + 1 in retained and begins_history(retained[first + 1]):
        missing = []
    if missing:
        start = f"from snapshot {after.snapshot}"
        if after.snapshot == NOTHING_READ:
            start = f"as of snapshot {until.snapshot}"
        raise _lost_error(manifest, start, missing[-1])
    return {number: each["time"] for number, each in retained.items()}


def _find_missing(numbers: range, retained: Mapping[int, object]) -> list[int]:
    # Two are enough; a span may be large.
    return list(islice((number for number in reversed(numbers) if number not in retained), 2))[::-1]


def _lost_error(manifest: Manifest, start: str, last: int) -> PhalanxError:
    newest = _require_head(manifest)
    found = list_snapshots(manifest)
    oldest = found[0]["id"] if found else newest.sequence
    return PhalanxError(
        f"Cannot stream from {manifest.root} {start}: the rows added up to snapshot {last} are no "
        f"longer known. Vacuum removed old snapshots; the oldest one left is {oldest}. Start the "
        "stream with a new checkpoint: it reads the whole table first, or only later rows with "
        f"starting_snapshot={oldest + 1} (for changes: from_snapshot={oldest}). To prevent this, "
        "let vacuum retain more time than the stream is ever stopped."
    )


def _restarted_error(manifest: Manifest, number: int) -> PhalanxError:
    newest = _require_head(manifest)
    return PhalanxError(
        f"Cannot stream from {manifest.root} from snapshot {number}: its history was restarted, "
        f"and its newest snapshot is {newest.sequence} of {newest.time}. The table was recreated, "
        "or was in weak mode meanwhile. Start the stream with a new checkpoint."
    )
