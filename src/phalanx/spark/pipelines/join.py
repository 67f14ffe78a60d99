"""Joins in Spark: tasks join co-partitioned leaves as they read them, without a shuffle."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from phalanx.arguments import JoinHow
from phalanx.model.schema.rows import to_row_schema
from phalanx.planning.joins.execution import JoinShuffle, JoinTask, LeafPiece
from phalanx.planning.joins.keys import JoinOn
from phalanx.planning.joins.kinds import parse_how
from phalanx.planning.joins.leaves import JoinLeaf
from phalanx.planning.splits import choose_task_bytes, pack_in_tasks
from phalanx.spark.runtime.types import check_keys, spark_schema
from phalanx.spark.source.work_source import frame_of
from phalanx.storage.streams.hash_join import JOIN_MEMORY
from phalanx.table.joins.prepare import Joinable, prepare_join
from phalanx.table.joins.reader import JoinColumn, JoinReader, SideReader

_SPARK_JOIN_TYPES = {"semi": "left_semi", "anti": "left_anti", "right_anti": "left_anti"}


def join(
    spark: SparkSession,
    left: Joinable,
    right: Joinable,
    on: JoinOn,
    how: JoinHow = "inner",
    *,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    left_where: str | None = None,
    right_where: str | None = None,
    storage_options: dict[str, str] | None = None,
    memory: int = JOIN_MEMORY,
    task_bytes: int | None = None,
) -> DataFrame:
    """Join two tables at their newest state, as a DataFrame.

    `on` is a column, a list of columns, or a list of (left, right) pairs; `how` is one of inner,
    left, right, full, semi and anti. The columns are those of Spark's own `df.join(other, on,
    how)`, or the chosen ones. The predicates prune and filter each side before the join.

    Tasks join co-partitioned leaves as they read them. Only spec versions that are not compatible
    go through Spark's own join; `plan_join` shows which. A task holds about `memory` bytes of the
    smaller side in memory, and spills the rest to local disk.
    """
    kind = parse_how(how)
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
    found = plan.plan_execution(kind, task_bytes)
    parts = [_shuffle_join(spark, reader, shuffle, task_bytes) for shuffle in found.shuffles]
    if found.tasks or not parts:
        parts.insert(0, frame_of(spark, JoinWork(reader, found.tasks)))
    return functools.reduce(lambda one, other: one.unionAll(other), parts)


def _shuffle_join(
    spark: SparkSession, reader: JoinReader, shuffle: JoinShuffle, task_bytes: int | None
) -> DataFrame:
    """Join leaves that are not co-partitioned by Spark, with the columns of the reader."""
    left = _read_side(spark, reader.left, shuffle.left, "l", task_bytes)
    right = _read_side(spark, reader.right, shuffle.right, "r", task_bytes)
    left_names, right_names = _column_aliases(reader.left, "l"), _column_aliases(reader.right, "r")
    condition = [
        left[left_names[one]] == right[right_names[other]]
        for (one, _), (other, _) in zip(reader.left.keys, reader.right.keys, strict=True)
    ]
    first, second = (right, left) if shuffle.kind == "right_anti" else (left, right)
    rows = first.join(second, condition, _SPARK_JOIN_TYPES.get(shuffle.kind, shuffle.kind))
    there = set(rows.columns)
    types = {field.name: field.dataType for field in spark_schema(reader.schema)}

    def expression(column: JoinColumn) -> str:
        names = [
            names[name]
            for names, name in ((left_names, column.left), (right_names, column.right))
            if name is not None and names[name] in there
        ]
        kind = types[column.name].simpleString()
        quoted = column.name.replace("`", "``")
        value = f"coalesce({', '.join(names)})" if names else "NULL"
        return f"CAST({value} AS {kind}) AS `{quoted}`"

    return rows.selectExpr(*map(expression, reader.columns))


def _read_side(
    spark: SparkSession,
    side: SideReader,
    leaves: Sequence[JoinLeaf],
    prefix: str,
    task_bytes: int | None,
) -> DataFrame:
    """Read some leaves of one side, with column names that differ from the other side's."""
    pieces = [LeafPiece(leaf) for leaf in leaves]
    size = choose_task_bytes(sum(leaf.bytes for leaf in leaves), task_bytes)
    tasks = tuple(pack_in_tasks(pieces, lambda piece: piece.bytes, size))
    work = SideWork(side, tuple(_column_aliases(side, prefix).items()), tasks)
    frame: DataFrame = frame_of(spark, work)
    return frame


def _column_aliases(side: SideReader, prefix: str) -> dict[str, str]:
    """Return the alias of each column of a side in Spark's join."""
    columns = dict.fromkeys([*side.columns, *(name for name, _ in side.keys)])
    return {name: f"{prefix}{place}" for place, name in enumerate(columns)}


@dataclass(frozen=True, slots=True)
class JoinWork:
    """Work that joins co-partitioned leaves as it reads them."""

    reader: JoinReader
    tasks: tuple[JoinTask, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns that the join returns."""
        return self.reader.schema

    def select_columns(self, names: Sequence[str]) -> JoinWork:
        """Return the work that reads only these columns."""
        return replace(self, reader=self.reader.select_columns(names))

    def without_tasks(self) -> JoinWork:
        """The same work, as one task sees it."""
        return replace(self, tasks=())

    def batches(self, task: JoinTask) -> Iterator[pa.RecordBatch]:
        """Yield the joined rows of a task."""
        return self.reader.batches(task)


@dataclass(frozen=True, slots=True)
class SideWork:
    """Work that reads leaves of one side with renamed columns; Spark joins them."""

    side: SideReader
    names: tuple[tuple[str, str], ...]
    tasks: tuple[tuple[LeafPiece, ...], ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the side, renamed."""
        stored = to_row_schema(self.side.schema)
        return pa.schema([stored.field(name).with_name(new) for name, new in self.names])

    def select_columns(self, names: Sequence[str]) -> SideWork:
        """Return the work that reads only these columns, by their new names."""
        return replace(self, names=tuple(each for each in self.names if each[1] in names))

    def without_tasks(self) -> SideWork:
        """The same work, as one task sees it."""
        return replace(self, tasks=())

    def batches(self, task: tuple[LeafPiece, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the leaves of a task."""
        schema = self.schema
        for batch in self.side.batches(task, [name for name, _ in self.names]):
            arrays = [batch.column(name) for name, _ in self.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
