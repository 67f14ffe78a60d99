"""Joins by tasks give the rows of Spark's own join; compatible partitions are never shuffled."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import phalanx
import phalanx.spark
from phalanx.errors import SchemaMismatch
from phalanx.planning.joins.kinds import JOIN_HOWS
from spark.joins import assert_same, physical_plan, together

LEFT = pa.schema(
    [
        ("a", pa.int32()),
        ("id", pa.int32()),
        ("x", pa.float64()),
        ("seen", pa.timestamp("us", "UTC")),
    ]
)
RIGHT = pa.schema([("b", pa.list_(pa.float32(), 2)), ("id", pa.int64()), ("x", pa.float32())])
# Half of all rows have one key.
FLOATS = [0.0, -0.0, math.nan, 1.5, None]


def draw_keys(seed: int, rows: int) -> dict[str, list[Any]]:
    """Keys with NULL, NaN, two zeros, and many of one kind."""
    random = np.random.default_rng(seed)
    ids = [7 if random.random() < 0.5 else int(random.integers(0, 12)) for _ in range(rows)]
    return {
        "id": [None if random.random() < 0.1 else number for number in ids],
        "x": [FLOATS[place] for place in random.integers(0, len(FLOATS), rows)],
    }


def left_rows(seed: int) -> pa.Table:
    values = draw_keys(seed, 40)
    moments = pa.array(range(40)).cast(pa.timestamp("s", "UTC")).cast(LEFT.field("seen").type)
    return pa.table([list(range(40)), values["id"], values["x"], moments], schema=LEFT)


def right_rows(seed: int) -> pa.Table:
    values = draw_keys(seed, 30)
    vectors = [None if n % 5 == 0 else [n, n] for n in range(30)]
    return pa.table([vectors, values["id"], values["x"]], schema=RIGHT)


def check(
    spark: SparkSession,
    left: Any,
    right: Any,
    on: Any,
    shuffled: bool,
    hows: Sequence[str] = JOIN_HOWS,
) -> None:
    """Check that every kind of join equals Spark's own one, column by column and row by row."""
    mine, theirs = (
        spark.createDataFrame(spark.read.format("phalanx").load(each.uri).toArrow())
        for each in (left, right)
    )
    found, expected = {}, {}
    for how in hows:
        # A full join runs in many tasks, and its groups are split.
        size = 1000 if how == "full" else None
        found[how] = phalanx.spark.join(spark, left, right.uri, on, how, task_bytes=size)
        expected[how] = mine.join(theirs, on, how)
    assert ("Exchange" in physical_plan(together(found))) == shuffled
    assert_same(found, expected)


def test_tables_that_fit_are_joined_without_a_shuffle(spark: SparkSession, tmp_path: Path) -> None:
    left = phalanx.create(tmp_path / "left", LEFT, [phalanx.bucket("id", 8)])
    left.append(left_rows(1))
    left.evolve([phalanx.bucket("id", 4)])
    left.append(left_rows(2))
    right = phalanx.create(tmp_path / "right", RIGHT, [phalanx.bucket("id", 2)])
    right.append(right_rows(3))
    right.append(right_rows(4))
    check(spark, left, right, ["id", "x"], shuffled=False)


def test_a_query_of_a_join_reads_the_columns_that_it_needs(
    spark: SparkSession, tmp_path: Path
) -> None:
    left = phalanx.create(tmp_path / "left", LEFT, [phalanx.bucket("id", 8)])
    left.append(left_rows(1))
    right = phalanx.create(tmp_path / "right", RIGHT, [phalanx.bucket("id", 2)])
    right.append(right_rows(3))
    mine, theirs = (
        spark.createDataFrame(spark.read.format("phalanx").load(each.uri).toArrow())
        for each in (left, right)
    )
    for how in JOIN_HOWS:
        found = phalanx.spark.join(spark, left, right, ["id", "x"], how)
        expected = mine.join(theirs, ["id", "x"], how)
        assert found.count() == expected.count(), how
        for column in ("id", found.columns[-1]):
            # By their texts: no NaN equals another.
            rows, wanted = (
                Counter(map(repr, each.select(column).collect())) for each in (found, expected)
            )
            assert rows == wanted, (how, column)


@pytest.mark.parametrize(
    "hows",
    [pytest.param(JOIN_HOWS[:1], marks=pytest.mark.executors), JOIN_HOWS[1:]],
    ids=["inner", "others"],
)
def test_only_versions_that_do_not_fit_are_shuffled(
    spark: SparkSession, tmp_path: Path, hows: Sequence[str]
) -> None:
    left = phalanx.create(tmp_path / "left", LEFT.remove(2), [phalanx.bucket("id", 4)])
    left.append(left_rows(5).drop_columns("x"))
    left.evolve([phalanx.truncate("id", 5)])
    left.append(left_rows(6).drop_columns("x"))
    right = phalanx.create(tmp_path / "right", RIGHT, [phalanx.bucket("id", 2)])
    right.append(right_rows(7))
    right.evolve(["id"])
    right.append(right_rows(8))
    check(spark, left, right, "id", shuffled=True, hows=hows)


def test_pairs_of_columns_predicates_and_refusals(spark: SparkSession, tmp_path: Path) -> None:
    left = phalanx.create(tmp_path / "left", LEFT, [phalanx.bucket("id", 4)])
    left.append(left_rows(9))
    right = phalanx.create(
        tmp_path / "right", pa.schema([("key", pa.int64()), ("a", pa.int32())]), ["key"]
    )
    right.append(pa.table([[1, 7, None], [10, 70, 0]], schema=right.schema))
    with pytest.raises(SchemaMismatch, match="Both tables have a column 'a'"):
        phalanx.spark.join(spark, left, right, [("id", "key")])
    found = phalanx.spark.join(
        spark, left, right, [("id", "key")], left_columns=["id"], left_where="a < 20 AND id = 7"
    )
    assert found.columns == ["id", "key", "a"]
    expected = left.scan("a < 20 AND id = 7").count_rows()
    assert {tuple(row) for row in found.collect()} == {(7, 7, 70)}
    # An ordinary DataFrame.
    assert found.groupBy("key").count().collect()[0]["count"] == expected
    nobody = phalanx.spark.join(
        spark, left, right, [("id", "key")], left_columns=["x"], left_where="false"
    )
    assert nobody.collect() == []
