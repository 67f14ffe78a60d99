"""The first use of a process by many threads at once: they all get the same objects."""

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
        asked = subprocess.run(
            [sys.executable, str(script), root], capture_output=True, text=True, timeout=300
        )
        assert asked.stdout.strip() == "one answer", (asked.stdout, asked.stderr)
