"""Errors are raised on the driver, in one line that names the objects."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as t
from pyspark.sql.datasource import CaseInsensitiveDict

import phalanx
from phalanx.errors import (
    InvalidPredicate,
    InvalidSpec,
    NotPartitioned,
    PhalanxError,
    SchemaMismatch,
)
from phalanx.spark.source.source import PhalanxSource
from tables import SCHEMA

FITTING = "k string, n bigint"


@pytest.fixture
def table(uri: str) -> phalanx.Table:
    made = phalanx.create(uri, SCHEMA, ["k"])
    made.append(pa.table({"k": ["a"], "n": [1]}))
    return made


def source(uri: str | None, **options: str) -> PhalanxSource:
    given = CaseInsensitiveDict(options)
    if uri is not None:
        given["path"] = uri
    return PhalanxSource(given)


# Spark itself reads such texts only with a session.
TYPES = {
    "string": t.StringType(),
    "bigint": t.LongType(),
    "int": t.IntegerType(),
    "double": t.DoubleType(),
    "array<string>": t.ArrayType(t.StringType()),
    "struct<a: int>": t.StructType([t.StructField("a", t.IntegerType())]),
    "interval year": t.YearMonthIntervalType(0, 0),
}


def _ddl(text: str) -> t.StructType:
    pairs = (column.split(" ", 1) for column in text.split(", "))
    return t.StructType([t.StructField(name, TYPES[kind]) for name, kind in pairs])


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "0")


# ── as Spark asks, without Spark ─────────────────────────────────────────────────────────────

READS: list[tuple[Mapping[str, str], type[PhalanxError], str]] = [
    ({"where": "m = 1"}, InvalidPredicate, r"'m = 1'.*No column 'm'.*k, n"),
    ({"where": "n ="}, InvalidPredicate, r"'n ='"),
    ({"where": ""}, InvalidPredicate, r"''"),
    ({"where": "n + 1"}, InvalidPredicate, r"'n \+ 1'"),
    ({"wher": "n = 1"}, PhalanxError, r"option 'wher'.*Did you mean 'where'"),
    ({"replace_where": "n = 1"}, PhalanxError, r"option 'replace_where'.*Expected one of"),
    ({"zzz": "1"}, PhalanxError, r"option 'zzz'.*Expected one of .*where"),
    ({"columns": "k,m"}, PhalanxError, r"'m'"),
    ({"columns": "k,k"}, PhalanxError, r"'k'"),
    ({"columns": "[k"}, PhalanxError, r"columns='\[k'"),
    ({"columns": "[1]"}, PhalanxError, r"1"),
    ({"columns": ""}, PhalanxError, r"''"),
    ({"snapshot": "1"}, PhalanxError, r"weak mode.*set_mode"),
    ({"snapshot": "yesterday"}, PhalanxError, r"snapshot='yesterday'.*2025-12-31T12"),
    ({"metadata_table": "partition"}, PhalanxError, r"metadata_table='partition'.*'partitions'"),
    ({"metadata_table": "files", "where": "n=1"}, PhalanxError, r"'files' with where='n=1'"),
    ({"metadata_table": "files", "columns": "n"}, PhalanxError, r"'files' with columns='n'"),
    ({"storage_options": "region"}, PhalanxError, r"storage_options='region'.*JSON"),
    ({"storage_options": '["a"]'}, PhalanxError, r"storage_options=.*JSON"),
    ({"storage_options": '{"a": 1}'}, PhalanxError, r"storage_options=.*JSON object of strings"),
]


@pytest.mark.parametrize(("options", "kind", "message"), READS, ids=lambda each: str(each)[:40])
def test_reads_are_refused_when_they_are_loaded(
    table: phalanx.Table, options: Mapping[str, str], kind: type[PhalanxError], message: str
) -> None:
    check_refused(lambda: source(table.uri, **options).schema(), kind, message)


@pytest.mark.parametrize(
    ("options", "schema", "kind", "message"),
    [
        ({}, "n int", SchemaMismatch, r"'n' as int: it is bigint"),
        ({}, "n bigint, m int", SchemaMismatch, r"'m'.*has k, n"),
        ({}, "k struct<a: int>", SchemaMismatch, r"'k' as struct<a:int>: it is string"),
        ({"metadata_table": "partitions"}, "rows int", SchemaMismatch, r"'rows' as int.*bigint"),
        ({"metadata_table": "partitions"}, "zz int", SchemaMismatch, r"'zz'.*spec_id"),
        ({"where": "m = 1"}, "n bigint", InvalidPredicate, r"No column 'm'"),
        ({"split_size": "big"}, "n bigint", PhalanxError, r"split_size='big'.*128MB"),
        ({"split_size": "0"}, "n bigint", PhalanxError, r"split_size='0'"),
        ({"starting_snapshot": "1"}, "n bigint", PhalanxError, r"'starting_snapshot'"),
    ],
)
def test_reads_are_refused_when_they_are_planned(
    table: phalanx.Table,
    options: Mapping[str, str],
    schema: str,
    kind: type[PhalanxError],
    message: str,
) -> None:
    """With a schema of the user's own Spark asks for nothing before that."""
    check_refused(
        lambda: source(table.uri, **options).reader(_ddl(schema)).partitions(), kind, message
    )


WRITES: list[tuple[Mapping[str, str], str, bool, type[PhalanxError], str]] = [
    ({}, "k string", False, SchemaMismatch, r"lacks the column 'n': expected k, n"),
    ({}, "k string, m bigint", False, SchemaMismatch, r"lacks the column 'n'"),
    ({}, f"{FITTING}, m int", False, SchemaMismatch, r"'m', which the table does not have"),
    ({}, "k string, n string", False, SchemaMismatch, r"'n' is int64, but .* string"),
    ({}, "k string, n double", False, SchemaMismatch, r"'n' is int64, but .* double"),
    ({}, "k array<string>, n bigint", False, SchemaMismatch, r"'k' is string, but .*list"),
    ({}, "k string, n interval year", False, SchemaMismatch, "column 'n' as interval year"),
    ({"replace_where": "n = 1"}, FITTING, False, PhalanxError, r"replace_where='n = 1'.*overwrite"),
    ({"replace_where": "m = 1"}, FITTING, True, InvalidPredicate, r"'m'"),
    ({"replace_where": ""}, FITTING, True, InvalidPredicate, r"''"),
    ({"partition_overwrite": "dynamic"}, FITTING, False, PhalanxError, r"partition_overwrite"),
    ({"partition_overwrite": "some"}, FITTING, True, PhalanxError, r"='some'.*'dynamic'"),
    (
        {"partition_overwrite": "dynamic", "replace_where": "n = 1"},
        *(FITTING, True, PhalanxError, r"both replace_where and partition_overwrite"),
    ),
    ({"partition_by": "bucket(4, n)"}, FITTING, False, InvalidSpec, r"by bucket\(4, n\).*by k"),
    ({"partition_by": "buket(4, n)"}, FITTING, False, InvalidSpec, r"buket"),
    ({"transaction": "strong"}, FITTING, False, PhalanxError, r"'strong'.*weak mode"),
    ({"transaction": "stronk"}, FITTING, False, PhalanxError, r"'stronk'.*'strong'"),
    ({"if_exists": "error"}, FITTING, False, PhalanxError, r"if_exists='error'"),
    ({"if_exists": "fail"}, FITTING, False, PhalanxError, r"if_exists='fail'.*'ignore'"),
    ({"marker": "monday"}, FITTING, False, PhalanxError, r"'monday'.*weak mode"),
    ({"replacewhere": "n = 1"}, FITTING, True, PhalanxError, r"Did you mean 'replace_where'"),
    ({"where": "n = 1"}, FITTING, True, PhalanxError, r"option 'where'.*replace_where"),
]


@pytest.mark.parametrize(
    ("options", "schema", "overwrite", "kind", "message"), WRITES, ids=lambda each: str(each)[:40]
)
def test_writes_are_refused_before_tasks_start(
    table: phalanx.Table,
    options: Mapping[str, str],
    schema: str,
    overwrite: bool,
    kind: type[PhalanxError],
    message: str,
) -> None:
    before = table.partitions()
    writing = source(table.uri, **options)
    check_refused(lambda: writing.writer(_ddl(schema), overwrite), kind, message)
    assert table.partitions() == before


@pytest.mark.parametrize(
    ("partition_by", "message"),
    [
        ("year(k)", r"year.*'k'"),
        ("bucket(0, n)", r"0"),
        ("bucket(n)", r"bucket"),
        ("m", r"'m'"),
        ("k, k", r"'k'"),
        ("k,, n", r"k,, n"),
        ("year(", r"year\("),
    ],
)
def test_a_table_is_not_made_by_a_bad_partition_by(
    uri: str, partition_by: str, message: str
) -> None:
    making = source(uri, partition_by=partition_by)
    check_refused(lambda: making.writer(_ddl(FITTING), False), PhalanxError, message)
    check_refused(lambda: source(uri).schema(), NotPartitioned, uri)


def test_a_missing_path_is_named(uri: str) -> None:
    check_refused(lambda: source(uri).schema(), NotPartitioned, uri)
    check_refused(lambda: source(None).schema(), PhalanxError, r"path is missing.*load\(path\)")
    writing = source(uri)
    check_refused(
        lambda: writing.writer(_ddl(FITTING), False), NotPartitioned, rf"{uri}.*partition_by"
    )
    check_refused(
        lambda: source(None).writer(_ddl(FITTING), False), PhalanxError, r"path is missing"
    )
    check_refused(lambda: source("s3:/x").schema(), PhalanxError, r"s3:/x.*s3://bucket")


def check_refused(call: Callable[[], Any], kind: type[PhalanxError], message: str) -> None:
    with pytest.raises(kind, match=message) as error:
        call()
    assert "\n" not in str(error.value)
    # It arrives at the driver unchanged.
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


# ── through Spark ────────────────────────────────────────────────────────────────────────────


def catch_message(call: Callable[[], Any]) -> str:
    with pytest.raises(PySparkException) as error:
        call()
    text = str(error.value)
    assert "Traceback" not in text
    assert 'File "' not in text
    return text.partition("SQLSTATE")[0].strip()


def test_spark_shows_one_line(spark: SparkSession, table: phalanx.Table) -> None:
    read = spark.read.format("phalanx")
    loading = catch_message(lambda: read.option("where", "m = 1").load(table.uri).count())
    assert loading.count("\n") == 0
    assert "InvalidPredicate: Cannot use the predicate 'm = 1': No column 'm'" in loading
    planning = catch_message(
        lambda: spark.read.format("phalanx").schema("n int").load(table.uri).collect()
    )
    assert "SchemaMismatch: Cannot read column 'n' as int: it is bigint" in planning
    assert planning.count("\n") == 0
    data = spark.sql("SELECT 'a' AS k, 'x' AS n")
    writing = catch_message(lambda: data.write.format("phalanx").mode("append").save(table.uri))
    assert "SchemaMismatch: Column 'n' is int64, but the data has it as string" in writing
    assert writing.count("\n") == 0


@pytest.mark.executors
def test_a_task_shows_what_is_wrong_with_its_rows(
    spark: SparkSession, table: phalanx.Table
) -> None:
    data = spark.sql("SELECT 'a' AS k, 5L AS n")
    writer = data.write.format("phalanx").mode("overwrite").option("replace_where", "n > 5")
    text = catch_message(lambda: writer.save(table.uri))
    assert "InvalidPredicate: Row 0 of the data does not match 'n > 5'" in text
    assert table.scan().count_rows() == 1
