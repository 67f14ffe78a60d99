"""Imports of what Spark reads: an ingest with a plan before it, and its rows counted after it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from phalanx.errors import PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import next_spec
from phalanx.model.specs.partition_by import PartitionBy, PartitionTerm, partition_terms
from phalanx.planning.import_plan import Amount, ColumnMapping, ImportPlan
from phalanx.spark.ingested import Ingested
from phalanx.spark.pipelines.ingest import FileIngest
from phalanx.spark.pipelines.sources import InputFile
from phalanx.spark.runtime.failures import of_spark
from phalanx.spark.runtime.options import Options
from phalanx.spark.runtime.types import check_writable, stored_schema
from phalanx.spark.source.writing import check_unchanged, no_table
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.leaf.leaf import check_storable

# Their files say how many rows they have.
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
    """What an import of files would do."""
    found = FileIngest.prepared(
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
    is_told: bool,
) -> tuple[ImportPlan, Ingested]:
    """Bring files into a table: what was planned, and what was done."""
    found = FileIngest.prepared(
        spark, source, limits, partition_by, format=format, options=options, id=id
    )
    found = replace(found, writers=cores)
    plan = _plan(spark, found)
    if is_told:
        print(plan, file=sys.stderr)
    left = _left(found)
    done = found.run(spark, is_told)
    if left and done.files == len(left):
        expected = plan.left.rows
        if expected is None:
            expected = _rows(spark, found, left)
        if done.rows != expected:
            raise PhalanxError(
                f"The import of {found.found.name} into {done.uri} brought {done.rows:,} rows, but "
                f"its files have {expected:,}: something changed them meanwhile. Compare the two, "
                "and roll the table back to what it was before."
            )
    return plan, done


def _plan(spark: SparkSession, found: FileIngest) -> ImportPlan:
    source, table = found.found, found.table
    given = stored_schema(found.rows)
    terms: tuple[PartitionTerm, ...] = ()
    chosen_by = "table"
    stored = given
    if table is not None:
        check_unchanged(found.limits, table, [table.spec], found.partition_by)
        check_writable(found.rows, table.schema)
        label = table.spec.label(Schema.of(table.schema))
        stored = table.schema
    else:
        if found.partition_by is None:
            raise no_table(found.limits.location)
        numbered = Schema.of(given)
        check_storable(numbered)
        chosen_by, terms = "user", partition_terms(found.partition_by)
        label = next_spec(terms, numbered, {}).label(numbered)
    left, chunks = _left(found), found.chunks(found.done, found.transaction)
    is_counted = source.files is not None and source.format in _COUNTED
    total = _rows(spark, found, source.files or ()) if is_counted else None
    rows = total
    if is_counted and len(left) < len(source.files or ()):
        rows = _rows(spark, found, left) if left else 0
    return ImportPlan(
        source.format,
        source.name,
        None,
        found.limits.location.uri,
        table is None,
        terms,
        label,
        chosen_by,
        (),
        tuple(
            ColumnMapping(field.name, str(field.type), str(stored.field(field.name).type))
            for field in given
        ),
        Amount(len(source.files or ()), total, source.size),
        Amount(len(left), rows, sum(file.size for file in left)),
        len(chunks),
    )


def _left(found: FileIngest) -> list[InputFile]:
    """The files that the table has not."""
    chunks = found.chunks(found.done, found.transaction)
    return [file for chunk in chunks for file in chunk.parts or ()]


def _rows(spark: SparkSession, found: FileIngest, files: Sequence[InputFile]) -> int:
    paths = [file.path.removeprefix(_LOCAL) for file in files if file.path.startswith(_LOCAL)]
    if found.found.format == "parquet" and len(paths) == len(files):
        # A job of Spark that reads their ends takes as long as a small import.
        with suppress(OSError, pa.ArrowException):
            return sum(in_parallel(lambda path: int(pq.read_metadata(path).num_rows), paths))
    with of_spark(f"count the rows of {found.found.name}"):
        return int(found.found.frame(spark, found.rows, files).count())
