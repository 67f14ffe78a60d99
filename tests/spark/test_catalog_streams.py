"""Streams out of and into tables of a catalog, by their names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import phalanx
from spark.lakes import Lake, lake_at, rows_of
from spark.test_streaming import forget_commit
from tables import INT32_SCHEMA, int32_rows


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """A catalog with a table `events`: of snapshot 2, and a part of it of snapshot 3."""
    made = lake_at(spark, str(tmp_path / "root"))
    events = phalanx.create(f"{made.root}/events", INT32_SCHEMA, "k", transaction="strong")
    events.append(int32_rows(("a", 1), ("b", 2)))
    events.append(int32_rows(("a", 3)))
    return made


def run(writer: DataStreamWriter, table: str, checkpoint: Path) -> None:
    """Stream all rows into a table."""
    running = (
        writer.option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .toTable(table)
    )
    running.awaitTermination()


@contextmanager
def keep_as_view(frame: DataFrame, name: str) -> Iterator[StreamingQuery]:
    """A query that keeps the rows as a view."""
    query = frame.writeStream.format("memory").queryName(name).start()
    try:
        yield query
    finally:
        query.stop()


def test_from_table_to_table_each_row_once(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    lake.sql(
        "CREATE TABLE lake.copy (k string, n int) PARTITIONED BY (k) "
        "TBLPROPERTIES (transaction='strong')"
    )
    copy, checkpoint = f"{lake.name}.copy", tmp_path / "checkpoint"
    stream = spark.readStream.option("split_size", 1).table(f"{lake.name}.events")
    run(stream.writeStream, copy, checkpoint)
    assert rows_of(lake.table("copy")) == rows_of(lake.table("events"))
    # Two tasks had rows of one partition, which were committed together.
    assert lake.table("copy").files().num_rows == 2

    # The query dies after the commit of its batch, before it could note that.
    forget_commit(checkpoint, 0)
    lake.table("events").append(int32_rows(("a", 4)))
    run(stream.writeStream, copy, checkpoint)
    assert rows_of(lake.table("copy")) == rows_of(lake.table("events"))
    operations = lake.table("copy").snapshots()["operation"].to_pylist()
    assert operations == ["create", "append", "append"]


def test_a_stream_goes_beyond_the_snapshot_of_its_loading(spark: SparkSession, lake: Lake) -> None:
    frame = spark.readStream.option("starting_snapshot", 3).table(f"{lake.name}.events")
    with keep_as_view(frame, "beyond") as query:
        query.processAllAvailable()
        assert [row.n for row in spark.table("beyond").collect()] == [3]
        lake.table("events").append(int32_rows(("c", 4)))
        query.processAllAvailable()
        assert sorted(row.n for row in spark.table("beyond").collect()) == [3, 4]


def test_complete_replaces_all_rows(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """In each of two batches, of a table that the first of them makes."""
    options = {"starting_snapshot": 2, "max_snapshots_per_trigger": 1}
    counted = spark.readStream.options(**options).table(f"{lake.name}.events").groupBy("k").count()
    stream = counted.writeStream.outputMode("complete").format("phalanx").partitionBy("k")
    run(stream, f"{lake.name}.counts", tmp_path / "checkpoint")
    assert rows_of(lake.table("counts")) == [("a", 2), ("b", 1)]


def test_changes_by_name(spark: SparkSession, lake: Lake) -> None:
    events = lake.table("events")
    events.update("n = 1", {"n": "10"})
    found = lake.sql(
        "SELECT _change, n FROM lake.events.changes WITH (from_snapshot = 2) "
        "WHERE _snapshot > 2 ORDER BY ALL"
    )
    assert found == [("insert", 3), ("update_after", 10), ("update_before", 1)]
    until = "SELECT n FROM lake.events.changes VERSION AS OF 3 WITH (from_snapshot = 2)"
    assert lake.sql(until) == [(3,)]
    assert ("changes",) not in [each[1:2] for each in lake.sql("SHOW TABLES IN lake")]
    with keep_as_view(spark.readStream.table(f"{lake.name}.events.changes"), "told") as query:
        query.processAllAvailable()
        events.delete("n = 2")
        query.processAllAvailable()
        told = sorted((row["_change"], row.n) for row in spark.table("told").collect())
    assert told == [("delete", 2), ("insert", 2), ("insert", 3), ("insert", 10)]


def test_what_is_refused(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    lake.check_refused("SELECT * FROM lake.events.changes", "from_snapshot is missing")
    named = spark.read.option("changes", "true").option("from_snapshot", 2)
    with pytest.raises(Exception, match=r"Read <table>\.changes instead"):
        named.table(f"{lake.name}.events").collect()
    lake.table("events").set_mode("weak")
    stream = spark.readStream.table(f"{lake.name}.events").writeStream
    lake.sql("CREATE TABLE lake.copy (k string, n int)")
    with pytest.raises(StreamingQueryException, match="it is in weak mode") as raised:
        run(stream, f"{lake.name}.copy", tmp_path / "checkpoint")
    assert "Traceback" not in str(raised.value)
