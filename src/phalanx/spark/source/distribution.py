"""Rows brought to their partitions before they are written: few large files instead of many.

A task writes a file for every partition that it has rows of. So many tasks with rows of many
partitions write many small files, unless Spark first brings the rows of a partition together.
"""

from __future__ import annotations

import json
import sys
import uuid
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from phalanx.errors import PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.spark.runtime.options import NEW_TABLE, WRITE, Options, option_text
from phalanx.spark.runtime.placement import most_partitions, partition_columns
from phalanx.spark.runtime.types import check_writable
from phalanx.spark.source.writing import DISTRIBUTIONS, table_to_write
from phalanx.table.opening import NewTable
from phalanx.table.table import Table

MODES = ("append", "overwrite")
# Files of so many bytes are large enough, as Spark estimates them.
_LARGE_BYTES = 32 << 20
# What Spark says of a size that it does not know.
_UNKNOWN_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Distribution:
    """Whether rows are shuffled to their partitions before the write, and why."""

    kind: str
    reason: str

    def __str__(self) -> str:
        doing = "rows are shuffled to their partitions" if self.kind == "hash" else "no shuffle"
        return f"distribution {self.kind}: {doing}, because {self.reason}"


def write(
    df: DataFrame,
    uri: str,
    *,
    mode: str = "append",
    partition_by: PartitionBy | None = None,
    distribution: str = "auto",
    storage_options: dict[str, str] | None = None,
    **options: Any,
) -> Distribution:
    """Write a DataFrame to a table as `format("phalanx")` does, its rows shuffled first.

    `distribution` is "hash": Spark brings the rows of a partition together, and splits only what
    is large; "none": rows are written where they are; or "auto", which decides by the numbers of
    tasks and partitions and the size. A missing table is made by `partition_by`. Other options
    are those of the format. Returns what was done, and why; it is told on stderr too.
    """
    given = {name: option_text(value) for name, value in options.items() if value is not None}
    if storage_options:
        given["storage_options"] = json.dumps(storage_options)
    wanted = Options.of({**given, "path": uri, "distribution": distribution}, WRITE, "write")
    if mode not in MODES:
        raise PhalanxError(
            f"Cannot write with mode={mode!r}: expected {' or '.join(map(repr, MODES))}. To write "
            "only to a new table use if_exists='error'."
        )
    wanted.choice("distribution", *DISTRIBUTIONS)
    if_exists = wanted.choice("if_exists", "append", "error", "ignore")
    found = table_to_write(wanted, df.schema, if_exists, partition_by)
    if found is None:
        return Distribution("none", "the table exists, and is left alone")
    table = found.table if isinstance(found, NewTable) else found
    check_writable(df.schema, table.schema)
    chosen = chosen_distribution(df, table, distribution)
    if wanted.choice("report", "true", "false") == "true":
        print(f"phalanx: {chosen}", file=sys.stderr)
    for name in ("if_exists", "partition_by", "transaction"):
        # They are done: it is known what the table is, or will be.
        given.pop(name, None)
    if isinstance(found, NewTable):
        given[NEW_TABLE] = found.to_json()
    writer = distributed(df, table, chosen).write.format("phalanx").mode(mode)
    # What Spark has brought together, or was told to leave, needs no gathering.
    writer.options(**given, distribution="none").save(table.uri)
    return chosen


def chosen_distribution(df: DataFrame, table: Table, distribution: str) -> Distribution:
    """What to do with the rows of a DataFrame, and why."""
    if distribution != "auto":
        return Distribution(distribution, "it was asked for")
    if not table.spec.fields:
        return Distribution("none", "the table has one partition")
    tasks, size = task_count(df), estimated_bytes(df)
    if tasks == 1:
        return Distribution("none", "one task has all rows")
    partitions = _partitions(table)
    told = ", ".join(
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
            return Distribution("none", f"files are large without it ({told})")
    return Distribution("hash", f"each task would write a small file for each partition ({told})")


def _partitions(table: Table) -> int | None:
    """About how many partitions get rows: as many as there are, else as there can be."""
    return table.plan().leaves[table.spec.id].num_rows or most_partitions(table.spec)


def distributed(df: DataFrame, table: Table, distribution: Distribution) -> DataFrame:
    """The same rows, those of a partition together if the distribution says so."""
    if distribution.kind != "hash" or not table.spec.fields:
        return df
    columns = partition_columns(table.spec, Schema.of(table.schema), df.schema)
    if df.sparkSession.conf.get("spark.sql.adaptive.enabled", "true") != "true":
        return df.repartition(*columns)
    # Of all shuffles this one splits what is large, so that one partition keeps several tasks busy.
    name = f"phalanx_{uuid.uuid4().hex}"
    return df.withColumn(name, fn.xxhash64(*columns)).hint("rebalance", fn.col(name)).drop(name)


def task_count(df: DataFrame) -> int | None:
    """How many tasks would write the DataFrame; None if that takes running a part of it."""
    try:
        execution = df._jdf.queryExecution()
        if execution.executedPlan().getClass().getSimpleName() == "AdaptiveSparkPlanExec":
            return None
        return int(execution.toRdd().getNumPartitions())
    except Exception:
        # Connect shows no plan, and a plan that fails says so when it runs.
        return None


def estimated_bytes(df: DataFrame) -> int | None:
    """How large Spark thinks the rows are; None if it does not know."""
    try:
        size = int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    except Exception:
        return None
    return size if size < _UNKNOWN_BYTES else None
