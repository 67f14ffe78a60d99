"""Jobs in processes of their own: a module that other processes can import."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import phalanx
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import WriteJob
from tables import int32_rows

Row = tuple[str | None, int]


def write_tasks(job: WriteJob, *tasks: Iterable[Row]) -> list[TaskFiles]:
    """Return the files that the tasks report; job and result are pickled as in Spark."""
    job = pickle.loads(pickle.dumps(job))
    return [pickle.loads(pickle.dumps(job.write(int32_rows(*task).to_reader()))) for task in tasks]


def write_task(job: WriteJob, number: int, start: Any, answers: Any) -> None:
    start.wait()
    answers.put(
        job.write(int32_rows(("new", number), ("newer", number), ("a", number)).to_reader())
    )


def run_jobs(root: str, number: int, start: Any) -> None:
    start.wait()
    table = phalanx.open(root)
    for turn in range(3):
        job = table.begin_write()
        n = number * 100 + turn * 10
        job.commit(write_tasks(job, [(f"new{turn}", n), ("a", n)], [(f"new{turn}", n + 1)]))


def append_in_turns(uri: str, options: dict[str, str] | None, number: int) -> None:
    """Append four times, to a shared partition, one for each turn, and one of its own."""
    table = phalanx.open(uri, storage_options=options)
    for turn in range(4):
        ks = ["a", f"shared {turn}", f"own {number}"]
        table.append(pa.table({"k": ks, "n": pa.array([number] * 3, pa.int64())}))
