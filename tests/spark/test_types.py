"""Every type of a table that Spark can hold: values reach Spark and return unchanged."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

import phalanx

INF, NAN = math.inf, math.nan
# Spark compares and groups by microseconds: more than these are cut off.
NANOSECONDS = {"time_ns", "ts_ns", "ts_ns_paris", "duration_ns", "list_ts_ns"}


def _at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


_TIMES = [_at(1969, 12, 31, 23, 59, 59, 999_999), _at(2022, 11, 6, 5, 30), _at(2022, 11, 6, 6, 30)]
_NAIVE = [each.replace(tzinfo=None) for each in _TIMES]
_SECONDS = [each.replace(microsecond=0) for each in _TIMES]
# Nanoseconds since 1970, which datetime cannot hold.
_NANOS = [-1, 1_667_712_600_000_000_001, -(10**18) - 999]
_CUT = [-1, 1_667_712_600_000_000, -(10**15) - 1]

# For each column its type, its values, and what Spark has for them if that is not the same.
COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[Any] | None]] = {
    "bool": (pa.bool_(), [True, False, None], None),
    "int8": (pa.int8(), [-128, 127, None], None),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1, None], None),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1, None], None),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, None], None),
    "uint8": (pa.uint8(), [0, 255, None], None),
    "uint16": (pa.uint16(), [0, 2**16 - 1, None], None),
    "uint32": (pa.uint32(), [0, 2**32 - 1, None], None),
    "uint64": (pa.uint64(), [0, 2**64 - 1, None], [Decimal(0), Decimal(2**64 - 1), None]),
    "float16": (pa.float16(), [NAN, -0.0, -INF], None),
    "float32": (pa.float32(), [1.5, NAN, INF], None),
    "float64": (pa.float64(), [-0.0, 5e-324, NAN], None),
    "decimal": (pa.decimal128(38, 10), [Decimal("1.5"), Decimal(-(10**27)), None], None),
    "decimal256": (pa.decimal256(38, 2), [Decimal("-0.01"), None, Decimal(10**35)], None),
    "string": (pa.string(), ["", "ü🗡", None], None),
    "large_string": (pa.large_string(), ["a", None, "b" * 1000], None),
    "binary": (pa.binary(), [b"", b"\x00\xff", None], None),
    "large_binary": (pa.large_binary(), [b"\x00", None, b"x"], None),
    "fixed_binary": (pa.binary(3), [b"abc", None, b"\x00\x01\x02"], None),
    "date32": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None], None),
    "date64": (pa.date64(), [date(1969, 12, 31), None, date(2024, 2, 29)], None),
    "time_s": (pa.time32("s"), [time(23, 59, 59), time(0), None], None),
    "time_ms": (pa.time32("ms"), [time(1, 2, 3, 4000), None, time(0)], None),
    "time_us": (pa.time64("us"), [time(1, 2, 3, 4), None, time(23, 59, 59, 999_999)], None),
    "time_ns": (pa.time64("ns"), [1, None, 10**9 + 999], [time(0), None, time(0, 0, 1)]),
    "ts_s": (pa.timestamp("s"), [each.replace(tzinfo=None) for each in _SECONDS], None),
    "ts_ms": (pa.timestamp("ms"), [datetime(1600, 1, 1, 0, 0, 0, 1000), None, _NAIVE[1]], None),
    "ts_us": (pa.timestamp("us"), [*_NAIVE[:2], None], None),
    "ts_ns": (pa.timestamp("ns"), [*_NANOS[:2], None], [*_CUT[:2], None]),
    "ts_us_utc": (pa.timestamp("us", "UTC"), [*_TIMES[:2], None], None),
    "ts_ms_zone": (pa.timestamp("ms", "Asia/Kathmandu"), [None, *_SECONDS[1:]], None),
    "ts_s_offset": (pa.timestamp("s", "+02:00"), _SECONDS, None),
    "ts_ns_paris": (pa.timestamp("ns", "America/New_York"), _NANOS, _CUT),
    "duration_s": (pa.duration("s"), [timedelta(days=-1), timedelta(seconds=1), None], None),
    "duration_us": (pa.duration("us"), [timedelta(microseconds=-1), None, timedelta(3)], None),
    "duration_ns": (
        pa.duration("ns"),
        [1999, None, -1999],
        [timedelta(microseconds=1), None, timedelta(microseconds=-1)],
    ),
    "list": (pa.list_(pa.string()), [["a", None], [], None], None),
    "large_list": (pa.large_list(pa.int16()), [[1], None, []], None),
    "list_ts_ns": (pa.list_(pa.timestamp("ns")), [[-1], [None], None], [[-1], [None], None]),
    "vector16": (pa.list_(pa.float16(), 2), [[1.5, -0.0], None, [NAN, INF]], None),
    "vector32": (pa.list_(pa.float32(), 3), [[1.0, 2.0, 3.0], [0.0, NAN, 1.0], None], None),
    "vector64": (pa.list_(pa.float64(), 1), [[0.1], None, [-0.0]], None),
    "vector8": (pa.list_(pa.uint8(), 2), [[0, 255], [1, 2], None], None),
    "vectors": (pa.list_(pa.list_(pa.float32(), 2), 1), [[[1.0, 2.0]], None, [[3.0, 4.0]]], None),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"], None),
    "struct": (
        pa.struct([("a", pa.uint32()), ("b", pa.struct([("c", pa.large_string())]))]),
        [{"a": 1, "b": {"c": "x"}}, {"a": None, "b": None}, None],
        None,
    ),
    "list_of_structs": (
        pa.list_(pa.struct([("v", pa.list_(pa.float16(), 2)), ("d", pa.date64())])),
        [[{"v": [1.0, 2.0], "d": date(2024, 1, 1)}, None], [], None],
        None,
    ),
    "map": (
        pa.map_(pa.string(), pa.uint8()),
        [[("a", 1), ("b", None)], [], None],
        [{"a": 1, "b": None}, {}, None],
    ),
    "map_of_maps": (
        pa.map_(pa.int32(), pa.map_(pa.large_string(), pa.list_(pa.int64()))),
        [[(1, [("x", [1, None])])], [(2, None)], None],
        [{1: {"x": [1, None]}}, {2: None}, None],
    ),
}
# Columns, and items, without NULL.
REQUIRED = {
    "required": (pa.string(), ["x", "y", "z"]),
    "required_list": (
        pa.list_(pa.field("item", pa.uint8(), nullable=False)),
        [[1, 255], [], [0]],
    ),
}


@pytest.fixture(scope="module")
def stored_table(tmp_path_factory: pytest.TempPathFactory) -> phalanx.Table:
    fields = [pa.field(name, kind) for name, (kind, _, _) in COLUMNS.items()]
    fields += [pa.field(name, kind, nullable=False) for name, (kind, _) in REQUIRED.items()]
    schema = pa.schema([("row", pa.int8()), *fields])
    values = [each[1] for each in (*COLUMNS.values(), *REQUIRED.values())]
    arrays = [pa.array(each, field.type) for each, field in zip(values, fields, strict=True)]
    root = tmp_path_factory.mktemp("types") / "table"
    table = phalanx.create(root, schema, ["row"])
    table.append(pa.table([pa.array([0, 1, 2], pa.int8()), *arrays], schema=schema))
    return table


def plain(value: Any) -> Any:
    """A value that compares as what it is: also NaN, -0.0, and rows as dicts."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, t.Row):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def _microseconds(name: str, kind: pa.DataType) -> str:
    """Spark's own text for the microseconds of a time: Python would use the local time zone."""
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            epoch = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
            return f"timestampdiff(MICROSECOND, {epoch}, {name}) AS {name}"
        return f"unix_micros({name}) AS {name}"
    if name == "list_ts_ns":
        epoch = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
        return f"transform({name}, x -> timestampdiff(MICROSECOND, {epoch}, x)) AS {name}"
    return name


def _since_1970(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return (value.replace(tzinfo=value.tzinfo or UTC) - _at(1970, 1, 1)) // timedelta(
        microseconds=1
    )


def test_every_value_arrives_in_spark(spark: SparkSession, stored_table: phalanx.Table) -> None:
    frame = spark.read.format("phalanx").load(stored_table.uri).orderBy("row")
    asked = [_microseconds(name, kind) for name, (kind, _, _) in COLUMNS.items()]
    found = frame.selectExpr(*asked, *REQUIRED).collect()
    wrong = {}
    for name, (_, values, in_spark) in COLUMNS.items():
        got = plain([row[name] for row in found])
        expected = plain([_since_1970(each) for each in (values if in_spark is None else in_spark)])
        if got != expected:
            wrong[name] = (got, expected)
    assert wrong == {}
    assert [row["required_list"] for row in found] == REQUIRED["required_list"][1]
    assert not frame.schema["required"].nullable
    assert not frame.schema["required_list"].dataType.containsNull  # type: ignore[union-attr]


@pytest.mark.executors
@pytest.mark.bare
def test_what_spark_has_read_it_writes_back_the_same(
    spark: SparkSession, stored_table: phalanx.Table, uri: str
) -> None:
    copy = phalanx.create(uri, stored_table.schema, ["row"], transaction="strong")
    spark.read.format("phalanx").load(stored_table.uri).write.format("phalanx").mode("append").save(
        uri
    )
    old, new = stored_table.scan().to_arrow(), copy.scan().to_arrow()
    assert new.schema == old.schema
    exact = [name for name in old.column_names if name not in NANOSECONDS]
    differing = [
        name for name in exact if plain(old[name].to_pylist()) != plain(new[name].to_pylist())
    ]
    assert differing == []
    # Values are cut off only once: a second copy equals the first.
    assert [scalar.value for scalar in new["ts_ns_paris"]] == [each * 1000 for each in _CUT]
    assert [scalar.value for scalar in new["time_ns"]] == [0, None, 10**9]


def test_a_table_made_by_spark_has_its_types(spark: SparkSession, uri: str) -> None:
    frame = spark.sql(
        "SELECT 1Y AS tiny, 1S AS short, 1 AS int, 1L AS long, 1.5F AS float, 1.5D AS double, "
        "1.50BD AS dec, 'x' AS string, X'00FF' AS binary, true AS bool, DATE '2024-02-29' AS day, "
        "TIMESTAMP '2024-11-03 01:30:00-04:00' AS ts, TIMESTAMP_NTZ '1600-01-01 00:00:00' AS ntz, "
        "TIME '12:30:00.000001' AS time, INTERVAL '1 00:00:00' DAY TO SECOND AS span, "
        "array(1, NULL) AS list, map('a', 1.5D) AS map, named_struct('a', 1, 'b', 'x') AS struct"
    )
    frame.write.format("phalanx").mode("append").option("partition_by", "day(ts), int").save(uri)
    table = phalanx.open(uri)
    found = {field.name: field.type for field in table.schema}
    assert found["ts"] == pa.timestamp("us", "UTC")
    assert found["ntz"] == pa.timestamp("us")
    assert pa.types.is_time(found["time"])
    assert found["dec"] == pa.decimal128(3, 2)
    [row] = table.scan().to_arrow().drop_columns("time").to_pylist()
    assert row == {
        **{"tiny": 1, "short": 1, "int": 1, "long": 1, "float": 1.5, "double": 1.5},
        **{"dec": Decimal("1.50"), "string": "x", "binary": b"\x00\xff", "bool": True},
        **{"day": date(2024, 2, 29), "ts": _at(2024, 11, 3, 5, 30), "ntz": datetime(1600, 1, 1)},
        **{"span": timedelta(days=1), "list": [1, None], "map": [("a", 1.5)]},
        "struct": {"a": 1, "b": "x"},
    }
    again = spark.read.format("phalanx").load(uri)
    assert again.selectExpr("CAST(ts AS STRING)", "CAST(time AS STRING)").collect() == [
        ("2024-11-03 01:30:00", "12:30:00.000001")
    ]
    assert again.schema == frame.schema
