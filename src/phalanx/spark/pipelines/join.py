"""Joins in Spark: leaves that meet are joined by the task that reads them, without a shuffle."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from phalanx.planning.join_cuts import Piece
from phalanx.planning.joins.execution import Shuffle
from phalanx.planning.joins.keys import On
from phalanx.planning.joins.kinds import how_of
from phalanx.planning.joins.leaves import JoinLeaf
from phalanx.planning.splits import packed, split_size
from phalanx.spark.join_work import GroupedWork, SideWork
from phalanx.spark.runtime.types import check_keys, spark_schema
from phalanx.storage.joining import MEMORY
from phalanx.table.jobs.work import on_spark
from phalanx.table.joins.prepare import Joinable, prepare_join
from phalanx.table.joins.reader import JoinColumn, JoinReader, SideReader

_SPARKS_NAMES = {"semi": "left_semi", "anti": "left_anti", "right_anti": "left_anti"}


def join(
    spark: SparkSession,
    left: Joinable,
    right: Joinable,
    on: On,
    how: str = "inner",
    *,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    left_where: str | None = None,
    right_where: str | None = None,
    storage_options: dict[str, str] | None = None,
    memory: int = MEMORY,
    task_bytes: int | None = None,
) -> DataFrame:
    """The join of two tables, as an ordinary DataFrame of what they hold now.

    `on` is a column, a list of columns, or a list of (left, right) pairs; `how` is one of inner,
    left, right, full, semi and anti. The columns are those of Spark's own `df.join(other, on,
    how)`, or those chosen. The predicates prune each side, and filter it, before the join.

    Leaves that meet are joined where they are read. Spec versions that are not compatible are left
    to Spark's own join, and only these: `plan_join` tells. A task holds about `memory` bytes of
    the smaller side, more of it goes to local disk.
    """
    kind = how_of(how)
    plan, reader = prepare_join(
        left,
        right,
        on,
        kind,
        left_columns=left_columns,
        right_columns=right_columns,
        left_where=left_where,
        right_where=right_where,
        storage_options=storage_options,
        memory=memory,
    )
    for side in (reader.left, reader.right):
        check_keys((name for name, _ in side.keys), side.schema.arrow)
    found = plan.execution(kind, task_bytes)
    parts = [_shuffled(spark, reader, shuffle, task_bytes) for shuffle in found.shuffles]
    if found.tasks or not parts:
        parts.insert(0, on_spark(spark, GroupedWork(reader, found.tasks)))
    return functools.reduce(lambda one, other: one.unionAll(other), parts)


def _shuffled(
    spark: SparkSession, reader: JoinReader, shuffle: Shuffle, task_bytes: int | None
) -> DataFrame:
    """What Spark's own join gives for leaves that do not meet, with the columns of the reader."""
    left = _side(spark, reader.left, shuffle.left, "l", task_bytes)
    right = _side(spark, reader.right, shuffle.right, "r", task_bytes)
    mine, theirs = _names(reader.left, "l"), _names(reader.right, "r")
    condition = [
        left[mine[one]] == right[theirs[other]]
        for (one, _), (other, _) in zip(reader.left.keys, reader.right.keys, strict=True)
    ]
    first, second = (right, left) if shuffle.kind == "right_anti" else (left, right)
    rows = first.join(second, condition, _SPARKS_NAMES.get(shuffle.kind, shuffle.kind))
    there = set(rows.columns)
    types = {field.name: field.dataType for field in spark_schema(reader.schema)}

    def expression(column: JoinColumn) -> str:
        names = [
            names[name]
            for names, name in ((mine, column.left), (theirs, column.right))
            if name is not None and names[name] in there
        ]
        kind = types[column.name].simpleString()
        quoted = column.name.replace("`", "``")
        value = f"coalesce({', '.join(names)})" if names else "NULL"
        return f"CAST({value} AS {kind}) AS `{quoted}`"

    return rows.selectExpr(*map(expression, reader.columns))


def _side(
    spark: SparkSession,
    side: SideReader,
    leaves: Sequence[JoinLeaf],
    prefix: str,
    task_bytes: int | None,
) -> DataFrame:
    """Some leaves of one side; the names of the two sides' columns differ."""
    pieces = [Piece(leaf) for leaf in leaves]
    size = split_size(sum(leaf.bytes for leaf in leaves), task_bytes)
    tasks = tuple(packed(pieces, lambda piece: piece.bytes, size))
    work = SideWork(side, tuple(_names(side, prefix).items()), tasks)
    frame: DataFrame = on_spark(spark, work)
    return frame


def _names(side: SideReader, prefix: str) -> dict[str, str]:
    """The name that each column of a side goes by while Spark joins it."""
    columns = dict.fromkeys([*side.columns, *(name for name, _ in side.keys)])
    return {name: f"{prefix}{place}" for place, name in enumerate(columns)}
