"""The snapshots of a strong namespace: list, open, roll back to and compare them."""

from __future__ import annotations

import operator
from datetime import UTC, datetime
from typing import Any, SupportsIndex

import pyarrow as pa

from phalanx.errors import InvalidArgument, PhalanxError
from phalanx.storage.changes.equivalent_files import find_equivalent_files
from phalanx.storage.commit import head
from phalanx.storage.commit.head import LeafVersion, open_with_head, read_head
from phalanx.storage.commit.history_rows import list_snapshots
from phalanx.storage.commit.publishing import (
    find_foreign_pins,
    locations_of,
    publish,
    tolerate_publish_failures,
)
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.leaf.reconcile import stage_aligned
from phalanx.storage.leaf.staging import count_changed_rows, stage_emptied
from phalanx.storage.manifest.dropped import include_dropped, read_dropped_leaves
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.read.inspection import prepend_keys
from phalanx.table.transactions.strong_mode import load_head

_COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("operation", pa.string()),
        ("partitions", pa.int64()),
        ("rows_added", pa.int64()),
        ("rows_removed", pa.int64()),
    ]
)


def tabulate_snapshots(manifest: Manifest | None) -> pa.Table:
    """Return all snapshots, oldest first; none in weak mode or in a layout without a manifest."""
    found = []
    if manifest is not None and manifest.properties.mode == "strong":
        found = list_snapshots(manifest)
    rows = [{**each, "time": datetime.fromisoformat(each["time"])} for each in found]
    return pa.Table.from_pylist(rows, _COLUMNS)


def find_newest(manifest: Manifest) -> int | None:
    """Return the id of the newest snapshot; None if there is none, as in weak mode."""
    found = read_head(manifest) if manifest.properties.mode == "strong" else None
    # Before the first snapshot the head's sequence number is 0.
    return None if found is None else found.sequence or None


def open_snapshot(manifest: Manifest, snapshot: int | datetime) -> Manifest:
    """Return the manifest of a snapshot, by id or as of a time (in UTC if it has no zone)."""
    row = find_snapshot(manifest, snapshot)
    # Commits that are not snapshots also change the manifest: the snapshot is the next or later.
    shown = None
    for version in range(int(row["manifest_version"]) + 1, manifest.version + 1):
        candidate = open_with_head(manifest, version)
        if candidate is None or candidate[1].sequence < row["id"]:
            continue
        there, found_head = candidate
        if found_head.sequence > row["id"]:
            break
        # The format lets other writers pin versions: the last manifest of the snapshot counts.
        if shown is None or found_head.epoch == there.properties.epoch:
            shown = there
    if shown is not None:
        return shown
    raise PhalanxError(
        f"The manifest of snapshot {row['id']} of {manifest.root} is gone: something removed "
        "old versions of it. Read a later snapshot."
    )


def find_snapshot(manifest: Manifest, snapshot: int | datetime) -> dict[str, Any]:
    """Return the row of a snapshot, by id or as of a time."""
    snapshot = normalize_snapshot(snapshot)
    listed = list_snapshots(manifest)
    if isinstance(snapshot, datetime):
        moment = snapshot if snapshot.tzinfo else snapshot.replace(tzinfo=UTC)
        chosen = [each for each in listed if datetime.fromisoformat(each["time"]) <= moment]
    else:
        chosen = [each for each in listed if each["id"] == snapshot]
    if not chosen:
        span = f"{listed[0]['id']} to {listed[-1]['id']}" if listed else "none"
        newest = read_head(manifest)
        hint = "Older ones were removed by vacuum. " if newest and newest.horizon else ""
        raise PhalanxError(
            f"{manifest.root} has no snapshot {snapshot}: expected one of {span}. {hint}See "
            "snapshots()."
        )
    return chosen[-1]


def normalize_snapshot(snapshot: Any) -> int | datetime:
    """Parse a snapshot id or time, also as an Arrow scalar of `snapshots()`."""
    if isinstance(snapshot, pa.Scalar):
        snapshot = snapshot.as_py()
    if isinstance(snapshot, datetime):
        return snapshot
    if isinstance(snapshot, SupportsIndex) and not isinstance(snapshot, bool):
        return operator.index(snapshot)
    raise InvalidArgument(f"Cannot read snapshot {snapshot!r}: expected its id, or a datetime.")


def rollback(manifest: Manifest, snapshot: int | datetime) -> int:
    """Restore the rows of a snapshot as a new snapshot, and return its id.

    The schema and the specs stay as they are.
    """

    def attempt() -> int:
        base, newest = load_head(manifest)
        past = open_snapshot(base, snapshot)
        versions, places = past.leaf_versions(), locations_of(past)
        locations, named = locations_of(base), find_foreign_pins(base, newest)
        dropped = read_dropped_leaves(base, versions)
        locations |= {name: leaf.location for name, leaf in dropped.items()}

        def restore(item: tuple[str, int | None]) -> LeafVersion | None:
            name, now = item
            location, then = locations[name], versions.get(name)
            if name in versions and places[name] != location:
                raise PhalanxError(
                    f"Cannot roll back {manifest.root} to {snapshot}: one of its partitions was "
                    f"read from {places[name]} then, and is read from {location} now. First set "
                    "read_branch in its manifest row to what it was."
                )
            if then == now:
                return None
            if then is None:
                assert now is not None
                version = stage_emptied(location, now).version
            else:
                version = stage_aligned(
                    location, location.open_leaf(then), base.properties.schema, is_ours=True
                ).version
            added, removed = _count_changed_rows(base, name, location, now, version)
            return LeafVersion(name, version, "rollback", added, removed, named.get(name))

        current = {**base.leaf_versions(), **dict.fromkeys(dropped)}
        leaves = [leaf for leaf in map_parallel(restore, current.items()) if leaf]
        again = past.read_rows_by_id(dropped) if dropped else None
        return head.commit(base, newest, leaves, "rollback", new=again)

    number = head.retry_commit(attempt, manifest)
    with tolerate_publish_failures(number):
        publish(manifest)
    return number


def diff(manifest: Manifest, a: int | datetime, b: int | datetime) -> pa.Table:
    """Return the partitions that differ between two snapshots, with versions and row counts."""
    before, after = open_snapshot(manifest, a), open_snapshot(manifest, b)
    old, new = before.leaf_versions(), after.leaf_versions()
    old_places, new_places = locations_of(before), locations_of(after)
    # The later of the two lists all leaves, including dropped ones.
    whole = max((include_dropped(each) for each in (after, before)), key=_count_partitions)
    locations = locations_of(whole)
    names = list(whole.leaf_versions())
    changed = [
        name
        for name in names
        if (old.get(name), old_places.get(name)) != (new.get(name), new_places.get(name))
    ]

    def count(name: str) -> tuple[int, int]:
        place = locations[name]
        if {old_places.get(name, place), new_places.get(name, place)} == {place}:
            return _count_changed_rows(manifest, name, place, old.get(name), new.get(name))
        # Versions of two branches share only files.
        was, now = old_places[name], new_places[name]
        return count_changed_rows(was.open_leaf(old[name]), now.open_leaf(new[name]))

    counts = map_parallel(count, changed)
    # A new or dropped partition without rows is no difference.
    real = [
        place
        for place, name in enumerate(changed)
        if counts[place] != (0, 0) or (name in old and name in new)
    ]
    changed, counts = [changed[place] for place in real], [counts[place] for place in real]
    differs = set(changed)
    return prepend_keys(
        whole,
        [int(name in differs) for name in names],
        {
            "location": pa.array([locations[name].uri for name in changed], pa.string()),
            "from_version": pa.array([old.get(name) for name in changed], pa.uint64()),
            "to_version": pa.array([new.get(name) for name in changed], pa.uint64()),
            "rows_added": pa.array([added for added, _ in counts], pa.int64()),
            "rows_removed": pa.array([removed for _, removed in counts], pa.int64()),
        },
    )


def _count_partitions(manifest: Manifest) -> int:
    return manifest.total_partitions


def _count_changed_rows(
    manifest: Manifest, name: str, location: Location, old: int | None, new: int | None
) -> tuple[int, int]:
    before = None if old is None else location.open_leaf(old)
    after = None if new is None else location.open_leaf(new)
    versions = [version for version in (old, new) if version is not None]
    return count_changed_rows(
        before, after, lambda: find_equivalent_files(manifest, name, location, versions)
    )
