"""UPDATE, MERGE and DELETE of single rows by Spark: tasks tell what happens to each row.

The classes in Java begin a job and pass its facts in an option, as JSON: the scan reads the state
of the table that it began with, and the write changes that state. Where the table is the other
options say, which are the catalog's; what the JSON claims is checked like any text of a user.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from phalanx.errors import PhalanxError
from phalanx.spark.runtime.failures import told_in_one_line
from phalanx.spark.runtime.options import Options
from phalanx.spark.runtime.read_sets import readings
from phalanx.spark.runtime.types import check_writable
from phalanx.spark.runtime.workers import settle
from phalanx.spark.source.writing import has_many_small_files
from phalanx.storage.commit.writing import Reading
from phalanx.storage.leaf.reading import ROW_ID
from phalanx.table.jobs.row_job import OPERATION, ChangedRows, RowJob, TaskChanges
from phalanx.table.jobs.small_files import gathered
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import Committed

OPTION = "row_changes"


def options_of(job: RowJob) -> dict[str, str]:
    """The option by which a scan and a write know the job that they are part of."""
    facts = {
        "id": job.job.id,
        "version": job.job.version,
        "began": job.job.began.isoformat(),
        "operation": job.job.operation,
    }
    return {OPTION: json.dumps(facts)}


def job_of(options: Options) -> RowJob:
    """The job that a scan or a write is part of, on the table that the options name."""
    text = options.text(OPTION)
    assert text is not None
    try:
        match json.loads(text):
            case {"id": str(id), "version": int(version), "began": str(time), "operation": str(do)}:
                began = datetime.fromisoformat(time)
                return RowJob.resume(options.location, id, version, began, do)
    except (ValueError, RecursionError):
        pass
    raise PhalanxError(
        f"Cannot {options.doing} with the option {OPTION!r}: Spark's UPDATE, MERGE and DELETE pass "
        "a change of rows by it, and this is none. Leave it out."
    )


@dataclass(slots=True)
class RowsChanged(WriterCommitMessage):
    """What a task tells the driver."""

    changes: TaskChanges


@dataclass(slots=True)
class RowChangeWriter(DataSourceArrowWriter):
    """Writes what happens to rows."""

    job: RowJob

    @told_in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write new values into files that nobody sees yet, and note the rows that go."""
        settle()
        return RowsChanged(self.job.write(iterator))

    @told_in_one_line
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all changes visible."""
        tasks = [each.changes for each in messages if isinstance(each, RowsChanged)]
        report(self.job, committed(self.job, tasks, readings(self.job.job, messages)))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was committed, or nobody knows: what is not listed vacuum removes."""


def change_writer_of(job: RowJob, schema: StructType) -> RowChangeWriter:
    """Who writes changes; columns that do not fit are refused here."""
    names = {OPERATION, *ROW_ID.names}
    values = StructType([field for field in schema if field.name not in names])
    if values.names:
        check_writable(values, job.manifest.properties.schema.arrow)
    return RowChangeWriter(job)


def committed(job: RowJob, tasks: list[TaskChanges], read: Sequence[Reading] = ()) -> ChangedRows:
    """Commit what the tasks have found; small files of a partition become one, if many are."""
    files = [task.files for task in tasks]
    places = {each.location for written in files for each in written.files}
    fragments = sum(len(each.fragments) for written in files for each in written.files)
    rows = sum(written.rows for written in files)
    if has_many_small_files(Committed(rows, len(places), fragments)):
        gone = [replace(task, files=TaskFiles.none()) for task in tasks]
        tasks = gone + [TaskChanges(each) for each in gathered(job.job, files)]
    return job.commit(tasks, read)


def report(job: RowJob, done: ChangedRows) -> None:
    """Say what was changed, where Spark's own messages go."""
    print(f"phalanx: {job.job.root}: {done}", file=sys.stderr)
