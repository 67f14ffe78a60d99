"""Partition values of rows, and the mistakes people make on the way to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

from phalanx import bucket, expression, multi_bucket, year
from phalanx.errors import InvalidPredicate, InvalidSchema, InvalidSpec, SchemaMismatch
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.expression import read_expression
from phalanx.model.transforms.truncate import Truncate
from phalanx.planning.pruning.prune import prune

INNER = pa.struct([("day", pa.date32()), ("zip", pa.string())])
SCHEMA = Schema.of(
    pa.schema(
        [
            ("id", pa.int64()),
            ("ts", pa.timestamp("us", "Europe/Berlin")),
            ("at", pa.struct([("inner", INNER), ("id", pa.int32())])),
        ]
    )
)


def test_a_field_two_structs_deep_is_partitioned_and_pruned() -> None:
    spec = build_next_spec("year(at.inner.day) AS y, truncate(2, at.inner.zip) AS z", SCHEMA, {})
    inner = pa.array([{"day": None, "zip": "abc"}, None], INNER)
    at = pa.StructArray.from_arrays([inner, pa.array([1, 2], pa.int32())], ["inner", "id"])
    rows = pa.table({"id": [1, 2], "ts": pa.nulls(2, SCHEMA.arrow.field("ts").type), "at": at})
    assert spec.compute_partition_values(rows, SCHEMA).to_pylist() == [
        {"y": None, "z": "ab"},
        {"y": None, "z": None},
    ]
    where = bind_predicate("at.inner.day = '2025-03-04' AND At.Inner.ZIP LIKE 'a%'", SCHEMA)
    assert to_datafusion(prune(where, {1: spec}, SCHEMA).specs[0].filter) == (
        "partition_field_y = 2025 AND partition_field_z LIKE 'a%'"
    )


def test_an_expression_may_look_into_a_struct() -> None:
    term = expression("upper(col0['zip'])", ["at.inner"], pa.string(), field_id="zip")
    spec = build_next_spec([term], SCHEMA, {})
    inner = pa.array([{"day": None, "zip": "abc"}], INNER)
    at = pa.StructArray.from_arrays([inner, pa.array([1], pa.int32())], ["inner", "id"])
    assert spec.compute_partition_values(pa.table({"at": at}), SCHEMA).to_pylist() == [
        {"zip": "ABC"}
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (pa.table({"id": ["1"]}), "'id' as string, but the schema has int64"),
        (pa.table({"id": [1.5]}), "'id' as double, but the schema has int64"),
        (pa.table({"other": [1]}), "no column 'id'"),
    ],
)
def test_rows_of_another_type_are_refused(rows: pa.Table, message: str) -> None:
    """Rows of another type would be hashed by other bytes, and go to other partitions."""
    spec = build_next_spec([bucket("id", 8)], SCHEMA, {})
    with pytest.raises(SchemaMismatch, match=message):
        spec.compute_partition_values(rows, SCHEMA)


def test_a_dictionary_is_as_good_as_its_values() -> None:
    schema = Schema.of(pa.schema([("name", pa.string())]))
    spec = build_next_spec("bucket(8, name)", schema, {})
    plain = pa.table({"name": ["a", "b", None, "a"]})
    coded = pa.table({"name": plain.column("name").combine_chunks().dictionary_encode()})
    assert spec.compute_partition_values(coded, schema) == spec.compute_partition_values(
        plain, schema
    )


@pytest.mark.parametrize(
    ("partition_by", "message"),
    [
        (["year(ts)"], r"one string"),
        ("year(id)", r"the year of column 'id' \(int64\)"),
        ([bucket("at", 4)], r"column 'at' \(struct"),
        ("at.id", r"AS … in text"),
        ("at", r"Name a field inside it, such as 'at\.inner\.day'\."),
        ("id AS x, ts AS x", r"field id 'x' for both id and ts\. Give one of them another"),
        ("id, id", r"'id' twice"),
        ("zip", r"Did you mean 'at\.inner\.zip'\?"),
        ([year(None)], r"expected column names"),  # type: ignore[arg-type]
    ],
)
def test_a_misfit_is_reported_with_its_column(partition_by: PartitionBy, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        build_next_spec(partition_by, SCHEMA, {})


def test_one_column_needs_no_list_around_it() -> None:
    assert multi_bucket("id", 4) == multi_bucket(["id"], 4)


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        (lambda: Schema.of({"id": "int64"}), InvalidSchema),
        (lambda: Schema.from_json(5), InvalidSchema),  # type: ignore[arg-type]
        (lambda: expression("col0", ["id"], "int64"), InvalidSpec),
        (lambda: bind_predicate(None, SCHEMA), InvalidPredicate),  # type: ignore[arg-type]
        (lambda: bind_predicate("year(ts) = 2025", SCHEMA), InvalidPredicate),
    ],
)
def test_simple_misuse_gets_a_plain_error(
    mistake: Callable[[], object], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"expected|Expected|date_part"):
        mistake()


MOMENT = pa.timestamp("us")


@pytest.mark.parametrize(
    ("sql", "source", "result", "value"),
    [
        ("date_trunc('day', col0)", MOMENT, MOMENT, None),
        ("date_trunc('hour', col0)", pa.timestamp("ns", "UTC"), pa.timestamp("ns", "UTC"), None),
        ("date_part('year', col0) * 100", MOMENT, pa.int32(), None),
        ("date_part('dow', col0)", pa.date32(), pa.int32(), None),
        ("extract(epoch from col0)", MOMENT, pa.float64(), None),
        ("col0 + INTERVAL '1 day'", pa.date32(), pa.date32(), None),
        ("date_part('hour', col0) + 1", pa.time64("us"), pa.int32(), None),
        ("array_length(col0)", pa.list_(pa.int64()), pa.int64(), None),
        ("upper(col0['zip'])", pa.struct([("zip", pa.string())]), pa.string(), None),
        ("coalesce(col0, 1) / 2", pa.float64(), pa.float64(), 0.5),
        ("coalesce(col0, 1) / 2", pa.int64(), pa.int64(), 0),
        ("coalesce(upper(col0), 'none')", pa.string(), pa.string(), "none"),
    ],
)
def test_a_dropped_source_counts_as_null(
    sql: str, source: pa.DataType, result: pa.DataType, value: object
) -> None:
    """With the value that a NULL of its type has, though the schema no longer knows the type."""
    schema = Schema.of(pa.schema([("kept", pa.int64()), ("gone", source)]))
    made = build_next_spec([expression(sql, ["gone"], result, field_id="x")], schema, {})
    rows = pa.table({"kept": [1, 2]})
    nulls = rows.append_column("gone", pa.nulls(2, source))
    assert made.compute_partition_values(nulls, schema).column("x").to_pylist() == [value, value]
    for spec in (made, PartitionSpec.from_json(made.to_json())):
        found = spec.compute_partition_values(rows, schema.drop("gone")).column("x")
        assert (found.type, found.to_pylist()) == (result, [value, value])


def test_of_two_sources_both_may_be_dropped() -> None:
    schema = Schema.of(pa.schema([("kept", pa.int64()), ("ts", MOMENT), ("s", pa.string())]))
    sql = "concat(date_part('year', col0) * 100, upper(col1))"
    spec = build_next_spec([expression(sql, ["ts", "s"], pa.string(), field_id="x")], schema, {})
    rows = pa.table({"kept": [1], "s": ["a"]})
    without = schema.drop("ts")
    assert spec.compute_partition_values(rows, without).to_pylist() == [{"x": "A"}]
    assert spec.compute_partition_values(rows, without.drop("s")).to_pylist() == [{"x": ""}]


def test_a_value_that_does_not_fit_its_type_is_reported() -> None:
    derivation = read_expression("col0 + INTERVAL '1 day'", 1, pa.bool_())
    with pytest.raises(SchemaMismatch, match="Cannot compute the partition value"):
        derivation.apply(pa.array([1], pa.date32()))


@pytest.mark.parametrize(
    ("sql", "source", "result"),
    [
        ("left(col0, 3)", "i", "int64"),
        ("left(col0, 3)", "i", "utf8"),
        ("col0 - (col0 % 3)", "s", "utf8"),
        ("col0 - (col0 % 3)", "s", "int64"),
    ],
)
def test_a_stored_expression_never_turns_into_another(sql: str, source: str, result: str) -> None:
    schema = Schema.of(pa.schema([("i", pa.int64()), ("s", pa.string())]))
    stored = {"field_id": "x", "source_ids": [schema.id_of(source)], "expression": sql}
    text = json.dumps({"id": 1, "fields": [{**stored, "result_type": {"type": result}}]})
    spec = PartitionSpec.from_json(text)
    with pytest.raises(InvalidSpec):
        spec.check(schema)


def test_partition_values_have_the_declared_type() -> None:
    schema = Schema.of(pa.schema([("i", pa.int64())]))
    field = PartitionField("x", (schema.id_of("i"),), Truncate(3), pa.string())
    with pytest.raises(SchemaMismatch, match=r"'x' holds string, but truncate\(3, i\) gives int64"):
        PartitionSpec(1, (field,)).compute_partition_values(pa.table({"i": [1234]}), schema)


@pytest.mark.parametrize("kind", [pa.decimal32(7, 2), pa.decimal64(10, 2), pa.decimal128(12, 2)])
def test_a_decimal_cut_to_nothing_keeps_its_type(kind: pa.DataType) -> None:
    schema = Schema.of(pa.schema([("d", kind)]))
    rows = pa.table({"d": pa.array([Decimal("1.50"), None], kind)})
    spec = build_next_spec("truncate(1000000000, d)", schema, {})
    found = spec.compute_partition_values(rows, schema).column(0)
    found.validate(full=True)
    assert {chunk.type for chunk in found.chunks} == {kind}
    assert found.to_pylist() == [Decimal("0.00"), None]
