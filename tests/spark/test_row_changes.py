"""UPDATE, MERGE and DELETE of single rows by Spark SQL, compared with queries."""

from __future__ import annotations

import re
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import phalanx
from spark.conftest import MASTER
from spark.lakes import Lake, lake_at, rows_of
from spark.row_statements import ALL, Delete, Merge, Update
from tables import table_of

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("n", pa.int32()), ("d", pa.date32())])
TYPES = "id bigint, k string, n int, d date"
Row = tuple[Any, ...]


def row(number: int) -> Row:
    day = None if number % 5 == 4 else date(2024, 1 + number % 3, 1 + number % 28)
    return number, ("a", "b", None, "c")[number % 4], None if number % 7 == 0 else number, day


OLD = [row(number) for number in range(24)]
# Existing keys, missing keys, and NULL.
SOURCE = [(3, "a", 33, None), (4, "moved", 44, date(2024, 1, 1)), (14, None, None, None)]
SOURCE += [(90, "a", 1, date(2023, 5, 5)), (91, None, None, None), (None, "b", 7, None)]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """A catalog without tables, and the rows in views."""
    made = lake_at(spark, str(tmp_path / "lake"))
    spark.createDataFrame(SOURCE, TYPES).createOrReplaceTempView("s")
    spark.createDataFrame(OLD, TYPES).createOrReplaceTempView("old")
    return made


def rows(values: list[Row]) -> pa.Table:
    return table_of(SCHEMA, values)


def create_evolved(lake: Lake, mode: str = "strong") -> phalanx.Table:
    """The rows under three specs."""
    table = phalanx.create(f"{lake.root}/t", SCHEMA, "k", transaction=mode)
    table.append(rows(OLD[:8]))
    table.evolve("bucket(3, id), year(d)")
    table.append(rows(OLD[8:16]))
    table.evolve("k, month(d)")
    table.append(rows(OLD[16:]))
    return table


def query_with_duckdb(change: Update | Delete | Merge) -> list[Row]:
    """Return the rows after a change. DuckDB judges Spark's statements, and takes no time."""
    text = change.query()
    for spark, duck in (
        ("LEFT ANTI JOIN", "ANTI JOIN"),
        ("<=>", "IS NOT DISTINCT FROM"),
        ("date_add(d, 400)", "(d + 400)"),
    ):
        text = text.replace(spark, duck)
    with duckdb.connect() as connection:
        connection.register("old", rows(OLD))
        connection.register("s", rows(SOURCE))
        return connection.execute(text).fetchall()


UPDATES: list[Update | Delete] = [
    Update({"n": "n + 1"}),
    Update({"n": "NULL"}, "k = 'a'"),
    Update({"n": "0"}, "k <> 'a'"),
    Update({"k": "'moved'", "n": "-n"}, "n % 3 = 1 OR d IS NULL"),
    Update({"k": "NULL", "d": "date_add(d, 400)"}, "id BETWEEN 5 AND 19"),
    Update({"k": "concat(k, k)"}, "upper(k) = 'B'"),
    Update({"id": "id + 100"}, "id IN (SELECT id FROM s)"),
    Update({"n": "5"}, "k NOT IN (SELECT k FROM s WHERE k IS NOT NULL) AND n > 3"),
    Update({"n": "6"}, "EXISTS (SELECT 1 FROM s WHERE s.k = t.k AND s.n < t.n)"),
    Update({"n": "7"}, "id = (SELECT max(id) FROM old) OR n IN (SELECT n FROM s)"),
    Update({"n": "8"}, "k = NULL"),
    Delete("n + 1 = 5 OR k LIKE 'a_%'"),
    Delete("id IN (SELECT id FROM s)"),
    Delete("k NOT IN (SELECT k FROM s)"),
    Delete("NOT EXISTS (SELECT 1 FROM s WHERE s.k = t.k)"),
]
MERGES = [
    Merge("t.id = s.id", [("true", ALL)], [("true", ALL)]),
    Merge("t.id = s.id AND t.k <=> s.k", [("true", ALL)], [("true", ALL)]),
    Merge("t.id = s.id AND t.k = 'c'", [("true", {"n": "s.n"})]),
    Merge("t.id = s.id", [("s.n > 40", None), ("s.n < 40", {"n": "t.n + s.n", "k": "'u'"})]),
    Merge("t.id = s.id", [("true", None)], [("s.n IS NULL", {"id": "s.id", "k": "'new'"})]),
    Merge("t.id = s.id", not_matched=[("s.id > 90", ALL), ("s.k = 'b'", {"n": "s.n"})]),
    Merge("t.id = s.id", by_source=[("t.n > 15", None), ("t.k = 'a'", {"d": "NULL", "n": "1"})]),
    Merge(
        "t.id = s.id",
        [("t.k IS NULL", None), ("true", {"k": "s.k"})],
        [("s.k IS NULL", {"id": "-1"}), ("true", ALL)],
        [("t.id % 2 = 0", {"n": "t.n * 2"}), ("t.n IS NULL", None)],
    ),
    Merge("false", [], [("true", ALL)]),
    Merge("t.id = s.id", [("true", {"n": "-1"})], source="(SELECT id FROM old WHERE k = 'a')"),
]


@pytest.mark.parametrize("mode", ["strong", "weak"])
def test_rows_are_as_the_same_query_has_them(lake: Lake, mode: str) -> None:
    """Each statement gives DuckDB's rows under any spec, as one snapshot in strong mode."""
    table = create_evolved(lake, "strong")
    statements = [*UPDATES, *MERGES] if mode == "strong" else [UPDATES[3], MERGES[0], MERGES[7]]
    expected = [query_with_duckdb(each) for each in statements]
    start = table.newest_snapshot
    assert start is not None
    for place, each in enumerate(statements):
        if mode == "weak":
            table.set_mode("weak")
        before = table.newest_snapshot
        lake.sql(each.statement("lake.t"))
        assert rows_of(table) == sorted(expected[place], key=repr), each
        if mode == "strong":
            changed = sorted(OLD, key=repr) != rows_of(table)
            assert table.newest_snapshot == (before or 0) + changed, each
            table.rollback(start)
        else:
            table.set_mode("strong")
            table.overwrite(rows(OLD))


def partitions_read(lake: Lake, statement: str) -> int:
    """Return how many partitions of the table a statement has read."""
    execution = lake.frame(statement)._jdf.queryExecution()
    plan = execution.commandExecuted().commandPhysicalPlan().toString()
    (found,) = set(re.findall(r"phalanx: ([\d,]+) of [\d,]+ partitions", plan))
    return int(found)


# Of eight countries with four buckets each; the source has one id of each of two countries.
READ = [
    ("UPDATE lake.t SET n = 1 WHERE k = '3' AND id = 11 AND n + 1 > 0", 1),
    ("UPDATE lake.t SET n = 1 WHERE k IN (SELECT k FROM keys)", 8),
    ("UPDATE lake.t AS t SET n = 1 WHERE EXISTS (SELECT 1 FROM keys s WHERE t.id = s.id)", 16),
    ("DELETE FROM lake.t WHERE k = '5' AND n * 2 > 1000", 4),
    # Two countries and two buckets: Spark passes the keys of each column separately.
    ("MERGE INTO lake.t AS t USING keys s ON t.k = s.k AND t.id = s.id {upsert}", 4),
    ("MERGE INTO lake.t AS t USING keys s ON t.id = s.id {upsert}", 16),
    ("MERGE INTO lake.t AS t USING keys s ON t.id = s.id AND t.k = '1' {upsert}", 2),
    (
        "MERGE INTO lake.t AS t USING keys s ON t.id = s.id "
        "WHEN NOT MATCHED BY SOURCE AND t.n > 1000 THEN DELETE",
        32,
    ),
]
UPSERT = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"


def test_only_partitions_that_can_have_the_rows_are_read(lake: Lake) -> None:
    table = phalanx.create(f"{lake.root}/t", SCHEMA, "k, bucket(4, id)", transaction="strong")
    data = [(i, str(i % 8), i, None) for i in range(256)]
    table.append(rows(data))
    assert table.partitions().num_rows == 32
    lake.spark.createDataFrame([data[9], data[10]], TYPES).createOrReplaceTempView("keys")
    for statement, read in READ:
        assert partitions_read(lake, statement.format(upsert=UPSERT)) == read, statement


def test_untouched_files_stay_and_other_rows_are_not_written_again(lake: Lake) -> None:
    table = phalanx.create(f"{lake.root}/t", SCHEMA, "k", transaction="strong")
    table.append(rows(OLD))
    before = {each["location"]: each["paths"] for each in table.files().to_pylist()}
    lake.sql("UPDATE lake.t SET n = n + 1 WHERE id = 17 AND k = 'b'")
    after: dict[str, list[list[str]]] = {}
    for each in table.files().to_pylist():
        after.setdefault(each["location"], []).append(each["paths"])
    (changed,) = (place for place, files in after.items() if files != [before[place]])
    assert before[changed] in after[changed]
    assert table.files()["rows"].to_pylist().count(1) == 1


def test_what_is_refused_says_so_and_changes_nothing(lake: Lake) -> None:
    table = create_evolved(lake)
    twice = "(SELECT * FROM s UNION ALL SELECT * FROM s)"
    lake.check_refused(
        f"MERGE INTO lake.t AS t USING {twice} AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *",
        "MERGE_CARDINALITY_VIOLATION",
    )
    lake.check_refused("UPDATE lake.t SET n = raise_error('boom') WHERE id = 3", "boom")
    assert rows_of(table) == sorted(OLD, key=repr)
    phalanx.create(f"{lake.root}/h", SCHEMA, ["k"], layout="hive").append(rows(OLD))
    lake.check_refused("UPDATE lake.h SET n = 1", "does not support UPDATE")


def test_a_change_between_reading_and_commit_is_a_conflict(lake: Lake) -> None:
    """The function of the statement itself changes the row: all of it fails, or none."""
    table = create_evolved(lake)
    uri = table.uri

    def meddling(n: int) -> int:
        other = phalanx.open(uri)
        if other.scan("n = -5").count_rows() == 0:
            other.update("id = 17", {"n": "-5"})
        return n

    lake.spark.udf.register("meddling", meddling, "int")
    lake.check_refused(
        "UPDATE lake.t SET n = meddling(n) WHERE id IN (16, 17, 18)", "Cannot commit to"
    )
    assert [each for each in rows_of(table) if each[0] in (16, 17, 18)] == [
        OLD[16],
        (17, "b", -5, OLD[17][3]),
        OLD[18],
    ]


@pytest.mark.executors
def test_changes_on_executors_and_by_connect(spark: SparkSession, tmp_path: Path) -> None:
    if MASTER == "python":
        return
    lake = lake_at(spark, str(tmp_path))
    lake.sql(
        "CREATE TABLE lake.t PARTITIONED BY (k) TBLPROPERTIES (transaction='strong') AS "
        "SELECT id, string(id % 3) AS k, int(id) AS n FROM range(0, 60, 1, 4)"
    )
    lake.sql("UPDATE lake.t SET n = -n, k = '9' WHERE id % 10 = 1")
    lake.sql(
        "MERGE INTO lake.t AS t USING (SELECT id, 'new' AS k, 0 AS n FROM range(55, 65, 1, 3)) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    lake.sql("DELETE FROM lake.t WHERE id IN (SELECT id + 1 FROM range(10))")
    expected = [
        (i, "9", -i) if i % 10 == 1 else (i, str(i % 3), i) for i in [0, *range(11, 55)]
    ] + [(i, "new", 0) for i in range(55, 65)]
    table = lake.table("t")
    assert rows_of(table) == sorted(expected, key=repr)
    # Created, updated, merged, deleted: each is a snapshot, reported row by row.
    newest = table.newest_snapshot
    assert newest is not None
    told = table.changes(newest - 3, newest).to_arrow()
    counts = Counter(zip(told["_snapshot"].to_pylist(), told["_change"].to_pylist(), strict=True))
    assert counts == {
        (newest - 2, "update_before"): 6,
        (newest - 2, "update_after"): 6,
        (newest - 1, "update_before"): 5,
        (newest - 1, "update_after"): 5,
        (newest - 1, "insert"): 5,
        (newest, "delete"): 10,
    }
    images = {
        (row["_snapshot"], row["_update"], row["_change"]): row["id"] for row in told.to_pylist()
    }
    for (snapshot, update, change), number in images.items():
        if change == "update_before":
            assert images[snapshot, update, "update_after"] == number
