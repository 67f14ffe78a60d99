"""The change feed in Spark: as a DataFrame, and as a stream that makes a copy of the table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

import phalanx
from phalanx.spark.runtime.types import spark_schema
from phalanx.spark.source.change_source import ChangeStreamReader
from phalanx.spark.source.source import PhalanxSource
from tables import INT32_SCHEMA, int32_rows

READ = {"changes": "true", "from_snapshot": "2"}


def create_events(uri: str) -> phalanx.Table:
    """Create a table: snapshot 2 inserts three rows, 3 updates two of them, 4 deletes one."""
    table = phalanx.create(uri, INT32_SCHEMA, ["k"], transaction="strong")
    table.append(int32_rows(("a", 1), ("b", 2), ("b", 3)))
    table.update("n < 3", {"n": "n + 10", "k": "'b'"})
    table.delete("n = 3")
    return table


@pytest.mark.executors
def test_changes_as_a_data_frame(spark: SparkSession, uri: str) -> None:
    table = create_events(uri)
    frame = spark.read.format("phalanx").options(**READ, to_snapshot=4).load(uri)
    table.append(int32_rows(("a", 9)))
    found = [tuple(row) for row in frame.orderBy("_snapshot", "_update", "_change").collect()]
    assert sorted(found, key=str) == sorted(
        (tuple(each.values()) for each in table.changes(2, 4).to_arrow().to_pylist()), key=str
    )
    assert frame.where("_change = 'update_after' AND n = 11").select("k").collect() == [("b",)]
    # No column of the table.
    some = spark.read.format("phalanx").options(
        **READ, to_snapshot=3, where="k = 'b'", columns="n", split_size=1
    )
    counted = some.load(uri).groupBy("_change").count().collect()
    assert {row["_change"]: row["count"] for row in counted} == {
        "update_before": 1,
        "update_after": 2,
    }


def test_a_stream_of_changes_keeps_a_copy(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    table = create_events(uri)
    copy: Counter[tuple[str, int]] = Counter()
    batches: list[int] = []

    def apply(batch: DataFrame, number: int) -> None:
        changes = batch.collect()
        batches.append(len(changes))
        for row in sorted(changes, key=lambda row: (row["_snapshot"], row["_change"] > "e")):
            came = row["_change"] in ("insert", "update_after")
            copy[row["k"], row["n"]] += 1 if came else -1

    def run(**options: object) -> None:
        query = (
            spark.readStream.format("phalanx")
            .options(changes=True, **options)
            .load(uri)
            .writeStream.foreachBatch(apply)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run(max_snapshots_per_trigger=1)
    # The whole table first.
    assert batches == [2]
    table.update("n = 11", {"k": "'c'"})
    table.rewrite(rewrite_all=True)
    table.merge(int32_rows(("b", 12), ("d", 40)), "n")
    table.rollback(6)
    run(max_snapshots_per_trigger=1)
    assert [number for number in batches if number] == [2, 2, 3, 3]
    now = [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()]
    assert +copy == Counter(now)


def test_offsets_and_limits(uri: str) -> None:
    table = create_events(uri)
    schema = spark_schema(table.changes(0).schema)

    def reader(**options: str) -> ChangeStreamReader:
        return ChangeStreamReader({"path": uri, "changes": "true", **options}, schema)

    everything = reader()
    start = everything.initialOffset()
    assert start == {"snapshot": -1}
    end = everything.latestOffset(start, ReadAllAvailable())
    assert end["snapshot"] == 4
    limited = reader(from_snapshot="1", max_rows_per_trigger="4")
    start = limited.initialOffset()
    assert start == {"snapshot": 1}
    steps = [start]
    for _ in range(3):
        steps.append(limited.latestOffset(steps[-1], ReadMaxFiles(1)))
    # Three rows were inserted, two updated and one deleted.
    assert [step["snapshot"] for step in steps] == [1, 2, 3, 4]
    [task] = limited.partitions(steps[2], steps[3])
    [batch] = limited.read(task)
    assert batch.column("_change").to_pylist() == ["delete"]
    assert limited.partitions(steps[3], steps[3]) == []
    table.add_column(pa.field("more", pa.int8()))
    assert limited.partitions(steps[0], steps[3])


def test_changes_go_to_the_newest_snapshot_when_they_were_loaded(uri: str) -> None:
    table = create_events(uri)
    source = PhalanxSource({"path": uri, **READ})
    schema = source.schema()
    table.append(int32_rows(("a", 9)))
    reader = source.reader(schema)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert {n for batch in batches for n in batch.column("_snapshot").to_pylist()} == {3, 4}


def test_what_is_refused(uri: str) -> None:
    table = create_events(uri)

    def catch_error(**options: str) -> str:
        source = PhalanxSource({"path": uri, **options})
        with pytest.raises(Exception, match=r"Cannot|has no snapshot") as error:
            source.reader(source.schema()).partitions()
        return str(error.value)

    def catch_stream_error(**options: str) -> str:
        source = PhalanxSource({"path": uri, **options})
        with pytest.raises(Exception, match="Cannot") as error:
            source.streamReader(source.schema()).initialOffset()
        return str(error.value)

    assert "from_snapshot is missing" in catch_error(changes="true")
    assert "set changes=true" in catch_error(from_snapshot="1")
    assert "Did you mean 'from_snapshot'" in catch_error(changes="true", from_snapshots="1")
    assert "expected 'false' or 'true'" in catch_error(changes="yes")
    assert "snapshot='2'" in catch_error(changes="true", from_snapshot="1", snapshot="2")
    assert "has no snapshot 99" in catch_error(changes="true", from_snapshot="1", to_snapshot="99")
    assert "starts after from_snapshot" in catch_stream_error(changes="true", starting_snapshot="2")
    assert "set changes=true" in catch_stream_error(from_snapshot="2")
    assert "from 1 to 4" in catch_stream_error(changes="true", from_snapshot="9")
    table.rename_column("n", "_change")
    assert "the change feed has a column of that name" in catch_error(**READ)
