"""Streams out of and into tables: only new rows, each batch once."""

from __future__ import annotations

import json
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import phalanx
from phalanx.spark.runtime.options import STREAM_WRITE_OPTIONS, Options
from phalanx.spark.runtime.types import spark_schema
from phalanx.spark.source.stream_sink import make_stream_writer
from phalanx.spark.source.stream_source import SnapshotReader
from tables import INT32_SCHEMA, int32_rows, numbers


def create_events(uri: str, mode: str = "strong") -> phalanx.Table:
    table = phalanx.create(uri, INT32_SCHEMA, ["k"], transaction=mode)
    table.append(int32_rows(("a", 1), ("b", 2)))
    return table


def stream(spark: SparkSession, **options: object) -> DataStreamReader:
    return spark.readStream.format("phalanx").options(**options)


def forget_commit(checkpoint: Path, batch: int) -> None:
    """The checkpoint of a query that died before it recorded a batch as done."""
    (checkpoint / "commits" / str(batch)).unlink()
    (checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)


def files_of(uri: str) -> set[Path]:
    """The files of rows."""
    return set(Path(uri).glob("*_v*/data/*"))


class Reading:
    """A query that reads all rows, batch by batch, each time that it starts."""

    def __init__(self, spark: SparkSession, uri: str, **options: object) -> None:
        self.spark, self.uri, self.options = spark, uri, options
        self.checkpoint = f"{uri}-checkpoint"

    def batches(self) -> list[list[object]]:
        folder = Path(tempfile.mkdtemp(dir=Path(self.uri).parent))

        def take(batch: DataFrame, number: int) -> None:
            # By Connect in a process of the server.
            values = sorted(row.n for row in batch.collect())
            (folder / f"{number:04}").write_text(json.dumps(values))

        query = (
            stream(self.spark, **self.options)
            .load(self.uri)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [json.loads(file.read_text()) for file in sorted(folder.iterdir())]


def write(
    spark: SparkSession, source: str, target: str, checkpoint: Path, **options: object
) -> None:
    """Stream all rows of one table to another, snapshot by snapshot."""
    query = (
        stream(spark, max_snapshots_per_trigger=1, starting_snapshot=1)
        .load(source)
        .writeStream.format("phalanx")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()


def test_the_whole_table_first_then_what_comes(spark: SparkSession, uri: str) -> None:
    table = create_events(uri)
    reading = Reading(spark, uri)
    assert reading.batches() == [[1, 2]]
    table.append(int32_rows(("a", 3), ("c", 4)))
    table.delete("n = 1")
    table.overwrite(int32_rows(("b", 5)), "k = 'b'")
    # Started again, it continues where it stopped: before it recorded the first batch as done.
    forget_commit(Path(reading.checkpoint), 0)
    assert reading.batches() == [[1, 2], [3, 4, 5]]
    table.promote_column("n", pa.int64())
    table.add_column(pa.field("more", pa.int8()))
    table.rollback(3)
    assert reading.batches() == [[]]


def test_from_a_snapshot_on_and_in_small_batches(spark: SparkSession, uri: str) -> None:
    table = create_events(uri)
    for number in (3, 4, 5):
        table.append(int32_rows(("a", number), ("b", 10 * number)))
    options = {"starting_snapshot": 3, "where": "k = 'a' AND n <> 4", "columns": "n"}
    limited = Reading(spark, uri, max_snapshots_per_trigger=1, **options)
    assert limited.batches() == [[3], [], [5]]
    offset = json.loads(Path(limited.checkpoint, "offsets", "2").read_text().splitlines()[-1])
    assert offset["snapshot"] == 5


def test_a_running_stream(spark: SparkSession, uri: str) -> None:
    table = create_events(uri)
    query = stream(spark).load(uri).writeStream.format("memory").queryName("running").start()
    try:
        query.processAllAvailable()
        table.append(int32_rows(("a", 3)))
        table.add_column(pa.field("more", pa.int8()))
        query.processAllAvailable()
        assert sorted(row.n for row in spark.table("running").collect()) == [1, 2, 3]
        table.rename_column("n", "m")
        with pytest.raises(StreamingQueryException) as raised:
            query.processAllAvailable()
        assert "Restart the stream with the same checkpoint" in str(raised.value)
        assert "Traceback" not in str(raised.value)
    finally:
        query.stop()


def test_streams_that_are_refused(uri: str) -> None:
    def reader(**options: str) -> SnapshotReader:
        return SnapshotReader({"path": uri, **options}, spark_schema(INT32_SCHEMA))

    table = create_events(uri, "weak")
    with pytest.raises(phalanx.PhalanxError, match="weak mode, which has no snapshots"):
        reader().initialOffset()
    table.set_mode("strong")
    reader().initialOffset()
    with pytest.raises(phalanx.PhalanxError, match="max_rows_per_trigger='many'"):
        reader(max_rows_per_trigger="many").getDefaultReadLimit()
    with pytest.raises(phalanx.PhalanxError, match="no such option"):
        reader(snapshot="3").prepareForTriggerAvailableNow()


def test_spark_shows_why_a_stream_is_refused(spark: SparkSession, uri: str) -> None:
    """Spark replaces an error in the constructor of a reader by its own."""
    create_events(uri, "weak")
    with pytest.raises(StreamingQueryException) as raised:
        Reading(spark, uri).batches()
    assert f"PhalanxError: Cannot stream from {uri}: it is in weak mode" in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_the_reader_keeps_to_the_limits_that_spark_gives_it(uri: str) -> None:
    table = create_events(uri)
    for number in (3, 4):
        table.append(int32_rows(("a", number)))
    given = {"path": uri, "max_rows_per_trigger": "2", "max_bytes_per_trigger": "1TB"}
    reader = SnapshotReader(given, spark_schema(INT32_SCHEMA))
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(2)
    start = {"snapshot": 1}
    assert reader.latestOffset(start, limit)["snapshot"] == 2
    assert reader.latestOffset(start, ReadAllAvailable()) == reader.reportLatestOffset()
    reader.prepareForTriggerAvailableNow()
    last = reader.reportLatestOffset()
    table.append(int32_rows(("a", 5)))
    assert reader.latestOffset(start, ReadAllAvailable()) == last
    assert reader.latestOffset(last, limit) == last
    assert reader.partitions(last, last) == []
    time.sleep(0.01)
    table.vacuum(timedelta(0))
    for ask in (reader.latestOffset, reader.partitions):
        with pytest.raises(phalanx.PhalanxError, match="Start the stream with a new checkpoint"):
            ask(start, last if ask == reader.partitions else limit)


def test_a_stream_from_table_to_table(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    source = create_events(uri)
    for number in (3, 4):
        source.append(int32_rows(("a", number), ("c", number)))
    target = str(tmp_path / "target")
    checkpoint = tmp_path / "checkpoint"
    write(spark, uri, target, checkpoint, partition_by="k")
    table = phalanx.open(target)
    assert table.mode == "strong"
    assert numbers(table) == numbers(source)
    # A batch without rows is no snapshot.
    assert table.snapshots()["operation"].to_pylist() == ["create", "append", "append", "append"]

    # The query dies after the commit of its last batch, before it could note that.
    forget_commit(checkpoint, max(int(path.name) for path in checkpoint.glob("commits/[0-9]*")))
    files = files_of(target)
    source.append(int32_rows(("new", 5)))
    table.evolve([phalanx.truncate("k", 1)])
    write(spark, uri, target, checkpoint, partition_by="k")
    assert numbers(phalanx.open(target)) == numbers(source)
    assert len(files_of(target) - files) == 1
    # One marker is left of all batches.
    manifest = lance.dataset(f"{target}/__manifest").to_table(columns=["object_id"])
    names = manifest["object_id"].to_pylist()
    assert sum(name.startswith("__phalanx_marker$") for name in names) == 1


@pytest.mark.executors
def test_complete_replaces_all_rows(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    source = create_events(uri)
    target = str(tmp_path / "target")

    source.append(int32_rows(("a", 3)))
    query = (
        stream(spark, starting_snapshot=2, max_snapshots_per_trigger=1)
        .load(uri)
        .groupBy("k")
        .count()
        .writeStream.format("phalanx")
        .outputMode("complete")
        .option("partition_by", "k")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()
    table = phalanx.open(target)
    assert table.snapshots()["operation"].to_pylist() == ["create", "overwrite", "overwrite"]
    found = table.scan().to_arrow()
    assert sorted(zip(*(found[name].to_pylist() for name in ("k", "count")), strict=True)) == [
        ("a", 2),
        ("b", 1),
    ]


def test_weak_mode_is_reported_once(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    create_events(uri, "weak")
    options = Options.of({"path": uri}, STREAM_WRITE_OPTIONS, "stream")
    for batch in range(2):
        writer = make_stream_writer(options, spark_schema(INT32_SCHEMA), overwrite=False)
        message = writer.write(iter(int32_rows(("a", 10 + batch)).to_batches()))
        writer.commit([message, None], batch)
    assert numbers(phalanx.open(uri)) == [1, 2, 10, 11]
    [warning] = capsys.readouterr().err.splitlines()
    assert "may be written twice" in warning
