"""A write by many tasks on many machines, and the one commit that ends it.

The driver begins a job. Each task writes its rows into files of their leaves, and returns the
list of files. The driver commits the files of the tasks that succeeded. The first task that needs
a new partition creates its leaf, at a location that all tasks of the job derive alike. Files of
failed, killed and speculative tasks are orphans, which vacuum removes.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import lance
import numpy as np
import pyarrow as pa

from phalanx.errors import (
    CommitConflict,
    InvalidArgument,
    PartialWrite,
    PhalanxError,
    StorageFailure,
)
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.planning.pruning.leaf_columns import list_leaf_versions
from phalanx.storage.commit import creation
from phalanx.storage.commit.head import open_with_head
from phalanx.storage.commit.history_rows import Marker, MarkerSet, find_committed_marker
from phalanx.storage.commit.writing import LeafWrite, ReadFootprint, remove_unlisted_leaves
from phalanx.storage.hive.creation import make_weak_target
from phalanx.storage.hive.root import HiveRoot, open_table_state
from phalanx.storage.lance.failures import ErrorTranslator, translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import WRITE_THREADS, map_parallel
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.leaf import LeafCreator
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.partition_rows import build_partition_rows
from phalanx.storage.state.properties import Properties, parse_properties
from phalanx.storage.state.table_state import TableState
from phalanx.table.jobs.task_files import (
    NO_ROWS,
    IncomingFiles,
    LeafFiles,
    ReplacedRowFinder,
    TaskFiles,
)
from phalanx.table.transactions import strong_mode
from phalanx.table.transactions.strong_mode import TransactionStart, commit_first_snapshot
from phalanx.table.transactions.strong_target import StrongTarget
from phalanx.table.write import operations
from phalanx.table.write.incoming_rows import Statement, shuffle_rows
from phalanx.table.write.transaction import check_marker

APPEND: Final = "append"
OVERWRITE: Final = "overwrite"
OVERWRITE_PARTITIONS: Final = "overwrite_partitions"
# Rows move to new files; the same commit removes the old files.
REWRITE = "rewrite"
# Rows are removed by their ids, and others are added, by a `RowJob`.
ROW_CHANGES = ("delete", "update", "merge")


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write job.

    Attributes:
        rows: The number of rows written.
        partitions: The number of partitions that got rows.
        fragments: The number of Lance fragments written.
        snapshot: The id of the snapshot; None in weak mode, and if nothing changed.
        is_repeated: Whether a job with the same marker was committed before. Then this one was not
            committed, and `snapshot` is that of the earlier one.
    """

    rows: int
    partitions: int
    fragments: int
    snapshot: int | None = None
    is_repeated: bool = False

    def __str__(self) -> str:
        snapshot = "" if self.snapshot is None else f", snapshot {self.snapshot}"
        return (
            f"wrote {self.rows:,} rows to {self.partitions:,} partitions in {self.fragments:,} "
            f"fragments{snapshot}"
        )


@dataclass(frozen=True, slots=True)
class WriteJob(ErrorTranslator):
    """A write by many tasks: its operation, and the table state that it began with.

    `Table.begin_write` makes one. It can be pickled and sent to the tasks. Each task calls `write`.
    One process then calls `commit` with what the tasks returned.

    Internal: `root`, `marker`, `hive_properties` and `new_properties`.

    Attributes:
        id: A text that no other job has.
        version: The version of the manifest that the job began with; 0 without a manifest.
        mode: The mode of the table when the job began, "weak" or "strong".
        began: The time when the job began.
        operation: "append", "overwrite" or "overwrite_partitions".
        where: The predicate whose rows "overwrite" replaces.
        repeated_snapshot: The snapshot of an earlier job with the same marker, which was committed
            before this one began; None if there is none. With one, nothing is left to do.
    """

    id: str
    root: Location
    version: int
    mode: str
    began: datetime
    operation: str
    where: str
    marker: Marker | None
    repeated_snapshot: int | None
    # The properties of a table in the Hive-style layout; None for one with a manifest.
    hive_properties: tuple[tuple[str, str], ...] | None = None
    # The properties of a table that the commit creates; None for an existing table.
    new_properties: tuple[tuple[str, str], ...] | None = None

    @classmethod
    def begin_new(
        cls,
        root: Location,
        properties: Properties,
        operation: str = APPEND,
        where: str = "true",
        marker: str | None = None,
    ) -> WriteJob:
        """Internal: begin a job whose commit creates a table of the newest format."""
        bind_predicate(where, properties.schema)
        if marker is not None and properties.mode != "strong":
            raise _weak_marker_error(root, marker)
        return cls(
            uuid.uuid4().hex,
            root,
            0,
            properties.mode,
            datetime.now(UTC),
            operation,
            where,
            _parse_marker(marker),
            None,
            new_properties=tuple(properties.to_metadata().items()),
        )

    def _error_location(self) -> Location:
        return self.root

    @classmethod
    def begin(
        cls, state: TableState, operation: str, where: str = "true", marker: str | None = None
    ) -> WriteJob:
        """Internal: begin a job on the newest state of a table; refuses an invalid predicate."""
        if operation not in (APPEND, OVERWRITE, OVERWRITE_PARTITIONS, REWRITE, *ROW_CHANGES):
            raise InvalidArgument(f"Cannot begin a job with the operation {operation!r}.")
        wanted = _parse_marker(marker)
        bind_predicate(where, state.properties.schema)
        began, done = datetime.now(UTC), None
        mode = state.properties.mode
        if isinstance(state, Manifest) and mode == "strong":
            start = TransactionStart.begin(state)
            began, state = start.began, start.base
            done = None if wanted is None else find_committed_marker(state, wanted)
        elif marker is not None:
            raise _weak_marker_error(state.root, marker)
        hive = tuple(state.raw_properties.items()) if isinstance(state, HiveRoot) else None
        return cls(
            uuid.uuid4().hex,
            state.root,
            state.version if isinstance(state, Manifest) else 0,
            mode,
            began,
            operation,
            where,
            wanted,
            done,
            hive,
        )

    # ── on the executors ─────────────────────────────────────────────────────────────────────

    def with_marker(self, marker: Marker) -> WriteJob:
        """Internal: return the job with a marker that lets it be committed once; strong mode only.

        For callers that learn the marker after the job has begun; all tasks must get the same.
        """
        with translate_errors(f"write to {self.root}"):
            state = self.state
            done = find_committed_marker(state, marker) if isinstance(state, Manifest) else None
        return replace(self, marker=marker, repeated_snapshot=done)

    def write(
        self, rows: pa.RecordBatchReader, replaced: ReplacedRowFinder | None = None
    ) -> TaskFiles:
        """Write rows into files that are not visible yet.

        Internal: `replaced`, with which the rows have columns that say which rows they replace.

        Args:
            rows: The rows. Columns match by name, in any order; all are required.
            replaced: Internal.

        Returns:
            The files, for `commit`. They can be pickled.

        Raises:
            SchemaMismatch: A column or a value of the rows does not fit the schema.
            InvalidPredicate: A row does not match the `where` of the job.
        """
        with translate_errors(f"write to {self.root}"):
            return self._write(rows, replaced)

    @property
    def state(self) -> TableState:
        """Internal: the state of the table that the job began with."""
        if self.new_properties is not None:
            return _stage_manifest(self.id, self.root, self.new_properties)
        return _open_state(self.id, self.root, self.version, self.hive_properties)

    def _write(self, rows: pa.RecordBatchReader, replaced: ReplacedRowFinder | None) -> TaskFiles:
        state = self.state
        if self.repeated_snapshot is not None:
            return TaskFiles.empty()
        extra = None if replaced is None else replaced.columns
        condition = self._bind_where(state)
        with shuffle_rows(state, rows, condition, self.where, extra=extra) as arrived:
            leaves = self.locate_leaves(arrived.keys)

            def write(place: int) -> LeafFiles:
                location, version = leaves[place]
                dataset = self.open_leaf(location, version)
                target = self.root.leaf(location)
                rows = arrived.read_partition(place, dataset.schema.names)
                fragments = leaf.write_files(dataset, target, rows)
                if replaced is None:
                    return LeafFiles(location, fragments)
                ids = arrived.read_partition(place, replaced.columns.names).read_all()
                return LeafFiles(location, fragments, replaced.find_replaced(ids))

            written = map_parallel(write, range(len(leaves)), WRITE_THREADS)
            return TaskFiles(arrived.keys, tuple(written))

    def locate_leaves(self, keys: pa.Table) -> list[tuple[str, int | None]]:
        """Internal: return the leaf location of each partition key, and its version at begin."""
        return locate_leaves(self.state, keys, LeafCreator(self.id))

    def open_leaf(self, location: str, version: int | None) -> lance.LanceDataset:
        """Internal: open a leaf to write files for; creates a leaf that the table does not list."""
        state = self.state
        target, schema = self.root.leaf(location), state.properties.schema
        if version == NEW_LEAF:
            stored = state.hive.leaf_schema if isinstance(state, HiveRoot) else schema
            return target.open_leaf(LeafCreator(self.id).create(target, stored))
        if self.mode == "strong":
            return target.open_leaf(version)
        return state.shape.open_newest(target)

    def _bind_where(self, state: TableState) -> Predicate:
        if self.operation != OVERWRITE:
            return TRUE
        return bind_predicate(self.where, state.properties.schema)

    # ── on the driver ────────────────────────────────────────────────────────────────────────

    def commit(
        self,
        tasks: Sequence[TaskFiles],
        removed: Sequence[LeafWrite] = (),
        read: Sequence[ReadFootprint] = (),
    ) -> WriteResult:
        """Commit the files of all tasks: as one snapshot in strong mode, otherwise leaf by leaf.

        Internal: `removed` and `read`. `removed` has the removals of a rewrite or of a row job.
        `read` is what the rows were computed from: in strong mode a concurrent change of it is a
        conflict.

        Args:
            tasks: What `write` has returned in the tasks that succeeded.
            removed: Internal.
            read: Internal.

        Returns:
            The number of rows, partitions and fragments written, and the snapshot.

        Raises:
            CommitConflict: Another writer changed the schema, the specs or the mode first, or the
                rows that the job replaces. Or a vacuum removed files of the job.
            PartialWrite: In weak mode some partitions have the rows, and others do not.
            UnknownOutcome: The store failed during the commit, and it is unknown whether the
                commit succeeded.
            ForeignWrite: In strong mode something else wrote to a partition outside Phalanx.
        """
        if self.repeated_snapshot is not None:
            return WriteResult(0, 0, 0, self.repeated_snapshot, is_repeated=True)
        with translate_errors(f"commit to {self.root}"):
            if self.new_properties is not None:
                return self._create(self.new_properties, tasks)
            manifest = (
                Manifest.open(self.root) if self.hive_properties is None else self._load_hive()
            )
            return self._commit(manifest, tasks, removed, read)

    def _create(self, new: tuple[tuple[str, str], ...], tasks: Sequence[TaskFiles]) -> WriteResult:
        """Create the table with the rows of the job: it is never visible without them."""
        properties = parse_properties(dict(new), self.root.uri)
        try:
            with creation.stage_namespace(
                self.root, properties, with_head=self.mode == "strong"
            ) as manifest:
                job = replace(self, new_properties=None, version=manifest.version)
                done = job._commit(manifest, tasks, (), ())
                if self.mode == "strong" and done.snapshot is None:
                    # A table without rows has a history too.
                    commit_first_snapshot(manifest)
        except PartialWrite as error:
            raise StorageFailure(
                f"Cannot create {self.root}: a partition could not be written. No table was "
                f"created. {error.__cause__ or ''}".rstrip()
            ) from error
        return done

    def _commit(
        self,
        state: TableState,
        tasks: Sequence[TaskFiles],
        removed: Sequence[LeafWrite],
        read: Sequence[ReadFootprint],
    ) -> WriteResult:
        base = self._load_base(state)
        arrived = IncomingFiles.of(self.root, LeafCreator(self.id), tasks)
        snapshot: int | None = None
        is_repeated = False

        def run(statement: Statement) -> int:
            nonlocal snapshot, is_repeated
            if self.mode != "strong" or not isinstance(state, Manifest):
                return statement(make_weak_target(base, strong_mode.complete_change))
            changes = StrongTarget(self._make_start(state))
            with changes.detect_vacuum():
                result = statement(changes)
            snapshot = changes.commit_snapshot(self.marker)
            is_repeated = changes.is_repeated
            return result

        match self.operation:
            case "append" if arrived is not None:
                operations.add_rows(run, arrived, read)
            case "overwrite":
                predicate = self._bind_where(base)
                operations.replace_matching(run, arrived or NO_ROWS, predicate, read)
            case "overwrite_partitions" if arrived is not None:
                operations.replace_partitions(run, arrived, read)
            case "rewrite":
                operations.replace_row_files(run, arrived or NO_ROWS, removed)
            case "delete" | "update" | "merge" if arrived is not None or removed:
                operations.change_rows(run, arrived or NO_ROWS, removed, self.operation, read)
        if snapshot is None and self.marker is not None and isinstance(state, Manifest):
            # A job without rows records its marker too.
            snapshot = StrongTarget(self._make_start(state)).commit_snapshot(self.marker)
        if arrived is None:
            return WriteResult(0, 0, 0, snapshot, is_repeated)
        if isinstance(state, Manifest):
            remove_unlisted_leaves(state.load_latest(), arrived.new_locations)
        if is_repeated:
            return WriteResult(0, 0, 0, snapshot, is_repeated=True)
        return WriteResult(arrived.rows, arrived.keys.num_rows, arrived.fragments, snapshot)

    def _load_hive(self) -> TableState:
        """Return the newest state of a Hive-style table; refuses one that was upgraded."""
        self.state.check_current()
        return self.state.load_latest()

    def _load_base(self, state: TableState) -> TableState:
        """Return the state that the tasks have written for."""
        if not isinstance(state, Manifest):
            return state
        return state if state.version == self.version else self._open_base(state)

    def _open_base(self, manifest: Manifest) -> Manifest:
        try:
            return manifest.at_version(self.version)
        except (OSError, ValueError) as error:
            if "not found" not in str(error).lower():
                raise
            raise self._vacuum_conflict() from None

    def _make_start(self, manifest: Manifest) -> TransactionStart:
        found = open_with_head(manifest, self.version)
        if found is None:
            raise self._vacuum_conflict()
        return TransactionStart(self.began, *found)

    def _vacuum_conflict(self) -> CommitConflict:
        return CommitConflict(
            f"Cannot commit to {self.root}: the write began at {self.began.isoformat()}, and a "
            "vacuum removed the state that it began with. Run it again."
        )


def _parse_marker(text: str | None) -> Marker | None:
    """Parse a marker; text of several lines is several markers."""
    lines = text.split("\n") if isinstance(text, str) else [text]
    for line in lines:
        check_marker(line)
    return text if len(lines) == 1 else MarkerSet(tuple(map(str, lines)))


def _weak_marker_error(root: Location, marker: str) -> PhalanxError:
    return PhalanxError(
        f"Cannot write to {root} with the marker {marker!r}: it is in weak mode, which has no "
        "markers. Leave the marker out, or change the table with set_mode('strong')."
    )


@functools.lru_cache(maxsize=4)
def _stage_manifest(job: str, root: Location, properties: tuple[tuple[str, str], ...]) -> Manifest:
    """Return the in-memory manifest of a table that does not exist yet."""
    stated = parse_properties(dict(properties), root.uri)
    return Manifest(root, creation.build_manifest(root, stated))


@functools.lru_cache(maxsize=4)
def _open_state(
    job: str, root: Location, version: int, hive: tuple[tuple[str, str], ...] | None
) -> TableState:
    """Return the table state that a job began with, shared by its tasks in this process.

    Cached by job, because the same version may belong to a table recreated at the same location.
    """
    if hive is not None:
        return open_table_state(root, dict(hive))
    return Manifest.open(root).at_version(version)


# The version of a leaf that the manifest does not list.
NEW_LEAF = -1


def locate_leaves(
    state: TableState, keys: pa.Table, new: LeafCreator
) -> list[tuple[str, int | None]]:
    """Return the location and version of the leaf of each partition key."""
    places = state.find_leaf_rows(keys)
    found: list[tuple[str, int | None]] = [("", NEW_LEAF)] * keys.num_rows
    listed = np.flatnonzero(places >= 0)
    spec = state.properties.spec
    leaves = state.list_leaves()[spec.id].take(pa.array(places[listed]))
    for place, leaf_found in zip(listed.tolist(), list_leaf_versions(leaves), strict=True):
        found[place] = leaf_found
    missing = np.flatnonzero(places < 0)
    if len(missing):
        locations = _choose_locations(state, keys.take(pa.array(missing)), new)
        for place, location in zip(missing.tolist(), locations, strict=True):
            found[place] = (location, NEW_LEAF)
    return found


def _choose_locations(state: TableState, keys: pa.Table, new: LeafCreator) -> list[str]:
    if isinstance(state, HiveRoot):
        return state.locations_for(keys)
    assert isinstance(state, Manifest)
    rows = build_partition_rows(state, keys, new.choose_directory)
    locations: list[str] = rows.column("location").drop_null().to_pylist()
    return locations
