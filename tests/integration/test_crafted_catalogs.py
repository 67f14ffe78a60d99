"""Untrusted catalogs: their names, paths and properties are only data."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

import phalanx
import phalanx.ducklake
import phalanx.iceberg
from ducklakes import Lake, edit_catalog
from integration.iceberg_tables import catalog_at
from phalanx.errors import InvalidCatalog, PhalanxError
from phalanx.foreign.ducklake.connection import CatalogLocation
from phalanx.foreign.file_systems import is_inside, open_input
from phalanx.table.imports.sources import open_source


@pytest.fixture(scope="module")
def lake_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    lake = Lake("duckdb", folder)
    lake.run("CREATE TABLE t AS SELECT i AS id FROM range(4) r(i)")
    lake.close()
    return folder


@pytest.fixture
def lake(lake_folder: Path, tmp_path: Path) -> str:
    """A copy of the catalog with an unrelated file in the same folder."""
    copy = tmp_path / "catalog.db"
    copy.write_bytes((lake_folder / "catalog.ducklake").read_bytes())
    pq.write_table(pa.table({"id": pa.array([666], pa.int64())}), tmp_path / "secret.parquet")
    return str(copy)


def change(catalog: str, *statements: str) -> None:
    with edit_catalog(catalog) as connection:
        for statement in statements:
            connection.execute(statement)


# ── DuckLake ─────────────────────────────────────────────────────────────────────────────────


def test_a_name_in_a_catalog_is_never_read_as_sql(lake: str) -> None:
    name = 'ducklake_snapshot" r WHERE true --'
    quoted = name.replace('"', '""')
    change(
        lake,
        f'CREATE TABLE "{quoted}" (row_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT)',
        f"INSERT INTO ducklake_inlined_data_tables VALUES (1, '{name}', 1)",
    )
    assert phalanx.ducklake.open(lake, "t").plan().inlined == ()


def test_the_schema_of_a_catalog_is_never_read_as_sql(lake: str) -> None:
    with pytest.raises(InvalidCatalog, match="has no table ducklake_metadata"):
        phalanx.ducklake.open(lake, "t", metadata_schema='main"."ducklake_metadata" --')


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{folder}/secret.parquet')",
        "SELECT * FROM '{folder}/secret.parquet'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "ATTACH '{folder}/other.db' AS other",
        "COPY (SELECT 1) TO '{folder}/written.csv'",
        "LOAD httpfs",
        "SELECT * FROM held",
    ],
)
def test_nothing_in_a_catalog_reaches_outside(lake: str, tmp_path: Path, sql: str) -> None:
    before = sorted(tmp_path.iterdir())
    held = pa.table({"a": [1]})  # a variable of Python is no table
    with (
        pytest.raises(InvalidCatalog, match=r"Cannot read the catalog"),
        CatalogLocation.of(lake).open() as reading,
    ):
        reading.fetch_rows(sql.format(folder=tmp_path))
    assert held.num_rows == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "path", ["'../../../secret.parquet'", "'{folder}/secret.parquet', path_is_relative = false"]
)
def test_files_outside_of_a_lake_are_read_only_if_it_is_trusted(
    lake: str, tmp_path: Path, path: str
) -> None:
    (tmp_path / "data/main/t").mkdir(parents=True)
    change(lake, f"UPDATE ducklake_data_file SET path = {path.format(folder=tmp_path)}")
    options: dict[str, Any] = {"data_path": f"{tmp_path}/data"}
    table = phalanx.ducklake.open(lake, "t", **options)
    assert len(table.plan().files) == 1
    with pytest.raises(PhalanxError, match=r"secret.parquet', which is outside .*trust_locations"):
        table.import_units()
    with pytest.raises(PhalanxError, match="outside"):
        open_source(f"{lake}::t", "ducklake", options=options)
    source = open_source(f"{lake}::t", "ducklake", options={**options, "trust_locations": "true"})
    assert len(source.units) == 1


def test_numbers_that_are_none_are_damage(lake: str) -> None:
    change(lake, "UPDATE ducklake_partition_info SET partition_id = NULL")
    change(lake, "UPDATE ducklake_column SET begin_snapshot = NULL")
    with pytest.raises(InvalidCatalog):
        phalanx.ducklake.open(lake, "t").plan()
    change(lake, "UPDATE ducklake_column SET begin_snapshot = 0")
    change(lake, "UPDATE ducklake_data_file SET file_size_bytes = NULL, record_count = NULL")
    with pytest.raises(InvalidCatalog, match="The catalog is damaged"):
        phalanx.ducklake.open(lake, "t").import_units()


# ── paths ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "folder", "inside"),
    [
        ("/lake/t/x", "/lake/t", True),
        ("/lake/t/", "/lake/t", False),
        ("/lake/tx/x", "/lake/t", False),
        ("/lake/t/../u/x", "/lake/t", False),
        ("file:///lake/t/x", "/lake/t/", True),
        ("s3a://lake/t/x", "s3://lake/t", True),
        ("s3://lake/t/../u/x", "s3://lake/t", False),
        ("s3://other/t/x", "s3://lake/t", False),
        ("gs://lake/t/x", "s3://lake/t", False),
        ("/lake/t/x", "s3://lake/t", False),
    ],
)
def test_what_is_inside_of_a_folder(path: str, folder: str, inside: bool) -> None:
    assert is_inside(path, folder) is inside


def test_a_link_inside_of_a_folder_leads_outside(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "secret").touch()
    (tmp_path / "t/x").symlink_to(tmp_path / "secret")
    assert not is_inside(f"{tmp_path}/t/x", f"{tmp_path}/t")


@pytest.mark.parametrize(
    "path",
    [
        "gs://bucket/x?endpoint_override=evil.example",
        "s3://key:secret@bucket/x",
        "hdfs://evil.example/x",
        "http://evil.example/x",
    ],
)
def test_a_path_says_nothing_about_the_connection(path: str) -> None:
    with pytest.raises(PhalanxError, match="names a file and no user or settings"):
        open_input(path, {})


# ── Iceberg ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def iceberg(tmp_path: Path) -> Table:
    table = catalog_at(tmp_path).create_table(
        "lake.t", pa.schema([pa.field("id", pa.int64(), nullable=True)])
    )
    table.append(pa.table({"id": pa.array([1, 2], pa.int64())}))
    return table


def source_options(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Code that could be imported, and the file that it would leave."""
    marker = tmp_path / "ran"
    (tmp_path / "crafted_io.py").write_text(
        f"open({str(marker)!r}, 'w').close()\nclass Evil:\n    def __init__(self, *_): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("crafted_io", None)
    return marker


def set_property(table: Table, key: str, text: str) -> str:
    """Write the property into the metadata file, as an attacker would."""
    place = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(place.read_text())
    metadata["properties"][key] = text
    place.write_text(json.dumps(metadata))
    return str(place)


@pytest.mark.parametrize("key", ["py-io-impl", "write.py-location-provider.impl"])
def test_a_table_loads_no_code(iceberg: Table, tmp_path: Path, marker: Path, key: str) -> None:
    place = set_property(iceberg, key, "crafted_io.Evil")
    with pytest.raises(PhalanxError, match=f"{key} names code to run"):
        open_source(place, "iceberg")
    with pytest.raises(PhalanxError, match=f"{key} names code to run"):
        open_source("tests::lake.t", "iceberg", options=source_options(tmp_path))
    assert not marker.exists()
    assert "crafted_io" not in sys.modules


def test_a_table_does_not_say_where_credentials_go(iceberg: Table, tmp_path: Path) -> None:
    place = set_property(iceberg, "s3.endpoint", "http://evil.example")
    for open_it in (
        lambda: phalanx.iceberg.open(iceberg.refresh()),
        lambda: open_source(place, "iceberg"),
        lambda: open_source("tests::lake.t", "iceberg", options=source_options(tmp_path)),
    ):
        with pytest.raises(PhalanxError, match=r"s3\.endpoint sets how to connect to its store"):
            open_it()
    trusted = open_source(place, "iceberg", options={"trust_locations": "true"})
    assert sum(unit.rows for unit in trusted.units) == 2


def test_files_outside_of_an_iceberg_table_need_trust(iceberg: Table, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([3], pa.int64())}), tmp_path / "other.parquet")
    iceberg.add_files([f"file://{tmp_path}/other.parquet"])
    table = phalanx.iceberg.open(iceberg)
    assert len(table.plan().files) == 2
    (outside,) = [unit for unit in table.import_units() if unit.path.endswith("other.parquet")]
    with pytest.raises(PhalanxError, match=r"other.parquet', which is outside .*trust_locations"):
        outside.check()
    with pytest.raises(PhalanxError, match="outside"):
        list(outside.batches())
    trusted = phalanx.iceberg.open(iceberg, trust_locations=True)
    assert sorted(
        number
        for unit in trusted.import_units()
        for batch in unit.batches()
        for number in batch.column("id").to_pylist()
    ) == [1, 2, 3]


@pytest.mark.parametrize("key", ["write.data.path", "write.metadata.path"])
def test_a_rewrite_writes_nothing_outside(iceberg: Table, tmp_path: Path, key: str) -> None:
    for _ in range(5):
        iceberg.append(pa.table({"id": pa.array([1], pa.int64())}))
    victim = tmp_path / "victim"
    victim.mkdir()
    set_property(iceberg, key, f"file://{victim}")
    table = phalanx.iceberg.open(iceberg.refresh())
    with pytest.raises(PhalanxError, match=r"written to .*victim.*, outside of its folder"):
        table.rewrite(table.plan_rewrite())
    assert not list(victim.iterdir())
