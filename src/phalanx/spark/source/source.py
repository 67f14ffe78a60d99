"""The data source `phalanx`: what Spark asks for, and who answers."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from phalanx.spark.runtime.failures import told_in_one_line
from phalanx.spark.runtime.options import (
    READ,
    ROW_CHANGES,
    STREAM_READ,
    STREAM_WRITE,
    WRITE,
    Options,
    wants_changes,
)
from phalanx.spark.runtime.workers import end_quietly
from phalanx.spark.source.change_source import ChangeReader, ChangeStreamReader, change_schema
from phalanx.spark.source.reading import ScanReader, schema_of, table_of
from phalanx.spark.source.row_changes import OPTION, RowChangeWriter, change_writer_of, job_of
from phalanx.spark.source.stream_sink import BatchWriter, stream_writer_of
from phalanx.spark.source.stream_source import SnapshotReader
from phalanx.spark.source.writing import TableWriter, writer_of

# Whatever a worker process of Spark does with the source, it imports this module.
end_quietly()


class PhalanxSource(DataSource):
    """Tables of Phalanx in Spark: `spark.read.format("phalanx").load(uri)`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # What a DataFrame reads stays the same from when it was loaded, in strong mode. In weak
        # mode there is no snapshot to stay at; with a schema of the user's own Spark asks nothing
        # when it loads; by Connect every query loads the table anew.
        self._snapshot: int | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "phalanx"

    @told_in_one_line
    def schema(self) -> StructType:
        """The columns of the table, as Spark sees them."""
        options = self._options(READ | STREAM_READ, "read")
        table = table_of(options)
        if wants_changes(options):
            self._snapshot = table.newest_snapshot
            return change_schema(options, table)
        if options.text("snapshot") is None:
            self._snapshot = table.newest_snapshot
        return schema_of(options, table_of(options, self._snapshot))

    @told_in_one_line
    def reader(self, schema: StructType) -> ScanReader | ChangeReader:
        """Who reads the table in a batch."""
        options = self._options(READ, "read")
        if wants_changes(options):
            return ChangeReader(options, schema, self._snapshot)
        return ScanReader(options, schema, self._snapshot)

    def streamReader(self, schema: StructType) -> SnapshotReader:  # noqa: N802
        """Who reads what comes to the table, or all that changes in it."""
        changes = str(self.options.get("changes", "")).lower() == "true"
        kind = ChangeStreamReader if changes else SnapshotReader
        return kind(dict(self.options), schema)

    @told_in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> TableWriter | RowChangeWriter:
        """Who writes a DataFrame to the table, or what happens to rows of it."""
        if OPTION in self.options:
            return change_writer_of(job_of(self._options(ROW_CHANGES, "write")), schema)
        return writer_of(self._options(WRITE, "write"), schema, overwrite)

    @told_in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: N802
        """Who writes a batch of a stream to the table."""
        return stream_writer_of(self._options(STREAM_WRITE, "stream"), schema, overwrite)

    def _options(self, known: frozenset[str], doing: str) -> Options:
        return Options.of(self.options, known, doing)
