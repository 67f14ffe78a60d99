"""What vacuum takes out of a strong namespace's manifest, and the fence that it passes for that."""

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

from phalanx.storage.commit.head import Head, head_row, with_head
from phalanx.storage.commit.history_rows import (
    MARKER,
    PHALANX,
    SNAPSHOT,
    TABLE_VERSION,
    UPDATES,
    history_rows,
    marker_facts,
    snapshot_facts,
)
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.files import Folder
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import until_won
from phalanx.storage.manifest.changes import change
from phalanx.storage.manifest.dropped import (
    DroppedLeaf,
    dropped_leaves,
    leaving_leaves,
    rows_of_leaving,
)
from phalanx.storage.manifest.manifest import HEAD, Manifest
from phalanx.storage.state.naming import LEAF_DIRECTORY, SEPARATOR, is_number

# Whoever repeats a transaction by its marker does so within this time, however short the history.
MARKERS_KEPT = timedelta(days=7)
# A stream that stood still goes on within this time; there is one row for all its batches.
STREAMS_KEPT = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Expiry:
    """What is over: the snapshots, and the addresses of all rows that only they need.

    `oldest` is what the row of the oldest retained snapshot says (None where there is none yet),
    `versions` has those of each leaf that retained snapshots read, and `updates` names the files
    that tell what they updated. `dropped` are the leaves that were dropped, and some of them read
    nevertheless.
    """

    snapshots: tuple[int, ...]
    oldest: dict[str, Any] | None
    versions: dict[str, set[int]]
    updates: frozenset[str]
    addresses: npt.NDArray[np.uint64]
    dropped: Mapping[str, Location]
    # Dropped leaves that none of them reads, and that nothing else would find again.
    leaving: tuple[DroppedLeaf, ...] = ()
    # The object ids of all leaves that are not remembered any more.
    forgotten: frozenset[str] = frozenset()


def expired(manifest: Manifest, moment: datetime, through: int | None = None) -> Expiry:
    """What retained snapshots do not need: those that were the newest at any time since a moment.

    With `through` those that came after this snapshot are retained instead; the newest always is.
    A marker stays with its snapshot, and at least for `MARKERS_KEPT`; that of a stream for longer.
    """
    gone: list[int] = []
    snapshots: list[tuple[dict[str, Any], int]] = []
    markers: list[tuple[dict[str, Any], int]] = []
    for name, metadata, address in _rows(manifest, PHALANX, "metadata"):
        if name.startswith(f"{SNAPSHOT}{SEPARATOR}"):
            snapshots.append((snapshot_facts(name, metadata), address))
        elif name.startswith(f"{MARKER}{SEPARATOR}"):
            markers.append((marker_facts(metadata), address))
        elif name == HEAD:
            # It is written anew.
            gone.append(address)
    snapshots.sort(key=lambda each: int(each[0]["id"]))
    times = {said["id"]: said["time"] for said, _ in snapshots}
    over = [
        (said["id"], address)
        for (said, address), (successor, _) in pairwise(snapshots)
        if (
            datetime.fromisoformat(successor["time"]) < moment
            if through is None
            else said["id"] <= through
        )
    ]
    oldest = snapshots[len(over)][0] if snapshots else None
    first = 0 if oldest is None else int(oldest["id"])
    gone += [address for _, address in over]
    now = datetime.now(UTC)
    for said, address in markers:
        made = said.get("time") or times.get(said["snapshot"])
        since = now - (STREAMS_KEPT if "query" in said else MARKERS_KEPT)
        recent = made is not None and datetime.fromisoformat(made) >= since
        if said["snapshot"] < first and not recent:
            gone.append(address)
    dropped = dropped_leaves(manifest)
    forgotten = {
        name: leaf.address
        for name, leaf in dropped.items()
        if leaf.snapshot is not None and leaf.address is not None and leaf.snapshot <= first
    }
    gone += forgotten.values()
    versions, older = _versions(manifest, first, forgotten.keys())
    updates = frozenset(
        said[UPDATES] for said, _ in snapshots if said["id"] >= first and UPDATES in said
    )
    return Expiry(
        tuple(number for number, _ in over),
        oldest,
        versions,
        updates,
        np.array(gone + older, np.uint64),
        {name: leaf.location for name, leaf in dropped.items() if name not in forgotten},
        tuple(
            dropped[name]
            for name in forgotten
            if not _is_found_again(manifest.root, dropped[name].location)
        ),
        frozenset(forgotten),
    )


def _is_found_again(root: Location, leaf: Location) -> bool:
    """Whether a vacuum finds the folder of a leaf that nothing lists: by its name, in the root."""
    parent, _, name = leaf.uri.rpartition("/")
    return parent == root.uri and LEAF_DIRECTORY.fullmatch(name) is not None


def _versions(
    manifest: Manifest, oldest: int, forgotten: Set[str]
) -> tuple[dict[str, set[int]], list[int]]:
    """The versions that snapshots from the oldest on read, by leaf; and rows that none needs.

    None needs those of forgotten leaves.
    """
    versions: dict[str, set[int]] = defaultdict(set)
    # The highest entry up to the oldest snapshot is what that one reads.
    first: dict[str, tuple[int, int | None, int]] = {}
    gone: list[int] = []
    for row, version, address in _rows(manifest, TABLE_VERSION, "read_version"):
        name, _, number = row.rpartition(SEPARATOR)
        if name in forgotten:
            gone.append(address)
            continue
        if not is_number(number) or int(number) > oldest:
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
    for name, version in manifest.versions().items():
        if version is not None:
            versions[name].add(version)
    return dict(versions), gone


def _rows(manifest: Manifest, kind: str, column: str) -> Iterator[tuple[str, Any, int]]:
    rows = manifest.table(
        columns=["object_id", column], condition=f"object_type = '{kind}'", with_row_address=True
    )
    names = ("object_id", column, "_rowaddr")
    yield from zip(*(rows.column(name).to_pylist() for name in names), strict=True)


def move_horizon(
    manifest: Manifest,
    head: Head,
    expiry: Expiry,
    moment: datetime,
    *,
    everything: bool = False,
) -> Head:
    """Take out what is over, and end the transactions that began before a moment; the new head.

    With `everything` all rows are written anew: no file has those that are taken out.

    It makes no snapshot, but passes the same fence: a lost race raises. No horizon comes twice,
    so that whoever began before it sees that there was another one, whatever the clocks say.
    """
    if head.horizon:
        moment = max(moment, datetime.fromisoformat(head.horizon) + timedelta(microseconds=1))
    moved = dataclasses.replace(head, horizon=moment.isoformat(timespec="microseconds"))
    rows = [head_row(moved)]
    if expiry.leaving:
        rows.append(history_rows(rows_of_leaving(expiry.leaving), PHALANX))
    change(manifest, pa.concat_tables(rows), expiry.addresses, everything=everything)
    reach(Step.HORIZON_MOVED)
    return moved


def forget_removed(manifest: Manifest) -> None:
    """Take out the rows of leaves that are removed, and have no files any more."""

    def attempt() -> None:
        latest = manifest.latest()
        gone = [each.address for each in leaving_leaves(latest) if not has_files(each.location)]
        if gone:
            nothing = latest.dataset.schema.empty_table()
            change(latest, nothing, np.array(gone, np.uint64))

    until_won(attempt)


def has_files(location: Location) -> bool:
    """Whether anything is stored at a place."""
    return bool(Folder(location).files())


def first_needed(
    manifest: Manifest, expiry: Expiry, made: Mapping[int, datetime], before: datetime
) -> int:
    """The oldest version of the manifest that snapshots still need, of those that are there.

    Of several that show the oldest snapshot it is the last one from before the given time:
    whoever reads an earlier one has done so since a time that is over.
    """
    if expiry.oldest is None:
        return 0
    needed = None
    for version, moment in made.items():
        if version <= int(expiry.oldest["manifest_version"]):
            continue
        if needed is not None and moment >= before:
            break
        candidate = with_head(manifest, version)
        if candidate is None or candidate[1].sequence < expiry.oldest["id"]:
            continue
        there, found = candidate
        if found.sequence > expiry.oldest["id"]:
            break
        # Between a change of the properties and its snapshot they are not the snapshot's.
        if found.epoch == there.properties.epoch:
            needed = version
    return 0 if needed is None else needed
