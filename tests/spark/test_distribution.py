"""Distributions of rows to partitions: the same rows with each of them, in fewer files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql import types as st
from pyspark.sql.utils import is_remote

import phalanx
import phalanx.spark
from faults.programs.fault_injection import fail_at
from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.schema.schema import Schema
from phalanx.spark.runtime.options import WRITE_OPTIONS, Options
from phalanx.spark.runtime.placement import native_column, partition_columns
from phalanx.spark.runtime.types import arrow_schema
from phalanx.spark.source.distribution import choose_distribution, distribute
from phalanx.spark.source.writing import make_writer
from phalanx.storage.lance.fault_points import FaultPoint
from phalanx.table.jobs.small_files import combine_small_files
from tables import ids

SPEC = "bucket(4, id)"


def rows_of(spark: SparkSession, tasks: int = 4) -> DataFrame:
    """400 rows in 4 tasks, each of which has rows of all partitions."""
    return spark.range(0, 400, 1, tasks).select(
        "id",
        # Every hour of 400 hours around the turn of the year in UTC.
        fn.timestamp_seconds(fn.lit(1_735_689_600 - 200 * 3600) + fn.col("id") * 3600).alias("ts"),
        fn.concat(fn.lit("né"), fn.col("id").cast("string")).alias("name"),
    )


def fragments(uri: str) -> int:
    return int(phalanx.open(uri).files().num_rows)


def test_a_shuffle_leaves_one_file_for_each_partition(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    df = rows_of(spark)
    for kind in ("hash", "none", "auto"):
        uri = str(tmp_path / kind)
        done = phalanx.spark.write(df, uri, partition_by=SPEC, distribution=kind)
        assert ids(uri) == list(range(400))
        partitions = phalanx.open(uri).partitions()
        assert phalanx.open(uri).schema.names == ["id", "ts", "name"]
        assert partitions.num_rows == 4
        assert fragments(uri) == (16 if kind == "none" else 4)
        assert done.kind == ("hash" if kind == "auto" else kind)
    told = capsys.readouterr().err
    assert "distribution hash: rows are shuffled to their partitions, because each task" in told
    writer = df.write.format("phalanx").option("distribution", "hash").mode("append")
    writer.option("partition_by", SPEC).save(str(tmp_path / "gathered"))
    assert fragments(str(tmp_path / "gathered")) == 4
    assert ids(str(tmp_path / "gathered")) == list(range(400))


@pytest.mark.parametrize("transaction", ["weak", "strong"])
def test_the_committing_process_gathers_small_files(
    transaction: str, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = st.StructType([st.StructField("id", st.LongType())])

    def save(distribution: str, overwrite: bool = False) -> str:
        given = {"path": uri, "partition_by": SPEC, "transaction": transaction}
        options = Options.of({**given, "distribution": distribution}, WRITE_OPTIONS, "write")
        writer = make_writer(options, schema, overwrite)
        parts = (pa.record_batch({"id": range(start, 160, 4)}) for start in range(4))
        writer.commit([None, *(writer.write(iter([part])) for part in parts)])
        return capsys.readouterr().err

    assert save("hash") == f"{phalanx_wrote(4, transaction)} of {uri}\n"
    assert (fragments(uri), ids(uri)) == (4, list(range(160)))
    save("hash")
    assert (fragments(uri), ids(uri)) == (8, sorted([*range(160), *range(160)]))
    assert "small fragments" not in save("none", overwrite=True)
    assert (fragments(uri), ids(uri)) == (16, list(range(160)))
    assert "16 small fragments for 4 partitions make reads slow" in save("auto", overwrite=True)


def phalanx_wrote(fragments: int, transaction: str) -> str:
    snapshot = ", snapshot 1" if transaction == "strong" else ""
    return f"phalanx: wrote 160 rows to 4 partitions in {fragments} fragments{snapshot}"


@pytest.mark.parametrize("transaction", ["weak", "strong"])
def test_gathering_that_dies_changes_nothing(transaction: str, uri: str) -> None:
    data = pa.table({"id": pa.array(range(100), pa.int64())})
    table = phalanx.create(uri, data.schema, "bucket(2, id)", transaction=transaction)
    table.append(data.slice(0, 10))
    job = table.begin_write()
    tasks = [job.write(data.slice(start, 30).to_reader()) for start in (10, 40, 70)]
    with fail_at(FaultPoint.FILES_WRITTEN, 2, OSError("no")), pytest.raises(OSError, match="no"):
        combine_small_files(job, tasks)
    assert ids(uri) == list(range(10))
    few = [task for task in combine_small_files(job, tasks) if task.files]
    assert [len(task.files) for task in few] == [2]
    assert combine_small_files(job, few) == few
    assert job.commit(few).fragments == 2
    assert (fragments(uri), ids(uri)) == (4, list(range(100)))


def test_rows_of_a_partition_get_the_same_place(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own functions, in a session of another zone, tell partitions apart like Phalanx."""
    df = (
        rows_of(spark, 2)
        .withColumn("small", fn.col("id") - 200)
        .withColumn("day", fn.to_date(fn.timestamp_seconds(fn.col("id") * 500_000)))
    )
    df = df.withColumn("half", fn.when(fn.col("id") % 2 == 0, fn.lit(-0.0)).otherwise(fn.lit(0.0)))
    specs = {
        "year(ts), month(ts), day(ts), hour(ts)": True,
        "year(day), month(day), day(day)": True,
        "truncate(10, small)": True,
        "truncate(3, name)": True,
        "half": True,
        "bucket(5, name)": False,
        "multi_bucket(3, id, name)": False,
    }
    for place, (text, is_native) in enumerate(specs.items()):
        table = phalanx.create(tmp_path / str(place), arrow_schema(df.schema), text)
        schema = Schema.of(table.schema)
        for field in table.spec.fields:
            assert (native_column(field, schema, df.schema) is not None) == is_native
        columns = partition_columns(table.spec, schema, df.schema)
        found = df.select(*df.columns, fn.xxhash64(*columns).alias("place")).toArrow()
        values = table.spec.compute_partition_values(
            found.select(df.columns).cast(table.schema), schema
        )
        both = values.append_column("place", found["place"])
        pairs = both.group_by(both.column_names).aggregate([]).num_rows
        assert pairs == values.group_by(values.column_names).aggregate([]).num_rows, text
        assert pairs == pc.count_distinct(found["place"]).as_py()


def test_a_large_partition_keeps_several_tasks_busy(spark: SparkSession, uri: str) -> None:
    df = spark.range(0, 200_000, 1, 4).withColumn("same", fn.lit(1))
    table = phalanx.create(uri, arrow_schema(df.schema), "same")
    name = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
    spark.conf.set(name, "200k")
    try:
        phalanx.spark.write(df, uri, distribution="hash")
    finally:
        spark.conf.unset(name)
    assert table.partitions().num_rows == 1
    assert 1 < fragments(uri) <= 4
    assert table.scan().count_rows() == 200_000


def test_auto_says_why(spark: SparkSession, tmp_path: Path) -> None:
    df = rows_of(spark)
    table = phalanx.create(tmp_path / "t", arrow_schema(df.schema), SPEC)
    single = phalanx.create(tmp_path / "one", arrow_schema(df.schema), [])
    decide = choose_distribution
    # Connect does not report the number of tasks, so a single task is not known either.
    tasks = "an unknown number of tasks" if is_remote() else "4 tasks"
    assert f"({tasks}, 5 partitions, " in decide(df, table, "auto").reason
    assert decide(df, single, "auto").kind == "none"
    assert decide(df.coalesce(1), table, "auto").kind == ("hash" if is_remote() else "none")
    assert decide(df.repartition(4), table, "auto").kind == "hash"
    assert distribute(df, table, decide(df, table, "none")) is df


def test_what_cannot_be_written_is_refused_on_the_driver(spark: SparkSession, uri: str) -> None:
    df = rows_of(spark)
    with pytest.raises(PhalanxError, match="mode='ignore'"):
        phalanx.spark.write(df, uri, mode="ignore", partition_by=SPEC)
    with pytest.raises(PhalanxError, match="distribution='range'"):
        phalanx.spark.write(df, uri, partition_by=SPEC, distribution="range")
    with pytest.raises(phalanx.NotPartitioned, match="partition_by"):
        phalanx.spark.write(df, uri)
    phalanx.create(uri, pa.schema([("id", pa.int64())]), [])
    with pytest.raises(SchemaMismatch, match="'ts', 'name'"):
        phalanx.spark.write(df, uri)
    assert phalanx.spark.write(df, uri, if_exists="ignore").kind == "none"
