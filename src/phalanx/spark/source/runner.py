"""The runner that `table` uses for work on the executors of a Spark session."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from phalanx.spark.source.work_source import frame_of
from phalanx.table.jobs.work import Work

_GROUP = "spark.jobGroup.id"
# The interval at which Spark is asked for the number of finished tasks.
_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class SparkRunner:
    """Runs work on the executors of a session."""

    spark: Any

    def collect(self, work: Work, report: Callable[[int], None]) -> list[Any]:
        """Run all tasks and return their rows, reporting the number of finished tasks.

        Spark Connect does not expose that number before all tasks are done.
        """
        with _report_progress(self.spark, report):
            rows: list[Any] = frame_of(self.spark, work).collect()
        report(len(work.tasks))
        return rows


@contextmanager
def _report_progress(spark: Any, report: Callable[[int], None]) -> Iterator[None]:
    """Report the number of finished tasks while the block runs, in a thread."""
    try:
        context = spark.sparkContext
        tracker = context.statusTracker()
    except Exception:
        yield
        return
    group, before = f"phalanx-{uuid.uuid4().hex}", context.getLocalProperty(_GROUP)
    over = threading.Event()

    def watch() -> None:
        reported = 0
        while not over.wait(_POLL_SECONDS):
            if (count := _count_finished(tracker, group)) > reported:
                reported = count
                report(reported)

    watching = threading.Thread(target=watch, daemon=True)
    context.setLocalProperty(_GROUP, group)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
        context.setLocalProperty(_GROUP, before)


def _count_finished(tracker: Any, group: str) -> int:
    """Return the number of finished tasks of a job group."""
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
    stages = (tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds)
    return sum(int(stage.numCompletedTasks) for stage in stages if stage)
