"""Writes by Spark: tasks write files, the driver commits them once."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from phalanx.errors import InvalidSpec, NotPartitioned, PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.specs.spec import PartitionSpec
from phalanx.spark.pushdown.partitioning import check_partitioning
from phalanx.spark.runtime.failures import told_in_one_line
from phalanx.spark.runtime.options import NEW_TABLE, Options
from phalanx.spark.runtime.read_sets import readings
from phalanx.spark.runtime.types import check_writable, stored_schema
from phalanx.spark.runtime.workers import settle
from phalanx.storage.lance.location import Location
from phalanx.table.jobs.small_files import SMALL_ROWS, gathered
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import (
    APPEND,
    OVERWRITE,
    OVERWRITE_PARTITIONS,
    Committed,
    WriteJob,
)
from phalanx.table.opening import NewTable, create, open
from phalanx.table.table import Table
from phalanx.table.wanted_specs import wanted_spec

DISTRIBUTIONS = ("auto", "hash", "none")
_MANY_FRAGMENTS = 16
_MANY_FOR_EACH = 4


@dataclass(slots=True)
class FilesWritten(WriterCommitMessage):
    """What a task tells the driver: the files it has written, and for which job."""

    job: WriteJob
    files: TaskFiles


@dataclass(slots=True)
class TableWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame; without a job it writes nothing."""

    job: WriteJob | None
    distribution: str = "none"
    is_quiet: bool = False

    @told_in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task into files that nobody sees yet."""
        return WriterCommitMessage() if self.job is None else written(self.job, iterator)

    @told_in_one_line
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make what the tasks have written visible."""
        if self.job is None:
            return
        done = committed(self.job, messages, gather=self.distribution == "hash")
        if not self.is_quiet:
            report(self.job, done)
            if self.distribution == "auto" and has_many_small_files(done):
                hint_at_distribution(done)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was committed, or nobody knows: what is not listed vacuum removes."""


def written(job: WriteJob, batches: Iterator[pa.RecordBatch]) -> FilesWritten:
    """Write the batches of one task."""
    settle()
    first = next(batches, None)
    if first is None:
        return FilesWritten(job, TaskFiles.none())
    reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
    return FilesWritten(job, job.write(reader))


def committed(
    job: WriteJob, messages: list[WriterCommitMessage | None], gather: bool = False
) -> Committed:
    """Commit what the tasks have written, each of which has sent one message.

    With `gather` the small files of a partition become one first.
    """
    files = [each.files for each in messages if isinstance(each, FilesWritten)]
    return job.commit(gathered(job, files) if gather else files, read=readings(job, messages))


def report(job: WriteJob, done: Committed) -> None:
    """Say what was written, where Spark's own messages go."""
    print(f"phalanx: {done} of {job.root}", file=sys.stderr)


def has_many_small_files(done: Committed) -> bool:
    """Whether a shuffle before the write would have made far fewer and larger files."""
    return (
        done.fragments >= _MANY_FRAGMENTS
        and done.fragments >= _MANY_FOR_EACH * done.partitions
        and done.rows < done.fragments * SMALL_ROWS
    )


def hint_at_distribution(done: Committed) -> None:
    """Say how the next write gets fewer files."""
    print(
        f"phalanx: {done.fragments:,} small fragments for {done.partitions:,} partitions make "
        "reads slow. Have the rows shuffled first with phalanx.spark.write(df, uri, "
        "distribution='hash'), or the files gathered with option('distribution', 'hash').",
        file=sys.stderr,
    )


def writer_of(options: Options, schema: StructType, overwrite: bool) -> TableWriter:
    """Who writes a DataFrame; everything that can be refused is refused here."""
    operation, where = _operation(options, overwrite)
    distribution = options.choice("distribution", *DISTRIBUTIONS)
    is_quiet = options.choice("report", "true", "false") == "false"
    if_exists = options.choice("if_exists", "append", "error", "ignore")
    marker = options.text("marker")
    new: NewTable | None
    if (text := options.text(NEW_TABLE)) is not None:
        new = NewTable.from_json(options.location, text)
        check_writable(schema, new.properties.schema.arrow)
        return TableWriter(new.begin(operation, where, marker), distribution, is_quiet)
    try:
        table = _table_there(options, if_exists, None)
    except NotPartitioned:
        new = new_table(options, schema)
        return TableWriter(new.begin(operation, where, marker), distribution, is_quiet)
    if table is None:
        return TableWriter(None)
    check_writable(schema, table.schema)
    job = table.begin_write(operation, where, marker)
    return TableWriter(job, distribution, is_quiet)


def _operation(options: Options, overwrite: bool) -> tuple[str, str]:
    """What is done to the rows that are there, and to which of them."""
    dynamic = options.choice("partition_overwrite", "static", "dynamic") == "dynamic"
    where = options.text("replace_where")
    for name, is_given in (("replace_where", where is not None), ("partition_overwrite", dynamic)):
        if is_given and not overwrite:
            raise PhalanxError(
                f"Cannot append with {name}={options.text(name)!r}: it says what to overwrite. "
                "Use mode('overwrite'), or leave it out."
            )
    if dynamic and where is not None:
        raise PhalanxError(
            "Cannot overwrite with both replace_where and partition_overwrite=dynamic: the first "
            "names the rows to replace, the second takes the partitions of the data. Use one."
        )
    if dynamic:
        return OVERWRITE_PARTITIONS, "true"
    return (OVERWRITE, "true" if where is None else where) if overwrite else (APPEND, "true")


def table_to_write(
    options: Options,
    schema: StructType,
    if_exists: str = "append",
    partition_by: PartitionBy | None = None,
) -> Table | NewTable | None:
    """The table, or one that is to be made as `partition_by` says; None if it is left alone."""
    try:
        return _table_there(options, if_exists, partition_by)
    except NotPartitioned:
        return new_table(options, schema, partition_by)


def new_table(
    options: Options, schema: StructType, partition_by: PartitionBy | None = None
) -> NewTable:
    """The table that is made with its first rows, where there is none."""
    mode = options.choice("transaction", "weak", "strong")
    return NewTable.of(*_wanted(options, schema, partition_by), mode)


def _table_there(
    options: Options, if_exists: str, partition_by: PartitionBy | None
) -> Table | None:
    """The table that is there; None if it is left alone, and `NotPartitioned` if it is missing."""
    location = options.location
    table = open(location.uri, storage_options=location.storage_options)
    if if_exists == "error":
        raise PhalanxError(
            f"Cannot write to {location}: the table exists, and if_exists='error'. Choose another "
            "path, or leave the option out to add to it."
        )
    if if_exists == "ignore":
        return None
    check_unchanged(options, table, [table.spec], partition_by)
    return table


def made(
    options: Options, schema: StructType, mode: str, partition_by: PartitionBy | None = None
) -> Table:
    """A table as `partition_by`, or the option of that name, says, where there is none."""
    location, columns, by = _wanted(options, schema, partition_by)
    return create(
        location.uri,
        columns,
        by,
        transaction=mode,
        storage_options=location.storage_options,
    )


def _wanted(
    options: Options, schema: StructType, partition_by: PartitionBy | None
) -> tuple[Location, pa.Schema, PartitionBy]:
    """Where a missing table is to be made, with which columns, and how it is partitioned."""
    location = options.location
    if partition_by is None:
        partition_by = options.text("partition_by")
    if partition_by is None:
        raise no_table(location)
    columns = stored_schema(schema)
    check_partitioning(columns, partition_by)
    return location, columns, partition_by


def no_table(location: Location) -> NotPartitioned:
    """What is told where nothing says how to make a missing table."""
    return NotPartitioned(
        f"Cannot write to {location}: there is no table. Check the path, or have it made: with the "
        "option partition_by, such as 'year(ts), bucket(16, id), country' (in the shell "
        "--partition-by), which may be empty for a table of one partition."
    )


def check_unchanged(
    options: Options,
    table: Table,
    specs: Iterable[PartitionSpec],
    partition_by: PartitionBy | None = None,
) -> None:
    """Refuse to make a table anew that is another by now: of none of these specs."""
    if partition_by is None:
        partition_by = options.text("partition_by")
    if partition_by is not None:
        known = Schema.of(table.schema)
        wanted = wanted_spec(table, partition_by)
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
