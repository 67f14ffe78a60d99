"""Iceberg's truncate and void: the vectors of its specification, and the edges of each type."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from phalanx.errors import InvalidSpec, PhalanxError
from phalanx.model.murmur3 import murmur3
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.rendering import summarize
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.foreign import find_closest_transforms
from phalanx.model.transforms.iceberg import IcebergTruncate, Unevaluable, Void
from phalanx.model.transforms.masked_buckets import MaskedBucket
from phalanx.model.transforms.truncate import Truncate
from phalanx.planning.pruning.projection import project_on_spec


@pytest.mark.parametrize(
    ("width", "kind", "values", "expected"),
    [
        # Iceberg's specification, "Truncate Transform Details".
        (10, pa.int32(), [1, -1, None], [0, -10, None]),
        (10, pa.int64(), [1, -1, 0, 9, 10, -10, -11], [0, -10, 0, 0, 10, -10, -20]),
        (50, pa.decimal128(9, 2), [Decimal("10.65"), None], [Decimal("10.50"), None]),
        (10, pa.decimal128(9, 2), [Decimal("-0.05"), Decimal("0.05")], [Decimal("-0.10"), 0]),
        (3, pa.string(), ["iceberg", "ic", "", None], ["ice", "ic", "", None]),
        (2, pa.string(), ["é😀x"], ["é😀"]),
        (3, pa.binary(), [b"\x01\x02\x03\x04\x05", b"\x01"], [b"\x01\x02\x03", b"\x01"]),
    ],
)
def test_truncations(width: int, kind: pa.DataType, values: list[Any], expected: list[Any]) -> None:
    transform = IcebergTruncate(width)
    found = transform.apply(pa.array(values, kind))
    assert found.type == transform.result_type(kind)
    assert found.to_pylist() == expected


@pytest.mark.parametrize(
    ("kind", "value", "hashed"),
    [
        # Iceberg's specification, appendix B.
        (pa.int32(), 34, 2017239379),
        (pa.int64(), 34, 2017239379),
        (pa.decimal128(9, 2), Decimal("14.20"), -500754589),
        (pa.date32(), datetime.date(2017, 11, 16), -653330422),
        (pa.time64("us"), datetime.time(22, 31, 8), -662762989),
        (pa.timestamp("us"), datetime.datetime(2017, 11, 16, 22, 31, 8), -2047944441),
        (pa.string(), "iceberg", 1210000089),
        (pa.binary(16), UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, 1488055340),
        (pa.binary(), b"\x00\x01\x02\x03", -188683207),
    ],
)
def test_buckets_of_published_hashes(kind: pa.DataType, value: Any, hashed: int) -> None:
    column = pa.array([value], kind)
    assert murmur3(column).to_pylist() == [hashed]
    assert MaskedBucket(100).apply(column).to_pylist() == [(hashed & 0x7FFFFFFF) % 100]


def test_the_multiple_below_the_least_integer_wraps_around_and_is_found() -> None:
    schema = Schema.of(pa.schema([("i", pa.int32())]))
    field = PartitionField("i_trunc", (0,), IcebergTruncate(10), pa.int32())
    spec = PartitionSpec(0, (field,))
    least = pa.table({"i": pa.array([-(2**31)], pa.int32())})
    # As Java has it: -2147483650 in 32 bits.
    assert spec.compute_partition_values(least, schema).column(0).to_pylist() == [2147483646]
    filter = project_on_spec(bind_predicate("i < 5", schema), spec, schema).filter
    assert summarize(filter) == (
        "partition_field_i_trunc <= 0 OR partition_field_i_trunc > 2147483637"
    )
    above = project_on_spec(bind_predicate("i > 5", schema), spec, schema).filter
    assert summarize(above) == "partition_field_i_trunc >= 0"


def test_decimals_floor_past_the_digits_of_their_type() -> None:
    found = IcebergTruncate(50).apply(pa.array([Decimal("-9.99")], pa.decimal128(3, 2)))
    assert found.to_pylist() == [Decimal("-10.00")]


@pytest.mark.parametrize("kind", [pa.float64(), pa.date32(), pa.bool_(), pa.binary(4)])
def test_what_cannot_be_truncated_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidSpec, match="Cannot truncate"):
        IcebergTruncate(10).result_type(kind)


@pytest.mark.parametrize("derivation", [Void(1000), Unevaluable(1000, "zorder", "?", pa.string())])
@pytest.mark.parametrize("where", ["i = 3", "i IS NULL", "i IS NOT NULL", "i > 3", "i <> 3"])
def test_void_and_unknown_fields_prune_nothing(derivation: Any, where: str) -> None:
    schema = Schema.of(pa.schema([("i", pa.int64())]))
    kind = derivation.result_type(pa.int64())
    spec = PartitionSpec(0, (PartitionField("p", (0,), derivation, kind),))
    found = project_on_spec(bind_predicate(where, schema), spec, schema)
    # Every file of void has NULL there.
    assert summarize(found.filter) in ("true", "partition_field_p IS NULL")
    if isinstance(derivation, Unevaluable):
        assert summarize(found.filter) == "true"
        assert "zorder cannot be evaluated" in found.reasons[0].why


def test_voids_of_one_column_are_different_fields() -> None:
    fields = tuple(PartitionField(f"v{n}", (0,), Void(n), pa.int32()) for n in (1000, 1001))
    assert len(PartitionSpec(0, fields).fields) == 2


def test_an_unknown_transform_evaluates_nothing() -> None:
    with pytest.raises(PhalanxError, match="Cannot evaluate zorder"):
        Unevaluable(1000, "zorder", "nobody knows it", pa.string()).apply(pa.array([1]))


def test_what_replaces_truncate_in_the_format() -> None:
    texts = find_closest_transforms(IcebergTruncate(3), pa.string())
    assert texts.exact
    assert texts.transforms == (Truncate(3),)
    numbers = find_closest_transforms(IcebergTruncate(10), pa.int64())
    assert not numbers.exact
    assert numbers.transforms == (Truncate(10),)
    assert find_closest_transforms(IcebergTruncate(10), pa.binary()).transforms == ()
    assert find_closest_transforms(IcebergTruncate(500), pa.decimal128(9, 2)).transforms == (
        Truncate(5),
    )
    assert find_closest_transforms(IcebergTruncate(50), pa.decimal128(9, 2)).transforms == ()
    assert find_closest_transforms(Void(1000), pa.int64()).transforms == ()
