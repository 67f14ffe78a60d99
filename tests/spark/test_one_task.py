"""Queries of few rows: one task reads all of them, and nothing is shuffled."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import phalanx
from spark.conftest import MASTER
from spark.joins import physical_plan

TOGETHER = [
    "SELECT sum(n) s, max(name) m FROM {t}",
    "SELECT sum(n) s FROM {t} WHERE tenant = 2",
    "SELECT avg(n) a, count(*) c FROM {t} WHERE tenant = 2 AND n > 10",
    "SELECT count(*) c FROM {t} WHERE n > 1000",
    "SELECT n, sum(n) OVER (ORDER BY n, name ROWS UNBOUNDED PRECEDING) s FROM {t} WHERE tenant = 1",
    "SELECT sum(n) s FROM (SELECT n FROM {t} WHERE tenant = 1 LIMIT 1000)",
    "SELECT sum(n) s FROM {t} WHERE tenant = (SELECT max(tenant) FROM {t} WHERE n < 50)",
    "SELECT sum(n) s, count(*) c FROM {t} WHERE tenant = (SELECT max(n) FROM {t})",
]
APART = [
    "SELECT sum(n) s FROM {t} WHERE tenant = 77",
    "SELECT name, sum(n) s FROM {t} WHERE tenant = 2 GROUP BY name",
    "SELECT count(DISTINCT name) c FROM {t} WHERE tenant = 2",
    "SELECT sum(n) s FROM (SELECT n FROM {t} WHERE tenant = 1 UNION ALL SELECT n FROM {t})",
    "SELECT sum(a.n) s FROM {t} a JOIN {t} b ON a.n = b.n WHERE a.tenant = 1 AND b.tenant = 1",
    "SELECT sum(n) s FROM {t} WHERE n IN (SELECT n FROM {t} WHERE tenant = 3)",
    "SELECT n FROM {t} WHERE tenant = 3 ORDER BY n DESC",
]


@pytest.fixture(scope="module")
def views(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same rows as `few`, one task; as `many`, one for each leaf; and as `rows` of Spark's."""
    place = str(tmp_path_factory.mktemp("one_task") / "table")
    rows = pa.table(
        {
            "tenant": pa.array([n % 5 for n in range(100)], pa.int32()),
            "n": pa.array(range(100), pa.int64()),
            "name": [f"name {n % 7}" for n in range(100)],
        }
    )
    phalanx.create(place, rows.schema, "tenant").append(rows)
    spark.read.format("phalanx").load(place).createOrReplaceTempView("few")
    many = spark.read.format("phalanx").option("split_size", "1").load(place)
    many.createOrReplaceTempView("many")
    spark.createDataFrame(rows.to_pandas()).createOrReplaceTempView("rows")


@pytest.mark.parametrize("query", [*TOGETHER, *APART])
def test_rows_of_one_task_are_brought_together_by_nothing(
    spark: SparkSession, views: None, query: str
) -> None:
    found, apart, expected = (
        spark.sql(query.format(t=view)).collect() for view in ("few", "many", "rows")
    )
    assert Counter(found) == Counter(apart) == Counter(expected)
    plan = physical_plan(spark.sql(query.format(t="few")))
    assert ("Exchange" in plan) == (query in APART), plan


def test_rows_of_several_tasks_are(spark: SparkSession, views: None) -> None:
    assert "Exchange SinglePartition" in physical_plan(spark.sql("SELECT sum(n) FROM many"))
    assert "Exchange" not in physical_plan(spark.sql("SELECT sum(n) FROM many WHERE tenant = 2"))


@pytest.mark.executors
@pytest.mark.bare
def test_aggregates_of_a_cached_frame_and_of_unions(spark: SparkSession, uri: str) -> None:
    rows = pa.table({"k": [1, 1, 2], "n": [1, 2, 4]})
    phalanx.create(uri, rows.schema, "k").append(rows)
    frame = spark.read.format("phalanx").load(uri)
    kept = frame.where("k = 1").cache()
    try:
        assert kept.groupBy().sum("n").collect()[0][0] == 3
        both = kept.union(frame)
        assert both.groupBy().sum("n").collect()[0][0] == 10
        assert both.join(frame.withColumnRenamed("n", "m"), "k").count() == 9
        if MASTER != "python":
            assert "Exchange" not in physical_plan(frame.where("k = 1").groupBy().sum("n"))
    finally:
        kept.unpersist()
