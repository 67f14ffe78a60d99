"""Tasks of maintenance, one for each group of files, on Spark executors or in threads."""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

import pyarrow as pa

from phalanx.planning.formatting import format_count
from phalanx.planning.splits import choose_task_bytes, pack_in_tasks
from phalanx.storage.lance.parallel import WRITE_THREADS, map_parallel
from phalanx.table.jobs.work import runner_for

MAX_ATTEMPTS = 3
_LOGGER = logging.getLogger("phalanx.table")


class GroupTask(Protocol):
    """The task of one group."""

    @property
    def group(self) -> int:
        """The id of the group."""

    @property
    def bytes(self) -> int:
        """The size of the input."""

    def run(self) -> Any:
        """Run the task and return its result, which must be picklable."""


@dataclass(frozen=True, slots=True)
class GroupWork:
    """Group tasks as work for Spark, with small ones packed into one Spark task."""

    tasks: tuple[tuple[GroupTask, ...], ...]
    schema: pa.Schema = field(
        default=pa.schema([("group", pa.int64()), ("done", pa.binary())]), init=False
    )

    def select_columns(self, names: Sequence[str]) -> GroupWork:
        """Return the same work: every column is needed."""
        return self

    def without_tasks(self) -> GroupWork:
        """Return the same work without its tasks, as it is sent along with a single task."""
        return GroupWork(())

    def batches(self, task: tuple[GroupTask, ...]) -> Iterator[pa.RecordBatch]:
        """Run the group tasks of one Spark task and yield a row for each."""
        for each in task:
            row = {"group": each.group, "done": pickle.dumps(each.run())}
            yield pa.RecordBatch.from_pylist([row], self.schema)


def run_tasks(
    tasks: Sequence[GroupTask], spark: Any, report: Callable[[int], None]
) -> dict[int, Any]:
    """Run tasks on Spark executors or in threads; return the result of each group by id.

    Calls `report` with the number of finished groups. On Spark this is a lower bound, because only
    the number of finished tasks is known, and not which.
    """
    if spark is not None and tasks:
        size = choose_task_bytes(sum(task.bytes for task in tasks), None)
        work = GroupWork(tuple(pack_in_tasks(tasks, lambda task: task.bytes, size)))
        finished_groups = [0, *itertools.accumulate(sorted(map(len, work.tasks)))]
        rows = runner_for(spark).collect(
            work, lambda tasks_done: report(finished_groups[min(tasks_done, len(work.tasks))])
        )
        return {row["group"]: pickle.loads(row["done"]) for row in rows}
    count, lock = 0, threading.Lock()

    def run(task: GroupTask) -> Any:
        nonlocal count
        result = task.run()
        with lock:
            count += 1
            report(count)
        return result

    results = map_parallel(run, tasks, WRITE_THREADS)
    return {task.group: result for task, result in zip(tasks, results, strict=True)}


class AttemptOutcome(Protocol):
    """The result of one attempt of an operation that gives up what other writers change."""

    @property
    def dropped(self) -> Sequence[object]:
        """What the attempt gave up."""

    def combine(self, later: Self) -> Self:
        """Return the sum of this attempt and a later one for what this one gave up."""


_Outcome = TypeVar("_Outcome", bound=AttemptOutcome)


def retry_dropped(attempt: Callable[[], _Outcome], what: str, noun: str) -> _Outcome:
    """Run attempts until none gives up anything, at most `MAX_ATTEMPTS`; return their sum.

    `what` and `noun` name the operation and what it gives up, for the log.
    """
    done = attempt()
    for _ in range(MAX_ATTEMPTS - 1):
        if not done.dropped:
            break
        _LOGGER.debug(
            "Other writers changed %s during the %s; planning again",
            *(format_count(len(done.dropped), noun), what),
        )
        done = done.combine(attempt())
    return done
