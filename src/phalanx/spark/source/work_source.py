"""How Spark runs work: its input partitions are the tasks."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from phalanx.spark.runtime.failures import in_one_line
from phalanx.spark.runtime.types import arrow_schema, for_spark, spark_schema
from phalanx.table.jobs.work import Work


def frame_of(spark: Any, work: Work) -> Any:
    """The rows of all tasks, as a DataFrame of the session.

    The classes in Java are handed the work by a call, and read only the columns that a query needs.
    Without them, and by Connect, Spark runs it as a function of Python. No text carries it: whoever
    may send queries could send another.
    """
    works = _in_java(spark)
    if works is None:
        return _as_function(spark, work)
    from pyspark.sql.classic.dataframe import DataFrame

    schema = spark_schema(work.schema).json()
    found = works.frame(spark._jsparkSession, bytearray(pickle.dumps(work)), schema)
    return DataFrame(found, spark)


def _in_java(spark: Any) -> Any | None:
    """The classes in Java that run work; None where the session has none."""
    try:
        works = spark._jvm.phalanx.bridge.WorkFrames
        return works if works.isForThisSpark() else None
    except Exception:
        # Connect has no JVM at hand, and a name without a class cannot be called.
        return None


def _as_function(spark: Any, work: Work) -> Any:
    """The work as a function of the numbers of its tasks, one in each partition."""
    schema = spark_schema(work.schema)
    tasks, alone = list(work.tasks), work.without_tasks()

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with in_one_line():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from for_spark(alone.batches(tasks[number]), arrow_schema(schema))

    count = len(tasks)
    return spark.range(0, count, 1, max(1, count)).mapInArrow(run, schema)


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
