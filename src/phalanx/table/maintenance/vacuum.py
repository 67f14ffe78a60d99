"""Vacuum: removes the snapshots that are too old, and every file that nothing needs any more.

In strong mode the horizon moves first, in a commit that passes the fence of all commits. So a
transaction either began after it, and all its files are younger than those that go; or it began
before, sees at its commit that the horizon moved, and is refused if it is not younger than that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from phalanx.errors import CommitConflict, PhalanxError, StorageFailure
from phalanx.storage.cleanup.debris import Debris, LanceTable, debris
from phalanx.storage.cleanup.expiry import (
    Expiry,
    expired,
    first_needed,
    forget_removed,
    move_horizon,
)
from phalanx.storage.cleanup.unlisted import main_versions
from phalanx.storage.commit import head
from phalanx.storage.commit.head import head_of
from phalanx.storage.commit.publishing import branches_of, check_main, locations_of, publish
from phalanx.storage.lance.files import Folder, StoredFile
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.manifest.dropped import leaving_leaves
from phalanx.storage.manifest.manifest import DIRECTORY, Manifest
from phalanx.table.transactions.strong_mode import begin

# Weak writers pass no fence: what they write must not be older when they commit it.
LONGEST_WEAK_WRITE = timedelta(hours=1)
_FILES = pa.schema(
    [
        ("path", pa.string()),
        ("kind", pa.string()),
        ("bytes", pa.int64()),
        ("modified", pa.timestamp("us", "UTC")),
    ]
)


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What a vacuum removed; or what it would remove, where it was only asked.

    `files` has the path, kind, bytes and time of each file, `left_alone` the reason for each leaf
    of which nothing was removed.
    """

    snapshots: tuple[int, ...]
    files: pa.Table
    left_alone: Mapping[str, str]
    dry_run: bool

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(self.files.column("bytes").to_pylist())

    def __str__(self) -> str:
        verb = "Would remove" if self.dry_run else "Removed"
        span = f" ({self.snapshots[0]} to {self.snapshots[-1]})" if self.snapshots else ""
        counts = Counter(self.files.column("kind").to_pylist())
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()))
        lines = [
            f"{verb} {len(self.snapshots):,} snapshots{span}.",
            f"{verb} {self.files.num_rows:,} files{f' ({kinds})' if kinds else ''}, "
            f"{self.bytes:,} bytes.",
        ]
        lines += [f"Left {leaf} alone: {why}." for leaf, why in self.left_alone.items()]
        return "\n".join(lines)


def vacuum(manifest: Manifest, older_than: timedelta, dry_run: bool) -> Vacuumed:
    """Remove the snapshots that were over by then, and the files that nothing needs since."""
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise PhalanxError(
            f"Cannot vacuum what is older than {older_than!r}: expected a timedelta, such as "
            "timedelta(days=7), and not a negative one."
        )
    now = datetime.now(UTC)
    # Nothing is as old as the longest times that Python knows.
    moment = now - min(older_than, now - datetime.min.replace(tzinfo=UTC))
    if not manifest.root.is_local:
        # Object stores count in seconds.
        moment = moment.replace(microsecond=0)
    snapshots: tuple[int, ...] = ()
    if manifest.properties.mode == "weak":
        found = _weak(manifest, older_than, moment, dry_run)
    else:
        found, snapshots = _strong(manifest, moment, dry_run)
    if not dry_run:
        found.remove()
        forget_removed(manifest)
    return Vacuumed(snapshots, files_of(found), found.left_alone, dry_run)


def files_of(found: Debris) -> pa.Table:
    """The files that can go, as an outcome has them."""
    rows = [
        {"path": file.uri, "kind": file.kind, "bytes": file.bytes, "modified": file.modified}
        for file in found.files
    ]
    return pa.Table.from_pylist(rows, _FILES)


def _weak(manifest: Manifest, older_than: timedelta, moment: datetime, dry_run: bool) -> Debris:
    if older_than < LONGEST_WEAK_WRITE and not dry_run:
        raise PhalanxError(
            f"Cannot vacuum {manifest.root} of what is older than {older_than}: in weak mode "
            "nothing tells a running write that its files are gone, so expected at least "
            f"{LONGEST_WEAK_WRITE}. Keep more, or go to strong mode with set_mode('strong')."
        )
    root = Folder(manifest.root)
    files = root.files()
    # In the expression draft a row may say what is read in weak mode too.
    read = {name: {each} for name, each in manifest.versions().items() if each is not None}
    tables = _leaves(manifest, read) + _gone(manifest)
    found = debris(root, files, [LanceTable(manifest.root.own(DIRECTORY)), *tables], moment)
    # Strong snapshots that came after the listing need only what was the newest in it.
    if manifest.latest().properties.mode != "weak":
        raise CommitConflict(
            f"Cannot vacuum {manifest.root}: it went to strong mode meanwhile. Vacuum it again."
        )
    return found


def _strong(manifest: Manifest, moment: datetime, dry_run: bool) -> tuple[Debris, tuple[int, ...]]:
    root = Folder(manifest.root)
    while True:
        fence = _looked_at(manifest, moment) if dry_run else _fenced(manifest, moment)
        files = root.files()
        try:
            return strong_debris(root, files, fence, moment), fence.over.snapshots
        except (PhalanxError, OSError, ValueError):
            now = head_of(manifest.latest())
            gone = {file.path for file in files} - {file.path for file in root.files()}
            if not gone and (dry_run or now is None or now.horizon == fence.horizon):
                raise
            # Another vacuum, which keeps less, has removed what was about to be looked at.


@dataclass(frozen=True, slots=True)
class Fence:
    """What is over in a manifest, and the horizon that was put on top of it (None: nothing was)."""

    manifest: Manifest
    over: Expiry
    horizon: str | None
    # The oldest version of the manifest that is needed; 0 where the snapshots decide it.
    first: int = 0


def _looked_at(manifest: Manifest, moment: datetime) -> Fence:
    """What a vacuum would take out, and whether it could."""
    manifest = manifest.latest()
    locations = locations_of(manifest)
    in_parallel(
        lambda each: check_main(manifest, each[0], locations[each[0]], each[1]),
        [(name, version) for name, version in manifest.versions().items() if version is not None],
    )
    return Fence(manifest, expired(manifest, moment), None)


def _fenced(manifest: Manifest, moment: datetime) -> Fence:
    """Take out what is over, and end the transactions that are too old.

    What stands on a main branch past Phalanx is told before: nobody has decided on it.
    """
    published: Manifest | None = None

    def attempt() -> Fence:
        nonlocal published
        base, _ = begin(manifest)
        names = None
        if published is not None:
            before = published.versions().items()
            names = [name for name, _ in base.versions().items() - before]
        published = publish(base, names)
        newest = head_of(published)
        if newest is None:
            raise CommitConflict(
                f"Cannot vacuum {manifest.root}: its mode was changed meanwhile. Vacuum it again."
            )
        over = expired(published, moment)
        moved = move_horizon(published, newest, over, moment)
        return Fence(published, over, moved.horizon)

    return head.until_committed(attempt, manifest, "the vacuum", eager=True)


def strong_debris(
    root: Folder, files: Sequence[StoredFile], fence: Fence, moment: datetime
) -> Debris:
    manifest, over = fence.manifest, fence.over
    own = f"{DIRECTORY}/"
    made = main_versions(
        StoredFile(file.path.removeprefix(own), file.bytes, file.modified)
        for file in files
        if file.path.startswith(own)
    )
    before = moment
    if fence.horizon is not None:
        # By the clock of the store, which also dates the files: what a transaction writes that
        # begins after the fence is not before it, even where times are cut to whole seconds.
        later = [time for version, time in made.items() if version > manifest.version]
        before = min([moment, *later])
        if not later:
            raise StorageFailure(
                f"Cannot vacuum {manifest.root}: the store does not list version "
                f"{manifest.version + 1} of its manifest, which was just written. Try it again."
            )
    first = fence.first or first_needed(manifest, over, made, before)
    kept = frozenset(version for version in made if version >= first)
    own_table = LanceTable(manifest.root.own(DIRECTORY), kept, only_newest=bool(fence.first))
    leaves = _leaves(manifest, over.versions)
    leaves += [
        LanceTable(location, frozenset(over.versions.get(name, ())))
        for name, location in over.dropped.items()
    ]
    leaves += [LanceTable(each.location, is_gone=True) for each in over.leaving]
    leaves += _gone(manifest)
    return debris(root, files, [own_table, *leaves], before, over.updates)


def _gone(manifest: Manifest) -> list[LanceTable]:
    """The leaves that an earlier vacuum has not removed completely."""
    return [LanceTable(each.location, is_gone=True) for each in leaving_leaves(manifest)]


def _leaves(manifest: Manifest, needed: Mapping[str, set[int]]) -> list[LanceTable]:
    """The leaves, each with the versions of it that are needed."""
    branches = branches_of(manifest)
    return [
        LanceTable(location, frozenset(needed.get(name, ())), name in branches)
        for name, location in locations_of(manifest).items()
    ]
