"""The change feed of a table in Spark: between two snapshots, or as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from phalanx.errors import InvalidArgument
from phalanx.spark.runtime.failures import hide_traceback, without_traceback
from phalanx.spark.runtime.options import Options, is_change_feed
from phalanx.spark.runtime.types import arrow_schema, spark_schema, to_spark_batches
from phalanx.spark.source.reading import (
    ChangePartition,
    check_read_schema,
    open_from_options,
    read_partition,
)
from phalanx.spark.source.stream_source import SnapshotReader
from phalanx.storage.changes.changed_fragments import (
    CHANGE_FIELDS,
    ChangedFragment,
    with_change_fields,
)
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.handle import handle_of
from phalanx.table.history import snapshots as history
from phalanx.table.history.change_feed import (
    ChangeFeed,
    check_change_columns,
    find_initial_rows,
    plan_change_tasks,
    plan_changes_between,
)
from phalanx.table.history.incremental_scan import (
    NOTHING_READ,
    Limits,
    Position,
    detect_lost,
    find_next_position,
    find_position_before,
)
from phalanx.table.read.scan import resolve_columns
from phalanx.table.table import Table


def change_feed_schema(options: Options, table: Table) -> StructType:
    """Return Spark's schema of a change feed: the columns at the last snapshot, and its own."""
    last = options.snapshot("to_snapshot")
    shown = table if last is None else table.at(last)
    schema = handle_of(shown).properties.schema
    columns = resolve_columns(options.names("columns"), schema)
    check_change_columns(columns, table.uri)
    return spark_schema(with_change_fields(schema, columns))


@dataclass(slots=True)
class ChangeReader(DataSourceReader):
    """A reader of the changes after one snapshot up to another, by default the newest at load time.

    Tasks return changes in any order; the column `_snapshot` orders them.
    """

    options: Options
    schema: StructType
    newest: int | None

    @without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks that read the changes."""
        table = open_from_options(self.options)
        first, last = (self.options.snapshot(name) for name in ("from_snapshot", "to_snapshot"))
        if first is None:
            raise InvalidArgument(
                f"Cannot read the changes of {table.uri}: from_snapshot is missing. Set it to the "
                "snapshot after which they start; 0 is before the first."
            )
        feed = table.changes(
            first,
            self.newest if last is None else last,
            self.options.text("where"),
            _table_columns(self.schema),
        )
        check_read_schema(self.schema, feed.schema, table.uri)
        with translate_errors(f"read the changes of {table.uri}"):
            pieces = feed.find_all_fragments()
        return _input_partitions(pieces, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the changes of one task."""
        with hide_traceback():
            yield from to_spark_batches(read_partition(partition), arrow_schema(self.schema))


@dataclass(slots=True)
class ChangeStreamReader(SnapshotReader):
    """A stream of the changes of every snapshot, with the columns at the start of the stream.

    Offsets are those of streams of new rows. A stream without from_snapshot first returns all rows
    of the table as inserted.
    """

    def _start_position(self, manifest: Manifest) -> Position:
        is_change_feed(self.options)
        start = self.options.snapshot("from_snapshot")
        if start is None:
            return Position(NOTHING_READ)
        if not isinstance(start, int):
            start = int(history.find_snapshot(manifest, start)["id"])
        return find_position_before(manifest, start + 1)

    def _next_position(
        self, manifest: Manifest, after: Position, until: Position, limits: Limits
    ) -> Position:
        def list_changes(first: int, last: int) -> Iterator[tuple[int, ChangedFragment]]:
            for pieces in self._open_feed(manifest, first, last).find_fragments():
                yield from ((piece.snapshot, piece) for piece in pieces)

        return find_next_position(manifest, after, until, limits, self._selection, list_changes)

    def _plan_tasks(
        self, manifest: Manifest, after: Position, until: Position
    ) -> Sequence[InputPartition]:
        if after.snapshot == until.snapshot:
            return []
        with detect_lost(manifest, after, until):
            if after.snapshot == NOTHING_READ:
                wanted = self._selection.where, _table_columns(self.schema)
                found = find_initial_rows(manifest, until.snapshot, *wanted)
            else:
                found = self._open_feed(
                    manifest, after.snapshot, until.snapshot
                ).find_all_fragments()
        return _input_partitions(found, self.options)

    def _open_feed(self, manifest: Manifest, first: int, last: int) -> ChangeFeed:
        where = self._selection.where
        return plan_changes_between(
            manifest, manifest, first, last, where, _table_columns(self.schema)
        )

    def _stored_columns(self, manifest: Manifest) -> pa.Schema:
        return pa.schema([*manifest.properties.schema.arrow, *CHANGE_FIELDS])


def _table_columns(schema: StructType) -> list[str]:
    """Return the columns of the table among those that are read."""
    return [name for name in schema.names if name not in CHANGE_FIELDS.names]


def _input_partitions(pieces: list[ChangedFragment], options: Options) -> list[InputPartition]:
    tasks = plan_change_tasks(pieces, options.size("split_size"))
    return [ChangePartition(task) for task in tasks]
