"""How Spark runs work: its input partitions are the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from phalanx.spark.failures import in_one_line
from phalanx.spark.types import arrow_schema, for_spark
from phalanx.table.work import Work


@dataclass(slots=True)
class TaskPartition(InputPartition):
    """A task on its way to an executor."""

    task: Any


class WorkReader(DataSourceReader):
    """Runs the tasks of some work."""

    def __init__(self, work: Work, schema: StructType) -> None:
        self._work = work.reading(schema.names)
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
