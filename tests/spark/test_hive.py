"""Spark on a table in the Hive-style layout."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import phalanx
import phalanx.spark

SCHEMA = pa.schema([("day", pa.date32()), ("k", pa.string()), ("n", pa.int64())])
ROWS = [(date(2025, 1, 1), "a/b", 1), (date(2025, 1, 1), None, 2), (None, "c", 3)]


@pytest.fixture
def table(uri: str) -> phalanx.Table:
    made = phalanx.create(uri, SCHEMA, "day, k, bucket(2, n)", layout="hive")
    made.append(
        pa.Table.from_pylist([dict(zip(SCHEMA.names, r, strict=True)) for r in ROWS], SCHEMA)
    )
    return made


@pytest.mark.executors
def test_reads_and_writes(spark: SparkSession, table: phalanx.Table) -> None:
    loaded = spark.read.format("phalanx").load(table.uri)
    assert loaded.columns == ["day", "k", "n"]
    assert sorted(map(tuple, loaded.collect()), key=lambda row: row[2]) == ROWS
    some = spark.read.format("phalanx").option("where", "day = '2025-01-01'").load(table.uri)
    assert [row.n for row in some.select("n").orderBy("n").collect()] == [1, 2]
    new = spark.createDataFrame(
        [(date(2025, 1, 1), "a/b", 4), (date(2026, 1, 1), "new", 5), (date(2026, 1, 1), "new", 6)],
        "day date, k string, n bigint",
    )
    gathered = {"distribution": "hash", "partition_by": "day, k, bucket(2, n)"}
    save = new.repartition(3).write.format("phalanx").mode("append").options(**gathered).save
    save(table.uri)
    assert sorted(table.scan(None, ["n"]).to_arrow()["n"].to_pylist()) == [1, 2, 3, 4, 5, 6]
    assert table.scan("k = 'new'").count_rows() == 2
    replaced = spark.createDataFrame([(date(2026, 1, 1), "new", 7)], new.schema)
    replaced.write.format("phalanx").mode("overwrite").option("replace_where", "k = 'new'").save(
        table.uri
    )
    assert sorted(table.scan(None, ["n"]).to_arrow()["n"].to_pylist()) == [1, 2, 3, 4, 7]


def test_joins_by_groups_are_refused(table: phalanx.Table) -> None:
    with pytest.raises(phalanx.PhalanxError, match="hive layout"):
        phalanx.spark.plan_join(table, table, "n")
