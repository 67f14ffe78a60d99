"""The snippets of the documentation that need Spark run as printed."""

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import phalanx
import phalanx.spark
from ducklakes import Lake as DuckLake
from integration.iceberg_tables import catalog_at
from spark.lakes import Lake, lake_at

ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("country", pa.string()),
        ("delay", pa.int64()),
    ]
)


def blocks(page: str, language: str) -> list[str]:
    """The code of one language on a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Runs a snippet with the tables that it needs."""
    uri = str(tmp_path / "table")
    moments = [datetime(2025, 1, day) for day in (1, 2)]
    data = pa.table([[1, 2], moments, ["US", "FR"], [200, 3]], schema=SCHEMA)
    phalanx.create(uri, SCHEMA, "bucket(4, id)", transaction="strong").append(data)
    users = pa.table({"id": [1, 2], "name": ["Ann", "Bob"]})
    phalanx.create(f"{uri}-users", users.schema, "bucket(8, id)").append(users)
    phalanx.create(f"{uri}-late", SCHEMA, "country", transaction="strong")
    names = {
        "SparkSession": SparkSession,
        "phalanx": phalanx,
        "spark": spark,
        "uri": uri,
        "late_uri": f"{uri}-late",
        "events_uri": uri,
        "users_uri": f"{uri}-users",
        "folder": str(tmp_path / "checkpoint"),
    }

    def run(code: str) -> dict[str, Any]:
        exec(compile(code, "a snippet", "exec"), names)
        return names

    return run


@pytest.mark.parametrize("page", ["docs/streams.md", "docs/joins.md"])
def test_snippets_run(page: str, run: Callable[[str], dict[str, Any]]) -> None:
    for code in blocks(page, "py"):
        found = run(code)
        if "query" in found:
            found.pop("query").stop()


def test_the_first_snippet_about_spark_runs(run: Callable[[str], dict[str, Any]]) -> None:
    first, *_ = blocks("docs/spark.md", "py")
    names = run(first)
    assert phalanx.open(names["late_uri"]).scan().count_rows() == 1


def test_files_are_ingested(run: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("id,ts\n1,2025-01-01 00:00:00\n")
    code, *_ = blocks("docs/importing.md", "py")
    code = code.replace("s3a://raw/events/*.csv", str(tmp_path / "events.csv"))
    run(code.replace("uri,", f"{str(tmp_path / 'ingested')!r},"))
    assert phalanx.open(str(tmp_path / "ingested")).scan().count_rows() == 1


def test_tables_of_other_systems_are_imported(
    run: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    """Each line runs with a DuckLake, an Iceberg and a Lance table, into a table of its own."""
    ducklake = DuckLake("duckdb", tmp_path)
    ducklake.connection.execute("CREATE TABLE orders AS SELECT 1::BIGINT AS id")
    ducklake.close()
    catalog = catalog_at(tmp_path)
    rows = pa.table([[1], [datetime(2025, 1, 1)]], schema=pa.schema([*SCHEMA][:2]))
    catalog.create_table("lake.orders", rows.schema).append(rows)
    lance.write_dataset(rows, tmp_path / "old.lance")
    code = blocks("docs/importing.md", "py")[1]
    for old, new in {
        '"lake.ducklake::orders"': repr(f"{ducklake.catalog}::orders"),
        "sales.orders": "lake.orders",
        '"old.lance"': repr(str(tmp_path / "old.lance")),
    }.items():
        assert old in code
        code = code.replace(old, new)
    names = run("")
    names["catalog"] = catalog
    for number, line in enumerate(code.splitlines()):
        names["uri"] = str(tmp_path / f"imported-{number}")
        run(line)
        if number:
            assert phalanx.open(names["uri"]).scan().count_rows() == 1


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """A catalog, and views with rows for its tables."""
    for name in ("fresh", "corrected", "corrections"):
        frame = spark.createDataFrame(
            [(datetime(2025, 1, 1), 1, "US"), (datetime(2025, 1, 2), 2, "FR")],
            "ts timestamp, user_id bigint, country string",
        )
        frame.where("country = 'FR'" if name == "corrected" else "true").createOrReplaceTempView(
            name
        )
    return lake_at(spark, str(tmp_path / "lake"))


@pytest.mark.parametrize(("page", "place"), [("README.md", 1), ("docs/spark.md", 0)])
def test_statements_run(page: str, place: int, lake: Lake) -> None:
    for statement in re.sub(r"--.*", "", blocks(page, "sql")[place]).split(";"):
        if statement.strip():
            # Accept any snapshots that exist by then.
            lake.sql(re.sub(r"(VERSION AS OF|from_snapshot =) \d+", r"\1 1", statement))


def test_a_dataframe_is_merged(run: Callable[[str], dict[str, Any]], lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.events (ts timestamp, user_id bigint, country string) "
        "TBLPROPERTIES (transaction='strong')"
    )
    code = blocks("docs/spark.md", "py")[-1].replace("s3://bucket/lake", lake.root)
    names = run(f"fresh = spark.table('fresh')\n{code}")
    assert names["counts"].inserted == 2
