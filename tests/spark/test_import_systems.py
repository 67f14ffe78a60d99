"""Tables of every other system are imported completely: all rows are compared one by one."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
)
from pyiceberg.types import LongType
from pyspark.sql import SparkSession

import phalanx
import phalanx.spark
from ducklakes import Lake
from integration.iceberg_tables import add_deletes, catalog_at, data_files, position_deletes
from integration.shell import run, strict_json
from phalanx.errors import PhalanxError

COUNT = 60


def sample(first: int, count: int = COUNT) -> pa.Table:
    """Rows with negative numbers, NULLs, and times before 1970."""
    numbers = range(first, first + count)
    start = datetime(1969, 12, 20)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "delta": pa.array([None if i % 11 == 0 else 7 * i - 200 for i in numbers], pa.int32()),
            "ts": pa.array(
                [None if i % 13 == 0 else start + timedelta(hours=17 * i) for i in numbers],
                pa.timestamp("us"),
            ),
            "country": pa.array([("US", "FR", "a/b =%", None)[i % 4] for i in numbers]),
            "tags": pa.array([None if i % 5 == 0 else [f"t{i}", None] for i in numbers]),
        }
    )


def assert_same(uri: str, expected: pa.Table) -> None:
    """All rows of a table are these, in the types that it has."""
    found = phalanx.open(uri).scan().to_arrow().sort_by("id").combine_chunks()
    wanted = expected.select(found.column_names).sort_by("id").cast(found.schema)
    assert found.equals(wanted.combine_chunks())


def kinds(plan: phalanx.spark.ImportPlan) -> dict[str, str]:
    """Return how the fields of the newest spec are converted."""
    (newest,) = (spec for spec in plan.specs if spec.is_newest)
    return {field.source: field.kind for field in newest.fields}


@pytest.mark.parametrize("layout", ["hive", "expressions"])
def test_tables_of_both_drafts(spark: SparkSession, tmp_path: Path, uri: str, layout: str) -> None:
    old = phalanx.create(
        tmp_path / "old", sample(0).schema, "year(ts), bucket(3, id), country", layout=layout
    )
    old.append(sample(0))
    old.append(sample(COUNT))
    old.delete("id % 10 = 3")
    expected = old.scan().to_arrow()
    assert expected.num_rows == 108
    plan = phalanx.spark.plan_import(None, old.uri, uri, format=layout)
    assert (plan.system, plan.label) == (layout, "year(ts), bucket(3, id), country")
    assert list(kinds(plan).values()) == ["exact", "changed", "exact"]
    assert "upgrade(dry_run=True) shows whether the source can be upgraded in place" in str(plan)
    done = phalanx.spark.import_table(spark, old.uri, uri, format=layout, progress=False)
    assert done.done.rows == 108
    assert phalanx.open(uri).layout == "namespace"
    assert_same(uri, expected)
    again = phalanx.spark.import_table(spark, old, uri, progress=False)
    assert again.done.chunks == 0
    other = "expressions" if layout == "hive" else "hive"
    with pytest.raises(PhalanxError, match=f"it has the layout '{layout}'"):
        phalanx.spark.plan_import(None, old.uri, uri, format=other)


@pytest.mark.parametrize("layout", ["hive", "expressions"])
def test_a_draft_in_its_own_place_is_upgraded(tmp_path: Path, layout: str) -> None:
    place = str(tmp_path / "old")
    old = phalanx.create(place, sample(0).schema, "year(ts), country", layout=layout)
    old.append(sample(0))
    files = set(old.files()["paths"].to_pylist()[0])
    shown = run("import", "--from", layout, place, place, "--dry-run", "-o", "json")
    assert shown.exit_code == 0, shown.stderr
    plan = strict_json(shown.stdout)
    assert (plan["is_upgrade"], plan["partition_by"]) == (True, "year(ts), country")
    assert phalanx.open(place).layout == layout, "a plan changes nothing"
    for same in (f"file://{place}", f"{place}/../old"):
        assert phalanx.spark.plan_import(None, same, place, format=layout).is_upgrade
    nobody: SparkSession = None  # type: ignore[assignment]
    done = phalanx.spark.import_table(nobody, place, place, format=layout, progress=False)
    assert str(done).startswith(f"Upgraded {place} in place: ")
    new = phalanx.open(place)
    assert new.layout == "namespace"
    assert files <= {path for paths in new.files()["paths"].to_pylist() for path in paths}
    assert_same(place, sample(0))
    plan_again = phalanx.spark.plan_import(None, place, place, format=layout)
    assert "it already has the newest format" in str(plan_again)
    phalanx.spark.import_table(nobody, place, place, format=layout, progress=False)
    assert_same(place, sample(0))
    with pytest.raises(PhalanxError, match="into itself"):
        phalanx.spark.plan_import(None, place, place, format="phalanx")


def test_a_draft_that_cannot_be_upgraded_says_why(tmp_path: Path) -> None:
    place = str(tmp_path / "old")
    phalanx.create(place, sample(0).schema, "bucket(3, id)", layout="expressions")
    plan = phalanx.spark.plan_import(None, place, place, format="expressions")
    assert "md5_int" in plan.refusals[0]
    nobody: SparkSession = None  # type: ignore[assignment]
    with pytest.raises(PhalanxError, match="md5_int"):
        phalanx.spark.import_table(nobody, place, place, format="expressions", progress=False)
    assert phalanx.open(place).layout == "expressions"


def test_a_ducklake_with_all_that_happened_to_it(
    spark: SparkSession, tmp_path: Path, uri: str
) -> None:
    lake = Lake("duckdb", tmp_path, inlined=10)
    rows = [sample(100 * i) for i in range(5)]
    for number, each in enumerate(rows):
        lake.connection.register(f"rows{number}", each)
    lake.run(
        "CREATE TABLE events AS SELECT * FROM rows0",
        "ALTER TABLE events SET PARTITIONED BY (bucket(4, id), country)",
        "INSERT INTO events SELECT * FROM rows1",
        "ALTER TABLE events SET PARTITIONED BY (year(ts), month(ts))",
        "INSERT INTO events SELECT * FROM rows2",
        "DELETE FROM events WHERE id % 7 = 2",
        "ALTER TABLE events ADD COLUMN extra INTEGER DEFAULT 5",
        "ALTER TABLE events RENAME COLUMN delta TO change",
        "ALTER TABLE events SET PARTITIONED BY (bucket(4, id), day(ts), country)",
        "INSERT INTO events SELECT *, id FROM rows3",
        "INSERT INTO events SELECT *, NULL FROM rows4 LIMIT 3",
        "DELETE FROM events WHERE id = 301",
    )
    expected = lake.connection.execute("SELECT * FROM events").to_arrow_table()
    lake.close()
    source = f"{lake.catalog}::events"
    plan = phalanx.spark.plan_import(None, source, uri, format="ducklake")
    assert (plan.total.rows, len(plan.refusals)) == (expected.num_rows, 0)
    assert kinds(plan) == {"bucket(4, id)": "changed", "day(ts)": "exact", "country": "exact"}
    done = phalanx.spark.import_table(
        spark, lake.catalog, uri, format="ducklake", table="main.events", progress=False
    )
    assert done.done.rows == expected.num_rows
    assert_same(uri, expected)
    again = phalanx.spark.import_table(spark, source, uri, format="ducklake", progress=False)
    assert again.done.chunks == 0
    # One file is missing: nothing is written.
    gone = next((tmp_path / "data").rglob("*.parquet"))
    gone.unlink()
    with pytest.raises(PhalanxError, match=gone.name):
        phalanx.spark.import_table(
            spark, source, tmp_path / "other", format="ducklake", progress=False
        )
    assert not (tmp_path / "other").exists()
    with pytest.raises(PhalanxError, match="it names no table"):
        phalanx.spark.plan_import(None, lake.catalog, uri, format="ducklake")


def test_an_iceberg_table_with_all_that_happened_to_it(
    spark: SparkSession, tmp_path: Path, uri: str
) -> None:
    catalog = catalog_at(tmp_path)
    table = catalog.create_table("lake.events", schema=sample(0).schema)
    table.append(sample(0))
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "id_bucket")
        spec.add_field("ts", MonthTransform(), "ts_month")
    table.append(sample(100))
    with table.update_spec() as spec:
        spec.remove_field("ts_month")
        spec.add_field("ts", DayTransform(), "ts_day")
        spec.add_field("delta", TruncateTransform(50), "delta_trunc")
        spec.add_field("country", IdentityTransform(), "country")
    with table.update_schema() as schema:
        schema.rename_column("country", "land")
        schema.update_column("delta", field_type=LongType())
    later = sample(200).rename_columns(["id", "delta", "ts", "land", "tags"])
    table.append(later.set_column(1, "delta", later["delta"].cast(pa.int64())))
    deleted = data_files(table)[0]
    add_deletes(table, position_deletes(table, [(deleted.file_path, 0)], deleted))
    table = catalog.load_table("lake.events")
    expected = table.scan().to_arrow()
    assert expected.num_rows == 3 * COUNT - 1
    plan = phalanx.spark.plan_import(None, table, uri)
    assert sorted(kinds(plan).values()) == ["changed", "changed", "exact", "exact"]
    assert plan.label == ("bucket(4, id), year(ts), month(ts), day(ts), truncate(50, delta), land")
    done = phalanx.spark.import_table(
        spark, table.metadata_location, uri, format="iceberg", progress=False
    )
    assert done.done.rows == expected.num_rows
    assert_same(uri, expected)
    # The same by its catalog, in the shell.
    options = ("--catalog-option", f"uri=sqlite:///{tmp_path}/catalog.db")
    given = ("import", "--from", "iceberg", "tests::lake.events", uri, *options)
    shown = run(*given, "--catalog-option", "type=sql", "--dry-run", "-o", "json")
    assert shown.exit_code == 0, shown.stderr
    assert strict_json(shown.stdout)["left"]["files"] == 0
    missing = run(*given, "--catalog-option", "type=sql", "--table", "lake.none", "--dry-run")
    assert missing.exit_code == 1
    Path(deleted.file_path.removeprefix("file://")).unlink()
    with pytest.raises(PhalanxError, match=deleted.file_path.rpartition("/")[2]):
        phalanx.spark.import_table(spark, table, tmp_path / "other", progress=False)
    assert not (tmp_path / "other").exists()
