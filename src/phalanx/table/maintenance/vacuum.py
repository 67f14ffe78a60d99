"""Vacuum: expire old snapshots and remove every file that nothing needs.

In strong mode a vacuum first moves the horizon, in a commit like any other. A transaction that
began after that commit has only files younger than those removed. One that began before it finds
at its own commit that the horizon moved, and is refused if it began before the horizon.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from phalanx.errors import CommitConflict, InvalidArgument, PhalanxError, StorageFailure
from phalanx.planning.formatting import format_count
from phalanx.storage.cleanup.debris import Debris, LanceTable, find_debris
from phalanx.storage.cleanup.expiry import (
    Expiry,
    find_first_needed,
    move_horizon,
    plan_expiry,
    remove_leaving_rows,
)
from phalanx.storage.cleanup.unlisted import list_main_versions
from phalanx.storage.commit import head
from phalanx.storage.commit.head import read_head
from phalanx.storage.commit.publishing import branches_of, check_main, locations_of, publish
from phalanx.storage.lance.files import Folder, StoredFile
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.manifest.dropped import read_leaving_leaves
from phalanx.storage.manifest.manifest import MANIFEST_DIRECTORY, Manifest
from phalanx.table.transactions.strong_mode import load_head

# Weak writers do not check the horizon, so a weak write must commit within this time.
LONGEST_WEAK_WRITE = timedelta(hours=1)
_FILES = pa.schema(
    [
        ("path", pa.string()),
        ("kind", pa.string()),
        ("bytes", pa.int64()),
        ("modified", pa.timestamp("us", "UTC")),
    ]
)
_LOGGER = logging.getLogger("phalanx.table")


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What a vacuum removed, or would remove in a dry run.

    Attributes:
        snapshots: The ids of the snapshots that expired.
        files: The path, kind, bytes and modification time of each file removed.
        left_alone: The leaves from which nothing was removed, each with the reason.
        dry_run: Whether nothing was changed.
    """

    snapshots: tuple[int, ...]
    files: pa.Table
    left_alone: Mapping[str, str]
    dry_run: bool

    @property
    def bytes(self) -> int:
        """The total size of the files."""
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
    """Expire snapshots replaced longer ago than `older_than`; remove files unneeded since."""
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise InvalidArgument(
            f"Cannot vacuum with older_than={older_than!r}: expected a timedelta that is not "
            "negative, such as timedelta(days=7)."
        )
    now = datetime.now(UTC)
    # Clamp to the earliest time that Python can represent.
    moment = now - min(older_than, now - datetime.min.replace(tzinfo=UTC))
    if not manifest.root.is_local:
        # Object stores have a resolution of seconds.
        moment = moment.replace(microsecond=0)
    snapshots: tuple[int, ...] = ()
    if manifest.properties.mode == "weak":
        found = _find_weak_debris(manifest, older_than, moment, dry_run)
    else:
        found, snapshots = _find_strong_debris(manifest, moment, dry_run)
    if not dry_run:
        found.remove()
        remove_leaving_rows(manifest)
    done = Vacuumed(snapshots, to_file_table(found), found.left_alone, dry_run)
    if not dry_run:
        _LOGGER.info(
            "Vacuumed %s: %s expired, %s with %d bytes removed",
            *(manifest.root, format_count(len(snapshots), "snapshot")),
            *(format_count(done.files.num_rows, "file"), done.bytes),
        )
    return done


def to_file_table(found: Debris) -> pa.Table:
    """Return the files to remove as an Arrow table."""
    rows = [
        {"path": file.uri, "kind": file.kind, "bytes": file.bytes, "modified": file.modified}
        for file in found.files
    ]
    return pa.Table.from_pylist(rows, _FILES)


def _find_weak_debris(
    manifest: Manifest, older_than: timedelta, moment: datetime, dry_run: bool
) -> Debris:
    if older_than < LONGEST_WEAK_WRITE and not dry_run:
        raise InvalidArgument(
            f"Cannot vacuum {manifest.root} with older_than={older_than}: in weak mode a running "
            "write cannot notice that its files were removed, so expected at least "
            f"{LONGEST_WEAK_WRITE}. Keep more, or switch with set_mode('strong')."
        )
    root = Folder(manifest.root)
    files = root.list_files()
    # In the expression draft a row may name the version to read in weak mode too.
    read = {name: {each} for name, each in manifest.leaf_versions().items() if each is not None}
    tables = _list_leaves(manifest, read) + _list_unfinished_removals(manifest)
    found = find_debris(
        root, files, [LanceTable(manifest.root.subfolder(MANIFEST_DIRECTORY)), *tables], moment
    )
    # Strong snapshots committed after the listing need only the newest versions in it.
    if manifest.load_latest().properties.mode != "weak":
        raise CommitConflict(
            f"Cannot vacuum {manifest.root}: it changed to strong mode in the meantime. Vacuum "
            "it again."
        )
    return found


def _find_strong_debris(
    manifest: Manifest, moment: datetime, dry_run: bool
) -> tuple[Debris, tuple[int, ...]]:
    root = Folder(manifest.root)
    while True:
        plan = _preview_expiry(manifest, moment) if dry_run else _commit_expiry(manifest, moment)
        files = root.list_files()
        try:
            return find_unneeded_files(root, files, plan, moment), plan.expiry.snapshots
        except (PhalanxError, OSError, ValueError):
            now = read_head(manifest.load_latest())
            gone = {file.path for file in files} - {file.path for file in root.list_files()}
            if not gone and (dry_run or now is None or now.horizon == plan.horizon):
                raise
            # A concurrent vacuum with a shorter retention removed files that we were about to read.


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """What a vacuum expires, and the horizon that it committed (None: a dry run)."""

    manifest: Manifest
    expiry: Expiry
    horizon: str | None
    # The oldest version of the manifest to keep; 0 if the snapshots decide.
    oldest_version: int = 0


def _preview_expiry(manifest: Manifest, moment: datetime) -> ExpiryPlan:
    """Return what a vacuum would expire; raise if it would fail."""
    manifest = manifest.load_latest()
    locations = locations_of(manifest)
    map_parallel(
        lambda each: check_main(manifest, each[0], locations[each[0]], each[1]),
        [
            (name, version)
            for name, version in manifest.leaf_versions().items()
            if version is not None
        ],
    )
    return ExpiryPlan(manifest, plan_expiry(manifest, moment), None)


def _commit_expiry(manifest: Manifest, moment: datetime) -> ExpiryPlan:
    """Expire snapshots and move the horizon, which aborts transactions older than it.

    Raises `ForeignWrite` first if a leaf was modified outside Phalanx: the user must decide.
    """
    published: Manifest | None = None

    def attempt() -> ExpiryPlan:
        nonlocal published
        base, _ = load_head(manifest)
        names = None
        if published is not None:
            before = published.leaf_versions().items()
            names = [name for name, _ in base.leaf_versions().items() - before]
        published = publish(base, names)
        newest = read_head(published)
        if newest is None:
            raise CommitConflict(
                f"Cannot vacuum {manifest.root}: its mode was changed meanwhile. Vacuum again."
            )
        expiry = plan_expiry(published, moment)
        new_head = move_horizon(published, newest, expiry, moment)
        return ExpiryPlan(published, expiry, new_head.horizon)

    return head.retry_commit(attempt, manifest, "the vacuum", eager=True)


def find_unneeded_files(
    root: Folder, files: Sequence[StoredFile], plan: ExpiryPlan, moment: datetime
) -> Debris:
    """Return the files older than `moment` and the new horizon that no retained snapshot needs."""
    manifest, expiry = plan.manifest, plan.expiry
    prefix = f"{MANIFEST_DIRECTORY}/"
    written_at = list_main_versions(
        StoredFile(file.path.removeprefix(prefix), file.bytes, file.modified)
        for file in files
        if file.path.startswith(prefix)
    )
    before = moment
    if plan.horizon is not None:
        # Use the store's clock, which also dates the files: a transaction that begins after the
        # commit writes no file dated before it, even if times are truncated to seconds.
        later = [time for version, time in written_at.items() if version > manifest.version]
        before = min([moment, *later])
        if not later:
            raise StorageFailure(
                f"Cannot vacuum {manifest.root}: the store does not list version "
                f"{manifest.version + 1} of its manifest, which was just written. Try again."
            )
    first = plan.oldest_version or find_first_needed(manifest, expiry, written_at, before)
    kept_versions = frozenset(version for version in written_at if version >= first)
    own_table = LanceTable(
        manifest.root.subfolder(MANIFEST_DIRECTORY),
        kept_versions,
        keeps_only_newest=bool(plan.oldest_version),
    )
    leaves = _list_leaves(manifest, expiry.versions)
    leaves += [
        LanceTable(location, frozenset(expiry.versions.get(name, ())))
        for name, location in expiry.dropped.items()
    ]
    leaves += [LanceTable(each.location, is_unneeded=True) for each in expiry.leaving]
    leaves += _list_unfinished_removals(manifest)
    return find_debris(root, files, [own_table, *leaves], before, expiry.updates)


def _list_unfinished_removals(manifest: Manifest) -> list[LanceTable]:
    """Return the leaves that an earlier vacuum has not removed completely."""
    return [LanceTable(each.location, is_unneeded=True) for each in read_leaving_leaves(manifest)]


def _list_leaves(manifest: Manifest, needed: Mapping[str, set[int]]) -> list[LanceTable]:
    """Return the leaves, each with the versions of it that are needed."""
    branches = branches_of(manifest)
    return [
        LanceTable(location, frozenset(needed.get(name, ())), name in branches)
        for name, location in locations_of(manifest).items()
    ]
