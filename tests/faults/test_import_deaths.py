"""An import whose driver is killed, then one of its workers: no row is missing or duplicated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import lance
import pyarrow as pa

import phalanx
from phalanx.errors import PhalanxError

_SCRIPT = Path(__file__).parent / "programs" / "import_driver.py"
_FILES = 6
_ROWS = 50
_LONGEST = 300


def start(*arguments: str) -> subprocess.Popen[str]:
    """The import as a group of processes: the driver, its JVM and their workers."""
    command = [sys.executable, str(_SCRIPT), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def snapshots(uri: str) -> int:
    try:
        return int(phalanx.open(uri).snapshots().num_rows)
    except PhalanxError:
        return 0


def test_a_killed_import_goes_on_where_it_was(tmp_path: Path) -> None:
    source, uri = str(tmp_path / "source.lance"), str(tmp_path / "table")
    rows = pa.table({"id": range(_FILES * _ROWS)})
    lance.write_dataset(rows, source, max_rows_per_file=_ROWS)
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

    second = start(source, uri, str(tmp_path))
    output, errors = second.communicate(timeout=_LONGEST)
    assert second.returncode == 0, errors
    assert (tmp_path / "died").exists(), "it happened"
    done = json.loads(output)
    assert (done["skipped_files"], done["files"]) == (there, _FILES - there)
    assert done["rows"] == (_FILES - there) * _ROWS
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(_FILES * _ROWS))
