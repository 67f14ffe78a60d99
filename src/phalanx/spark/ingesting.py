"""Whatever Spark can read becomes a table, in chunks that are each committed once.

The marker of a chunk names its files. So the same call again after a crash knows by the table
itself which files it has, and goes on with the others.
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
import pyarrow.compute as pc
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
from phalanx.table.table import Table, open

_CHUNK_BYTES = "2GB"
# All of them are named by the marker, which is a text in a row of the manifest.
_CHUNK_FILES = 1000
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
    """What is committed at once, by which marker; None for the files means everything."""

    files: tuple[InputFile, ...] | None
    marker: str | None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files or ())


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
    chunks = _chunks(table, found, mode, id, done, limits.size("chunk_size"))
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
        before,
        len(done) if before or not chunks else 0,
        None,
        0,
    )
    written: list[pa.Table] = []
    with Progress(spark, len(chunks), files, size, progress) as shown:
        for chunk in chunks:
            frame = found.frame(spark, rows, chunk.files)
            with of_spark(f"ingest {found.name} into {table.uri}"):
                stored, snapshot = _write(frame, table, chunk, how)
            written.append(stored)
            report = replace(
                report,
                files=report.files + len(chunk.files or ()),
                chunks=report.chunks + 1,
                snapshot=snapshot,
            )
            shown.finished(len(chunk.files or ()), chunk.size, _sum(stored))
        seconds = shown.seconds
    return replace(
        report,
        rows=sum(map(_sum, written)),
        partitions=len({place for each in written for place in each["location"].to_pylist()}),
        fragments=sum(each.num_rows for each in written),
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
    return f"ingest {name} "


def _done(table: Table, id: str | None) -> dict[str, int]:
    """The markers of what was ingested before."""
    return table.markers(_prefix(id)) if table.mode == "strong" else {}


def _chunks(
    table: Table,
    source: Source,
    mode: str,
    id: str | None,
    done: Mapping[str, int],
    chunk_bytes: int | None,
) -> list[_Chunk]:
    """What is left to do, in parts that are each committed once."""
    if table.mode != "strong":
        if id is not None:
            raise PhalanxError(
                f"Cannot ingest {source.name} once only, as {id!r}: {table.uri} is in weak mode. "
                "Leave the id out, or change the table with set_mode('strong')."
            )
        return [_Chunk(source.files, None)]
    prefix = _prefix(id)
    once = f"{_prefix(uuid.uuid4().hex)}all"
    if source.files is None or mode == "overwrite":
        marker = once if id is None else f"{prefix}all"
        return [] if marker in done else [_Chunk(source.files, marker)]
    known = {
        digest[:PLACE_DIGITS]: digest
        for marker in done
        for digest in marker.removeprefix(prefix).split(",")
    }
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
    parts = packed(left, lambda file: file.size, chunk_bytes or 1)
    return [
        _Chunk(some, prefix + ",".join(file.digest for file in some))
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
) -> tuple[pa.Table, int | None]:
    """Write a chunk; the files that came by it, and its snapshot."""
    before = table.files() if chunk.marker is None else None
    write(frame, table.uri, marker=chunk.marker, report=False, **how)
    if before is not None:
        return _new_files(before, table.files()), None
    snapshot = table.begin_write(marker=chunk.marker).done
    assert snapshot is not None
    return _new_files(table.at(snapshot - 1).files(), table.at(snapshot).files()), snapshot


def _new_files(before: pa.Table, after: pa.Table) -> pa.Table:
    """The fragments that are in the second and not in the first."""
    known = {path for paths in before["paths"].to_pylist() for path in paths}
    fresh = [known.isdisjoint(paths) for paths in after["paths"].to_pylist()]
    return after.filter(pa.array(fresh, pa.bool_()))


def _sum(files: pa.Table) -> int:
    return int(pc.sum(files["rows"], min_count=0).as_py())


def _cut(files: Sequence[InputFile], most: int) -> list[tuple[InputFile, ...]]:
    return [tuple(files[start : start + most]) for start in range(0, len(files), most)]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
