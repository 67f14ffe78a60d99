"""INSERT, overwrites and DELETE by Spark SQL and DataFrames, against rows in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

import phalanx
from phalanx.errors import PhalanxError
from phalanx.spark import configure
from spark.conftest import MASTER
from spark.lakes import Lake, lake_at, rows_of
from tables import KEYED_SCHEMA, table_of

START = [(1, "a", 10), (2, "a", 20), (3, "b", 30), (4, None, 40)]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """A catalog without tables."""
    return lake_at(spark, str(tmp_path / "lake"))


def rows(*values: tuple[Any, ...]) -> pa.Table:
    """Build rows of the small table."""
    return table_of(KEYED_SCHEMA, values)


def small(lake: Lake, mode: str = "strong", evolved: bool = False) -> phalanx.Table:
    """A table with a few rows, of one spec or of two."""
    table = phalanx.create(
        f"{lake.root}/t", KEYED_SCHEMA, "bucket(2, id)" if evolved else "k", transaction=mode
    )
    if evolved:
        table.append(rows(*START[:2]))
        table.evolve("k")
        table.append(rows(*START[2:]))
    else:
        table.append(rows(*START))
    return table


# The rows that a statement replaces, and its new rows.
STATEMENTS: list[tuple[str, str, list[tuple[Any, ...]]]] = [
    ("INSERT INTO lake.t VALUES (9, 'c', 1)", "none", [(9, "c", 1)]),
    ("INSERT INTO lake.t (n, id) VALUES (1, 9)", "none", [(9, None, 1)]),
    ("INSERT INTO lake.t PARTITION (k='a') VALUES (9, 1)", "none", [(9, "a", 1)]),
    ("INSERT OVERWRITE lake.t VALUES (9, 'c', 1)", "all", [(9, "c", 1)]),
    ("INSERT OVERWRITE lake.t PARTITION (k='a') VALUES (9, 1)", "k = a", [(9, "a", 1)]),
    ("INSERT OVERWRITE lake.t PARTITION (k='a') SELECT 1, 2 WHERE false", "k = a", []),
    ("INSERT OVERWRITE lake.t PARTITION (k=NULL) VALUES (9, 1)", "k is null", [(9, None, 1)]),
    (
        "INSERT INTO lake.t REPLACE WHERE n >= 20 AND k IS NOT NULL VALUES (9, 'b', 99)",
        "n >= 20",
        [(9, "b", 99)],
    ),
    ("TRUNCATE TABLE lake.t", "all", []),
    ("DELETE FROM lake.t", "all", []),
    ("DELETE FROM lake.t WHERE k = 'a'", "k = a", []),
    ("DELETE FROM lake.t WHERE id = 3", "id = 3", []),
]
REPLACED = {
    "none": lambda row: False,
    "all": lambda row: True,
    "k = a": lambda row: row[1] == "a",
    "k is null": lambda row: row[1] is None,
    "n >= 20": lambda row: row[2] >= 20 and row[1] is not None,
    "id = 3": lambda row: row[0] == 3,
}


@pytest.mark.parametrize("evolved", [False, True], ids=["one spec", "two specs"])
def test_statements_replace_and_bring_what_they_say(lake: Lake, evolved: bool) -> None:
    table = small(lake, evolved=evolved)
    start = table.newest_snapshot
    assert start is not None
    for statement, replaced, brought in STATEMENTS:
        before = table.newest_snapshot
        lake.sql(statement)
        left = [row for row in START if not REPLACED[replaced](row)]
        assert rows_of(table) == sorted([*left, *brought], key=repr), statement
        # All of it is one snapshot.
        assert table.newest_snapshot == (before or 0) + 1, statement
        table.rollback(start)


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_dataframes_write_to_tables(lake: Lake, mode: str) -> None:
    table = small(lake, mode)
    frame = lake.spark.createDataFrame([(9, "a", 1)], "id bigint, k string, n int")
    name = f"{lake.name}.t"
    frame.writeTo(name).append()
    assert rows_of(table) == sorted([*START, (9, "a", 1)], key=repr)
    frame.writeTo(name).overwritePartitions()
    assert rows_of(table) == sorted([*START[2:], (9, "a", 1)], key=repr)
    frame.writeTo(name).overwrite(fn.expr("k IS NULL OR k = 'a'"))
    assert rows_of(table) == sorted([START[2], (9, "a", 1)], key=repr)
    frame.write.mode("append").insertInto(name)
    assert table.scan().count_rows() == 3
    frame.write.format("phalanx").mode("append").saveAsTable(name)
    assert table.scan().count_rows() == 4
    frame.writeTo(f"{lake.name}.new").partitionedBy(fn.partitioning.bucket(4, "id")).create()
    assert repr(lake.table("new")).endswith("by bucket(4, id)>")
    frame.limit(0).writeTo(f"{lake.name}.new").replace()
    assert rows_of(lake.table("new")) == []
    frame.writeTo(f"{lake.name}.new").tableProperty("transaction", "strong").createOrReplace()
    assert (lake.table("new").mode, rows_of(lake.table("new"))) == ("strong", [(9, "a", 1)])


def test_dynamic_overwrites_take_the_partitions_of_the_rows(lake: Lake) -> None:
    table = small(lake, evolved=True)
    lake.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        lake.sql("INSERT OVERWRITE lake.t VALUES (9, 'a', 1), (10, NULL, 2)")
        assert rows_of(table) == sorted([START[2], (9, "a", 1), (10, None, 2)], key=repr)
        lake.sql("INSERT OVERWRITE lake.t PARTITION (k) SELECT 11, 'b', 5")
        assert rows_of(table) == sorted([(11, "b", 5), (9, "a", 1), (10, None, 2)], key=repr)
    finally:
        lake.spark.conf.unset("spark.sql.sources.partitionOverwriteMode")


# ── how rows reach their partitions ──────────────────────────────────────────────────────────


def test_rows_are_brought_to_their_partitions_unless_told_not_to(lake: Lake) -> None:
    frame = lake.spark.range(0, 400, 1, 4).selectExpr("id", "string(id % 5) AS k", "int(id) AS n")
    for distribution, files in (("none", 4 * 10), ("hash", 10), ("auto", 10)):
        lake.sql(
            f"CREATE TABLE lake.{distribution} (id bigint, k string, n int) "
            "PARTITIONED BY (bucket(2, id), k)"
        )
        writer = frame.writeTo(f"{lake.name}.{distribution}")
        writer.option("distribution", distribution).append()
        table = lake.table(distribution)
        assert table.files().num_rows == files
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(400))
    lake.sql(
        "CREATE TABLE lake.t (ts timestamp, name string) PARTITIONED BY (months(ts), "
        "truncate(2, name))"
    )
    text = lake.sql("EXPLAIN INSERT INTO lake.t SELECT now(), string(id) FROM range(5)")[0][0]
    assert "REBALANCE_PARTITIONS_BY_COL" in text
    assert "Sort [applyfunctionexpression(CalendarPart[part=year" in text
    with pytest.raises(Exception, match="distribution='odd'"):
        frame.writeTo(f"{lake.name}.none").option("distribution", "odd").append()


# ── failures ─────────────────────────────────────────────────────────────────────────────────


def test_what_fails_leaves_nothing_and_what_is_tried_again_doubles_nothing(lake: Lake) -> None:
    table = small(lake)
    lake.check_refused(
        "INSERT OVERWRITE lake.t SELECT id, string(raise_error('boom')), 1 FROM range(3)", "boom"
    )
    lake.check_refused(
        "INSERT INTO lake.t REPLACE WHERE k = 'a' VALUES (1, 'b', 2)", "does not match|matches"
    )
    assert (rows_of(table), table.newest_snapshot) == (sorted(START, key=repr), 2)

    def flaky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise OSError("lost")

    frame = lake.spark.range(0, 20, 1, 2).selectExpr("id", "'x' AS k", "1 AS n")
    frame.mapInArrow(flaky, frame.schema).writeTo(f"{lake.name}.t").append()
    assert table.scan("k = 'x'").count_rows() == 20
    assert table.newest_snapshot == 3


# ── DELETE ───────────────────────────────────────────────────────────────────────────────────

WIDE = pa.schema(
    [
        ("id", pa.int64()),
        ("k", pa.string()),
        ("n", pa.int32()),
        ("f", pa.float64()),
        ("x", pa.decimal128(10, 2)),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("b", pa.bool_()),
        ("s", pa.struct([("y", pa.int32())])),
    ]
)
PREDICATES = [
    "true",
    "false",
    "k = 'a'",
    "k <> 'a'",
    "NOT (k = 'a')",
    "k <=> NULL",
    "NOT (k <=> 'a')",
    "k = NULL",
    "k IS NULL OR n > 5",
    "k IS NOT NULL AND NOT (n > 5 OR b)",
    "k IN ('a', 'b')",
    "k IN ('a', NULL)",
    "k NOT IN ('a', 'c')",
    "k NOT IN ('a', NULL)",
    "k LIKE 'a%'",
    "NOT k LIKE '%x'",
    "startswith(k, 'a_')",
    "contains(k, '_') OR k = ''",
    "k > 'a' AND k <= 'b'",
    "n BETWEEN 3 AND 6",
    "n > 2147483648",
    "n = 3.5",
    "n < 3.5",
    "f > 1.5",
    "f = double('NaN') OR f = 0.0",
    "f <> -0.0",
    "NOT f < double('Infinity')",
    "x >= 2.50",
    "x = 2.505",
    "d = '2024-02-29'",
    "d < date'2024-03-01' AND d IS NOT NULL",
    "year(d) = 2024",
    "ts >= '2024-02-29 19:00:00'",
    "ts IS NULL",
    "b",
    "NOT b",
    "b IS NULL AND n IS NULL",
    "s.y = 2",
    "s.y IS NULL",
    "id IN (1, 3, 5, 7, 11) AND (k = 'b' OR f IS NULL)",
    # Only Spark understands these: rows are deleted by their ids.
    "n + 1 = 2 OR upper(k) = 'B'",
    "k LIKE 'a_x' OR n = id",
    "hour(ts) = 3",
]


def wide_rows() -> pa.Table:
    """Rows with NULL in every column, and the numbers at the edges."""
    floats = [None, 0.0, -0.0, 1.5, 2.5, math.nan, math.inf, -math.inf, -2.0, 1.0, 7.0]
    made = []
    for i in range(22):
        day = date(2024, 2, 27 + i % 3) if i % 4 else None
        made.append(
            {
                "id": i,
                "k": ["a", "b", None, "a_x", "axx", ""][i % 6],
                "n": None if i % 7 == 0 else i % 9,
                "f": floats[i % len(floats)],
                "x": None if i % 5 == 0 else f"{i}.50",
                "d": day,
                "ts": None if i % 6 == 5 else datetime(2024, 2, 29, 23 * (i % 2), 59),
                "b": [True, False, None][i % 3],
                "s": None if i % 8 == 0 else {"y": None if i % 3 == 0 else i % 4},
            }
        )
    for row in made:
        row["x"] = None if row["x"] is None else Decimal(row["x"])
    return pa.Table.from_pylist(made, WIDE)


def test_deletes_take_the_rows_for_which_spark_says_true(lake: Lake) -> None:
    table = phalanx.create(f"{lake.root}/t", WIDE, "k", transaction="strong")
    data = wide_rows()
    table.append(data.slice(0, 8))
    table.evolve("bucket(3, id), year(d)")
    table.append(data.slice(8, 7))
    table.evolve("n, month(d)")
    table.append(data.slice(15))
    full = table.newest_snapshot
    assert full is not None
    frame = (
        lake.spark.table(f"{lake.name}.t").localCheckpoint()
        if MASTER != "connect"
        else (lake.spark.table(f"{lake.name}.t"))
    )
    judged = frame.select("id", *(fn.expr(f"coalesce({each}, false)") for each in PREDICATES))
    truths = {row[0]: row[1:] for row in judged.collect()}
    for place, predicate in enumerate(PREDICATES):
        lake.sql(f"DELETE FROM lake.t WHERE {predicate}")
        kept = sorted(table.scan().to_arrow()["id"].to_pylist())
        assert kept == [i for i, truth in sorted(truths.items()) if not truth[place]], predicate
        if table.newest_snapshot != full:
            table.rollback(full)
            full = table.newest_snapshot
            assert full is not None


def test_whole_partitions_are_deleted_without_reading_them(lake: Lake) -> None:
    table = small(lake)
    before = table.files().num_rows
    lake.sql("DELETE FROM lake.t WHERE k = 'a' OR k IS NULL")
    assert (before, table.files().num_rows) == (3, 1)
    assert table.files().column("deleted_rows").to_pylist() == [0]
    assert lake.sql("SHOW PARTITIONS lake.t") == [("k=b",)]


# ── elsewhere ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.executors
def test_statements_on_executors_and_by_connect(spark: SparkSession, tmp_path: Path) -> None:
    if MASTER == "python":
        builder = SparkSession.Builder().config("spark.phalanx.bridge", "false")
        with pytest.raises(PhalanxError, match="catalog 'lake' needs the Java classes"):
            configure(builder.config("spark.sql.catalog.lake", "phalanx.bridge.Catalog"))
        return
    lake = lake_at(spark, str(tmp_path))
    lake.sql(
        "CREATE TABLE lake.t PARTITIONED BY (bucket(2, id), k) "
        "TBLPROPERTIES (transaction='strong') AS "
        "SELECT id, string(id % 3) AS k, int(id) AS n FROM range(0, 60, 1, 4)"
    )
    lake.sql("INSERT OVERWRITE lake.t PARTITION (k='0') SELECT id, 1 FROM range(2)")
    lake.sql("DELETE FROM lake.t WHERE k = '1' AND n > 10 OR k = '2'")
    expected = [(0, "0", 1), (1, "0", 1), (1, "1", 1), (10, "1", 10), (4, "1", 4), (7, "1", 7)]
    assert rows_of(lake.table("t")) == sorted(expected, key=repr)
    assert sorted(lake.sql("SELECT * FROM lake.t"), key=repr) == sorted(expected, key=repr)
    assert lake.sql("SELECT count(*) FROM lake.t VERSION AS OF 1") == [(60,)]
    lake.sql("DELETE FROM lake.t WHERE upper(k) = '1' AND n + 1 = 5")
    expected.remove((4, "1", 4))
    assert rows_of(lake.table("t")) == sorted(expected, key=repr)
    lake.sql("DROP TABLE lake.t")
    assert list(tmp_path.iterdir()) == []
