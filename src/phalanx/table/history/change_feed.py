"""The change feed: the rows inserted, deleted and updated from one snapshot to another.

The feed is ordered by snapshot; within a snapshot removed rows (`delete`, `update_before`) come
before added rows (`insert`, `update_after`). Removing and adding these rows in that order turns
the rows of the first snapshot into those of the last. Compactions, moves to another spec, spec
evolution and schema changes change no rows; a rollback removes and adds what it restores. If it
undoes a move, or a compaction of rows that were changed later, the feed has all rows of these
files as deleted and inserted. Rows that existed only in between are included.

Rows have the columns of the last snapshot, with its names and types. A predicate applies to each
row separately: if an update makes a row no longer match, the feed has the row before the update
but not the row after it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby, islice
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import InvalidArgument, PhalanxError, SchemaMismatch
from phalanx.model.predicates.rendering import summarize
from phalanx.model.schema.schema import Schema
from phalanx.planning.change_plan import ChangePlan, PlannedChange
from phalanx.planning.formatting import format_count
from phalanx.planning.pruning.leaf_columns import LEAF_OBJECT_ID
from phalanx.planning.pruning.scan_plan import PlannedPartition, ScanPlan
from phalanx.planning.splits import choose_task_bytes, pack_in_tasks
from phalanx.storage.changes.changed_fragments import (
    CHANGE_FIELDS,
    ChangedFragment,
    UpdatesFile,
    with_change_fields,
)
from phalanx.storage.changes.diff import ChangedLeaf, diff_leaf, list_all_fragments
from phalanx.storage.commit.history_rows import (
    UPDATES_KEY,
    LeafChange,
    begins_history,
    list_snapshots,
    read_leaf_changes,
    read_snapshot_range,
    read_versions_at,
)
from phalanx.storage.commit.publishing import locations_of
from phalanx.storage.lance.failures import ErrorTranslator, describe_as, translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.leaf.reading import SCAN_THREADS, read_in_order
from phalanx.storage.manifest.dropped import include_dropped
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.history import snapshots
from phalanx.table.read.scan import Scan, make_scan

# How many leaf changes are compared at once.
_BATCH_LEAVES = 64
# Small, because other tasks run on the same machine.
_FRAGMENTS_AHEAD = 2
Item = TypeVar("Item")
_LOGGER = logging.getLogger("phalanx.table")


@dataclass(frozen=True, slots=True, eq=False)
class ChangeFeed(ErrorTranslator):
    """The changes between two snapshots: a plan, executed when the rows are read.

    Every row has its columns, then `_change`, `_snapshot` and `_update`: the kind of change, the
    snapshot that made it, and for updates a number shared by the rows before and after the update
    within the snapshot.

    Internal: `table_schema`.

    Attributes:
        plan: The changes of partitions to read.
        columns: The names of the columns to read.
    """

    plan: ChangePlan
    table_schema: Schema
    columns: tuple[str, ...]
    _manifest: Manifest = field(repr=False)
    _leaves: tuple[ChangedLeaf, ...] = field(repr=False)

    def _error_location(self) -> Location:
        return self._manifest.root

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return with_change_fields(self.table_schema, self.columns)

    def to_arrow(self) -> pa.Table:
        """Read all changes into memory."""
        return pa.Table.from_batches(self.to_batches(), self.schema)

    @describe_as("read changes of")
    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Stream the changes; memory does not grow with the number of changed rows.

        Only the row positions of the updates of one snapshot are held: a few bytes for each.
        """
        with self._detect_expiry():
            pieces = (piece for snapshot in self.find_fragments() for piece in snapshot)
            yield from read_in_order(pieces, SCAN_THREADS, ChangedFragment.batches)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the changes as an Arrow stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def find_fragments(self) -> Iterator[list[ChangedFragment]]:
        """Internal: return the changed fragments of each snapshot, removed rows first."""
        for group in self._group_leaves():
            found = map_parallel(lambda leaf: diff_leaf(self._manifest, leaf), group)
            rows = [piece for each in found for piece in each]
            for _, alone in groupby(rows, lambda piece: piece.snapshot):
                yield sorted(alone, key=lambda piece: piece.is_added)

    def find_all_fragments(self) -> list[ChangedFragment]:
        """Internal: return the changed fragments of all snapshots, in order."""
        with self._detect_expiry():
            return [piece for snapshot in self.find_fragments() for piece in snapshot]

    def _group_leaves(self) -> Iterator[list[ChangedLeaf]]:
        """Group the leaves of whole snapshots, to compare many at once."""
        waiting: list[ChangedLeaf] = []
        for _, leaves in groupby(self._leaves, lambda leaf: leaf.snapshot):
            waiting += leaves
            if len(waiting) >= _BATCH_LEAVES:
                yield waiting
                waiting = []
        if waiting:
            yield waiting

    @contextmanager
    def _detect_expiry(self) -> Iterator[None]:
        """Turn a failure into a clear error if vacuum removed a snapshot after planning."""
        try:
            yield
        except (PhalanxError, OSError, ValueError):
            _check_retained(
                self._manifest.load_latest(), self.plan.from_snapshot, self.plan.to_snapshot
            )
            raise


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """A task that reads changed fragments."""

    fragments: tuple[ChangedFragment, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the changes, in order."""
        with translate_errors("read a part of a change feed"):
            yield from read_in_order(self.fragments, _FRAGMENTS_AHEAD, ChangedFragment.batches)


def plan_change_tasks(
    pieces: list[ChangedFragment], wanted_bytes: int | None = None
) -> list[ChangeTask]:
    """Pack changed fragments into tasks of about equal bytes, in their order."""
    most = choose_task_bytes(sum(piece.size for piece in pieces), wanted_bytes)
    return [ChangeTask(task) for task in pack_in_tasks(pieces, lambda piece: piece.size, most)]


def plan_changes(
    manifest: Manifest,
    from_snapshot: int | datetime,
    to_snapshot: int | datetime | None,
    where: str | None,
    columns: Sequence[str] | None,
) -> ChangeFeed:
    """Plan the changes after one snapshot, up to another (by default the newest)."""
    first, last = _resolve_span(manifest, from_snapshot, to_snapshot)
    _check_retained(manifest, first, last)
    return plan_changes_between(
        manifest, snapshots.open_snapshot(manifest, last), first, last, where, columns
    )


def plan_changes_between(
    manifest: Manifest,
    read_as: Manifest,
    first: int,
    last: int,
    where: str | None,
    columns: Sequence[str] | None,
) -> ChangeFeed:
    """Plan the changes between two snapshots, with the columns and specs of `read_as`.

    Both snapshots must be retained, and `read_as` must be the manifest of the last one or later.
    """
    _check_unpinned(manifest, first, last)
    changes = [
        change
        for change in read_leaf_changes(manifest, first, last)
        if change.version_row.may_change_rows
    ]
    scan = _make_scan(read_as, where, columns)
    scan = replace(scan, plan=_narrow(scan.plan, {change.object_id for change in changes}))
    scans = _by_object_id(scan, scan.leaf_scans())
    planned = _by_object_id(scan, scan.plan.partitions)
    rows_by_snapshot = read_snapshot_range(manifest, first + 1, last)
    order = {name: place for place, name in enumerate(scans)}
    leaves = tuple(
        ChangedLeaf(
            change, scans[change.object_id], _find_recorded(manifest, rows_by_snapshot, change)
        )
        for change in sorted(
            (change for change in changes if change.object_id in order),
            key=lambda change: (change.version_row.snapshot, order[change.object_id]),
        )
    )
    plan = ChangePlan(
        manifest.root.uri,
        first,
        last,
        summarize(scan.plan.predicate),
        tuple(_plan_change(leaf.change, planned[leaf.change.object_id]) for leaf in leaves),
        len(changes),
    )
    _LOGGER.debug(
        "Planned the changes of %s from snapshot %d to %d: %d of %s",
        *(manifest.root, first, last, len(leaves), format_count(len(changes), "changed partition")),
    )
    return ChangeFeed(plan, read_as.properties.schema, scan.columns, manifest, leaves)


def find_initial_rows(
    manifest: Manifest, snapshot: int, where: str | None, columns: Sequence[str] | None
) -> list[ChangedFragment]:
    """Return all rows of a snapshot as insertions, with the columns and specs of a manifest."""
    _check_unpinned(manifest, snapshot, snapshot)
    versions = read_versions_at(manifest, snapshot)
    scan = _make_scan(manifest, where, columns)
    leaves = [
        (replace(each, version=versions[name]), snapshot)
        for name, each in _by_object_id(scan, scan.leaf_scans()).items()
        if name in versions
    ]
    return [
        rows
        for each in map_parallel(lambda leaf: list_all_fragments(*leaf), leaves)
        for rows in each
    ]


def _make_scan(manifest: Manifest, where: str | None, columns: Sequence[str] | None) -> Scan:
    """Plan the scan of the changed rows; an empty list selects only the change columns."""
    scan = make_scan(include_dropped(manifest), where, columns or None, None)
    if columns is not None and not columns:
        return replace(scan, columns=())
    check_change_columns(scan.columns, manifest.root.uri)
    return scan


def _by_object_id(scan: Scan, of_leaves: Sequence[Item]) -> dict[str, Item]:
    """Key the items of the leaves of a scan by object id."""
    names = [
        name
        for spec in scan.plan.pruning.specs
        for name in scan.plan.leaves[spec.spec_id].column(LEAF_OBJECT_ID).to_pylist()
    ]
    return dict(zip(names, of_leaves, strict=True))


def _narrow(plan: ScanPlan, object_ids: set[str]) -> ScanPlan:
    """Remove the unchanged leaves from a plan."""
    leaves, residuals = {}, {}
    wanted = pa.array(object_ids, pa.string())
    for number, table in plan.leaves.items():
        kept = pc.is_in(table.column(LEAF_OBJECT_ID), wanted).combine_chunks()
        of_spec = plan.residuals[number]
        leaves[number] = table.filter(kept)
        places = of_spec.indices[kept.to_numpy(zero_copy_only=False)]
        residuals[number] = replace(of_spec, indices=places)
    return replace(plan, leaves=leaves, residuals=residuals)


def _find_recorded(
    manifest: Manifest, rows_by_snapshot: dict[int, dict[str, Any]], change: LeafChange
) -> UpdatesFile | None:
    name = rows_by_snapshot.get(change.version_row.snapshot, {}).get(UPDATES_KEY)
    return None if name is None else UpdatesFile(manifest.root, name)


def _plan_change(change: LeafChange, partition: PlannedPartition) -> PlannedChange:
    entry = change.version_row
    return PlannedChange(
        entry.snapshot,
        entry.operation,
        partition.key,
        partition.location,
        change.before,
        entry.version,
        partition.residual,
    )


def check_change_columns(columns: Sequence[str], uri: str) -> None:
    """Refuse columns with the names of the change columns."""
    for name in CHANGE_FIELDS.names:
        if name in columns:
            raise SchemaMismatch(
                f"Cannot read the changes of {uri} with its column {name!r}: the change feed has a "
                "column of that name. Select other columns, or rename this one."
            )


def _resolve_span(
    manifest: Manifest, from_snapshot: int | datetime, to_snapshot: int | datetime | None
) -> tuple[int, int]:
    """Return the ids of the two snapshots; the id before the first one means an empty table."""
    listed = list_snapshots(manifest)
    if not listed:
        raise PhalanxError(
            f"Cannot read the changes of {manifest.root}: it has no snapshot yet, because a change "
            "to strong mode was interrupted. Complete it with set_mode('strong')."
        )
    last = int(listed[-1]["id"])
    if to_snapshot is not None:
        last = int(snapshots.find_snapshot(manifest, to_snapshot)["id"])
    start = snapshots.normalize_snapshot(from_snapshot)
    oldest = int(listed[0]["id"])
    if isinstance(start, int) and start == oldest - 1 and begins_history(listed[0]):
        first = start
    elif isinstance(start, int) and 0 <= start < oldest:
        raise _expired_error(manifest, start, last, start)
    else:
        first = int(snapshots.find_snapshot(manifest, start)["id"])
    if first > last:
        raise InvalidArgument(
            f"Cannot read the changes of {manifest.root} from snapshot {first} to {last}: "
            "from_snapshot must not be later than to_snapshot. Swap them."
        )
    return first, last


def _check_retained(manifest: Manifest, first: int, last: int) -> None:
    """Refuse a span with a snapshot that vacuum has removed."""
    listed = read_snapshot_range(manifest, first, last)
    # Two are enough; a span may be large.
    absent = (number for number in range(first, last + 1) if number not in listed)
    missing = list(islice(absent, 2))
    if missing == [first] and first + 1 in listed and begins_history(listed[first + 1]):
        return
    if missing:
        raise _expired_error(manifest, first, last, missing[0])


def _check_unpinned(manifest: Manifest, first: int, last: int) -> None:
    """Refuse a span in which others changed pinned versions, as the expression draft allows.

    No snapshot records such a change of rows.
    """
    if not manifest.properties.has_expression_specs:
        return
    places = locations_of(include_dropped(manifest))
    for number in sorted(read_snapshot_range(manifest, first, last)):
        shown = snapshots.open_snapshot(manifest, number)
        read, recorded = shown.leaf_versions(), read_versions_at(manifest, number)
        where = locations_of(shown)
        for name, version in read.items():
            if version != recorded.get(name) or where[name] != places.get(name):
                raise PhalanxError(
                    f"Cannot read the changes of {manifest.root} from snapshot {first} to {last}: "
                    f"the version that is read of its table {name} was changed outside Phalanx "
                    f"around snapshot {number}, as the {manifest.layout} layout allows. Start at a "
                    "later snapshot, or compare the rows of both."
                )


def _expired_error(manifest: Manifest, first: int, last: int, missing: int) -> PhalanxError:
    oldest = list_snapshots(manifest)[0]["id"]
    return PhalanxError(
        f"Cannot read the changes of {manifest.root} from snapshot {first} to {last}: snapshot "
        f"{missing} is not retained any more. The oldest retained is {oldest}: read the table at "
        "that snapshot, and its changes from there."
    )
