"""Tables of other systems become tables of Phalanx: planned, shown, and brought by Spark.

Rows go from file to file on the executors, as Arrow; the JVM sees none of them.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from phalanx.errors import PhalanxError
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.planning.import_plan import ImportPlan
from phalanx.spark.ingested import Ingested, Outcome
from phalanx.spark.pipelines.file_imports import import_files, plan_files
from phalanx.spark.runtime.failures import of_spark
from phalanx.spark.runtime.options import PLACE, Options
from phalanx.spark.runtime.progress import Progress
from phalanx.spark.source.writing import DISTRIBUTIONS, has_many_small_files
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.table.imports.chunks import CHUNK_BYTES, Brought, Chunk, bring_all
from phalanx.table.imports.prepare import Import, UnitPart, prepare_import
from phalanx.table.imports.sources import is_table_source
from phalanx.table.imports.tasks import (
    ImportTask,
    UnitsWritten,
    checked_files,
    import_tasks,
)
from phalanx.table.jobs.small_files import gathered
from phalanx.table.jobs.work import on_spark
from phalanx.table.jobs.write_job import Committed
from phalanx.table.maintenance.rewrite import GroupWork
from phalanx.table.table import Table


@dataclass(frozen=True, slots=True)
class Imported:
    """What was planned, and what an import has done of it."""

    plan: ImportPlan
    done: Ingested

    def __str__(self) -> str:
        if self.plan.is_upgrade:
            return f"Upgraded {self.plan.uri} where it is: {self.plan.total}."
        return self.done.told("import")

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {**self.done.to_dict(), "plan": self.plan.to_dict()}


def plan_import(
    spark: SparkSession | None,
    source: Any,
    uri: str | os.PathLike[str],
    partition_by: PartitionBy | None = None,
    *,
    format: str | None = None,
    table: str | None = None,
    options: Mapping[str, object] | None = None,
    id: str | None = None,
    transaction: str | None = None,
    chunk_size: int | str = CHUNK_BYTES,
    storage_options: dict[str, str] | None = None,
) -> ImportPlan:
    """What `import_table` would do with the same arguments; nothing is written.

    Spark is needed for files only.
    """
    limits = _limits(uri, chunk_size, "auto", transaction, storage_options)
    if not is_table_source(source, format):
        return plan_files(
            _needed(spark), source, limits, partition_by, format=format, options=options, id=id
        )
    return _prepared(source, limits, partition_by, format, table, options, id).plan


def import_table(
    spark: SparkSession,
    source: Any,
    uri: str | os.PathLike[str],
    partition_by: PartitionBy | None = None,
    *,
    format: str | None = None,
    table: str | None = None,
    options: Mapping[str, object] | None = None,
    id: str | None = None,
    distribution: str = "auto",
    transaction: str | None = None,
    chunk_size: int | str = CHUNK_BYTES,
    storage_options: dict[str, str] | None = None,
    progress: bool = True,
) -> Imported:
    """Bring a table of another system, or files, into a table, which is made if it is missing.

    `format` says what the source is: "lance"; "phalanx", a table of any layout, of which
    "expressions" and "hive" are two; "ducklake", named `CATALOG::TABLE` or by the catalog and
    `table`; "iceberg", named by its metadata file or as `CATALOG::NAMESPACE.TABLE` of pyiceberg's
    configuration, with `options` for the catalog; or files as `ingest` takes them. A table that is
    opened already tells it itself. A new table is partitioned as the source is, as far as the
    format has the same partitions or near ones, or by `partition_by`. The plan is shown first. A
    table of an earlier draft that is imported into its own place is upgraded there.

    In strong mode, which a new table gets, every file of the source comes once, in chunks of about
    `chunk_size` bytes: the same call again goes on where it was cut off, takes what is new in the
    source, and adds nothing when all is there. A source in which rows that came were deleted or
    written anew since is refused; another `id` imports all of it again. The rows that the source
    has and those that are committed are counted and compared.

    `distribution` is "auto": as few tasks as keep all cores busy, each of which writes a file for
    every partition it has rows of; "none": tasks of the usual size; "hash": the rows of a
    partition are brought together, those of files by a shuffle, those of tables by putting the
    small files of a partition together before they are committed.
    """
    limits = _limits(uri, chunk_size, distribution, transaction, storage_options)
    if not is_table_source(source, format):
        plan, done = import_files(
            spark,
            source,
            limits,
            partition_by,
            format=format,
            options=options,
            id=id,
            cores=_cores(spark),
            is_told=progress,
        )
        return Imported(plan, done)
    found = _prepared(source, limits, partition_by, format, table, options, id)
    if progress:
        print(found.plan, file=sys.stderr)
    if found.plan.is_upgrade:
        return Imported(found.plan, _upgraded(found))
    return Imported(found.plan, _ran(spark, found, limits, progress))


def _prepared(
    source: Any,
    limits: Options,
    partition_by: PartitionBy | None,
    format: str | None,
    table: str | None,
    options: Mapping[str, object] | None,
    id: str | None,
) -> Import:
    return prepare_import(
        source,
        limits.location,
        partition_by,
        format=format,
        table=table,
        options=options,
        id=id,
        transaction=limits.text("transaction"),
        chunk_bytes=limits.size("chunk_size") or 1,
    )


def _upgraded(found: Import) -> Ingested:
    """Make a table of an earlier draft one of the newest format, where it is."""
    found.check()
    began, table = time.monotonic(), found.table
    assert table is not None
    table.upgrade()
    seconds = time.monotonic() - began
    return Outcome().told(table.uri, table.uri, len(found.source.units), 0, seconds)


def _ran(spark: SparkSession, found: Import, limits: Options, is_told: bool) -> Ingested:
    """Bring what is left; what cannot be is told before anything is written."""
    found.check()
    in_parallel(lambda part: part.unit.check(), found.left(found.table))
    table = found.target(limits.text("transaction"))
    distribution = limits.choice("distribution", *DISTRIBUTIONS)
    cores = _cores(spark)

    def bring(chunk: Chunk[UnitPart]) -> Brought | None:
        with of_spark(f"import {found.source.place} into {table.uri}"):
            return _brought(spark, found, table, chunk, distribution, cores)

    def again(chunk: Chunk[UnitPart]) -> list[Chunk[UnitPart]]:
        ours = {part.digest for part in chunk.parts or ()}
        return found.chunks(table, [part for part in found.left(table) if part.digest in ours])

    chunks = found.chunks(table, found.left(table))
    outcome = Outcome()
    files, size = sum(chunk.count for chunk in chunks), sum(chunk.size for chunk in chunks)
    if is_told and chunks and table.mode != "strong":
        print(
            f"phalanx: {table.uri} is in weak mode: an import that is repeated, also after a "
            "crash, adds its rows again.",
            file=sys.stderr,
        )
    with Progress(spark, len(chunks), files, size, is_told) as shown:
        for chunk, brought in bring_all(chunks, bring, again):
            outcome.add(chunk, brought)
            shown.finished(chunk.count, chunk.size, brought.rows)
        seconds = shown.seconds
    found.check_counts(table)
    all_files = len(found.source.units)
    done = outcome.told(found.source.place, table.uri, all_files, 0, seconds)
    counts = Committed(done.rows, done.partitions, done.fragments)
    if is_told and distribution == "auto" and has_many_small_files(counts):
        print(
            f"phalanx: {done.fragments:,} small fragments for {done.partitions:,} partitions make "
            "reads slow. Put them together with Table.rewrite, or import with larger chunks or "
            "distribution='hash'.",
            file=sys.stderr,
        )
    return done


def _brought(
    spark: SparkSession,
    found: Import,
    table: Table,
    chunk: Chunk[UnitPart],
    distribution: str,
    cores: int,
) -> Brought | None:
    """Write a chunk; None if another import has brought some of it before."""
    units = [part.unit for part in chunk.parts or ()]
    job = table.begin_write(marker="\n".join(chunk.markers) or None)
    if job.done is not None:
        return None
    tasks = import_tasks(job, found.stored, units, cores, distribution == "none")
    done = _run(spark, tasks)
    checked_files(found.source.place, units, done)
    files = [each.files for each in done]
    if distribution == "hash":
        files = gathered(job, files)
    committed = job.commit(files)
    expected = sum(unit.rows for unit in units)
    if committed.rows != expected:
        return None
    fragments = [
        (leaf.location, each.num_rows)
        for task in files
        for leaf in task.files
        for each in leaf.fragments
    ]
    return Brought(tuple(fragments), committed.snapshot)


def _run(spark: SparkSession, tasks: list[ImportTask]) -> list[UnitsWritten]:
    rows = on_spark(spark, GroupWork(tuple((task,) for task in tasks))).collect()
    return [pickle.loads(row["done"]) for row in rows]


def _cores(spark: SparkSession) -> int:
    """How many tasks can run at once; by Connect nobody tells."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:
        return os.cpu_count() or 1


def _limits(
    uri: str | os.PathLike[str],
    chunk_size: int | str,
    distribution: str,
    transaction: str | None,
    storage_options: dict[str, str] | None,
) -> Options:
    """What can be refused without looking at anything."""
    given = {
        "path": Location.of(uri, storage_options).uri,
        "distribution": distribution,
        "chunk_size": str(chunk_size),
    }
    given |= {f"storage.{key}": text for key, text in (storage_options or {}).items()}
    if transaction is not None:
        given["transaction"] = transaction
    known = PLACE | {"distribution", "chunk_size", "transaction"}
    limits = Options.of(given, known, "import")
    limits.choice("distribution", *DISTRIBUTIONS)
    limits.choice("transaction", "strong", "weak")
    limits.size("chunk_size")
    return limits


def _needed(spark: SparkSession | None) -> SparkSession:
    if spark is None:
        raise PhalanxError(
            "Cannot plan an import of files without Spark, which reads them. Give a session."
        )
    return spark
