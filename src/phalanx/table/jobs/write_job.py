"""A write by many tasks on many machines, and the one commit that ends it.

The driver begins a job; each task writes the rows it has into files of their leaves, and tells
which; the driver commits the files of the tasks that succeeded. Leaves of new partitions are made
by whichever task comes first, where all tasks of the job look for them. What failed, killed and
doubled tasks leave is listed nowhere, and vacuum removes it.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import lance
import pyarrow as pa

from phalanx.errors import CommitConflict, PartialWrite, PhalanxError, StorageFailure
from phalanx.model.predicates.binding import bind
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.storage.commit import creation
from phalanx.storage.commit.head import with_head
from phalanx.storage.commit.history_rows import Marker, Several, committed_marker
from phalanx.storage.commit.writing import LeafWrite, Reading, remove_unlisted
from phalanx.storage.hive.creation import main_branches
from phalanx.storage.hive.root import HiveRoot, open_root
from phalanx.storage.lance.failures import Guarded, told
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import WRITE_THREADS, in_parallel
from phalanx.storage.leaf import leaf
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.new_leaves import NewLeaves
from phalanx.storage.state.properties import Properties, properties_of
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.job_leaves import NEW, leaves_of
from phalanx.table.jobs.task_files import NOTHING, ArrivedFiles, LeafFiles, ReplacedRows, TaskFiles
from phalanx.table.transactions import strong_mode as strong
from phalanx.table.transactions.strong_mode import Start, begin_history
from phalanx.table.transactions.strong_target import StagedChanges
from phalanx.table.write import operations
from phalanx.table.write.incoming_rows import Statement, shuffled
from phalanx.table.write.transaction import check_marker

APPEND, OVERWRITE, OVERWRITE_PARTITIONS = "append", "overwrite", "overwrite_partitions"
# The rows were in other files before, which are removed with the same commit.
MOVE = "rewrite"
# Single rows go, by their ids, and others come; that is done with a `RowJob`.
ROW_CHANGES = ("delete", "update", "merge")


@dataclass(frozen=True, slots=True)
class Committed:
    """What a job has done; the snapshot only in strong mode."""

    rows: int
    partitions: int
    fragments: int
    snapshot: int | None = None
    # One with the same marker was committed before: this one was not.
    is_repeated: bool = False

    def __str__(self) -> str:
        snapshot = "" if self.snapshot is None else f", snapshot {self.snapshot}"
        return (
            f"wrote {self.rows:,} rows to {self.partitions:,} partitions in {self.fragments:,} "
            f"fragments{snapshot}"
        )


@dataclass(frozen=True, slots=True)
class WriteJob(Guarded):
    """A write by many tasks: what it does, and the state of the table that it began with."""

    id: str
    root: Location
    version: int
    mode: str
    began: datetime
    operation: str
    where: str
    marker: Marker | None
    # The snapshot that had the marker when the job began: there is nothing left to do.
    done: int | None
    # The properties of a table in the Hive-style layout; None for one with a manifest.
    hive: tuple[tuple[str, str], ...] | None = None
    # The properties of a table that the commit makes; None for one that is there.
    new: tuple[tuple[str, str], ...] | None = None

    @classmethod
    def begin_new(
        cls,
        root: Location,
        properties: Properties,
        operation: str = APPEND,
        where: str = "true",
        marker: str | None = None,
    ) -> WriteJob:
        """A job whose commit makes a table of the newest format, with the rows of the job."""
        bind(where, properties.schema)
        if marker is not None and properties.mode != "strong":
            raise _no_marker(root, marker)
        return cls(
            uuid.uuid4().hex,
            root,
            0,
            properties.mode,
            datetime.now(UTC),
            operation,
            where,
            _marker_of(marker),
            None,
            new=tuple(properties.to_metadata().items()),
        )

    def _stored_at(self) -> Location:
        return self.root

    @classmethod
    def begin(
        cls, manifest: LeafListing, operation: str, where: str = "true", marker: str | None = None
    ) -> WriteJob:
        """A job on the newest state of a table; a predicate that does not fit is refused."""
        if operation not in (APPEND, OVERWRITE, OVERWRITE_PARTITIONS, MOVE, *ROW_CHANGES):
            raise PhalanxError(f"Cannot begin a job that does {operation!r}.")
        wanted = _marker_of(marker)
        bind(where, manifest.properties.schema)
        began, done = datetime.now(UTC), None
        mode = manifest.properties.mode
        if isinstance(manifest, Manifest) and mode == "strong":
            start = Start.now(manifest)
            began, manifest = start.began, start.base
            done = None if wanted is None else committed_marker(manifest, wanted)
        elif marker is not None:
            raise _no_marker(manifest.root, marker)
        hive = tuple(manifest.stated.items()) if isinstance(manifest, HiveRoot) else None
        return cls(
            uuid.uuid4().hex,
            manifest.root,
            manifest.version if isinstance(manifest, Manifest) else 0,
            mode,
            began,
            operation,
            where,
            wanted,
            done,
            hive,
        )

    # ── on the executors ─────────────────────────────────────────────────────────────────────

    def marked(self, marker: Marker) -> WriteJob:
        """The same job, of which one with this marker is committed; only in strong mode.

        For who learns the marker when the job has begun: all its tasks must get the same.
        """
        with told(f"write to {self.root}"):
            manifest = self.manifest
            done = committed_marker(manifest, marker) if isinstance(manifest, Manifest) else None
        return replace(self, marker=marker, done=done)

    def write(self, rows: pa.RecordBatchReader, replaced: ReplacedRows | None = None) -> TaskFiles:
        """Write rows into files that nobody sees yet.

        With `replaced` the rows have columns beside their own, which tell what they replace.
        """
        with told(f"write to {self.root}"):
            return self._write(rows, replaced)

    @property
    def manifest(self) -> LeafListing:
        """The state of the table that the job began with."""
        if self.new is not None:
            return _new_manifest(self.id, self.root, self.new)
        return _manifest_of(self.id, self.root, self.version, self.hive)

    def _write(self, rows: pa.RecordBatchReader, replaced: ReplacedRows | None) -> TaskFiles:
        manifest = self.manifest
        if self.done is not None:
            return TaskFiles.none()
        beside = None if replaced is None else replaced.columns
        condition = self._replaced(manifest)
        with shuffled(manifest, rows, condition, self.where, beside=beside) as arrived:
            leaves = self.leaves(arrived.keys)

            def write(place: int) -> LeafFiles:
                location, version = leaves[place]
                dataset = self.opened(location, version)
                target = self.root.child(location)
                rows = arrived.reader(place, dataset.schema.names)
                fragments = leaf.write(dataset, target, rows)
                if replaced is None:
                    return LeafFiles(location, fragments)
                told = arrived.reader(place, replaced.columns.names).read_all()
                return LeafFiles(location, fragments, replaced.stands_for(told))

            written = in_parallel(write, range(len(leaves)), WRITE_THREADS)
            return TaskFiles(arrived.keys, tuple(written))

    def leaves(self, keys: pa.Table) -> list[tuple[str, int | None]]:
        """For each partition key where its leaf is, and the version that the job began with."""
        return leaves_of(self.manifest, keys, NewLeaves(self.id))

    def opened(self, location: str, version: int | None) -> lance.LanceDataset:
        """A leaf to write files for; one that the manifest does not list is made first."""
        manifest = self.manifest
        target, schema = self.root.child(location), manifest.properties.schema
        if version == NEW:
            stored = manifest.hive.stored if isinstance(manifest, HiveRoot) else schema
            return target.open_leaf(NewLeaves(self.id).create(target, stored))
        if self.mode == "strong":
            return target.open_leaf(version)
        return manifest.shape.opened(target)

    def _replaced(self, manifest: LeafListing) -> Predicate:
        if self.operation != OVERWRITE:
            return TRUE
        return bind(self.where, manifest.properties.schema)

    # ── on the driver ────────────────────────────────────────────────────────────────────────

    def commit(
        self,
        tasks: Sequence[TaskFiles],
        removed: Sequence[LeafWrite] = (),
        read: Sequence[Reading] = (),
    ) -> Committed:
        """Make the files of all tasks visible: at once in strong mode, else leaf by leaf.

        `removed` is what goes with a move or a change of rows; `read` is what the rows were
        computed from: in strong mode it is a conflict if others have changed it.
        """
        if self.done is not None:
            return Committed(0, 0, 0, self.done, is_repeated=True)
        with told(f"commit to {self.root}"):
            if self.new is not None:
                return self._create(self.new, tasks)
            manifest = Manifest.open(self.root) if self.hive is None else self._unchanged()
            return self._commit(manifest, tasks, removed, read)

    def _create(self, new: tuple[tuple[str, str], ...], tasks: Sequence[TaskFiles]) -> Committed:
        """Make the table with the rows of the job: nobody sees it without them."""
        properties = properties_of(dict(new), self.root.uri)
        try:
            with creation.being_created(
                self.root, properties, with_head=self.mode == "strong"
            ) as manifest:
                job = replace(self, new=None, version=manifest.version)
                done = job._commit(manifest, tasks, (), ())
                if self.mode == "strong" and done.snapshot is None:
                    # Also a table without rows has a history.
                    begin_history(manifest)
        except PartialWrite as error:
            raise StorageFailure(
                f"Cannot create {self.root}: a partition could not be written. Nothing of the "
                f"table is there. {error.__cause__ or ''}".rstrip()
            ) from error
        return done

    def _commit(
        self,
        manifest: LeafListing,
        tasks: Sequence[TaskFiles],
        removed: Sequence[LeafWrite],
        read: Sequence[Reading],
    ) -> Committed:
        base = self._base(manifest)
        arrived = ArrivedFiles.of(self.root, NewLeaves(self.id), tasks)
        snapshot: int | None = None
        is_repeated = False

        def run(statement: Statement) -> int:
            nonlocal snapshot, is_repeated
            if self.mode != "strong" or not isinstance(manifest, Manifest):
                return statement(main_branches(base, strong.complete))
            changes = StagedChanges(self._start(manifest))
            with changes.unless_vacuumed():
                result = statement(changes)
            snapshot = changes.commit_snapshot(self.marker)
            is_repeated = changes.is_repeated
            return result

        match self.operation:
            case "append" if arrived is not None:
                operations.add(run, arrived, read)
            case "overwrite":
                predicate = self._replaced(base)
                operations.replace_matching(run, arrived or NOTHING, predicate, read)
            case "overwrite_partitions" if arrived is not None:
                operations.replace_partitions(run, arrived, read)
            case "rewrite":
                operations.replace_files(run, arrived or NOTHING, removed)
            case "delete" | "update" | "merge" if arrived is not None or removed:
                operations.change_rows(run, arrived or NOTHING, removed, self.operation, read)
        if snapshot is None and self.marker is not None and isinstance(manifest, Manifest):
            # Also a job without rows is done once.
            snapshot = StagedChanges(self._start(manifest)).commit_snapshot(self.marker)
        if arrived is None:
            return Committed(0, 0, 0, snapshot, is_repeated)
        if isinstance(manifest, Manifest):
            remove_unlisted(manifest.latest(), arrived.new_locations)
        if is_repeated:
            return Committed(0, 0, 0, snapshot, is_repeated=True)
        return Committed(arrived.rows, arrived.keys.num_rows, arrived.fragments, snapshot)

    def _unchanged(self) -> LeafListing:
        """The table in the Hive-style layout as it is now: nobody has upgraded it."""
        self.manifest.check_current()
        return self.manifest.latest()

    def _base(self, manifest: LeafListing) -> LeafListing:
        """The manifest that the tasks have written for."""
        if not isinstance(manifest, Manifest):
            return manifest
        return manifest if manifest.version == self.version else self._start_version(manifest)

    def _start_version(self, manifest: Manifest) -> Manifest:
        try:
            return manifest.at_version(self.version)
        except (OSError, ValueError) as error:
            if "not found" not in str(error).lower():
                raise
            raise self._outlived() from None

    def _start(self, manifest: Manifest) -> Start:
        found = with_head(manifest, self.version)
        if found is None:
            raise self._outlived()
        return Start(self.began, *found)

    def _outlived(self) -> CommitConflict:
        return CommitConflict(
            f"Cannot commit to {self.root}: the write began at {self.began.isoformat()}, and a "
            "vacuum has removed the state that it began with. Run it again."
        )


def _marker_of(text: str | None) -> Marker | None:
    """The marker that a text is; a text of several lines is several markers."""
    lines = text.split("\n") if isinstance(text, str) else [text]
    for line in lines:
        check_marker(line)
    return text if len(lines) == 1 else Several(tuple(map(str, lines)))


def _no_marker(root: Location, marker: str) -> PhalanxError:
    return PhalanxError(
        f"Cannot write to {root} once only, by the marker {marker!r}: it is in weak mode. Leave "
        "the marker out, or change the table with set_mode('strong')."
    )


@functools.lru_cache(maxsize=4)
def _new_manifest(job: str, root: Location, properties: tuple[tuple[str, str], ...]) -> Manifest:
    """The manifest of a table that is not there yet, in memory."""
    stated = properties_of(dict(properties), root.uri)
    return Manifest(root, creation.staged_manifest(root, stated))


@functools.lru_cache(maxsize=4)
def _manifest_of(
    job: str, root: Location, version: int, hive: tuple[tuple[str, str], ...] | None
) -> LeafListing:
    """The manifest that a job began with, which all its tasks in this process share.

    The same version may be of another table, made anew at that place: jobs do not share it.
    """
    if hive is not None:
        return open_root(root, dict(hive))
    return Manifest.open(root).at_version(version)
