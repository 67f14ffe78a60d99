"""Batches of a stream are jobs with a marker of their own: each is committed once, in order."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import phalanx
from phalanx.storage.commit.history_rows import StreamBatch
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import WriteJob
from tables import SCHEMA, numbers


@pytest.fixture
def table(tmp_path: Path) -> phalanx.Table:
    return phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")


def write(job: WriteJob, number: int) -> TaskFiles:
    return job.write(pa.table({"k": ["a", f"new{number}"], "n": [number, number]}).to_reader())


def begin_job(table: phalanx.Table, number: int, query: str = "q") -> WriteJob:
    return phalanx.open(table.uri).begin_write().with_marker(StreamBatch(query, number))


def markers(table: phalanx.Table) -> int:
    rows = lance.dataset(f"{table.uri}/__manifest").to_table(columns=["object_id"])
    return sum(name.startswith("__phalanx_marker$") for name in rows["object_id"].to_pylist())


def test_a_batch_that_comes_again_is_not_written(table: phalanx.Table) -> None:
    for number in range(3):
        job = begin_job(table, number)
        job.commit([write(job, number)])
    again = begin_job(table, 2)
    assert write(again, 2).files == ()
    assert again.commit([]).snapshot == 4
    assert numbers(table) == [0, 0, 1, 1, 2, 2]
    # Only the last batch is remembered: Spark never repeats an older one.
    assert markers(table) == 1
    other = begin_job(table, 0, "another query")
    other.commit([write(other, 7)])
    assert numbers(table) == [0, 0, 1, 1, 2, 2, 7, 7]
    assert markers(table) == 2


def test_two_drivers_that_write_the_same_batch(table: phalanx.Table) -> None:
    # The first query, which seemed dead, goes on.
    first = begin_job(table, 0)
    files = write(first, 0)
    second = begin_job(table, 0)
    done = second.commit([write(second, 0)])
    table.append(pa.table({"k": ["a"], "n": [5]}))
    assert first.commit([files]).snapshot == done.snapshot
    assert numbers(table) == [0, 0, 5]
    later = begin_job(table, 1)
    later.commit([write(later, 1)])
    assert first.commit([files]).snapshot != done.snapshot
    assert numbers(table) == [0, 0, 1, 1, 5]


def test_vacuum_and_weak_times_leave_the_last_batch(table: phalanx.Table) -> None:
    job = begin_job(table, 3)
    job.commit([write(job, 3)])
    table.append(pa.table({"k": ["a"], "n": [5]}))
    time.sleep(0.01)
    table.vacuum(timedelta(0))
    assert begin_job(table, 3).repeated_snapshot == 2
    table.set_mode("weak")
    table.set_mode("strong")
    assert begin_job(table, 3).repeated_snapshot == 2
    assert begin_job(table, 4).repeated_snapshot is None
