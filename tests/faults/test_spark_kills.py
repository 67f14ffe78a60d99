"""Spark's processes die while they write: no row is lost or duplicated, and vacuum cleans up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import phalanx
from faults.programs.faulty_writer import FaultySource, frame, save
from integration.stores import Store
from spark.conftest import spark, uri  # noqa: F401
from tables import SCHEMA, SOAK

SCRIPT = Path(__file__).parent / "programs" / "faulty_writer.py"
FIRST = [("a", 1), ("b", 2)]
Row = tuple[str, int]


@pytest.fixture
def table(uri: str) -> phalanx.Table:  # noqa: F811
    made = phalanx.create(uri, SCHEMA, ["k"], transaction="strong")
    made.append(pa.table([["a", "b"], [1, 2]], schema=SCHEMA))
    return made


@pytest.fixture
def faulty(spark: SparkSession) -> SparkSession:  # noqa: F811
    spark.dataSource.register(FaultySource)
    return spark


def rows_of(start: int) -> list[Row]:
    """Return the rows of `frame`."""
    return [("a" if n % 2 == 0 else f"new{start}", n) for n in range(start, start + 40)]


def contents(table: phalanx.Table) -> Counter[Row]:
    return Counter(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


def assert_clean_after_vacuum(table: phalanx.Table, is_debris_expected: bool = True) -> None:
    """Check that a vacuum removes every file that is not needed, and no other."""
    before = contents(table)
    store = Store(str(Path(table.uri).parent))
    listed = {path for paths in table.files()["paths"].to_pylist() for path in paths}

    def list_data_files() -> set[str]:
        files = {path for path in store.files(table.uri) if "/data/" in path}
        return {path.rpartition("/")[2] for path in files if "/__manifest/" not in path}

    assert (list_data_files() > listed) is is_debris_expected
    time.sleep(0.02)
    table.vacuum(timedelta(0))
    assert list_data_files() == listed
    leaves = {place.rpartition("/")[2] for place in table.partitions()["location"].to_pylist()}
    assert store.folders(table.uri) == leaves | {"__manifest"}
    assert contents(table) == before
    table.append(pa.table([["a"], [-1]], schema=SCHEMA))
    assert contents(table) == before + Counter([("a", -1)])


@pytest.mark.parametrize(("fault", "times"), [("dies", "1"), ("fails", "2")])
def test_a_task_is_tried_again(
    faulty: SparkSession, table: phalanx.Table, tmp_path: Path, fault: str, times: str
) -> None:
    save(frame(faulty, 100), table.uri, tmp_path / "faults", task=fault, times=times)
    assert len(list((tmp_path / "faults").glob("task*"))) == int(times), "it happened"
    assert contents(table) == Counter([*FIRST, *rows_of(100)])
    assert table.snapshots().num_rows == 3
    assert_clean_after_vacuum(table)


@pytest.mark.parametrize("step", ["VERSION_STAGED", "COMMITTING", "COMMITTED"])
def test_the_commit_dies(
    faulty: SparkSession, table: phalanx.Table, tmp_path: Path, step: str
) -> None:
    folder = tmp_path / "faults"
    with pytest.raises(Exception, match="worker exited unexpectedly"):
        save(frame(faulty, 100), table.uri, folder, commit=step, marker="once")
    assert len(list(folder.glob("commit*"))) == 1, "it happened"
    committed = Counter([*FIRST, *rows_of(100)])
    assert contents(table) == (committed if step == "COMMITTED" else Counter(FIRST))
    # The same again, as a scheduler does it.
    save(frame(faulty, 100), table.uri, folder, commit=step, marker="once")
    assert contents(table) == committed
    assert table.snapshots().num_rows == 3
    assert_clean_after_vacuum(table, is_debris_expected=step != "COMMITTED")


@pytest.mark.skipif(not SOAK, reason="two minutes, with executors of its own: make soak")
def test_an_executor_dies_and_a_task_runs_twice(table: phalanx.Table, tmp_path: Path) -> None:
    """One task is slow, so Spark starts a second copy of it; another task kills its executor."""
    folder = tmp_path / "faults"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), table.uri, "cluster", str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert {each.parent.name for each in folder.glob("*/task0")} == {"slow", "lost"}
    assert contents(table) == Counter([*FIRST, *rows_of(100), *rows_of(200)])
    assert table.snapshots().num_rows == 4
    assert_clean_after_vacuum(table)


@pytest.mark.parametrize("step", ["COMMITTING", "COMMITTED"] if SOAK else ["COMMITTING"])
def test_the_driver_dies(table: phalanx.Table, tmp_path: Path, step: str) -> None:
    folder = tmp_path / "faults"
    driver = subprocess.Popen(
        [sys.executable, str(SCRIPT), table.uri, step, str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + 240
    while not (folder / "commit0").exists():
        assert time.monotonic() < end
        assert driver.poll() is None
        time.sleep(0.05)
    _kill_all(driver.pid)
    driver.wait()
    committed = Counter([*FIRST, *rows_of(100)])
    assert contents(table) == (committed if step == "COMMITTED" else Counter(FIRST))
    assert table.snapshots().num_rows == (3 if step == "COMMITTED" else 2)
    assert_clean_after_vacuum(table, is_debris_expected=step == "COMMITTING")


def _kill_all(process: int) -> None:
    """End a process of this test and all its children, parents first."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    parents = {int(pid): int(ppid) for pid, ppid in map(str.split, listed.stdout.splitlines())}
    found = [process]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    for each in found:
        # A child may end by itself once its parent is gone.
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
