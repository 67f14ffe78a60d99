"""Texts with a collation: equal texts are found, grouped, joined and changed together."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import phalanx
import phalanx.spark
from phalanx.errors import SchemaMismatch
from spark.lakes import Lake, lake_at


@pytest.fixture
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return lake_at(spark, str(tmp_path_factory.mktemp("lake")))


def test_what_is_equal_by_a_collation_is_equal_in_every_statement(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.t (k int, s string COLLATE UTF8_LCASE) TBLPROPERTIES "
        "(transaction='strong')"
    )
    # Python code may have partitioned the table by the column.
    lake.table("t").evolve("s")
    lake.sql("INSERT INTO lake.t VALUES (1, 'abc'), (2, 'ABC'), (3, 'Abd'), (4, NULL)")
    assert lake.table("t").partitions().num_rows == 4

    def keys(where: str) -> list[int]:
        return sorted(k for (k,) in lake.sql(f"SELECT k FROM lake.t WHERE {where}"))

    assert keys("s = 'aBC'") == [1, 2]
    assert keys("s IN ('ABC', 'x')") == [1, 2]
    assert keys("s > 'ABC'") == [3]
    assert keys("s LIKE 'AB%' OR startswith(s, 'AB')") == [1, 2, 3]
    assert keys("substring(s, 1, 2) = 'ab' AND NOT (s <=> 'ABD')") == [1, 2]
    assert keys("s IS NULL") == [4]
    groups = "SELECT count(*) FROM lake.t GROUP BY s ORDER BY 1"
    assert lake.sql(groups) == [(1,), (1,), (2,)]
    assert lake.sql("SELECT max(lower(s)), count(DISTINCT s), count(s) FROM lake.t") == [
        ("abd", 2, 3)
    ]
    joined = "SELECT count(*) FROM lake.t a JOIN lake.t b ON a.s = b.s"
    assert lake.sql(joined) == [(5,)]
    lake.sql(
        "MERGE INTO lake.t t USING (SELECT 'ABD' COLLATE UTF8_LCASE AS s) q ON t.s = q.s "
        "WHEN MATCHED THEN UPDATE SET k = 30 WHEN NOT MATCHED THEN INSERT (k, s) VALUES (0, q.s)"
    )
    lake.sql("DELETE FROM lake.t WHERE s = 'ABC'")
    assert sorted(lake.sql("SELECT k, s FROM lake.t")) == [(4, None), (30, "Abd")]


def test_rows_are_not_matched_by_a_collated_key_in_python(lake: Lake, spark: SparkSession) -> None:
    note = {"phalanx:spark_type": "string collate UTF8_LCASE"}
    schema = pa.schema([pa.field("s", pa.string(), metadata=note), pa.field("n", pa.int32())])
    uri = f"{lake.root}/keys"
    phalanx.create(uri, schema, [], transaction="strong")
    rows = spark.sql("SELECT 'x' COLLATE UTF8_LCASE AS s, 1 AS n")
    with pytest.raises(SchemaMismatch, match="Cannot match rows by 's', which is string collate"):
        phalanx.spark.merge(spark, rows, uri, on="s")
    with pytest.raises(SchemaMismatch, match="Cannot match rows by 's', which is string collate"):
        phalanx.spark.join(spark, uri, uri, "s", left_columns=["s", "n"], right_columns=["s"])
