"""Whatever Spark can read becomes a table, in chunks that are each committed once.

A chunk has a marker for each of its files. So the same call again after a crash knows by the table
itself which files it has, and goes on with the others; and of two ingests at the same time only
one brings a file.
"""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from phalanx.errors import NotPartitioned, PhalanxError
from phalanx.model.partition_by import PartitionBy
from phalanx.model.rows import check_fits
from phalanx.planning.splits import packed
from phalanx.spark.distributing import MODES, write
from phalanx.spark.failures import of_spark
from phalanx.spark.options import WRITE, Options
from phalanx.spark.progress import Progress
from phalanx.spark.sources import PLACE_DIGITS, InputFile, Source, source_of
from phalanx.spark.types import arrow_schema, spark_schema
from phalanx.spark.writing import DISTRIBUTIONS, table_to_write
from phalanx.storage.failures import told
from phalanx.storage.location import Location
from phalanx.storage.manifest import Manifest
from phalanx.table.new_rows import Position, Wanted, new_rows
from phalanx.table.table import Table, open

_CHUNK_BYTES = "2GB"
# Each of them has a marker, which is a row of the manifest.
_CHUNK_FILES = 1000
_MARKERS = "ingest "
_ANY = "files"


@dataclass(frozen=True, slots=True)
class Ingested:
    """What an ingest has done, and what was done before it."""

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
        if not self.chunks:
            return f"Nothing to ingest: {self.uri} has all rows of {self.source} already."
        before = (
            f"; {_counted(self.skipped_files, 'file')} were there" if self.skipped_files else ""
        )
        return (
            f"Ingested {self.rows:,} rows into {_counted(self.partitions, 'partition')} of "
            f"{self.uri}, in {_counted(self.fragments, 'fragment')} and "
            f"{_counted(self.chunks, 'chunk')}, in {self.seconds:.1f} s{before}."
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What is committed at once, by which markers; None for the files means everything."""

    files: tuple[InputFile, ...] | None
    markers: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files or ())


@dataclass(frozen=True, slots=True)
class _Brought:
    """What a chunk has brought: the place and the rows of each fragment, and its snapshot."""

    fragments: tuple[tuple[str, int], ...]
    snapshot: int | None

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.fragments)


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
    chunk_size: int | str = _CHUNK_BYTES,
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
    try:
        table: Table | None = open(uri, storage_options=storage_options)
    except NotPartitioned:
        table, transaction = None, transaction or "strong"
    limits = _checked(mode, distribution, chunk_size, uri, transaction, storage_options)
    found = source_of(spark, source, format, options or {}, schema)
    rows = found.schema(spark, None if table is None else spark_schema(table.schema))
    table = table_to_write(limits, rows, partition_by=partition_by)
    assert table is not None
    check_fits(arrow_schema(rows), table.schema)
    done = _done(table, id)
    chunk_bytes = limits.size("chunk_size") or 1
    chunks = _chunks(table, found, mode, id, done, chunk_bytes)
    _warn(table, found, mode, id, progress)

    how = {"mode": mode, "distribution": distribution, "storage_options": storage_options}
    files = sum(len(chunk.files or ()) for chunk in chunks)
    size = sum(chunk.size for chunk in chunks)
    before = len(found.files or ()) - files
    report = Ingested(
        found.name,
        table.uri,
        0,
        0,
        0,
        0,
        0,
        0,
        len(set(done.values())) if before or not chunks else 0,
        None,
        0,
    )
    written: list[_Brought] = []
    with Progress(spark, len(chunks), files, size, progress) as shown:
        while chunks:
            chunk = chunks.pop(0)
            frame = found.frame(spark, rows, chunk.files)
            with of_spark(f"ingest {found.name} into {table.uri}"):
                brought = _write(frame, table, chunk, how)
            if brought is None:
                # Another ingest has brought some of its files meanwhile.
                some = replace(found, files=chunk.files)
                chunks[:0] = _chunks(table, some, mode, id, _done(table, id), chunk_bytes)
                continue
            written.append(brought)
            report = replace(
                report,
                files=report.files + len(chunk.files or ()),
                chunks=report.chunks + 1,
                snapshot=brought.snapshot,
            )
            shown.finished(len(chunk.files or ()), chunk.size, brought.rows)
        seconds = shown.seconds
    fragments = [fragment for each in written for fragment in each.fragments]
    return replace(
        report,
        rows=sum(rows for _, rows in fragments),
        partitions=len({place for place, _ in fragments}),
        fragments=len(fragments),
        skipped_files=len(found.files or ()) - report.files,
        seconds=round(seconds, 3),
    )


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


def _prefix(id: str | None) -> str:
    """How the markers begin of what is ingested under an id, or of files without one."""
    name = _ANY if id is None else hashlib.blake2b(id.encode(), digest_size=8).hexdigest()
    return f"{_MARKERS}{name} "


def _done(table: Table, id: str | None) -> dict[str, int]:
    """The markers of what was ingested before."""
    return table.markers(_prefix(id)) if table.mode == "strong" else {}


def _chunks(
    table: Table,
    source: Source,
    mode: str,
    id: str | None,
    done: Mapping[str, int],
    chunk_bytes: int,
) -> list[_Chunk]:
    """What is left to do, in parts that are each committed once."""
    if table.mode != "strong":
        if id is not None:
            raise PhalanxError(
                f"Cannot ingest {source.name} once only, as {id!r}: {table.uri} is in weak mode. "
                "Leave the id out, or change the table with set_mode('strong')."
            )
        return [_Chunk(source.files, ())]
    prefix = _prefix(id)
    once = f"{_prefix(uuid.uuid4().hex)}all"
    if source.files is None or mode == "overwrite":
        marker = once if id is None else f"{prefix}all"
        return [] if marker in done else [_Chunk(source.files, (marker,))]
    digests = (marker.removeprefix(prefix) for marker in done)
    known = {digest[:PLACE_DIGITS]: digest for digest in digests}
    left = []
    for file in source.files:
        before = known.get(file.digest[:PLACE_DIGITS])
        if before is not None and before != file.digest:
            raise PhalanxError(
                f"Cannot ingest {file.path} again: it was ingested into {table.uri} before, and "
                "has changed since. Take it out of the source, or give another id to ingest all "
                "files anew."
            )
        if before is None:
            left.append(file)
    parts = packed(left, lambda file: file.size, chunk_bytes)
    return [
        _Chunk(some, tuple(prefix + file.digest for file in some))
        for part in parts
        for some in _cut(part, _CHUNK_FILES)
    ]


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
    frame: DataFrame, table: Table, chunk: _Chunk, how: Mapping[str, Any]
) -> _Brought | None:
    """Write a chunk; None if another write has brought some of it before."""
    before = None if chunk.markers else table.files()
    write(frame, table.uri, marker="\n".join(chunk.markers) or None, report=False, **how)
    if before is not None:
        return _Brought(_new_fragments(before, table.files()), None)
    done = table.markers(_MARKERS)
    snapshot = done.get(chunk.markers[0])
    together = {marker for marker, each in done.items() if each == snapshot}
    if snapshot is None or together != set(chunk.markers):
        return None
    # Only the partitions that it changed are looked at, however many there are.
    manifest = Manifest.open(Location.of(table.uri, how["storage_options"]))
    with told(f"count what came to {table.uri}"):
        came = new_rows(manifest, Position(snapshot - 1), Position(snapshot), Wanted())
    return _Brought(tuple((each.scan.location.uri, each.rows) for each in came), snapshot)


def _new_fragments(before: pa.Table, after: pa.Table) -> tuple[tuple[str, int], ...]:
    """The fragments that are in the second and not in the first."""
    known = {path for paths in before["paths"].to_pylist() for path in paths}
    columns = (after[name].to_pylist() for name in ("paths", "location", "rows"))
    return tuple(
        (place, rows)
        for paths, place, rows in zip(*columns, strict=True)
        if known.isdisjoint(paths)
    )


def _cut(files: Sequence[InputFile], most: int) -> list[tuple[InputFile, ...]]:
    return [tuple(files[start : start + most]) for start in range(0, len(files), most)]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
