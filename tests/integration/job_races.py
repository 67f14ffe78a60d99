"""Jobs in processes of their own: a module that other processes can import."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import phalanx
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import WriteJob

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32())])
Row = tuple[str | None, int]


def rows(*pairs: Row) -> pa.Table:
    return pa.table([[k for k, _ in pairs], [n for _, n in pairs]], schema=SCHEMA)


def written(job: WriteJob, *tasks: Iterable[Row]) -> list[TaskFiles]:
    """What the tasks tell the driver; both travel as they do in Spark."""
    job = pickle.loads(pickle.dumps(job))
    return [pickle.loads(pickle.dumps(job.write(rows(*task).to_reader()))) for task in tasks]


def write_task(job: WriteJob, number: int, start: Any, answers: Any) -> None:
    start.wait()
    answers.put(job.write(rows(("new", number), ("newer", number), ("a", number)).to_reader()))


def run_jobs(root: str, number: int, start: Any) -> None:
    start.wait()
    table = phalanx.open(root)
    for turn in range(3):
        job = table.begin_write()
        n = number * 100 + turn * 10
        job.commit(written(job, [(f"new{turn}", n), ("a", n)], [(f"new{turn}", n + 1)]))


def append_in_turns(uri: str, options: dict[str, str] | None, number: int) -> None:
    """Four appends, into a partition of all, one of each turn, and one of its own."""
    table = phalanx.open(uri, storage_options=options)
    for turn in range(4):
        ks = ["a", f"shared {turn}", f"own {number}"]
        table.append(pa.table({"k": ks, "n": pa.array([number] * 3, pa.int64())}))
