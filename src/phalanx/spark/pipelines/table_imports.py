"""Imports of tables of other systems: planned, shown, and run by Spark.

Executors copy rows from file to file as Arrow batches, without the JVM.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import SparkSession

from phalanx.arguments import Mode, Shuffle
from phalanx.errors import PhalanxError
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.planning.import_plan import ImportPlan
from phalanx.spark.pipelines.file_imports import import_files, plan_files
from phalanx.spark.pipelines.ingest import Ingested, IngestOutcome
from phalanx.spark.runtime.failures import translate_spark_errors
from phalanx.spark.runtime.notices import notify
from phalanx.spark.runtime.options import LOCATION_OPTIONS, Options
from phalanx.spark.runtime.progress import SparkProgress
from phalanx.spark.source.work_source import frame_of
from phalanx.spark.source.writing import DISTRIBUTIONS, has_many_small_files
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.table.imports.chunks import CHUNK_BYTES, Chunk, WrittenChunk, write_chunks
from phalanx.table.imports.prepare import PreparedImport, UnitPart, prepare_import
from phalanx.table.imports.sources import is_table_source
from phalanx.table.imports.tasks import (
    ImportTask,
    ImportTaskResult,
    check_written,
    plan_import_tasks,
)
from phalanx.table.jobs.small_files import combine_small_files
from phalanx.table.jobs.write_job import WriteResult
from phalanx.table.maintenance.group_tasks import GroupWork
from phalanx.table.table import Table


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import of a table.

    Attributes:
        plan: The plan of the import.
        done: What was written.
    """

    plan: ImportPlan
    done: Ingested

    def __str__(self) -> str:
        if self.plan.is_upgrade:
            return f"Upgraded {self.plan.uri} in place: {self.plan.total}."
        return self.done.describe("import")

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-ready dict."""
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
    transaction: Mode | None = None,
    chunk_size: int | str = CHUNK_BYTES,
    storage_options: dict[str, str] | None = None,
) -> ImportPlan:
    """Plan what `import_table` would do with the same arguments; nothing is written.

    Only files need Spark.
    """
    limits = _check_options(uri, chunk_size, "auto", transaction, storage_options)
    if not is_table_source(source, format):
        return plan_files(
            _require_spark(spark),
            source,
            limits,
            partition_by,
            format=format,
            options=options,
            id=id,
        )
    return _prepare(source, limits, partition_by, format, table, options, id).plan


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
    distribution: Shuffle = "auto",
    transaction: Mode | None = None,
    chunk_size: int | str = CHUNK_BYTES,
    storage_options: dict[str, str] | None = None,
    progress: bool = True,
) -> Imported:
    """Import a table of another system, or files, into a table; create the table if it is missing.

    `format` is the format of the source: "lance"; "phalanx", a table of any layout, including
    "expressions" and "hive"; "ducklake", named `CATALOG::TABLE` or by the catalog and `table`;
    "iceberg", named by its metadata file or as `CATALOG::NAMESPACE.TABLE` of pyiceberg's
    configuration, with `options` for the catalog; or a file format of `ingest`. A table that is
    already open needs no format. A new table is partitioned by `partition_by`, or like the source,
    as far as the format has the same or similar partitions. The plan is shown first. A table of an
    earlier draft that is imported into its own location is upgraded in place.

    In strong mode, the default for a new table, each file of the source is imported exactly once,
    in chunks of about `chunk_size` bytes: repeating the call continues after an interruption, adds
    new files of the source, and does nothing when all are imported. A source in which imported rows
    were deleted or rewritten since is refused; another `id` imports all of it again. Finally the
    rows of the source and the committed rows are counted and compared.

    `distribution` is "auto": as few tasks as keep all cores busy, each of which writes a file for
    every partition of its rows; "none": tasks of the usual size; "hash": the rows of a partition
    are brought together, for files by a shuffle, for tables by merging the small files of a
    partition before the commit.
    """
    limits = _check_options(uri, chunk_size, distribution, transaction, storage_options)
    if not is_table_source(source, format):
        plan, done = import_files(
            spark,
            source,
            limits,
            partition_by,
            format=format,
            options=options,
            id=id,
            cores=_count_cores(spark),
            show_progress=progress,
        )
        return Imported(plan, done)
    found = _prepare(source, limits, partition_by, format, table, options, id)
    if progress:
        notify(str(found.plan))
    if found.plan.is_upgrade:
        return Imported(found.plan, _upgrade(found))
    return Imported(found.plan, _run_import(spark, found, limits, progress))


def _prepare(
    source: Any,
    limits: Options,
    partition_by: PartitionBy | None,
    format: str | None,
    table: str | None,
    options: Mapping[str, object] | None,
    id: str | None,
) -> PreparedImport:
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


def _upgrade(found: PreparedImport) -> Ingested:
    """Upgrade a table of an earlier draft to the newest format, in place."""
    found.check_refused()
    began, table = time.monotonic(), found.table
    assert table is not None
    table.upgrade()
    seconds = time.monotonic() - began
    return IngestOutcome().to_result(table.uri, table.uri, len(found.source.units), 0, seconds)


def _run_import(
    spark: SparkSession, found: PreparedImport, limits: Options, show_progress: bool
) -> Ingested:
    """Import the remaining files, after validating all of them."""
    found.check_refused()
    map_parallel(lambda part: part.unit.check(), found.find_remaining(found.table))
    table = found.open_target(cast(Mode | None, limits.text("transaction")))
    distribution = limits.choice("distribution", *DISTRIBUTIONS)
    cores = _count_cores(spark)

    def import_one(chunk: Chunk[UnitPart]) -> WrittenChunk | None:
        with translate_spark_errors(f"import {found.source.location} into {table.uri}"):
            return _import_chunk(spark, found, table, chunk, distribution, cores)

    def plan_again(chunk: Chunk[UnitPart]) -> list[Chunk[UnitPart]]:
        ours = {part.digest for part in chunk.parts or ()}
        return found.split_remaining(
            table, [part for part in found.find_remaining(table) if part.digest in ours]
        )

    chunks = found.split_remaining(table, found.find_remaining(table))
    outcome = IngestOutcome()
    files, size = sum(chunk.count for chunk in chunks), sum(chunk.size for chunk in chunks)
    if show_progress and chunks and table.mode != "strong":
        notify(
            f"{table.uri} is in weak mode: repeating the import, also after a crash, adds its "
            "rows again.",
        )
    with SparkProgress(spark, len(chunks), files, size, show_progress) as shown:
        for chunk, written in write_chunks(chunks, import_one, plan_again):
            outcome.add(chunk, written)
            shown.finish_part(chunk.count, chunk.size, written.rows)
        seconds = shown.seconds
    found.check_counts(table)
    all_files = len(found.source.units)
    done = outcome.to_result(found.source.location, table.uri, all_files, 0, seconds)
    counts = WriteResult(done.rows, done.partitions, done.fragments)
    if show_progress and distribution == "auto" and has_many_small_files(counts):
        notify(
            f"{done.fragments:,} small fragments for {done.partitions:,} partitions make "
            "reads slow. Merge them with Table.rewrite, or import with larger chunks or "
            "distribution='hash'.",
        )
    return done


def _import_chunk(
    spark: SparkSession,
    found: PreparedImport,
    table: Table,
    chunk: Chunk[UnitPart],
    distribution: str,
    cores: int,
) -> WrittenChunk | None:
    """Import a chunk; None if another import has committed part of it before."""
    units = [part.unit for part in chunk.parts or ()]
    job = table.begin_write(marker="\n".join(chunk.markers) or None)
    if job.repeated_snapshot is not None:
        return None
    tasks = plan_import_tasks(job, found.stored, units, cores, distribution == "none")
    done = _run_tasks(spark, tasks)
    check_written(found.source.location, units, done)
    files = [each.files for each in done]
    if distribution == "hash":
        files = combine_small_files(job, files)
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
    return WrittenChunk(tuple(fragments), committed.snapshot)


def _run_tasks(spark: SparkSession, tasks: list[ImportTask]) -> list[ImportTaskResult]:
    rows = frame_of(spark, GroupWork(tuple((task,) for task in tasks))).collect()
    return [pickle.loads(row["done"]) for row in rows]


def _count_cores(spark: SparkSession) -> int:
    """Return how many tasks can run at once; Spark Connect does not say."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:
        return os.cpu_count() or 1


def _check_options(
    uri: str | os.PathLike[str],
    chunk_size: int | str,
    distribution: str,
    transaction: str | None,
    storage_options: dict[str, str] | None,
) -> Options:
    """Validate the arguments that need no access to the source or the table."""
    given = {
        "path": Location.of(uri, storage_options).uri,
        "distribution": distribution,
        "chunk_size": str(chunk_size),
    }
    given |= {f"storage.{key}": text for key, text in (storage_options or {}).items()}
    if transaction is not None:
        given["transaction"] = transaction
    known = LOCATION_OPTIONS | {"distribution", "chunk_size", "transaction"}
    limits = Options.of(given, known, "import")
    limits.choice("distribution", *DISTRIBUTIONS)
    limits.choice("transaction", "strong", "weak")
    limits.size("chunk_size")
    return limits


def _require_spark(spark: SparkSession | None) -> SparkSession:
    if spark is None:
        raise PhalanxError(
            "Cannot plan an import of files without Spark, which reads them. Pass a session."
        )
    return spark
