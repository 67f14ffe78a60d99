"""An ingest that is killed: a second call continues, and no row is duplicated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import phalanx
from phalanx.errors import PhalanxError
from tables import SOAK

_SCRIPT = Path(__file__).parent / "programs" / "ingest_driver.py"
_FILES = 7
_ROWS = 50
_LONGEST = 300


def start(source: Path, uri: str) -> subprocess.Popen[str]:
    """The ingest as a group of processes: the driver, its JVM and their workers."""
    command = [sys.executable, str(_SCRIPT), str(source), uri]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def snapshots(uri: str) -> int:
    try:
        return int(phalanx.open(uri).snapshots().num_rows)
    except PhalanxError:
        return 0


@pytest.mark.skipif(
    not SOAK,
    reason="starts Spark twice; test_import_deaths.py kills what an ingest is made of: make soak",
)
def test_a_killed_ingest_goes_on_where_it_was(tmp_path: Path) -> None:
    source, uri = tmp_path / "in", str(tmp_path / "table")
    source.mkdir()
    for number in range(_FILES):
        rows = pa.table({"id": range(number * _ROWS, (number + 1) * _ROWS)})
        pq.write_table(rows, source / f"{number:02}.parquet")
    first = start(source, uri)
    ends = time.monotonic() + _LONGEST
    # The table itself is a snapshot, then each file is one.
    while snapshots(uri) < 3 and first.poll() is None and time.monotonic() < ends:
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    there = snapshots(uri) - 1
    assert 2 <= there < _FILES
    table = phalanx.open(uri)
    assert table.scan().count_rows() == there * _ROWS

    second = start(source, uri)
    output, errors = second.communicate(timeout=_LONGEST)
    assert second.returncode == 0, errors
    done = json.loads(output)
    assert (done["skipped_files"], done["files"]) == (there, _FILES - there)
    assert done["rows"] == (_FILES - there) * _ROWS
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(_FILES * _ROWS))
