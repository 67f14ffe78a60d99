"""A search of many queries on Spark finds what each query finds alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import phalanx
import phalanx.spark
from phalanx.errors import SchemaMismatch

SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("id", pa.int64()),
        ("body", pa.string()),
        ("v", pa.list_(pa.float32(), 4)),
    ]
)
WORDS = ["lance", "spear", "shield", "march", "hold"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> phalanx.Table:
    """Two specs, ties, and vectors that are NULL."""
    random = np.random.default_rng(7)
    made = phalanx.create(
        str(tmp_path_factory.mktemp("search") / "table"), SCHEMA, "tenant", transaction="strong"
    )
    for start, tenants in ((0, "abc"), (90, "cd")):
        vectors = random.integers(-2, 3, (90, 4)).astype(float).tolist()
        made.append(
            pa.table(
                {
                    "tenant": [tenants[n % len(tenants)] for n in range(90)],
                    "id": range(start, start + 90),
                    "body": [" ".join(random.choice(WORDS, 4)) for _ in range(90)],
                    "v": [None if n % 11 == 0 else v for n, v in enumerate(vectors)],
                },
                schema=SCHEMA,
            )
        )
        made.evolve("tenant, bucket(2, id)")
    return made


def search_each(table: phalanx.Table, queries: list[Any], column: str, **how: Any) -> list[Any]:
    found = []
    for number, query in enumerate(queries):
        if query is not None:
            rows = table.search(column, query, 4, columns=["id"], **how).to_pylist()
            found += [(number, rank, each["id"]) for rank, each in enumerate(rows, 1)]
    return found


@pytest.mark.executors
def test_every_query_finds_what_it_finds_alone(spark: SparkSession, table: phalanx.Table) -> None:
    vectors = [[0.0, 1.0, 0.0, 0.0], None, [1.0, 1.0, -1.0, 2.0], [9.0, 9.0, 9.0, 9.0]]
    frame = spark.createDataFrame(
        [(n, v) for n, v in enumerate(vectors)], "number int, query array<double>"
    )
    how: dict[str, Any] = {"metric": "l2", "where": "id > 10"}
    rows = phalanx.spark.search(spark, table.uri, frame, "v", 4, columns=["id"], **how)
    assert rows.columns == ["number", "query", "rank", "id", "tenant", "_distance"]
    found = sorted((row["number"], row["rank"], row["id"]) for row in rows.collect())
    assert found == search_each(table, vectors, "v", **how)


def test_words_are_weighed_by_all_partitions(spark: SparkSession, table: phalanx.Table) -> None:
    texts = ["spear shield", "lances", "nothing"]
    frame = spark.createDataFrame([(n, t) for n, t in enumerate(texts)], "number int, words string")
    rows = phalanx.spark.search(
        spark, table, frame, "body", 4, query_column="words", columns=["id"]
    )
    found = sorted((row["number"], row["rank"], row["id"]) for row in rows.collect())
    assert found == search_each(table, texts, "body")


def test_what_cannot_be_asked_is_reported_at_once(
    spark: SparkSession, table: phalanx.Table
) -> None:
    frame = spark.createDataFrame([(1, "a", "b")], "id long, x string, y string")
    with pytest.raises(SchemaMismatch, match="Cannot choose the query column among id, x, y"):
        phalanx.spark.search(spark, table, frame, "body", 4)
    with pytest.raises(SchemaMismatch, match="both the queries and the result have a column 'id'"):
        phalanx.spark.search(spark, table, frame, "body", 4, query_column="x")
    with pytest.raises(SchemaMismatch, match="from column 'z'"):
        phalanx.spark.search(spark, table, frame, "body", 4, query_column="z")


def test_indexes_are_built_by_executors(spark: SparkSession, table: phalanx.Table) -> None:
    done = table.create_index("v", "IVF_FLAT", min_rows=20, num_partitions=2, spark=spark)
    assert done.partitions >= 3
    assert len(done.snapshots) == 1
    (index,) = table.partition(tenant="a").describe_indices()
    assert (index.name, index.num_rows_indexed) == ("v_idx", 30)
