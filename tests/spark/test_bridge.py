"""The Java classes: which columns are read, how rows are passed, and what works without them."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import arrow_udf

import phalanx
import phalanx.spark
from phalanx.spark.sql import bridge
from spark.joins import physical_plan

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int64()),
        ("flag", pa.bool_()),
        ("place", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])),
        ("tags", pa.map_(pa.string(), pa.int32())),
    ]
)


@pytest.fixture
def many(uri: str) -> str:
    """Rows of every shape, in more than one batch for each leaf."""
    rows = [
        {
            "k": "ab"[i % 2],
            "n": None if i % 7 == 0 else i,
            "flag": i % 3 == 0,
            "place": None if i % 5 == 0 else {"x": i, "y": [str(i), None]},
            "tags": [("t", i)],
        }
        for i in range(20_000)
    ]
    phalanx.create(uri, SCHEMA, ["k"]).append(pa.Table.from_pylist(rows, SCHEMA))
    return uri


def test_a_query_reads_the_columns_that_it_needs(spark: SparkSession, many: str) -> None:
    frame = spark.read.format("phalanx").load(many)
    some = frame.where("flag").select("n", "place.x")
    plan = physical_plan(some)
    assert "ColumnarToRow" in plan
    [scan] = [line for line in plan.splitlines() if "BatchScan" in line]
    columns = [text.split("#")[0] for text in scan[scan.index("[") + 1 : scan.index("]")].split()]
    assert columns == ["n", "place"]
    expected = [(None if i % 7 == 0 else i, None if i % 5 == 0 else i) for i in range(0, 20_000, 3)]
    order = lambda pair: (pair[0] is None, pair[0], pair[1] is None, pair[1])  # noqa: E731
    assert sorted(map(tuple, some.collect()), key=order) == sorted(expected, key=order)


def test_rows_are_counted_without_columns(spark: SparkSession, many: str) -> None:
    frame = spark.read.format("phalanx").load(many)
    assert frame.count() == 20_000
    assert frame.select().count() == 20_000
    assert frame.groupBy().count().collect()[0][0] == 20_000


def test_nested_columns_keep_their_place_over_many_batches(spark: SparkSession, many: str) -> None:
    frame = spark.read.format("phalanx").load(many)
    wrong = "place.x <> n OR place.y[0] <> string(n) OR tags['t'] <> n OR size(place.y) <> 2"
    assert frame.where(wrong).count() == 0
    assert frame.where("place IS NULL").count() == 4_000


def test_rows_match_the_results_of_a_python_function_over_many_batches(
    spark: SparkSession, uri: str
) -> None:
    """Spark keeps batches of Arrow columns until the function has returned."""
    rows = 300_000
    numbers = pa.array(range(rows), pa.int64())
    thirds = pc.equal(pc.subtract(numbers, pc.multiply(pc.divide(numbers, 3), 3)), 0)
    data = pa.table(
        {
            "k": pa.array(["ab"[i % 2] for i in range(rows)]),
            "n": numbers,
            "maybe": pc.if_else(thirds, pa.scalar(None, pa.int64()), numbers),
            "text": pc.cast(numbers, pa.string()),
        }
    )
    phalanx.create(uri, data.schema, ["k"]).append(data)

    @arrow_udf("long")
    def same(values: pa.Array) -> pa.Array:
        return values

    frame = spark.read.format("phalanx").load(uri)
    beside = frame.withColumn("again", same(frame.n)).repartition(3, "again")
    wrong = (
        "again IS NULL OR again <> n OR text <> string(again) OR "
        "(maybe IS NULL) <> (again % 3 = 0) OR maybe <> again"
    )
    assert beside.where(wrong).count() == 0
    assert beside.agg({"again": "sum"}).collect()[0][0] == rows * (rows - 1) // 2
    kept = beside.cache()
    try:
        assert (kept.count(), kept.where(wrong).count()) == (rows, 0)
    finally:
        kept.unpersist()
    held = frame.cache()
    try:
        odd = "text <> string(n) OR (maybe IS NULL) <> (n % 3 = 0) OR maybe <> n"
        assert (held.count(), held.where(odd).count()) == (rows, 0)
    finally:
        held.unpersist()


@pytest.mark.parametrize(
    ("records", "size"), [("3", "64m"), ("10000", "200"), ("-1", "1"), ("7", "2147483647")]
)
def test_rows_travel_in_batches_as_they_are_configured(
    spark: SparkSession, uri: str, records: str, size: str
) -> None:
    settings = {"maxRecordsPerBatch": records, "maxBytesPerBatch": size}
    before = {name: spark.conf.get(f"spark.sql.execution.arrow.{name}") for name in settings}
    frame = spark.range(100).selectExpr("id", "id % 3 AS k", "repeat('x', int(id)) AS text")
    try:
        for name, value in settings.items():
            spark.conf.set(f"spark.sql.execution.arrow.{name}", value)
        writer = frame.write.format("phalanx").mode("append").option("partition_by", "k")
        writer.save(uri)
    finally:
        for name, value in before.items():
            spark.conf.set(f"spark.sql.execution.arrow.{name}", value)
    found = phalanx.open(uri).scan().to_arrow().sort_by("id")
    assert found.column("id").to_pylist() == list(range(100))
    assert found.column("text").to_pylist() == ["x" * i for i in range(100)]


# ── the jar ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache that is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bridge.find_jar.cache_clear()
    yield tmp_path / "cache" / "phalanx"
    bridge.find_jar.cache_clear()


def test_it_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bridge.find_jar()
    assert made is not None
    names = sorted([made.name, made.with_suffix(".sha256").name])
    assert sorted(path.name for path in cache.iterdir()) == names
    bridge.find_jar.cache_clear()
    monkeypatch.setattr(bridge, "_compile", None)
    assert bridge.find_jar() == made


def test_its_folder_is_the_users_alone(cache: Path) -> None:
    assert bridge.find_jar() is not None
    assert cache.stat().st_mode & 0o777 == 0o700


def test_it_is_compiled_again_where_it_was_changed(cache: Path) -> None:
    made = bridge.build_jar(cache)
    content = made.read_bytes()
    made.write_bytes(content[:-1] + b"x")
    assert bridge.build_jar(cache) == made
    assert made.read_bytes() == content


def test_what_others_could_have_put_there_is_not_run(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bridge.build_jar(cache)
    digest = made.with_suffix(".sha256")
    made.write_bytes(b"crafted")
    digest.write_text(hashlib.sha256(b"crafted").hexdigest())
    cache.chmod(0o777)
    assert bridge.build_jar(cache).read_bytes() != b"crafted"
    assert cache.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(bridge.CannotCompile, match="belongs to another user"):
        bridge.build_jar(cache)


def test_a_link_is_no_folder_for_it(cache: Path, tmp_path: Path) -> None:
    cache.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(bridge.CannotCompile, match="is a link"):
        bridge.build_jar(cache)


@pytest.mark.parametrize("case", ["no Java", "no compiler", "no folder"])
def test_without_it_there_is_one_warning(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    match case:
        case "no Java":
            monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        case "no compiler":
            java.write_text("#!/bin/sh\necho 'Module jdk.compiler not found' >&2\nexit 1\n")
            java.chmod(0o755)
            monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
        case _:
            cache.parent.write_text("a file")
    with pytest.warns(UserWarning, match="only the Python source.*read all columns.*Install JDK"):
        configured = phalanx.spark.configure(SparkSession.Builder())
    assert "spark.jars" not in configured._options
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        phalanx.spark.configure(SparkSession.Builder())


def test_it_joins_the_jars_that_there_are() -> None:
    jar = bridge.find_jar()
    builder = SparkSession.Builder().config("spark.jars", "mine.jar")
    assert phalanx.spark.configure(builder)._options["spark.jars"] == f"mine.jar,{jar}"
    again = phalanx.spark.configure(builder)
    assert again._options["spark.jars"] == f"mine.jar,{jar}"


@pytest.mark.parametrize(
    ("key", "value"), [("spark.phalanx.bridge", "false"), ("spark.remote", "sc://somewhere")]
)
def test_it_is_left_out_where_it_is_not_wanted(key: str, value: str) -> None:
    builder = SparkSession.Builder().config(key, value)
    assert "spark.jars" not in phalanx.spark.configure(builder)._options
