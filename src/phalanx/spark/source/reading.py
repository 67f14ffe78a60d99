"""Reads by Spark: planned once on the driver, run by tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.schema.rows import chosen_field
from phalanx.model.schema.schema import Schema
from phalanx.spark.runtime.failures import in_one_line, told_in_one_line
from phalanx.spark.runtime.options import Options
from phalanx.spark.runtime.types import arrow_schema, for_spark, spark_schema
from phalanx.table.history.change_feed import ChangeTask
from phalanx.table.opening import open
from phalanx.table.read import inspection
from phalanx.table.read.scan_tasks import ScanTask, tasks_of
from phalanx.table.table import Table

METADATA_TABLES = ("partitions", "files", "snapshots", "specs")


def table_of(options: Options, snapshot: int | None = None) -> Table:
    """The table that is read, as of the snapshot that the options or the loading named."""
    location = options.location
    table = open(
        location.uri,
        storage_options=location.storage_options,
        trust_locations=location.trusts,
    )
    wanted = options.snapshot("snapshot")
    if wanted is None:
        wanted = snapshot
    return table if wanted is None else table.at(wanted)


def schema_of(options: Options, table: Table) -> StructType:
    """What Spark sees of the table, or of the metadata that is asked for."""
    if options.text("metadata_table") is not None:
        return spark_schema(metadata(options, table).schema)
    # Says on the driver what is wrong with the predicate and the columns.
    return spark_schema(table.scan(options.text("where"), options.names("columns")).schema)


def metadata(options: Options, table: Table) -> pa.Table:
    """What the table is made of, as a table."""
    for name in ("where", "columns", "split_size"):
        if options.text(name) is not None:
            raise PhalanxError(
                f"Cannot read metadata_table={options.text('metadata_table')!r} with {name}="
                f"{options.text(name)!r}: that is for the rows of the table. Leave it out, and "
                "filter or select of the DataFrame."
            )
    match options.choice("metadata_table", *METADATA_TABLES):
        case "partitions":
            return table.partitions()
        case "files":
            return table.files()
        case "snapshots":
            return table.snapshots()
        case _:
            return inspection.specs(table.specs, Schema.of(table.schema))


@dataclass(slots=True)
class ScanPartition(InputPartition):
    """A task of a scan, on its way to an executor."""

    task: ScanTask


@dataclass(slots=True)
class ChangePartition(InputPartition):
    """A task of a change feed, on its way to an executor."""

    task: ChangeTask


@dataclass(slots=True)
class RowsPartition(InputPartition):
    """Rows that the driver has found itself."""

    rows: pa.Table


@dataclass(slots=True)
class ScanReader(DataSourceReader):
    """Reads a table with the columns of a schema.

    Filters of the query are not taken: Spark would keep them for other queries on the same
    DataFrame. The option `where` is what prunes.
    """

    options: Options
    schema: StructType
    snapshot: int | None

    @told_in_one_line
    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the scan."""
        table = table_of(self.options, self.snapshot)
        if self.options.text("metadata_table") is not None:
            rows = metadata(self.options, table)
            check_schema(self.schema, rows.schema, table.uri)
            return [RowsPartition(rows)]
        check_schema(self.schema, table.schema, table.uri)
        scan = table.scan(self.options.text("where"), self.schema.names or None)
        return [ScanPartition(task) for task in tasks_of(scan, self.options.size("split_size"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        with in_one_line():
            yield from for_spark(rows_of(partition), arrow_schema(self.schema))


@dataclass(slots=True)
class TaskReader(DataSourceReader):
    """Reads tasks that were planned before; each is on its way by itself."""

    schema: StructType

    def partitions(self) -> Sequence[InputPartition]:
        """None that Spark need know of."""
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        with in_one_line():
            yield from for_spark(rows_of(partition), arrow_schema(self.schema))


def rows_of(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in the types of the table; a scan of nothing has no task."""
    match partition:
        case ScanPartition(task=task) | ChangePartition(task=task):
            yield from task.batches()
        case RowsPartition(rows=rows):
            yield from rows.to_batches()


def check_schema(schema: StructType, stored: pa.Schema, uri: str) -> None:
    """Refuse a schema with columns that are not stored, or are in other types."""
    there = spark_schema(pa.schema([_column(stored, name, uri) for name in schema.names]))
    for wanted, found in zip(schema, there, strict=True):
        if wanted.dataType != found.dataType:
            raise SchemaMismatch(
                f"Cannot read column {wanted.name!r} as {wanted.dataType.simpleString()}: it is "
                f"{found.dataType.simpleString()}. Leave out the schema, and cast the column."
            )


def _column(stored: pa.Schema, name: str, uri: str) -> pa.Field:
    try:
        return chosen_field(stored, name)
    except (KeyError, AttributeError, TypeError):
        raise SchemaMismatch(
            f"Cannot read column {name!r}: {uri} has {', '.join(stored.names)}. Load the table "
            "anew."
        ) from None
