"""Plans on lakes of the real DuckLake, compared with brute force and DuckLake itself."""

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import phalanx.ducklake
from ducklakes import KINDS, Lake, PostgresServer
from phalanx.ducklake import DuckLakeTable
from tables import SOAK

ARROW_NAMES = {
    "SMALLINT": "Int16",
    "BIGINT": "Int64",
    "DOUBLE": "Float64",
    "TIMESTAMP": "Timestamp(Microsecond, None)",
    "DECIMAL(25,2)": "Decimal128(25, 2)",
    "TIMESTAMPTZ": 'Timestamp(Microsecond, Some("UTC"))',
}
ROWS = (
    "SELECT i AS id, TIMESTAMP '2023-12-30 00:00:00' + INTERVAL (i * 97) MINUTE AS ts, "
    "TIMESTAMPTZ '2023-12-30 00:00:00+00' + INTERVAL (i * 97) MINUTE AS moment, "
    "DATE '2023-12-30' + (i // 14)::INTEGER AS day, "
    "CASE WHEN i % 11 = 0 THEN NULL ELSE chr(97 + (i % 4)::INTEGER) END AS country, "
    "((i % 40) * 0.25)::DECIMAL(9,2) AS amount, ((i % 40) * 0.25)::DECIMAL(30,4) AS big, "
    "(i % 50)::UINTEGER AS code, md5((i % 30)::VARCHAR)::UUID AS token, "
    "(TIMESTAMP '2023-12-30 00:00:00' + INTERVAL (i) HOUR)::TIMESTAMP_S AS seconds, "
    "CASE WHEN i % 13 = 0 THEN 'nan'::DOUBLE ELSE (i % 9) * 0.5 END AS ratio, "
    "(i % 3)::INTEGER AS extra, {{'n': i}} AS deep FROM range({0}, {1}) r(i)"
)
PARTITIONINGS = (
    "year(ts), month(ts)",
    "bucket(8, id), country",
    "extra, bucket(2, extra)",
    "day(ts), hour(ts)",
    "day",
    "year(day), month(day), day(day)",
    "bucket(4, amount), bucket(3, token)",
    "bucket(4, big), bucket(3, code)",
    "bucket(5, seconds), bucket(2, ratio), bucket(3, ts)",
    "year(moment), day(moment)",
    "code",
)


def create_events(lake: Lake, partitionings: Sequence[str] = PARTITIONINGS) -> None:
    """A table whose partitioning, columns and rows change all the time."""
    lake.run(f"CREATE TABLE events AS {ROWS.format(0, 60)}")
    for number, by in enumerate(partitionings):
        lake.run(
            f"ALTER TABLE events SET PARTITIONED BY ({by})",
            f"INSERT INTO events BY NAME {ROWS.format(60 + 40 * number, 110 + 40 * number)}",
            f"DELETE FROM events WHERE id % 17 = {number}",
        )
        if by == "bucket(8, id), country":
            lake.run(
                "ALTER TABLE events ADD COLUMN note VARCHAR DEFAULT 'none'",
                "ALTER TABLE events RENAME COLUMN deep TO inside",
                "ALTER TABLE events RENAME COLUMN inside TO deep",
            )
    # The catalog does not record in which time zone a writer computes the parts of a timestamp.
    lake.run("SET TimeZone = 'America/New_York'")
    lake.run(
        "ALTER TABLE events SET PARTITIONED BY (month(moment), day(moment), hour(moment))",
        f"INSERT INTO events BY NAME {ROWS.format(300, 360)}",
        "SET TimeZone = 'UTC'",
        "ALTER TABLE events RESET PARTITIONED BY",
        "ALTER TABLE events DROP COLUMN extra",
        f"INSERT INTO events BY NAME SELECT * EXCLUDE (extra) FROM ({ROWS.format(400, 450)})",
    )


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """The lake on which random predicates are tried."""
    lake = Lake("duckdb", tmp_path_factory.mktemp("lake"))
    create_events(lake)
    lake.close()
    # DuckLake keeps its catalog open, and Phalanx would read a copy of it each time.
    shutil.copy(lake.catalog, f"{lake.catalog}.copy")
    lake.open()
    lake.run("CREATE TEMP TABLE every AS SELECT *, filename AS f FROM lake.events")
    yield lake
    lake.close()


@pytest.fixture(scope="module")
def table(lake: Lake) -> DuckLakeTable:
    return phalanx.ducklake.open(f"{lake.catalog}.copy", "events")


def plan_files(table: DuckLakeTable, where: str | None) -> set[str]:
    return {file.path for file in table.plan(where).files}


def check(lake: Lake, table: DuckLakeTable, where: str, tight: bool) -> None:
    found = plan_files(table, where)
    rows = lake.rows(f"SELECT DISTINCT f FROM temp.every WHERE {where}")
    assert {row[0] for row in rows} <= found, where
    if tight:
        assert len(found) <= lake.files_read("lake.events", where), where


@st.composite
def moments(draw: st.DrawFn) -> str:
    days, minutes = draw(st.integers(0, 40)), draw(st.sampled_from([0, 0, 0, 97, 60, 61, 719]))
    seconds = 1703894400 + days * 86_400 + minutes * 60
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


@st.composite
def conditions(draw: st.DrawFn) -> str:
    operator = draw(st.sampled_from(["=", "<", "<=", ">", ">="]))
    match draw(st.integers(0, 12)):
        case 0:
            return f"ts {operator} TIMESTAMP '{draw(moments())}'"
        case 1:
            return f"moment {operator} TIMESTAMPTZ '{draw(moments())}+00'"
        case 2:
            return f"day {operator} DATE '{draw(moments())[:10]}'"
        case 3:
            numbers = draw(st.lists(st.integers(0, 560), min_size=1, max_size=4))
            return f"id IN ({', '.join(map(str, numbers))})"
        case 4:
            return f"id {operator} {draw(st.integers(0, 560))}"
        case 5:
            name = draw(st.sampled_from("abcx"))
            return f"country {draw(st.sampled_from(['=', '<>', '>']))} '{name}'"
        case 6:
            return draw(
                st.sampled_from(
                    ["country IS NULL", "country IS NOT NULL", "ts IS NULL", "country LIKE 'b%'"]
                )
            )
        case 7:
            return f"amount {operator} CAST({draw(st.integers(0, 40)) * 0.25} AS DECIMAL(9,2))"
        case 8:
            return f"big = CAST({draw(st.integers(0, 40)) * 0.25} AS DECIMAL(30,4))"
        case 9:
            return f"code {operator} {draw(st.integers(0, 50))}"
        case 10:
            return f"ratio {operator} {draw(st.integers(-1, 9)) * 0.5}"
        case 11:
            first, last = sorted((draw(moments()), draw(moments())))
            return f"ts BETWEEN TIMESTAMP '{first}' AND TIMESTAMP '{last}'"
        case _:
            return f"deep.n {operator} {draw(st.integers(0, 560))}"


@st.composite
def predicates(draw: st.DrawFn) -> str:
    parts = draw(st.lists(conditions(), min_size=1, max_size=3))
    if draw(st.integers(0, 4)) == 0:
        parts[0] = f"NOT ({parts[0]})"
    return f" {draw(st.sampled_from(['AND', 'AND', 'OR']))} ".join(f"({part})" for part in parts)


@given(where=predicates())
@settings(max_examples=1000 if SOAK else 60)
@example(where="moment = TIMESTAMPTZ '2024-01-01 04:00:00+00'")
def test_no_file_with_a_matching_row_is_left_out(
    lake: Lake, table: DuckLakeTable, where: str
) -> None:
    check(lake, table, where, tight=False)


@pytest.mark.parametrize(
    "where",
    [
        "id = 117",
        "id IN (61, 117, 163, 402)",
        "id = 117 AND country = 'b'",
        "amount = CAST(2.5 AS DECIMAL(9,2))",
        "big = CAST(2.5 AS DECIMAL(30,4))",
        "code = 7",
        "seconds = TIMESTAMP '2024-01-09 14:00:00'",
        "ratio = 1.5",
        "id IN (117, 402) AND ts >= TIMESTAMP '2024-01-05 00:00:00'",
        "ts >= TIMESTAMP '2024-01-01 00:00:00'",
        "ts < TIMESTAMP '2024-01-01 00:00:00'",
        "ts = TIMESTAMP '2024-01-06 20:38:00'",
        "ts BETWEEN TIMESTAMP '2024-01-03 11:00:00' AND TIMESTAMP '2024-01-03 13:00:00'",
        "day = DATE '2024-01-10'",
        "day >= DATE '2024-01-10' AND day < DATE '2024-02-01'",
        "day IN (DATE '2024-01-10', DATE '2024-01-31')",
        "moment >= TIMESTAMPTZ '2024-01-20 00:00:00+00'",
        "moment = TIMESTAMPTZ '2024-01-20 03:11:00+00'",
        "ts > TIMESTAMP '2030-01-01 00:00:00'",
    ],
)
def test_bucket_and_time_filters_read_no_more_files_than_ducklake(
    lake: Lake, table: DuckLakeTable, where: str
) -> None:
    check(lake, table, where, tight=True)


def test_buckets_and_parts_prune_without_the_bounds_of_columns(
    lake: Lake, table: DuckLakeTable
) -> None:
    plan = table.plan("id = 117 AND date_part('year', ts) = 2024")
    text = str(plan)
    assert "prunes by partition_field_id_bucket = " in text
    assert "prunes by partition_field_ts_year" in text
    assert plan.total_files == len(plan_files(table, None))
    assert plan.to_dict()["planned_files"] == len(plan.files) < plan.total_files
    zoned = table.plan("moment = TIMESTAMPTZ '2024-01-20 03:11:00+00'")
    assert "time zone of the writer" in str(zoned)


def test_specs_are_those_of_the_catalog_with_the_documented_types(table: DuckLakeTable) -> None:
    schema = table._table.columns.schema
    labels = {spec_id: spec.label(schema) for spec_id, spec in table.specs.items()}
    assert labels[0] == ""
    assert [label for label in labels.values() if label] == [
        *(by.replace("extra", "NULL") for by in PARTITIONINGS),
        "month(moment), day(moment), hour(moment)",
    ]
    assert labels[table.spec.id] == ""
    assert table.spec.id == max(labels)
    for spec in table.specs.values():
        for field in spec.fields:
            name = field.derivation.ducklake_name(pa.timestamp("us"))
            if name.startswith("bucket"):
                assert field.result_type == pa.int32()
            elif name != "identity":
                assert field.result_type == pa.int64()


def test_each_value_is_what_the_transform_gives(lake: Lake, table: DuckLakeTable) -> None:
    """Bucket numbers and parts of the running system, for every row of every file."""
    compared = 0
    rows = lake.connection.execute("SELECT * FROM temp.every").to_arrow_table()
    schema = table._table.columns.schema
    by_file = {file.path: file for file in table.plan().files}
    for path in set(rows.column("f").to_pylist()):
        own = rows.filter(pc.equal(rows.column("f"), path))
        file = by_file[path]
        spec = table.specs[file.spec_id]
        for field, value in zip(spec.fields, file.values, strict=True):
            if not field.derivation.is_repeatable:
                continue
            if (source := schema.path_of(field.source_ids[0])) is None:
                continue
            column = own.column(source[0])
            column = column.cast(schema.type_of(field.source_ids[0])).combine_chunks()
            try:
                found = field.derivation.apply(column)
            except phalanx.PhalanxError:
                assert "nan" in str(column.to_pylist())
                continue
            assert set(found.to_pylist()) == {value}, (path, spec.label(schema))
            compared += 1
    assert compared > 100


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_catalog_is_planned_alike(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = None
    if kind == "postgres":
        database = request.getfixturevalue("server").database()
    lake = Lake(kind, tmp_path, database)
    create_events(lake, PARTITIONINGS[:3])
    # The copy of a catalog that this process has open, a shared file, a server.
    table = phalanx.ducklake.open(f"ducklake:{lake.catalog}", "main.events")
    wheres = ("id = 117", "ts = TIMESTAMP '2024-01-06 20:38:00'", "country IS NULL AND code < 20")
    for where in wheres:
        assert plan_files(table, where) >= lake.files_with("events", where)
        assert len(plan_files(table, where)) <= lake.files_read("events", where)
    plan = table.plan_rewrite(min_input_files=1, delete_ratio_threshold=0.01)
    deletes = {file.path: file.deletes for file in table.plan().files if file.deletes}
    assert any(deletes.values())
    assert {each.path: each.rows for group in plan.groups for each in group.delete_files} == {
        each.path: each.rows for found in deletes.values() for each in found
    }
    lake.close()
    assert plan_files(phalanx.ducklake.open(lake.catalog, "events"), None) == plan_files(
        table, None
    )


@pytest.mark.parametrize(
    ("before", "after", "value", "by"),
    [
        ("UTINYINT", "SMALLINT", "i", "bucket(8, x)"),
        ("INTEGER", "BIGINT", "i", "bucket(8, x)"),
        ("INTEGER", "DOUBLE", "i", "bucket(8, x)"),
        ("DATE", "TIMESTAMP", "DATE '2024-01-01' + i::INTEGER", "bucket(8, x), day(x)"),
        ("REAL", "DOUBLE", "i + 0.1", "x"),
        ("DECIMAL(9,2)", "DECIMAL(25,2)", "i + 0.25", "bucket(8, x)"),
        ("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP '2024-01-01' + INTERVAL (i) HOUR", "x"),
    ],
)
def test_files_from_before_a_change_of_type_are_not_lost(
    tmp_path: Path, before: str, after: str, value: str, by: str
) -> None:
    """Hashes and texts of the old type are not those of the new one."""
    lake = Lake("duckdb", tmp_path)
    lake.run(
        f"CREATE TABLE t (x {before})",
        f"ALTER TABLE t SET PARTITIONED BY ({by})",
        f"INSERT INTO t SELECT {value} FROM range(12) r(i)",
        f"ALTER TABLE t ALTER COLUMN x SET DATA TYPE {after}",
        f"INSERT INTO t SELECT {value} FROM range(12) r(i)",
    )
    lake.close()
    table = phalanx.ducklake.open(lake.catalog, "t")
    everything = {
        unit.file.path: next(iter(unit.batches())).column("x") for unit in table.import_units()
    }
    values = pa.concat_arrays(everything.values()).unique()
    for wanted in values:
        text = f"arrow_cast('{wanted.cast(pa.string())}', '{ARROW_NAMES[after]}')"
        holding = {
            path for path, column in everything.items() if pc.any(pc.equal(column, wanted)).as_py()
        }
        assert holding <= plan_files(table, f"x = {text}"), text
