"""The shell on a table in the Hive-style layout."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import phalanx
from integration.shell import ROWS, assert_fails, run, run_json


@pytest.fixture
def events(tmp_path: Path) -> str:
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    uri, file = str(tmp_path / "events"), str(tmp_path / "rows.parquet")
    made = ("--like", file, "--partition-by", "country, bucket(4, id)", "--layout", "hive")
    created = run("create", uri, *made)
    assert (created.exit_code, created.stderr) == (0, "")
    assert "by country, hive_bucket(4, id)" in created.stdout
    assert run_json("append", uri, file)["rows"] == 3
    return uri


def test_the_shell_works_on_the_hive_layout(events: str) -> None:
    described = run_json("describe", events)
    assert (described["layout"], described["mode"], described["rows"]) == ("hive", "weak", 3)
    assert "layout      hive" in run("describe", events).stdout
    listed = run_json("ls", events)
    assert {each["values"]["country"] for each in listed} == {"US", "", None}
    assert run("ls", events).exit_code == 0
    explained = run_json("explain", events, "country = 'US'")
    assert len(explained["partitions"]) == 1
    assert "reads 1 of 3 partitions" in run("explain", events, "country = 'US'").stdout
    assert [row["id"] for row in run_json("scan", events, "--where", "country = 'US'")] == [1]
    assert run_json("delete", events, "country = 'US'") == {"rows": 1}


def test_what_the_layout_has_not_is_one_line(events: str) -> None:
    for command in (["rollback", events, "1"], ["evolve", events, "country"], ["vacuum", events]):
        assert_fails(run(*command), 1, "hive layout", "upgrade()")
    again = run("create", events, "--schema", "-", "--partition-by", "id", input=b"{}")
    assert again.exit_code == 1
    assert phalanx.open(events).layout == "hive"
