"""Imports of files: an ingest that is planned first, and whose rows are counted afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from phalanx.errors import PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import PartitionBy, PartitionTerm, parse_partition_by
from phalanx.planning.import_plan import ColumnMapping, ImportPlan, ImportSize
from phalanx.spark.pipelines.ingest import FileIngest, Ingested
from phalanx.spark.pipelines.sources import InputFile
from phalanx.spark.runtime.failures import translate_spark_errors
from phalanx.spark.runtime.notices import notify
from phalanx.spark.runtime.options import Options
from phalanx.spark.runtime.types import check_spark_columns, stored_schema
from phalanx.spark.source.writing import check_table_matches, missing_table_error
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.leaf.leaf import check_storable

# Formats whose files store their row counts.
_COUNTED = ("parquet", "orc")
_LOCAL = "file:"


def plan_files(
    spark: SparkSession,
    source: str | DataFrame,
    limits: Options,
    partition_by: PartitionBy | None,
    *,
    format: str | None,
    options: Mapping[str, object] | None,
    id: str | None,
) -> ImportPlan:
    """Plan an import of files; nothing is written."""
    found = FileIngest.prepare(
        spark, source, limits, partition_by, format=format, options=options, id=id
    )
    return _plan(spark, found)


def import_files(
    spark: SparkSession,
    source: str | DataFrame,
    limits: Options,
    partition_by: PartitionBy | None,
    *,
    format: str | None,
    options: Mapping[str, object] | None,
    id: str | None,
    cores: int,
    show_progress: bool,
) -> tuple[ImportPlan, Ingested]:
    """Import files into a table; return the plan and the result."""
    found = FileIngest.prepare(
        spark, source, limits, partition_by, format=format, options=options, id=id
    )
    found = replace(found, writers=cores)
    plan = _plan(spark, found)
    if show_progress:
        notify(str(plan))
    left = _remaining_files(found)
    done = found.run(spark, show_progress)
    if left and done.files == len(left):
        expected = plan.remaining.rows
        if expected is None:
            expected = _count_rows(spark, found, left)
        if done.rows != expected:
            raise PhalanxError(
                f"The import of {found.source.name} into {done.uri} added {done.rows:,} rows, but "
                f"its files have {expected:,}: they changed meanwhile. Compare the two, and roll "
                "the table back to the snapshot before the import."
            )
    return plan, done


def _plan(spark: SparkSession, found: FileIngest) -> ImportPlan:
    source, table = found.source, found.table
    given = stored_schema(found.schema)
    terms: tuple[PartitionTerm, ...] = ()
    chosen_by = "table"
    stored = given
    if table is not None:
        check_table_matches(found.options, table, [table.spec], found.partition_by)
        check_spark_columns(found.schema, table.schema)
        label = table.spec.label(Schema.of(table.schema))
        stored = table.schema
    else:
        if found.partition_by is None:
            raise missing_table_error(found.options.location)
        numbered = Schema.of(given)
        check_storable(numbered)
        chosen_by, terms = "user", parse_partition_by(found.partition_by)
        label = build_next_spec(terms, numbered, {}).label(numbered)
    left, chunks = _remaining_files(found), found.chunks(found.done_markers, found.transaction)
    is_counted = source.files is not None and source.format in _COUNTED
    total = _count_rows(spark, found, source.files or ()) if is_counted else None
    rows = total
    if is_counted and len(left) < len(source.files or ()):
        rows = _count_rows(spark, found, left) if left else 0
    return ImportPlan(
        source.format,
        source.name,
        None,
        found.options.location.uri,
        table is None,
        terms,
        label,
        chosen_by,
        (),
        tuple(
            ColumnMapping(field.name, str(field.type), str(stored.field(field.name).type))
            for field in given
        ),
        ImportSize(len(source.files or ()), total, source.size),
        ImportSize(len(left), rows, sum(file.size for file in left)),
        len(chunks),
    )


def _remaining_files(found: FileIngest) -> list[InputFile]:
    """Return the files that are not in the table yet."""
    chunks = found.chunks(found.done_markers, found.transaction)
    return [file for chunk in chunks for file in chunk.parts or ()]


def _count_rows(spark: SparkSession, found: FileIngest, files: Sequence[InputFile]) -> int:
    paths = [file.path.removeprefix(_LOCAL) for file in files if file.path.startswith(_LOCAL)]
    if found.source.format == "parquet" and len(paths) == len(files):
        # Faster than a Spark job that reads the footers.
        with suppress(OSError, pa.ArrowException):
            return sum(map_parallel(lambda path: int(pq.read_metadata(path).num_rows), paths))
    with translate_spark_errors(f"count the rows of {found.source.name}"):
        return int(found.source.frame(spark, found.schema, files).count())
