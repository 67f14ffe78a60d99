"""Planning over a DuckLake catalog of very many files, compared with a hand-written query."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_ducklake
import pyarrow as pa

import phalanx.ducklake
from bench.measure import Beside, Measured, cost, time_alternately
from phalanx.model.transforms.ducklake import DuckLakeBucket

FILES = 1_000_000
BUCKETS = 64
_MONTHS = 120
_TABLE = 1
_WHERE = "ts >= '2021-03-01' and ts < '2021-04-01' and id = 4711"
_WIDE = "ts >= '2021-03-01' and ts < '2022-03-01'"
# One of a thousand files has deleted rows.
_DELETES = 1_000


def benchmarks(rows: int) -> Iterator[Measured | Beside]:
    """Measure planning, which does not depend on `rows`."""
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        catalog = Path(folder) / "catalog.ducklake"
        _make(catalog, Path(folder) / "data")
        table = phalanx.ducklake.open(catalog, "events")
        for where in (_WHERE, _WIDE):
            ours, theirs = table.plan(where).planned_files, len(_query_by_hand(catalog, where))
            assert ours == theirs, f"{ours} files planned, {theirs} found by the query"
        times = time_alternately(
            {
                "plan": lambda: table.plan(_WHERE),
                "open and plan": lambda: phalanx.ducklake.open(catalog, "events").plan(_WHERE),
                "by hand": lambda: _query_by_hand(catalog, _WHERE),
                "files": lambda: table.plan(_WIDE).files,
                "files by hand": lambda: _query_by_hand(catalog, _WIDE),
                "rewrite": lambda: table.plan_rewrite(_WHERE),
            },
            5,
        )
        found, many = table.plan(_WHERE), table.plan(_WIDE)
    name = "DuckDB, a hand-written query of the catalog"
    what = f"plan a filter over a DuckLake of {FILES:,} files: {found.planned_files} to read"
    yield cost(what, times["plan"], name, times["by hand"], 2)
    yield cost(
        f"plan the same, {many.planned_files:,} files to read, and make an object of each",
        times["files"],
        name,
        times["files by hand"],
        2,
    )
    yield Beside(
        f"open a DuckLake of {FILES:,} files, plan a filter, and plan a rewrite",
        {"open and plan": times["open and plan"], "plan a rewrite": times["rewrite"]},
    )


def _make(catalog: Path, data: Path) -> None:
    """Create a real catalog, and insert only the rows that describe files."""
    lake = duckdb.connect()
    (path,) = Path(str(duckdb_extension_ducklake.__file__)).parent.glob("extensions/*/*_extension")
    lake.execute(f"LOAD '{path}'")
    lake.execute(f"ATTACH 'ducklake:{catalog}' AS lake (DATA_PATH '{data}')")
    lake.execute("CREATE TABLE lake.events (id BIGINT, ts TIMESTAMP, amount DOUBLE)")
    lake.execute(
        f"ALTER TABLE lake.events SET PARTITIONED BY (year(ts), month(ts), bucket({BUCKETS}, id))"
    )
    lake.close()
    own = duckdb.connect(str(catalog))
    (partition_id,) = _one(own, "SELECT max(partition_id) FROM ducklake_partition_info")
    own.execute(
        "INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, path, "
        "path_is_relative, file_format, record_count, file_size_bytes, partition_id) "
        f"SELECT i, {_TABLE}, 2, 'part/' || i || '.parquet', true, 'parquet', 1000, 10000, "
        f"{partition_id} FROM range({FILES}) r(i)"
    )
    month = f"(i % {_MONTHS})"
    for index, value in enumerate(
        (f"2015 + {month} // 12", f"{month} % 12 + 1", f"i // {_MONTHS} % {BUCKETS}")
    ):
        own.execute(
            f"INSERT INTO ducklake_file_partition_value SELECT i, {_TABLE}, {index}, "
            f"({value})::VARCHAR FROM range({FILES}) r(i)"
        )
    start = f"TIMESTAMP '2015-01-01' + to_months({month}::INTEGER)"
    for column, low, high in (
        (1, "i % 1000", "i % 1000 + 500000"),
        (2, start, f"{start} + INTERVAL 27 DAY"),
        (3, "0.5", "1.5"),
    ):
        own.execute(
            "INSERT INTO ducklake_file_column_stats (data_file_id, table_id, column_id, "
            "value_count, null_count, min_value, max_value, contains_nan) "
            f"SELECT i, {_TABLE}, {column}, 1000, 0, ({low})::VARCHAR, ({high})::VARCHAR, false "
            f"FROM range({FILES}) r(i)"
        )
    own.execute(
        "INSERT INTO ducklake_delete_file (delete_file_id, table_id, begin_snapshot, data_file_id, "
        "path, path_is_relative, format, delete_count, file_size_bytes) "
        f"SELECT {FILES} + i, {_TABLE}, 2, i, 'part/' || i || '-delete.parquet', true, 'parquet', "
        f"10, 500 FROM range(0, {FILES}, {_DELETES}) r(i)"
    )
    own.close()


def _query_by_hand(catalog: Path, where: str) -> list[Any]:
    """Run the query that an expert would write: partition values, bounds and delete files."""
    one_month = where == _WHERE
    first = "2021-03-01"
    last = "2021-04-01" if one_month else "2022-03-01"
    values = (
        "y.partition_value = '2021' AND m.partition_value = '3' "
        f"AND b.partition_value = '{_bucket(4711)}'"
        if one_month
        else "(y.partition_value = '2021' AND m.partition_value::INTEGER >= 3 "
        "OR y.partition_value = '2022' AND m.partition_value::INTEGER < 3)"
    )
    column, bounds = (
        (1, "min_value::BIGINT <= 4711 AND max_value::BIGINT >= 4711")
        if one_month
        else (2, f"max_value >= '{first}' AND min_value < '{last}'")
    )
    connection = duckdb.connect()
    connection.execute(f"ATTACH '{catalog}' AS meta (READ_ONLY)")
    connection.execute("USE meta")
    joins = " ".join(
        f"JOIN ducklake_file_partition_value {alias} ON {alias}.data_file_id = f.data_file_id "
        f"AND {alias}.partition_key_index = {index}"
        for index, alias in enumerate("ymb")
    )
    found = connection.execute(
        "SELECT f.data_file_id, f.path, f.record_count, f.file_size_bytes, y.partition_value, "
        "m.partition_value, b.partition_value, d.path, d.delete_count, d.file_size_bytes "
        f"FROM ducklake_data_file f {joins} LEFT JOIN ducklake_delete_file d "
        "ON d.data_file_id = f.data_file_id AND d.end_snapshot IS NULL "
        f"WHERE f.table_id = {_TABLE} AND f.end_snapshot IS NULL AND {values} "
        "AND f.data_file_id IN (SELECT data_file_id FROM ducklake_file_column_stats "
        f"WHERE column_id = {column} AND {bounds}) ORDER BY f.data_file_id"
    ).fetchall()
    connection.close()
    return found


def _bucket(value: int) -> int:
    return int(DuckLakeBucket(BUCKETS).apply(pa.array([value]))[0].as_py())


def _one(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    found = connection.execute(sql).fetchone()
    assert found is not None
    return found
