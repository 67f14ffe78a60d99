"""`multi_bucket` over one column, which the Java classes do not compute."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import phalanx
from spark.lakes import lake_at, rows_of


@pytest.mark.parametrize(
    ("column", "key"), [("id", "{}"), ("ts", "timestamp_seconds(86400 * 31 * {})")]
)
def test_statements_on_tables_by_one_column(
    spark: SparkSession, tmp_path: Path, column: str, key: str
) -> None:
    lake = lake_at(spark, str(tmp_path))
    lake.sql("CREATE TABLE lake.t (id bigint, ts timestamp, n bigint)")
    lake.table("t").evolve([phalanx.multi_bucket([column], 8)])
    rows = "SELECT id, timestamp_seconds(86400 * 31 * id) AS ts, id AS n FROM range({}, {})"
    lake.sql(f"INSERT INTO lake.t {rows.format(0, 40)}")
    assert lake.table("t").scan().count_rows() == 40
    lake.sql(
        f"MERGE INTO lake.t AS t USING ({rows.format(20, 50)}) AS s ON t.{column} = s.{column} "
        "WHEN MATCHED THEN UPDATE SET n = s.n + 100 WHEN NOT MATCHED THEN INSERT *"
    )
    found = {(row[0], row[2]) for row in rows_of(lake.table("t"))}
    assert found == {(id, id + 100 if 20 <= id < 40 else id) for id in range(50)}
    assert lake.table("t").scan().count_rows() == 50
    [(count,)] = lake.sql(
        f"SELECT count(*) FROM lake.t AS a JOIN lake.t AS b ON a.{column} = b.{column}"
    )
    assert count == 50
    lake.sql(f"DELETE FROM lake.t WHERE {column} = {key.format(7)}")
    assert {row[0] for row in rows_of(lake.table("t"))} == set(range(50)) - {7}
