"""Transforms of Iceberg and DuckLake: their values, and that they never equal Phalanx's own."""

from __future__ import annotations

import datetime
from decimal import Decimal

import mmh3
import pyarrow as pa
import pytest

from phalanx.errors import InvalidSpec
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.rendering import summarize
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.buckets import Bucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.epoch_parts import (
    EpochDay,
    EpochHour,
    EpochMonth,
    EpochPart,
    EpochYear,
)
from phalanx.model.transforms.foreign import find_closest_transforms
from phalanx.model.transforms.masked_buckets import MaskedBucket
from phalanx.model.transforms.transform import IDENTITY
from phalanx.planning.pruning.projection import project_on_spec

MOMENTS = pa.array(
    [datetime.datetime(2017, 11, 16, 22, 31, 8), datetime.datetime(1969, 12, 31, 23), None],
    pa.timestamp("us"),
)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (EpochYear, [47, -1, None]),
        (EpochMonth, [574, -1, None]),
        (EpochDay, [17_486, -1, None]),
        (EpochHour, [419_686, -1, None]),
    ],
)
@pytest.mark.parametrize("result", [pa.int32(), pa.int64()])
@pytest.mark.parametrize("zone", [None, "Europe/Paris"])
def test_parts_since_1970(
    part: type[EpochPart], expected: list[int | None], result: pa.DataType, zone: str | None
) -> None:
    moments = MOMENTS.cast(pa.timestamp("us", zone))
    assert part(result).apply(moments).equals(pa.array(expected, result))


def test_a_day_may_be_stored_as_a_date() -> None:
    days = EpochDay(pa.date32()).apply(MOMENTS)
    assert days.to_pylist() == [datetime.date(2017, 11, 16), datetime.date(1969, 12, 31), None]


@pytest.mark.parametrize(
    ("values", "kind", "hashed"),
    [
        ([34, -1], pa.int64(), [(34).to_bytes(8, "little"), b"\xff" * 8]),
        (["iceberg", ""], pa.string(), [b"iceberg", b""]),
        ([Decimal("14.20")], pa.decimal128(9, 2), [b"\x05\x8c"]),
    ],
)
def test_a_masked_bucket_takes_the_low_31_bits(
    values: list[object], kind: pa.DataType, hashed: list[bytes]
) -> None:
    expected = [(mmh3.hash(each) & 0x7FFFFFFF) % 100 for each in hashed]
    found = MaskedBucket(100).apply(pa.array([*values, None], kind))
    assert found.equals(pa.array([*expected, None], pa.int32()))


def test_masked_buckets_and_buckets_are_never_the_same() -> None:
    assert MaskedBucket(16) != Bucket(16)
    assert MaskedBucket(16).find_reduction(Bucket(16), pa.int64()) is None
    assert Bucket(16).find_reduction(MaskedBucket(16), pa.int64()) is None
    assert MaskedBucket(16).find_reduction(MaskedBucket(16), pa.int64()) == IDENTITY
    numbers = pa.array(range(1000), pa.int64())
    assert not MaskedBucket(16).apply(numbers).equals(Bucket(16).apply(numbers))


def test_what_is_nearest_in_the_format() -> None:
    days = find_closest_transforms(EpochDay(pa.int32()), pa.date32())
    assert (days.transforms, days.exact) == (DATE_CHAIN[:3], True)
    buckets = find_closest_transforms(MaskedBucket(8), pa.int64())
    assert (buckets.transforms, buckets.exact) == ((Bucket(8),), False)
    own = find_closest_transforms(Bucket(8), pa.int64())
    assert (own.transforms, own.exact) == ((Bucket(8),), True)


@pytest.mark.parametrize("transform", [MaskedBucket(8), EpochYear(pa.int32())])
def test_they_are_never_stored(transform: MaskedBucket | EpochYear) -> None:
    field = PartitionField("f", (0,), transform, pa.int32())
    with pytest.raises(InvalidSpec, match="of another system"):
        PartitionSpec(0, (field,)).to_json()


def test_ranges_and_equality_are_projected_on_them() -> None:
    schema = Schema.of(pa.schema([("ts", pa.timestamp("us")), ("id", pa.int64())]))
    day = PartitionField("ts_day", (0,), EpochDay(pa.int32()), pa.int32())
    bucket = PartitionField("id_bucket", (1,), MaskedBucket(16), pa.int32())
    where = bind_predicate("ts >= '2017-11-16' AND ts < '2017-11-17' AND id = 34", schema)
    found = project_on_spec(where, PartitionSpec(0, (day, bucket)), schema)
    number = (mmh3.hash((34).to_bytes(8, "little")) & 0x7FFFFFFF) % 16
    for part in ("ts_day >= 17486", "ts_day <= 17486", f"id_bucket = {number}"):
        assert part in summarize(found.filter)
    assert "id = 34" in summarize(found.residual)
    assert "ts" not in summarize(found.residual)


def test_an_hour_needs_a_timestamp() -> None:
    with pytest.raises(InvalidSpec, match="hour of a column of type date32"):
        EpochHour(pa.int64()).result_type(pa.date32())
