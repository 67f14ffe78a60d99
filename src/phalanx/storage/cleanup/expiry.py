"""Expiry of snapshots: what vacuum removes from a strong namespace's manifest, and how."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.storage.commit.head import Head, build_head_row, open_with_head
from phalanx.storage.commit.history_rows import (
    MARKER_ROW,
    PHALANX_TYPE,
    SNAPSHOT_ROW,
    TABLE_VERSION_TYPE,
    UPDATES_KEY,
    build_history_rows,
    read_marker,
    read_snapshot,
)
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.files import Folder
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.manifest.changes import replace_rows
from phalanx.storage.manifest.dropped import (
    DroppedLeaf,
    build_leaving_rows,
    read_dropped_leaves,
    read_leaving_leaves,
)
from phalanx.storage.manifest.manifest import HEAD_ROW_ID, Manifest
from phalanx.storage.state.naming import LEAF_DIRECTORY, SEPARATOR, is_snapshot_number

# Markers are kept this long, so that a transaction can be repeated after its snapshot expired.
MARKER_RETENTION = timedelta(days=7)
# A stopped stream can resume within this time; one row covers all its batches.
STREAM_RETENTION = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Expiry:
    """The expired snapshots, and the addresses of all manifest rows that only they need.

    `oldest` is the metadata of the oldest retained snapshot (None: there is no snapshot).
    `versions` has the versions of each leaf that retained snapshots read, and `updates` the names
    of their files of updates. `dropped` are dropped leaves that a retained snapshot still reads.
    """

    snapshots: tuple[int, ...]
    oldest: dict[str, Any] | None
    versions: dict[str, set[int]]
    updates: frozenset[str]
    row_addresses: npt.NDArray[np.uint64]
    dropped: Mapping[str, Location]
    # Dropped leaves that no retained snapshot reads, and that vacuum could not find by name.
    leaving: tuple[DroppedLeaf, ...] = ()
    # The object ids of all dropped leaves that no retained snapshot reads; their rows are removed.
    expired_leaves: frozenset[str] = frozenset()


def plan_expiry(manifest: Manifest, moment: datetime, through: int | None = None) -> Expiry:
    """Find what retained snapshots do not need: those that were the newest since a moment.

    With `through`, the snapshots after this one are retained instead. The newest always is. A
    marker is kept as long as its snapshot, and at least for `MARKER_RETENTION`, or for
    `STREAM_RETENTION` if it is that of a stream.
    """
    gone: list[int] = []
    snapshots: list[tuple[dict[str, Any], int]] = []
    markers: list[tuple[dict[str, Any], int]] = []
    for name, metadata, address in _read_rows(manifest, PHALANX_TYPE, "metadata"):
        if name.startswith(f"{SNAPSHOT_ROW}{SEPARATOR}"):
            snapshots.append((read_snapshot(name, metadata), address))
        elif name.startswith(f"{MARKER_ROW}{SEPARATOR}"):
            markers.append((read_marker(metadata), address))
        elif name == HEAD_ROW_ID:
            # The same commit writes the new head row.
            gone.append(address)
    snapshots.sort(key=lambda each: int(each[0]["id"]))
    times = {facts["id"]: facts["time"] for facts, _ in snapshots}
    over = [
        (facts["id"], address)
        for (facts, address), (successor, _) in pairwise(snapshots)
        if (
            datetime.fromisoformat(successor["time"]) < moment
            if through is None
            else facts["id"] <= through
        )
    ]
    oldest = snapshots[len(over)][0] if snapshots else None
    first = 0 if oldest is None else int(oldest["id"])
    gone += [address for _, address in over]
    now = datetime.now(UTC)
    for facts, address in markers:
        made = facts.get("time") or times.get(facts["snapshot"])
        since = now - (STREAM_RETENTION if "query" in facts else MARKER_RETENTION)
        recent = made is not None and datetime.fromisoformat(made) >= since
        if facts["snapshot"] < first and not recent:
            gone.append(address)
    dropped = read_dropped_leaves(manifest)
    expired_leaves = {
        name: leaf.address
        for name, leaf in dropped.items()
        if leaf.snapshot is not None and leaf.address is not None and leaf.snapshot <= first
    }
    gone += expired_leaves.values()
    versions, older = _split_versions(manifest, first, expired_leaves.keys())
    updates = frozenset(
        facts[UPDATES_KEY]
        for facts, _ in snapshots
        if facts["id"] >= first and UPDATES_KEY in facts
    )
    return Expiry(
        tuple(number for number, _ in over),
        oldest,
        versions,
        updates,
        np.array(gone + older, np.uint64),
        {name: leaf.location for name, leaf in dropped.items() if name not in expired_leaves},
        tuple(
            dropped[name]
            for name in expired_leaves
            if not _is_discoverable(manifest.root, dropped[name].location)
        ),
        frozenset(expired_leaves),
    )


def _is_discoverable(root: Location, leaf: Location) -> bool:
    """Whether vacuum finds the folder of an unlisted leaf by its name in the root."""
    parent, _, name = leaf.uri.rpartition("/")
    return parent == root.uri and LEAF_DIRECTORY.fullmatch(name) is not None


def _split_versions(
    manifest: Manifest, oldest: int, expired_leaves: Set[str]
) -> tuple[dict[str, set[int]], list[int]]:
    """Return the versions that snapshots from the oldest on read, by leaf, and unneeded rows.

    The manifest rows of expired leaves are unneeded.
    """
    versions: dict[str, set[int]] = defaultdict(set)
    # The oldest snapshot reads the highest row up to its own number.
    first: dict[str, tuple[int, int | None, int]] = {}
    gone: list[int] = []
    for row, version, address in _read_rows(manifest, TABLE_VERSION_TYPE, "read_version"):
        name, _, number = row.rpartition(SEPARATOR)
        if name in expired_leaves:
            gone.append(address)
            continue
        if not is_snapshot_number(number) or int(number) > oldest:
            if version is not None:
                versions[name].add(version)
            continue
        entry = (int(number), version, address)
        known = first.get(name)
        if known is not None:
            gone.append(min(known, entry)[2])
            entry = max(known, entry)
        first[name] = entry
    for name, (_, version, _) in first.items():
        if version is not None:
            versions[name].add(version)
    for name, version in manifest.leaf_versions().items():
        if version is not None:
            versions[name].add(version)
    return dict(versions), gone


def _read_rows(manifest: Manifest, kind: str, column: str) -> Iterator[tuple[str, Any, int]]:
    rows = manifest.select_rows(kind, ["object_id", column], with_row_address=True)
    names = ("object_id", column, "_rowaddr")
    yield from zip(*(rows.column(name).to_pylist() for name in names), strict=True)


def move_horizon(
    manifest: Manifest,
    head: Head,
    expiry: Expiry,
    moment: datetime,
    *,
    rewrite_all: bool = False,
) -> Head:
    """Remove expired rows, and end transactions that began before a moment; return the head.

    With `rewrite_all`, rewrite all rows, so that no file contains the removed ones.

    This adds no snapshot, but replaces the head row like a commit: a lost race raises. No two
    horizons are equal, so that a running transaction notices a vacuum regardless of the clocks.
    """
    if head.horizon:
        moment = max(moment, datetime.fromisoformat(head.horizon) + timedelta(microseconds=1))
    moved = dataclasses.replace(head, horizon=moment.isoformat(timespec="microseconds"))
    rows = [build_head_row(moved)]
    if expiry.leaving:
        rows.append(build_history_rows(build_leaving_rows(expiry.leaving), PHALANX_TYPE))
    replace_rows(manifest, pa.concat_tables(rows), expiry.row_addresses, rewrite_all=rewrite_all)
    fault_point(FaultPoint.HORIZON_MOVED)
    return moved


def remove_leaving_rows(manifest: Manifest) -> None:
    """Remove the manifest rows of removed leaves whose files are all gone."""

    def attempt() -> None:
        latest = manifest.load_latest()
        gone = [
            each.address for each in read_leaving_leaves(latest) if not has_files(each.location)
        ]
        if gone:
            nothing = latest.dataset.schema.empty_table()
            replace_rows(latest, nothing, np.array(gone, np.uint64))

    retry_conflicts(attempt)


def has_files(location: Location) -> bool:
    """Whether any file is stored at a location."""
    return bool(Folder(location).list_files())


def find_first_needed(
    manifest: Manifest, expiry: Expiry, made: Mapping[int, datetime], before: datetime
) -> int:
    """Return the oldest existing version of the manifest that snapshots still need.

    If several versions show the oldest snapshot, it is the last one made before the given time:
    readers of an earlier one have exceeded the retention time.
    """
    if expiry.oldest is None:
        return 0
    needed = None
    for version, moment in made.items():
        if version <= int(expiry.oldest["manifest_version"]):
            continue
        if needed is not None and moment >= before:
            break
        candidate = open_with_head(manifest, version)
        if candidate is None or candidate[1].sequence < expiry.oldest["id"]:
            continue
        there, found = candidate
        if found.sequence > expiry.oldest["id"]:
            break
        # Between a change of the properties and its snapshot, the epochs differ.
        if found.epoch == there.properties.epoch:
            needed = version
    return 0 if needed is None else needed
