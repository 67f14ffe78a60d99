"""Tables of a DuckLake by schema, snapshot and time, and catalogs that are refused."""

from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import phalanx
import phalanx.ducklake
from ducklakes import Lake, edit_catalog
from phalanx.model.transforms.epoch_parts import EpochYear


@pytest.fixture(scope="module")
def lake_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small lake, of which each test damages a copy."""
    folder = tmp_path_factory.mktemp("lake")
    lake = Lake("duckdb", folder)
    lake.run(
        "CREATE TABLE t (id BIGINT, ts TIMESTAMP, day DATE, clock TIME)",
        "ALTER TABLE t SET PARTITIONED BY (year(ts), id)",
        "INSERT INTO t SELECT i, TIMESTAMP '2024-01-01' + INTERVAL (i * 200) DAY, "
        "DATE '2024-01-01', TIME '01:02:03' FROM range(4) r(i)",
        "CREATE SCHEMA other",
        "CREATE TABLE other.u AS SELECT 1 AS id",
        "DELETE FROM t WHERE id = 3",
    )
    lake.close()
    return Path(lake.catalog)


@pytest.fixture
def catalog(lake_folder: Path, tmp_path: Path) -> str:
    copy = tmp_path / "catalog.db"
    copy.write_bytes(lake_folder.read_bytes())
    return str(copy)


def damage(catalog: str, *statements: str) -> None:
    with edit_catalog(catalog) as connection:
        for statement in statements:
            connection.execute(statement)


def test_tables_are_found_by_schema_snapshot_and_time(catalog: str) -> None:
    assert phalanx.ducklake.open(f"ducklake:{catalog}", "T").name == "main.t"
    assert phalanx.ducklake.open(Path(catalog), "other.u").plan().total_files == 1
    assert phalanx.ducklake.open(catalog, "u", schema="other").plan().total_files == 1
    with edit_catalog(catalog) as connection:
        rows = connection.execute("SELECT snapshot_id, snapshot_time FROM ducklake_snapshot")
        times = dict(rows.fetchall())
    table = phalanx.ducklake.open(catalog, "t", snapshot=3)
    assert (table.snapshot, table.plan().total_files, table.version) == (3, 4, "1.0")
    assert phalanx.ducklake.open(catalog, "t", snapshot=2).plan().total_files == 0
    assert phalanx.ducklake.open(catalog, "t", snapshot=times[3]).snapshot == 3
    assert phalanx.ducklake.open(catalog, "t", snapshot=times[4].isoformat()).snapshot == 4
    with pytest.raises(phalanx.InvalidCatalog, match="no snapshot 99: it has snapshots 0 to 6"):
        phalanx.ducklake.open(catalog, "t", snapshot=99)
    with pytest.raises(phalanx.InvalidCatalog, match="no snapshot"):
        phalanx.ducklake.open(catalog, "t", snapshot=datetime(2000, 1, 1, tzinfo=UTC))
    with pytest.raises(phalanx.PhalanxError, match="ISO 8601"):
        phalanx.ducklake.open(catalog, "t", snapshot="yesterday")


def test_parts_since_1970_are_taken_where_they_are_named_or_the_user_says_so(catalog: str) -> None:
    (first, _) = phalanx.ducklake.open(catalog, "t").spec.fields
    assert first.derivation != EpochYear(pa.int64())
    values = {file.values[0] for file in phalanx.ducklake.open(catalog, "t").plan().files}
    assert values == {2024, 2025}
    damage(
        catalog,
        "UPDATE ducklake_file_partition_value SET partition_value = "
        "(partition_value::INTEGER - 1970)::VARCHAR WHERE partition_key_index = 0",
    )
    where = "ts >= TIMESTAMP '2025-01-01 00:00:00'"
    table = phalanx.ducklake.open(catalog, "t", time_parts="epoch")
    assert {file.values[0] for file in table.plan(where).files} == {55}
    damage(
        catalog,
        "UPDATE ducklake_metadata SET value = '1.1' WHERE key = 'version'",
        "UPDATE ducklake_partition_column SET transform = 'epoch_year' WHERE transform = 'year'",
    )
    assert {file.values[0] for file in phalanx.ducklake.open(catalog, "t").plan(where).files} == {
        55
    }


@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        ("DROP TABLE ducklake_partition_column", phalanx.InvalidCatalog, "no table ducklake_part"),
        (
            "UPDATE ducklake_metadata SET value = '2.0' WHERE key = 'version'",
            phalanx.InvalidCatalog,
            "version 2.0",
        ),
        (
            "UPDATE ducklake_metadata SET value = 'new' WHERE key = 'version'",
            phalanx.InvalidCatalog,
            "version 'new'",
        ),
        (
            "UPDATE ducklake_metadata SET value = '0.1' WHERE key = 'version'",
            phalanx.InvalidCatalog,
            "version 0.1",
        ),
        ("DELETE FROM ducklake_metadata WHERE key = 'data_path'", phalanx.InvalidCatalog, "data_p"),
        (
            "UPDATE ducklake_partition_column SET transform = 'zorder(4)' WHERE transform = 'year'",
            phalanx.InvalidSpec,
            r"main.t of the catalog .*, partitioning 2: zorder\(4\)",
        ),
        (
            "UPDATE ducklake_partition_column SET transform = 'bucket(0)' WHERE transform = 'year'",
            phalanx.InvalidSpec,
            r"main.t of the catalog .*, partitioning 2: bucket\(0\): Cannot use num_buckets 0",
        ),
        (
            "UPDATE ducklake_partition_column SET column_id = 99 WHERE transform = 'year'",
            phalanx.InvalidCatalog,
            "column 99",
        ),
        (
            "UPDATE ducklake_partition_column SET transform = 'hour', column_id = 3 "
            "WHERE transform = 'year'",
            phalanx.InvalidSpec,
            r"hour of column 'day' \(date\): expected one of timestamp",
        ),
        (
            "UPDATE ducklake_partition_column SET transform = 'hour', column_id = 4 "
            "WHERE transform = 'year'",
            phalanx.InvalidSpec,
            r"hour of column 'clock' \(time\)",
        ),
        (
            "UPDATE ducklake_partition_column SET column_id = 1 WHERE transform = 'year'",
            phalanx.InvalidSpec,
            r"year of column 'id' \(int64\)",
        ),
        (
            "UPDATE ducklake_partition_column SET partition_key_index = 5 WHERE transform = 'year'",
            phalanx.InvalidCatalog,
            r"\[1, 5\]",
        ),
        ("DELETE FROM ducklake_partition_info", phalanx.InvalidCatalog, "partitioning 2"),
        (
            "UPDATE ducklake_data_file SET partition_id = 77 WHERE data_file_id = 1",
            phalanx.InvalidCatalog,
            "data file 1 .* partitioning 77",
        ),
        (
            "DELETE FROM ducklake_file_partition_value WHERE data_file_id = 1",
            phalanx.InvalidCatalog,
            "3 data files, but .* has 2 values",
        ),
        (
            "UPDATE ducklake_file_partition_value SET partition_value = 'x' WHERE data_file_id = 1",
            phalanx.InvalidCatalog,
            "value 'x'",
        ),
        ("DELETE FROM ducklake_column", phalanx.InvalidCatalog, "no columns"),
        (
            "UPDATE ducklake_column SET parent_column = 50 WHERE column_id = 3",
            phalanx.InvalidCatalog,
            "parent 50",
        ),
        ("DELETE FROM ducklake_table", phalanx.InvalidCatalog, "no table 't'"),
        ("DELETE FROM ducklake_snapshot", phalanx.InvalidCatalog, "no snapshot at all"),
        (
            "INSERT INTO ducklake_inlined_data_tables VALUES (1, 'ducklake_inlined_data_9', 1)",
            phalanx.InvalidCatalog,
            "ducklake_inlined_data_9",
        ),
    ],
)
def test_a_damaged_catalog_is_reported_with_the_place(
    catalog: str, statement: str, error: type[Exception], said: str
) -> None:
    damage(catalog, statement)
    before = Path(catalog).read_bytes()
    with pytest.raises(error, match=said):
        phalanx.ducklake.open(catalog, "t").plan("id = 1")
    assert Path(catalog).read_bytes() == before


def test_what_is_no_catalog_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("nothing of the kind")
    with pytest.raises(phalanx.InvalidCatalog, match="neither a DuckDB nor a SQLite file"):
        phalanx.ducklake.open(text, "t")
    with pytest.raises(phalanx.StorageFailure, match="no such file"):
        phalanx.ducklake.open(tmp_path / "absent.ducklake", "t")
    with pytest.raises(phalanx.InvalidCatalog, match="'mysql' catalogs"):
        phalanx.ducklake.open("ducklake:mysql:db=lake", "t")
    with pytest.raises(phalanx.InvalidCatalog, match="expected the path"):
        phalanx.ducklake.open("", "t")
    empty = tmp_path / "empty.duckdb"
    duckdb.connect(str(empty)).close()
    with pytest.raises(phalanx.InvalidCatalog, match="no table ducklake_metadata"):
        phalanx.ducklake.open(empty, "t")
    with pytest.raises(phalanx.StorageFailure) as failure:
        phalanx.ducklake.open(f"postgres:host={tmp_path} user=me password=secret", "t")
    assert "secret" not in str(failure.value)


def test_wrong_questions_are_refused(catalog: str) -> None:
    with pytest.raises(phalanx.InvalidCatalog, match=r"has no table 'tt'.* It has t"):
        phalanx.ducklake.open(catalog, "tt")
    with pytest.raises(phalanx.InvalidCatalog, match="no schema 'nowhere'"):
        phalanx.ducklake.open(catalog, "nowhere.t")
    with pytest.raises(phalanx.PhalanxError, match="'calendar', 'epoch' or None"):
        phalanx.ducklake.open(catalog, "t", time_parts="lunar")
    table = phalanx.ducklake.open(catalog, "t")
    with pytest.raises(phalanx.InvalidPredicate):
        table.plan("nothing = 1")
    with pytest.raises(phalanx.PhalanxError, match="no such option"):
        table.plan_rewrite(colour="blue")


def test_an_expired_snapshot_is_noticed(catalog: str) -> None:
    table = phalanx.ducklake.open(catalog, "t", snapshot=3)
    damage(catalog, "DELETE FROM ducklake_snapshot WHERE snapshot_id = 3")
    with pytest.raises(phalanx.InvalidCatalog, match="expired since"):
        table.plan("id = 1")
