"""Coarser and finer specs, as text that makes a spec again."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

import phalanx
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.spec_suggestions import suggest_coarser_spec, suggest_finer_spec

SCHEMA = Schema.of(
    pa.schema(
        [
            ("ratio", pa.float64()),
            ("ts", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("name", pa.string()),
            ("id", pa.int64()),
            ("Odd name", pa.string()),
            ("flag", pa.bool_()),
            ("order", pa.struct([("placed", pa.date32())])),
        ]
    )
)
EXPRESSION = phalanx.expression("col0 % 3", ["id"], pa.int64(), field_id="rest")


def specs(partition_by: PartitionBy) -> Mapping[int, PartitionSpec]:
    return {1: build_next_spec(partition_by, SCHEMA, {})}


@pytest.mark.parametrize(
    ("partition_by", "fewer", "expected"),
    [
        ("", 8, None),
        ("year(ts)", 8, ""),
        ("year(ts), month(ts)", 8, "year(ts)"),
        ("name, bucket(64, id)", 8, "name, bucket(8, id)"),
        ("name, bucket(12, id)", 5, "name, bucket(2, id)"),
        ("name, bucket(7, id)", 2, "name"),
        ("multi_bucket(64, id, name)", 4, "multi_bucket(16, id, name)"),
        ("id", 8, "bucket(16, id)"),
        ('"Odd name"', 8, 'bucket(16, "Odd name")'),
        ("day", 8, "year(day), month(day)"),
        ("year(day), day", 8, "year(day)"),
        ("name, flag", 8, "name"),
        ("name, order.placed AS placed", 8, "name"),
        ("order.placed AS placed, bucket(4, id)", 2, '"order.placed", bucket(2, id)'),
        (["name", EXPRESSION], 8, "name"),
        ([EXPRESSION, "name"], 8, None),
    ],
)
def test_coarser(partition_by: PartitionBy, fewer: int, expected: str | None) -> None:
    found = suggest_coarser_spec(specs(partition_by), SCHEMA, fewer)
    assert found == expected
    if found is not None:
        made = build_next_spec(found, SCHEMA, specs(partition_by))
        assert made.fields != specs(partition_by)[1].fields


@pytest.mark.parametrize(
    ("partition_by", "parts", "expected"),
    [
        ("", 3, "bucket(4, name)"),
        ("year(ts)", 8, "year(ts), month(ts)"),
        ("year(ts), month(ts), name", 8, "year(ts), month(ts), day(ts), name"),
        ("year(day), month(day), day(day)", 8, "year(day), month(day), day(day), bucket(8, name)"),
        ("name, bucket(4, id)", 0, "name, bucket(8, id)"),
        ("name, bucket(4, id)", 10**9, "name, bucket(256, id)"),
        ("name", 2, "name, bucket(2, id)"),
        ("truncate(2, name)", 16, "truncate(2, name), bucket(16, id)"),
        ([EXPRESSION], 16, None),
    ],
)
def test_finer(partition_by: PartitionBy, parts: int, expected: str | None) -> None:
    found = suggest_finer_spec(specs(partition_by), SCHEMA, parts)
    assert found == expected
    if found is not None:
        build_next_spec(found, SCHEMA, specs(partition_by))
