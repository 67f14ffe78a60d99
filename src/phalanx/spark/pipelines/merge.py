"""A DataFrame merged into a table: rows there with one of its keys are changed, others are added.

Spark joins the keys of the DataFrame with those of the partitions that may hold them; tasks write
what changes, and the driver commits it once.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from phalanx.errors import SchemaMismatch
from phalanx.model.schema.rows import conformed, one_batch
from phalanx.model.schema.schema import Schema
from phalanx.spark.pushdown.partitioning import source_columns
from phalanx.spark.runtime.failures import of_spark
from phalanx.spark.runtime.types import check_keys, check_writable
from phalanx.spark.runtime.workers import settle
from phalanx.spark.source.distribution import Distribution, distributed
from phalanx.spark.source.row_changes import committed
from phalanx.storage.commit.writing import Reading
from phalanx.storage.leaf.reading import ROW_ADDRESS, ROW_ID, ROW_LEAF
from phalanx.table.jobs.row_job import DELETE, INSERT, OPERATION, UPDATE, RowJob, TaskChanges
from phalanx.table.jobs.row_lookup import KeyedLeaves, LookupWork
from phalanx.table.jobs.work import on_spark
from phalanx.table.opening import open
from phalanx.table.table import Table
from phalanx.table.write.merge import MergeCounts, check_choices
from phalanx.table.write.merge_source import key_columns

# More keys than these are not brought to the driver to leave partitions out.
MOST_KEYS = 100_000
_KEY = "_phalanx_key_"


def merge(
    spark: SparkSession,
    source: DataFrame,
    uri: str,
    on: str | Sequence[str],
    *,
    when_matched: str = "update",
    when_not_matched: str = "insert",
    marker: str | None = None,
    storage_options: dict[str, str] | None = None,
) -> MergeCounts:
    """Replace the rows of a table that have the key of a row of `source`, and add the others.

    `on` is the column, or the columns, of the key. `when_matched` is "update" (the whole row
    becomes that of the source), "delete" or "ignore", `when_not_matched` "insert" or "ignore". A
    key that the source has twice is an error, before anything is written. NULL matches nothing.

    In strong mode all of it is one snapshot, or nothing happens: where another writer has changed
    the same rows, or rows in the same partitions that may have such keys, `CommitConflict` says
    so. Of all merges with the same `marker` one is committed: repeat it as often as needed. In
    weak mode each partition is committed for itself. Returns how many rows were changed, none if
    the marker was committed before. The source is kept in Spark's cache meanwhile.
    """
    check_choices(when_matched, when_not_matched)
    table = open(uri, storage_options=storage_options)
    names = key_columns(on, Schema.of(table.schema))
    check_keys(names, table.schema)
    check_writable(source.schema, table.schema)
    job = RowJob.begin(table._written(), "merge", marker)
    if job.job.done is not None or (when_matched, when_not_matched) == ("ignore", "ignore"):
        return MergeCounts()
    kept = source.persist()
    try:
        with of_spark(f"merge into {table.uri}"):
            leaves = KeyedLeaves(_looked_up(kept, names, job))
            tasks = _written(spark, kept, names, job, leaves, table, when_matched, when_not_matched)
        return committed(job, tasks, [Reading(leaves.versions, job.job.version)]).counts
    finally:
        kept.unpersist()


def _looked_up(source: DataFrame, on: Sequence[str], job: RowJob) -> pa.RecordBatch | None:
    """The keys by which partitions can be left out; None if there are none, or too many.

    Keys that are there twice are refused.
    """
    keyed = source.select(*map(_column, on)).dropna()
    twice = keyed.groupBy(*map(_column, on)).count().where("count > 1")
    if found := twice.limit(1).collect():
        row = found[0].asDict()
        times = row.pop("count")
        key = ", ".join(f"{name} = {value!r}" for name, value in row.items())
        raise SchemaMismatch(
            f"Cannot merge: {times} rows of the source have the key {key}, and {twice.count():,} "
            "keys are there more than once; expected each once. Keep one row for each key."
        )
    columns = [name for name in source_columns(job.manifest) if name in on]
    if not columns:
        return None
    keys = keyed.select(*map(_column, columns)).distinct().limit(MOST_KEYS + 1).toArrow()
    if keys.num_rows > MOST_KEYS:
        return None
    schema = job.manifest.properties.schema
    wanted = pa.schema([schema.arrow.field(name) for name in columns])
    batches = list(conformed(keys.to_reader(), wanted))
    plain = pa.schema([field.remove_metadata() for field in wanted])
    return one_batch(batches, batches[0].schema if batches else plain)


def _written(
    spark: SparkSession,
    source: DataFrame,
    on: Sequence[str],
    job: RowJob,
    leaves: KeyedLeaves,
    table: Table,
    when_matched: str,
    when_not_matched: str,
) -> list[TaskChanges]:
    """What tasks on the executors have found and written, each once."""
    changes = _changes(spark, source, on, job, leaves, when_matched, when_not_matched)
    if when_matched == "update" or when_not_matched == "insert":
        why = "rows of a join are in any task"
        changes = distributed(changes, table, Distribution("hash", why))

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        yield pa.RecordBatch.from_pydict({"done": [pickle.dumps(job.write(batches))]})

    rows = changes.mapInArrow(write, "done binary").collect()
    return [pickle.loads(row["done"]) for row in rows]


def _changes(
    spark: SparkSession,
    source: DataFrame,
    on: Sequence[str],
    job: RowJob,
    leaves: KeyedLeaves,
    when_matched: str,
    when_not_matched: str,
) -> DataFrame:
    """What happens to each row, its id if it is there, and its new values."""
    renamed = [(name, f"{_KEY}{place}") for place, name in enumerate(on)]
    work = LookupWork.of(job.manifest, leaves, renamed)
    there = on_spark(spark, work)
    keys = source.select(*(_column(name).alias(f"{new}s") for name, new in renamed))
    # Only rows that match go further: the table's side is not shuffled if the keys are few.
    same = [fn.col(new) == fn.col(f"{new}s") for _, new in renamed]
    met = there.join(keys, same, "inner").drop(*(f"{new}s" for _, new in renamed))
    how = "inner" if when_not_matched == "ignore" else "left"
    how = "left_anti" if when_matched == "ignore" else how
    joined = source.join(met, [source[_quoted(old)] == met[new] for old, new in renamed], how)
    found = UPDATE if when_matched == "update" else DELETE
    ids: list[Column] = [fn.lit(None).cast("bigint").alias(name) for name in ROW_ID.names]
    operation = fn.lit(INSERT)
    if how != "left_anti":
        ids = [fn.col(name) for name in (ROW_LEAF, ROW_ADDRESS)]
        operation = fn.when(fn.col(ROW_LEAF).isNull(), INSERT).otherwise(found)
    return joined.select(
        operation.alias(OPERATION), *ids, *(source[_quoted(name)] for name in source.columns)
    )


def _column(name: str) -> Column:
    return fn.col(_quoted(name))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
