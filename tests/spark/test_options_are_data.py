"""Options and properties are data: none is unpickled, and none sends a catalog's rows elsewhere."""

from __future__ import annotations

import base64
import pickle
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import phalanx
from phalanx.spark.runtime.options import (
    READ_OPTIONS,
    STREAM_READ_OPTIONS,
    STREAM_WRITE_OPTIONS,
    WRITE_OPTIONS,
)
from spark.conftest import MASTER
from spark.lakes import Lake, lake_at, rows_of

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string())])
ROWS = [(1, "a"), (2, "b")]
# The names under which Phalanx itself passes options, now or in earlier versions.
INTERNAL = ("row_changes", "work", "source", "tasks", "phalanx.pinned", "phalanx.gathered")
# Options that Spark uses itself.
OF_SPARK = {"checkpointlocation", "queryname"}
NAMES = sorted(
    (READ_OPTIONS | WRITE_OPTIONS | STREAM_READ_OPTIONS | STREAM_WRITE_OPTIONS | {*INTERNAL})
    - OF_SPARK
    - {"path"}
)


class Crafted:
    """An object that creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.marker,)


def payloads(marker: Path) -> Iterator[str]:
    """A pickle in the forms that fit in an option."""
    plain = pickle.dumps(Crafted(marker))
    yield base64.b85encode(zlib.compress(plain, 1)).decode()
    yield base64.b64encode(plain).decode()
    yield pickle.dumps(Crafted(marker), protocol=0).decode()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """A catalog with a table of two rows."""
    made = lake_at(spark, str(tmp_path / "lake"), timeout="30s")
    table = phalanx.create(f"{made.root}/t", SCHEMA, ["k"], transaction="strong")
    table.append(pa.Table.from_pylist([{"id": i, "k": k} for i, k in ROWS], SCHEMA))
    return made


def catch_message(run: Callable[[], Any]) -> str:
    """Return the message of the error."""
    with pytest.raises(Exception) as raised:  # noqa: PT011
        run()
    return str(raised.value)


def quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


def ways(lake: Lake, name: str, value: str) -> dict[str, Callable[[], Any]]:
    """Every way in which a user gives an option."""
    spark, table, uri = lake.spark, f"{lake.name}.t", f"{lake.root}/t"
    option = f"{quote(name)} = {quote(value)}"
    rows = spark.range(1).selectExpr("id", "'a' AS k")
    by_path = spark.read.format("phalanx").option(name, value)
    return {
        "SELECT": lambda: lake.sql(f"SELECT * FROM lake.t WITH ({option})"),
        "INSERT": lambda: lake.sql(f"INSERT INTO lake.t WITH ({option}) VALUES (9, 'z')"),
        "read by name": lambda: spark.read.option(name, value).table(table).collect(),
        "write by name": lambda: rows.writeTo(table).option(name, value).append(),
        "read by path": lambda: by_path.load(uri).collect(),
        "read without a path": lambda: by_path.load().collect(),
        "write by path": lambda: (
            rows.write.format("phalanx").option(name, value).mode("append").save(uri)
        ),
        "OPTIONS": lambda: lake.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW v USING phalanx OPTIONS (path {quote(uri)}, "
            f"{quote(name)} {quote(value)})"
        ),
        "TBLPROPERTIES": lambda: lake.sql(f"CREATE TABLE lake.n (id int) TBLPROPERTIES ({option})"),
        "CREATE OPTIONS": lambda: lake.sql(f"CREATE TABLE lake.n (id int) OPTIONS ({option})"),
        "SET": lambda: lake.sql(f"ALTER TABLE lake.t SET TBLPROPERTIES ({option})"),
        "stream": lambda: run_stream(spark.readStream.option(name, value).table(table)),
        "stream by path": lambda: run_stream(
            spark.readStream.format("phalanx").option(name, value).load(uri)
        ),
        "sink": lambda: (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 1)
            .load()
            .selectExpr("value AS id", "'a' AS k")
            .writeStream.option(name, value)
            .option("checkpointLocation", f"{lake.root}/../checkpoint")
            .trigger(availableNow=True)
            .toTable(table)
            .awaitTermination(60)
        ),
    }


def run_stream(frame: DataFrame) -> None:
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination(60)


@pytest.mark.executors
def test_no_option_is_unpickled(lake: Lake, tmp_path: Path) -> None:
    """Phalanx unpickles none of its internal options, in whatever way a user sets it."""
    marker = tmp_path / "run"
    for name in ("row_changes", "work"):
        for way, run in ways(lake, name, next(payloads(marker))).items():
            if MASTER == "python" and "path" not in way:
                # Without the classes in Java there is no catalog.
                continue
            message = catch_message(run)
            assert not marker.exists(), (name, way)
            assert "Cannot" in message, (name, way, message)
            assert name in message, (name, way, message)
    assert rows_of(lake.table("t")) == ROWS
    if MASTER != "python":
        assert lake.sql("SHOW TABLES IN lake") == [("", "t", False)]


def test_no_text_of_a_known_option_runs(lake: Lake, tmp_path: Path) -> None:
    marker = tmp_path / "run"
    first, *others = payloads(marker)
    tried = [
        (name, first, "write by name" if name in WRITE_OPTIONS else "SELECT") for name in NAMES
    ]
    tried += [(name, text, "read by path") for name in INTERNAL for text in others]
    for name, text, way in tried:
        with suppress(Exception):
            ways(lake, name, text)[way]()
        assert not marker.exists(), (name, way)
    assert len(rows_of(lake.table("t"))) >= len(ROWS)


EVIL = "http://127.0.0.1:9"
PLACES = {
    "storage.aws_endpoint": EVIL,
    "STORAGE.aws_endpoint": EVIL,
    "storage_options": f'{{"aws_endpoint": "{EVIL}"}}',
    "path": "/tmp/elsewhere",
    "trust_locations": "true",
}


@pytest.mark.parametrize("name", PLACES)
def test_a_query_cannot_say_where_a_catalogs_table_is(lake: Lake, name: str) -> None:
    """An endpoint in a query is refused too: the catalog would send its credentials there."""
    for way, run in ways(lake, name, PLACES[name]).items():
        if "path" in way or way == "OPTIONS" or (way, name) == ("CREATE OPTIONS", "path"):
            # There is no catalog whose credentials could be sent.
            continue
        message = catch_message(run)
        assert "Cannot" in message, (way, message)
        assert name.lower() in message.lower(), (way, message)
        assert EVIL not in message.partition("JVM stacktrace")[0], (way, message)
    for statement in (
        f"UPDATE lake.t WITH ({quote(name)} = 'x') SET id = 3 WHERE id + 1 = 2",
        f"MERGE INTO lake.t WITH ({quote(name)} = 'x') AS t USING lake.t AS s ON t.id = s.id + 1 "
        "WHEN MATCHED THEN DELETE",
        f"DELETE FROM lake.t WITH ({quote(name)} = 'x') WHERE id + 1 = 2",
    ):
        catch_message(lambda statement=statement: lake.sql(statement))
    assert rows_of(lake.table("t")) == ROWS


def test_a_table_is_made_below_the_root_of_its_catalog(lake: Lake, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    lake.check_refused(
        f"CREATE TABLE lake.n (id int) LOCATION '{other}'", "Cannot create a table with"
    )
    lake.check_refused(
        f"CREATE TABLE lake.n LOCATION '{other}' AS SELECT 1 AS id", "Cannot create a table with"
    )
    for name in ("..", "../elsewhere", "a/b", "/tmp/x"):
        message = catch_message(
            lambda name=name: lake.sql(f"CREATE TABLE lake.`{name}`.n (id int)")
        )
        assert "Cannot" in message
        message = catch_message(lambda name=name: lake.sql(f"CREATE TABLE lake.`{name}` (id int)"))
        assert "Cannot" in message
    frame = lake.spark.range(1)
    for name, value in {**PLACES, "path": str(other)}.items():
        message = catch_message(
            lambda name=name, value=value: (
                frame.write.format("phalanx").option(name, value).saveAsTable(f"{lake.name}.n")
            )
        )
        assert "Cannot" in message
    assert not other.exists()
    assert lake.sql("SHOW TABLES IN lake") == [("", "t", False)]
