"""Whatever Spark can read becomes a table, in chunks that are each committed once.

The same call again after a crash goes on with the files that are not there yet.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from phalanx.errors import NotPartitioned, PhalanxError
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.spark.ingested import Ingested, Outcome
from phalanx.spark.pipelines.sources import InputFile, Source, source_of
from phalanx.spark.runtime.failures import of_spark
from phalanx.spark.runtime.options import WRITE, Options
from phalanx.spark.runtime.progress import Progress
from phalanx.spark.runtime.types import check_writable, spark_schema
from phalanx.spark.source.distribution import MODES, write
from phalanx.spark.source.writing import DISTRIBUTIONS, table_to_write
from phalanx.storage.lance.failures import told
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.history.incremental_scan import Position, Wanted, new_rows
from phalanx.table.imports.chunks import (
    CHUNK_BYTES,
    PLACE_DIGITS,
    Brought,
    Chunk,
    bring_all,
    chunks_of,
    few_tasks,
    is_ours,
    known_digests,
    marker_prefix,
    markers_of,
)
from phalanx.table.opening import NewTable, open
from phalanx.table.table import Table

_INGEST = "ingest"


def ingest(
    spark: SparkSession,
    source: str | DataFrame,
    uri: str,
    partition_by: PartitionBy | None = None,
    *,
    format: str | None = None,
    options: Mapping[str, object] | None = None,
    schema: StructType | str | None = None,
    mode: str = "append",
    id: str | None = None,
    distribution: str = "auto",
    transaction: str | None = None,
    chunk_size: int | str = CHUNK_BYTES,
    storage_options: dict[str, str] | None = None,
    progress: bool = True,
) -> Ingested:
    """Bring what Spark can read into a table, which is made if it is missing.

    `source` is the path of files (`format` is told by their names, or given), the name of a
    table, a DataFrame, or of another format what it loads: for `format="jdbc"` the URL. `options`
    are those of Spark's reader. CSV has a header, types are inferred, times without a zone are in
    UTC, and a value that cannot be read fails the ingest, unless the options say otherwise.

    In strong mode, which a new table gets, files are committed in chunks of about `chunk_size`
    bytes, and every file once: the same call again goes on where it was cut off, and adds nothing
    when all is there. A source that is not made of files is one chunk, and is committed once if
    an `id` names it; another `id` also ingests the same files anew. In weak mode everything is
    one write, which adds its rows again if it is repeated. Returns what was done.
    """
    found = FileIngest.prepared(
        spark,
        source,
        _checked(mode, distribution, chunk_size, uri, transaction, storage_options),
        partition_by,
        format=format,
        options=options,
        schema=schema,
        mode=mode,
        id=id,
    )
    return found.run(spark, progress)


@dataclass(frozen=True, slots=True)
class FileIngest:
    """An ingest that is planned: of what, and into which table, if it is there already."""

    found: Source
    rows: StructType
    table: Table | None
    limits: Options
    partition_by: PartitionBy | None
    mode: str
    id: str | None
    # How many tasks write at once, if they are to be few; None leaves it to the files.
    writers: int | None = None

    @classmethod
    def prepared(
        cls,
        spark: SparkSession,
        source: str | DataFrame,
        limits: Options,
        partition_by: PartitionBy | None = None,
        *,
        format: str | None = None,
        options: Mapping[str, object] | None = None,
        schema: StructType | str | None = None,
        mode: str = "append",
        id: str | None = None,
    ) -> FileIngest:
        """What would be ingested; nothing is written."""
        location = limits.location
        try:
            table: Table | None = open(location.uri, storage_options=location.storage_options)
        except NotPartitioned:
            table = None
        found = source_of(spark, source, format, options or {}, schema)
        rows = found.schema(spark, None if table is None else spark_schema(table.schema))
        return cls(found, rows, table, limits, partition_by, mode, id)

    def chunks(self, done: Mapping[str, int], transaction: str) -> list[Chunk[InputFile]]:
        """What is left to do, in parts that are each committed once."""
        size = self.limits.size("chunk_size") or 1
        uri = self.limits.location.uri
        return _chunks(uri, transaction, self.found, self.mode, self.id, done, size)

    @property
    def done(self) -> dict[str, int]:
        """The markers of what was ingested before."""
        return {} if self.table is None else _done(self.table, self.id)

    @property
    def transaction(self) -> str:
        """How it is committed."""
        if self.table is not None:
            return self.table.mode
        return self.limits.choice("transaction", "strong", "weak")

    def run(self, spark: SparkSession, is_told: bool) -> Ingested:
        """Make the table if it is missing, and bring what is left."""
        given = {**self.limits.given, "transaction": self.transaction}
        limits = self.limits if self.table is not None else replace(self.limits, given=given)
        table = table_to_write(limits, self.rows, partition_by=self.partition_by)
        if isinstance(table, NewTable):
            # Its batches are committed one by one.
            table = table.create()
        assert table is not None
        found, rows = self.found, self.rows
        check_writable(rows, table.schema)
        done = _done(table, self.id)
        chunks = self.chunks(done, table.mode)
        _warn(table, found, self.mode, self.id, is_told)

        given_how = {
            "mode": self.mode,
            "distribution": limits.choice("distribution", *DISTRIBUTIONS),
            "storage_options": limits.storage_options,
        }
        files = sum(chunk.count for chunk in chunks)
        size = sum(chunk.size for chunk in chunks)
        before = len(found.files or ()) - files
        skipped = len(set(done.values())) if before or not chunks else 0

        def bring(chunk: Chunk[InputFile]) -> Brought | None:
            frame, how = found.frame(spark, rows, chunk.parts), dict(given_how)
            if self.writers is not None and how["distribution"] == "auto":
                frame = frame.coalesce(few_tasks(self.writers, chunk.size))
                how["distribution"] = "none"
            with of_spark(f"ingest {found.name} into {table.uri}"):
                return _write(frame, table, chunk, how)

        def again(chunk: Chunk[InputFile]) -> list[Chunk[InputFile]]:
            some = replace(self, found=replace(found, files=chunk.parts))
            return some.chunks(_done(table, self.id), table.mode)

        outcome = Outcome()
        with Progress(spark, len(chunks), files, size, is_told) as shown:
            for chunk, brought in bring_all(chunks, bring, again):
                outcome.add(chunk, brought)
                shown.finished(chunk.count, chunk.size, brought.rows)
            seconds = shown.seconds
        return outcome.told(found.name, table.uri, len(found.files or ()), skipped, seconds)


def _checked(
    mode: str,
    distribution: str,
    chunk_size: int | str,
    uri: str,
    transaction: str | None,
    storage_options: dict[str, str] | None,
) -> Options:
    """What can be refused without looking at anything."""
    given = {"path": uri, "distribution": distribution, "chunk_size": str(chunk_size)}
    if storage_options:
        given["storage_options"] = json.dumps(storage_options)
    if transaction is not None:
        given["transaction"] = transaction
    limits = Options.of(given, WRITE | {"chunk_size"}, "ingest")
    limits.choice("distribution", *DISTRIBUTIONS)
    limits.choice("transaction", "strong", "weak")
    limits.size("chunk_size")
    if mode not in MODES:
        raise PhalanxError(
            f"Cannot ingest with mode={mode!r}: expected {' or '.join(map(repr, MODES))}."
        )
    return limits


def _done(table: Table, id: str | None) -> dict[str, int]:
    """The markers of what was ingested before."""
    return markers_of(table, marker_prefix(_INGEST, id))


def _chunks(
    uri: str,
    transaction: str,
    source: Source,
    mode: str,
    id: str | None,
    done: Mapping[str, int],
    chunk_bytes: int,
) -> list[Chunk[InputFile]]:
    """What is left to do, in parts that are each committed once."""
    if transaction != "strong":
        if id is not None:
            raise PhalanxError(
                f"Cannot ingest {source.name} once only, as {id!r}: {uri} is in weak mode. "
                "Leave the id out, or change the table with set_mode('strong')."
            )
        return [Chunk(source.files, ())]
    prefix = marker_prefix(_INGEST, id)
    once = f"{marker_prefix(_INGEST, uuid.uuid4().hex)}all"
    if source.files is None or mode == "overwrite":
        marker = once if id is None else f"{prefix}all"
        return [] if marker in done else [Chunk(source.files, (marker,))]
    known = known_digests(done, prefix)
    left = []
    for file in source.files:
        before = known.get(file.digest[:PLACE_DIGITS])
        if before is not None and before != file.digest:
            raise PhalanxError(
                f"Cannot ingest {file.path} again: it was ingested into {uri} before, and "
                "has changed since. Take it out of the source, or give another id to ingest all "
                "files anew."
            )
        if before is None:
            left.append(file)
    return chunks_of(left, prefix, chunk_bytes)


def _warn(table: Table, source: Source, mode: str, id: str | None, is_told: bool) -> None:
    """Say what the same call again would do, where it is not nothing."""
    if not is_told or mode == "overwrite":
        return
    if table.mode != "strong":
        why = f"{table.uri} is in weak mode"
    elif source.files is None and id is None:
        why = f"{source.name} has no id"
    else:
        return
    print(
        f"phalanx: {why}: an ingest that is repeated, also after a crash, adds its rows again.",
        file=sys.stderr,
    )


def _write(
    frame: DataFrame, table: Table, chunk: Chunk[InputFile], how: Mapping[str, Any]
) -> Brought | None:
    """Write a chunk; None if another write has brought some of it before."""
    before = None if chunk.markers else table.files()
    write(frame, table.uri, marker="\n".join(chunk.markers) or None, report=False, **how)
    if before is not None:
        return Brought(_new_fragments(before, table.files()), None)
    snapshot = is_ours(table, chunk, f"{_INGEST} ")
    if snapshot is None:
        return None
    # Only the partitions that it changed are looked at, however many there are.
    manifest = Manifest.open(Location.of(table.uri, how["storage_options"]))
    with told(f"count what came to {table.uri}"):
        came = new_rows(manifest, Position(snapshot - 1), Position(snapshot), Wanted())
    return Brought(tuple((each.scan.location.uri, each.rows) for each in came), snapshot)


def _new_fragments(before: pa.Table, after: pa.Table) -> tuple[tuple[str, int], ...]:
    """The fragments that are in the second and not in the first."""
    known = {path for paths in before["paths"].to_pylist() for path in paths}
    columns = (after[name].to_pylist() for name in ("paths", "location", "rows"))
    return tuple(
        (place, rows)
        for paths, place, rows in zip(*columns, strict=True)
        if known.isdisjoint(paths)
    )
