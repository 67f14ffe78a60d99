"""Rows of lakes, read without their catalog: deletes, changed columns, and inlined rows."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import phalanx.ducklake
from ducklakes import KINDS, Lake, PostgresServer
from phalanx.ducklake import DuckLakeTable

VALUES = (
    "SELECT i AS id, i * 1.5 AS ratio, TIMESTAMP '2024-01-01 00:00:00.123456' AS ts, "
    "DATE '2024-01-01' + i::INTEGER AS day, TIMESTAMPTZ '2024-01-01 00:00:00+00' AS moment, "
    "md5(i::VARCHAR)::UUID AS token, (i * 1.25)::DECIMAL(10,2) AS amount, "
    "(-i * 0.0001)::DECIMAL(30,4) AS big, '\\x00ab'::BLOB AS bytes, 'it''s \"' || i AS name, "
    "{{'a': i::INTEGER, 'b': 'x, y'}} AS deep, [i::INTEGER, NULL, 3] AS list, "
    "MAP{{'k': i::INTEGER}} AS pairs, i % 2 = 0 AS flag, i::UTINYINT AS small, "
    "18446744073709551615::UBIGINT AS large, 123::HUGEINT AS huge, TIME '01:02:03.5' AS clock, "
    "'2024-01-01 01:02:03'::TIMESTAMP_S AS seconds, "
    "'2024-01-01 01:02:03.123'::TIMESTAMP_MS AS millis, '{{\"a\": 1}}'::JSON AS doc, "
    "CASE WHEN i % 2 = 0 THEN 'nan'::REAL ELSE 1.1 END AS single FROM range({0}, {1}) r(i)"
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.stop()


def rows_of(table: DuckLakeTable) -> pa.Table:
    """Return all rows as another process reads them from the pickled units."""
    units = pickle.loads(pickle.dumps(table.import_units()))
    tables = []
    for unit in units:
        found = pa.Table.from_batches(list(unit.batches()))
        assert found.num_rows == unit.rows
        tables.append(found)
    assert len({unit.id for unit in units}) == len(units)
    assert [unit.id for unit in units] == [unit.id for unit in table.import_units()]
    return pa.concat_tables(tables)


def same(found: pa.Table, lake: Lake, sql: str) -> None:
    """Compare with what DuckLake reads; NaN equals NaN, and texts stand for what has no type."""
    expected = lake.connection.execute(sql).to_arrow_table()
    assert found.column_names == expected.column_names
    for name in found.column_names:
        ours, theirs = found.column(name), expected.column(name)
        if isinstance(theirs.type, pa.ExtensionType) or not pa.types.is_nested(ours.type):
            ours, theirs = ours.cast(pa.string()), texts(theirs, lake, sql, name, ours)
        assert format_values(ours) == format_values(theirs), name


def texts(column: Any, lake: Lake, sql: str, name: str, ours: Any) -> Any:
    if pa.types.is_string(ours.type) and not pa.types.is_string(column.type):
        return lake.connection.execute(
            f'SELECT "{name}"::VARCHAR AS v FROM ({sql})'
        ).to_arrow_table()["v"]
    return column.cast(ours.type).cast(pa.string())


def format_values(column: Any) -> list[str]:
    return [str(value) for value in column.to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_that_ducklake_reads(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = request.getfixturevalue("server").database() if kind == "postgres" else None
    lake = Lake(kind, tmp_path, database, inlined=10)
    lake.run(
        f"CREATE TABLE t AS {VALUES.format(0, 5)}",
        f"INSERT INTO t {VALUES.format(5, 105)}",
        "DELETE FROM t WHERE id IN (2, 50, 51)",
        "ALTER TABLE t ADD COLUMN added INTEGER DEFAULT 7",
        "ALTER TABLE t ADD COLUMN deep.c INTEGER",
        "ALTER TABLE t RENAME COLUMN name TO text",
        "ALTER TABLE t DROP COLUMN flag",
        "ALTER TABLE t ADD COLUMN flag VARCHAR",
        "ALTER TABLE t ALTER COLUMN small SET DATA TYPE SMALLINT",
        "INSERT INTO t (id, added, flag) VALUES (1000, 8, 'new'), (1001, NULL, NULL)",
    )
    lake.run(
        "ALTER TABLE t SET PARTITIONED BY (bucket(4, id))",
        "INSERT INTO t (id, added, flag) SELECT i, i, 'x' FROM range(2000, 2030) r(i)",
        "DELETE FROM t WHERE id = 2005",
    )
    before = lake.rows("SELECT max(snapshot_id) FROM lake.snapshots()")[0][0]
    lake.run("DELETE FROM t WHERE id < 60", "DELETE FROM t WHERE id = 2006")
    table = phalanx.ducklake.open(lake.catalog, "t")
    same(rows_of(table).sort_by("id"), lake, "SELECT * FROM t ORDER BY id")
    plan = table.plan()
    inlined = sum(each.rows for each in plan.inlined)
    assert inlined == 2
    assert "2 rows that are inlined in the catalog" in str(plan)
    earlier = phalanx.ducklake.open(lake.catalog, "t", snapshot=before)
    same(
        rows_of(earlier).sort_by("id"),
        lake,
        f"SELECT * FROM t AT (VERSION => {before}) ORDER BY id",
    )
    lake.close()


def test_files_of_several_snapshots_are_cut_at_each(tmp_path: Path) -> None:
    """DuckLake merges files and flushes inlined rows into ones that hold a history."""
    lake = Lake("duckdb", tmp_path)
    lake.run("CREATE TABLE t (id INTEGER, name VARCHAR)")
    for start in (0, 10, 20):
        lake.run(f"INSERT INTO t SELECT i, 'a' FROM range({start}, {start + 10}) r(i)")
    lake.run(
        "CALL ducklake_merge_adjacent_files('lake')",
        "DELETE FROM t WHERE id = 3",
        "DELETE FROM t WHERE id = 13",
        "CALL lake.set_option('data_inlining_row_limit', 100)",
        "INSERT INTO t VALUES (100, 'b'), (101, 'c')",
        "INSERT INTO t VALUES (102, 'd')",
        "DELETE FROM t WHERE id = 101",
        "CALL ducklake_flush_inlined_data('lake')",
    )
    last = lake.rows("SELECT max(snapshot_id) FROM lake.snapshots()")[0][0]
    for snapshot in range(2, last + 1):
        table = phalanx.ducklake.open(lake.catalog, "t", snapshot=snapshot)
        expected = lake.rows(f"SELECT id FROM t AT (VERSION => {snapshot}) ORDER BY id")
        assert rows_of(table)["id"].to_pylist() == [row[0] for row in expected], snapshot
    lake.close()


def test_files_that_others_wrote_are_matched_by_their_names(tmp_path: Path) -> None:
    lake = Lake("duckdb", tmp_path)
    lake.run(
        "CREATE TABLE t (id BIGINT, deep STRUCT(a BIGINT), part VARCHAR)",
        "COPY (SELECT i AS id, {'a': i} AS deep, 'x y' AS part FROM range(5) r(i)) "
        f"TO '{tmp_path}/other' (FORMAT parquet, PARTITION_BY (part))",
        f"CALL ducklake_add_data_files('lake', 't', '{tmp_path}/other/**/*.parquet', "
        "hive_partitioning => true)",
        "ALTER TABLE t RENAME COLUMN id TO number",
    )
    table = phalanx.ducklake.open(lake.catalog, "t", trust_locations=True)
    same(rows_of(table).sort_by("number"), lake, "SELECT * FROM t ORDER BY number")
    lake.close()


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    lake = Lake("duckdb", tmp_path)
    lake.run(
        "CREATE TABLE t AS SELECT 1 AS id, INTERVAL 1 DAY AS span",
        "CREATE TABLE gone AS SELECT 1 AS id",
    )
    lake.close()
    table = phalanx.ducklake.open(lake.catalog, "t")
    assert table.unreadable_columns == {"span": "interval"}
    assert len(table.plan("id = 1").files) == 1
    with pytest.raises(phalanx.PhalanxError, match=r"span \(interval\)"):
        table.import_units()
    (unit,) = phalanx.ducklake.open(lake.catalog, "gone").import_units()
    (path,) = (tmp_path / "data/main/gone").glob("*.parquet")
    path.unlink()
    with pytest.raises(phalanx.StorageFailure, match=path.name):
        list(unit.batches())


def test_encrypted_files_are_refused(tmp_path: Path) -> None:
    lake = Lake("duckdb", tmp_path, options=", ENCRYPTED")
    lake.run("SET force_mbedtls_unsafe = 'true'", "CREATE TABLE t AS SELECT 1 AS id")
    lake.close()
    table = phalanx.ducklake.open(lake.catalog, "t")
    assert len(table.plan("id = 1").files) == 1
    with pytest.raises(phalanx.PhalanxError, match="encrypted"):
        table.import_units()
