"""The snapshots of a strong namespace: listed, read again, restored, compared."""

from __future__ import annotations

import operator
from datetime import UTC, datetime
from typing import Any, SupportsIndex

import pyarrow as pa

from phalanx.errors import PhalanxError
from phalanx.storage.changes.equivalent_files import same_files
from phalanx.storage.commit import head
from phalanx.storage.commit.head import LeafVersion, head_of, with_head
from phalanx.storage.commit.history_rows import snapshots_in
from phalanx.storage.commit.publishing import locations_of, named_by_others, publish, standing
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.leaf.reconcile import aligned
from phalanx.storage.leaf.staging import emptied, rows_changed
from phalanx.storage.manifest.dropped import dropped_leaves, with_dropped
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.read.inspection import with_keys
from phalanx.table.transactions.strong_mode import begin

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


def snapshots(manifest: Manifest | None) -> pa.Table:
    """Every snapshot, the oldest first; none in weak mode, nor in a layout without a manifest."""
    found = []
    if manifest is not None and manifest.properties.mode == "strong":
        found = snapshots_in(manifest)
    rows = [{**each, "time": datetime.fromisoformat(each["time"])} for each in found]
    return pa.Table.from_pylist(rows, _COLUMNS)


def newest(manifest: Manifest) -> int | None:
    """The id of the newest snapshot; None where there is none, as in weak mode."""
    found = head_of(manifest) if manifest.properties.mode == "strong" else None
    # Before the first snapshot the head stands at 0.
    return None if found is None else found.sequence or None


def at(manifest: Manifest, snapshot: int | datetime) -> Manifest:
    """The manifest of a snapshot, by id or as of a time (in UTC where it names no zone)."""
    wanted = found(manifest, snapshot)
    # Other commits than snapshots change the manifest too: the snapshot is the next or later.
    shown = None
    for version in range(int(wanted["manifest_version"]) + 1, manifest.version + 1):
        candidate = with_head(manifest, version)
        if candidate is None or candidate[1].sequence < wanted["id"]:
            continue
        there, found_head = candidate
        if found_head.sequence > wanted["id"]:
            break
        # By the published text others may say which versions are read: the last word counts.
        if shown is None or found_head.epoch == there.properties.epoch:
            shown = there
    if shown is not None:
        return shown
    raise PhalanxError(
        f"The manifest of snapshot {wanted['id']} of {manifest.root} is gone: something removed "
        "old versions of it. Read a later snapshot."
    )


def found(manifest: Manifest, snapshot: int | datetime) -> dict[str, Any]:
    """What the row of a snapshot says, by id or as of a time."""
    snapshot = plain(snapshot)
    listed = snapshots_in(manifest)
    if isinstance(snapshot, datetime):
        moment = snapshot if snapshot.tzinfo else snapshot.replace(tzinfo=UTC)
        chosen = [each for each in listed if datetime.fromisoformat(each["time"]) <= moment]
    else:
        chosen = [each for each in listed if each["id"] == snapshot]
    if not chosen:
        span = f"{listed[0]['id']} to {listed[-1]['id']}" if listed else "none"
        newest = head_of(manifest)
        gone = "Older ones were removed by vacuum. " if newest and newest.horizon else ""
        raise PhalanxError(
            f"{manifest.root} has no snapshot {snapshot}: expected one of {span}. {gone}See "
            "snapshots()."
        )
    return chosen[-1]


def plain(snapshot: Any) -> int | datetime:
    """What a user names a snapshot by; as `snapshots()` has it, too."""
    if isinstance(snapshot, pa.Scalar):
        snapshot = snapshot.as_py()
    if isinstance(snapshot, datetime):
        return snapshot
    if isinstance(snapshot, SupportsIndex) and not isinstance(snapshot, bool):
        return operator.index(snapshot)
    raise PhalanxError(f"Cannot read snapshot {snapshot!r}: expected its id, or a datetime.")


def rollback(manifest: Manifest, snapshot: int | datetime) -> int:
    """Make the rows of a snapshot the newest ones, as a new snapshot; its id.

    The schema and the specs stay as they are.
    """

    def attempt() -> int:
        base, newest = begin(manifest)
        past = at(base, snapshot)
        wanted, places = past.versions(), locations_of(past)
        locations, named = locations_of(base), named_by_others(base, newest)
        dropped = dropped_leaves(base, wanted)
        locations |= {name: leaf.location for name, leaf in dropped.items()}

        def restored(item: tuple[str, int | None]) -> LeafVersion | None:
            name, now = item
            location, then = locations[name], wanted.get(name)
            if name in wanted and places[name] != location:
                raise PhalanxError(
                    f"Cannot roll back {manifest.root} to {snapshot}: one of its partitions was "
                    f"read from {places[name]} then, and is from {location} now. Set read_branch "
                    "in its manifest row to what it was first."
                )
            if then == now:
                return None
            if then is None:
                assert now is not None
                version = emptied(location, now).version
            else:
                version = aligned(
                    location, location.open_leaf(then), base.properties.schema, is_ours=True
                ).version
            added, removed = _rows_changed(base, name, location, now, version)
            return LeafVersion(name, version, "rollback", added, removed, named.get(name))

        current = {**base.versions(), **dict.fromkeys(dropped)}
        leaves = [leaf for leaf in in_parallel(restored, current.items()) if leaf]
        again = past.rows_of(dropped) if dropped else None
        return head.commit(base, newest, leaves, "rollback", new=again)

    number = head.until_committed(attempt, manifest)
    with standing(number):
        publish(manifest)
    return number


def diff(manifest: Manifest, a: int | datetime, b: int | datetime) -> pa.Table:
    """The partitions that differ between two snapshots: their versions, rows added and removed."""
    before, after = at(manifest, a), at(manifest, b)
    old, new = before.versions(), after.versions()
    old_places, new_places = locations_of(before), locations_of(after)
    # The later of the two knows all, also those that were dropped.
    whole = max((with_dropped(each) for each in (after, before)), key=_partitions)
    locations = locations_of(whole)
    names = list(whole.versions())
    changed = [
        name
        for name in names
        if (old.get(name), old_places.get(name)) != (new.get(name), new_places.get(name))
    ]

    def counted(name: str) -> tuple[int, int]:
        place = locations[name]
        if {old_places.get(name, place), new_places.get(name, place)} == {place}:
            return _rows_changed(manifest, name, place, old.get(name), new.get(name))
        # Versions of two branches have only their files in common.
        was, now = old_places[name], new_places[name]
        return rows_changed(was.open_leaf(old[name]), now.open_leaf(new[name]))

    counts = in_parallel(counted, changed)
    # A partition without rows is as good as none.
    real = [
        place
        for place, name in enumerate(changed)
        if counts[place] != (0, 0) or (name in old and name in new)
    ]
    changed, counts = [changed[place] for place in real], [counts[place] for place in real]
    differs = set(changed)
    return with_keys(
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


def _partitions(manifest: Manifest) -> int:
    return manifest.total_partitions


def _rows_changed(
    manifest: Manifest, name: str, location: Location, old: int | None, new: int | None
) -> tuple[int, int]:
    before = None if old is None else location.open_leaf(old)
    after = None if new is None else location.open_leaf(new)
    versions = [version for version in (old, new) if version is not None]
    return rows_changed(before, after, lambda: same_files(manifest, name, location, versions))
