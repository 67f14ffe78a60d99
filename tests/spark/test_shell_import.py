"""`phalanx import`: files by Spark, with data on stdout and everything else on stderr."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import phalanx
from integration.shell import assert_fails, run, run_json, strict_json

CSV = "id,at,country\n1,2025-01-01 00:00:00,US\n2,2026-01-01 00:00:00,NA\n"


def test_files_are_imported_once(spark: SparkSession, tmp_path: Path, uri: str) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    options = ("--partition-by", "year(at)", "--option", "nullValue=NA", "--distribution", "hash")
    done = run("import", "--from", "csv", str(tmp_path / "a.csv"), uri, *options, "-o", "json")
    assert done.exit_code == 0, done.stderr
    made = strict_json(done.stdout)
    assert (made["rows"], made["partitions"], made["fragments"], made["files"]) == (2, 2, 2, 1)
    assert "1 of 1 chunks" in done.stderr
    table = phalanx.open(uri)
    assert table.mode == "strong"
    assert table.scan().to_arrow()["country"].to_pylist() == ["US", None]
    again = run("import", str(tmp_path / "a.csv"), uri)
    assert again.stdout.startswith("Nothing to import: ")
    assert run_json("scan", uri, "--count") == {"count": 2}


def test_failures_are_one_line(spark: SparkSession, tmp_path: Path, uri: str) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    assert_fails(run("import", str(tmp_path / "b.csv"), uri, "--partition-by", "id"), 1, "b.csv")
    assert_fails(run("import", str(tmp_path / "a.csv"), uri, "--partition-by", "x"), 1, "'x'")
    assert_fails(run("import", "a.csv", uri, "--from", "xls"), 2, "--from")
    assert_fails(run("import", "a.csv", uri, "--option", "header"), 2, "KEY=VALUE")


def test_without_spark_the_shell_says_how_to_get_it() -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None; sys.argv[1:] = ['import', 'a.csv', 't'];"
        "from phalanx.cli import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "error: Cannot import without Spark, which is not installed. Install it: "
        "pip install 'phalanx-lance[spark]'\n"
    )
