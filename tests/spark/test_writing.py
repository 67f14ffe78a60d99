"""Writes by Spark: modes, options and creation, in weak and in strong mode."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import phalanx
from tables import SCHEMA, both_modes, contents, rows

Row = tuple[str | None, int]


def frame(spark: SparkSession, *pairs: Row, tasks: int = 2) -> DataFrame:
    return spark.createDataFrame(list(pairs), "k string, n bigint").repartition(tasks)


def save(data: DataFrame, uri: str, mode: str = "append", **options: Any) -> None:
    data.write.format("phalanx").mode(mode).options(**options).save(uri)


def read_rows(uri: str) -> Counter[Row]:
    return contents(phalanx.open(uri))


def create_table(uri: str, mode: str) -> phalanx.Table:
    table = phalanx.create(uri, SCHEMA, ["k"], transaction=mode)
    table.append(rows(("a", 1), ("b", 2)))
    return table


@pytest.mark.parametrize(
    "mode", ["weak", pytest.param("strong", marks=[pytest.mark.executors, pytest.mark.bare])]
)
def test_append_and_overwrite(spark: SparkSession, uri: str, mode: str) -> None:
    table = create_table(uri, mode)
    save(frame(spark, ("a", 3), ("c", 4), (None, 5), ("c", 6), tasks=4), uri)
    assert read_rows(uri) == Counter([("a", 1), ("b", 2), ("a", 3), ("c", 4), (None, 5), ("c", 6)])
    if mode == "strong":
        assert table.snapshots()["operation"].to_pylist() == ["create", "append", "append"]
        assert table.snapshots()["rows_added"].to_pylist() == [0, 2, 4]
    save(frame(spark, ("b", 7)), uri, "overwrite")
    assert read_rows(uri) == Counter([("b", 7)])
    save(frame(spark).where("false"), uri)
    assert read_rows(uri) == Counter([("b", 7)])
    save(frame(spark).where("false"), uri, "overwrite")
    assert read_rows(uri) == Counter()


@both_modes
def test_overwrite_of_some_rows(spark: SparkSession, uri: str, mode: str) -> None:
    table = create_table(uri, mode)
    table.append(rows(("a", 10), ("b", 20)))
    save(frame(spark, ("a", 11), ("d", 12)), uri, "overwrite", replace_where="n >= 10")
    assert read_rows(uri) == Counter([("a", 1), ("b", 2), ("a", 11), ("d", 12)])
    # Rows of older specs too.
    table.evolve([phalanx.bucket("n", 2), "k"])
    save(frame(spark, ("a", 5), ("a", 11)), uri)
    save(frame(spark, ("a", 11), ("e", 3)), uri, "overwrite", partition_overwrite="dynamic")
    same = {n for n in (1, 5, 11) if _bucket(n) == _bucket(11)}
    kept = [("a", 1), ("b", 2), ("d", 12), ("a", 11), ("a", 5), ("a", 11)]
    expected = [(k, n) for k, n in kept if not (k == "a" and n in same)]
    assert read_rows(uri) == Counter([*expected, ("a", 11), ("e", 3)])


def _bucket(n: int) -> int:
    from phalanx.model.murmur3 import murmur3

    return int(abs(murmur3(pa.array([n], pa.int64()))[0].as_py()) % 2)


@both_modes
def test_a_missing_table_is_created_as_asked(spark: SparkSession, uri: str, mode: str) -> None:
    data = spark.sql(
        "SELECT id, CAST('2024-06-01' AS TIMESTAMP) AS ts, IF(id % 2 = 0, 'DE', NULL) AS country "
        "FROM range(100)"
    )
    by = "year(ts), bucket(16, id), country"
    save(data, uri, partition_by=by, transaction=mode)
    table = phalanx.open(uri)
    assert (table.mode, table.scan().count_rows()) == (mode, 100)
    assert table.spec == phalanx.create(f"{uri}2", table.schema, by).spec
    # The same options again append to it; test_errors.py refuses others.
    save(data.limit(1), uri, partition_by=by, transaction=mode)
    assert table.scan().count_rows() == 101
    single = f"{uri}3"
    save(data, single, partition_by="")
    assert phalanx.open(single).partitions().num_rows == 1
    save(data, single, if_exists="ignore")
    assert phalanx.open(single).scan().count_rows() == 100


def test_a_marker_is_written_once(spark: SparkSession, uri: str) -> None:
    create_table(uri, "strong")
    data = frame(spark, *(("a", n) for n in range(3, 300)), ("new", 0))
    for _ in range(2):
        save(data, uri, marker="monday")
    assert read_rows(uri).total() == 2 + 298
    save(frame(spark, ("a", 3)), uri, "overwrite", marker="tuesday")
    save(frame(spark, ("a", 4)), uri, "overwrite", marker="tuesday")
    assert read_rows(uri) == Counter([("a", 3)])


def test_columns_by_name_and_types_that_fit(spark: SparkSession, uri: str) -> None:
    schema = pa.schema(
        [("k", pa.large_string()), ("n", pa.int16()), ("v", pa.list_(pa.float32(), 2))]
    )
    table = phalanx.create(uri, schema, ["k"])
    data = spark.sql("SELECT array(1.5D, 0.1D) AS v, 7 AS n, 'a' AS k")
    save(data, uri)
    [row] = table.scan().to_arrow().to_pylist()
    assert (row["k"], row["n"], row["v"][0]) == ("a", 7, 1.5)
    with pytest.raises(Exception, match=r"Column 'n' is int16.*70000") as error:
        save(data.selectExpr("v", "70000 AS n", "k"), uri)
    assert "SchemaMismatch" in str(error.value)
    assert table.scan().count_rows() == 1


def test_what_spark_reads_it_can_overwrite(spark: SparkSession, uri: str) -> None:
    """A read of the same table in the same write sees the earlier rows."""
    create_table(uri, "strong")
    old = spark.read.format("phalanx").load(uri)
    save(old.selectExpr("k", "n * 10 AS n"), uri, "overwrite")
    assert read_rows(uri) == Counter([("a", 10), ("b", 20)])


@both_modes
def test_a_table_recreated_at_the_same_path(spark: SparkSession, uri: str, mode: str) -> None:
    """The processes that Spark keeps remember tables."""
    create_table(uri, mode)
    save(frame(spark, ("a", 3)), uri)
    shutil.rmtree(uri)
    phalanx.create(uri, pa.schema([("n", pa.int64()), ("z", pa.string())]), ["n"], transaction=mode)
    save(spark.sql("SELECT 'x' AS z, 1L AS n"), uri)
    read = spark.read.format("phalanx").load(uri)
    assert read.collect() == [(1, "x")]


def test_many_rows_in_many_tasks(spark: SparkSession, uri: str) -> None:
    data = spark.range(0, 200_000, 1, 5).selectExpr("CAST(id % 7 AS STRING) AS k", "id AS n")
    save(data, uri, partition_by="k", transaction="strong")
    table = phalanx.open(uri)
    assert table.snapshots()["rows_added"].to_pylist() == [200_000]
    found = spark.read.format("phalanx").load(uri)
    assert found.selectExpr(
        "count(*)", "sum(n)", "count(DISTINCT n)", "count(DISTINCT k)"
    ).collect() == [(200_000, sum(range(200_000)), 200_000, 7)]
