"""What Spark reads for a join: its input partitions are tasks that join, or read, leaves."""

from __future__ import annotations

import base64
import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from phalanx.planning.join_cuts import JoinTask, Piece
from phalanx.spark.failures import in_one_line
from phalanx.spark.types import arrow_schema, for_spark
from phalanx.table.joining import JoinReader, SideReader

_WORK = "join_work"


@dataclass(frozen=True, slots=True)
class GroupedWork:
    """Leaves that meet, joined where they are read."""

    reader: JoinReader
    tasks: tuple[JoinTask, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the join."""
        return self.reader.schema

    def without_tasks(self) -> GroupedWork:
        """The same work, as one task sees it."""
        return replace(self, tasks=())

    def batches(self, task: JoinTask) -> Iterator[pa.RecordBatch]:
        """The joined rows of a task."""
        return self.reader.batches(task)


@dataclass(frozen=True, slots=True)
class SideWork:
    """Leaves of one side that meet nothing, read for a join by Spark; columns by other names."""

    side: SideReader
    names: tuple[tuple[str, str], ...]
    tasks: tuple[tuple[Piece, ...], ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the side, renamed."""
        stored = self.side.schema.arrow
        return pa.schema([(new, stored.field(name).type) for name, new in self.names])

    def without_tasks(self) -> SideWork:
        """The same work, as one task sees it."""
        return replace(self, tasks=())

    def batches(self, task: tuple[Piece, ...]) -> Iterator[pa.RecordBatch]:
        """The rows of some leaves."""
        schema = self.schema
        for batch in self.side.batches(task, [name for name, _ in self.names]):
            arrays = [batch.column(name) for name, _ in self.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


# What the tasks of a source do: its columns, its tasks, and the rows of each.
Work: TypeAlias = GroupedWork | SideWork


def options_of(work: Work) -> dict[str, str]:
    """The options by which the source is told what to do."""
    packed = zlib.compress(pickle.dumps(work), 1)
    return {_WORK: base64.b85encode(packed).decode()}


def work_of(options: Mapping[str, str]) -> Work | None:
    """What `options_of` in the same session has told; None if a table is read."""
    told = options.get(_WORK)
    if told is None:
        return None
    work: Work = pickle.loads(zlib.decompress(base64.b85decode(told)))
    return work


@dataclass(slots=True)
class TaskPartition(InputPartition):
    """A task on its way to an executor."""

    task: Any


class WorkReader(DataSourceReader):
    """Runs the tasks of a join."""

    def __init__(self, work: Work, schema: StructType) -> None:
        self._work = work
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return [TaskPartition(task) for task in self._work.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        if not isinstance(partition, TaskPartition):
            # Of work without tasks Spark makes one partition of its own.
            return
        with in_one_line():
            yield from for_spark(self._work.batches(partition.task), arrow_schema(self._schema))

    def __getstate__(self) -> dict[str, Any]:
        # The partitions carry the tasks.
        return {**self.__dict__, "_work": self._work.without_tasks()}
