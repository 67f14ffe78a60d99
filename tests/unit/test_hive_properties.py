"""The properties of the Hive-style layout: every form that is read, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import phalanx
from phalanx.errors import InvalidSchema, InvalidSpec, NotPartitioned
from phalanx.model.schema import arrow_json
from phalanx.model.schema.arrow_ipc_json import schema_from_any_json
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.hive_properties import (
    HIVE_IS_PARTITIONED,
    HIVE_PARTITION_COLUMNS,
    HIVE_SCHEMA,
    HiveProperties,
)
from phalanx.model.transforms.calendar_parts import Hour
from phalanx.model.transforms.hive import HiveBucket, HiveHash, HiveTruncate
from phalanx.model.transforms.transform import IDENTITY, Transform

COLUMNS = pa.schema(
    [
        ("event_date", pa.date32()),
        ("tenant_id", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("i", pa.int64()),
        ("x", pa.float64()),
    ]
)


def read(*columns: dict[str, Any], **others: Any) -> HiveProperties:
    stated = {
        HIVE_IS_PARTITIONED: "true",
        HIVE_PARTITION_COLUMNS: json.dumps(columns),
        HIVE_SCHEMA: json.dumps(arrow_json.schema_to_json(COLUMNS)),
        **others,
    }
    return HiveProperties.from_properties(stated, "root")


def test_the_example_of_the_draft() -> None:
    found = read(
        {"name": "event_date", "function": "identity"},
        {"name": "tenant_id", "function": "bucket", "properties": {"num_buckets": "100"}},
    )
    assert [field.field_id for field in found.spec.fields] == ["event_date", "tenant_id_bucket"]
    assert [field.derivation for field in found.spec.fields] == [IDENTITY, HiveBucket(100)]
    assert found.path_columns == {"event_date": "event_date"}
    assert found.schema.names == tuple(COLUMNS.names)
    assert found.leaf_schema.names == ("tenant_id", "ts", "tags", "i", "x")
    # As Lance numbers them in a leaf.
    assert found.leaf_schema.ids == tuple(range(6))


@pytest.mark.parametrize(
    ("column", "field_id", "derivation"),
    [
        ({"name": "i"}, "i", IDENTITY),
        ({"name": "i", "function": None, "properties": None}, "i", IDENTITY),
        (
            {"name": "i", "function": "bucket", "properties": {"num_buckets": 8}},
            "i_bucket",
            HiveBucket(8),
        ),
        ({"name": "i", "function": "truncate(10)"}, "i_trunc", HiveTruncate(10)),
        (
            {"name": "i", "function": "truncate", "properties": {"width": "10"}},
            "i_trunc",
            HiveTruncate(10),
        ),
        (
            {"name": "i", "function": "truncate(10)", "properties": {"width": 10}},
            "i_trunc",
            HiveTruncate(10),
        ),
        ({"name": "ts", "function": "hour"}, "ts_hour", Hour()),
        ({"name": "tags", "function": "hash"}, "tags_hash", HiveHash()),
    ],
)
def test_every_function(column: dict[str, Any], field_id: str, derivation: Transform) -> None:
    (field,) = read(column).spec.fields
    assert (field.field_id, field.derivation) == (field_id, derivation)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"name": "gone"}, "no such column"),
        ({"function": "identity"}, "expected"),
        ({"name": "i", "function": "week"}, "week"),
        ({"name": "i", "function": 3}, "function 3"),
        ({"name": "i", "function": "bucket"}, "num_buckets"),
        ({"name": "i", "function": "bucket", "properties": {"num_buckets": "many"}}, "num_buckets"),
        ({"name": "i", "function": "bucket", "properties": {"num_buckets": 0}}, "from 1"),
        ({"name": "i", "function": "bucket", "properties": {"seed": 1}}, "seed"),
        (
            {"name": "i", "function": "truncate(3)", "properties": {"width": 4}},
            "one positive whole number",
        ),
        ({"name": "i", "function": "identity(3)"}, "no number"),
        ({"name": "x", "function": "truncate(3)"}, "strings and integers"),
        ({"name": "i", "function": "year"}, "year"),
        ({"name": "x"}, "text in the path"),
        ({"name": "tags"}, "text in the path"),
        ({"name": "tags", "function": "bucket", "properties": {"num_buckets": 2}}, "Use hash"),
    ],
)
def test_what_is_refused(column: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        read(column)


def test_names_that_collide_are_refused() -> None:
    twice = {"name": "i", "function": "bucket", "properties": {"num_buckets": 2}}
    with pytest.raises(InvalidSpec, match="twice"):
        read(twice, {**twice, "properties": {"num_buckets": 4}})


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({HIVE_IS_PARTITIONED: "false"}, HIVE_IS_PARTITIONED),
        ({HIVE_SCHEMA: None}, HIVE_SCHEMA),
        ({HIVE_PARTITION_COLUMNS: None}, HIVE_PARTITION_COLUMNS),
    ],
)
def test_missing_properties(others: dict[str, Any], words: str) -> None:
    with pytest.raises(NotPartitioned, match=words):
        read({"name": "i"}, **others)


def test_broken_json() -> None:
    with pytest.raises(InvalidSpec, match="expected JSON"):
        read(**{HIVE_PARTITION_COLUMNS: "[{"})
    with pytest.raises(InvalidSpec, match="expected a list"):
        read(**{HIVE_PARTITION_COLUMNS: "{}"})
    with pytest.raises(InvalidSchema, match="expected"):
        read({"name": "i"}, **{HIVE_SCHEMA: "[]"})


def test_what_is_written_is_read_back() -> None:
    text = "event_date, bucket(4, tenant_id), year(ts), truncate(10, i), hash(tags)"
    made = HiveProperties.of(COLUMNS, text)
    stated = made.to_properties()
    assert HiveProperties.from_properties(stated, "root") == made
    columns = json.loads(stated[HIVE_PARTITION_COLUMNS])
    assert columns[1] == {
        "name": "tenant_id",
        "function": "bucket",
        "properties": {"num_buckets": "4"},
    }
    assert columns[3]["function"] == "truncate(10)"
    fields = json.loads(stated[HIVE_SCHEMA])["fields"]
    assert fields[2]["type"] == {"name": "timestamp", "unit": "MICROSECOND", "timezone": "UTC"}


@pytest.mark.parametrize(
    "partition_by",
    [
        "multi_bucket(tenant_id, i, 4)",
        [phalanx.expression("col0 % 2", ["i"], pa.int64(), field_id="even")],
        [phalanx.bucket("i", 4, field_id="other")],
        [],
        ["ts.year"],
    ],
)
def test_what_the_layout_cannot_say(partition_by: Any) -> None:
    with pytest.raises(InvalidSpec):
        HiveProperties.of(COLUMNS, partition_by)


def test_some_column_must_be_left_to_store() -> None:
    with pytest.raises(InvalidSpec, match="no column is left"):
        HiveProperties.of(pa.schema([("i", pa.int8()), ("j", pa.string())]), ["i", "j"])


def test_a_column_may_be_in_the_path_and_a_source() -> None:
    made = HiveProperties.of(COLUMNS, "ts, year(ts)")
    assert made.path_columns == {"ts": "ts"}
    assert "ts" not in made.leaf_schema.names


def test_only_the_hive_layout_has_hash() -> None:
    with pytest.raises(InvalidSpec, match="only the hive layout"):
        build_next_spec("hash(i)", Schema.of(COLUMNS), {})


def test_json_as_arrow_documents_it() -> None:
    """From the format of Arrow's integration tests."""
    int32 = {"name": "int", "bitWidth": 32, "isSigned": True}
    found = schema_from_any_json(
        {
            "fields": [
                {
                    "name": "words",
                    "nullable": True,
                    "type": {"name": "utf8"},
                    "children": [],
                    "dictionary": {"id": 0, "indexType": int32, "isOrdered": False},
                },
                {
                    "name": "pairs",
                    "nullable": False,
                    "type": {"name": "struct"},
                    "children": [
                        {"name": "a", "nullable": True, "type": int32, "children": []},
                        {
                            "name": "price",
                            "nullable": True,
                            "type": {"name": "decimal", "precision": 9, "scale": 2},
                            "children": [],
                        },
                    ],
                    "metadata": [{"key": "unit", "value": "EUR"}],
                },
                {
                    "name": "half",
                    "nullable": True,
                    "type": {"name": "floatingpoint", "precision": "HALF"},
                    "children": [],
                },
            ]
        }
    )
    pairs = pa.struct([("a", pa.int32()), ("price", pa.decimal128(9, 2))])
    expected = pa.schema(
        [
            ("words", pa.dictionary(pa.int32(), pa.string())),
            pa.field("pairs", pairs, nullable=False, metadata={"unit": "EUR"}),
            ("half", pa.float16()),
        ]
    )
    assert found.equals(expected, check_metadata=True)
