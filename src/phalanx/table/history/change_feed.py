"""The change feed: the rows that came, went and became others, from one snapshot to another.

Changes are told snapshot by snapshot, and of each snapshot first the rows that went (`delete`,
`update_before`), then those that came (`insert`, `update_after`). Who removes the ones and adds
the others, in that order, makes the rows of the first snapshot those of the last. Compactions,
moves to another spec, evolves and changes of the schema change no row; a rollback takes away and
brings back what it restores. If it undoes a move, or a compaction of rows that were changed since,
all rows of these files are told as gone and come again. What was there only in between is told too.

Rows have the columns of the last snapshot, whatever they were called and however wide they were
then. A predicate judges every row for itself: of an update that takes a row out of what matches,
the row before is told and the row after is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby, islice
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.predicates.rendering import summary
from phalanx.model.schema.schema import Schema
from phalanx.planning.change_plan import ChangePlan, PlannedChange
from phalanx.planning.pruning.scan_plan import OBJECT_ID, PlannedPartition, ScanPlan
from phalanx.planning.splits import packed, split_size
from phalanx.storage.changes.changed_fragments import (
    TOLD,
    ChangedRows,
    RecordedUpdates,
    told_schema,
)
from phalanx.storage.changes.diff import ChangedLeaf, all_rows, changed_rows
from phalanx.storage.commit.history_rows import (
    UPDATES,
    LeafChange,
    begins_history,
    changes_between,
    snapshots_from,
    snapshots_in,
    versions_at,
)
from phalanx.storage.commit.publishing import locations_of
from phalanx.storage.lance.failures import Guarded, tells, told
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.leaf.reading import SCAN_THREADS, in_order
from phalanx.storage.manifest.dropped import with_dropped
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.history import snapshots as history
from phalanx.table.read.scan import Scan, scan_of

# So many changes of leaves are looked at together.
_LEAVES_AT_ONCE = 64
# Other tasks run beside this one.
_PIECES_AHEAD = 2
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, eq=False)
class ChangeFeed(Guarded):
    """The changes between two snapshots: planned, and read when they are asked for.

    Every row has its columns, then `_change`, `_snapshot` and `_update`: what happened to it, the
    snapshot that did it, and for updates a number that the rows before and after have in common
    within the snapshot.
    """

    plan: ChangePlan
    table_schema: Schema
    columns: tuple[str, ...]
    _manifest: Manifest = field(repr=False)
    _leaves: tuple[ChangedLeaf, ...] = field(repr=False)

    def _stored_at(self) -> Location:
        return self._manifest.root

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return told_schema(self.table_schema, self.columns)

    def to_arrow(self) -> pa.Table:
        """All changes, in memory."""
        return pa.Table.from_batches(self.to_batches(), self.schema)

    @tells("read changes of")
    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The changes as a stream; memory does not grow with the rows that changed.

        Of updates, the places of the rows of one snapshot are held: a few bytes for each.
        """
        with self._unless_expired():
            pieces = (piece for snapshot in self.pieces() for piece in snapshot)
            yield from in_order(pieces, SCAN_THREADS, ChangedRows.batches)

    def to_reader(self) -> pa.RecordBatchReader:
        """The changes as an Arrow stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def pieces(self) -> Iterator[list[ChangedRows]]:
        """For each snapshot that changed rows the fragments they are in: rows that went first."""
        for group in self._groups():
            found = in_parallel(lambda leaf: changed_rows(self._manifest, leaf), group)
            rows = [piece for each in found for piece in each]
            for _, alone in groupby(rows, lambda piece: piece.snapshot):
                yield sorted(alone, key=lambda piece: piece.came)

    def all_pieces(self) -> list[ChangedRows]:
        """All of them, in order; for who reads them elsewhere."""
        with self._unless_expired():
            return [piece for snapshot in self.pieces() for piece in snapshot]

    def _groups(self) -> Iterator[list[ChangedLeaf]]:
        """The leaves of whole snapshots, as many as are looked at together."""
        waiting: list[ChangedLeaf] = []
        for _, leaves in groupby(self._leaves, lambda leaf: leaf.snapshot):
            waiting += leaves
            if len(waiting) >= _LEAVES_AT_ONCE:
                yield waiting
                waiting = []
        if waiting:
            yield waiting

    @contextmanager
    def _unless_expired(self) -> Iterator[None]:
        """What vacuum has removed since the plan was made is told as such."""
        try:
            yield
        except (PhalanxError, OSError, ValueError):
            _check_there(self._manifest.latest(), self.plan.from_snapshot, self.plan.to_snapshot)
            raise


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """What one task of many tells: parts of leaves before and after snapshots."""

    pieces: tuple[ChangedRows, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The changes, in order."""
        with told("read a part of a change feed"):
            yield from in_order(self.pieces, _PIECES_AHEAD, ChangedRows.batches)


def change_tasks(pieces: list[ChangedRows], wanted_bytes: int | None = None) -> list[ChangeTask]:
    """The pieces in tasks of about equal bytes, in their order."""
    most = split_size(sum(piece.size for piece in pieces), wanted_bytes)
    return [ChangeTask(task) for task in packed(pieces, lambda piece: piece.size, most)]


def feed_of(
    manifest: Manifest,
    from_snapshot: int | datetime,
    to_snapshot: int | datetime | None,
    where: str | None,
    columns: Sequence[str] | None,
) -> ChangeFeed:
    """The changes after one snapshot, up to another (the newest)."""
    first, last = _span(manifest, from_snapshot, to_snapshot)
    _check_there(manifest, first, last)
    return feed_between(manifest, history.at(manifest, last), first, last, where, columns)


def feed_between(
    manifest: Manifest,
    shown: Manifest,
    first: int,
    last: int,
    where: str | None,
    columns: Sequence[str] | None,
) -> ChangeFeed:
    """The changes after one snapshot, up to another, by the columns and specs of a manifest.

    Both snapshots must be there, and what the manifest shows be that of the last one, or later.
    """
    _check_unpinned(manifest, first, last)
    changes = [
        change for change in changes_between(manifest, first, last) if change.entry.changes_rows
    ]
    scan = _scan(shown, where, columns)
    scan = replace(scan, plan=_narrowed(scan.plan, {change.object_id for change in changes}))
    scans = _by_name(scan, scan.leaf_scans())
    planned = _by_name(scan, scan.plan.partitions)
    told_of = snapshots_from(manifest, first + 1, last)
    order = {name: place for place, name in enumerate(scans)}
    leaves = tuple(
        ChangedLeaf(change, scans[change.object_id], _recorded(manifest, told_of, change))
        for change in sorted(
            (change for change in changes if change.object_id in order),
            key=lambda change: (change.entry.snapshot, order[change.object_id]),
        )
    )
    plan = ChangePlan(
        manifest.root.uri,
        first,
        last,
        summary(scan.plan.predicate),
        tuple(_planned(leaf.change, planned[leaf.change.object_id]) for leaf in leaves),
        len(changes),
    )
    return ChangeFeed(plan, shown.properties.schema, scan.columns, manifest, leaves)


def whole_table(
    manifest: Manifest, snapshot: int, where: str | None, columns: Sequence[str] | None
) -> list[ChangedRows]:
    """All rows of a snapshot, as if it had brought them, by the columns and specs of a manifest."""
    _check_unpinned(manifest, snapshot, snapshot)
    versions = versions_at(manifest, snapshot)
    scan = _scan(manifest, where, columns)
    leaves = [
        (replace(each, version=versions[name]), snapshot)
        for name, each in _by_name(scan, scan.leaf_scans()).items()
        if name in versions
    ]
    return [rows for each in in_parallel(lambda leaf: all_rows(*leaf), leaves) for rows in each]


def _scan(manifest: Manifest, where: str | None, columns: Sequence[str] | None) -> Scan:
    """What is read of a table; no columns at all are what is told of the rows alone."""
    scan = scan_of(with_dropped(manifest), where, columns or None, None)
    if columns is not None and not columns:
        return replace(scan, columns=())
    check_names(scan.columns, manifest.root.uri)
    return scan


def _by_name(scan: Scan, of_leaves: Sequence[Item]) -> dict[str, Item]:
    """What there is of each leaf of a scan, by its object id."""
    names = [
        name
        for spec in scan.plan.pruning.specs
        for name in scan.plan.leaves[spec.spec_id].column(OBJECT_ID).to_pylist()
    ]
    return dict(zip(names, of_leaves, strict=True))


def _narrowed(plan: ScanPlan, object_ids: set[str]) -> ScanPlan:
    """The plan without the leaves that nobody changed."""
    leaves, residuals = {}, {}
    wanted = pa.array(object_ids, pa.string())
    for number, table in plan.leaves.items():
        kept = pc.is_in(table.column(OBJECT_ID), wanted).combine_chunks()
        of_spec = plan.residuals[number]
        leaves[number] = table.filter(kept)
        places = of_spec.places[kept.to_numpy(zero_copy_only=False)]
        residuals[number] = replace(of_spec, places=places)
    return replace(plan, leaves=leaves, residuals=residuals)


def _recorded(
    manifest: Manifest, told_of: dict[int, dict[str, Any]], change: LeafChange
) -> RecordedUpdates | None:
    name = told_of.get(change.entry.snapshot, {}).get(UPDATES)
    return None if name is None else RecordedUpdates(manifest.root, name)


def _planned(change: LeafChange, partition: PlannedPartition) -> PlannedChange:
    entry = change.entry
    return PlannedChange(
        entry.snapshot,
        entry.operation,
        partition.key,
        partition.location,
        change.before,
        entry.version,
        partition.residual,
    )


def check_names(columns: Sequence[str], uri: str) -> None:
    """Refuse columns whose names say what happened to a row."""
    for name in TOLD.names:
        if name in columns:
            raise SchemaMismatch(
                f"Cannot tell the changes of {uri} with its column {name!r}: that name "
                "says what happened to a row. Select other columns, or rename this one."
            )


def _span(
    manifest: Manifest, from_snapshot: int | datetime, to_snapshot: int | datetime | None
) -> tuple[int, int]:
    """The ids of the two snapshots; the one before the first is that of a table without rows."""
    listed = snapshots_in(manifest)
    if not listed:
        raise PhalanxError(
            f"Cannot tell the changes of {manifest.root}: it has no snapshot yet, a change to "
            "strong mode was cut off. Complete it with set_mode('strong')."
        )
    last = int(listed[-1]["id"])
    if to_snapshot is not None:
        last = int(history.found(manifest, to_snapshot)["id"])
    wanted = history.plain(from_snapshot)
    oldest = int(listed[0]["id"])
    if isinstance(wanted, int) and wanted == oldest - 1 and begins_history(listed[0]):
        first = wanted
    elif isinstance(wanted, int) and 0 <= wanted < oldest:
        raise _expired(manifest, wanted, last, wanted)
    else:
        first = int(history.found(manifest, wanted)["id"])
    if first > last:
        raise PhalanxError(
            f"Cannot tell the changes of {manifest.root} from snapshot {first} to {last}: the "
            "first must not be the later one. Change their places."
        )
    return first, last


def _check_there(manifest: Manifest, first: int, last: int) -> None:
    """Refuse a span of which vacuum has removed a snapshot."""
    listed = snapshots_from(manifest, first, last)
    # A few are enough; there may be as many as numbers.
    gone = (number for number in range(first, last + 1) if number not in listed)
    missing = list(islice(gone, 2))
    if missing == [first] and first + 1 in listed and begins_history(listed[first + 1]):
        return
    if missing:
        raise _expired(manifest, first, last, missing[0])


def _check_unpinned(manifest: Manifest, first: int, last: int) -> None:
    """Refuse a span in which others have said what is read, as the expression draft lets them.

    No snapshot tells of it: rows come and go there without one.
    """
    if not manifest.properties.is_drafted:
        return
    places = locations_of(with_dropped(manifest))
    for number in sorted(snapshots_from(manifest, first, last)):
        shown = history.at(manifest, number)
        read, told_of = shown.versions(), versions_at(manifest, number)
        where = locations_of(shown)
        for name, version in read.items():
            if version != told_of.get(name) or where[name] != places.get(name):
                raise PhalanxError(
                    f"Cannot tell the changes of {manifest.root} from snapshot {first} to {last}: "
                    f"something other than Phalanx changed what is read of its table {name} "
                    f"around snapshot {number}, as the {manifest.layout} layout allows. Begin "
                    "with a later snapshot, or compare the rows of both."
                )


def _expired(manifest: Manifest, first: int, last: int, missing: int) -> PhalanxError:
    oldest = snapshots_in(manifest)[0]["id"]
    return PhalanxError(
        f"Cannot tell the changes of {manifest.root} from snapshot {first} to {last}: snapshot "
        f"{missing} is not retained any more. The oldest retained is {oldest}: begin there, with "
        "the rows of the table as of then."
    )
