"""Joins and groups in plain SQL: Spark's own, without a shuffle where partitions fit together."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from datetime import date
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import phalanx
from conformance.test_hashes import CASES, array_of, type_of
from phalanx.errors import SchemaMismatch
from phalanx.model.specs.spec import PartitionField
from phalanx.model.transforms.buckets import Bucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.spark.pushdown.partitioning import MAX_REPORTED_PARTITIONS, is_computable_in_java
from phalanx.spark.runtime.types import arrow_schema, cast_for_spark, spark_schema
from spark.conftest import LOCAL, MASTER
from spark.joins import physical_plan

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("d", pa.date32()), ("n", pa.int32())])
SPECS = {
    "b16": "bucket(16, id)",
    "b8": "bucket(8, id)",
    "b12": "bucket(12, id)",
    "k": "k",
    "k2": "k",
    "y": "year(d)",
    "ym": "year(d), month(d)",
    "ymd": "year(d), month(d), day(d)",
    "ykm": "year(d), k, month(d)",
    "md": "month(d), day(d)",
    "kb": "k, bucket(8, id)",
}


def some_rows(chance: Random, count: int, low: int = 0) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": None if number % 17 == 3 else low + chance.randrange(60),
                "k": chance.choice(["a", "b", "c", None] if low else ["b", "c", "d", ""]),
                "d": None
                if number % 19 == 2
                else date(2022 + chance.randrange(3), 1 + 5 * chance.randrange(3), 3),
                "n": number,
            }
            for number in range(count)
        ],
        SCHEMA,
    )


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of the same form, two files in each leaf, and the same as Parquet in `p_…`."""
    folder = tmp_path_factory.mktemp("joined")
    chance = Random(3)
    for place, (name, spec) in enumerate(SPECS.items()):
        table = phalanx.create(folder / name, SCHEMA, spec)
        parts = [some_rows(chance, 40, 10 * (place % 2)) for _ in range(2)]
        for part in parts:
            table.append(part)
        register(spark, folder, name, pa.concat_tables(parts))
    evolved = phalanx.create(folder / "evolved", SCHEMA, "k")
    parts = [some_rows(chance, 30), some_rows(chance, 30, 10)]
    evolved.append(parts[0])
    evolved.evolve("year(d), k")
    evolved.append(parts[1])
    register(spark, folder, "evolved", pa.concat_tables(parts))
    other = phalanx.create(folder / "other", SCHEMA, "bucket(8, id)")
    other.append(parts[0])
    other.evolve("k")
    other.append(parts[1])
    register(spark, folder, "other", pa.concat_tables(parts))
    return folder


def register(spark: SparkSession, folder: Path, name: str, rows: pa.Table) -> None:
    spark.read.format("phalanx").load(str(folder / name)).createOrReplaceTempView(name)
    pq.write_table(rows, folder / f"{name}.parquet")
    spark.read.parquet(str(folder / f"{name}.parquet")).createOrReplaceTempView(f"p_{name}")


@pytest.fixture(autouse=True)
def without_broadcasts(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")


@pytest.fixture(autouse=True, scope="module")
def with_broadcasts_afterwards(spark: SparkSession):  # type: ignore[no-untyped-def]
    before = spark.conf.get("spark.sql.autoBroadcastJoinThreshold")
    yield
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", before)


WITHOUT_EXCHANGE = [
    "SELECT a.n, b.n AS m FROM b16 a JOIN b16 b ON a.id = b.id",
    "SELECT a.n, b.n AS m FROM b16 a JOIN b8 b ON a.id = b.id",
    "SELECT a.n, b.n AS m FROM b8 a LEFT JOIN b12 b ON a.id = b.id",
    "SELECT a.n, b.n AS m FROM b16 a FULL JOIN b8 b ON a.id = b.id AND a.k = b.k",
    "SELECT a.n, b.n AS m FROM k a JOIN k2 b ON a.k = b.k AND a.id = b.id",
    "SELECT a.n, b.n AS m FROM k a FULL JOIN k2 b ON a.k = b.k AND a.id = b.id",
    "SELECT a.n FROM k a LEFT ANTI JOIN k2 b ON a.k = b.k",
    "SELECT a.n, b.n AS m FROM y a JOIN y b ON a.d = b.d AND a.id = b.id",
    "SELECT a.n, b.n AS m FROM y a JOIN ym b ON a.d = b.d AND a.id = b.id",
    "SELECT a.n, b.n AS m FROM ymd a FULL JOIN ym b ON a.d = b.d",
    "SELECT a.n, b.n AS m FROM ym a FULL JOIN ym b ON a.d = b.d AND a.id = b.id",
    "SELECT a.n, b.n AS m FROM ymd a LEFT JOIN y b ON a.d = b.d",
    "SELECT a.n, b.n AS m FROM ykm a LEFT JOIN ym b ON a.d = b.d",
    "SELECT a.n, b.n AS m FROM md a JOIN md b ON a.d = b.d",
    "SELECT d, sum(n) AS s FROM ymd GROUP BY d",
    "SELECT a.n, b.n AS m FROM kb a JOIN b8 b ON a.id = b.id",
    "SELECT a.n, b.n AS m FROM k a JOIN k2 b ON a.k = b.k AND a.k IN ('a', 'b')",
    "SELECT a.n, b.n AS m FROM evolved a JOIN k b ON a.k = b.k AND a.id = b.id",
    "SELECT k, sum(n) AS s FROM k GROUP BY k",
    "SELECT k, id, count(*) AS s FROM kb GROUP BY k, id",
    "SELECT k, sum(n) AS s FROM evolved GROUP BY k",
    "SELECT DISTINCT id FROM b16",
    "SELECT d, sum(n) AS s FROM y GROUP BY d",
    "SELECT a.k, sum(b.n) AS s FROM k a JOIN k2 b ON a.k = b.k GROUP BY a.k",
    "SELECT a.n, row_number() OVER (PARTITION BY k ORDER BY n) AS r FROM k2 a",
]
WITH_EXCHANGE = [
    "SELECT a.n, b.n AS m FROM other a JOIN b8 b ON a.id = b.id",
    "SELECT a.n, b.n AS m FROM k a JOIN k2 b ON a.id = b.id",
    "SELECT n, count(*) AS s FROM k GROUP BY n",
    # One side alone is shuffled, by the year and month of the other.
    "SELECT a.n, b.n AS m FROM md a JOIN ym b ON a.d = b.d AND a.id = b.id",
]


@pytest.mark.parametrize("queries", [WITHOUT_EXCHANGE, WITH_EXCHANGE])
def test_compatible_partitions_need_no_exchange(
    spark: SparkSession, tables: Path, queries: list[str]
) -> None:
    for query in queries:
        plan = physical_plan(spark.sql(query))
        assert ("Exchange" in plan) == (queries is WITH_EXCHANGE), f"{query}\n{plan}"
    marked = [
        " UNION ALL ".join(
            f"SELECT {number} AS q, to_json(struct(*)) AS row FROM ({form(query)})"
            for number, query in enumerate(queries)
        )
        for form in (str, of_parquet)
    ]
    found, expected = (Counter(map(tuple, spark.sql(each).collect())) for each in marked)
    assert found == expected


def of_parquet(query: str) -> str:
    return re.sub(r"\b(FROM|JOIN) (\w+)", r"\1 p_\2", query)


@pytest.mark.executors
def test_buckets_join_without_exchange_wherever_they_are(spark: SparkSession, uri: str) -> None:
    rows = some_rows(Random(1), 60)
    frames = []
    for place, spec in enumerate(("bucket(4, id)", "bucket(2, id)")):
        phalanx.create(f"{uri}{place}", SCHEMA, spec).append(rows)
        frames.append(spark.read.format("phalanx").load(f"{uri}{place}"))
    joined = frames[0].join(frames[1].withColumnRenamed("n", "m"), "id").select("n", "m")
    expected = [
        (one["n"], other["n"])
        for one in rows.to_pylist()
        for other in rows.to_pylist()
        if one["id"] is not None and one["id"] == other["id"]
    ]
    assert sorted(map(tuple, joined.collect())) == sorted(expected)
    if MASTER != "python":
        assert "Exchange" not in physical_plan(joined)


def test_one_side_is_shuffled_to_the_partitions_of_the_other(
    spark: SparkSession, tables: Path
) -> None:
    """The classes in Java compute the buckets of the other side: each row must find its peers."""
    for name, column in (("b16", "id"), ("k", "k"), ("ym", "d")):
        query = f"SELECT a.n, b.n AS m FROM {name} a JOIN p_{name} b ON a.{column} = b.{column}"
        frame = spark.sql(query)
        plan = physical_plan(frame)
        assert plan.count("Exchange") <= 1, plan
        expected = spark.sql(query.replace(f"FROM {name}", f"FROM p_{name}"))
        assert Counter(map(tuple, frame.collect())) == Counter(map(tuple, expected.collect()))


def test_small_leaves_share_a_task_where_keys_are_of_no_use(
    spark: SparkSession, tables: Path
) -> None:
    if MASTER != LOCAL:
        return
    assert spark.sql("SELECT id, n FROM b16").rdd.getNumPartitions() == 1
    assert spark.sql("SELECT id, sum(n) FROM b16 GROUP BY id").rdd.getNumPartitions() == 16


def test_above_some_thousand_partitions_leaves_are_packed_and_nothing_is_reported(
    spark: SparkSession, uri: str
) -> None:
    if MASTER != LOCAL:
        return
    numbers = list(range(MAX_REPORTED_PARTITIONS + 1))
    rows = pa.table({"k": pa.array(numbers, pa.int32()), "n": numbers})
    phalanx.create(uri, rows.schema, "k", transaction="strong").append(rows)
    whole = spark.read.format("phalanx").load(uri)
    grouped = whole.groupBy("k").sum("n")
    assert "Exchange" in physical_plan(grouped)
    assert sorted(map(tuple, grouped.collect())) == [(number, number) for number in numbers]
    assert whole.select("n").rdd.getNumPartitions() < 50
    # One fewer is within the limit.
    fewer = whole.where(f"k < {MAX_REPORTED_PARTITIONS}").groupBy("k").sum("n")
    assert "Exchange" not in physical_plan(fewer)


# ── the functions in Java ────────────────────────────────────────────────────────────────────


def test_java_and_python_compute_the_same_partitions(spark: SparkSession, tmp_path: Path) -> None:
    if MASTER == "python":
        return
    spark.conf.set("spark.sql.catalog.phalanx_functions", "phalanx.bridge.Functions")
    cases, columns = [], []
    for case in CASES["cases"]:
        if is_hashed_in_java(case["type"]):
            array = array_of(case["type"], case["value"])
            # Spark cannot hold all moments, nor all decimals.
            with contextlib.suppress(pa.ArrowInvalid, SchemaMismatch):
                columns.append(cast_for_spark(array, pa.field("c", spark_type(array.type))))
                cases.append(case)
    assert len(cases) > 20
    most = 2**31 - 1
    found = evaluate(spark, tmp_path / "hashed", columns, f"bucket({most}, {{}})")
    hashes = [None if case["hash"] is None else abs(case["hash"]) % most for case in cases]
    assert dict(enumerate(found)) == dict(enumerate(hashes))


def test_java_and_python_take_the_same_calendar_parts(spark: SparkSession, tmp_path: Path) -> None:
    if MASTER == "python":
        return
    spark.conf.set("spark.sql.catalog.phalanx_functions", "phalanx.bridge.Functions")
    chance = Random(5)
    days = [chance.randrange(-700_000, 2_900_000) for _ in range(20)]
    moments = [chance.randrange(-(10**17), 2 * 10**17) for _ in range(20)]
    for part in DATE_CHAIN:
        columns = [pa.array([moment]).cast(kind) for moment in moments for kind in TIMESTAMPS]
        if part.name != "hour":
            columns += [pa.array([day], pa.int32()).cast(pa.date32()) for day in days]
        found = evaluate(spark, tmp_path / part.name, columns, f"{part.name}({{}})")
        assert found == [part.apply(column)[0].as_py() for column in columns]


def test_java_and_python_take_the_same_chains(spark: SparkSession, tmp_path: Path) -> None:
    """A chain has the parts as its digits, also before the first year."""
    if MASTER == "python":
        return
    spark.conf.set("spark.sql.catalog.phalanx_functions", "phalanx.bridge.Functions")
    moments = [0, -1, 10**17, -(10**17), 1_766_275_199_999_999, -62_135_596_800_000_001, None]
    for end in (2, 3, 4):
        chain = DATE_CHAIN[:end]
        columns = [
            pa.array([moment], pa.int64()).cast(kind) for moment in moments for kind in TIMESTAMPS
        ]
        if end < 4:
            days = [0, -1, 20_000, -719_529, None]
            columns += [pa.array([day], pa.int32()).cast(pa.date32()) for day in days]
        name = "_".join(part.name for part in chain)
        expected = []
        for column in columns:
            values = [part.apply(column)[0].as_py() for part in chain]
            number = 0
            for value in values:
                number = None if value is None else number * 100 + value
            expected.append(number)
        assert evaluate(spark, tmp_path / name, columns, f"{name}({{}})") == expected


TIMESTAMPS = (pa.timestamp("us"), pa.timestamp("us", "UTC"))


def is_hashed_in_java(kind: str) -> bool:
    data_type = type_of(kind)
    field = PartitionField("b", (0,), Bucket(4), pa.int32())
    return is_computable_in_java(field, pa.field("c", data_type))


def spark_type(kind: pa.DataType) -> pa.DataType:
    return arrow_schema(spark_schema(pa.schema([("c", kind)]))).field("c").type


def evaluate(spark: SparkSession, path: Path, columns: list[pa.Array], call: str) -> list[object]:
    """A function of the classes in Java of each column's only value."""
    names = [f"c{number}" for number in range(len(columns))]
    pq.write_table(pa.table(columns, names=names), path)
    calls = [f"phalanx_functions.{call.format(name)} AS {name}" for name in names]
    [row] = spark.read.parquet(str(path)).selectExpr(*calls).collect()
    return list(row)
