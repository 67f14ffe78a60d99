"""Plain SQL in Spark, over tables of Phalanx and over Spark's own parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.measure import Measured, cost, time_alternately
from bench.spark_peers import aggregate


def measure_queries(spark: SparkSession, places: Mapping[str, str]) -> Iterator[Measured]:
    """Queries of the same rows, in a hundred partitions by `tenant`."""
    for name, place in places.items():
        spark.read.format(name).load(place).createOrReplaceTempView(name)

    def one_column(name: str) -> None:
        spark.sql(f"SELECT amount FROM {name}").write.format("noop").mode("overwrite").save()

    def one_partition(name: str) -> None:
        aggregate(spark.sql(f"SELECT * FROM {name} WHERE tenant = 42")).collect()

    for what, action, runs, most in (
        ("SQL: one column of all rows", one_column, 5, 1.3),
        ("SQL: six aggregates of one partition of 100", one_partition, 20, 1.0),
    ):
        times = time_alternately({name: partial(action, name) for name in places}, runs)
        yield cost(what, times["phalanx"], "Spark's parquet", times["parquet"], most)


def measure_join(
    spark: SparkSession, ours: Mapping[str, str], theirs: Mapping[str, str], rows: int
) -> Iterator[Measured]:
    """The join of two tables by `id`, in which both are partitioned, and of parquet files."""
    for form, places in (("phalanx", ours), ("parquet", theirs)):
        for name, place in places.items():
            spark.read.format(form).load(place).createOrReplaceTempView(f"{form}_{name}")

    def run(form: str, hint: str) -> None:
        found: DataFrame = spark.sql(
            f"SELECT {hint} amount, paid, method FROM {form}_orders o JOIN {form}_payments p "
            "ON o.id = p.id"
        )
        found.agg(f.sum("amount"), f.sum("paid"), f.count("method")).collect()

    hashed = "/*+ SHUFFLE_HASH(p) */"
    times = time_alternately(
        {
            "ours": partial(run, "phalanx", ""),
            "hashed": partial(run, "phalanx", hashed),
            "theirs": partial(run, "parquet", ""),
        },
        4,
    )
    name = "Spark's shuffle join from parquet"
    what = f"SQL: join of two tables of {rows:,} rows"
    yield cost(what, times["ours"], name, times["theirs"], 0.8)
    yield cost(f"{what}, with a hash hint", times["hashed"], name, times["theirs"], 0.6)
