"""The commands that change rows: what they do, and what they say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import phalanx
from integration.shell import assert_fails, run, run_json
from tables import ids

TODAY = datetime.now(UTC).date()
SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("s", pa.string())])
ROWS = pa.table(
    [[TODAY, TODAY - timedelta(days=100), None], [1, 2, 3], ["a", "b", "c"]], schema=SCHEMA
)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    table = phalanx.create(tmp_path / "t", SCHEMA, ["day"], transaction="strong")
    table.append(ROWS)
    return table.uri


def test_update(uri: str) -> None:
    assert run("update", uri, "id < 3", "s=concat(s, '=')", "id = id + 10").stdout == (
        "Updated 2 rows.\n"
    )
    found = phalanx.open(uri).scan().to_arrow()
    assert sorted(found["s"].to_pylist()) == ["a=", "b=", "c"]
    assert run_json("update", uri, "id = 3", "day='2024-01-01'") == {"rows": 1}
    assert_fails(run("update", uri, "true", "id='x'"), 1, "Cannot set column 'id'")
    assert_fails(run("update", uri, "true", "id"), 2, "not KEY=VALUE")
    assert_fails(run("update", uri, "true", "id=1", "id=2"), 2, "set twice")


def test_delete(uri: str) -> None:
    assert run_json("delete", uri, "id = 1") == {"rows": 1}
    assert ids(uri) == [2, 3]


def test_merge(uri: str, tmp_path: Path) -> None:
    file = str(tmp_path / "rows.parquet")
    new = pa.table([[TODAY, TODAY], [1, 9], ["A", "I"]], schema=SCHEMA)
    pq.write_table(new, file)
    assert run("merge", uri, file, "--on", "id").stdout == (
        "Merged: 1 inserted, 1 updated, 0 deleted.\n"
    )
    gone = ("--when-matched", "delete", "--when-not-matched", "ignore")
    assert run_json("merge", uri, file, "--on", "id, day", *gone) == {
        "inserted": 0,
        "updated": 0,
        "deleted": 2,
    }
    assert ids(uri) == [2, 3]
    assert_fails(run("merge", uri, file, file, "--on", "id"), 1, "2 rows of the data have the key")
    assert_fails(run("merge", uri, file), 2, "--on")


def test_retain(uri: str) -> None:
    keep = "day >= now - 90 days"
    promised = run("retain", uri, keep, "--dry-run")
    assert promised.stdout.startswith("Would drop 1 of 3 partitions.\n")
    assert str(TODAY - timedelta(days=100)) in promised.stdout
    assert ids(uri) == [1, 2, 3]
    found = run_json("retain", uri, keep)
    assert [each["values"] for each in found["dropped"]] == [[str(TODAY - timedelta(days=100))]]
    assert ids(uri) == [1, 3]
    assert run("rollback", uri, "2").exit_code == 0
    assert ids(uri) == [1, 2, 3]
    assert_fails(run("retain", uri, "id > 2"), 1, "partitioned by day", "--rows")
    assert run_json("retain", uri, "id > 2", "--rows")["rows"] == 2
    assert_fails(run("retain", uri, "id > now"), 1, "expected a date or a timestamp")
