"""Imports of tables: the same rows, exactly once, with concurrent changes and failures."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import phalanx
import phalanx.spark
from integration.shell import ROWS, assert_fails, run, strict_json
from phalanx.errors import InvalidSpec, PhalanxError, SchemaMismatch
from phalanx.spark.pipelines import table_imports as importing
from tables import ids


def many_types(count: int) -> pa.Table:
    """Rows of every type that the shell knows, numbered, with vectors, lists and dictionaries."""
    table = pa.concat_tables([ROWS] * -(-count // ROWS.num_rows)).slice(0, count)
    vectors = pa.array([[i, -i] for i in range(count)], pa.list_(pa.float32(), 2))
    table = table.set_column(0, "id", pa.array(range(count), pa.int64()))
    table = table.append_column("vector", vectors)
    tags = pa.array([None if i % 5 == 0 else [f"t{i}"] for i in range(count)])
    words = pa.array([("x", "y", None)[i % 3] for i in range(count)]).dictionary_encode()
    return table.append_column("tags", tags).append_column("word", words).combine_chunks()


def sorted_rows(table: pa.Table) -> pa.Table:
    return table.sort_by("id").combine_chunks()


def contents(uri: str) -> pa.Table:
    return sorted_rows(phalanx.open(uri).scan().to_arrow())


@pytest.mark.executors
def test_a_lance_table_comes_once(
    spark: SparkSession, tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(tmp_path / "source.lance")
    dataset = lance.write_dataset(many_types(90), source, max_rows_per_file=20)
    dataset.delete("id < 5 OR id = 50")
    plan = phalanx.spark.plan_import(None, source, uri, "bucket(3, id)", chunk_size=1)
    assert (plan.system, plan.state, plan.total.rows, plan.chunks) == ("lance", "version 2", 84, 5)
    assert not Path(uri).exists(), "a plan writes nothing"
    done = phalanx.spark.import_table(spark, source, uri, "bucket(3, id)", chunk_size=1)
    assert (done.done.rows, done.done.chunks, done.done.files) == (84, 5, 5)
    assert (done.plan, done.done.partitions) == (plan, 3)
    assert str(plan) in capsys.readouterr().err
    assert phalanx.open(uri).mode == "strong"
    expected = sorted_rows(lance.dataset(source).to_table())
    assert contents(uri).equals(expected)
    # A repeated import adds nothing, takes new files, and refuses changes of imported files.
    again = phalanx.spark.import_table(spark, source, uri)
    assert (again.done.chunks, again.done.skipped_files) == (0, 5)
    assert str(again).startswith("Nothing to import: ")
    for same in (f"file://{source}", f"{tmp_path}/../{tmp_path.name}/source.lance"):
        assert phalanx.spark.plan_import(None, same, uri, format="lance").remaining.files == 0
    lance.write_dataset(many_types(3), source, mode="append")
    more = phalanx.spark.import_table(spark, source, uri, progress=False)
    assert (more.done.rows, more.done.files, more.plan.remaining.rows) == (3, 1, 3)
    assert phalanx.open(uri).scan().count_rows() == 87
    lance.dataset(source).delete("id = 60")
    with pytest.raises(PhalanxError, match="1 file of 6 that were imported are no longer") as told:
        phalanx.spark.plan_import(None, source, uri)
    assert "\n" not in str(told.value)
    anew = phalanx.spark.plan_import(None, source, uri, id="anew")
    assert anew.remaining.rows == 86


def test_a_table_of_phalanx_keeps_its_partitions(
    spark: SparkSession, tmp_path: Path, uri: str
) -> None:
    rows = many_types(30)
    old = phalanx.create(tmp_path / "old", rows.schema, "country", transaction="strong")
    old.append(rows.slice(0, 10))
    old.evolve("year(local), bucket(4, id), country")
    old.append(rows.slice(10))
    old.delete("id % 7 = 0")
    old.rename_column("price", "cost")
    plan = phalanx.spark.plan_import(None, old, uri)
    assert (plan.label, plan.chosen_by) == ("year(local), bucket(4, id), country", "source")
    assert "spec v1 by country, whose rows are repartitioned" in str(plan)
    done = phalanx.spark.import_table(spark, old, uri, distribution="hash", progress=False)
    new = phalanx.open(uri)
    assert [field.field_id for field in new.spec.fields] == [
        *("local_year", "id_bucket", "country")
    ]
    expected = sorted_rows(old.scan().to_arrow())
    assert contents(uri).equals(expected)
    assert done.done.fragments == done.done.partitions == new.partitions().num_rows
    # Into an existing table: its partitioning and its types are used.
    wide = expected.schema.set(0, pa.field("id", pa.int64()))
    other = str(tmp_path / "other")
    phalanx.create(other, wide, "truncate(10, id)", transaction="weak")
    for _ in range(2):
        phalanx.spark.import_table(spark, old.uri, other, format="phalanx", progress=False)
    assert phalanx.open(other).scan().count_rows() == 2 * expected.num_rows, "weak mode repeats"
    with pytest.raises(InvalidSpec, match="it is partitioned by truncate"):
        phalanx.spark.plan_import(None, old, other, "id")
    with pytest.raises(PhalanxError, match="into itself"):
        phalanx.spark.plan_import(None, old, old.uri)


def test_imports_at_the_same_time_share_the_files(
    spark: SparkSession, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tmp_path / "source.lance")
    lance.write_dataset(pa.table({"id": range(40)}), source, max_rows_per_file=10)
    checked = importing.check_written

    def check_late(*arguments: Any) -> None:
        monkeypatch.setattr(importing, "check_written", checked)
        other = phalanx.spark.import_table(spark, source, uri, chunk_size=1, progress=False)
        assert other.done.rows == 40
        checked(*arguments)

    monkeypatch.setattr(importing, "check_written", check_late)
    done = phalanx.spark.import_table(spark, source, uri, "id", progress=False)
    assert (done.done.rows, done.done.skipped_files) == (0, 4)
    assert ids(uri) == list(range(40))


def test_what_is_wrong_is_reported_before_anything_is_written(tmp_path: Path, uri: str) -> None:
    spark: Any = None
    source = str(tmp_path / "source.lance")

    def catch_error(*arguments: object, **named: object) -> str:
        with pytest.raises(PhalanxError) as failure:
            phalanx.spark.import_table(spark, *arguments, **named)  # type: ignore[arg-type]
        assert "\n" not in str(failure.value)
        assert not Path(uri).exists()
        return str(failure.value)

    assert "no Lance table" in catch_error(source, uri, "id")
    assert "no partitioned namespace" in catch_error(str(tmp_path), uri, format="phalanx")
    lance.write_dataset(pa.table({"id": range(20)}), source, max_rows_per_file=10)
    assert "the source is not partitioned" in catch_error(source, uri)
    assert "'nope'" in catch_error(source, uri, "nope")
    assert "chunk_size='big'" in catch_error(source, uri, "id", chunk_size="big")
    assert "distribution='x'" in catch_error(source, uri, "id", distribution="x")
    shutil.copytree(source, tmp_path / "broken.lance")
    next((tmp_path / "broken.lance" / "data").iterdir()).unlink()
    assert "broken.lance" in catch_error(str(tmp_path / "broken.lance"), uri, "id")
    phalanx.create(tmp_path / "there", pa.schema([("id", pa.string())]), [])
    with pytest.raises(SchemaMismatch, match="'id' is string"):
        phalanx.spark.plan_import(None, source, tmp_path / "there")


def test_rows_that_a_file_does_not_have_are_missed(
    spark: SparkSession, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from phalanx.table.imports.sources import open_lance_source

    source = str(tmp_path / "source.lance")
    lance.write_dataset(pa.table({"id": range(20)}), source, max_rows_per_file=10)
    found = open_lance_source(source)
    wrong = replace(found, units=(found.units[0], replace(found.units[1], rows=11)))  # type: ignore[type-var]
    with pytest.raises(PhalanxError, match="read 10 rows, but expected 11"):
        phalanx.spark.import_table(spark, wrong, uri, [], progress=False)
    assert phalanx.open(uri).scan().count_rows() == 0


def test_the_shell_shows_the_plan_first(spark: SparkSession, tmp_path: Path, uri: str) -> None:
    source = str(tmp_path / "source.lance")
    lance.write_dataset(pa.table({"id": range(20)}), source)
    given = ("import", "--from", "lance", source, uri, "--partition-by", "bucket(2, id)")
    shown = run(*given, "--dry-run")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "partitioned by bucket(2, id), as requested" in shown.stdout
    planned = strict_json(run(*given, "--dry-run", "-o", "json").stdout)
    assert planned["total"]["rows"] == 20
    assert not Path(uri).exists()
    done = run(*given, "-o", "json")
    assert done.exit_code == 0, done.stderr
    assert shown.stdout in done.stderr
    made = strict_json(done.stdout)
    assert (made["rows"], made["partitions"], made["plan"]) == (20, 2, planned)
    assert ids(uri) == list(range(20))
    missing = str(tmp_path / "missing")
    assert_fails(run("import", "--from", "phalanx", missing, uri, "--dry-run"), 1, missing)
    assert_fails(run(*given, "--chunk-size", "big"), 2, "--chunk-size")


def test_files_have_a_plan_too(spark: SparkSession, tmp_path: Path, uri: str) -> None:
    folder = tmp_path / "in 1%"
    folder.mkdir()
    for number in range(2):
        table = pa.table({"id": range(number * 10, number * 10 + 10)})
        pq.write_table(table, folder / f"{number}.parquet")
    source = str(folder)
    plan = phalanx.spark.plan_import(spark, source, uri, "bucket(2, id)", chunk_size=1)
    assert (plan.system, plan.total.rows, plan.remaining.files, plan.chunks) == (
        "parquet",
        20,
        2,
        2,
    )
    assert not Path(uri).exists()
    done = phalanx.spark.import_table(spark, source, uri, "bucket(2, id)", progress=False)
    assert (done.done.rows, ids(uri)) == (20, list(range(20)))
    pq.write_table(pa.table({"id": [20]}), folder / "2.parquet")
    more = phalanx.spark.import_table(spark, source, uri, progress=False)
    assert (more.plan.total.rows, more.plan.remaining.rows, more.done.rows) == (21, 1, 1)
    (tmp_path / "rows.csv").write_text("id\n21\n22\n")
    text = phalanx.spark.import_table(spark, str(tmp_path / "rows.csv"), uri, progress=False)
    assert (text.plan.remaining.rows, text.done.rows) == (None, 2)
    with pytest.raises(PhalanxError, match="Spark, which reads them"):
        phalanx.spark.plan_import(None, source, uri)
