"""Specs of the expression draft: their JSON, their buckets, and refused combinations."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from phalanx.errors import InvalidSpec
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.expression_draft import spec_from_draft_json, spec_to_draft_json
from phalanx.model.specs.partition_by import (
    bucket,
    expression,
    identity,
    multi_bucket,
    truncate,
    year,
)
from phalanx.model.sql import engine
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.expression import Expression, build_expression
from phalanx.model.transforms.transform import IDENTITY
from phalanx.planning.joins.compatibility import JoinSide, find_compatibility
from phalanx.storage.state.properties import parse_properties

SCHEMA = Schema.of(
    pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("ts", pa.timestamp("us", "Europe/Paris")),
            ("small", pa.int32()),
            ("price", pa.decimal128(12, 2)),
        ]
    )
)
# Appendix D, line by line.
COMMON = [
    (identity("name"), "col0", "utf8"),
    (year("ts"), "date_part('year', col0)", "int32"),
    (bucket("id", 16), "abs(md5_int(col0)) % 16", "int64"),
    (multi_bucket(["id", "name"], 8), "abs(md5_int(concat(col0, col1))) % 8", "int64"),
    (multi_bucket(["id"], 8), "abs(md5_int(concat(col0))) % 8", "int64"),
    (truncate("name", 3), "left(col0, 3)", "utf8"),
    (truncate("small", 10), "col0 - (col0 % 10)", "int32"),
    (truncate("price", 10), "col0 - (col0 % 10)", "decimal128"),
]


@pytest.mark.parametrize(("term", "sql", "result"), COMMON, ids=lambda each: str(each)[:40])
def test_common_expressions_are_stored_as_printed(term: Any, sql: str, result: str) -> None:
    spec = build_next_spec([term], SCHEMA, {}, is_draft=True)
    [stored] = json.loads(spec_to_draft_json(spec))
    assert list(stored) == ["field_id", "source_ids", "expression", "result_type"]
    assert (stored["expression"], stored["result_type"]["type"]) == (sql, result)
    again = spec_from_draft_json(1, spec_to_draft_json(spec))
    assert again == spec
    assert spec_to_draft_json(again) == spec_to_draft_json(spec)
    spec.check(SCHEMA)


def test_default_field_ids_are_those_of_the_newest_format() -> None:
    terms = "bucket(16, id), multi_bucket(8, id, name), year(ts), name"
    drafted, newest = (build_next_spec(terms, SCHEMA, {}, is_draft=each) for each in (True, False))
    ids = [field.field_id for field in newest.fields]
    assert [field.field_id for field in drafted.fields] == ids
    later = build_next_spec("bucket(8, id), bucket(16, id)", SCHEMA, {1: drafted}, is_draft=True)
    assert [field.field_id for field in later.fields] == ["id_bucket_8", "id_bucket"]


def test_md5_buckets_are_no_murmur3_buckets() -> None:
    drafted = build_next_spec(
        "bucket(16, id), multi_bucket(8, id, name)", SCHEMA, {}, is_draft=True
    )
    newest = build_next_spec("bucket(16, id), multi_bucket(8, id, name)", SCHEMA, {})
    for ours, theirs in zip(drafted.fields, newest.fields, strict=True):
        assert isinstance(ours.derivation, Expression)
        assert isinstance(theirs.derivation, Bucket | MultiBucket)
        assert ours.meaning != theirs.meaning
        assert ours.transform is None
    rows = pa.table({"id": range(64), "name": ["x"] * 64}, schema=pa.schema(list(SCHEMA.arrow)[:2]))
    small = Schema.of(rows.schema)
    assert (
        drafted.compute_partition_values(rows, small).column(0).to_pylist()
        != newest.compute_partition_values(rows, small).column(0).to_pylist()
    )


@pytest.mark.parametrize(
    "term",
    [
        expression("abs(murmur3(col0)) % 16", ["id"], pa.int32(), field_id="x"),
        expression("abs(murmur3_multi(col0, col1)) % 4", ["id", "name"], pa.int32(), field_id="x"),
        expression("murmur3(col0) % 7", ["id"], pa.int64(), field_id="x"),
    ],
)
def test_murmur3_is_refused(term: Any) -> None:
    with pytest.raises(InvalidSpec, match=r"hashes by md5_int.*layout='namespace'"):
        build_next_spec([term], SCHEMA, {}, is_draft=True)


def test_a_bucket_of_what_cannot_be_hashed_names_the_column() -> None:
    schema = Schema.of(pa.schema([("tags", pa.list_(pa.string()))]))
    with pytest.raises(InvalidSpec, match="Cannot bucket column 'tags'"):
        build_next_spec("bucket(4, tags)", schema, {}, is_draft=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "Cannot read the partition spec"),
        ('{"id":1,"fields":[]}', "expected an array"),
        ('[{"field_id":"a","source_ids":[0],"transform":{"type":"identity"}}]', "'a'.*expression"),
        ('[{"field_id":"a","source_ids":[0],"expression":"col0"}]', "result_type"),
        (
            '[{"field_id":"a","source_ids":[0],"expression":"random()",'
            '"result_type":{"type":"float64"}}]',
            "random",
        ),
        ("[1]", "expected an object"),
    ],
)
def test_specs_that_cannot_be_read_say_why(text: str, why: str) -> None:
    with pytest.raises(InvalidSpec, match=why):
        spec_from_draft_json(1, text)


def test_specs_of_two_formats_are_refused() -> None:
    drafted = spec_to_draft_json(build_next_spec("name", SCHEMA, {}, is_draft=True))
    newest = build_next_spec("name", SCHEMA, {}).to_json()
    metadata = {"schema": SCHEMA.to_json(), "partition_spec_v1": drafted}
    assert parse_properties(metadata, "root").layout == "expressions"
    with pytest.raises(InvalidSpec, match="specs of two formats"):
        parse_properties({**metadata, "partition_spec_v2": newest}, "root")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 2**31 - 1])
def test_the_smallest_hash_has_a_bucket(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """No text with this hash is known, so the test replaces the hash."""
    smallest = -(2**63)
    hashes = [smallest, smallest + 1, -1, 0, 2**63 - 1]
    made = build_expression(f"abs(md5_int(col0)) % {count}", [pa.string()], pa.int64())
    monkeypatch.setattr(engine, "md5_int", lambda *_: pa.array(hashes, pa.int64()))
    found = made.apply(pa.array(["a"] * len(hashes)))
    assert found.to_pylist() == [abs(each) % count for each in hashes]


def test_every_distinct_value_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    from phalanx.model.sql import md5_int as module

    original = module.create_relation

    def record_rows(batch: pa.RecordBatch) -> Any:
        seen.append(batch.num_rows)
        return original(batch)

    monkeypatch.setattr(module, "create_relation", record_rows)
    column = pa.array(np.arange(10_000) % 7).cast(pa.string())
    assert len(set(build_expression("md5_int(col0)", [pa.string()], pa.int64()).apply(column))) == 7
    assert seen[-1] == 7


# --- joins ----------------------------------------------------------------------------------------


INT64, INT32 = pa.int64(), pa.int32()


def side(partition_by: str, kind: pa.DataType = INT64, *, drafted: bool) -> JoinSide:
    schema = Schema.of(pa.schema([("id", kind), ("name", pa.string())]))
    return JoinSide(build_next_spec(partition_by, schema, {}, is_draft=drafted), schema)


@pytest.mark.parametrize("partition_by", ["bucket(16, id)", "multi_bucket(16, id, name)"])
def test_joins_pair_equal_md5_buckets_and_never_murmur3_ones(partition_by: str) -> None:
    on = [("id", "id"), ("name", "name")]
    drafted, newest = (side(partition_by, drafted=each) for each in (True, False))
    found = find_compatibility(drafted, drafted, on)
    assert [(key.left_reduction, key.right_reduction) for key in found.keys] == [
        (IDENTITY, IDENTITY)
    ]
    assert find_compatibility(drafted, side(partition_by, INT32, drafted=True), on).compatible
    for left, right in ((drafted, newest), (newest, drafted)):
        assert not find_compatibility(left, right, on).compatible
        assert "not compatible" in find_compatibility(left, right, on).reason
    other = side(partition_by.replace("16", "8"), drafted=True)
    assert not find_compatibility(drafted, other, on).compatible


def test_a_join_with_the_column_itself_computes_the_buckets() -> None:
    found = find_compatibility(
        side("id", drafted=True), side("bucket(16, id)", drafted=True), [("id", "id")]
    )
    [key] = found.keys
    assert key.left_reduction == side("bucket(16, id)", drafted=True).spec.fields[0].derivation
    [number] = key.left_reduction.apply(pa.array([5])).to_pylist()
    digest = bytes.fromhex("e4da3b7fbbce2345d7772b0674a318d5")  # md5 of "5"
    assert number == abs(struct.unpack(">q", digest[:8])[0]) % 16
