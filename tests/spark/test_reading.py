"""Reads by Spark: the rows are right, only the planned leaves are read, and nothing leaks."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

import phalanx
from integration.conftest import s3  # noqa: F401
from integration.stores import Store
from phalanx.planning.splits import (
    FILE_OPEN_COST_BYTES,
    MAX_TASK_BYTES,
    MIN_TASK_BYTES,
    choose_task_bytes,
)
from phalanx.table.read.scan_tasks import ScanTask, plan_tasks

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("text", pa.string())])


def rows(*pairs: tuple[str | None, int], width: int = 1) -> pa.Table:
    return pa.table(
        [[k for k, _ in pairs], [n for _, n in pairs], [f"{n}" * width for _, n in pairs]],
        schema=SCHEMA,
    )


def load(spark: SparkSession, uri: str, **options: Any) -> DataFrame:
    return spark.read.format("phalanx").options(**options).load(uri)


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row.n for row in frame.select("n").collect())


# ── tasks, without Spark ─────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> phalanx.Table:
    """One large leaf of eight fragments, and twenty small ones of one each."""
    table = phalanx.create(tmp_path_factory.mktemp("uneven") / "table", SCHEMA, ["k"])
    for part in range(8):
        # Letters that do not compress.
        letters = [make_text(part * 500 + n) for n in range(500)]
        table.append(pa.table([["large"] * 500, range(500), letters], schema=SCHEMA))
    table.append(rows(*((f"small{n:02}", n) for n in range(20))))
    return table


def make_text(number: int) -> str:
    return hashlib.shake_256(str(number).encode()).hexdigest(500)


def read_by(tasks: list[ScanTask]) -> list[list[dict[str, Any]]]:
    return [[row for batch in task.batches() for row in batch.to_pylist()] for task in tasks]


def test_large_leaves_are_cut_and_small_ones_packed(uneven: phalanx.Table) -> None:
    sizes = {
        (row["location"], row["fragment_id"]): row["bytes"] for row in uneven.files().to_pylist()
    }
    large = max(sizes.values())
    most = 2 * (large + FILE_OPEN_COST_BYTES)
    tasks = plan_tasks(uneven.scan(), most)
    read = [
        [(scan.location.uri, number) for scan in task.scans for number in scan.fragments or ()]
        for task in tasks
    ]
    assert sorted(piece for task in read for piece in task) == sorted(sizes), "each once"
    weights = [sum(sizes[piece] + FILE_OPEN_COST_BYTES for piece in task) for task in read]
    assert max(weights) <= most
    # A task is as full as it can be: the next piece would have been too much.
    for task, (following, *_) in itertools.pairwise(read):
        weight = sum(sizes[piece] + FILE_OPEN_COST_BYTES for piece in task)
        assert weight + sizes[following] + FILE_OPEN_COST_BYTES > most
    of_large = [task for task in read if sizes[task[0]] > large // 2]
    assert len(of_large) == 4, "eight large fragments, two to a task"
    assert len(tasks) < len(sizes) / 2
    # Neighbours of a leaf are one scan again.
    assert all(len({scan.location.uri for scan in task.scans}) == len(task.scans) for task in tasks)


def test_tasks_in_their_order_are_the_scan(uneven: phalanx.Table) -> None:
    for wanted in (1, 700_000, None):
        found = [row for task in read_by(plan_tasks(uneven.scan(), wanted)) for row in task]
        assert found == uneven.scan().to_arrow().to_pylist()


def test_a_fragment_is_never_cut_and_may_be_alone(uneven: phalanx.Table) -> None:
    assert len(plan_tasks(uneven.scan(), 1)) == 28
    assert len(plan_tasks(uneven.scan(), 1 << 40)) == 1
    # By default there are few tasks, of many megabytes each.
    assert len(plan_tasks(uneven.scan())) == 1
    assert choose_task_bytes(0, None) == MIN_TASK_BYTES
    assert choose_task_bytes(1 << 40, None) == MAX_TASK_BYTES
    assert choose_task_bytes(1 << 40, 5) == 5


def test_only_planned_leaves_are_in_tasks(uneven: phalanx.Table) -> None:
    scan = uneven.scan("k IN ('small03', 'small07') AND n < 5", ["n"])
    [task] = plan_tasks(scan)
    assert {each.location.uri for each in task.scans} == {
        each.location for each in uneven.plan("k IN ('small03', 'small07')").partitions
    }
    assert read_by([task]) == [[{"n": 3}]]
    assert plan_tasks(uneven.scan("k = 'none'")) == []


def test_a_task_reads_what_was_there_when_it_was_planned(tmp_path: Path) -> None:
    for mode in ("weak", "strong"):
        table = phalanx.create(tmp_path / mode, SCHEMA, ["k"], transaction=mode)
        table.append(rows(("a", 1), ("b", 2)))
        tasks = plan_tasks(table.scan())
        table.delete("n = 1")
        table.append(rows(("b", 3)))
        assert [[row["n"] for row in each] for each in read_by(tasks)] == [[1, 2]]


# ── options ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def evolved_table(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[phalanx.Table, list[dict[str, Any]]]:
    """A table with three specs and changed columns, and its rows, written by hand."""
    schema = pa.schema(
        [
            ("id", pa.int32()),
            ("ts", pa.timestamp("us")),
            ("country", pa.string()),
            ("amount", pa.decimal128(8, 2)),
            ("gone", pa.int8()),
        ]
    )
    root = tmp_path_factory.mktemp("evolved") / "table"
    table = phalanx.create(root, schema, "year(ts), country", transaction="strong")

    def append(*given: tuple[int, int, str | None, str], **more: Any) -> None:
        names = table.schema.names
        amount = "price" if "price" in names else "amount"
        columns: dict[str, list[Any]] = {
            "id": [each[0] for each in given],
            "ts": [datetime(each[1], 6, 1) for each in given],
            "country": [each[2] for each in given],
            amount: [Decimal(each[3]) for each in given],
        }
        for name in set(names) - set(columns):
            columns[name] = [more.get(name)] * len(given)
        found = pa.table([columns[f.name] for f in table.schema], schema=table.schema)
        table.append(found)

    append((1, 2024, "DE", "1.25"), (2, 2025, None, "2.00"), gone=7)
    table.evolve("bucket(4, id)")
    append((3, 2024, "FR", "3.50"), (4, 2026, "DE", "0.01"), gone=8)
    table.drop_column("gone")
    table.rename_column("amount", "price")
    table.promote_column("id", pa.int64())
    table.add_column(pa.field("note", pa.string()))
    table.evolve("country")
    append((1 << 40, 2024, "DE", "9.99"), note="late")
    first = [(1, 2024, "DE", "1.25"), (2, 2025, None, "2.00")]
    second = [(3, 2024, "FR", "3.50"), (4, 2026, "DE", "0.01")]
    expected = [
        {"id": i, "ts": datetime(y, 6, 1), "country": c, "price": Decimal(p), "note": note}
        for i, y, c, p, note in [
            *((*each, None) for each in first + second),
            (1 << 40, 2024, "DE", "9.99", "late"),
        ]
    ]
    return table, expected


def as_dicts(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict(recursive=True) for row in frame.collect()), key=lambda r: r["id"])


@pytest.mark.executors
@pytest.mark.bare
def test_a_table_of_many_specs_and_changed_columns(
    spark: SparkSession, evolved_table: tuple[phalanx.Table, list[dict[str, Any]]]
) -> None:
    table, expected = evolved_table
    frame = load(spark, table.uri)
    assert frame.columns == ["id", "ts", "country", "price", "note"]
    assert as_dicts(frame) == expected
    where = "country = 'DE' AND ts < '2026-01-01' AND price > 2"
    assert as_dicts(load(spark, table.uri, where=where)) == expected[-1:]
    chosen = load(spark, table.uri, where=where, columns="PRICE, id")
    assert chosen.columns == ["price", "id"]
    assert as_dicts(chosen) == [{"price": Decimal("9.99"), "id": 1 << 40}]
    assert load(spark, table.uri, columns='["id"]').columns == ["id"]
    # With Connect every query loads the table again: only a named snapshot stays.
    assert load(spark, table.uri, snapshot=2, columns="id").count() == 2
    nothing = load(spark, table.uri, where="country = 'XX'")
    assert (nothing.count(), nothing.collect()) == (0, [])


def test_snapshots_by_id_and_time(
    spark: SparkSession, evolved_table: tuple[phalanx.Table, list[dict[str, Any]]]
) -> None:
    table, _ = evolved_table
    for snapshot in table.snapshots().to_pylist():
        if snapshot["operation"] == "append":
            for named in (snapshot["id"], snapshot["time"].isoformat()):
                frame = load(spark, table.uri, snapshot=named)
                held = table.at(snapshot["id"])
                assert frame.columns == held.schema.names
                assert as_dicts(frame) == sorted(
                    held.scan().to_arrow().to_pylist(), key=lambda row: row["id"]
                )
    first = load(spark, table.uri, snapshot=2, where="gone = 7 AND amount > 1.5")
    assert [row.id for row in first.collect()] == [2]


def partitions(frame: DataFrame) -> int:
    """Return how many tasks read rows."""
    return frame.select(fn.spark_partition_id()).distinct().count()


def test_the_number_of_tasks_follows_split_size(spark: SparkSession, uneven: phalanx.Table) -> None:
    assert partitions(load(spark, uneven.uri, split_size=1)) == 28
    whole = load(spark, uneven.uri, split_size="1GB")
    assert partitions(whole) == 1
    assert whole.count() == 4020
    few = load(spark, uneven.uri, where="k = 'large'", split_size="800 KB")
    assert partitions(few) == len(plan_tasks(uneven.scan("k = 'large'"), 800 << 10))
    assert few.count() == 4000


def test_only_planned_leaves_are_opened(spark: SparkSession, uri: str) -> None:
    table = phalanx.create(uri, SCHEMA, ["k"])
    table.append(rows(("a", 1), ("b", 2), ("c", 3)))
    for partition in table.plan("k <> 'b'").partitions:
        shutil.rmtree(partition.location)
    frame = load(spark, uri, where="k = 'b'")
    assert numbers(frame) == [2]
    assert numbers(frame.where("n > 5")) == []


def test_tables_without_rows(spark: SparkSession, uri: str) -> None:
    table = phalanx.create(uri, SCHEMA, ["k"])
    assert load(spark, uri).collect() == []
    table.append(rows(("a", 1)))
    table.delete("true")
    frame = load(spark, uri)
    assert (frame.count(), frame.columns) == (0, ["k", "n", "text"])


def test_metadata_tables(
    spark: SparkSession, evolved_table: tuple[phalanx.Table, list[dict[str, Any]]]
) -> None:
    table, _ = evolved_table
    for name, found in (
        ("partitions", table.partitions()),
        ("files", table.files()),
        ("specs", None),
    ):
        frame = load(spark, table.uri, metadata_table=name)
        read = [row.asDict() for row in frame.collect()]
        if found is not None:
            assert read == found.to_pylist()
            assert frame.columns == found.column_names
        else:
            assert [(row["spec_id"], row["partition_by"]) for row in read] == [
                (1, "year(ts)"),
                (1, "country"),
                (2, "bucket(4, id)"),
                (3, "country"),
            ]
    frame = load(spark, table.uri, metadata_table="snapshots")
    assert [(row.id, row.operation) for row in frame.select("id", "operation").collect()] == [
        (row["id"], row["operation"]) for row in table.snapshots().to_pylist()
    ]
    rows_of = load(spark, table.uri, metadata_table="partitions", snapshot=2).selectExpr(
        "sum(rows)"
    )
    assert rows_of.collect()[0][0] == 2


# ── one DataFrame, many queries ──────────────────────────────────────────────────────────────


def test_no_query_changes_what_another_one_finds(spark: SparkSession, uri: str) -> None:
    table = phalanx.create(uri, SCHEMA, ["k"])
    table.append(rows(("a", 1), ("a", 2), ("b", 3), (None, 4)))
    frame = load(spark, uri)
    assert frame.where("n = 1").count() == 1
    assert frame.count() == 4
    assert numbers(frame.where("k = 'b'")) == [3]
    assert frame.select("k").where("k IS NULL").count() == 1
    assert numbers(frame) == [1, 2, 3, 4]
    frame.createOrReplaceTempView("events")
    assert spark.sql("SELECT count(*) FROM events WHERE n > 2").collect()[0][0] == 2
    assert spark.sql("SELECT count(*) FROM events").collect()[0][0] == 4
    twice = spark.sql("SELECT l.n FROM events l JOIN events r ON l.k = r.k WHERE r.n = 2")
    assert numbers(twice) == [1, 2]
    both = frame.where("n = 1").union(frame.where("n = 3"))
    assert numbers(both) == [1, 3]
    assert len(frame.limit(1).collect()) == 1
    assert frame.count() == 4


@pytest.mark.skipif(
    os.environ.get("PHALANX_TEST_MASTER") == "connect",
    reason="by Connect a frame has no state: every query loads the table anew",
)
def test_a_frame_stays_at_the_snapshot_it_was_loaded_at(spark: SparkSession, uri: str) -> None:
    table = phalanx.create(uri, SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", 1), ("b", 2)))
    frame = load(spark, uri)
    table.append(rows(("a", 3), ("c", 4)))
    table.delete("n = 2")
    assert numbers(frame) == [1, 2]
    assert numbers(frame.where("n > 1")) == [2]
    table.rename_column("n", "m")
    assert numbers(frame) == [1, 2]
    assert sorted(row.m for row in load(spark, uri).collect()) == [1, 3, 4]


@pytest.mark.parametrize("case", ["weak mode", "a schema of the user's own"])
def test_else_each_query_reads_what_is_there(spark: SparkSession, uri: str, case: str) -> None:
    mode = "weak" if case == "weak mode" else "strong"
    table = phalanx.create(uri, SCHEMA, ["k"], transaction=mode)
    table.append(rows(("a", 1), ("b", 2)))
    frame = load(spark, uri)
    if mode == "strong":
        frame = spark.read.format("phalanx").schema("n int, k string").load(uri)
    table.append(rows(("a", 3)))
    assert numbers(frame) == [1, 2, 3]
    table.append(rows(("a", 4), ("c", 5)))
    table.delete("n = 1")
    assert numbers(frame) == [2, 3, 4, 5]


def test_a_schema_of_the_user_chooses_columns(spark: SparkSession, uri: str) -> None:
    phalanx.create(uri, SCHEMA, ["k"]).append(rows(("a", 1), (None, 2)))
    frame = spark.read.format("phalanx").schema("n int, k string").load(uri)
    assert frame.columns == ["n", "k"]
    assert sorted(map(tuple, frame.collect())) == [(1, "a"), (2, None)]
    narrow = spark.read.format("phalanx").schema("text string").option("where", "n = 2").load(uri)
    assert narrow.collect() == [("2",)]


# ── object stores ────────────────────────────────────────────────────────────────────────────


def test_s3_with_options_in_both_forms(
    spark: SparkSession,
    s3: Store,  # noqa: F811
) -> None:
    root, told = s3.fresh(), s3.storage_options
    assert told is not None
    table = phalanx.create(root, SCHEMA, ["k"], storage_options=told)
    table.append(rows(("a", 1), ("b", 2)))
    by_json = spark.read.format("phalanx").option("storage_options", json.dumps(told)).load(root)
    assert numbers(by_json) == [1, 2]
    prefixed = {f"storage.{key}": value for key, value in told.items()}
    writer = by_json.where("n = 2").write.format("phalanx").options(**prefixed)
    writer.mode("append").save(root)
    assert numbers(load(spark, root, **prefixed)) == [1, 2, 2]
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [1, 2, 2]


@pytest.fixture(autouse=True)
def _no_views(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").catalog.dropTempView("events")


def test_fields_inside_structs(spark: SparkSession, tmp_path: Path) -> None:
    struct = pa.struct([("t", pa.int64()), ("u", pa.struct([("w", pa.string())]))])
    schema = pa.schema([("id", pa.int64()), ("s", struct)])
    table = phalanx.create(tmp_path / "t", schema, "bucket(2, id)")
    given = [
        {"id": 1, "s": {"t": 5, "u": {"w": "x"}}},
        {"id": 2, "s": None},
        {"id": 3, "s": {"t": None, "u": None}},
    ]
    table.append(pa.Table.from_pylist(given, schema))
    frame = load(spark, table.uri, columns="s.t, id, s.u.w")
    assert frame.columns == ["s.t", "id", "s.u.w"]
    assert sorted(map(tuple, frame.collect()), key=lambda each: each[1]) == [
        (5, 1, "x"),
        (None, 2, None),
        (None, 3, None),
    ]
    assert [tuple(each) for each in frame.where("`s.t` = 5").select("`s.u.w`").collect()] == [
        ("x",)
    ]
    whole = load(spark, table.uri)
    assert [each[0] for each in whole.where("s.t = 5").select("s.u.w").collect()] == ["x"]
