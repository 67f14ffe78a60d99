"""Many threads make the first use of Phalanx in a process: all get the same sessions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa

import phalanx

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_threads_of_a_fresh_process(tmp_path: Path) -> None:
    root = str(tmp_path / "t")
    table = phalanx.create(root, SCHEMA, "bucket(2, id)")
    table.append(pa.table({"id": [0, 1, 2], "name": ["a", "b", "c"]}, schema=SCHEMA))
    script = Path(__file__).parent / "programs" / "first_use.py"
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, str(script), root], capture_output=True, text=True, timeout=300
        )
        assert ended.stdout.strip() == "one answer", (ended.stdout, ended.stderr)
