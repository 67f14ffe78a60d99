"""Streams from a table: the new rows of its snapshots, in batches of whole snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.spark.runtime.failures import hide_traceback, without_traceback
from phalanx.spark.runtime.options import STREAM_READ_OPTIONS, Options, is_change_feed
from phalanx.spark.runtime.types import arrow_schema, to_spark_batches
from phalanx.spark.source.reading import ScanPartition, check_read_schema, read_partition
from phalanx.storage.hive.root import open_table_state
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.history.incremental_scan import (
    NOTHING_READ,
    Limits,
    Position,
    Selection,
    find_new_rows,
    find_newest_position,
    find_next_position,
    find_position_before,
)
from phalanx.table.read.scan_tasks import pack_tasks

Offset = dict[str, Any]


@dataclass(slots=True)
class SnapshotReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of the rows that are added to a table, with the columns at its start.

    An offset is the last snapshot that was read, with its time; -1 before the initial read of the
    whole table. Options and table are validated when Spark asks for offsets: Spark hides errors
    from the construction of a reader.
    """

    given: Mapping[str, str] = field(repr=False)
    schema: StructType
    # Not pickled: tasks do not need these.
    _manifest: Manifest | None = field(default=None, repr=False)
    _last: Position | None = None

    def __getstate__(self) -> tuple[object, ...]:
        return self.given, self.schema

    def __setstate__(self, state: tuple[Mapping[str, str], StructType]) -> None:
        self.given, self.schema = state
        self._manifest, self._last = None, None

    @property
    def options(self) -> Options:
        """The validated options of the stream."""
        return Options.of(self.given, STREAM_READ_OPTIONS, "stream")

    @property
    def limits(self) -> Limits:
        """The maximal size of a batch."""
        options = self.options
        return Limits(
            options.number("max_snapshots_per_trigger"),
            options.number("max_rows_per_trigger"),
            options.size("max_bytes_per_trigger"),
        )

    @without_traceback
    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the start of a new stream: the whole table, or `starting_snapshot`."""
        manifest = self._open_newest()
        # Refuses a table in weak mode.
        find_newest_position(manifest)
        return _to_offset(self._start_position(manifest))

    def _start_position(self, manifest: Manifest) -> Position:
        is_change_feed(self.options)
        start = self.options.snapshot("starting_snapshot")
        return Position(NOTHING_READ) if start is None else find_position_before(manifest, start)

    @without_traceback
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next batch."""
        manifest, after = self._open_newest(), _to_position(start)
        until = self._last or find_newest_position(manifest)
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self.limits
        with translate_errors(f"stream from {manifest.root}"):
            return _to_offset(self._next_position(manifest, after, until, limits))

    def _next_position(
        self, manifest: Manifest, after: Position, until: Position, limits: Limits
    ) -> Position:
        return find_next_position(manifest, after, until, limits, self._selection)

    @without_traceback
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one limit for all limits of the options: Spark passes it back."""
        limits = self.limits
        if limits.snapshots is not None:
            return ReadMaxFiles(limits.snapshots)
        if limits.rows is not None:
            return ReadMaxRows(limits.rows)
        if limits.bytes is not None:
            return ReadMaxBytes(limits.bytes)
        return ReadAllAvailable()

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the newest snapshot as the end of the stream."""
        self._last = find_newest_position(self._open_newest())

    @without_traceback
    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return the newest snapshot, ignoring limits."""
        return _to_offset(self._last or find_newest_position(self._open_newest()))

    @without_traceback
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan the tasks of a batch."""
        manifest = self._open_newest()
        self._check_columns(manifest)
        with translate_errors(f"stream from {manifest.root}"):
            return self._plan_tasks(manifest, _to_position(start), _to_position(end))

    def _plan_tasks(
        self, manifest: Manifest, after: Position, until: Position
    ) -> Sequence[InputPartition]:
        found = find_new_rows(manifest, after, until, self._selection)
        return [ScanPartition(task) for task in pack_tasks(found, self.options.size("split_size"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        with hide_traceback():
            yield from to_spark_batches(read_partition(partition), arrow_schema(self.schema))

    def _open_newest(self) -> Manifest:
        location = self.options.location
        found = (
            open_table_state(location) if self._manifest is None else self._manifest.load_latest()
        )
        if not isinstance(found, Manifest):
            raise PhalanxError(
                f"Cannot stream from {location}: it has the {found.layout} layout, which has no "
                "snapshots. Convert it to the newest format with upgrade()."
            )
        self._manifest = found
        return found

    @property
    def _selection(self) -> Selection:
        return Selection(self.options.text("where"), self.schema.names)

    def _check_columns(self, manifest: Manifest) -> None:
        try:
            check_read_schema(self.schema, self._stored_columns(manifest), manifest.root.uri)
        except SchemaMismatch as error:
            raise SchemaMismatch(
                f"The columns of {manifest.root} have changed since the stream started. {error} "
                "Restart the stream with the same checkpoint: it continues where it stopped."
            ) from None

    def _stored_columns(self, manifest: Manifest) -> pa.Schema:
        return manifest.properties.schema.arrow


def _to_offset(position: Position) -> Offset:
    found: Offset = {"snapshot": position.snapshot}
    return found if position.time is None else {**found, "time": position.time}


def _to_position(offset: Offset) -> Position:
    """Parse the offset of a checkpoint, which may be any JSON."""
    match offset:
        case {"snapshot": int(snapshot), "time": str(time)}:
            return Position(snapshot, time)
        case {"snapshot": int(snapshot), **others} if not others:
            return Position(snapshot)
    raise PhalanxError(
        f"Cannot stream from the offset {offset!r}: expected a snapshot and its time. The "
        "checkpoint belongs to another query or is damaged. Start the stream with a new one."
    )
