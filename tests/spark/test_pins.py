"""Pinned tables of other writers in Spark SQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from foreign_namespaces import read_by_the_format
from integration.test_pins import PINS, build, read_rows
from spark.lakes import lake_at

WAYS = ("version", "branch", "tag")


@pytest.mark.parametrize("name", WAYS)
def test_statements_honour_them(spark: SparkSession, tmp_path: Path, name: str) -> None:
    pins, wanted = PINS[name]
    table = build(tmp_path / "ns", pins)
    lake = lake_at(spark, str(tmp_path))
    of_a = "SELECT n FROM lake.ns WHERE k = 'a' ORDER BY n"
    assert lake.sql(of_a) == [(n,) for n in wanted]
    assert lake.sql("SELECT count(*), max(n) FROM lake.ns") == [(len(wanted) + 1, max(wanted))]
    by_path = spark.read.format("phalanx").load(table.uri)
    assert by_path.count() == len(wanted) + 1
    for statement in (
        "INSERT INTO lake.ns VALUES ('a', 100)",
        "INSERT OVERWRITE lake.ns VALUES ('a', 100)",
        "DELETE FROM lake.ns WHERE n = 1",
        "UPDATE lake.ns SET n = 100 WHERE k = 'a'",
        "MERGE INTO lake.ns AS t USING (SELECT 'a' AS k, 1 AS n) AS s ON t.n = s.n "
        "WHEN MATCHED THEN DELETE",
    ):
        lake.check_refused(statement, r"pins the version.*set_mode\('strong'")
    assert read_rows(table) == read_by_the_format(table.uri)
    # Strong mode takes over what is read.
    lake.sql("ALTER TABLE lake.ns SET TBLPROPERTIES (transaction = 'strong')")
    assert lake.sql(of_a) == [(n,) for n in wanted]
    lake.sql("INSERT INTO lake.ns VALUES ('a', 100)")
    lake.sql("UPDATE lake.ns SET n = 50 WHERE n = 1 AND k = 'a'")
    changed = sorted([*(50 if n == 1 else n for n in wanted), 100])
    assert lake.sql(of_a) == [(n,) for n in changed]
    assert read_rows(table) == read_by_the_format(table.uri)
