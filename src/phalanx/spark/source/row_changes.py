"""UPDATE, MERGE and DELETE of single rows by Spark.

The Java classes begin a job and pass its id and version in an option, as JSON: the scan reads that
version of the table, and the write changes it. The location comes from the other options, which the
catalog sets. The JSON is validated like any text of a user.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from phalanx.errors import PhalanxError
from phalanx.spark.runtime.failures import without_traceback
from phalanx.spark.runtime.notices import notify
from phalanx.spark.runtime.options import Options
from phalanx.spark.runtime.read_sets import collect_reads
from phalanx.spark.runtime.types import check_spark_columns
from phalanx.spark.runtime.workers import freeze_gc
from phalanx.spark.source.writing import has_many_small_files
from phalanx.storage.commit.writing import ReadFootprint
from phalanx.storage.leaf.reading import ROW_ID_FIELDS
from phalanx.table.jobs.row_job import OPERATION_COLUMN, RowJob, RowJobResult, TaskChanges
from phalanx.table.jobs.small_files import combine_small_files
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import WriteResult

OPTION = "row_changes"


def job_options(job: RowJob) -> dict[str, str]:
    """Return the option that links a scan and a write to their job."""
    facts = {
        "id": job.job.id,
        "version": job.job.version,
        "began": job.job.began.isoformat(),
        "operation": job.job.operation,
    }
    return {OPTION: json.dumps(facts)}


def resume_job(options: Options) -> RowJob:
    """Return the job of a scan or a write, on the table that the options name."""
    text = options.text(OPTION)
    assert text is not None
    location = options.location
    try:
        match json.loads(text):
            case {"id": str(id), "version": int(version), "began": str(time), "operation": str(do)}:
                began = datetime.fromisoformat(time)
                return RowJob.resume(location, id, version, began, do)
    except (ValueError, RecursionError):
        pass
    raise PhalanxError(
        f"Cannot {options.action} with the option {OPTION!r}: it is internal to Spark's UPDATE, "
        "MERGE and DELETE. Leave it out."
    )


@dataclass(slots=True)
class ChangesWritten(WriterCommitMessage):
    """The commit message of a task: the changes that it has staged."""

    changes: TaskChanges


@dataclass(slots=True)
class RowChangeWriter(DataSourceArrowWriter):
    """A writer of changes of rows."""

    job: RowJob

    @without_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage files with new values, and collect the rows to delete."""
        freeze_gc()
        return ChangesWritten(self.job.write(iterator))

    @without_traceback
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the changes of all tasks."""
        tasks = [each.changes for each in messages if isinstance(each, ChangesWritten)]
        report_changes(
            self.job, commit_changes(self.job, tasks, collect_reads(self.job.job, messages))
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the outcome may be unknown, and vacuum removes unreferenced files."""


def make_change_writer(job: RowJob, schema: StructType) -> RowChangeWriter:
    """Build the writer; columns are validated here."""
    names = {OPERATION_COLUMN, *ROW_ID_FIELDS.names}
    values = StructType([field for field in schema if field.name not in names])
    if values.names:
        check_spark_columns(values, job.manifest.properties.schema.arrow)
    return RowChangeWriter(job)


def commit_changes(
    job: RowJob, tasks: list[TaskChanges], read: Sequence[ReadFootprint] = ()
) -> RowJobResult:
    """Commit the changes of tasks, after merging small files if there are many."""
    files = [task.files for task in tasks]
    places = {each.location for written in files for each in written.files}
    fragments = sum(len(each.fragments) for written in files for each in written.files)
    rows = sum(written.rows for written in files)
    if has_many_small_files(WriteResult(rows, len(places), fragments)):
        gone = [replace(task, files=TaskFiles.empty()) for task in tasks]
        tasks = gone + [TaskChanges(each) for each in combine_small_files(job.job, files)]
    return job.commit(tasks, read)


def report_changes(job: RowJob, done: RowJobResult) -> None:
    """Print what was changed to stderr."""
    notify(f"{job.job.root}: {done}")
