"""`phalanx rewrite --spark`: the same rewrite, by Spark's executors."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import phalanx
from integration.shell import run_json
from phalanx.spark.source import runner
from phalanx.table.maintenance import group_tasks


def test_files_are_rewritten_and_rows_moved(spark: SparkSession, uri: str) -> None:
    rows = pa.table({"k": ["a", "b"], "n": [1, 2]})
    table = phalanx.create(uri, rows.schema, "k", transaction="strong")
    for _ in range(5):
        table.append(rows)
    done = run_json("rewrite", uri, "--spark")
    assert (done["groups"], done["files_before"], done["files_after"]) == (2, 10, 2)
    table.evolve("bucket(2, n)")
    moved = run_json("rewrite", uri, "--spark", "--target-spec", "2")
    assert (moved["groups"], moved["rows"]) == (2, 10)
    assert table.scan().count_rows() == 10


def test_progress_is_reported_while_it_runs(
    spark: SparkSession, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A task for each group, and Spark is asked all the time.
    monkeypatch.setattr(group_tasks, "choose_task_bytes", lambda *_: 1)
    monkeypatch.setattr(runner, "_POLL_SECONDS", 0.01)
    rows = pa.table({"k": list(range(24)), "n": list(range(24))})
    table = phalanx.create(uri, rows.schema, "k", transaction="strong")
    for _ in range(2):
        table.append(rows)
    told: list[tuple[int, int]] = []
    before = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    table.rewrite(spark=spark, min_input_files=2, progress=lambda *each: told.append(each))
    assert told == sorted(told)
    assert told[-1] == (24, 24)
    assert any(0 < done < 24 for done, _ in told)
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == before


def test_without_spark_the_shell_says_how_to_get_it(uri: str) -> None:
    phalanx.create(uri, pa.schema([("n", pa.int64())]), "n")
    script = (
        "import sys; sys.modules['pyspark'] = None;"
        f"sys.argv[1:] = ['rewrite', {uri!r}, '--spark'];"
        "from phalanx.cli import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: Cannot rewrite without Spark, which is not installed.")
