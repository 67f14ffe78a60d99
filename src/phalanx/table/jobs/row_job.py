"""Changes of single rows by many tasks: rows that go, rows that come, and one commit.

A task is given what happens to rows: each with its id if it was there before, and with its values
if it is there afterwards. New values are written into files as a `WriteJob` does; which rows go is
told to the driver, which takes them out of their leaves in the same commit.
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

from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.storage.commit.head import with_head
from phalanx.storage.commit.writing import Reading
from phalanx.storage.lance.failures import Guarded, told
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.reading import ROW_ADDRESS, ROW_ID, ROW_LEAF
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.jobs.row_ids import ReplacedByIds, RowIds, removals
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import ROW_CHANGES, Committed, WriteJob
from phalanx.table.write.merge import MergeCounts

# What happens to a row.
OPERATION = "_phalanx_operation"
DELETE, UPDATE, INSERT = 1, 2, 3
_NONE = MergeCounts()
# What `WriteJob.begin` makes; leaves of new partitions are named by it.
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class TaskChanges:
    """What one task has found: files of rows that come, and ids of rows that go."""

    files: TaskFiles
    gone: tuple[RowIds, ...] = ()
    counts: MergeCounts = _NONE


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """What a job of changes has done."""

    counts: MergeCounts
    committed: Committed
    # A job with the same marker was committed before: this one has changed nothing.
    is_repeated: bool = False

    def __str__(self) -> str:
        snapshot = self.committed.snapshot
        told = "" if snapshot is None else f", snapshot {snapshot}"
        return f"{self.counts}{told}"


@dataclass(frozen=True, slots=True)
class RowJob(Guarded):
    """Changes of rows by many tasks, on one version of the table, which they read as well."""

    job: WriteJob

    def _stored_at(self) -> Location:
        return self.job.root

    @classmethod
    def begin(
        cls,
        table: LeafListing,
        operation: str,
        marker: str | None = None,
        version: int | None = None,
    ) -> RowJob:
        """A job on the newest state of a table, or on a version of its manifest, in strong mode.

        `operation` is what its snapshot is called.
        """
        if operation not in ROW_CHANGES:
            raise PhalanxError(f"Cannot begin a change of rows that does {operation!r}.")
        if not isinstance(table, Manifest):
            raise PhalanxError(
                f"Cannot {operation} rows of {table.root}: it has the {table.layout} layout, in "
                "which rows are only added and deleted. Make it a table of the newest format with "
                "upgrade(), which rewrites no data."
            )
        job = WriteJob.begin(table, operation, marker=marker)
        # What else the statement has read of the table is of that version.
        if version is not None and job.mode == "strong" and with_head(table, version) is not None:
            job = replace(job, version=version)
        return cls(job)

    @classmethod
    def resume(
        cls, root: Location, id: str, version: int, began: datetime, operation: str
    ) -> RowJob:
        """The job that another process has begun, by its facts; a `ValueError` if none has them.

        Whether the table is in strong mode its manifest says.
        """
        if not _ID.fullmatch(id) or not 0 < version < 1 << 63 or began.tzinfo is None:
            raise ValueError(f"No job has the id {id!r}, the version {version} and began {began}.")
        if operation not in ROW_CHANGES:
            raise ValueError(f"No change of rows is called {operation!r}.")
        job = WriteJob(id, root, version, "weak", began, operation, "true", None, None)
        with told(f"go on with a change of {root}"):
            # The root of a manifest knows its table, whose leaves alone are written.
            found = job.manifest
            return cls(replace(job, root=found.root, mode=found.properties.mode))

    @property
    def manifest(self) -> Manifest:
        """The state of the table that rows are read from."""
        found = self.job.manifest
        assert isinstance(found, Manifest)
        return found

    # ── on the executors ─────────────────────────────────────────────────────────────────────

    def write(self, changes: Iterable[pa.RecordBatch]) -> TaskChanges:
        """Write the rows that come into files nobody sees yet, and note those that go."""
        if self.job.done is not None:
            return TaskChanges(TaskFiles.none())
        noted = _Noted(has_ids=self.job.mode == "strong")
        coming = noted.coming(changes)
        first = next(coming, None)
        files = TaskFiles.none()
        if first is not None:
            rows = pa.RecordBatchReader.from_batches(first.schema, _chained(first, coming))
            # Without snapshots nobody asks which row became which.
            replaced = ReplacedByIds(self.manifest) if self.job.mode == "strong" else None
            files = self.job.write(rows, replaced)
        return TaskChanges(files, noted.gone, noted.counts)

    # ── on the driver ────────────────────────────────────────────────────────────────────────

    def commit(self, tasks: Sequence[TaskChanges], read: Sequence[Reading] = ()) -> ChangedRows:
        """Make all changes visible: at once in strong mode, else partition by partition.

        A change that another writer has made meanwhile in what was `read` is a conflict in strong
        mode: it may have brought rows that were looked for. Without it only a change of the same
        files is.
        """
        counts = functools.reduce(_sum, (task.counts for task in tasks), _NONE)
        with told(f"commit to {self.job.root}"):
            gone = removals(self.manifest, (ids for task in tasks for ids in task.gone))
        rows = sum(each.rows for each in gone)
        if counts.updated and rows < counts.updated + counts.deleted:
            raise SchemaMismatch(
                f"Cannot {self.job.operation} rows of {self.job.root}: one of them would be "
                "changed more than once. Keep one row for each key in the source."
            )
        counts = replace(counts, deleted=rows - counts.updated)
        writes = [each.write for each in gone]
        done = self.job.commit([task.files for task in tasks], writes, read)
        if done.is_repeated:
            return ChangedRows(_NONE, done, is_repeated=True)
        return ChangedRows(counts, done)


@dataclass(slots=True)
class _Noted:
    """What a stream of changes does beside the rows that it brings."""

    has_ids: bool
    counts: MergeCounts = _NONE
    _leaves: list[np.ndarray] = field(default_factory=list)
    _addresses: list[np.ndarray] = field(default_factory=list)

    def coming(self, changes: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that come, if wanted with the ids of those that they replace beside them."""
        for batch in changes:
            operations = batch.column(OPERATION).to_numpy(zero_copy_only=False)
            goes, comes = operations != INSERT, operations != DELETE
            if goes.any():
                ids = batch.select(ROW_ID.names).filter(pa.array(goes))
                self._leaves.append(ids.column(ROW_LEAF).to_numpy(zero_copy_only=False))
                self._addresses.append(ids.column(ROW_ADDRESS).to_numpy(zero_copy_only=False))
            updated = int((goes & comes).sum())
            counts = MergeCounts(int(comes.sum()) - updated, updated, int(goes.sum()) - updated)
            self.counts = _sum(self.counts, counts)
            if comes.any():
                rows = batch.drop_columns([OPERATION, *ROW_ID.names])
                if self.has_ids:
                    rows = _beside(rows, batch, pa.array(goes & comes))
                yield rows if comes.all() else pc.filter(rows, pa.array(comes))

    @property
    def gone(self) -> tuple[RowIds, ...]:
        """The rows that go."""
        if not self._leaves:
            return ()
        return tuple(RowIds.of(np.concatenate(self._leaves), np.concatenate(self._addresses)))


def _beside(rows: pa.RecordBatch, batch: pa.RecordBatch, replaces: pa.Array) -> pa.RecordBatch:
    """The rows with the ids of those that they replace; NULL where they are new."""
    none = pa.scalar(None, pa.int64())
    for column in ReplacedByIds.columns:
        ids = pc.if_else(replaces, batch.column(column.name).cast(pa.int64()), none)
        rows = rows.append_column(column, ids)
    return rows


def _sum(one: MergeCounts, other: MergeCounts) -> MergeCounts:
    return MergeCounts(
        one.inserted + other.inserted, one.updated + other.updated, one.deleted + other.deleted
    )


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
