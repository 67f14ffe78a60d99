"""Statements WITH SCHEMA EVOLUTION, and tables that are made with their rows."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import phalanx
from phalanx.errors import NotPartitioned
from spark.lakes import Lake, lake_at


@pytest.fixture
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return lake_at(spark, str(tmp_path_factory.mktemp("lake")))


def test_new_columns_come_with_their_rows(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t TBLPROPERTIES (transaction='strong') AS SELECT 1 AS a, 2 AS b")
    # The table and its rows are one snapshot.
    snapshots = lake.table("t").snapshots()
    assert snapshots.select(["operation", "rows_added"]).to_pylist() == [
        {"operation": "create", "rows_added": 1}
    ]
    lake.sql(
        "MERGE WITH SCHEMA EVOLUTION INTO lake.t t USING (SELECT * FROM VALUES (1, 5, 'x'), "
        "(2, 6, 'y') AS v(a, b, c)) s ON t.a = s.a "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert sorted(lake.sql("SELECT * FROM lake.t")) == [(1, 5, "x"), (2, 6, "y")]
    # A wider number is taken as it is, a narrower one is cast.
    lake.sql(
        "INSERT WITH SCHEMA EVOLUTION INTO lake.t BY NAME "
        "SELECT 3000000000L AS a, 7S AS b, parse_json('[1]') AS v"
    )
    frame = lake.frame("SELECT a, b, c, to_json(v) AS v FROM lake.t")
    assert sorted(map(tuple, frame.collect()), key=str) == [
        *((1, 5, "x", None), (2, 6, "y", None)),
        (3000000000, 7, None, "[1]"),
    ]
    types = lake.frame("SELECT * FROM lake.t").schema.simpleString()
    assert types == "struct<a:bigint,b:int,c:string,v:variant>"


def test_what_cannot_evolve_is_refused_before_anything_is_written(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t (a int, s struct<x: int>)")
    for new in ("named_struct('x', 1, 'y', 2) AS s", "INTERVAL '1' YEAR AS i"):
        lake.check_refused(
            f"INSERT WITH SCHEMA EVOLUTION INTO lake.t BY NAME SELECT 1 AS a, {new}",
            "Automatic schema evolution failed.*Cannot (add|store) column",
        )
    assert lake.table("t").schema.names == ["a", "s"]
    assert lake.table("t").scan().count_rows() == 0


def test_a_save_that_fails_leaves_no_table(spark: SparkSession, uri: str) -> None:
    failing = spark.sql("SELECT id, CAST(raise_error('no rows') AS int) AS n FROM range(1)")
    writer = failing.write.format("phalanx").mode("append").option("partition_by", "id")
    with pytest.raises(Exception, match="no rows"):
        writer.save(uri)
    with pytest.raises(NotPartitioned):
        phalanx.open(uri)
    writer = spark.range(2).write.format("phalanx").mode("append").option("partition_by", "id")
    writer.option("transaction", "strong").save(uri)
    assert phalanx.open(uri).snapshots()["rows_added"].to_pylist() == [2]
