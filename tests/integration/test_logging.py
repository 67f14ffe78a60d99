"""What Phalanx logs: nothing by default, commits at INFO, retries and plans at DEBUG."""

from __future__ import annotations

import logging
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import phalanx

ROWS = pa.table({"k": ["a", "b"], "n": [1, 2]})


def create_table(tmp_path: Path, mode: phalanx.Mode) -> phalanx.Table:
    return phalanx.create(tmp_path / "t", ROWS.schema, "k", transaction=mode)


def list_messages(caplog: pytest.LogCaptureFixture, level: int) -> list[tuple[str, str]]:
    return [(each.name, each.getMessage()) for each in caplog.records if each.levelno == level]


def test_a_strong_table_logs_each_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    table = create_table(tmp_path, "strong")
    caplog.clear()
    table.append(ROWS)
    table.append(ROWS)
    table.delete("n = 1")
    table.rewrite(rewrite_all=True)
    table.vacuum(timedelta(0))
    uri, lines = table.uri, list_messages(caplog, logging.INFO)
    assert [name for name, _ in lines] == [
        *["phalanx.storage"] * 4,
        *["phalanx.table"] * 2,
    ]
    texts = [text for _, text in lines]
    assert (
        texts[1] == f"Committed snapshot 3 of {uri}: append, 2 partitions, 2 rows added, 0 removed"
    )
    assert "delete, 1 partitions, 0 rows added, 2 removed" in texts[2]
    assert "rewrite" in texts[3]
    assert texts[4].startswith(f"Rewrote 2 files of {uri} into 1")
    assert texts[5].startswith(f"Vacuumed {uri}: 4 snapshots expired, ")


def test_a_weak_table_logs_each_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    table = create_table(tmp_path, "weak")
    table.append(ROWS)
    assert list_messages(caplog, logging.INFO) == [
        ("phalanx.storage", f"Changed 2 partitions of {table.uri}: append, 0 rows removed")
    ]


def test_plans_are_logged_for_debugging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = create_table(tmp_path, "weak")
    table.append(ROWS)
    caplog.set_level(logging.DEBUG, "phalanx")
    assert table.scan("k = 'a'").count_rows() == 1
    assert list_messages(caplog, logging.DEBUG) == [
        ("phalanx.table", f"Planned {table.uri}: 1 of 2 partitions")
    ]


def test_nothing_is_shown_by_default(tmp_path: Path) -> None:
    """A logger without handlers would print warnings to stderr."""
    script = (
        "import sys, pyarrow as pa, phalanx; "
        "t = phalanx.create(sys.argv[1], pa.schema([('k', pa.string())]), 'k', "
        "transaction='strong'); t.append(pa.table({'k': ['a']}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t")], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
