"""DuckLake's transforms: vectors of the running system, and what is refused."""

import datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import duckdb_extension_ducklake
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import InvalidSpec
from phalanx.model.predicates.predicate import In, IsNull, NotNull
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.buckets import Bucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN, Day, Hour, Month, Year
from phalanx.model.transforms.ducklake import (
    DuckLakeBucket,
    Int64CalendarPart,
    Unrepeatable,
    hash_like_ducklake,
)
from phalanx.model.transforms.epoch_parts import EpochDay, EpochHour, EpochMonth, EpochYear
from phalanx.model.transforms.hive import HiveBucket
from phalanx.model.transforms.masked_buckets import MaskedBucket
from phalanx.model.transforms.transform import IDENTITY

MOMENT = datetime.datetime(2017, 11, 16, 22, 31, 8)
SCHEMA = Schema.of(
    pa.schema(
        [
            ("id", pa.int64()),
            ("ts", pa.timestamp("us")),
            ("zoned", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("clock", pa.time64("us")),
            ("name", pa.string()),
        ]
    )
)


@pytest.fixture(scope="module")
def ducklake_functions() -> duckdb.DuckDBPyConnection:
    """DuckLake's own functions."""
    connection = duckdb.connect()
    (path,) = Path(str(duckdb_extension_ducklake.__file__)).parent.glob("extensions/*/*_extension")
    connection.execute(f"LOAD '{path}'")
    return connection


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (34, pa.int32(), 2017239379),
        (34, pa.int64(), 2017239379),
        (34, pa.uint8(), -427558391),
        (34, pa.uint64(), -427558391),
        (Decimal("34"), pa.decimal128(38, 0), -427558391),
        (Decimal("14.20"), pa.decimal128(9, 2), -622427183),
        (Decimal("14.20"), pa.decimal128(18, 2), -622427183),
        (Decimal("14.20"), pa.decimal128(38, 2), -1660625346),
        ("iceberg", pa.string(), 1210000089),
        ("f79c3e09-677c-4bbd-a479-3f349cb785e7", pa.string(), 980414783),
        (b"abc", pa.binary(), -1277324294),
        (MOMENT, pa.timestamp("us"), -2047944441),
        (MOMENT, pa.timestamp("us", "UTC"), -2047944441),
        (MOMENT, pa.timestamp("s"), -243262269),
        (MOMENT, pa.timestamp("ms"), -1171784138),
        (MOMENT, pa.timestamp("ns"), -737750069),
        (MOMENT.date(), pa.date32(), -653330422),
        (MOMENT.time(), pa.time64("us"), -662762989),
        (True, pa.bool_(), 1392991556),
        (1.0, pa.float64(), -142385009),
        (1.0, pa.float32(), -142385009),
        (-0.0, pa.float64(), 1669671676),
    ],
)
def test_hashes_are_those_of_ducklake(value: object, kind: pa.DataType, expected: int) -> None:
    column = pa.array([None, value, value], kind)[1:]
    assert hash_like_ducklake(column).to_pylist() == [expected] * 2
    assert DuckLakeBucket(16).apply(column).to_pylist() == [(expected & (2**31 - 1)) % 16] * 2
    assert DuckLakeBucket(16).apply(pa.nulls(1, kind)).to_pylist() == [None]


_TYPES = [
    pa.int16(),
    pa.uint32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("s"),
    pa.decimal128(12, 3),
    pa.decimal128(30, 10),
    pa.decimal128(20, 20),
    pa.decimal128(38, 0),
]


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    kind = draw(st.sampled_from(_TYPES))
    numbers = st.integers(-(2**15), 2**15 - 1)
    if pa.types.is_decimal(kind):
        limit = 10 ** min(kind.precision, 18) - 1
        whole = draw(st.lists(st.integers(-limit, limit), min_size=1, max_size=5))
        return pa.array([Decimal(each).scaleb(-kind.scale) for each in whole], kind)
    if pa.types.is_string(kind):
        return pa.array(
            draw(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
        )
    if pa.types.is_binary(kind):
        return pa.array(draw(st.lists(st.binary(), min_size=1)))
    if pa.types.is_floating(kind):
        return pa.array(draw(st.lists(st.floats(allow_nan=False), min_size=1)), kind)
    found = draw(st.lists(numbers, min_size=1, max_size=5))
    if pa.types.is_unsigned_integer(kind):
        found = [abs(each) for each in found]
    if pa.types.is_integer(kind):
        return pa.array(found, kind)
    return pa.array(found, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)


@given(column=columns())
def test_hashes_are_those_of_the_running_system(
    ducklake_functions: duckdb.DuckDBPyConnection, column: pa.Array
) -> None:
    ducklake_functions.register("given_rows", pa.table({"x": column}))
    rows = ducklake_functions.execute("SELECT murmur3_32(x) FROM given_rows").fetchall()
    assert hash_like_ducklake(column).to_pylist() == [row[0] for row in rows]


@given(
    seconds=st.integers(-(2**36), 2**36),
    part=st.sampled_from(["year", "month", "day", "hour"]),
)
def test_parts_are_those_of_the_running_system(
    ducklake_functions: duckdb.DuckDBPyConnection, seconds: int, part: str
) -> None:
    column = pa.array([seconds * 10**6], pa.int64()).cast(pa.timestamp("us"))
    ducklake_functions.register("given_rows", pa.table({"x": column}))
    ((calendar, since),) = ducklake_functions.execute(
        f"SELECT {part}(x), date_diff('{part}', TIMESTAMP '1970-01-01', x) FROM given_rows"
    ).fetchall()
    names = [each.name for each in DATE_CHAIN]
    own = Int64CalendarPart(DATE_CHAIN[names.index(part)]).apply(column)
    assert (own.type, own.to_pylist()) == (pa.int64(), [calendar])
    epoch = (EpochYear, EpochMonth, EpochDay, EpochHour)[names.index(part)](pa.int64())
    assert epoch.apply(column).to_pylist() == [since]


def test_a_bucket_that_cannot_be_known_is_not_guessed() -> None:
    with pytest.raises(InvalidSpec, match="NaN"):
        DuckLakeBucket(4).apply(pa.array([1.0, float("nan")]))
    with pytest.raises(InvalidSpec, match="list"):
        DuckLakeBucket(4).apply(pa.array([[1]]))
    unknown = Unrepeatable(DuckLakeBucket(4), "nobody knows")
    target = Column(("partition_field_x",))
    some = In(Column(("x",)), pa.array([1]))
    assert unknown.project(some, pa.int64(), target).predicate == NotNull(target)
    assert unknown.project(IsNull(Column(("x",))), pa.int64(), target).predicate == IsNull(target)
    assert unknown.find_reduction(unknown, pa.int64()) is None


@given(first=st.integers(1, 64), second=st.integers(1, 64))
def test_buckets_of_two_systems_are_never_taken_for_each_other(first: int, second: int) -> None:
    systems = (Bucket, HiveBucket, MaskedBucket, DuckLakeBucket)
    for one in systems:
        for other in systems:
            left, right = one(first), other(second)
            assert (left == right) == (one is other and first == second)
            related = one is other and first % second == 0
            assert (left.find_reduction(right, pa.int64()) is not None) == related


def test_the_numbers_of_two_systems_differ() -> None:
    ids = pa.array(range(1000))
    ours, theirs = Bucket(16).apply(ids), DuckLakeBucket(16).apply(ids)
    equal = sum(a == b for a, b in zip(ours.to_pylist(), theirs.to_pylist(), strict=True))
    assert 400 < equal < 600


def test_what_both_systems_can_say_goes_both_ways() -> None:
    spec = build_next_spec("year(ts), month(ts), day(day), name", SCHEMA, {})
    rows = spec.to_ducklake_rows(SCHEMA, table_id=7)
    assert [(row["column_id"], row["transform"]) for row in rows] == [
        (1, "year"),
        (1, "month"),
        (3, "day"),
        (5, "identity"),
    ]
    assert [row["partition_key_index"] for row in rows] == [0, 1, 2, 3]
    assert {(row["partition_id"], row["table_id"]) for row in rows} == {(1, 7)}
    assert PartitionSpec.from_ducklake_rows(list(reversed(rows)), SCHEMA) == spec


@pytest.mark.parametrize(
    ("partition_by", "said"),
    [
        ("bucket(16, id)", r"bucket\(16, id\).*low 31 bits"),
        ("truncate(4, name)", r"truncate\(4, name\)"),
        ("multi_bucket(16, id, name)", "takes one column, not 2"),
        ("year(zoned)", "time zone of the writer"),
        ("hour(clock)", "takes timestamps"),
    ],
)
def test_what_ducklake_cannot_say_is_refused(partition_by: str, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        build_next_spec(partition_by, SCHEMA, {}).to_ducklake_rows(SCHEMA, table_id=1)


@pytest.mark.parametrize(
    ("column", "transform", "time_parts", "said"),
    [
        (0, "bucket(16)", "calendar", r"bucket\(16\)"),
        (1, "epoch_year", "calendar", "epoch_year"),
        (1, "year", "epoch", "epoch_year"),
        (2, "year", "calendar", "time zone of the writer"),
        (3, "hour", "calendar", "takes timestamps"),
        (0, "year", "calendar", "takes dates and timestamps"),
        (99, "identity", "calendar", "no such id"),
    ],
)
def test_what_the_format_cannot_say_is_refused(
    column: int, transform: str, time_parts: str, said: str
) -> None:
    row = {
        "partition_id": 3,
        "table_id": 1,
        "partition_key_index": 0,
        "column_id": column,
        "transform": transform,
    }
    with pytest.raises(InvalidSpec, match=said):
        PartitionSpec.from_ducklake_rows([row], SCHEMA, time_parts=time_parts)


def test_rows_of_two_partitionings_are_no_spec() -> None:
    spec = build_next_spec("name", SCHEMA, {})
    (row,) = spec.to_ducklake_rows(SCHEMA, table_id=1)
    with pytest.raises(InvalidSpec, match="exactly one partition_id"):
        PartitionSpec.from_ducklake_rows([row, {**row, "partition_id": 2}], SCHEMA)
    with pytest.raises(InvalidSpec, match="exactly one partition_id"):
        PartitionSpec.from_ducklake_rows([], SCHEMA)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"transform": None}, "expected whole numbers as partition_id.*text as transform"),
        ({"column_id": "5"}, "as a row of ducklake_partition_column"),
        ({"partition_key_index": 1}, r"keys have the indexes \[1\], expected 0"),
    ],
)
def test_damaged_rows_are_refused(changed: dict[str, object], said: str) -> None:
    (row,) = build_next_spec("name", SCHEMA, {}).to_ducklake_rows(SCHEMA)
    with pytest.raises(InvalidSpec, match=said):
        PartitionSpec.from_ducklake_rows([{**row, **changed}], SCHEMA)
    with pytest.raises(InvalidSpec, match="'lunar': expected 'calendar' or 'epoch'"):
        PartitionSpec.from_ducklake_rows([row], SCHEMA, time_parts="lunar")


def test_ducklakes_own_specs_are_written_as_it_names_them() -> None:
    fields = (
        PartitionField("a", (0,), DuckLakeBucket(8), pa.int32()),
        PartitionField("b", (1,), Int64CalendarPart(Year()), pa.int64()),
        PartitionField("c", (2,), Unrepeatable(Int64CalendarPart(Hour()), "zones"), pa.int64()),
        PartitionField("d", (1,), EpochMonth(pa.int64()), pa.int64()),
        PartitionField("e", (5,), IDENTITY, pa.string()),
    )
    rows = PartitionSpec(4, fields).to_ducklake_rows(SCHEMA, table_id=1)
    names = ["bucket(8)", "year", "hour", "epoch_month", "identity"]
    assert [row["transform"] for row in rows] == names


def test_the_nearest_in_the_format() -> None:
    assert Int64CalendarPart(Month()).find_closest(pa.timestamp("us")).transforms == (Month(),)
    assert DuckLakeBucket(4).find_closest(pa.int64()).transforms == (Bucket(4),)
    found = Unrepeatable(Int64CalendarPart(Day()), "zones").find_closest(pa.timestamp("us", "UTC"))
    assert (found.transforms, found.exact) == ((Day(),), False)
