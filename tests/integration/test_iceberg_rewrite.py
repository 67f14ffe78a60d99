"""Rewrites of real Iceberg tables: the same rows, with concurrent readers and writers."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_avro
import duckdb_extension_iceberg
import pyarrow as pa
import pytest
from pyiceberg import expressions as ice
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    TruncateTransform,
)
from pyiceberg.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
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
from phalanx.errors import CommitConflict, PhalanxError, StorageFailure, UnknownOutcome
from phalanx.foreign.iceberg import rewrite as iceberg_rewrite
from phalanx.foreign.iceberg import writing as iceberg_commit
from phalanx.foreign.iceberg.writing import NewFiles

START = datetime.datetime(2024, 12, 28, tzinfo=datetime.UTC)
SCHEMA = Schema(
    NestedField(1, "id", IntegerType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "ts", TimestamptzType()),
    NestedField(4, "x", DoubleType()),
    NestedField(5, "who", UUIDType()),
    NestedField(6, "raw", BinaryType()),
    NestedField(7, "tags", ListType(8, StringType(), False)),
    NestedField(9, "counts", MapType(10, StringType(), 11, LongType(), False)),
    NestedField(12, "place", StructType(NestedField(13, "city", StringType()))),
)
ARROW = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("x", pa.float64()),
        ("who", pa.binary(16)),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("place", pa.struct([("city", pa.string())])),
    ]
)


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    table = pa.table(
        {
            "id": [None if n % 13 == 5 else n for n in numbers],
            "name": [None if n % 7 == 1 else f"{'abc'[n % 3]}{n}" for n in numbers],
            "ts": [START + datetime.timedelta(hours=5 * n) for n in numbers],
            "x": [math.nan if n % 5 == 0 else n / 4 for n in numbers],
            "who": [n.to_bytes(16, "big") for n in numbers],
            "raw": [bytes([n % 256]) * (n % 4) for n in numbers],
            "tags": [[f"t{n}", None] if n % 3 else None for n in numbers],
            "counts": [[("a", n)] if n % 4 else None for n in numbers],
            "place": [{"city": f"c{n}"} if n % 6 else None for n in numbers],
        },
        schema=ARROW,
    )
    return table


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return catalog_at(tmp_path)


def make(catalog: SqlCatalog, **properties: str) -> Table:
    return catalog.create_table("lake.t", SCHEMA, properties=properties)


def in_order(table: pa.Table) -> list[Any]:
    """The rows in one order, NaN and all, whichever way they were read."""
    plain = [column.cast(column.type) for column in table.columns]
    texts = zip(*(map(str, column.to_pylist()) for column in plain), strict=True)
    return sorted(texts)


def by_pyiceberg(table: Table) -> list[Any]:
    return in_order(table.refresh().scan().to_arrow())


def by_duckdb(table: Table) -> list[Any]:
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for module in (duckdb_extension_avro, duckdb_extension_iceberg):
        (folder,) = module.__path__
        (extension,) = Path(folder).glob("extensions/*/*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    location = table.refresh().metadata_location
    connection.execute("SET TimeZone = 'UTC'")
    return in_order(connection.execute(f"FROM iceberg_scan('{location}')").to_arrow_table())


def operations(table: Table) -> list[Operation]:
    return [each.summary.operation for each in table.refresh().snapshots() if each.summary]


def check_same(table: Table, change: Callable[[], object]) -> None:
    """Every reader finds the same rows before and after."""
    before = by_pyiceberg(table), by_duckdb(table)
    change()
    assert by_pyiceberg(table) == before[0]
    assert by_duckdb(table) == before[1]


@pytest.mark.parametrize("version", ["1", "2"])
def test_an_evolved_table_reads_the_same_after_a_rewrite(catalog: SqlCatalog, version: str) -> None:
    table = make(catalog, **{"format-version": version})
    table.append(rows(0, 30))
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(3), "id_bucket")
    for first in (30, 40, 50):
        table.append(rows(first, 10))
    with table.update_spec() as change:
        change.add_field("ts", DayTransform(), "ts_day")
        change.add_field("who", IdentityTransform(), "who_itself")
    table.append(rows(60, 4))
    with table.update_spec() as change:
        change.remove_field("ts_day")
        change.remove_field("who_itself")
        change.add_field("name", TruncateTransform(1), "name_trunc")
    opened = phalanx.iceberg.open(table)
    plan = opened.plan_rewrite(rewrite_all=True)
    done: list[Any] = []
    check_same(table, lambda: done.append(opened.rewrite(plan)))
    (result,) = done
    assert result.rows == 64
    assert result.files_before == plan.rewritten_files
    assert result.files_after == len(data_files(table))
    assert operations(table)[-len(plan.groups) :] == [Operation.REPLACE] * len(plan.groups)
    assert {file.spec_id for file in data_files(table)} == {table.spec().spec_id}
    # Old snapshots still read what they had.
    old = table.refresh().scan(snapshot_id=opened.snapshot_id).to_arrow()
    assert in_order(old) == by_pyiceberg(table)
    after = phalanx.iceberg.open(table)
    assert sum(file.rows for file in after.plan().files) == 64
    assert after.plan("name = 'a3'").planned_files < len(data_files(table))
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary["total-records"] == "64"
    assert summary["total-data-files"] == str(len(data_files(table)))


def test_deleted_rows_are_gone_for_good(catalog: SqlCatalog) -> None:
    table = make(catalog)
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(2), "id_bucket")
    table.append(rows(0, 20))
    table.append(rows(20, 20))
    for file in data_files(table):
        add_deletes(table, position_deletes(table, [(file.file_path, 0)], file))
    opened = phalanx.iceberg.open(table)
    plan = opened.plan_rewrite(delete_file_threshold=1)
    assert plan.rewritten_files == len(data_files(table))
    assert all(group.delete_files for group in plan.groups)
    check_same(table, lambda: opened.rewrite(plan))
    assert all(not file.deletes for file in phalanx.iceberg.open(table).plan().files)
    assert sum(file.record_count for file in data_files(table)) == table.scan().count()


def test_files_outside_a_group_keep_their_deletes(catalog: SqlCatalog) -> None:
    table = make(catalog)
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(4), "id_bucket")
    table.append(rows(0, 40))
    table.append(rows(40, 40))
    for file in data_files(table):
        add_deletes(table, position_deletes(table, [(file.file_path, 1)], file))
    opened = phalanx.iceberg.open(table)
    plan = opened.plan_rewrite("id = 4", rewrite_all=True)
    assert 0 < plan.rewritten_files < len(data_files(table))
    before = {file.path: file for file in opened.plan().files}
    check_same(table, lambda: opened.rewrite(plan))
    after = {file.path: file for file in phalanx.iceberg.open(table).plan().files}
    rewritten = {file.path for group in plan.groups for file in group.files}
    assert not rewritten & after.keys()
    # In the same manifest, with the same sequence number, partition and deletes.
    assert all(after[path] == before[path] for path in before.keys() - rewritten)


def test_deletes_by_equality_are_applied_though_pyiceberg_reads_none(catalog: SqlCatalog) -> None:
    table = make(catalog)
    table.append(rows(0, 20))
    (file,) = data_files(table)
    gone = pa.table({"id": pa.array([3, None], pa.int32())})
    add_deletes(table, equality_deletes(table, gone, [1], None))
    table.append(rows(0, 4))
    before = by_duckdb(table)
    with pytest.raises(ValueError, match="equality deletes"):
        table.scan().to_arrow()
    opened = phalanx.iceberg.open(table)
    # The second file is newer than the deletes.
    assert [unit.rows for unit in opened.import_units()] == [17, 4]
    opened.rewrite(opened.plan_rewrite(rewrite_all=True))
    assert by_duckdb(table) == before
    assert file.file_path not in {each.file_path for each in data_files(table)}


def test_a_group_without_rows_leaves_no_file(
    catalog: SqlCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    table = make(catalog)
    table.append(rows(0, 2))
    table.append(rows(2, 3))
    small = next(file for file in data_files(table) if file.record_count == 2)
    add_deletes(table, position_deletes(table, [(small.file_path, n) for n in (0, 1)], small))
    opened = phalanx.iceberg.open(table)
    check_same(table, lambda: opened.rewrite(opened.plan_rewrite(rewrite_all=True)))
    (left,) = data_files(table)
    assert left.record_count == 3
    add_deletes(table, position_deletes(table, [(left.file_path, n) for n in range(3)], left))
    opened = phalanx.iceberg.open(table)
    caplog.clear()
    caplog.set_level("INFO", "phalanx")
    done = opened.rewrite(opened.plan_rewrite(rewrite_all=True))
    assert data_files(table.refresh()) == []
    assert table.scan().count() == 0
    (line,) = (each.getMessage() for each in caplog.records if each.name == "phalanx.foreign")
    assert line.startswith(f"Committed snapshot {done.snapshots[0]} of the Iceberg table ")
    assert line.endswith("rewrote 1 file into 0")


def test_nan_and_both_zeros_as_partition_values_lose_and_double_no_row(
    catalog: SqlCatalog,
) -> None:
    table = make(catalog)
    xs = [0.0, -0.0, math.nan, math.nan, 1.5, None]
    table.append(rows(0, 6).set_column(3, "x", pa.array(xs)))
    with table.update_spec() as change:
        change.add_field("x", IdentityTransform(), "x_itself")
    opened = phalanx.iceberg.open(table)
    opened.rewrite(opened.plan_rewrite(rewrite_all=True))
    found = table.refresh().scan().to_arrow().column("id").to_pylist()
    assert sorted(found, key=str) == sorted([0, 1, 2, 3, 4, None], key=str)
    # Those of NaN are rewritten again: their manifest is found without comparing NaN.
    opened = phalanx.iceberg.open(table)
    check_same(table, lambda: opened.rewrite(opened.plan_rewrite("x = 'NaN'", rewrite_all=True)))


def test_new_files_are_about_as_large_as_wanted(catalog: SqlCatalog) -> None:
    table = make(catalog)
    for first in range(0, 4000, 1000):
        table.append(rows(first, 1000))
    size = sum(file.file_size_in_bytes for file in data_files(table))
    opened = phalanx.iceberg.open(table)
    plan = opened.plan_rewrite(
        rewrite_all=True, target_file_size_bytes=size // 2 + 1, max_file_size_bytes=size
    )
    opened.rewrite(plan)
    assert sorted(file.record_count for file in data_files(table.refresh())) == [2000, 2000]


def test_a_concurrent_append_survives(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(catalog)
    table.append(rows(0, 10))
    table.append(rows(10, 10))
    opened = phalanx.iceberg.open(table)
    plan = opened.plan_rewrite(rewrite_all=True)
    whole = iceberg_commit.replace_files
    attempts = []

    def commit_interrupted(*args: Any) -> int:
        attempts.append(1)
        if len(attempts) < 3:
            catalog.load_table("lake.t").append(rows(100 * len(attempts), 5))
        return whole(*args)

    monkeypatch.setattr(iceberg_rewrite, "replace_files", commit_interrupted)
    opened.rewrite(plan)
    assert len(attempts) == 3
    ids = table.refresh().scan().to_arrow().column("id").to_pylist()
    expected = [
        rows(first, count).column("id").to_pylist()
        for first, count in ((0, 20), (100, 5), (200, 5))
    ]
    assert sorted(ids, key=str) == sorted(itertools.chain(*expected), key=str)
    assert len(data_files(table)) == 3


def test_concurrent_deletes_and_overwrites_make_it_fail_and_lose_nothing(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(catalog)
    for first in (0, 10):
        table.append(rows(first, 10))
    whole = iceberg_commit.replace_files

    def position() -> None:
        other = catalog.load_table("lake.t")
        file = data_files(other)[0]
        add_deletes(other, position_deletes(other, [(file.file_path, 3)], file))
        # An append behind it: pyiceberg's own check would look at this snapshot alone.
        other.append(rows(300, 2))

    def equality() -> None:
        other = catalog.load_table("lake.t")
        gone = pa.table({"id": pa.array([4], pa.int32())})
        add_deletes(other, equality_deletes(other, gone, [1], None))

    def delete() -> None:
        catalog.load_table("lake.t").delete(ice.EqualTo("id", 7))

    for change, why in (
        (delete, "is no longer in the table"),
        (position, "were deleted meanwhile"),
        (equality, "were deleted meanwhile"),
    ):
        opened = phalanx.iceberg.open(catalog.load_table("lake.t"))
        plan = opened.plan_rewrite(rewrite_all=True)
        done = []

        def commit_interrupted(*args: Any, change: Any = change, done: Any = done) -> int:
            if not done:
                done.append(change())
            return whole(*args)

        monkeypatch.setattr(iceberg_rewrite, "replace_files", commit_interrupted)
        with pytest.raises(CommitConflict, match=why):
            opened.rewrite(plan)
        stands = by_duckdb(table)
        files = set(Path(table.location().removeprefix("file://")).glob("data/**/*.parquet"))
        listed = {
            Path(file.path.removeprefix("file://"))
            for snapshot in table.snapshots()
            for file in phalanx.iceberg.open(table, snapshot.snapshot_id).plan().files
        }
        # The files that were not committed are removed.
        assert {file for file in files if "deletes" not in file.name} == listed
        # A plan that was made before is refused at once.
        with pytest.raises(CommitConflict, match=why):
            opened.rewrite(plan)
        assert by_duckdb(table) == stands


def test_an_evolution_meanwhile_makes_it_fail(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(catalog)
    table.append(rows(0, 10))
    opened = phalanx.iceberg.open(table)
    whole = iceberg_commit.replace_files
    done = []

    def commit_interrupted(*args: Any) -> int:
        if not done:
            other = catalog.load_table("lake.t")
            with other.update_spec() as change:
                change.add_field("id", BucketTransform(2), "id_bucket")
            other.append(rows(10, 2))
            done.append(1)
        return whole(*args)

    monkeypatch.setattr(iceberg_rewrite, "replace_files", commit_interrupted)
    with pytest.raises(CommitConflict, match="its partitioning changed meanwhile"):
        opened.rewrite(opened.plan_rewrite(rewrite_all=True))
    assert table.refresh().scan().count() == 12


def test_a_commit_that_fails_for_an_unknown_reason_is_not_repeated(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(catalog)
    table.append(rows(0, 10))
    opened = phalanx.iceberg.open(table)
    plan = opened.plan_rewrite(rewrite_all=True)
    commit = Table._do_commit

    def fails(self: Table, *args: Any, **kwargs: Any) -> None:
        raise OSError("the catalog does not answer")

    monkeypatch.setattr(Table, "_do_commit", fails)
    with pytest.raises(UnknownOutcome, match="the catalog does not answer"):
        opened.rewrite(plan)

    def answers_late(self: Table, *args: Any, **kwargs: Any) -> None:
        commit(self, *args, **kwargs)
        raise OSError("the answer was lost")

    monkeypatch.setattr(Table, "_do_commit", answers_late)
    assert opened.rewrite(plan).rows == 10
    monkeypatch.undo()
    assert table.refresh().scan().count() == 10


def test_rows_that_pyiceberg_does_not_write_are_missed(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(catalog)
    table.append(rows(0, 10))
    opened = phalanx.iceberg.open(table)
    monkeypatch.setattr(
        NewFiles, "_split_by_partition", lambda self, rows: iter([(None, rows.slice(1))])
    )
    with pytest.raises(StorageFailure, match="wrote 9 rows of 10"):
        opened.rewrite(opened.plan_rewrite(rewrite_all=True))
    assert operations(table) == [Operation.APPEND]


def test_what_pyiceberg_cannot_do_safely_is_refused(catalog: SqlCatalog) -> None:
    table = make(catalog)
    with table.update_spec() as change:
        change.add_field("name", IdentityTransform(), "name_itself")
    table.append(rows(0, 4))
    with table.update_spec() as change:
        change.remove_field("name_itself")
    with table.update_schema() as changes:
        changes.delete_column("name")
    opened = phalanx.iceberg.open(table)
    plan = opened.plan_rewrite(rewrite_all=True)
    with pytest.raises(PhalanxError, match=r"'name_itself' of spec 1, .*was dropped"):
        opened.rewrite(plan)
    static = StaticTable.from_metadata(table.metadata_location)
    with pytest.raises(PhalanxError, match="without a catalog"):
        phalanx.iceberg.open(static).rewrite(plan)
    with table.transaction() as transaction:
        transaction.set_properties({"write.format.default": "avro"})
    with pytest.raises(PhalanxError, match=r"write.format.default is avro"):
        phalanx.iceberg.open(table).rewrite(plan)
    order = SortOrder(SortField(1, IdentityTransform()), order_id=1)
    sorted_table = catalog.create_table("lake.sorted", SCHEMA, sort_order=order)
    with pytest.raises(PhalanxError, match="it is sorted"):
        phalanx.iceberg.open(sorted_table).rewrite(plan)
    third = catalog.create_table("lake.third", SCHEMA)
    # pyiceberg makes none of them, and reads those of others.
    third.metadata = third.metadata.model_copy(update={"format_version": 3})
    with pytest.raises(PhalanxError, match="format version 3"):
        phalanx.iceberg.open(third).rewrite(plan)
    assert operations(table) == [Operation.APPEND]


def test_a_data_file_that_is_gone_stops_the_rewrite(catalog: SqlCatalog) -> None:
    table = make(catalog)
    table.append(rows(0, 4))
    (file,) = data_files(table)
    Path(file.file_path.removeprefix("file://")).unlink()
    opened = phalanx.iceberg.open(table)
    with pytest.raises(StorageFailure, match=f"{Path(file.file_path).name}.*gone"):
        opened.rewrite(opened.plan_rewrite(rewrite_all=True))
    assert operations(table) == [Operation.APPEND]


def test_deletion_vectors_are_applied(catalog: SqlCatalog) -> None:
    table = make(catalog)
    table.append(rows(0, 10))
    (file,) = data_files(table)
    add_deletes(table, deletion_vector(table, file, [0, 9]))
    opened = phalanx.iceberg.open(table)
    before = by_pyiceberg(table)
    assert len(before) == 8
    opened.rewrite(opened.plan_rewrite(rewrite_all=True))
    assert by_pyiceberg(table) == before
