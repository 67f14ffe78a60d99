"""Plans on real Iceberg tables: evolved specs, changed columns, deletes, and broken metadata."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyiceberg import expressions as ice
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions.visitors import expression_evaluator, inclusive_projection
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    UnknownTransform,
    YearTransform,
)
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
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
from phalanx.errors import (
    InvalidPredicate,
    PhalanxError,
    StorageFailure,
    UnknownSpec,
)
from phalanx.iceberg import IcebergTable
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.transforms.iceberg import Unevaluable
from properties import oracle
from properties.iceberg_values import KINDS, conditions
from tables import SOAK

ROWS = 60
START = datetime.datetime(2024, 12, 30)
ARROW = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("ts", pa.timestamp("us")),
        ("price", pa.decimal128(9, 2)),
        ("x", pa.float64()),
    ]
)


def rows(first: int, count: int = ROWS) -> pa.Table:
    numbers = range(first, first + count)

    def unless(value: Any, number: int) -> Any:
        return None if number % 17 == 3 else value

    return pa.table(
        {
            "id": [unless(n, n) for n in numbers],
            "name": [unless(f"{'abc'[n % 3]}{n}", n) for n in numbers],
            "ts": [unless(START + datetime.timedelta(hours=7 * n), n) for n in numbers],
            "price": [unless(Decimal(n * 3 - 90).scaleb(-1), n) for n in numbers],
            "x": [unless(math.nan if n % 11 == 0 else float(n % 5), n) for n in numbers],
        },
        schema=ARROW,
    )


def make(catalog: SqlCatalog, name: str = "orders", **properties: str) -> Table:
    schema = Schema(
        NestedField(1, "id", IntegerType()),
        NestedField(2, "name", StringType()),
        NestedField(3, "ts", TimestampType()),
        NestedField(4, "price", DecimalType(9, 2)),
        NestedField(5, "x", DoubleType()),
    )
    return catalog.create_table(f"lake.{name}", schema, properties=properties)


def create_evolved(catalog: SqlCatalog, **properties: str) -> Table:
    """A table under six specs, with every transform among them."""
    table = make(catalog, **properties)
    table.append(rows(0))
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(4), "id_bucket")
        change.add_field("ts", YearTransform(), "ts_year")
    table.append(rows(60))
    with table.update_spec() as change:
        change.remove_field("ts_year")
        change.add_field("ts", MonthTransform(), "ts_month")
    table.append(rows(120))
    with table.update_spec() as change:
        change.remove_field("id_bucket")
        change.remove_field("ts_month")
        change.add_field("ts", DayTransform(), "ts_day")
        change.add_field("price", TruncateTransform(50), "price_trunc")
    table.append(rows(180, 20))
    with table.update_spec() as change:
        change.remove_field("ts_day")
        change.remove_field("price_trunc")
        change.add_field("name", TruncateTransform(1), "name_trunc")
        change.add_field("id", TruncateTransform(100), "id_trunc")
    table.append(rows(240))
    with table.update_spec() as change:
        change.remove_field("name_trunc")
        change.remove_field("id_trunc")
        change.add_field("ts", HourTransform(), "ts_hour")
        change.add_field("name", IdentityTransform(), "name_itself")
    table.append(rows(300, 12))
    return table


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[SqlCatalog, Table]:
    catalog = catalog_at(tmp_path_factory.mktemp("lake"))
    return catalog, create_evolved(catalog)


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return catalog_at(tmp_path)


def paths_of(files: Iterable[Any]) -> set[str]:
    return {getattr(file, "path", None) or file.file_path for file in files}


def by_partition(table: Table, condition: ice.BooleanExpression) -> set[str]:
    """The files that pyiceberg keeps by their partitions, statistics aside."""
    kept = set()
    for file in data_files(table):
        spec = table.specs()[file.spec_id]
        projected = inclusive_projection(table.schema(), spec)(condition)
        partition = Schema(*spec.partition_type(table.schema()).fields)
        if expression_evaluator(partition, projected, True)(file.partition):
            kept.add(file.file_path)
    return kept


def find_matches(opened: IcebergTable, where: str) -> set[str]:
    """The files that hold a matching row, by brute force."""
    sql = to_datafusion(bind_predicate(where, opened.schema))
    found = set()
    for unit in opened.import_units():
        for batch in unit.batches():
            matches = oracle.find_matches(pa.Table.from_batches([batch]), sql)
            assert matches is not None
            if matches.true_count:
                found.add(unit.path)
    return found


def check_planned(
    table: Table, opened: IcebergTable, where: str, condition: ice.BooleanExpression
) -> None:
    """All files with a match, and none that pyiceberg would not keep."""
    planned = paths_of(opened.plan(where).files)
    assert planned >= find_matches(opened, where)
    # Statistics of columns prune more; the plan says that they are not consulted.
    assert planned >= {task.file.file_path for task in table.scan(condition).plan_files()}
    theirs = by_partition(table, condition)
    assert planned <= theirs
    # pyiceberg keeps buckets and truncations of NULL, where no row satisfies a comparison.
    files = {file.file_path: file for file in data_files(table)}
    assert all(None in files[path].partition for path in theirs - planned)


MOMENT = datetime.datetime(2025, 1, 20)
CONDITIONS: list[tuple[str, ice.BooleanExpression]] = [
    ("id = 65", ice.EqualTo("id", 65)),
    ("id IN (3, 130, 245)", ice.In("id", [3, 130, 245])),
    ("id >= 150 AND id < 250", ice.And(ice.GreaterThanOrEqual("id", 150), ice.LessThan("id", 250))),
    ("id IS NULL", ice.IsNull("id")),
    ("name LIKE 'a1%'", ice.StartsWith("name", "a1")),
    ("name = 'b61'", ice.EqualTo("name", "b61")),
    ("name <> 'c2' AND ts IS NOT NULL", ice.And(ice.NotEqualTo("name", "c2"), ice.NotNull("ts"))),
    ("ts < '2025-01-20'", ice.LessThan("ts", MOMENT.isoformat())),
    (
        "ts >= '2025-01-20' AND price > 12.5",
        ice.And(
            ice.GreaterThanOrEqual("ts", MOMENT.isoformat()),
            ice.GreaterThan("price", Decimal("12.50")),
        ),
    ),
    ("price <= 0", ice.LessThanOrEqual("price", Decimal("0.00"))),
    ("id = 65 OR name = 'a300'", ice.Or(ice.EqualTo("id", 65), ice.EqualTo("name", "a300"))),
    ("NOT (id < 100 OR id IS NULL)", ice.Not(ice.Or(ice.LessThan("id", 100), ice.IsNull("id")))),
]


@pytest.mark.parametrize(("where", "condition"), CONDITIONS, ids=[text for text, _ in CONDITIONS])
def test_planned_files_are_those_of_pyiceberg(
    lake: tuple[SqlCatalog, Table], where: str, condition: ice.BooleanExpression
) -> None:
    _, table = lake
    opened = phalanx.iceberg.open(table)
    check_planned(table, opened, where, condition)
    assert "not by column statistics" in str(opened.plan(where))


@pytest.fixture(scope="module")
def table_and_rows(lake: tuple[SqlCatalog, Table]) -> tuple[IcebergTable, pa.Table, list[str]]:
    """The table, all of its rows, and the file of each row."""
    _, table = lake
    opened = phalanx.iceberg.open(table)
    batches = [(unit, batch) for unit in opened.import_units() for batch in unit.batches()]
    files = [unit.path for unit, batch in batches for _ in range(batch.num_rows)]
    return opened, pa.Table.from_batches([batch for _, batch in batches]), files


BY_TYPE = {kind.arrow: kind for kind in KINDS}


@st.composite
def filters(draw: st.DrawFn) -> str:
    """A random condition on columns of the table."""
    names = draw(st.lists(st.sampled_from(["id", "name", "ts", "price"]), min_size=1, max_size=2))
    kinds = [BY_TYPE[ARROW.field(name).type] for name in names]
    parts = [draw(conditions(name, kind)).sql for name, kind in zip(names, kinds, strict=True)]
    return draw(st.sampled_from([" AND ", " OR "])).join(f"({part})" for part in parts)


@settings(max_examples=600 if SOAK else 40)
@given(where=filters())
def test_no_file_with_a_match_is_missed(
    table_and_rows: tuple[IcebergTable, pa.Table, list[str]], where: str
) -> None:
    opened, every, files = table_and_rows
    found = oracle.find_matches(every, to_datafusion(bind_predicate(where, opened.schema)))
    assume(found is not None)
    planned = paths_of(opened.plan(where).files)
    assert {file for file, match in zip(files, found.to_pylist(), strict=True) if match} <= planned


def test_a_plan_without_a_filter_has_all_files(lake: tuple[SqlCatalog, Table]) -> None:
    _, table = lake
    opened = phalanx.iceberg.open(table)
    plan = opened.plan()
    files = {file.file_path: file for file in data_files(table)}
    assert paths_of(plan.files) == files.keys()
    for file in plan.files:
        theirs = files[file.path]
        assert (file.rows, file.bytes) == (theirs.record_count, theirs.file_size_in_bytes)
        assert file.spec_id == theirs.spec_id
        assert len(file.values) == len(theirs.partition)
    assert sum(file.rows for file in plan.files) == table.scan().count()
    assert sorted(opened.specs) == [0, 1, 2, 3, 4, 5]
    assert not opened.specs[0].fields
    assert [spec.label(opened.schema) for spec in opened.specs.values()] == [
        "",
        "bucket(4, id), year(ts)",
        "bucket(4, id), month(ts)",
        "day(ts), truncate(50, price)",
        "truncate(1, name), truncate(100, id)",
        "hour(ts), name",
    ]


def test_the_schema_has_the_ids_of_iceberg(lake: tuple[SqlCatalog, Table]) -> None:
    _, table = lake
    schema = phalanx.iceberg.open(table).schema
    assert schema.names == ("id", "name", "ts", "price", "x")
    assert [schema.id_of(name) for name in schema.names] == [1, 2, 3, 4, 5]
    assert schema.arrow.types == ARROW.types


def test_manifests_that_cannot_match_are_not_read(catalog: SqlCatalog) -> None:
    table = create_evolved(catalog)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    opened = phalanx.iceberg.open(table)
    before = opened.plan("ts < '2025-01-01' AND name = 'a0'")
    gone = [each for each in snapshot.manifests(table.io) if each.partition_spec_id in (2, 3)]
    for manifest in gone:
        Path(manifest.manifest_path.removeprefix("file://")).unlink()
    after = phalanx.iceberg.open(table).plan("ts < '2025-01-01' AND name = 'a0'")
    assert after == before
    assert (after.manifests_read, after.manifests_skipped) == (2, 4)
    assert "2 of 6 manifests had to be read" in str(after)
    assert after.to_dict()["total_files"] == sum(before.total_files.values())
    with pytest.raises(StorageFailure, match=r"manifest .*avro: it is gone"):
        phalanx.iceberg.open(table).plan("id = 5")


def test_a_renamed_and_promoted_column_is_found_by_its_id(catalog: SqlCatalog) -> None:
    table = make(catalog)
    with table.update_spec() as change:
        change.add_field("id", IdentityTransform(), "id_itself")
        change.add_field("price", TruncateTransform(500), "price_trunc")
    table.append(rows(0, 12))
    with table.update_schema() as changes:
        changes.rename_column("id", "number")
    with table.update_schema() as changes:
        changes.update_column("number", LongType())
        changes.update_column("price", DecimalType(12, 2))
        changes.add_column("note", StringType())
    more = rows(12, 6).rename_columns(["number", "name", "ts", "price", "x"])
    more = more.set_column(0, "number", more.column("number").cast(pa.int64()))
    more = more.set_column(3, "price", more.column("price").cast(pa.decimal128(12, 2)))
    table.append(more.append_column("note", pa.nulls(6, pa.string())))
    opened = phalanx.iceberg.open(table)
    assert opened.schema.type_of(1) == pa.int64()
    for where in ("number = 5", "number > 9 AND number < 14", "price < -5", "number IS NULL"):
        plan = opened.plan(where)
        assert paths_of(plan.files) >= find_matches(opened, where)
        assert 0 < plan.planned_files < len(data_files(table))
    assert [file.values[0] for file in opened.plan("number IN (5, 14)").files] == [5, 14]
    old = phalanx.iceberg.open(table, snapshot=table.snapshots()[0].snapshot_id)
    assert old.schema.names[0] == "id"
    assert [file.values[0] for file in old.plan("id IN (5, 14)").files] == [5]


def test_a_dropped_source_prunes_by_the_fields_that_are_left(catalog: SqlCatalog) -> None:
    table = make(catalog)
    with table.update_spec() as change:
        change.add_field("name", IdentityTransform(), "name_itself")
        change.add_field("id", BucketTransform(4), "id_bucket")
    table.append(rows(0, 20))
    with table.update_spec() as change:
        change.remove_field("name_itself")
    with table.update_schema() as changes:
        changes.delete_column("name")
        changes.add_column("name", StringType())
    opened = phalanx.iceberg.open(table)
    assert opened.specs[1].label(opened.schema) == "NULL, bucket(4, id)"
    # The new column of that name has another id, and no value in the old files.
    for where in ("name = 'a0'", "name IS NULL", "id = 5", "id = 5 AND name IS NULL"):
        plan = opened.plan(where)
        assert paths_of(plan.files) >= find_matches(opened, where)
    by_id = ice.EqualTo("id", 5)
    assert paths_of(opened.plan("id = 5").files) == by_partition(table, by_id)
    theirs = {task.file.file_path for task in table.scan(by_id).plan_files()}
    assert paths_of(opened.plan("id = 5").files) >= theirs
    assert opened.plan("name = 'a0'").planned_files == len(data_files(table))
    assert 0 < opened.plan("id = 5").planned_files < len(data_files(table))
    assert all(isinstance(file.values[0], str | None) for file in opened.plan().files)


def test_nan_and_null_partitions_are_kept_where_they_may_match(catalog: SqlCatalog) -> None:
    table = make(catalog)
    with table.update_spec() as change:
        change.add_field("x", IdentityTransform(), "x_itself")
    table.append(rows(0, 11).filter(pa.array([n % 11 != 0 for n in range(11)])))
    opened = phalanx.iceberg.open(table)
    for where in ("x = 2", "x > 3", "x <= 1", "x IS NULL", "x IS NOT NULL", "x <> 2"):
        assert paths_of(opened.plan(where).files) >= find_matches(opened, where)
    assert [file.values for file in opened.plan("x = 2").files] == [(2.0,)]
    assert [file.values for file in opened.plan("x IS NULL").files] == [(None,)]


def test_an_unknown_transform_keeps_its_files_and_says_why(catalog: SqlCatalog) -> None:
    table = make(catalog)
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(4), "id_bucket")
        change.add_field("name", IdentityTransform(), "name_itself")
    table.append(rows(0, 8))
    # Another engine may know a transform that pyiceberg and Phalanx do not.
    (spec,) = (each for each in table.metadata.partition_specs if each.fields)
    object.__setattr__(spec.fields[0], "transform", UnknownTransform("zorder[4]"))
    opened = phalanx.iceberg.open(table)
    assert isinstance(opened.specs[spec.spec_id].fields[0].derivation, Unevaluable)
    plan = opened.plan("id = 5")
    assert plan.planned_files == len(data_files(table))
    assert "zorder[4] cannot be evaluated: Phalanx does not know the transform" in str(plan)
    assert opened.plan("id = 5 AND name = 'c5'").planned_files == 1
    with pytest.raises(PhalanxError, match=r"'id_bucket' of spec 1, .*cannot be evaluated"):
        opened.rewrite(opened.plan_rewrite(rewrite_all=True))


# What the seed document of the planner asks of evolved tables, on a real one.


def test_plan_evolved_table_no_filter(lake: tuple[SqlCatalog, Table]) -> None:
    _, table = lake
    plan = phalanx.iceberg.open(table).plan_rewrite(rewrite_all=True)
    assert plan.total_files == plan.rewritten_files == len(data_files(table))
    for group in plan.groups:
        assert {
            file.spec_id for file in data_files(table) if file.file_path in paths_of(group.files)
        } == {group.key.spec_id}
    assert plan.stats.to_dict() == dict.fromkeys(plan.stats.to_dict(), 0)


def test_plan_evolved_table_with_filter(lake: tuple[SqlCatalog, Table]) -> None:
    _, table = lake
    opened = phalanx.iceberg.open(table)
    for where, condition in CONDITIONS:
        plan = opened.plan_rewrite(where, rewrite_all=True)
        chosen = {file.path for group in plan.groups for file in group.files}
        assert chosen == paths_of(opened.plan(where).files)
        assert chosen <= by_partition(table, condition)
        assert plan.total_files == len(data_files(table))
    with pytest.raises(InvalidPredicate):
        opened.plan_rewrite("nothing = 1")
    with pytest.raises(PhalanxError, match="Did you mean 'min_input_files'"):
        opened.plan_rewrite(min_input_file=2)


def test_plan_evolved_table_fail_open_stats(
    lake: tuple[SqlCatalog, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    from phalanx.planning.pruning import projection
    from phalanx.planning.rewrites import filter as rewrite_filter

    _, table = lake
    whole = projection.project_inclusive

    def failing(predicate: Any, spec: Any, schema: Any) -> Any:
        if spec.id == 3:
            raise ValueError("cannot be projected")
        return whole(predicate, spec, schema)

    monkeypatch.setattr(rewrite_filter, "project_inclusive", failing)
    opened = phalanx.iceberg.open(table)
    plan = opened.plan_rewrite("id = 65", rewrite_all=True)
    files = [file for file in data_files(table) if file.spec_id == 3]
    partitions = {tuple(file.partition._data) for file in files}
    assert plan.stats.unevaluable_specs == 1
    assert plan.stats.fail_open_partitions == len(partitions)
    assert plan.stats.fail_open_files == len(files)
    assert plan.diagnostics[0].cause == "cannot be projected"
    assert "cannot be projected" in str(opened.plan("id = 65"))


def test_plan_deterministic_group_ids(lake: tuple[SqlCatalog, Table]) -> None:
    catalog, _ = lake
    plans = [
        phalanx.iceberg.open(catalog.load_table("lake.orders")).plan_rewrite(
            "ts >= '2025-01-01'", rewrite_all=True
        )
        for _ in range(2)
    ]
    assert plans[0] == plans[1]
    keys = [(group.id, group.key) for group in plans[0].groups]
    assert [number for number, _ in keys] == list(range(1, len(keys) + 1))
    assert [key for _, key in keys] == sorted((key for _, key in keys), key=lambda k: k.sort_key())


def test_deletes_go_to_the_files_that_iceberg_says(catalog: SqlCatalog) -> None:
    table = make(catalog)
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(2), "id_bucket")
    table.append(rows(0, 16))
    early = [file for file in data_files(table) if file.partition[0] == 0]
    one, other = early[0], next(f for f in data_files(table) if f.partition[0] == 1)
    add_deletes(
        table,
        position_deletes(table, [(one.file_path, 0)], one),
        position_deletes(table, [(other.file_path, 0), (one.file_path, 1)], one, bounds=False),
        equality_deletes(table, pa.table({"id": pa.array([2], pa.int32())}), [1], one),
        equality_deletes(table, pa.table({"id": pa.array([3], pa.int32())}), [1], None),
    )
    table.append(rows(16, 16))
    vector = deletion_vector(table, other, [1, 2])
    add_deletes(table, position_deletes(table, [(other.file_path, 5)], other), vector)
    opened = phalanx.iceberg.open(table)
    files = {file.path: file for file in opened.plan().files}
    kinds = {path: sorted(each.kind for each in file.deletes) for path, file in files.items()}
    assert kinds[one.file_path] == ["equality", "equality", "position", "position"]
    # A deletion vector replaces all position deletes; only equality deletes are added.
    assert kinds[other.file_path] == ["equality", "vector"]
    late = files.keys() - {file.file_path for file in early} - {other.file_path}
    nulls = {file.path for file in files.values() if file.values == (None,)}
    assert all(not kinds[path] for path in late - nulls)
    plan = opened.plan_rewrite(delete_file_threshold=2)
    chosen = {file.path: len(file.deletes) for group in plan.groups for file in group.files}
    assert (chosen[one.file_path], chosen[other.file_path]) == (4, 2)
    assert "delete file" in str(opened.plan())


def test_position_deletes_are_assigned_as_pyiceberg_assigns_them(catalog: SqlCatalog) -> None:
    table = make(catalog)
    table.append(rows(0, 16))
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(3), "id_bucket")
    for first in (16, 40):
        table.append(rows(first, 24))
        files = data_files(table)
        for file in files[::2]:
            near = [each for each in files if each.partition == file.partition]
            places = [(each.file_path, 0) for each in near]
            add_deletes(table, position_deletes(table, places, file))
            add_deletes(table, position_deletes(table, [(file.file_path, 1)], file))
    theirs = {
        task.file.file_path: {each.file_path for each in task.delete_files}
        for task in table.scan().plan_files()
    }
    opened = phalanx.iceberg.open(table)
    ours = {file.path: {each.path for each in file.deletes} for file in opened.plan().files}
    assert ours == theirs
    assert any(len(each) > 1 for each in ours.values())


@pytest.mark.parametrize("version", ["1", "2"])
def test_both_format_versions_are_planned(tmp_path: Path, version: str) -> None:
    table = make(catalog_at(tmp_path), **{"format-version": version})
    table.append(rows(0))
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(4), "id_bucket")
    table.append(rows(60))
    with table.update_spec() as change:
        change.remove_field("id_bucket")
        change.add_field("name", TruncateTransform(1), "name_trunc")
    table.append(rows(120))
    with table.update_spec() as change:
        change.remove_field("name_trunc")
        change.add_field("ts", MonthTransform(), "ts_month")
    table.append(rows(180))
    opened = phalanx.iceberg.open(table)
    # Version 1 keeps the place of a dropped field.
    fields = [len(spec.fields) for spec in opened.specs.values()]
    assert fields == ([0, 1, 2, 3] if version == "1" else [0, 1, 1, 1])
    for where, condition in CONDITIONS[::2]:
        check_planned(table, opened, where, condition)


def test_snapshots_by_id_and_by_name(catalog: SqlCatalog) -> None:
    table = make(catalog)
    assert phalanx.iceberg.open(table).plan("id = 1").files == ()
    assert phalanx.iceberg.open(table).snapshot_id is None
    table.append(rows(0, 4))
    first = table.current_snapshot()
    assert first is not None
    table.manage_snapshots().create_tag(first.snapshot_id, "start").commit()
    table.append(rows(4, 4))
    assert phalanx.iceberg.open(table).plan().planned_files == 2
    assert phalanx.iceberg.open(table, snapshot=first.snapshot_id).plan().planned_files == 1
    assert phalanx.iceberg.open(table, snapshot="start").plan().planned_files == 1
    with pytest.raises(PhalanxError, match="has no snapshot 'nowhere'"):
        phalanx.iceberg.open(table, snapshot="nowhere")
    with pytest.raises(PhalanxError, match="has no snapshot 1"):
        phalanx.iceberg.open(table, snapshot=1)


def test_broken_metadata_is_reported_with_its_place(catalog: SqlCatalog) -> None:
    table = make(catalog)
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(4), "id_bucket")
    table.append(rows(0, 4))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    assert manifest.content == ManifestContent.DATA
    file = Path(manifest.manifest_path.removeprefix("file://"))
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(StorageFailure, match=f"{file.name}.*damaged"):
        phalanx.iceberg.open(table).plan()
    file.unlink()
    with pytest.raises(StorageFailure, match=f"{file.name}: it is gone"):
        phalanx.iceberg.open(table).plan()
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    with pytest.raises(StorageFailure, match=r"manifest list .*it is gone"):
        phalanx.iceberg.open(table).plan()
    with pytest.raises(PhalanxError, match="expected a table of pyiceberg"):
        phalanx.iceberg.open("lake.orders")  # type: ignore[arg-type]


def test_an_unknown_spec_and_a_newer_version_are_refused(catalog: SqlCatalog) -> None:
    table = make(catalog)
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(4), "id_bucket")
    table.append(rows(0, 4))
    specs = [each for each in table.metadata.partition_specs if not each.fields]
    whole = table.metadata
    table.metadata = whole.model_copy(update={"partition_specs": specs, "default_spec_id": 0})
    with pytest.raises(UnknownSpec, match=r"spec id 1, .*manifest is .*avro"):
        phalanx.iceberg.open(table).plan()
    table.metadata = whole.model_copy(update={"format_version": 4})
    with pytest.raises(PhalanxError, match="format version 4"):
        phalanx.iceberg.open(table)
