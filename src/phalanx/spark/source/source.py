"""The data source `phalanx`: creates the readers and writers that Spark asks for."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from phalanx.spark.runtime.failures import without_traceback
from phalanx.spark.runtime.options import (
    READ_OPTIONS,
    ROW_CHANGE_OPTIONS,
    STREAM_READ_OPTIONS,
    STREAM_WRITE_OPTIONS,
    WRITE_OPTIONS,
    Options,
    is_change_feed,
)
from phalanx.spark.runtime.workers import silence_worker_exit
from phalanx.spark.source.change_source import ChangeReader, ChangeStreamReader, change_feed_schema
from phalanx.spark.source.reading import ScanReader, open_from_options, read_schema
from phalanx.spark.source.row_changes import OPTION, RowChangeWriter, make_change_writer, resume_job
from phalanx.spark.source.stream_sink import BatchWriter, make_stream_writer
from phalanx.spark.source.stream_source import SnapshotReader
from phalanx.spark.source.writing import TableWriter, make_writer

# Every worker process that uses the source imports this module.
silence_worker_exit()


class PhalanxSource(DataSource):
    """Phalanx tables in Spark: `spark.read.format("phalanx").load(uri)`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # In strong mode a DataFrame keeps reading the snapshot at load time. There is none in weak
        # mode, with a schema of the user (Spark does not load the table then), and with Spark
        # Connect, where every query loads the table again.
        self._snapshot: int | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "phalanx"

    @without_traceback
    def schema(self) -> StructType:
        """Return Spark's schema of the table or change feed."""
        options = self._options(READ_OPTIONS | STREAM_READ_OPTIONS, "read")
        table = open_from_options(options)
        if is_change_feed(options):
            self._snapshot = table.newest_snapshot
            return change_feed_schema(options, table)
        if options.text("snapshot") is None:
            self._snapshot = table.newest_snapshot
        return read_schema(options, open_from_options(options, self._snapshot))

    @without_traceback
    def reader(self, schema: StructType) -> ScanReader | ChangeReader:
        """Build a batch reader."""
        options = self._options(READ_OPTIONS, "read")
        if is_change_feed(options):
            return ChangeReader(options, schema, self._snapshot)
        return ScanReader(options, schema, self._snapshot)

    def streamReader(self, schema: StructType) -> SnapshotReader:  # noqa: N802
        """Build a stream reader of new rows, or of the change feed."""
        changes = str(self.options.get("changes", "")).lower() == "true"
        kind = ChangeStreamReader if changes else SnapshotReader
        return kind(dict(self.options), schema)

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> TableWriter | RowChangeWriter:
        """Build a writer of a DataFrame, or of changes of rows."""
        if OPTION in self.options:
            return make_change_writer(
                resume_job(self._options(ROW_CHANGE_OPTIONS, "write")), schema
            )
        return make_writer(self._options(WRITE_OPTIONS, "write"), schema, overwrite)

    @without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: N802
        """Build a writer of one batch of a stream."""
        return make_stream_writer(self._options(STREAM_WRITE_OPTIONS, "stream"), schema, overwrite)

    def _options(self, known: frozenset[str], action: str) -> Options:
        return Options.of(self.options, known, action)
