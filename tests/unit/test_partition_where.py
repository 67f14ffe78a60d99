"""Partitions as predicates: the predicate of a key keeps it, and as few other keys as possible."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

import phalanx
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.planning.pruning.partition_where import build_partition_where
from phalanx.planning.rewrite import MultiSpecPartitionFilter

SCHEMA = Schema.of(
    pa.schema(
        [
            ("name", pa.string()),
            ("id", pa.int64()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us")),
            ("ts", pa.timestamp("us", "Europe/Paris")),
            ("ratio", pa.float64()),
            ("raw", pa.binary()),
            ("Odd name", pa.int8()),
        ]
    )
)


@pytest.mark.parametrize(
    ("partition_by", "values", "others"),
    [
        ("name", ("it's",), [("its",), (None,)]),
        ("name", (None,), [("",), ("a",)]),
        ("id, name", (1, None), [(1, "a"), (2, None), (None, None)]),
        ("year(at), month(at)", (2025, 3), [(2025, 4), (2024, 3), (None, None)]),
        ("year(at)", (None,), [(2025,)]),
        ("bucket(16, id)", (5,), [(4,), (None,)]),
        ("multi_bucket(8, id, name)", (5,), [(4,)]),
        ("truncate(2, name)", ("ab",), [("a",), ("ac",), (None,)]),
        ("truncate(10, id)", (-20,), [(-10,), (0,)]),
        ("day", (date(2025, 1, 2),), [(date(2025, 1, 3),)]),
        ("at", (datetime(2025, 1, 2, 3, 4, 5, 6),), [(datetime(2025, 1, 2),)]),
        ("raw", (b"\x00'",), [(b"",)]),
        ('"Odd name"', (-3,), [(3,)]),
        (
            [phalanx.expression("col0 % 3", ["id"], pa.int64(), field_id="rest")],
            (2,),
            [(1,), (None,)],
        ),
    ],
)
def test_just_the_partition_is_kept(
    partition_by: PartitionBy, values: tuple[Any, ...], others: list[tuple[Any, ...]]
) -> None:
    specs = {1: build_next_spec(partition_by, SCHEMA, {})}
    key = PartitionKey(1, values)
    where = build_partition_where([key], specs, SCHEMA)
    assert where is not None
    filter = MultiSpecPartitionFilter(where, specs, SCHEMA)
    assert filter.matches(key)
    assert not filter.is_fail_open(key)
    assert [each for each in others if filter.matches(PartitionKey(1, each))] == []


@pytest.mark.parametrize(
    ("partition_by", "values"),
    [
        ("", ()),
        ("year(ts)", (2025,)),
        ("ratio", (0.5,)),
        ("ts", (datetime(2025, 1, 2, tzinfo=UTC),)),
    ],
)
def test_what_sql_cannot_say_chooses_everything(partition_by: str, values: tuple[Any, ...]) -> None:
    specs = {1: build_next_spec(partition_by, SCHEMA, {})}
    assert build_partition_where([PartitionKey(1, values)], specs, SCHEMA) is None


def test_what_can_be_said_is_said() -> None:
    specs = {1: build_next_spec("year(ts), name", SCHEMA, {})}
    specs[2] = build_next_spec("id", SCHEMA, specs)
    keys = [PartitionKey(1, (2025, "a")), PartitionKey(2, (7,))]
    assert build_partition_where(keys, specs, SCHEMA) == "name = 'a' OR id = 7"
