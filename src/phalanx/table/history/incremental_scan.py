"""Rows that snapshots brought: what a stream reads.

Rows that a snapshot only moved, rewrote or restored are not new: compactions, changes of the
schema and rollbacks bring none. What a snapshot brought is read as of that snapshot, so that it
does not depend on how many snapshots are read at once, nor on what happened to the rows since.
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
from phalanx.planning.pruning.scan_plan import OBJECT_ID
from phalanx.storage.changes.equivalent_files import known_files
from phalanx.storage.commit.head import Head, head_of
from phalanx.storage.commit.history_rows import (
    LeafChange,
    begins_history,
    changes_between,
    snapshots_from,
    snapshots_in,
    versions_at,
)
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.manifest.dropped import with_dropped
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.read.scan import scan_of
from phalanx.table.read.scan_tasks import Piece, piece_of, pieces

# Before the first snapshot, and before the whole table was read.
NOTHING = -1
# So many snapshots are looked at together, to see how much they brought.
_SNAPSHOTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Position:
    """Up to which snapshot rows were read.

    The time, where it is known, tells the snapshot from another one with the same number, of a
    history that was begun anew.
    """

    snapshot: int
    time: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is read at once: whole snapshots, and at least one. None: as much as there is."""

    snapshots: int | None = None
    rows: int | None = None
    bytes: int | None = None

    @property
    def are_none(self) -> bool:
        """Whether there is no limit."""
        return self == Limits()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read of the rows."""

    where: str | None = None
    columns: Sequence[str] | None = None


def newest_position(manifest: Manifest) -> Position:
    """Where the history of a table stands; only in strong mode there is one."""
    newest = _head(manifest)
    return Position(newest.sequence, newest.time)


def _head(manifest: Manifest) -> Head:
    found = head_of(manifest) if manifest.properties.mode == "strong" else None
    if found is None:
        raise PhalanxError(
            f"Cannot stream from {manifest.root}: it is in weak mode, which has no snapshots to "
            "tell new rows by. Change it with set_mode('strong')."
        )
    return found


def position_before(manifest: Manifest, first: int | datetime) -> Position:
    """Where to start to read what a snapshot brought, and all after it.

    A time stands for the first snapshot since, which must be there already: a writer whose clock
    is late could make another one the first.
    """
    newest = _head(manifest)
    if isinstance(first, int):
        if not 1 <= first <= newest.sequence + 1:
            raise PhalanxError(
                f"Cannot stream from snapshot {first} of {manifest.root}: expected one from 1 to "
                f"{newest.sequence}, or {newest.sequence + 1} for what comes next."
            )
        return Position(first - 1)
    moment = first if first.tzinfo else first.replace(tzinfo=UTC)
    found = snapshots_in(manifest)
    since = [each for each in found if datetime.fromisoformat(each["time"]) >= moment]
    if not since:
        raise PhalanxError(
            f"Cannot stream from {manifest.root} since {moment.isoformat()}: there is no snapshot "
            f"since then, the newest is {newest.sequence} of {newest.time}. Name the one that "
            f"comes next: {newest.sequence + 1}."
        )
    start = int(since[0]["id"])
    if since[0] is found[0] and not begins_history(found[0]):
        raise _lost(manifest, f"since {moment.isoformat()}", start)
    return Position(start - 1)


class Amount(Protocol):
    """Rows that are read together: how many, and how many bytes."""

    @property
    def rows(self) -> int:
        """How many rows there are, wanted or not."""

    @property
    def size(self) -> int:
        """Their bytes."""


# What the snapshots after one, up to another, brought: each part with its snapshot.
Brought = Callable[[int, int], Iterable[tuple[int, Amount]]]


def next_position(
    manifest: Manifest,
    after: Position,
    until: Position,
    limits: Limits,
    wanted: Wanted,
    brought: Brought | None = None,
) -> Position:
    """How far to read at once; `after` itself where nothing new is there.

    Snapshots that brought nothing are passed too: vacuum may remove them. What they brought are
    new rows, unless something else is told.
    """
    if after == until or (until.snapshot == after.snapshot and after.time is None):
        return after
    said = check_there(manifest, after, until)
    if after.snapshot == NOTHING or limits.are_none:
        return until
    last = until.snapshot
    if limits.snapshots is not None:
        last = min(last, after.snapshot + limits.snapshots)
    if limits.rows is not None or limits.bytes is not None:
        told = brought or functools.partial(_arrivals, manifest, wanted=wanted)
        last = _last_within(after.snapshot, last, limits, told)
    return until if last == until.snapshot else Position(last, said[last])


def _last_within(after: int, until: int, limits: Limits, told: Brought) -> int:
    rows = size = 0
    for first in range(after, until, _SNAPSHOTS_AT_ONCE):
        last = min(first + _SNAPSHOTS_AT_ONCE, until)
        found = list(told(first, last))
        for number in range(first + 1, last + 1):
            brought = [piece for snapshot, piece in found if snapshot == number]
            rows += sum(piece.rows for piece in brought)
            size += sum(piece.size for piece in brought)
            is_over = _exceeds(rows, limits.rows) or _exceeds(size, limits.bytes)
            if is_over and number > after + 1:
                return number - 1
    return until


def _exceeds(amount: int, limit: int | None) -> bool:
    return limit is not None and amount > limit


def new_rows(manifest: Manifest, after: Position, until: Position, wanted: Wanted) -> list[Piece]:
    """The rows that came after a position, up to another, in the order in which they came.

    All rows of the table as of then, where nothing was read yet. `PhalanxError` where vacuum has
    removed what tells them.
    """
    if after.snapshot == until.snapshot:
        return []
    with unless_lost(manifest, after, until):
        if after.snapshot == NOTHING:
            return _all_rows(manifest, until.snapshot, wanted)
        found = _arrivals(manifest, after.snapshot, until.snapshot, wanted)
        return [piece for _, piece in found]


@contextmanager
def unless_lost(manifest: Manifest, after: Position, until: Position) -> Iterator[None]:
    """Tell that snapshots are gone, before they are read and when that fails."""
    check_there(manifest, after, until)
    try:
        yield
    except (PhalanxError, OSError, ValueError):
        check_there(manifest.latest(), after, until)
        raise


def _all_rows(manifest: Manifest, snapshot: int, wanted: Wanted) -> list[Piece]:
    versions = versions_at(manifest, snapshot)
    scans = [
        replace(scan, version=versions[name])
        for name, scan in _leaf_scans(manifest, wanted).items()
        if name in versions
    ]
    return [piece for each in in_parallel(pieces, scans) for piece in each]


def _arrivals(
    manifest: Manifest, after: int, until: int, wanted: Wanted
) -> list[tuple[int, Piece]]:
    """What each snapshot brought to the leaves that may have wanted rows."""
    scans = _leaf_scans(manifest, wanted)
    changes = [
        change
        for change in changes_between(manifest, after, until)
        if change.entry.brings_rows and change.object_id in scans
    ]

    def arrived(change: LeafChange) -> list[Piece]:
        scan = replace(scans[change.object_id], version=change.entry.version)
        known: set[str] = set()
        if change.before is not None:
            known = known_files(scan.location, change.before, change.entry)
        return [
            piece_of(scan, fragment.metadata)
            for fragment in scan.location.open_leaf(scan.version).get_fragments()
            if not any(file.path in known for file in fragment.metadata.files)
        ]

    found = in_parallel(arrived, changes)
    return [
        (change.entry.snapshot, piece)
        for change, each in zip(changes, found, strict=True)
        for piece in each
    ]


def _leaf_scans(manifest: Manifest, wanted: Wanted) -> dict[str, LeafScan]:
    """The scan of each leaf that may have wanted rows, by its object id.

    Planned as the table is now, with the partitions that were dropped: files are read in its
    schema by their field ids.
    """
    scan = scan_of(with_dropped(manifest), wanted.where, wanted.columns, None)
    names = [
        name
        for spec in scan.plan.pruning.specs
        for name in scan.plan.leaves[spec.spec_id].column(OBJECT_ID).to_pylist()
    ]
    return dict(zip(names, scan.leaf_scans(), strict=True))


def check_there(manifest: Manifest, after: Position, until: Position) -> Mapping[int, str]:
    """The times of all snapshots in between; `PhalanxError` if any is gone that tells what came."""
    newest = _head(manifest)
    if until.snapshot > newest.sequence or until.snapshot < after.snapshot:
        raise _begun_anew(manifest, max(until.snapshot, after.snapshot))
    first = until.snapshot if after.snapshot == NOTHING else after.snapshot
    said = snapshots_from(manifest, first, until.snapshot)
    for position in (after, until):
        found = said.get(position.snapshot)
        if found is not None and position.time not in (None, found["time"]):
            raise _begun_anew(manifest, position.snapshot)
    missing = _missing(range(first, until.snapshot + 1), said)
    # What the first one did is told by it and the one before, unless there was none.
    if missing == [first] and first + 1 in said and begins_history(said[first + 1]):
        missing = []
    if missing:
        start = f"on from snapshot {after.snapshot}"
        if after.snapshot == NOTHING:
            start = f"as of snapshot {until.snapshot}"
        raise _lost(manifest, start, missing[-1])
    return {number: each["time"] for number, each in said.items()}


def _missing(numbers: range, said: Mapping[int, object]) -> list[int]:
    # A few are enough; there may be as many as numbers.
    return list(islice((number for number in reversed(numbers) if number not in said), 2))[::-1]


def _lost(manifest: Manifest, start: str, last: int) -> PhalanxError:
    newest = _head(manifest)
    found = snapshots_in(manifest)
    oldest = found[0]["id"] if found else newest.sequence
    return PhalanxError(
        f"Cannot stream from {manifest.root} {start}: which rows came up to snapshot {last} is "
        f"not known any more. Vacuum removes old snapshots; the oldest one left is {oldest}. "
        "Start the stream with a new checkpoint: it reads the whole table first, or only what "
        f"came since with starting_snapshot={oldest + 1} (for changes: from_snapshot={oldest}). To "
        "prevent it, vacuum only what is older than the stream ever stands still."
    )


def _begun_anew(manifest: Manifest, number: int) -> PhalanxError:
    newest = _head(manifest)
    return PhalanxError(
        f"Cannot stream from {manifest.root} on from snapshot {number}: its history was begun anew "
        f"since, and stands at snapshot {newest.sequence} of {newest.time}. The table was made "
        "again, or was in weak mode meanwhile. Start the stream with a new checkpoint."
    )
