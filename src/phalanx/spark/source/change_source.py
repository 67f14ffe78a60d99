"""The change feed of a table in Spark: between two snapshots, or as a stream of all that come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from phalanx.errors import PhalanxError
from phalanx.spark.runtime.failures import in_one_line, told_in_one_line
from phalanx.spark.runtime.options import Options, wants_changes
from phalanx.spark.runtime.types import arrow_schema, for_spark, spark_schema
from phalanx.spark.source.reading import ChangePartition, check_schema, rows_of, table_of
from phalanx.spark.source.stream_source import SnapshotReader
from phalanx.storage.changes.changed_fragments import TOLD, ChangedRows, told_schema
from phalanx.storage.lance.failures import told
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.history import snapshots as history
from phalanx.table.history.change_feed import (
    ChangeFeed,
    change_tasks,
    check_names,
    feed_between,
    whole_table,
)
from phalanx.table.history.incremental_scan import (
    NOTHING,
    Limits,
    Position,
    next_position,
    position_before,
    unless_lost,
)
from phalanx.table.read.scan import checked_columns
from phalanx.table.table import Table


def change_schema(options: Options, table: Table) -> StructType:
    """What Spark sees of the changes: the columns as of the last snapshot, and what is told."""
    last = options.snapshot("to_snapshot")
    shown = table if last is None else table.at(last)
    schema = shown._properties.schema
    columns = checked_columns(options.names("columns"), schema)
    check_names(columns, table.uri)
    return spark_schema(told_schema(schema, columns))


@dataclass(slots=True)
class ChangeReader(DataSourceReader):
    """Reads the changes after a snapshot, up to another: by default the newest when it was loaded.

    Tasks tell their parts in any order: what was first is told by `_snapshot`.
    """

    options: Options
    schema: StructType
    newest: int | None

    @told_in_one_line
    def partitions(self) -> Sequence[InputPartition]:
        """The tasks that read the changes."""
        table = table_of(self.options)
        first, last = (self.options.snapshot(name) for name in ("from_snapshot", "to_snapshot"))
        if first is None:
            raise PhalanxError(
                f"Cannot read the changes of {table.uri}: there is no from_snapshot. Name the "
                "snapshot that they begin after; 0 is before the first."
            )
        feed = table.changes(
            first,
            self.newest if last is None else last,
            self.options.text("where"),
            _columns(self.schema),
        )
        check_schema(self.schema, feed.schema, table.uri)
        with told(f"read the changes of {table.uri}"):
            pieces = feed.all_pieces()
        return _partitions(pieces, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one task."""
        with in_one_line():
            yield from for_spark(rows_of(partition), arrow_schema(self.schema))


@dataclass(slots=True)
class ChangeStreamReader(SnapshotReader):
    """Reads what every snapshot changes, with the columns that the stream was started with.

    Offsets are those of streams of new rows. Before the first snapshot that it tells the changes
    of, a stream without from_snapshot gives all rows of the table as inserted.
    """

    def _start(self, manifest: Manifest) -> Position:
        wants_changes(self.options)
        start = self.options.snapshot("from_snapshot")
        if start is None:
            return Position(NOTHING)
        if not isinstance(start, int):
            start = int(history.found(manifest, start)["id"])
        return position_before(manifest, start + 1)

    def _next(
        self, manifest: Manifest, after: Position, until: Position, limits: Limits
    ) -> Position:
        def brought(first: int, last: int) -> Iterator[tuple[int, ChangedRows]]:
            for pieces in self._feed(manifest, first, last).pieces():
                yield from ((piece.snapshot, piece) for piece in pieces)

        return next_position(manifest, after, until, limits, self._wanted, brought)

    def _tasks(
        self, manifest: Manifest, after: Position, until: Position
    ) -> Sequence[InputPartition]:
        if after.snapshot == until.snapshot:
            return []
        with unless_lost(manifest, after, until):
            if after.snapshot == NOTHING:
                wanted = self._wanted.where, _columns(self.schema)
                found = whole_table(manifest, until.snapshot, *wanted)
            else:
                found = self._feed(manifest, after.snapshot, until.snapshot).all_pieces()
        return _partitions(found, self.options)

    def _feed(self, manifest: Manifest, first: int, last: int) -> ChangeFeed:
        where = self._wanted.where
        return feed_between(manifest, manifest, first, last, where, _columns(self.schema))

    def _columns(self, manifest: Manifest) -> pa.Schema:
        return pa.schema([*manifest.properties.schema.arrow, *TOLD])


def _columns(schema: StructType) -> list[str]:
    """The columns of the table, of those that are read."""
    return [name for name in schema.names if name not in TOLD.names]


def _partitions(pieces: list[ChangedRows], options: Options) -> list[InputPartition]:
    tasks = change_tasks(pieces, options.size("split_size"))
    return [ChangePartition(task) for task in tasks]
