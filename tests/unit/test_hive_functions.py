"""`bucket` and `hash` of the Hive-style layout, compared with independent arithmetic."""

from __future__ import annotations

import functools
import math
import operator
import struct
from collections.abc import Callable
from datetime import date
from typing import Any

import mmh3
import pyarrow as pa
import pytest

from phalanx.errors import InvalidSpec
from phalanx.model.predicates.predicate import FALSE, TRUE, AtomicPredicate, Compare, In, Predicate
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.sql import engine
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.buckets import Bucket
from phalanx.model.transforms.expression import build_expression
from phalanx.model.transforms.hive import HiveBucket, HiveHash, HiveTruncate
from phalanx.model.transforms.transform import IDENTITY, Transform
from phalanx.model.transforms.truncate import Truncate


def encode(value: Any) -> bytes:
    """The bytes of a value as the docstring of `HiveHash` has them."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int):
        return struct.pack("<q", value)
    items = value.values() if isinstance(value, dict) else value
    found = b""
    for item in items:
        if item is None:
            found += struct.pack("<i", -1)
        else:
            found += struct.pack("<i", len(encode(item))) + encode(item)
    return found


def hexadecimal(octets: bytes) -> str:
    return f"{mmh3.hash(octets, signed=False):08x}"


def test_buckets_are_never_negative() -> None:
    texts = [f"user{number}" for number in range(200)]
    found = HiveBucket(100).apply(pa.array([*texts, None]))
    assert found.type == pa.int32()
    # Python's modulo floors.
    assert found.to_pylist() == [*(mmh3.hash(text) % 100 for text in texts), None]
    assert Bucket(100).apply(pa.array(texts)).to_pylist() != found.to_pylist()[:-1]


def test_a_known_bucket() -> None:
    # murmur3 of "US" is −629525236, and −629525236 = −39345328 · 16 + 12.
    assert HiveBucket(16).apply(pa.array(["US"])).to_pylist() == [12]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["iceberg", "", "é😀", None]),
        (pa.int32(), [34, -1, None]),
        (pa.list_(pa.string()), [["a", "b"], ["ab"], [], None, [None], ["a", None, ""]]),
        (pa.large_list(pa.int64()), [[1, 2], [], None, [None, 1]]),
        (pa.list_(pa.int64(), 2), [[1, 2], None, [None, 1]]),
        (
            pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
            [{"a": 1, "b": ["x", None]}, None, {"a": None, "b": None}, {"a": 2, "b": []}],
        ),
        (pa.list_(pa.struct([("a", pa.string())])), [[{"a": "x"}, None], [{"a": None}], None]),
    ],
)
def test_hashes(kind: pa.DataType, values: list[Any]) -> None:
    expected = [None if value is None else hexadecimal(encode(value)) for value in values]
    array = pa.array(values, kind)
    found = HiveHash().apply(array)
    assert found.type == HiveHash().result_type(kind) == pa.string()
    assert found.to_pylist() == expected
    assert HiveHash().apply(array[1:]).to_pylist() == expected[1:]
    assert HiveHash().apply(pa.nulls(2, kind)).to_pylist() == [None, None]
    assert HiveHash().apply(array[:0]).to_pylist() == []


def test_a_map_is_a_list_of_pairs() -> None:
    pairs = pa.array([[("x", 1), ("y", None)], None], pa.map_(pa.string(), pa.int64()))
    assert HiveHash().apply(pairs).to_pylist() == [
        hexadecimal(encode([{"key": "x", "value": 1}, {"key": "y", "value": None}])),
        None,
    ]


def test_hash_of_iceberg_in_hexadecimal() -> None:
    assert HiveHash().apply(pa.array(["iceberg"])).to_pylist() == [f"{1210000089:08x}"]


@pytest.mark.parametrize("kind", [pa.duration("s"), pa.list_(pa.duration("s")), pa.struct([])])
def test_what_has_no_bytes_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidSpec, match="Cannot hash"):
        HiveHash().result_type(kind)


def test_lists_are_not_bucketed() -> None:
    with pytest.raises(InvalidSpec, match="Use hash instead"):
        HiveBucket(4).result_type(pa.list_(pa.int8()))


@pytest.mark.parametrize("count", [0, -1, 2**31, True, "4"])
def test_a_number_of_buckets_is_positive(count: Any) -> None:
    with pytest.raises(InvalidSpec, match="num_buckets"):
        HiveBucket(count)


@pytest.mark.parametrize("other", [Bucket(16), Bucket(8), HiveHash(), IDENTITY])
def test_no_other_bucket_is_taken_for_ours(other: Transform) -> None:
    ours = HiveBucket(16)
    assert ours != other
    assert hash((1, ours)) != hash((1, other)) or ours != other
    assert ours.find_reduction(other, pa.string()) is None
    if other != IDENTITY:
        assert other.find_reduction(ours, pa.string()) is None


def test_buckets_reduce_to_coarser_ones() -> None:
    values = pa.array([f"{number}" for number in range(50)])
    fine, coarse = HiveBucket(12), HiveBucket(4)
    reduction = fine.find_reduction(coarse, pa.string())
    assert reduction is not None
    assert reduction.apply(fine.apply(values)).equals(coarse.apply(values))
    assert fine.find_reduction(HiveBucket(8), pa.string()) is None


@pytest.mark.parametrize("transform", [HiveBucket(7), HiveHash()])
@pytest.mark.parametrize(
    "values",
    [
        pa.array([*(f"{number}" for number in range(100)), None]),
        pa.array([*range(-50, 50), None], pa.int32()),
        pa.array([date(2025, 1, 1), None], pa.date32()),
    ],
)
def test_the_expression_says_the_same(transform: Transform, values: pa.Array) -> None:
    """An upgraded table keeps every row where it is."""
    result = transform.result_type(values.type)
    expression = build_expression(transform.sql(values.type), [values.type], result)
    assert not isinstance(expression, Bucket)
    assert expression.apply(values).equals(transform.apply(values))


# Each with its sides changed: the value comes first.
SIGNS: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq,
    "<": operator.gt,
    "<=": operator.ge,
    ">": operator.lt,
    ">=": operator.le,
}


@pytest.mark.parametrize("width", [1, 3, 10, 64, 100, 127])
def test_numbers_below_zero_are_looked_for_in_both_places(width: int) -> None:
    """By either reading of the draft's `mod`, no matching number is left out: all of int8."""
    kind = pa.int8()
    transform, target = HiveTruncate(width), Column(("partition_field_i_trunc",))
    numbers = list(range(-128, 128))
    toward_zero = [number - int(math.fmod(number, width)) for number in numbers]
    downward = [(number - number % width + 128) % 256 - 128 for number in numbers]
    assert transform.apply(pa.array(numbers, kind)).to_pylist() == toward_zero
    for value in (-128, -127, -100, -11, -10, -9, -1, 0, 1, 9, 10, 99, 126, 127):
        conditions: dict[str, AtomicPredicate] = {"=": In(Column(("i",)), pa.array([value], kind))}
        for sign in ("<", "<=", ">", ">="):
            conditions[sign] = Compare(Column(("i",)), sign, pa.scalar(value, kind))
        for sign, condition in conditions.items():
            holds = functools.partial(SIGNS[sign], value)
            found = transform.project(condition, kind, target).predicate
            wanted = [place for place, number in enumerate(numbers) if holds(number)]
            for stored in (toward_zero, downward):
                kept = may_hold_values(found, target, stored)
                assert all(kept[place] for place in wanted), (condition, found)


def may_hold_values(found: Predicate, target: Column, stored: list[int]) -> list[bool]:
    if found in (TRUE, FALSE):
        return [found == TRUE] * len(stored)
    rows = {target.path[0]: pa.array(stored, pa.int8())}
    held = engine.evaluate_sql(to_datafusion(found), rows, len(stored))
    return [bool(each) for each in held.to_pylist()]


def test_truncated_numbers_of_the_draft_are_never_joined_by_their_partitions() -> None:
    kind = pa.int64()
    for other in (HiveTruncate(10), Truncate(10)):
        assert HiveTruncate(10).find_reduction(other, kind) is None
        assert other.find_reduction(HiveTruncate(10), kind) is None
    assert IDENTITY.find_reduction(HiveTruncate(10), kind) is None
