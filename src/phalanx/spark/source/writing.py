"""Batch writes: tasks stage files, and the driver commits them once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from phalanx.arguments import Mode, WriteOperation
from phalanx.errors import InvalidArgument, InvalidSpec, NotPartitioned, PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.specs.spec import PartitionSpec
from phalanx.spark.pushdown.partitioning import check_partitioning
from phalanx.spark.runtime.failures import without_traceback
from phalanx.spark.runtime.notices import notify
from phalanx.spark.runtime.options import NEW_TABLE, Options
from phalanx.spark.runtime.read_sets import collect_reads
from phalanx.spark.runtime.types import check_spark_columns, stored_schema
from phalanx.spark.runtime.workers import freeze_gc
from phalanx.storage.lance.location import Location
from phalanx.table.imports.prepare import resolve_spec
from phalanx.table.jobs.small_files import SMALL_ROWS, combine_small_files
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import (
    APPEND,
    OVERWRITE,
    OVERWRITE_PARTITIONS,
    WriteJob,
    WriteResult,
)
from phalanx.table.opening import NewTable, create, open
from phalanx.table.table import Table

DISTRIBUTIONS = ("auto", "hash", "none")
_MANY_FRAGMENTS = 16
_MANY_FOR_EACH = 4


@dataclass(slots=True)
class FilesWritten(WriterCommitMessage):
    """The commit message of a task: the files that it has staged for a job."""

    job: WriteJob
    files: TaskFiles


@dataclass(slots=True)
class TableWriter(DataSourceArrowWriter):
    """A writer of a DataFrame; without a job it writes nothing."""

    job: WriteJob | None
    distribution: str = "none"
    is_quiet: bool = False

    @without_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage files with the rows of one task."""
        return WriterCommitMessage() if self.job is None else write_task(self.job, iterator)

    @without_traceback
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the files of all tasks."""
        if self.job is None:
            return
        done = commit_files(self.job, messages, gather=self.distribution == "hash")
        if not self.is_quiet:
            report_write(self.job, done)
            if self.distribution == "auto" and has_many_small_files(done):
                suggest_distribution(done)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the outcome may be unknown, and vacuum removes unreferenced files."""


def write_task(job: WriteJob, batches: Iterator[pa.RecordBatch]) -> FilesWritten:
    """Stage files with the batches of one task."""
    freeze_gc()
    first = next(batches, None)
    if first is None:
        return FilesWritten(job, TaskFiles.empty())
    reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
    return FilesWritten(job, job.write(reader))


def commit_files(
    job: WriteJob, messages: list[WriterCommitMessage | None], gather: bool = False
) -> WriteResult:
    """Commit the files of tasks, each of which has sent one message.

    With `gather`, merge the small files of each partition first.
    """
    files = [each.files for each in messages if isinstance(each, FilesWritten)]
    return job.commit(
        combine_small_files(job, files) if gather else files, read=collect_reads(job, messages)
    )


def report_write(job: WriteJob, done: WriteResult) -> None:
    """Print what was written to stderr."""
    notify(f"{done} of {job.root}")


def has_many_small_files(done: WriteResult) -> bool:
    """Return whether a shuffle before the write would have made far fewer, larger files."""
    return (
        done.fragments >= _MANY_FRAGMENTS
        and done.fragments >= _MANY_FOR_EACH * done.partitions
        and done.rows < done.fragments * SMALL_ROWS
    )


def suggest_distribution(done: WriteResult) -> None:
    """Print to stderr how to write fewer files."""
    notify(
        f"{done.fragments:,} small fragments for {done.partitions:,} partitions make "
        "reads slow. Shuffle the rows first with phalanx.spark.write(df, uri, "
        "distribution='hash'), or merge the files with option('distribution', 'hash').",
    )


def make_writer(options: Options, schema: StructType, overwrite: bool) -> TableWriter:
    """Build the writer; all validation happens here."""
    operation, where = _operation(options, overwrite)
    distribution = options.choice("distribution", *DISTRIBUTIONS)
    is_quiet = options.choice("report", "true", "false") == "false"
    if_exists = options.choice("if_exists", "append", "error", "ignore")
    marker = options.text("marker")
    new: NewTable | None
    if (text := options.text(NEW_TABLE)) is not None:
        new = NewTable.from_json(options.location, text)
        check_spark_columns(schema, new.properties.schema.arrow)
        return TableWriter(new.begin(operation, where, marker), distribution, is_quiet)
    try:
        table = _open_existing(options, if_exists, None)
    except NotPartitioned:
        new = plan_new_table(options, schema)
        return TableWriter(new.begin(operation, where, marker), distribution, is_quiet)
    if table is None:
        return TableWriter(None)
    check_spark_columns(schema, table.schema)
    job = table.begin_write(operation, where, marker)
    return TableWriter(job, distribution, is_quiet)


def _operation(options: Options, overwrite: bool) -> tuple[WriteOperation, str]:
    """Return the operation on existing rows, and the predicate that selects them."""
    dynamic = options.choice("partition_overwrite", "static", "dynamic") == "dynamic"
    where = options.text("replace_where")
    for name, is_given in (("replace_where", where is not None), ("partition_overwrite", dynamic)):
        if is_given and not overwrite:
            raise InvalidArgument(
                f"Cannot append with {name}={options.text(name)!r}: it selects what to overwrite. "
                "Use mode('overwrite'), or leave it out."
            )
    if dynamic and where is not None:
        raise InvalidArgument(
            "Cannot overwrite with both replace_where and partition_overwrite=dynamic: the first "
            "selects rows to replace, the second replaces the partitions of the data. Use one."
        )
    if dynamic:
        return OVERWRITE_PARTITIONS, "true"
    return (OVERWRITE, "true" if where is None else where) if overwrite else (APPEND, "true")


def open_or_plan_table(
    options: Options,
    schema: StructType,
    if_exists: str = "append",
    partition_by: PartitionBy | None = None,
) -> Table | NewTable | None:
    """Open the table, or plan one by `partition_by`; None if `if_exists` is "ignore"."""
    try:
        return _open_existing(options, if_exists, partition_by)
    except NotPartitioned:
        return plan_new_table(options, schema, partition_by)


def plan_new_table(
    options: Options, schema: StructType, partition_by: PartitionBy | None = None
) -> NewTable:
    """Plan a table that the write creates together with its first rows."""
    mode = options.choice("transaction", "weak", "strong")
    return NewTable.of(*_define_table(options, schema, partition_by), mode)


def _open_existing(
    options: Options, if_exists: str, partition_by: PartitionBy | None
) -> Table | None:
    """Open an existing table, or raise `NotPartitioned`; None if `if_exists` is "ignore"."""
    location = options.location
    table = open(location.uri, storage_options=location.storage_options)
    if if_exists == "error":
        raise PhalanxError(
            f"Cannot write to {location}: the table exists, and if_exists='error'. Choose another "
            "path, or leave the option out to append to it."
        )
    if if_exists == "ignore":
        return None
    check_table_matches(options, table, [table.spec], partition_by)
    return table


def create_table(
    options: Options, schema: StructType, mode: Mode, partition_by: PartitionBy | None = None
) -> Table:
    """Create a table by `partition_by`, or the option of that name."""
    location, columns, by = _define_table(options, schema, partition_by)
    return create(
        location.uri,
        columns,
        by,
        transaction=mode,
        storage_options=location.storage_options,
    )


def _define_table(
    options: Options, schema: StructType, partition_by: PartitionBy | None
) -> tuple[Location, pa.Schema, PartitionBy]:
    """Return the location, columns and partitioning of a missing table."""
    location = options.location
    if partition_by is None:
        partition_by = options.text("partition_by")
    if partition_by is None:
        raise missing_table_error(location)
    columns = stored_schema(schema)
    check_partitioning(columns, partition_by)
    return location, columns, partition_by


def missing_table_error(location: Location) -> NotPartitioned:
    """Return the error for a missing table without `partition_by`."""
    return NotPartitioned(
        f"Cannot write to {location}: the table does not exist. Check the path, or create it "
        "with the option partition_by, such as 'year(ts), bucket(16, id), country' (in the shell "
        "--partition-by), which may be empty for a table of one partition."
    )


def check_table_matches(
    options: Options,
    table: Table,
    specs: Iterable[PartitionSpec],
    partition_by: PartitionBy | None = None,
) -> None:
    """Refuse `partition_by` or `transaction` options that differ from an existing table."""
    if partition_by is None:
        partition_by = options.text("partition_by")
    if partition_by is not None:
        known = Schema.of(table.schema)
        wanted = resolve_spec(table, partition_by)
        if all(wanted.fields != spec.fields for spec in specs):
            raise InvalidSpec(
                f"Cannot write to {table.uri} by {wanted.label(known) or 'nothing'}: it is "
                f"partitioned by {table.spec.label(known) or 'nothing'}. Leave partition_by out, "
                "or evolve the table first."
            )
    mode = options.text("transaction")
    if mode is not None and options.choice("transaction", "weak", "strong") != table.mode:
        raise PhalanxError(
            f"Cannot write to {table.uri} with transaction={mode!r}: it is in {table.mode} mode. "
            "Leave the option out, or change the table with set_mode."
        )
