"""The head of a strong namespace, and the manifest commit that adds a snapshot.

Each commit is one change of manifest rows, which always include the head row. Lance therefore
refuses one of two concurrent commits, and history is linear.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import (
    CommitConflict,
    InvalidManifest,
    PhalanxError,
    StorageFailure,
    UnknownOutcome,
)
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.model.stored_json import COUNT, ZONED_TIME, Rule, read_object
from phalanx.planning.formatting import format_count
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION, LEAF_OBJECT_ID, MANIFEST_ROW
from phalanx.storage.commit.history_rows import (
    DROP_METADATA,
    MARKER_ROW,
    PHALANX_TYPE,
    TABLE_VERSION_TYPE,
    UPDATES_KEY,
    Marker,
    StreamBatch,
    build_history_rows,
    build_marker_rows,
    marker_row_id,
    marker_texts_of,
    read_marker,
    read_snapshot,
    snapshot_row_id,
)
from phalanx.storage.lance.checksums import record_missing
from phalanx.storage.lance.failures import summarize_error
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.lance.retries import (
    AttemptResult,
    UncertainCommit,
    detect_uncertain_commit,
    is_commit_conflict,
    retry_conflicts,
)
from phalanx.storage.manifest.changes import add_missing_columns, replace_rows, upsert_rows
from phalanx.storage.manifest.columns import (
    METADATA,
    PIN_COLUMNS,
    READ_BRANCH,
    READ_TAG,
    READ_VERSION,
    normalize_types,
)
from phalanx.storage.manifest.dropped import (
    DROPPED_TYPE,
    LEAVING_PREFIX,
    DroppedLeaf,
    build_dropped_rows,
    read_dropped_leaves,
    row_addresses_of,
)
from phalanx.storage.manifest.manifest import HEAD_ROW_ID, Manifest
from phalanx.storage.manifest.pins import branch_of, build_pin_filter
from phalanx.storage.manifest.rows import LANCE_ROW_ADDRESS
from phalanx.storage.state.naming import SEPARATOR, is_snapshot_number

_FIELDS = {
    "sequence": COUNT,
    "epoch": COUNT,
    # Early versions stored an empty horizon as the number 0.
    "horizon": Rule(
        'a time with its zone, or ""',
        lambda value: (
            value == "" or (type(value) is int and value == 0) or ZONED_TIME.is_met(value)
        ),
    ),
    "time": ZONED_TIME,
}
_EAGER_ATTEMPTS = 200

_LOGGER = logging.getLogger("phalanx.storage")
# The largest difference between the clocks of two machines.
CLOCK_MARGIN = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Head:
    """The newest snapshot, and the epoch of the properties that it was committed under.

    `horizon` is the time before which the last vacuum removed files. Each vacuum changes it; it is
    empty before the first. All snapshots up to `published` have reached the main branches.
    """

    sequence: int
    epoch: int
    horizon: str
    time: str
    published: int = 0

    @classmethod
    def from_json(cls, text: str) -> Head:
        """Read the head from its row. Early versions stored a number as its horizon."""
        what = f"the newest snapshot (the row {HEAD_ROW_ID} of the manifest)"
        facts = read_object(text, what, _FIELDS, {"published": COUNT}, closed=True)
        if facts.get("published", 0) > facts["sequence"]:
            raise InvalidManifest(
                f"Cannot read {what}: published is {facts['published']}, expected no more than "
                f"sequence, which is {facts['sequence']}. Restore the row."
            )
        return cls(**{**facts, "horizon": facts["horizon"] or ""})

    @classmethod
    def initial(cls, epoch: int, last: int = 0) -> Head:
        """Return the head before the first snapshot; `last` is the highest number ever used."""
        start = datetime.min.replace(tzinfo=UTC).isoformat()
        return cls(last, epoch, "", start, published=last)

    def was_vacuumed(self, earlier: Head, began: datetime) -> bool:
        """Whether a vacuum since `earlier` may have removed files written since `began`."""
        if self.horizon == earlier.horizon:
            return False
        return began < datetime.fromisoformat(self.horizon) + CLOCK_MARGIN

    def to_json(self) -> str:
        """Return the metadata of the head row."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class LeafVersion:
    """A leaf in a commit: the version to read after it, and how it was made.

    `main` is the version of the leaf's main branch if the commit takes the branch over.
    """

    object_id: str
    version: int
    operation: str
    added: int = 0
    removed: int = 0
    main: int | None = None


def read_head(manifest: Manifest) -> Head | None:
    """Return the head of a strong namespace; None if it has no head row."""
    rows = manifest.read_row(HEAD_ROW_ID)
    if not rows.num_rows:
        return None
    for name in (METADATA, READ_VERSION):
        if name not in rows.column_names:
            raise InvalidManifest(
                f"The manifest of {manifest.root} has the row {HEAD_ROW_ID} and no column "
                f"{name!r}: expected both. It is damaged, or another program wrote it. Restore "
                "the column."
            )
    found = Head.from_json(rows.column(METADATA)[0].as_py())
    # Each snapshot adds a version of the manifest, unless another writer used higher numbers.
    if (
        found.sequence > manifest.version
        and not manifest.read_row(snapshot_row_id(found.sequence)).num_rows
    ):
        raise InvalidManifest(
            f"The row {HEAD_ROW_ID} of the manifest of {manifest.root} names snapshot "
            f"{found.sequence}, which is not listed. Another program wrote it, or it is "
            "damaged: restore it."
        )
    return found


def open_with_head(manifest: Manifest, version: int) -> tuple[Manifest, Head] | None:
    """Open another version of a manifest with its head; None if either does not exist."""
    try:
        there = manifest.at_version(version)
        found = read_head(there)
    except (OSError, ValueError) as error:
        # Vacuum removes the oldest versions.
        if "not found" not in str(error).lower():
            raise
        return None
    return None if found is None else (there, found)


def build_head_row(head: Head) -> pa.Table:
    """Build the manifest row of a head."""
    return build_history_rows({HEAD_ROW_ID: head.to_json()}, PHALANX_TYPE)


def make_first_head(manifest: Manifest) -> Head:
    """Return the head before the first snapshot; numbers in existing rows are not reused."""
    rows = manifest.read_rows(
        columns=["object_id", "object_type", "metadata"],
        condition=f"object_type IN ('{TABLE_VERSION_TYPE}', '{PHALANX_TYPE}')",
    )
    numbers = []
    for row in rows.to_pylist():
        if row["object_type"] == TABLE_VERSION_TYPE:
            numbers.append(row["object_id"].rpartition(SEPARATOR)[2])
        elif row["object_id"].startswith(f"{MARKER_ROW}{SEPARATOR}"):
            numbers.append(str(read_marker(row["metadata"])["snapshot"]))
    last = max((int(number) for number in numbers if is_snapshot_number(number)), default=0)
    return Head.initial(manifest.properties.epoch, last)


def commit(
    manifest: Manifest,
    head: Head,
    leaves: Sequence[LeafVersion],
    operation: str,
    *,
    new: pa.Table | None = None,
    dropped: Sequence[str] = (),
    epoch: int | None = None,
    marker: Marker | None = None,
    updates: str | None = None,
) -> int:
    """Commit a snapshot on top of exactly this manifest and its head; return the snapshot's id.

    Args:
        new: The rows of partitions that the commit creates, or lists again after a drop.
        dropped: The object ids of partitions that the commit drops.
        epoch: The epoch of the properties, if the commit completes a change of them.
        updates: The name of the file with the pairs of updated rows.

    Raises:
        OSError: The race was lost; nothing changed.
        UnknownOutcome: The store failed, and it is not known whether the commit was made.
    """
    moment = _next_time(head.time)
    head_address = manifest.read_row(HEAD_ROW_ID).column(LANCE_ROW_ADDRESS).to_numpy()
    if not head.sequence and len(head_address):
        # The first snapshot adds the rows that the table was created for.
        operation = "create"
    number = head.sequence + 1
    head = replace(head, sequence=number, time=moment)
    if epoch is not None:
        head = replace(head, epoch=epoch)
    snapshot: dict[str, Any] = {
        "id": number,
        "time": moment,
        "operation": operation,
        "partitions": len(leaves) + len(dropped),
        "rows_added": sum(leaf.added for leaf in leaves),
        # Counting the rows of dropped leaves would open them.
        "rows_removed": None if dropped else sum(leaf.removed for leaf in leaves),
        "manifest_version": manifest.base_version,
        # A writer recognizes its own snapshot by this if the store's answer was lost.
        "token": uuid.uuid4().hex,
    }
    if updates is not None:
        snapshot[UPDATES_KEY] = updates
    ours = {HEAD_ROW_ID: head.to_json(), snapshot_row_id(number): json.dumps(snapshot)}
    if marker is not None:
        ours |= build_marker_rows(marker, number, moment)
    found = manifest.list_named_leaves(leaf.object_id for leaf in leaves)
    gone = manifest.list_named_leaves(dropped)
    back = [] if new is None else _find_relisted(manifest, new)
    rows = pa.concat_tables(
        [
            _build_table_rows(manifest, found, leaves, new),
            add_missing_columns(
                manifest, build_dropped_rows(_read_leaf_rows(manifest, gone), number)
            ),
            add_missing_columns(manifest, _build_version_rows(leaves, number)),
            add_missing_columns(manifest, _build_drop_rows(dropped, number)),
            add_missing_columns(manifest, build_history_rows(ours, PHALANX_TYPE)),
        ]
    )
    if manifest.root.checksums:
        _record_checksums(manifest, leaves, found)
    fault_point(FaultPoint.COMMITTING)
    try:
        if len(head_address):
            listed = [each.column(MANIFEST_ROW).to_numpy() for each in (found, gone)]
            replaced = [*listed, row_addresses_of(back), head_address]
            if isinstance(marker, StreamBatch):
                # Replace the marker of the previous batch.
                replaced.append(
                    manifest.read_row(marker_row_id(marker)).column(LANCE_ROW_ADDRESS).to_numpy()
                )
            replace_rows(manifest, rows, np.concatenate(replaced))
        else:
            # A merge refuses one of two first commits, by the primary key of the head row.
            with detect_uncertain_commit():
                upsert_rows(manifest, rows)
        with detect_uncertain_commit():
            fault_point(FaultPoint.COMMITTED)
    except OSError as error:
        is_open = isinstance(error, UncertainCommit) or is_commit_conflict(error)
        if not is_open or not _was_committed(manifest, snapshot, marker_texts_of(marker), error):
            raise
    _LOGGER.info(
        "Committed snapshot %d of %s: %s, %s, %s added, %s removed",
        *(number, manifest.root, operation, format_count(snapshot["partitions"], "partition")),
        format_count(snapshot["rows_added"], "row"),
        "unknown" if dropped else f"{snapshot['rows_removed']:,}",
    )
    return number


def _record_checksums(manifest: Manifest, leaves: Sequence[LeafVersion], found: pa.Table) -> None:
    """Write checksums of the versions that the commit takes over from main branches."""
    taken = {leaf.object_id: leaf.version for leaf in leaves if leaf.main is not None}
    names, locations = (found.column(name).to_pylist() for name in (LEAF_OBJECT_ID, LEAF_LOCATION))

    def record(leaf: tuple[str, str]) -> None:
        location = manifest.root.leaf(leaf[1])
        record_missing(location, location.open_leaf(taken[leaf[0]]))

    map_parallel(record, [each for each in zip(names, locations, strict=True) if each[0] in taken])


def _was_committed(
    manifest: Manifest, snapshot: Mapping[str, Any], markers: Iterable[str], error: OSError
) -> bool:
    """Whether a commit that ended in an error was made nevertheless.

    Raise `UnknownOutcome` if that is not known: a failed request may still take effect.
    """
    number, why = int(snapshot["id"]), error
    try:
        rows = Manifest.open(manifest.root).read_rows_by_id([snapshot_row_id(number)])
    except (OSError, ValueError, PhalanxError) as failed:
        why = OSError(f"{summarize_error(error)} Then: {summarize_error(failed)}")
    else:
        if rows.num_rows:
            found = read_snapshot(snapshot_row_id(number), rows.column("metadata")[0].as_py())
            return bool(found.get("token") == snapshot["token"])
        if is_commit_conflict(error):
            return False
    raise UnknownOutcome(
        f"The store failed while snapshot {number} of {manifest.root} was committed: "
        f"{summarize_error(why)} It is not known whether it was made. Look for it in snapshots(), "
        "or repeat the same transaction if it has a marker, which commits it once.",
        snapshot=number,
        markers=markers,
    ) from error


def retry_commit(
    attempt: Callable[[], AttemptResult],
    manifest: Manifest,
    change: str = "the change",
    *,
    eager: bool = False,
    partitions: Iterable[PartitionKey] = (),
) -> AttemptResult:
    """Run attempts until one wins the race, and return its result; each must start afresh.

    With `eager`, retry at once and more often.
    """
    try:
        return (
            retry_conflicts(attempt, _EAGER_ATTEMPTS, eager=True)
            if eager
            else retry_conflicts(attempt)
        )
    except OSError as error:
        if not is_commit_conflict(error):
            raise
        newest = read_head(manifest.load_latest())
        last = "" if newest is None else f", the last one with snapshot {newest.sequence}"
        raise CommitConflict(
            f"Cannot commit {change} to {manifest.root}: other writers were always first{last}. "
            "Nothing was changed. Try again when fewer writers are active.",
            partitions=partitions,
            snapshot=None if newest is None else newest.sequence,
        ) from None


def _build_table_rows(
    manifest: Manifest, found: pa.Table, leaves: Sequence[LeafVersion], new: pa.Table | None
) -> pa.Table:
    """Build the rows of the leaves with their new versions, and those of new partitions."""
    rows = _read_leaf_rows(manifest, found)
    if new is not None:
        # Namespaces that several partitions share may exist already.
        there = manifest.read_rows_by_id(new.column("object_id").to_pylist()).column("object_id")
        made = new.filter(pc.invert(pc.is_in(new.column("object_id"), there)))
        rows = pa.concat_tables(
            [rows, normalize_types(add_missing_columns(manifest, made), manifest.root)]
        )
    versions = {leaf.object_id: leaf.version for leaf in leaves}
    listed = [versions.get(name) for name in rows.column("object_id").to_pylist()]
    index = rows.column_names.index(READ_VERSION)
    rows = rows.set_column(index, READ_VERSION, pa.array(listed, pa.uint64()))
    return add_missing_columns(manifest, _set_branches(rows, found))


def _read_leaf_rows(manifest: Manifest, leaves: pa.Table) -> pa.Table:
    """Return the rows that list these leaves."""
    rows = normalize_types(
        add_missing_columns(manifest, manifest.read_leaf_rows(leaves)), manifest.root
    )
    if Counter(rows.column("object_id").to_pylist()) != Counter(
        leaves.column(LEAF_OBJECT_ID).to_pylist()
    ):
        raise StorageFailure(
            f"Cannot commit to {manifest.root}: the rows of its manifest are not at their "
            "addresses. Another program wrote it. Nothing was changed."
        )
    return rows


def _find_relisted(manifest: Manifest, new: pa.Table) -> list[DroppedLeaf]:
    """Return the dropped leaves that the new rows list again."""
    names = new.filter(pc.equal(new.column("object_type"), "table")).column("object_id")
    return list(read_dropped_leaves(manifest, names.to_pylist()).values())


def _set_branches(rows: pa.Table, found: pa.Table) -> pa.Table:
    """Set the branch that each leaf is read from, and remove tags, which name older versions.

    A manifest of the newest format has neither column.
    """
    if READ_BRANCH in rows.column_names:
        names, locations = (
            found.column(LEAF_OBJECT_ID).to_pylist(),
            found.column(LEAF_LOCATION).to_pylist(),
        )
        located = dict(zip(names, locations, strict=True))
        branches = [
            branch_of(stored, located[name]) if name in located else None
            for name, stored in zip(
                rows.column("object_id").to_pylist(),
                rows.column("location").to_pylist(),
                strict=True,
            )
        ]
        index = rows.column_names.index(READ_BRANCH)
        rows = rows.set_column(index, READ_BRANCH, pa.array(branches, pa.string()))
    return rows.drop_columns([name for name in (READ_TAG,) if name in rows.column_names])


def _build_version_rows(leaves: Sequence[LeafVersion], number: int) -> pa.Table:
    metadata = {}
    for leaf in leaves:
        facts: dict[str, Any] = {
            "operation": leaf.operation,
            "rows_added": leaf.added,
            "rows_removed": leaf.removed,
        }
        if leaf.main is not None:
            facts["main"] = leaf.main
        metadata[f"{leaf.object_id}{SEPARATOR}{number}"] = json.dumps(facts)
    versions = pa.array([leaf.version for leaf in leaves], pa.uint64())
    return build_history_rows(metadata, TABLE_VERSION_TYPE).append_column("read_version", versions)


def _build_drop_rows(names: Sequence[str], number: int) -> pa.Table:
    ids = pc.binary_join_element_wise(pa.array(names, pa.string()), str(number), SEPARATOR)
    return pa.table(
        {
            "object_id": ids,
            "object_type": pa.repeat(pa.scalar(TABLE_VERSION_TYPE), len(names)),
            "metadata": pa.repeat(pa.scalar(DROP_METADATA), len(names)),
        }
    )


def remove_strong_rows(manifest: Manifest) -> None:
    """Remove in one commit all rows and pins of strong mode, which has ended.

    Pins may also exist in weak mode; they stay if strong mode has not just ended.
    """
    if manifest.properties.mode == "strong":
        # Another writer has returned to strong mode: the rows are its own.
        return
    columns = manifest.dataset.schema.names
    pinned = build_pin_filter(columns) if manifest.has_stale_strong_rows else "false"
    # Markers stay, so that a repeated transaction finds its own in any mode.
    ours = (
        f"object_type IN ('{TABLE_VERSION_TYPE}', '{DROPPED_TYPE}') OR "
        f"(object_type = '{PHALANX_TYPE}' AND object_id NOT LIKE '{MARKER_ROW}{SEPARATOR}%' "
        f"AND object_id NOT LIKE '{LEAVING_PREFIX}%')"
    )
    rows = manifest.read_rows(f"{ours} OR ({pinned})", with_row_address=True)
    if not rows.num_rows:
        return
    tables = rows.filter(pc.equal(rows.column("object_type"), "table"))
    cleared = [field.name for field in PIN_COLUMNS if field.name in columns]
    replace_rows(manifest, tables.drop_columns(cleared), rows.column(LANCE_ROW_ADDRESS).to_numpy())
    fault_point(FaultPoint.STRONG_ROWS_REMOVED)


def _next_time(last: str) -> str:
    """Return the current time, but later than the last snapshot, regardless of the clocks."""
    now = max(datetime.now(UTC), datetime.fromisoformat(last) + timedelta(microseconds=1))
    return now.isoformat(timespec="microseconds")
