"""The data files of an Iceberg table as units that any process can read."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

import phalanx.iceberg
from integration.iceberg_tables import (
    add_deletes,
    catalog_at,
    data_files,
    deletion_vector,
    equality_deletes,
    position_deletes,
)
from phalanx.errors import StorageFailure
from phalanx.iceberg import IcebergTable

SCHEMA = Schema(
    NestedField(1, "id", IntegerType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "x", FloatType()),
    NestedField(4, "who", UUIDType()),
    NestedField(5, "place", StructType(NestedField(6, "city", StringType()))),
)
ARROW = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("x", pa.float32()),
        ("who", pa.binary(16)),
        ("place", pa.struct([("city", pa.string())])),
    ]
)


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    columns = {
        "id": list(numbers),
        "name": [f"n{n % 3}" for n in numbers],
        "x": [n / 2 for n in numbers],
        "who": [n.to_bytes(16, "big") for n in numbers],
        "place": [{"city": f"c{n}"} for n in numbers],
    }
    return pa.table(columns, schema=ARROW)


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return catalog_at(tmp_path)


def make(catalog: SqlCatalog) -> Table:
    return catalog.create_table("lake.t", SCHEMA)


def read(opened: IcebergTable) -> pa.Table:
    batches = [batch for unit in opened.import_units() for batch in unit.batches()]
    assert all(batch.schema.equals(opened.schema.arrow, True) for batch in batches)
    return pa.Table.from_batches(batches, opened.schema.arrow)


def test_rows_come_in_the_current_schema(catalog: SqlCatalog) -> None:
    table = make(catalog)
    table.append(rows(0, 6))
    with table.update_schema() as changes:
        changes.rename_column("name", "label")
        changes.rename_column(("place", "city"), "town")
        changes.delete_column("who")
        changes.add_column("note", StringType())
    with table.update_schema() as changes:
        changes.update_column("id", LongType())
        changes.move_first("label")
    # A new column of an old name is another column.
    with table.update_schema() as changes:
        changes.add_column("who", StringType())
    opened = phalanx.iceberg.open(table)
    found = read(opened)
    assert found.column_names == ["label", "id", "x", "place", "note", "who"]
    assert found.schema.types[:3] == [pa.string(), pa.int64(), pa.float32()]
    assert found.column("id").to_pylist() == list(range(6))
    assert found.column("label").to_pylist() == [f"n{n % 3}" for n in range(6)]
    assert found.column("place").to_pylist()[0] == {"town": "c0"}
    assert found.column("who").null_count == found.column("note").null_count == 6
    first = phalanx.iceberg.open(table, snapshot=table.snapshots()[0].snapshot_id)
    assert read(first).cast(ARROW).equals(rows(0, 6))


def test_units_are_read_in_another_process(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = make(catalog)
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(2), "id_bucket")
        change.add_field("name", IdentityTransform(), "name_itself")
    table.append(rows(0, 12))
    file = data_files(table)[0]
    add_deletes(table, position_deletes(table, [(file.file_path, 0)], file))
    units = phalanx.iceberg.open(table).import_units()
    again = phalanx.iceberg.open(catalog.load_table("lake.t")).import_units()
    assert [unit.id for unit in units] == [unit.id for unit in again]
    assert len({unit.id for unit in units}) == len(units)
    assert sum(unit.rows for unit in units) == 11
    pickled = tmp_path / "units.pickle"
    pickled.write_bytes(pickle.dumps(units))
    (tmp_path / "catalog.db").unlink()
    code = (
        "import pickle, sys\n"
        "units = pickle.load(open(sys.argv[1], 'rb'))\n"
        "for unit in units:\n"
        "    unit.check()\n"
        "print(sorted(n for u in units for b in u.batches() for n in b['id'].to_pylist()))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code, str(pickled)], capture_output=True, text=True, check=True
    ).stdout
    gone = table.scan().to_arrow().column("id").to_pylist()
    assert printed.strip() == str(sorted(gone))
    assert len(gone) == 11


def test_every_kind_of_deletes_is_applied(catalog: SqlCatalog) -> None:
    table = make(catalog)
    table.append(rows(0, 10))
    table.append(rows(10, 10))
    table.append(rows(20, 10))
    one, two, three = sorted(data_files(table), key=lambda file: file.lower_bounds[1])
    names = pa.table({"name": pa.array(["n1"]), "id": pa.array([22], pa.int32())})
    add_deletes(
        table,
        position_deletes(table, [(one.file_path, 0), (one.file_path, 3), (two.file_path, 1)], one),
        position_deletes(table, [(one.file_path, 3), (one.file_path, 4)], one),
        equality_deletes(table, names, [2, 1], None),
    )
    add_deletes(table, deletion_vector(table, three, [9]))
    table.append(rows(22, 1))
    opened = phalanx.iceberg.open(table)
    ids = read(opened).column("id").to_pylist()
    expected = set(range(30)) - {0, 3, 4, 11, 22, 29}
    assert sorted(ids) == sorted([*expected, 22])
    assert [unit.rows for unit in opened.import_units()] == [7, 9, 8, 1]
    with table.update_schema() as changes:
        changes.delete_column("name")
    # The rows stay deleted by a column that is there no more.
    assert sorted(read(phalanx.iceberg.open(table)).column("id").to_pylist()) == sorted(ids)


def test_deletes_by_equality_compare_null_uuid_and_promoted_columns(catalog: SqlCatalog) -> None:
    table = make(catalog)
    some = rows(0, 6).set_column(0, "id", pa.array([0, None, 2, 3, 4, 5], pa.int32()))
    table.append(some)
    gone = pa.table({"id": pa.array([None, 4], pa.int32())})
    by_uuid = pa.table({"who": pa.array([(2).to_bytes(16, "big")], pa.binary(16))})
    add_deletes(
        table,
        equality_deletes(table, gone, [1], None),
        equality_deletes(table, by_uuid, [4], None),
    )
    with table.update_schema() as changes:
        changes.update_column("id", LongType())
    assert read(phalanx.iceberg.open(table)).column("id").to_pylist() == [0, 3, 5]


def test_files_without_ids_are_read_by_the_name_mapping(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    table = make(catalog)
    path = tmp_path / "plain.parquet"
    pq.write_table(rows(0, 5), path)
    table.add_files([f"file://{path}"])
    with table.update_schema() as changes:
        changes.rename_column("name", "label")
    found = read(phalanx.iceberg.open(table, trust_locations=True))
    assert found.column("label").to_pylist() == rows(0, 5).column("name").to_pylist()


def test_many_batches_keep_the_place_of_a_row(catalog: SqlCatalog) -> None:
    table = make(catalog)
    table.append(rows(0, 300_000))
    (file,) = data_files(table)
    gone = [0, 131_071, 131_072, 262_143, 262_144, 299_999]
    add_deletes(table, position_deletes(table, [(file.file_path, n) for n in gone], file))
    ids = read(phalanx.iceberg.open(table)).column("id").to_pylist()
    assert ids == [n for n in range(300_000) if n not in set(gone)]


def test_a_missing_or_damaged_file_is_named(catalog: SqlCatalog) -> None:
    table = make(catalog)
    table.append(rows(0, 5))
    (file,) = data_files(table)
    path = Path(file.file_path.removeprefix("file://"))
    (unit,) = phalanx.iceberg.open(table).import_units()
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(StorageFailure, match=f"{path.name}.*it has 4 rows, not 5 as listed"):
        list(unit.batches())
    path.write_bytes(b"PAR1")
    with pytest.raises(StorageFailure, match=path.name):
        list(unit.batches())
    unit.check()
    path.unlink()
    for ask in (unit.check, lambda: list(unit.batches())):
        with pytest.raises(StorageFailure, match=f"{path.name}.*gone"):
            ask()
    deletes = position_deletes(table, [(file.file_path, 0)], file)
    add_deletes(table, deletes)
    Path(deletes.file_path.removeprefix("file://")).unlink()
    with pytest.raises(StorageFailure, match=f"{Path(deletes.file_path).name}.*gone"):
        phalanx.iceberg.open(table).import_units()
