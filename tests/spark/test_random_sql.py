"""Random tables, specs, conditions and joins in SQL, compared with Spark over Parquet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import phalanx
from spark import sql_tables
from spark.sql_grammar import condition
from tables import SOAK

FIELDS = [
    *("country", "flag", "n", "price", "name", "d"),
    *("year(d)", "month(d)", "year(ts)", "year(local)", "day(local)"),
    *("bucket(4, id)", "bucket(2, id)", "bucket(3, country)", "bucket(2, price)", "bucket(2, ts)"),
    *("truncate(1, name)", "truncate(100, id)"),
]
KEYS = ["id", "country", "n", "price", "d", "ts", "local", "name"]
KINDS = ["JOIN", "LEFT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]
ROUNDS = 12 if SOAK else 3

SETTINGS = {
    # Joins go by partitions.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # Parquet's own filters find no NaN.
    "spark.sql.parquet.filterPushdown": "false",
}


def spec_of(chance: Random) -> str:
    return ", ".join(chance.sample(FIELDS, chance.choice([1, 1, 2])))


def write_table_and_parquet(spark: SparkSession, chance: Random, folder: Path, name: str) -> None:
    """Write a table of some of the rows, under one to three specs, and as Parquet."""
    rows = sql_tables.rows().slice(chance.randrange(500), 60)
    table = phalanx.create(
        folder / name,
        sql_tables.SCHEMA,
        spec_of(chance),
        transaction=chance.choice(["weak", "strong"]),
    )
    cuts = sorted(chance.randrange(60) for _ in range(chance.randrange(3)))
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, 60], strict=True)):
        if number:
            table.evolve(spec_of(chance))
        table.append(rows.slice(start, end - start))
    pq.write_table(rows, folder / f"{name}.parquet")
    # One task for all rows, or one for each fragment.
    reader = spark.read.format("phalanx").option("split_size", chance.choice(["1", "1g"]))
    reader.load(str(folder / name)).createOrReplaceTempView(f"t_{name}")
    spark.read.parquet(str(folder / f"{name}.parquet")).createOrReplaceTempView(f"p_{name}")


def aggregates_of(chance: Random) -> list[str]:
    """Aggregates of all rows that match, without another join: they need no shuffle."""
    shown = "count(*) AS c, sum(big % 1000) AS s, max(name) AS m, min(d) AS d"
    return [f"SELECT {shown} FROM {{}}_a AS f WHERE {condition(chance, 1)}" for _ in range(3)]


def queries_of(chance: Random) -> list[str]:
    filters = [f"SELECT id FROM {{}}_a AS f WHERE {condition(chance)}" for _ in range(5)]
    groups = [
        f"SELECT {key}, count(*) AS c, max(id) AS m FROM {{}}_a GROUP BY {key}"
        for key in chance.sample(KEYS, 2)
    ]
    joins = []
    for key in chance.sample(KEYS, 3):
        kind = chance.choice(KINDS)
        shown = "a.id" if kind.startswith(("LEFT SEMI", "LEFT ANTI")) else "a.id, b.id AS other"
        where = f"(SELECT * FROM {{}}_a AS f WHERE {condition(chance, 1)})"
        joins.append(f"SELECT {shown} FROM {where} a {kind} {{}}_b b ON a.{key} = b.{key}")
    return [*filters, *groups, *joins]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_they_agree(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    for name in "ab":
        write_table_and_parquet(spark, chance, tmp_path, name)
    before = {key: spark.conf.get(key) for key in SETTINGS}
    try:
        for key, value in SETTINGS.items():
            spark.conf.set(key, value)
        for queries in (queries_of(chance), aggregates_of(chance)):
            assert_agree(spark, queries)
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


def assert_agree(spark: SparkSession, queries: list[str]) -> None:
    """All queries, asked at once, have the same rows of Phalanx's tables and of parquet's."""
    found, expected = (
        spark.sql(
            " UNION ALL ".join(
                f"SELECT {number} AS q, to_json(struct(*)) AS row FROM "
                f"({query.replace('{}', view)})"
                for number, query in enumerate(queries)
            )
        ).collect()
        for view in "tp"
    )
    for number, query in enumerate(queries):
        rows, own = (
            Counter(row.row for row in each if row.q == number) for each in (found, expected)
        )
        assert rows == own, query
