"""Merge of a DataFrame into a table: rows with its keys are changed, others are added.

Spark joins the keys of the DataFrame with those of the partitions that may have them; tasks stage
the changes, and the driver commits them once.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from phalanx.arguments import WhenMatched, WhenNotMatched
from phalanx.errors import SchemaMismatch
from phalanx.model.schema.rows import combine_batches, conform_rows
from phalanx.model.schema.schema import Schema
from phalanx.spark.pushdown.partitioning import fields_by_column
from phalanx.spark.runtime.failures import translate_spark_errors
from phalanx.spark.runtime.types import check_keys, check_spark_columns
from phalanx.spark.runtime.workers import freeze_gc
from phalanx.spark.source.distribution import Distribution, distribute
from phalanx.spark.source.row_changes import commit_changes
from phalanx.spark.source.work_source import frame_of
from phalanx.storage.commit.writing import ReadFootprint
from phalanx.storage.leaf.reading import ROW_ID_ADDRESS, ROW_ID_FIELDS, ROW_ID_LEAF
from phalanx.table.handle import handle_of
from phalanx.table.jobs.row_job import DELETE, INSERT, OPERATION_COLUMN, UPDATE, RowJob, TaskChanges
from phalanx.table.jobs.row_lookup import KeyedLeaves, LookupWork
from phalanx.table.opening import open
from phalanx.table.table import Table
from phalanx.table.write.merge import MergeCounts, check_actions
from phalanx.table.write.merge_source import resolve_merge_keys

# Above this, keys are not collected on the driver to prune partitions.
MAX_KEYS = 100_000
_KEY = "_phalanx_key_"


def merge(
    spark: SparkSession,
    source: DataFrame,
    uri: str,
    on: str | Sequence[str],
    *,
    when_matched: WhenMatched = "update",
    when_not_matched: WhenNotMatched = "insert",
    marker: str | None = None,
    storage_options: dict[str, str] | None = None,
) -> MergeCounts:
    """Replace the rows of a table that have the key of a row of `source`, and insert the others.

    `on` is the column, or the columns, of the key. `when_matched` is "update" (replace the whole
    row by that of the source), "delete" or "ignore"; `when_not_matched` is "insert" or "ignore".
    Duplicate keys in the source are an error before anything is written. NULL matches nothing.

    In strong mode the merge is one snapshot, or changes nothing: it raises `CommitConflict` if
    another writer has changed the same rows, or rows of the same partitions that may have such
    keys. Merges with the same `marker` are committed only once, so a merge can be repeated. In weak
    mode each partition is committed separately. Returns how many rows were changed, none if the
    marker was committed before. The source is cached in Spark meanwhile.
    """
    check_actions(when_matched, when_not_matched)
    table = open(uri, storage_options=storage_options)
    names = resolve_merge_keys(on, Schema.of(table.schema))
    check_keys(names, table.schema)
    check_spark_columns(source.schema, table.schema)
    job = RowJob.begin(handle_of(table).for_write("rows"), "merge", marker)
    if job.job.repeated_snapshot is not None or (when_matched, when_not_matched) == (
        "ignore",
        "ignore",
    ):
        return MergeCounts()
    kept = source.persist()
    try:
        with translate_spark_errors(f"merge into {table.uri}"):
            leaves = KeyedLeaves(_lookup_keys(kept, names, job))
            tasks = _write_changes(
                spark, kept, names, job, leaves, table, when_matched, when_not_matched
            )
        return commit_changes(
            job, tasks, [ReadFootprint(leaves.find_versions, job.job.version)]
        ).counts
    finally:
        kept.unpersist()


def _lookup_keys(source: DataFrame, on: Sequence[str], job: RowJob) -> pa.RecordBatch | None:
    """Return the keys that can prune partitions; None if there are none, or too many.

    Refuse duplicate keys.
    """
    keyed = source.select(*map(_column, on)).dropna()
    twice = keyed.groupBy(*map(_column, on)).count().where("count > 1")
    if found := twice.limit(1).collect():
        row = found[0].asDict()
        times = row.pop("count")
        key = ", ".join(f"{name} = {value!r}" for name, value in row.items())
        raise SchemaMismatch(
            f"Cannot merge: {times} rows of the source have the key {key}, and {twice.count():,} "
            "keys occur more than once; expected each once. Keep one row for each key."
        )
    columns = [name for name in fields_by_column(job.manifest) if name in on]
    if not columns:
        return None
    keys = keyed.select(*map(_column, columns)).distinct().limit(MAX_KEYS + 1).toArrow()
    if keys.num_rows > MAX_KEYS:
        return None
    schema = job.manifest.properties.schema
    wanted = pa.schema([schema.arrow.field(name) for name in columns])
    batches = list(conform_rows(keys.to_reader(), wanted))
    plain = pa.schema([field.remove_metadata() for field in wanted])
    return combine_batches(batches, batches[0].schema if batches else plain)


def _write_changes(
    spark: SparkSession,
    source: DataFrame,
    on: Sequence[str],
    job: RowJob,
    leaves: KeyedLeaves,
    table: Table,
    when_matched: str,
    when_not_matched: str,
) -> list[TaskChanges]:
    """Stage the changes by tasks on the executors."""
    changes = _join_changes(spark, source, on, job, leaves, when_matched, when_not_matched)
    if when_matched == "update" or when_not_matched == "insert":
        why = "a join leaves rows of a partition in any task"
        changes = distribute(changes, table, Distribution("hash", why))

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_gc()
        yield pa.RecordBatch.from_pydict({"done": [pickle.dumps(job.write(batches))]})

    rows = changes.mapInArrow(write, "done binary").collect()
    return [pickle.loads(row["done"]) for row in rows]


def _join_changes(
    spark: SparkSession,
    source: DataFrame,
    on: Sequence[str],
    job: RowJob,
    leaves: KeyedLeaves,
    when_matched: str,
    when_not_matched: str,
) -> DataFrame:
    """Return for each row the operation, the id of an existing row, and the new values."""
    renamed = [(name, f"{_KEY}{place}") for place, name in enumerate(on)]
    work = LookupWork.of(job.manifest, leaves, renamed)
    there = frame_of(spark, work)
    keys = source.select(*(_column(name).alias(f"{new}s") for name, new in renamed))
    # An inner join first: with few keys Spark does not shuffle the table's side.
    same = [fn.col(new) == fn.col(f"{new}s") for _, new in renamed]
    met = there.join(keys, same, "inner").drop(*(f"{new}s" for _, new in renamed))
    how = "inner" if when_not_matched == "ignore" else "left"
    how = "left_anti" if when_matched == "ignore" else how
    joined = source.join(met, [source[_quote(old)] == met[new] for old, new in renamed], how)
    found = UPDATE if when_matched == "update" else DELETE
    ids: list[Column] = [fn.lit(None).cast("bigint").alias(name) for name in ROW_ID_FIELDS.names]
    operation = fn.lit(INSERT)
    if how != "left_anti":
        ids = [fn.col(name) for name in (ROW_ID_LEAF, ROW_ID_ADDRESS)]
        operation = fn.when(fn.col(ROW_ID_LEAF).isNull(), INSERT).otherwise(found)
    return joined.select(
        operation.alias(OPERATION_COLUMN), *ids, *(source[_quote(name)] for name in source.columns)
    )


def _column(name: str) -> Column:
    return fn.col(_quote(name))


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
