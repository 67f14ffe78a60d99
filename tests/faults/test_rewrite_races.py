"""Rewrites on Spark while other writers add and remove rows and processes are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import lance
import pytest
from pyspark.sql import SparkSession

import phalanx
from faults.programs import rewrite_driver
from faults.programs.rewrite_driver import create, executors, kill_workers, write
from processes import SERVER
from spark.conftest import spark, uri  # noqa: F401
from tables import SOAK

PARTITIONS, FILES, ROWS = (30, 12, 50) if SOAK else (6, 6, 5)
KILLS = 3 if SOAK else 1


def batches(table: phalanx.Table) -> Counter[str]:
    """Return the rows of each batch; every partition has all or none of them."""
    found = table.scan().to_arrow()
    rows = Counter(zip(found["p"].to_pylist(), found["batch"].to_pylist(), strict=True))
    total = Counter(found["batch"].to_pylist())
    for (partition, name), count in rows.items():
        assert count * PARTITIONS == total[name], (partition, name)
    assert len(rows) == PARTITIONS * len(total)
    return total


def count_expected(over: Path) -> Counter[str]:
    found = Counter({f"first {number}": PARTITIONS * ROWS for number in range(FILES)})
    for log in over.parent.glob(f"{over.name}.*"):
        for line in log.read_text().splitlines():
            if line.startswith("-"):
                found.pop(line[1:], None)
            else:
                found[line[1:]] = PARTITIONS
    return found


def check_everything(table: phalanx.Table, over: Path) -> None:
    """Return the rows, those of every snapshot, and what stock clients see."""
    assert batches(table) == count_expected(over)
    numbers = table.snapshots()["id"].to_pylist()
    assert numbers == list(range(1, len(numbers) + 1))
    for number in numbers if SOAK else numbers[-30:]:
        batches(table.at(number))
    for place in table.partitions().to_pylist():
        mine = table.scan(f"p = {place['p']}").count_rows()
        assert lance.dataset(place["location"]).count_rows() == mine


@pytest.mark.parametrize("kills", [False, True] if SOAK else [True])
def test_concurrent_writers(
    spark: SparkSession,  # noqa: F811
    uri: str,  # noqa: F811
    tmp_path: Path,
    kills: bool,
) -> None:
    table = create(uri, PARTITIONS, FILES, ROWS)
    over = tmp_path / "over"
    # Without a pause they take all the time that the rewrites need.
    rest = 0.0 if SOAK else 0.1
    others = [
        SERVER.Process(target=write, args=(uri, f"writer{number}", PARTITIONS, str(over), rest))
        for number in range(2)
    ]
    if kills:
        pause = 1.5 if SOAK else 0.5
        killer = SERVER.Process(target=kill_workers, args=(os.getpid(), str(over), pause))
        others.append(killer)
    for process in others:
        process.start()
    try:
        for _ in range(4 if SOAK else 2):
            try:
                table.rewrite(spark=spark, partial_progress=True, min_input_files=2)
            except Exception:
                # A task may die more often than Spark tries it.
                assert kills
    finally:
        over.touch()
        for process in others:
            process.join(120)
    assert [process.exitcode for process in others] == [0] * len(others)
    check_everything(table, over)
    done = table.rewrite(spark=spark, min_input_files=2)
    assert done.dropped == ()
    check_everything(table, over)
    assert table.files().num_rows <= 2 * PARTITIONS
    assert "rewrite" in table.snapshots()["operation"].to_pylist()
    time.sleep(0.02)
    table.vacuum(timedelta(0))
    assert batches(table) == count_expected(over)


@pytest.mark.skipif(not SOAK, reason="starts Spark again and again: make soak")
def test_the_driver_dies_at_any_moment(uri: str, tmp_path: Path) -> None:  # noqa: F811
    table = create(uri, PARTITIONS, FILES, ROWS)
    chance = random.Random(5)
    script = Path(rewrite_driver.__file__)
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        process = subprocess.Popen(
            [sys.executable, str(script), uri, str(folder)], start_new_session=True
        )
        while not (folder / "begun").exists():
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 4))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        check_everything(table, tmp_path / "over")
    table.rewrite(rewrite_all=True)
    check_everything(table, tmp_path / "over")


@pytest.mark.skipif(not SOAK, reason="starts executors of its own: make soak")
def test_an_executor_dies(uri: str, tmp_path: Path) -> None:  # noqa: F811
    """Spark runs its tasks elsewhere, and no snapshot has what they wrote before."""
    table = create(uri, PARTITIONS, FILES, ROWS)
    process = subprocess.Popen(
        [sys.executable, rewrite_driver.__file__, uri, str(tmp_path), "local-cluster[2,1,1024]"],
        start_new_session=True,
    )
    for _ in range(2):
        while not (found := executors(process.pid)):
            assert process.poll() is None, "it was over before its executors died"
            time.sleep(0.01)
        os.kill(found[0], signal.SIGKILL)
        time.sleep(0.5)
    assert process.wait(300) == 0
    check_everything(table, tmp_path / "over")
    assert table.files().num_rows == PARTITIONS
