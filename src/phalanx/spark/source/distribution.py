"""Shuffles of rows to their partitions before a write: few large files instead of many small ones.

A task writes a file for every partition of its rows. Many tasks with rows of many partitions write
many small files, unless Spark first shuffles the rows of each partition together.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Unpack

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from phalanx.arguments import SaveMode, Shuffle, SparkWriteArguments
from phalanx.errors import InvalidArgument
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.spark.runtime.notices import notify
from phalanx.spark.runtime.options import NEW_TABLE, WRITE_OPTIONS, Options, option_text
from phalanx.spark.runtime.placement import max_partitions, partition_columns
from phalanx.spark.runtime.types import check_spark_columns
from phalanx.spark.source.writing import DISTRIBUTIONS, open_or_plan_table
from phalanx.table.opening import NewTable
from phalanx.table.table import Table

SAVE_MODES = ("append", "overwrite")
# Files of this size, as Spark estimates it, need no shuffle.
_LARGE_BYTES = 32 << 20
# Spark's estimate for an unknown size.
_UNKNOWN_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Distribution:
    """Whether a write shuffles rows to their partitions first.

    Attributes:
        kind: "hash" if rows are shuffled first, otherwise "none".
        reason: Why it was chosen.
    """

    kind: str
    reason: str

    def __str__(self) -> str:
        doing = "rows are shuffled to their partitions" if self.kind == "hash" else "no shuffle"
        return f"distribution {self.kind}: {doing}, because {self.reason}"


def write(
    df: DataFrame,
    uri: str,
    *,
    mode: SaveMode = "append",
    partition_by: PartitionBy | None = None,
    distribution: Shuffle = "auto",
    storage_options: dict[str, str] | None = None,
    **options: Unpack[SparkWriteArguments],
) -> Distribution:
    """Write a DataFrame to a table as `format("phalanx")` does, but shuffle its rows first.

    `distribution` is "hash": Spark shuffles the rows of a partition together, and splits large
    partitions; "none": no shuffle; or "auto", which decides by the numbers of tasks and partitions
    and the size. `partition_by` creates a missing table. Other options are those of the format.
    Returns what was done, and why; also prints it to stderr.
    """
    given = {name: option_text(value) for name, value in options.items() if value is not None}
    if storage_options:
        given["storage_options"] = json.dumps(storage_options)
    wanted = Options.of(
        {**given, "path": uri, "distribution": distribution}, WRITE_OPTIONS, "write"
    )
    if mode not in SAVE_MODES:
        raise InvalidArgument(
            f"Cannot write with mode={mode!r}: expected {' or '.join(map(repr, SAVE_MODES))}. To "
            "write to a new table only, use if_exists='error'."
        )
    wanted.choice("distribution", *DISTRIBUTIONS)
    if_exists = wanted.choice("if_exists", "append", "error", "ignore")
    found = open_or_plan_table(wanted, df.schema, if_exists, partition_by)
    if found is None:
        return Distribution("none", "the table exists, and if_exists is 'ignore'")
    table = found.table if isinstance(found, NewTable) else found
    check_spark_columns(df.schema, table.schema)
    chosen = choose_distribution(df, table, distribution)
    if wanted.choice("report", "true", "false") == "true":
        notify(str(chosen))
    for name in ("if_exists", "partition_by", "transaction"):
        # These options are resolved already.
        given.pop(name, None)
    if isinstance(found, NewTable):
        given[NEW_TABLE] = found.to_json()
    writer = distribute(df, table, chosen).write.format("phalanx").mode(mode)
    # Rows are shuffled already, or the user asked for no shuffle.
    writer.options(**given, distribution="none").save(table.uri)
    return chosen


def choose_distribution(df: DataFrame, table: Table, distribution: str) -> Distribution:
    """Choose whether to shuffle the rows of a DataFrame, and say why."""
    if distribution != "auto":
        return Distribution(distribution, "the caller chose it")
    if not table.spec.fields:
        return Distribution("none", "the table has one partition")
    tasks, size = count_tasks(df), estimate_bytes(df)
    if tasks == 1:
        return Distribution("none", "one task has all rows")
    partitions = _estimate_partitions(table)
    facts = ", ".join(
        [
            "an unknown number of tasks" if tasks is None else f"{tasks:,} tasks",
            "an unknown number of partitions"
            if partitions is None
            else f"{partitions:,} partitions",
            "an unknown size" if size is None else f"about {size / 1e6:,.1f} MB",
        ]
    )
    if tasks is not None and partitions is not None and size is not None:
        each = size // (tasks * partitions)
        if each >= _LARGE_BYTES:
            return Distribution("none", f"files are large without it ({facts})")
    return Distribution("hash", f"each task would write a small file for each partition ({facts})")


def _estimate_partitions(table: Table) -> int | None:
    """Estimate how many partitions get rows: the existing ones, else the possible ones."""
    return table.plan().leaves[table.spec.id].num_rows or max_partitions(table.spec)


def distribute(df: DataFrame, table: Table, distribution: Distribution) -> DataFrame:
    """Shuffle the rows of each partition together, if the distribution says so."""
    if distribution.kind != "hash" or not table.spec.fields:
        return df
    columns = partition_columns(table.spec, Schema.of(table.schema), df.schema)
    if df.sparkSession.conf.get("spark.sql.adaptive.enabled", "true") != "true":
        return df.repartition(*columns)
    # Rebalancing splits large partitions, so that several tasks write one.
    name = f"phalanx_{uuid.uuid4().hex}"
    return df.withColumn(name, fn.xxhash64(*columns)).hint("rebalance", fn.col(name)).drop(name)


def count_tasks(df: DataFrame) -> int | None:
    """Count the tasks that would write the DataFrame; None if that requires running part of it."""
    try:
        execution = df._jdf.queryExecution()
        if execution.executedPlan().getClass().getSimpleName() == "AdaptiveSparkPlanExec":
            return None
        return int(execution.toRdd().getNumPartitions())
    except Exception:
        # Spark Connect has no plan here, and a failing plan raises its error when it runs.
        return None


def estimate_bytes(df: DataFrame) -> int | None:
    """Return Spark's estimate of the size of the rows; None if it has none."""
    try:
        size = int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    except Exception:
        return None
    return size if size < _UNKNOWN_BYTES else None
