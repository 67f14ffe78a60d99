"""Tables of the expression draft on Spark: pinned reads, and hashes for partitions and joins."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession

import phalanx
import phalanx.spark
from integration.expression_rows import leaf, on_a_branch, pin, pins, read_by_the_draft, read_pairs
from spark.test_writing import frame, save
from tables import SCHEMA, rows


def test_branches_and_tags_are_read_and_written(spark: SparkSession, uri: str) -> None:
    table = phalanx.create(uri, SCHEMA, ["k"], transaction="strong", layout="expressions")
    table.append(rows(("a", 1), ("b", 1)))
    leaf(table, "a").tags.create("release", leaf(table, "a").version)
    table.append(rows(("a", 2)))
    pin(table, "a", read_tag="release")
    pin(
        table, "b", read_branch="w", read_version=on_a_branch(leaf(table, "b"), "w", rows(("b", 7)))
    )
    expected = [("a", 1), ("b", 1), ("b", 7)]
    found = spark.read.format("phalanx").load(uri)
    assert sorted(map(tuple, found.collect())) == expected == read_pairs(table)
    assert [row.n for row in found.where("k = 'b' AND n > 1").collect()] == [7]
    save(frame(spark, ("a", 3), ("b", 8), ("new", 9), tasks=3), uri)
    expected = sorted([*expected, ("a", 3), ("b", 8), ("new", 9)])
    assert sorted(map(tuple, found.sparkSession.read.format("phalanx").load(uri).collect())) == (
        expected
    )
    assert read_pairs(table) == expected == read_by_the_draft(uri)
    assert [pins(table, key)[1:] for key in "ab"] == [(None, None), ("w", None)]


def test_hashes_place_rows_and_join_only_with_their_own(spark: SparkSession, uri: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.int32())])
    sides = {}
    for name, layout in (("left", "expressions"), ("right", "expressions"), ("new", "namespace")):
        table = phalanx.create(f"{uri}-{name}", schema, [phalanx.bucket("id", 4)], layout=layout)
        sides[name] = table
    data = spark.range(60).selectExpr("id % 40 AS id", "CAST(id AS int) AS x")
    phalanx.spark.write(data, sides["left"].uri, distribution="hash")
    sides["right"].append(sides["left"].scan("id < 20").to_arrow())
    sides["new"].append(sides["left"].scan("id < 20").to_arrow())
    direct = phalanx.create(f"{uri}-4", schema, [phalanx.bucket("id", 4)], layout="expressions")
    direct.append(sides["left"].scan().to_arrow())
    assert [each.key for each in direct.plan().partitions] == [
        each.key for each in sides["left"].plan().partitions
    ]
    # The same rows are in the same partitions, from every writer.
    for number in range(4):
        ids = [
            sorted(each.partition(id_bucket=number).to_table()["id"].to_pylist())
            for each in (direct, sides["left"])
        ]
        assert ids[0] == ids[1] != []
    assert phalanx.spark.plan_join(sides["left"], sides["right"], "id").compatible
    assert not phalanx.spark.plan_join(sides["left"], sides["new"], "id").compatible
    for other in ("right", "new"):
        found = phalanx.spark.join(spark, sides["left"], sides[other], "id", right_columns=["id"])
        assert found.count() == 80
