"""Everything that Spark reads becomes a table: exactly once, with its types and rows."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import phalanx
import phalanx.spark
from phalanx.errors import InvalidSpec, PhalanxError, SchemaMismatch
from phalanx.spark.pipelines import ingest as ingesting
from tables import ids

CSV = """id,at,day,name,price
1,2013-06-24 23:30:00,2013-06-24,"a, b",1.5
2,2013-06-25T00:30:00Z,2013-06-25,NA,NA
3,NA,NA,c,3.0
"""


def parquet_files(folder: Path, count: int, first: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        rows = pa.table({"id": range(number * 10, number * 10 + 10), "part": [number % 2] * 10})
        pq.write_table(rows, folder / f"{number:03}.parquet")


def test_files_are_ingested_once(
    spark: SparkSession, tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in [1]"
    parquet_files(source, 3)
    done = phalanx.spark.ingest(spark, f"{tmp_path}/in*/00[0-1].parquet", uri, "part", chunk_size=1)
    assert (done.rows, done.partitions, done.fragments, done.chunks) == (20, 2, 2, 2)
    assert (phalanx.open(uri).mode, done.files, done.snapshot) == ("strong", 2, 3)
    assert "phalanx: 1 of 2 chunks, 1 of 2 files" in capsys.readouterr().err
    # The same files by another name, and one more.
    parquet_files(tmp_path / "in [1]", 1, first=3)
    more = phalanx.spark.ingest(spark, os.fspath(source).replace("[", "\\["), uri, "part")
    assert (more.rows, more.files, more.skipped_files, more.skipped_chunks) == (20, 2, 2, 2)
    assert (more.chunks, ids(uri)) == (1, list(range(40)))
    assert str(more).startswith("Ingested 20 rows into 2 partitions of ")
    again = phalanx.spark.ingest(spark, f"{tmp_path}/in*/*.parquet", uri)
    assert (again.rows, again.chunks, again.skipped_files) == (0, 0, 4)
    assert str(again).startswith("Nothing to ingest: ")
    assert phalanx.open(uri).snapshots().num_rows == 4
    # Under another id they are other files.
    anew = phalanx.spark.ingest(spark, f"{tmp_path}/in*/*.parquet", uri, id="anew")
    assert (anew.rows, len(ids(uri))) == (40, 80)
    rows = pa.table({"id": [7], "part": [1]})
    pq.write_table(rows, source / "002.parquet")
    with pytest.raises(PhalanxError, match=r"002\.parquet again: .* has changed since"):
        phalanx.spark.ingest(spark, f"{tmp_path}/in*/*.parquet", uri)


@pytest.mark.executors
def test_ingests_at_the_same_time_share_the_files(
    spark: SparkSession, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet_files(tmp_path / "in", 4)
    source = str(tmp_path / "in")
    write = ingesting.write

    def write_late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(ingesting, "write", write)
        other = phalanx.spark.ingest(spark, f"{source}/00[1-2].parquet", uri)
        assert (other.rows, other.files, other.chunks) == (20, 2, 1)
        return write(*arguments, **options)

    monkeypatch.setattr(ingesting, "write", write_late)
    two_files = 2 * max(file.stat().st_size for file in (tmp_path / "in").iterdir())
    done = phalanx.spark.ingest(spark, source, uri, "part", chunk_size=two_files)
    assert (done.rows, done.files, done.skipped_files, done.chunks) == (20, 2, 2, 2)
    assert ids(uri) == list(range(40))


def test_csv_is_read_as_people_mean_it(spark: SparkSession, tmp_path: Path, uri: str) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    options = {"nullValue": "NA"}
    phalanx.spark.ingest(spark, str(tmp_path / "a.csv"), uri, "day(at)", options=options)
    table = phalanx.open(uri)
    assert [str(field.type) for field in table.schema] == [
        *("int32", "timestamp[us, tz=UTC]", "date32[day]", "string", "double")
    ]
    assert table.scan().to_arrow().sort_by("id").to_pylist() == [
        {
            "id": 1,
            "at": datetime(2013, 6, 24, 23, 30, tzinfo=UTC),
            "day": date(2013, 6, 24),
            "name": "a, b",
            "price": 1.5,
        },
        {
            "id": 2,
            "at": datetime(2013, 6, 25, 0, 30, tzinfo=UTC),
            "day": date(2013, 6, 25),
            "name": None,
            "price": None,
        },
        {"id": 3, "at": None, "day": None, "name": "c", "price": 3.0},
    ]
    assert sorted(filter(None, table.partitions()["at_day"].to_pylist())) == [24, 25]
    # A later file has the types of the table, whatever its values look like, in its own order.
    (tmp_path / "b.csv").write_text("price,id,day,at,name\n1,4,,2014-01-01 00:00:00,007\n")
    phalanx.spark.ingest(spark, str(tmp_path / "b.csv"), uri)
    (row,) = table.scan("id = 4").to_arrow().to_pylist()
    assert (row["name"], row["price"]) == ("007", 1.0)
    (tmp_path / "c.csv").write_text("id,at,day,name,price\nx,,,,\n")
    with pytest.raises(PhalanxError, match=r"Cannot ingest .*c\.csv") as failure:
        phalanx.spark.ingest(spark, str(tmp_path / "c.csv"), uri)
    assert "\n" not in str(failure.value)
    (tmp_path / "d.csv").write_text("id,at,day,name\n1,,,\n")
    with pytest.raises(SchemaMismatch, match="lacks the column 'price'"):
        phalanx.spark.ingest(spark, str(tmp_path / "d.csv"), uri)
    assert ids(uri) == [1, 2, 3, 4]


def test_other_sources_are_one_chunk(
    spark: SparkSession, tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "tags": ["x"]}\n{"id": 2, "tags": null}\n')
    done = phalanx.spark.ingest(spark, str(tmp_path / "rows.jsonl"), uri, "bucket(2, id)")
    assert (done.rows, ids(uri)) == (2, [1, 2])
    frame = spark.createDataFrame([(3, ["y"])], "id bigint, tags array<string>")
    for _ in range(2):
        phalanx.spark.ingest(spark, frame, uri, id="frame")
    assert ids(uri) == [1, 2, 3]
    frame.createOrReplaceTempView("some_rows")
    phalanx.spark.ingest(spark, "some_rows", uri)
    assert "some_rows has no id" in capsys.readouterr().err
    assert ids(uri) == [1, 2, 3, 3]
    # A source of Phalanx itself, read as a whole.
    phalanx.spark.ingest(spark, uri, str(tmp_path / "copy"), "id", format="phalanx", id="copy")
    assert ids(str(tmp_path / "copy")) == [1, 2, 3, 3]
    phalanx.spark.ingest(spark, frame, str(tmp_path / "copy"), mode="overwrite")
    assert ids(str(tmp_path / "copy")) == [3]


@pytest.mark.skipif(
    "local-cluster" in os.environ.get("PHALANX_TEST_MASTER", ""),
    reason="a database of Derby is open in one process, and executors are others",
)
def test_a_database_is_ingested_once(spark: SparkSession, uri: str) -> None:
    rows = [(1, "a", Decimal("1.50"), date(2025, 1, 1)), (2, None, None, None)]
    frame = spark.createDataFrame(rows, "id bigint, name string, price decimal(8, 2), day date")
    url = "jdbc:derby:memory:shop;create=true"
    options = {"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver", "dbtable": "orders"}
    frame.write.format("jdbc").options(**options, url=url).save()
    options |= {"partitionColumn": "id", "lowerBound": 1, "upperBound": 3, "numPartitions": 2}
    named: dict[str, Any] = {"format": "jdbc", "options": options, "id": "orders"}
    done = phalanx.spark.ingest(spark, url, uri, "id", **named)
    assert (done.rows, done.partitions, done.chunks, done.snapshot) == (2, 2, 1, 2)
    found = phalanx.open(uri).scan().to_arrow().sort_by("id")
    assert [tuple(row.values()) for row in found.to_pylist()] == rows
    again = phalanx.spark.ingest(spark, url, uri, **named)
    assert (again.rows, again.chunks, ids(uri)) == (0, 0, [1, 2])
    options["dbtable"] = "nothing"
    with pytest.raises(PhalanxError, match=r"Cannot read jdbc:derby:.*'NOTHING' does not exist"):
        phalanx.spark.ingest(spark, url, uri, **named)


def test_weak_mode_makes_no_promise(
    spark: SparkSession, tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet_files(tmp_path / "in", 2)
    source = str(tmp_path / "in")
    done = phalanx.spark.ingest(spark, source, uri, "part", transaction="weak", chunk_size=1)
    assert (done.rows, done.partitions, done.fragments, done.chunks) == (20, 2, 2, 1)
    assert done.snapshot is None
    assert "is in weak mode: repeating the ingest" in capsys.readouterr().err
    with pytest.raises(PhalanxError, match=r"exactly once, as 'x'.*set_mode"):
        phalanx.spark.ingest(spark, source, uri, id="x")


def test_what_is_wrong_is_reported_before_a_task_starts(
    spark: SparkSession, tmp_path: Path, uri: str
) -> None:
    def catch_error(*arguments: object, **named: object) -> str:
        with pytest.raises(PhalanxError) as failure:
            phalanx.spark.ingest(spark, *arguments, **named)  # type: ignore[arg-type]
        assert "\n" not in str(failure.value)
        return str(failure.value)

    parquet_files(tmp_path / "in", 1)
    source = str(tmp_path / "in")
    assert "no such path or table" in catch_error(str(tmp_path / "nothing"), uri, "id")
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.bin").write_text("x")
    assert "format of" in catch_error(str(tmp_path / "mixed"), uri, "id")
    assert "as parquet: " in catch_error(str(tmp_path / "mixed"), uri, "id", format="parquet")
    unknown = catch_error(source, uri, "id", format="nosuch")
    assert "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: nosuch" in unknown
    assert "org.apache" not in unknown
    assert "DataFrame, a path" in catch_error(7, uri, "id")
    with pytest.raises(InvalidSpec, match="'nope'"):
        phalanx.spark.ingest(spark, source, uri, "nope")
    assert "mode='merge'" in catch_error(source, uri, "id", mode="merge")
    assert "chunk_size='big'" in catch_error(source, uri, "id", chunk_size="big")
    assert "the table does not exist" in catch_error(source, uri)
    with pytest.raises(phalanx.NotPartitioned):
        phalanx.open(uri)
    phalanx.create(uri, pa.schema([("id", pa.string()), ("part", pa.int64())]), "part")
    with pytest.raises(SchemaMismatch, match="'id' is string"):
        phalanx.spark.ingest(spark, source, uri)
    with pytest.raises(InvalidSpec, match="it is partitioned by part"):
        phalanx.spark.ingest(spark, source, uri, "id")
