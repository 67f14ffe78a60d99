"""Streams out of a table: what its snapshots bring, in batches of whole snapshots."""

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
from phalanx.spark.runtime.failures import in_one_line, told_in_one_line
from phalanx.spark.runtime.options import STREAM_READ, Options, wants_changes
from phalanx.spark.runtime.types import arrow_schema, for_spark
from phalanx.spark.source.reading import ScanPartition, check_schema, rows_of
from phalanx.storage.hive.root import open_root
from phalanx.storage.lance.failures import told
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.history.incremental_scan import (
    NOTHING,
    Limits,
    Position,
    Wanted,
    new_rows,
    newest_position,
    next_position,
    position_before,
)
from phalanx.table.read.scan_tasks import packed_tasks

Offset = dict[str, Any]


@dataclass(slots=True)
class SnapshotReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows that come to a table, with the columns that the stream was started with.

    An offset is the last snapshot that was read, with its time; -1 before the whole table was.
    What is wrong with the options or the table is said when Spark asks for offsets: of what is
    raised while a reader is made, Spark tells nothing.
    """

    given: Mapping[str, str] = field(repr=False)
    schema: StructType
    # What the tasks do not need.
    _manifest: Manifest | None = field(default=None, repr=False)
    _last: Position | None = None

    def __getstate__(self) -> tuple[object, ...]:
        return self.given, self.schema

    def __setstate__(self, state: tuple[Mapping[str, str], StructType]) -> None:
        self.given, self.schema = state
        self._manifest, self._last = None, None

    @property
    def options(self) -> Options:
        """The options of the stream, all of which must be known."""
        return Options.of(self.given, STREAM_READ, "stream")

    @property
    def limits(self) -> Limits:
        """How much a batch may be."""
        options = self.options
        return Limits(
            options.number("max_snapshots_per_trigger"),
            options.number("max_rows_per_trigger"),
            options.size("max_bytes_per_trigger"),
        )

    @told_in_one_line
    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new stream starts: with the whole table, or before the snapshot it names."""
        manifest = self._newest()
        # A table in weak mode is refused.
        newest_position(manifest)
        return _offset(self._start(manifest))

    def _start(self, manifest: Manifest) -> Position:
        wants_changes(self.options)
        start = self.options.snapshot("starting_snapshot")
        return Position(NOTHING) if start is None else position_before(manifest, start)

    @told_in_one_line
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far the next batch goes."""
        manifest, after = self._newest(), _position(start)
        until = self._last or newest_position(manifest)
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self.limits
        with told(f"stream from {manifest.root}"):
            return _offset(self._next(manifest, after, until, limits))

    def _next(
        self, manifest: Manifest, after: Position, until: Position, limits: Limits
    ) -> Position:
        return next_position(manifest, after, until, limits, self._wanted)

    @told_in_one_line
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """A limit that stands for all that the options set: the engine gives it back."""
        limits = self.limits
        if limits.snapshots is not None:
            return ReadMaxFiles(limits.snapshots)
        if limits.rows is not None:
            return ReadMaxRows(limits.rows)
        if limits.bytes is not None:
            return ReadMaxBytes(limits.bytes)
        return ReadAllAvailable()

    @told_in_one_line
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on there is nothing newer than what is there now."""
        self._last = newest_position(self._newest())

    @told_in_one_line
    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """The newest snapshot, whatever the limits."""
        return _offset(self._last or newest_position(self._newest()))

    @told_in_one_line
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks that read a batch."""
        manifest = self._newest()
        self._check_columns(manifest)
        with told(f"stream from {manifest.root}"):
            return self._tasks(manifest, _position(start), _position(end))

    def _tasks(
        self, manifest: Manifest, after: Position, until: Position
    ) -> Sequence[InputPartition]:
        found = new_rows(manifest, after, until, self._wanted)
        return [
            ScanPartition(task) for task in packed_tasks(found, self.options.size("split_size"))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        with in_one_line():
            yield from for_spark(rows_of(partition), arrow_schema(self.schema))

    def _newest(self) -> Manifest:
        location = self.options.location
        found = open_root(location) if self._manifest is None else self._manifest.latest()
        if not isinstance(found, Manifest):
            raise PhalanxError(
                f"Cannot stream from {location}: it has the {found.layout} layout, which has no "
                "snapshots. Make it a table of the newest format with upgrade()."
            )
        self._manifest = found
        return found

    @property
    def _wanted(self) -> Wanted:
        return Wanted(self.options.text("where"), self.schema.names)

    def _check_columns(self, manifest: Manifest) -> None:
        try:
            check_schema(self.schema, self._columns(manifest), manifest.root.uri)
        except SchemaMismatch as error:
            raise SchemaMismatch(
                f"The columns of {manifest.root} have changed since the stream was started. "
                f"{error} Start the stream again with the same checkpoint: it goes on where it "
                "stopped."
            ) from None

    def _columns(self, manifest: Manifest) -> pa.Schema:
        return manifest.properties.schema.arrow


def _offset(position: Position) -> Offset:
    found: Offset = {"snapshot": position.snapshot}
    return found if position.time is None else {**found, "time": position.time}


def _position(offset: Offset) -> Position:
    """The position that a checkpoint tells, which may be anybody's text."""
    match offset:
        case {"snapshot": int(snapshot), "time": str(time)}:
            return Position(snapshot, time)
        case {"snapshot": int(snapshot), **others} if not others:
            return Position(snapshot)
    raise PhalanxError(
        f"Cannot stream from the offset {offset!r}: expected a snapshot and its time. The "
        "checkpoint is another query's, or damaged: start the stream with a new one."
    )
