"""Streams into a table: each batch is one write job, committed once in strong mode."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from phalanx.errors import NotPartitioned, PhalanxError
from phalanx.spark.runtime.failures import told_in_one_line
from phalanx.spark.runtime.options import Options
from phalanx.spark.runtime.types import check_writable
from phalanx.spark.source.writing import FilesWritten, check_unchanged, made, written
from phalanx.storage.commit.history_rows import Batch
from phalanx.table.jobs.write_job import APPEND, OVERWRITE, WriteJob
from phalanx.table.opening import open
from phalanx.table.table import Table

# What Spark tells each task of a stream: the query's id stays the same when it is started again.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(slots=True)
class BatchWriter(DataSourceStreamArrowWriter):
    """Writes one batch: Spark makes a writer for its tasks, and another for its commit.

    Of the latter the job is of no use: the tasks say which one was theirs.
    """

    job: WriteJob

    @told_in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        """Write the rows of one task into files that nobody sees yet.

        Of a batch that was committed before the query was started again there is nothing to write.
        """
        if self.job.mode != "strong":
            return written(self.job, iterator)
        return written(self.job.marked(_batch(self.job)), iterator)

    @told_in_one_line
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make what the tasks of a batch have written visible, at once and once only.

        A batch without rows changes nothing; in the output mode "complete" it leaves no rows.
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
        """Nothing was committed, or nobody knows: what is not listed vacuum removes."""


def _batch(job: WriteJob) -> Batch:
    """The batch that this task belongs to."""
    context = TaskContext.get()
    query, number = None, None
    if context is not None:
        query, number = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if not query or not number:
        raise PhalanxError(
            f"Cannot stream to {job.root}: this Spark does not tell the query and the batch of a "
            f"task ({_QUERY}={query!r}, {_BATCH}={number!r}), so that no batch could be committed "
            "just once. Write with foreachBatch, and the option `marker`."
        )
    return Batch(query, int(number))


@functools.cache
def _warn_of_weak_mode(root: str) -> None:
    print(
        f"phalanx: {root} is in weak mode: a batch of a stream may be written twice when the query "
        "fails and is started again. Change it with set_mode('strong') to have each just once.",
        file=sys.stderr,
    )


def stream_writer_of(options: Options, schema: StructType, overwrite: bool) -> BatchWriter:
    """Who writes a batch, on top of the newest state of the table."""
    table = _table(options, schema)
    check_writable(schema, table.schema)
    return BatchWriter(table.begin_write(OVERWRITE if overwrite else APPEND))


def _table(options: Options, schema: StructType) -> Table:
    """The table, made in strong mode if it is missing and `partition_by` says how.

    It may have evolved since.
    """
    location = options.location
    try:
        table = open(location.uri, storage_options=location.storage_options)
    except NotPartitioned:
        return made(options, schema, options.choice("transaction", "strong", "weak"))
    check_unchanged(options, table, table.specs.values())
    return table
