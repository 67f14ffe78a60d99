"""Streams into a table: each batch is one write job, committed exactly once in strong mode."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from phalanx.errors import NotPartitioned, PhalanxError
from phalanx.spark.runtime.failures import without_traceback
from phalanx.spark.runtime.notices import notify
from phalanx.spark.runtime.options import Options
from phalanx.spark.runtime.types import check_spark_columns
from phalanx.spark.source.writing import FilesWritten, check_table_matches, create_table, write_task
from phalanx.storage.commit.history_rows import StreamBatch
from phalanx.table.jobs.write_job import APPEND, OVERWRITE, WriteJob
from phalanx.table.opening import open
from phalanx.table.table import Table

# Task properties that Spark sets. The id of a query survives a restart.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(slots=True)
class BatchWriter(DataSourceStreamArrowWriter):
    """A writer of one batch. Spark builds one for its tasks, and another for its commit.

    The commit uses the job that the tasks report, not its own.
    """

    job: WriteJob

    @without_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        """Stage files with the rows of one task.

        Nothing is written for a batch that was committed before a restart of the query.
        """
        if self.job.mode != "strong":
            return write_task(self.job, iterator)
        return write_task(self.job.with_marker(_current_batch(self.job)), iterator)

    @without_traceback
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the files of a batch, atomically and only once.

        A batch without rows changes nothing; in output mode "complete" it empties the table.
        """
        sent = [message for message in messages if isinstance(message, FilesWritten)]
        if not sent:
            return
        job = sent[0].job
        if job.mode != "strong":
            _warn_of_weak_mode(str(job.root))
        if job.operation == OVERWRITE or any(message.files.files for message in sent):
            job.commit([message.files for message in sent])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the outcome may be unknown, and vacuum removes unreferenced files."""


def _current_batch(job: WriteJob) -> StreamBatch:
    """Return the batch of the running task."""
    context = TaskContext.get()
    query, number = None, None
    if context is not None:
        query, number = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if not query or not number:
        raise PhalanxError(
            f"Cannot stream to {job.root}: Spark does not report the query and the batch of a "
            f"task ({_QUERY}={query!r}, {_BATCH}={number!r}), so no batch can be committed exactly "
            "once. Write with foreachBatch and the option `marker`."
        )
    return StreamBatch(query, int(number))


@functools.cache
def _warn_of_weak_mode(root: str) -> None:
    notify(
        f"{root} is in weak mode: a batch of a stream may be written twice if the query "
        "fails and restarts. Use set_mode('strong') to commit each batch exactly once.",
    )


def make_stream_writer(options: Options, schema: StructType, overwrite: bool) -> BatchWriter:
    """Build the writer of a batch, on the newest state of the table."""
    table = _open_or_create(options, schema)
    check_spark_columns(schema, table.schema)
    return BatchWriter(table.begin_write(OVERWRITE if overwrite else APPEND))


def _open_or_create(options: Options, schema: StructType) -> Table:
    """Open the table, or create it by `partition_by`, in strong mode by default.

    An existing table may have evolved to another spec since.
    """
    location = options.location
    try:
        table = open(location.uri, storage_options=location.storage_options)
    except NotPartitioned:
        return create_table(options, schema, options.choice("transaction", "strong", "weak"))
    check_table_matches(options, table, table.specs.values())
    return table
