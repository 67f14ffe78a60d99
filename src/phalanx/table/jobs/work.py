"""Work for many tasks: what each does is a value, which a Spark session hands to its executors."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

_GROUP = "spark.jobGroup.id"
# How often Spark is asked how many tasks are done.
SECONDS = 0.25


class Work(Protocol):
    """Tasks, and the rows that each of them gives."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    @property
    def tasks(self) -> Sequence[Any]:
        """What the tasks do; each must be picklable."""

    def reading(self, names: Sequence[str]) -> Work:
        """The same work, for which no other columns need be read than these of its rows."""

    def without_tasks(self) -> Work:
        """The same work, as one task sees it."""

    def batches(self, task: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""


def on_spark(spark: Any, work: Work) -> Any:
    """The rows of all tasks, as a DataFrame of the session."""
    # Whoever has a session has the layer above, which knows Spark.
    return import_module("phalanx.spark.source.work_source").frame_of(spark, work)


def collected(spark: Any, work: Work, finished: Callable[[int], None]) -> list[Any]:
    """The rows of all tasks; meanwhile `finished` is told how many tasks are done.

    By Spark Connect nobody knows that before all are.
    """
    with _watched(spark, finished):
        rows: list[Any] = on_spark(spark, work).collect()
    finished(len(work.tasks))
    return rows


@contextmanager
def _watched(spark: Any, finished: Callable[[int], None]) -> Iterator[None]:
    try:
        context = spark.sparkContext
        tracker = context.statusTracker()
    except Exception:
        yield
        return
    mine, before = f"phalanx-{uuid.uuid4().hex}", context.getLocalProperty(_GROUP)
    over = threading.Event()

    def watch() -> None:
        told = 0
        while not over.wait(SECONDS):
            if (done := _done(tracker, mine)) > told:
                told = done
                finished(told)

    watching = threading.Thread(target=watch, daemon=True)
    context.setLocalProperty(_GROUP, mine)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
        context.setLocalProperty(_GROUP, before)


def _done(tracker: Any, group: str) -> int:
    """How many tasks of a group of jobs are done."""
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
    stages = (tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds)
    return sum(int(stage.numCompletedTasks) for stage in stages if stage)
