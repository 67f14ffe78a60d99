"""Ingest of anything that Spark can read into a table, in chunks that are committed exactly once.

After a crash the same call continues with the remaining files.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from phalanx.arguments import Mode, SaveMode, Shuffle
from phalanx.errors import InvalidArgument, NotPartitioned, PhalanxError
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.planning.formatting import format_count
from phalanx.spark.pipelines.sources import InputFile, SparkInput, resolve_source
from phalanx.spark.runtime.failures import translate_spark_errors
from phalanx.spark.runtime.notices import notify
from phalanx.spark.runtime.options import WRITE_OPTIONS, Options
from phalanx.spark.runtime.progress import SparkProgress
from phalanx.spark.runtime.types import check_spark_columns, spark_schema
from phalanx.spark.source.distribution import SAVE_MODES, write
from phalanx.spark.source.writing import DISTRIBUTIONS, open_or_plan_table
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.history.incremental_scan import Position, Selection, find_new_rows
from phalanx.table.imports.chunks import (
    CHUNK_BYTES,
    NAME_DIGITS,
    Chunk,
    WrittenChunk,
    choose_task_count,
    find_markers,
    find_own_snapshot,
    index_digests,
    make_marker_prefix,
    split_chunks,
    write_chunks,
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
    mode: SaveMode = "append",
    id: str | None = None,
    distribution: Shuffle = "auto",
    transaction: Mode | None = None,
    chunk_size: int | str = CHUNK_BYTES,
    storage_options: dict[str, str] | None = None,
    progress: bool = True,
) -> Ingested:
    """Ingest anything that Spark can read into a table; create the table if it is missing.

    `source` is a path of files (`format` is given or inferred from their names), the name of a
    table, a DataFrame, or what another format loads: for `format="jdbc"` the URL. `options` are
    those of Spark's reader. By default CSV has a header, types are inferred, times without a zone
    are in UTC, and a value that cannot be parsed fails the ingest.

    In strong mode, the default for a new table, files are committed in chunks of about `chunk_size`
    bytes, and each file exactly once: repeating the call continues after an interruption, and adds
    nothing when all files are ingested. A source without files is one chunk, and is committed
    exactly once if it has an `id`. Another `id` ingests the same files again. In weak mode the
    ingest is one write, and repeating it adds the rows again. Returns what was done.
    """
    found = FileIngest.prepare(
        spark,
        source,
        _check_options(mode, distribution, chunk_size, uri, transaction, storage_options),
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
    """A prepared ingest: its source, and its table if that exists already."""

    source: SparkInput
    schema: StructType
    table: Table | None
    options: Options
    partition_by: PartitionBy | None
    mode: str
    id: str | None
    # The number of cores to write with few tasks; None lets the files decide.
    writers: int | None = None

    @classmethod
    def prepare(
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
        """Prepare an ingest; nothing is written."""
        location = limits.location
        try:
            table: Table | None = open(location.uri, storage_options=location.storage_options)
        except NotPartitioned:
            table = None
        resolved = resolve_source(spark, source, format, options or {}, schema)
        columns = resolved.schema(spark, None if table is None else spark_schema(table.schema))
        return cls(resolved, columns, table, limits, partition_by, mode, id)

    def chunks(self, done: Mapping[str, int], transaction: str) -> list[Chunk[InputFile]]:
        """Return the remaining work, in chunks that are committed exactly once."""
        size = self.options.size("chunk_size") or 1
        uri = self.options.location.uri
        return _plan_chunks(uri, transaction, self.source, self.mode, self.id, done, size)

    @property
    def done_markers(self) -> dict[str, int]:
        """The markers of chunks that are ingested already."""
        return {} if self.table is None else _done_markers(self.table, self.id)

    @property
    def transaction(self) -> str:
        """The mode of the table: "weak" or "strong"."""
        if self.table is not None:
            return self.table.mode
        return self.options.choice("transaction", "strong", "weak")

    def run(self, spark: SparkSession, show_progress: bool) -> Ingested:
        """Create the table if it is missing, and ingest the remaining chunks."""
        given = {**self.options.given, "transaction": self.transaction}
        limits = self.options if self.table is not None else replace(self.options, given=given)
        table = open_or_plan_table(limits, self.schema, partition_by=self.partition_by)
        if isinstance(table, NewTable):
            # Its chunks are committed one by one.
            table = table.create()
        assert table is not None
        found, rows = self.source, self.schema
        check_spark_columns(rows, table.schema)
        done = _done_markers(table, self.id)
        chunks = self.chunks(done, table.mode)
        _warn_of_repeats(table, found, self.mode, self.id, show_progress)

        given_how = {
            "mode": self.mode,
            "distribution": limits.choice("distribution", *DISTRIBUTIONS),
            "storage_options": limits.storage_options,
        }
        files = sum(chunk.count for chunk in chunks)
        size = sum(chunk.size for chunk in chunks)
        before = len(found.files or ()) - files
        skipped = len(set(done.values())) if before or not chunks else 0

        def write_one(chunk: Chunk[InputFile]) -> WrittenChunk | None:
            frame, how = found.frame(spark, rows, chunk.parts), dict(given_how)
            if self.writers is not None and how["distribution"] == "auto":
                frame = frame.coalesce(choose_task_count(self.writers, chunk.size))
                how["distribution"] = "none"
            with translate_spark_errors(f"ingest {found.name} into {table.uri}"):
                return _write_chunk(frame, table, chunk, how)

        def plan_again(chunk: Chunk[InputFile]) -> list[Chunk[InputFile]]:
            some = replace(self, source=replace(found, files=chunk.parts))
            return some.chunks(_done_markers(table, self.id), table.mode)

        outcome = IngestOutcome()
        with SparkProgress(spark, len(chunks), files, size, show_progress) as shown:
            for chunk, written in write_chunks(chunks, write_one, plan_again):
                outcome.add(chunk, written)
                shown.finish_part(chunk.count, chunk.size, written.rows)
            seconds = shown.seconds
        return outcome.to_result(found.name, table.uri, len(found.files or ()), skipped, seconds)


def _check_options(
    mode: str,
    distribution: str,
    chunk_size: int | str,
    uri: str,
    transaction: str | None,
    storage_options: dict[str, str] | None,
) -> Options:
    """Validate the arguments that need no access to the source or the table."""
    given = {"path": uri, "distribution": distribution, "chunk_size": str(chunk_size)}
    if storage_options:
        given["storage_options"] = json.dumps(storage_options)
    if transaction is not None:
        given["transaction"] = transaction
    limits = Options.of(given, WRITE_OPTIONS | {"chunk_size"}, "ingest")
    limits.choice("distribution", *DISTRIBUTIONS)
    limits.choice("transaction", "strong", "weak")
    limits.size("chunk_size")
    if mode not in SAVE_MODES:
        raise InvalidArgument(
            f"Cannot ingest with mode={mode!r}: expected {' or '.join(map(repr, SAVE_MODES))}."
        )
    return limits


def _done_markers(table: Table, id: str | None) -> dict[str, int]:
    """Return the markers of chunks that are ingested already."""
    return find_markers(table, make_marker_prefix(_INGEST, id))


def _plan_chunks(
    uri: str,
    transaction: str,
    source: SparkInput,
    mode: str,
    id: str | None,
    done: Mapping[str, int],
    chunk_bytes: int,
) -> list[Chunk[InputFile]]:
    """Return the remaining work, in chunks that are committed exactly once."""
    if transaction != "strong":
        if id is not None:
            raise PhalanxError(
                f"Cannot ingest {source.name} exactly once, as {id!r}: {uri} is in weak mode. "
                "Leave the id out, or change the table with set_mode('strong')."
            )
        return [Chunk(source.files, ())]
    prefix = make_marker_prefix(_INGEST, id)
    once = f"{make_marker_prefix(_INGEST, uuid.uuid4().hex)}all"
    if source.files is None or mode == "overwrite":
        marker = once if id is None else f"{prefix}all"
        return [] if marker in done else [Chunk(source.files, (marker,))]
    known = index_digests(done, prefix)
    left = []
    for file in source.files:
        before = known.get(file.digest[:NAME_DIGITS])
        if before is not None and before != file.digest:
            raise PhalanxError(
                f"Cannot ingest {file.path} again: it was ingested into {uri} before, and "
                "has changed since. Remove it from the source, or use another id to ingest all "
                "files again."
            )
        if before is None:
            left.append(file)
    return split_chunks(left, prefix, chunk_bytes)


def _warn_of_repeats(
    table: Table, source: SparkInput, mode: str, id: str | None, show_progress: bool
) -> None:
    """Warn if repeating the call would add the rows again."""
    if not show_progress or mode == "overwrite":
        return
    if table.mode != "strong":
        why = f"{table.uri} is in weak mode"
    elif source.files is None and id is None:
        why = f"{source.name} has no id"
    else:
        return
    notify(
        f"{why}: repeating the ingest, also after a crash, adds its rows again.",
    )


def _write_chunk(
    frame: DataFrame, table: Table, chunk: Chunk[InputFile], how: Mapping[str, Any]
) -> WrittenChunk | None:
    """Write a chunk; None if another write has committed part of it before."""
    before = None if chunk.markers else table.files()
    write(frame, table.uri, marker="\n".join(chunk.markers) or None, report=False, **how)
    if before is not None:
        return WrittenChunk(_new_fragments(before, table.files()), None)
    snapshot = find_own_snapshot(table, chunk, f"{_INGEST} ")
    if snapshot is None:
        return None
    # Reads only the partitions that the snapshot changed.
    manifest = Manifest.open(Location.of(table.uri, how["storage_options"]))
    with translate_errors(f"count the new rows of {table.uri}"):
        added = find_new_rows(manifest, Position(snapshot - 1), Position(snapshot), Selection())
    return WrittenChunk(tuple((each.scan.location.uri, each.rows) for each in added), snapshot)


def _new_fragments(before: pa.Table, after: pa.Table) -> tuple[tuple[str, int], ...]:
    """Return the fragments that are in `after` and not in `before`."""
    known = {path for paths in before["paths"].to_pylist() for path in paths}
    columns = (after[name].to_pylist() for name in ("paths", "location", "rows"))
    return tuple(
        (location, rows)
        for paths, location, rows in zip(*columns, strict=True)
        if known.isdisjoint(paths)
    )


@dataclass(frozen=True, slots=True)
class Ingested:
    """The result of an ingest or import.

    Attributes:
        source: What was read.
        uri: The path or URI of the table.
        rows: The number of rows written by this call.
        partitions: The number of partitions that got rows.
        fragments: The number of Lance fragments written.
        files: The number of source files read.
        chunks: The number of chunks committed; 0: the table had all rows already.
        skipped_files: The number of source files that earlier calls had written.
        skipped_chunks: The number of chunks that earlier calls had committed.
        snapshot: The id of the last snapshot; None in weak mode, and if nothing was written.
        seconds: The time that the call took.
    """

    source: str
    uri: str
    rows: int
    partitions: int
    fragments: int
    files: int
    chunks: int
    skipped_files: int
    skipped_chunks: int
    snapshot: int | None
    seconds: float

    def __str__(self) -> str:
        return self.describe("ingest")

    def describe(self, verb: str) -> str:
        """Describe the result in a sentence, with the verb "ingest" or "import"."""
        if not self.chunks:
            return f"Nothing to {verb}: {self.uri} has all rows of {self.source} already."
        before = (
            f"; {format_count(self.skipped_files, 'file')} were there" if self.skipped_files else ""
        )
        return (
            f"{verb.capitalize()}ed {self.rows:,} rows into "
            f"{format_count(self.partitions, 'partition')} of "
            f"{self.uri}, in {format_count(self.fragments, 'fragment')} and "
            f"{format_count(self.chunks, 'chunk')}, in {self.seconds:.1f} s{before}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-ready dict."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class IngestOutcome:
    """What is ingested so far, chunk by chunk."""

    files: int = 0
    chunks: int = 0
    snapshot: int | None = None
    fragments: list[tuple[str, int]] = field(default_factory=list)

    def add(self, chunk: Chunk[Any], written: WrittenChunk) -> None:
        """Record a chunk."""
        self.files += chunk.count
        self.chunks += 1
        self.snapshot = written.snapshot
        self.fragments += written.fragments

    def to_result(
        self, source: str, uri: str, all_files: int, skipped_chunks: int, seconds: float
    ) -> Ingested:
        """Return the result of an ingest of `all_files` files."""
        return Ingested(
            source,
            uri,
            rows=sum(rows for _, rows in self.fragments),
            partitions=len({location for location, _ in self.fragments}),
            fragments=len(self.fragments),
            files=self.files,
            chunks=self.chunks,
            skipped_files=all_files - self.files,
            skipped_chunks=skipped_chunks,
            snapshot=self.snapshot,
            seconds=round(seconds, 3),
        )
