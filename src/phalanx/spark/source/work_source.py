"""Runs work on Spark: each task of the work is an input partition."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from phalanx.spark.runtime.failures import hide_traceback
from phalanx.spark.runtime.types import arrow_schema, spark_schema, to_spark_batches
from phalanx.table.jobs.work import Work


def frame_of(spark: Any, work: Work) -> Any:
    """Return the rows of all tasks as a DataFrame of the session.

    The Java classes get the work in a call, and read only the columns that a query needs. Without
    them, and with Spark Connect, Spark runs the work as a Python function. The work is never passed
    as an option, because a client could then send other work.
    """
    java = _java_frames(spark)
    if java is None:
        return _run_as_function(spark, work)
    from pyspark.sql.classic.dataframe import DataFrame

    schema = spark_schema(work.schema).json()
    found = java.create(spark._jsparkSession, bytearray(pickle.dumps(work)), schema)
    return DataFrame(found, spark)


def _java_frames(spark: Any) -> Any | None:
    """Return the Java class that runs work; None if the session does not have it."""
    try:
        frames = spark._jvm.phalanx.bridge.WorkFrames
        return frames if frames.isForThisSpark() else None
    except Exception:
        # Spark Connect has no JVM, and a missing class cannot be called.
        return None


def _run_as_function(spark: Any, work: Work) -> Any:
    """Run the work as a function of task numbers, one in each partition."""
    schema = spark_schema(work.schema)
    tasks, alone = list(work.tasks), work.without_tasks()

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with hide_traceback():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from to_spark_batches(alone.batches(tasks[number]), arrow_schema(schema))

    count = len(tasks)
    return spark.range(0, count, 1, max(1, count)).mapInArrow(run, schema)


@dataclass(slots=True)
class TaskPartition(InputPartition):
    """A task of some work, sent to an executor."""

    task: Any


class WorkReader(DataSourceReader):
    """Runs the tasks of some work."""

    def __init__(self, work: Work, schema: StructType) -> None:
        self._work = work.select_columns(schema.names)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        return [TaskPartition(task) for task in self._work.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        if not isinstance(partition, TaskPartition):
            # Spark adds a partition of its own if there are no tasks.
            return
        with hide_traceback():
            yield from to_spark_batches(
                self._work.batches(partition.task), arrow_schema(self._schema)
            )

    def __getstate__(self) -> dict[str, Any]:
        # The input partitions carry the tasks.
        return {**self.__dict__, "_work": self._work.without_tasks()}
