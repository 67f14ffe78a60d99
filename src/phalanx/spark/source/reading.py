"""Batch reads: planned once on the driver, run by tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.schema.rows import select_field
from phalanx.model.schema.schema import Schema
from phalanx.spark.runtime.failures import hide_traceback, without_traceback
from phalanx.spark.runtime.options import Options
from phalanx.spark.runtime.types import arrow_schema, spark_schema, to_spark_batches
from phalanx.table.history.change_feed import ChangeTask
from phalanx.table.opening import open
from phalanx.table.read import inspection
from phalanx.table.read.scan_tasks import ScanTask, plan_tasks
from phalanx.table.table import Table

METADATA_TABLES = ("partitions", "files", "snapshots", "specs")


def open_from_options(options: Options, snapshot: int | None = None) -> Table:
    """Open the table to read: at the snapshot of the options, else at `snapshot`."""
    location = options.location
    table = open(
        location.uri,
        storage_options=location.storage_options,
        trust_locations=location.trust_locations,
    )
    wanted = options.snapshot("snapshot")
    if wanted is None:
        wanted = snapshot
    return table if wanted is None else table.at(wanted)


def read_schema(options: Options, table: Table) -> StructType:
    """Return Spark's schema of the table, or of a metadata table."""
    if options.text("metadata_table") is not None:
        return spark_schema(read_metadata(options, table).schema)
    # Validates the predicate and the columns on the driver.
    return spark_schema(table.scan(options.text("where"), options.names("columns")).schema)


def read_metadata(options: Options, table: Table) -> pa.Table:
    """Return the rows of a metadata table."""
    for name in ("where", "columns", "split_size"):
        if options.text(name) is not None:
            raise PhalanxError(
                f"Cannot read metadata_table={options.text('metadata_table')!r} with {name}="
                f"{options.text(name)!r}: it applies to the rows of the table only. Leave it "
                "out, and filter the DataFrame instead."
            )
    match options.choice("metadata_table", *METADATA_TABLES):
        case "partitions":
            return table.partitions()
        case "files":
            return table.files()
        case "snapshots":
            return table.snapshots()
        case _:
            return inspection.list_specs(table.specs, Schema.of(table.schema))


@dataclass(slots=True)
class ScanPartition(InputPartition):
    """A task of a scan, sent to an executor."""

    task: ScanTask


@dataclass(slots=True)
class ChangePartition(InputPartition):
    """A task of a change feed, sent to an executor."""

    task: ChangeTask


@dataclass(slots=True)
class RowsPartition(InputPartition):
    """Rows that the driver has read itself."""

    rows: pa.Table


@dataclass(slots=True)
class ScanReader(DataSourceReader):
    """A reader of a table, with the columns of a schema.

    With the Java classes, Spark uses this reader only for metadata tables: the planner plans the
    scans of tables, and filters are pushed down to it. This reader takes no filters: Spark would
    reuse them for other queries on the same DataFrame. The option `where` prunes instead.
    """

    options: Options
    schema: StructType
    snapshot: int | None

    @without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks of the scan."""
        table = open_from_options(self.options, self.snapshot)
        if self.options.text("metadata_table") is not None:
            rows = read_metadata(self.options, table)
            check_read_schema(self.schema, rows.schema, table.uri)
            return [RowsPartition(rows)]
        check_read_schema(self.schema, table.schema, table.uri)
        scan = table.scan(self.options.text("where"), self.schema.names or None)
        return [ScanPartition(task) for task in plan_tasks(scan, self.options.size("split_size"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        with hide_traceback():
            yield from to_spark_batches(read_partition(partition), arrow_schema(self.schema))


@dataclass(slots=True)
class TaskReader(DataSourceReader):
    """A reader of tasks that the planner has planned and sent."""

    schema: StructType

    def partitions(self) -> Sequence[InputPartition]:
        """Return no tasks: the planner sends them separately."""
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        with hide_traceback():
            yield from to_spark_batches(read_partition(partition), arrow_schema(self.schema))


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the rows of an input partition, in the types of the table."""
    match partition:
        case ScanPartition(task=task) | ChangePartition(task=task):
            yield from task.batches()
        case RowsPartition(rows=rows):
            yield from rows.to_batches()


def check_read_schema(schema: StructType, stored: pa.Schema, uri: str) -> None:
    """Refuse a schema with missing columns or with other types than the stored ones."""
    there = spark_schema(pa.schema([_find_column(stored, name, uri) for name in schema.names]))
    for wanted, found in zip(schema, there, strict=True):
        if wanted.dataType != found.dataType:
            raise SchemaMismatch(
                f"Cannot read column {wanted.name!r} as {wanted.dataType.simpleString()}: it is "
                f"{found.dataType.simpleString()}. Leave out the schema, and cast the column."
            )


def _find_column(stored: pa.Schema, name: str, uri: str) -> pa.Field:
    try:
        return select_field(stored, name)
    except (KeyError, AttributeError, TypeError):
        raise SchemaMismatch(
            f"Cannot read column {name!r}: {uri} has {', '.join(stored.names)}. Load the table "
            "again."
        ) from None
