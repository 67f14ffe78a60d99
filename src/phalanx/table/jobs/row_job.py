"""Row-level changes by many tasks: rows removed, rows added, and one commit.

The input of a task is a stream of changes: each has the row id if the row existed before, and its
values if it exists afterwards. The task writes new values into files as a `WriteJob` does, and
sends the removed ids to the driver, which removes these rows in the same commit.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import InvalidArgument, PhalanxError, SchemaMismatch
from phalanx.storage.commit.head import open_with_head
from phalanx.storage.commit.writing import ReadFootprint
from phalanx.storage.lance.failures import ErrorTranslator, translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.reading import ROW_ID_ADDRESS, ROW_ID_FIELDS, ROW_ID_LEAF
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import TableState
from phalanx.table.jobs.row_ids import ReplacedById, RowIds, plan_removals
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import ROW_CHANGES, WriteJob, WriteResult
from phalanx.table.write.merge import MergeCounts

# The column that says what happens to a row.
OPERATION_COLUMN = "_phalanx_operation"
DELETE, UPDATE, INSERT = 1, 2, 3
_NO_CHANGES = MergeCounts()
# The form of the ids of `WriteJob.begin`; new leaves are named after them.
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class TaskChanges:
    """The result of one task: files of added rows, and ids of removed rows."""

    files: TaskFiles
    removed: tuple[RowIds, ...] = ()
    counts: MergeCounts = _NO_CHANGES


@dataclass(frozen=True, slots=True)
class RowJobResult:
    """The result of a row job."""

    counts: MergeCounts
    written: WriteResult
    # A job with the same marker was committed before: this one changed nothing.
    is_repeated: bool = False

    def __str__(self) -> str:
        snapshot = self.written.snapshot
        suffix = "" if snapshot is None else f", snapshot {snapshot}"
        return f"{self.counts}{suffix}"


@dataclass(frozen=True, slots=True)
class RowJob(ErrorTranslator):
    """Row-level changes by many tasks, on the one version of the table that they read."""

    job: WriteJob

    def _error_location(self) -> Location:
        return self.job.root

    @classmethod
    def begin(
        cls,
        state: TableState,
        operation: str,
        marker: str | None = None,
        version: int | None = None,
    ) -> RowJob:
        """Begin a job on the newest state of a table, or in strong mode on a manifest version.

        `operation` names its snapshot.
        """
        if operation not in ROW_CHANGES:
            raise InvalidArgument(
                f"Cannot begin a row job with the operation {operation!r}: expected one of "
                f"{', '.join(map(repr, ROW_CHANGES))}."
            )
        if not isinstance(state, Manifest):
            raise PhalanxError(
                f"Cannot {operation} rows of {state.root}: it has the {state.layout} layout, in "
                "which rows can only be added and deleted. Convert it to the newest format with "
                "upgrade(), which rewrites no data."
            )
        job = WriteJob.begin(state, operation, marker=marker)
        # The statement's other reads of the table are of that version.
        if (
            version is not None
            and job.mode == "strong"
            and open_with_head(state, version) is not None
        ):
            job = replace(job, version=version)
        return cls(job)

    @classmethod
    def resume(
        cls, root: Location, id: str, version: int, began: datetime, operation: str
    ) -> RowJob:
        """Resume a job that another process began. Read the table's mode from its manifest.

        Raise `ValueError` if no job can have these values.
        """
        if not _ID.fullmatch(id) or not 0 < version < 1 << 63 or began.tzinfo is None:
            raise ValueError(f"No job has the id {id!r}, version {version} and start {began}.")
        if operation not in ROW_CHANGES:
            raise ValueError(f"No row job has the operation {operation!r}.")
        job = WriteJob(id, root, version, "weak", began, operation, "true", None, None)
        with translate_errors(f"resume a row job on {root}"):
            # The manifest's root names the table, so that the job writes only to leaves of it.
            found = job.state
            return cls(replace(job, root=found.root, mode=found.properties.mode))

    @property
    def manifest(self) -> Manifest:
        """The manifest that rows are read from."""
        found = self.job.state
        assert isinstance(found, Manifest)
        return found

    # ── on the executors ─────────────────────────────────────────────────────────────────────

    def write(self, changes: Iterable[pa.RecordBatch]) -> TaskChanges:
        """Write the added rows into files that are not visible yet, and collect the removed ids."""
        if self.job.repeated_snapshot is not None:
            return TaskChanges(TaskFiles.empty())
        noted = _ChangeReader(has_ids=self.job.mode == "strong")
        coming = noted.read_new_rows(changes)
        first = next(coming, None)
        files = TaskFiles.empty()
        if first is not None:
            rows = pa.RecordBatchReader.from_batches(first.schema, _chain(first, coming))
            # Weak mode has no change feed that needs to pair old and new rows.
            replaced = ReplacedById(self.manifest) if self.job.mode == "strong" else None
            files = self.job.write(rows, replaced)
        return TaskChanges(files, noted.removed_ids, noted.counts)

    # ── on the driver ────────────────────────────────────────────────────────────────────────

    def commit(
        self, tasks: Sequence[TaskChanges], read: Sequence[ReadFootprint] = ()
    ) -> RowJobResult:
        """Commit all changes: atomically in strong mode, otherwise partition by partition.

        In strong mode a concurrent change of anything in `read` is a conflict: it may have added
        rows that would match. Without `read` only a change of the same files is a conflict.
        """
        counts = functools.reduce(_add_counts, (task.counts for task in tasks), _NO_CHANGES)
        with translate_errors(f"commit to {self.job.root}"):
            removals = plan_removals(self.manifest, (ids for task in tasks for ids in task.removed))
        rows = sum(each.rows for each in removals)
        if counts.updated and rows < counts.updated + counts.deleted:
            raise SchemaMismatch(
                f"Cannot {self.job.operation} rows of {self.job.root}: one of them would be "
                "changed more than once. Keep one row for each key in the source."
            )
        counts = replace(counts, deleted=rows - counts.updated)
        writes = [each.write for each in removals]
        done = self.job.commit([task.files for task in tasks], writes, read)
        if done.is_repeated:
            return RowJobResult(_NO_CHANGES, done, is_repeated=True)
        return RowJobResult(counts, done)


@dataclass(slots=True)
class _ChangeReader:
    """Reads a stream of changes, and collects counts and removed ids on the way."""

    has_ids: bool
    counts: MergeCounts = _NO_CHANGES
    _leaves: list[np.ndarray] = field(default_factory=list)
    _addresses: list[np.ndarray] = field(default_factory=list)

    def read_new_rows(self, changes: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the added rows, with `has_ids` also the ids of the rows that they replace."""
        for batch in changes:
            operations = batch.column(OPERATION_COLUMN).to_numpy(zero_copy_only=False)
            is_removed, is_added = operations != INSERT, operations != DELETE
            if is_removed.any():
                ids = batch.select(ROW_ID_FIELDS.names).filter(pa.array(is_removed))
                self._leaves.append(ids.column(ROW_ID_LEAF).to_numpy(zero_copy_only=False))
                self._addresses.append(ids.column(ROW_ID_ADDRESS).to_numpy(zero_copy_only=False))
            updated = int((is_removed & is_added).sum())
            counts = MergeCounts(
                int(is_added.sum()) - updated, updated, int(is_removed.sum()) - updated
            )
            self.counts = _add_counts(self.counts, counts)
            if is_added.any():
                rows = batch.drop_columns([OPERATION_COLUMN, *ROW_ID_FIELDS.names])
                if self.has_ids:
                    rows = _append_ids(rows, batch, pa.array(is_removed & is_added))
                yield rows if is_added.all() else pc.filter(rows, pa.array(is_added))

    @property
    def removed_ids(self) -> tuple[RowIds, ...]:
        """The removed rows."""
        if not self._leaves:
            return ()
        return tuple(RowIds.of(np.concatenate(self._leaves), np.concatenate(self._addresses)))


def _append_ids(rows: pa.RecordBatch, batch: pa.RecordBatch, replaces: pa.Array) -> pa.RecordBatch:
    """Append the ids of the rows that they replace; NULL for new rows."""
    none = pa.scalar(None, pa.int64())
    for column in ReplacedById.columns:
        ids = pc.if_else(replaces, batch.column(column.name).cast(pa.int64()), none)
        rows = rows.append_column(column, ids)
    return rows


def _add_counts(one: MergeCounts, other: MergeCounts) -> MergeCounts:
    return MergeCounts(
        one.inserted + other.inserted, one.updated + other.updated, one.deleted + other.deleted
    )


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
