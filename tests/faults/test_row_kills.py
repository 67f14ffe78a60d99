"""Spark's processes die or run twice during SQL statements: no row is lost or duplicated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import phalanx
from integration.stores import Store
from tables import SOAK

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.int32())])
PROGRAMS = Path(__file__).parent / "programs"
pytestmark = pytest.mark.skipif(not SOAK, reason="minutes, in sessions of their own: make soak")


@pytest.fixture
def table(tmp_path: Path) -> phalanx.Table:
    made = phalanx.create(str(tmp_path / "lake" / "t"), SCHEMA, ["k"], transaction="strong")
    made.append(rows(dict.fromkeys(range(40), 0)))
    return made


def rows(values: dict[int, int]) -> pa.Table:
    data = [{"k": str(n % 8), "n": n, "v": v} for n, v in values.items()]
    return pa.Table.from_pylist(data, SCHEMA)


def contents(table: phalanx.Table) -> list[tuple[int, int]]:
    found = table.scan().to_arrow()
    return sorted(zip(found["n"].to_pylist(), found["v"].to_pylist(), strict=True))


def start_driver(table: phalanx.Table, scenario: str, folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir()
    faults = folder.parent / "faults.json"
    faults.write_text("{}")
    paths = [
        str(PROGRAMS / "faulty_source"),
        str(PROGRAMS.parents[1]),
        os.environ.get("PYTHONPATH", ""),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PHALANX_TEST_FAULTS": str(faults),
    }
    script, root = str(PROGRAMS / "sql_driver.py"), str(Path(table.uri).parent)
    with (folder.parent / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, script, root, scenario, str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def assert_clean_after_vacuum(table: phalanx.Table) -> None:
    before = contents(table)
    time.sleep(0.02)
    table.vacuum(timedelta(0))
    listed = {path for paths in table.files()["paths"].to_pylist() for path in paths}
    files = Store(str(Path(table.uri).parent)).files(table.uri)
    stored = {path for path in files if "/data/" in path and "/__manifest/" not in path}
    assert {path.rpartition("/")[2] for path in stored} == listed
    assert contents(table) == before


def test_tasks_run_twice_and_an_executor_dies(table: phalanx.Table, tmp_path: Path) -> None:
    folder = tmp_path / "faults"
    driver = start_driver(table, "cluster", folder)
    try:
        code = driver.wait(400)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
    assert code == 0, (tmp_path / "log").read_text()[-3000:]
    assert len(list(folder.glob("*/task0"))) == 3, "it happened"
    expected = dict.fromkeys(range(40), 0) | dict.fromkeys(range(40, 60), 40)
    expected |= dict.fromkeys(range(60, 80), 60) | dict.fromkeys(range(80, 120), 80)
    assert contents(table) == sorted(expected.items())
    assert table.snapshots().num_rows == 5
    assert_clean_after_vacuum(table)


@pytest.mark.parametrize("step", ["VERSION_STAGED", "COMMITTING", "COMMITTED"])
def test_the_driver_dies(table: phalanx.Table, tmp_path: Path, step: str) -> None:
    folder = tmp_path / "faults"
    driver = start_driver(table, step, folder)
    end = time.monotonic() + 240
    while not (folder / "0" / "commit0").exists():
        assert time.monotonic() < end
        assert driver.poll() is None, (tmp_path / "log").read_text()[-3000:]
        time.sleep(0.05)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    expected = dict.fromkeys(range(40), 0)
    if step == "COMMITTED":
        expected |= dict.fromkeys(range(20, 60), 20)
    assert contents(table) == sorted(expected.items())
    assert_clean_after_vacuum(table)
