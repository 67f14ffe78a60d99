"""Iceberg's connector for Spark: the same jobs, in the newest Spark that it supports.

`bench.spark` runs it with Python of a separate environment, which has that version of Spark. Prints
the seconds of each job as JSON, in the connector and in Parquet of the same Spark.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def main(source: str, folder: str, jar: str) -> None:
    builder = SparkSession.builder.master("local[*]").appName("peers")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "6g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.jars": jar,
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": f"{folder}/iceberg",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        # Without these it shuffles both sides of every join.
        "spark.sql.sources.v2.bucketing.enabled": "true",
        "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
        "spark.sql.iceberg.planning.preserve-data-grouping": "true",
        "spark.sql.requireAllClusterKeysForCoPartition": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.read.parquet(source)
    parquet = f"{folder}/peers-parquet"
    spark.sql("CREATE NAMESPACE ice.bench")

    def write_iceberg() -> None:
        spark.sql("DROP TABLE IF EXISTS ice.bench.rows PURGE")
        rows.writeTo("ice.bench.rows").partitionedBy(f.col("tenant")).create()

    def write_parquet() -> None:
        rows.write.mode("overwrite").partitionBy("tenant").parquet(parquet)

    loads: dict[str, Callable[[], DataFrame]] = {
        "Iceberg": lambda: spark.table("ice.bench.rows"),
        "its Spark's parquet": lambda: spark.read.parquet(parquet),
    }
    writes = {"Iceberg": write_iceberg, "its Spark's parquet": write_parquet}
    jobs: dict[str, tuple[Mapping[str, Callable[[], None]], int]] = {
        "write": (writes, 3),
        "read": ({name: partial(_aggregate, load) for name, load in loads.items()}, 3),
        "query": (
            {name: partial(_aggregate, load, "tenant = 42") for name, load in loads.items()},
            10,
        ),
    }
    times = {
        job: {name: _best(action, runs) for name, action in actions.items()}
        for job, (actions, runs) in jobs.items()
    }
    times["one column"] = {
        name: _best(partial(_one_column, load), 5) for name, load in loads.items()
    }
    times["join"] = _measure_join(spark, folder)
    print(json.dumps(times))
    spark.stop()


def _aggregate(load: Callable[[], DataFrame], where: str = "true") -> None:
    aggregate(load().where(where)).collect()


def _one_column(load: Callable[[], DataFrame]) -> None:
    load().select("amount").write.format("noop").mode("overwrite").save()


def _measure_join(spark: SparkSession, folder: str) -> dict[str, float]:
    """The join of two tables of 20 buckets by `id`, and of the same rows in parquet files."""
    for name in ("orders", "payments"):
        rows = spark.read.parquet(f"{folder}/{name}.parquet")
        rows.writeTo(f"ice.bench.{name}").partitionedBy(f.bucket(20, "id")).create()
        rows.createOrReplaceTempView(name)

    def run(prefix: str) -> None:
        found = spark.sql(
            f"SELECT amount, paid, method FROM {prefix}orders o JOIN {prefix}payments p "
            "ON o.id = p.id"
        )
        found.agg(f.sum("amount"), f.sum("paid"), f.count("method")).collect()

    return {
        "Iceberg": _best(partial(run, "ice.bench."), 4),
        "its Spark's parquet": _best(partial(run, ""), 4),
    }


def aggregate(rows: DataFrame) -> DataFrame:
    """An aggregate of each of the six columns."""
    return rows.agg(
        f.sum("id"),
        f.sum("tenant"),
        f.avg("amount"),
        f.max("quantity"),
        f.max("product"),
        f.min("at"),
    )


def _best(action: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main(*sys.argv[1:])
