"""How an import converts another system's specs and columns, before anything is read."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import phalanx
from phalanx.model.schema.schema import Schema
from phalanx.model.schema.storable_types import cast_to_storable, to_storable_type
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.epoch_parts import EpochDay, EpochMonth
from phalanx.model.transforms.hive import HiveBucket, HiveHash
from phalanx.model.transforms.masked_buckets import MaskedBucket
from phalanx.model.transforms.transform import Transform
from phalanx.planning.import_mapping import map_specs
from phalanx.planning.import_plan import ColumnMapping, ImportPlan, ImportSize
from properties.strategies import rows, specs

SCHEMA = Schema.of(
    pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us")),
            ("country", pa.string()),
            ("order", pa.struct([("placed", pa.timestamp("us"))])),
        ]
    )
)


def foreign(number: int, *fields: tuple[str, str, Transform]) -> PartitionSpec:
    """A spec of another system: field ids, columns and transforms."""
    return PartitionSpec(
        number,
        tuple(
            PartitionField(
                name,
                (SCHEMA.id_of(column),),
                transform,
                transform.result_type(SCHEMA.type_of(SCHEMA.id_of(column))),
            )
            for name, column, transform in fields
        ),
    )


def test_a_spec_of_the_format_carries_over_exactly() -> None:
    sql = phalanx.expression("upper(col0)", ["country"], pa.string(), field_id="loud")
    old = build_next_spec("country", SCHEMA, {})
    spec = build_next_spec(
        [phalanx.year("at"), phalanx.bucket("id", 8, field_id="b"), sql], SCHEMA, {1: old}
    )
    mappings, terms = map_specs({1: old, 2: spec}, 2, SCHEMA, SCHEMA)
    assert build_next_spec(terms, SCHEMA, {}).fields == spec.fields
    assert [mapping.is_newest for mapping in mappings] == [False, True]
    assert {field.kind for mapping in mappings for field in mapping.fields} == {"exact"}
    assert [field.becomes for field in mappings[1].fields] == [
        field.source for field in mappings[1].fields
    ]


def test_other_systems_fields_become_what_is_nearest() -> None:
    spec = foreign(
        1,
        ("at_month", "at", EpochMonth(pa.int32())),
        ("at_day", "at", EpochDay(pa.int32())),
        ("id_bucket(16)", "id", MaskedBucket(16)),
        ("placed", "order.placed", EpochMonth(pa.int32())),
    )
    (mapping,), terms = map_specs({1: spec}, 1, SCHEMA, SCHEMA)
    months, days, bucket, nested = mapping.fields
    assert (months.kind, months.becomes) == ("exact", "year(at), month(at)")
    assert (days.kind, days.becomes) == ("exact", "year(at), month(at), day(at)")
    assert (bucket.kind, bucket.becomes) == ("changed", "bucket(16, id)")
    assert "rows are repartitioned" in str(bucket)
    assert nested.becomes == "year(order.placed), month(order.placed)"
    # A day implies its year and month only once, and every level has its own name.
    found = build_next_spec(terms, SCHEMA, {})
    assert found.label(SCHEMA) == (
        "year(at), month(at), day(at), bucket(16, id), year(order.placed), month(order.placed)"
    )
    names = [field.field_id for field in found.fields]
    assert names == [*("at_year", "at_month", "at_day", "id_bucket"), "placed_year", "placed_month"]


def test_buckets_of_the_draft_are_spread_again() -> None:
    drafted = build_next_spec(
        "bucket(4, id), multi_bucket(5, id, country)", SCHEMA, {}, is_draft=True
    )
    (mapping,), terms = map_specs({1: drafted}, 1, SCHEMA, SCHEMA, is_draft=True)
    assert [field.kind for field in mapping.fields] == ["changed", "changed"]
    assert build_next_spec(terms, SCHEMA, {}) == build_next_spec(
        "bucket(4, id), multi_bucket(5, id, country)", SCHEMA, {}
    )
    # In a table of the format the same expression means what it says.
    (mapping,), terms = map_specs({1: drafted}, 1, SCHEMA, SCHEMA)
    assert build_next_spec(terms, SCHEMA, {}) == drafted
    hive = foreign(1, ("b", "id", HiveBucket(4)), ("h", "country", HiveHash()))
    (mapping,), terms = map_specs({1: hive}, 1, SCHEMA, SCHEMA)
    assert [field.kind for field in mapping.fields] == ["changed", "exact"]
    found = build_next_spec(terms, SCHEMA, {}).fields[1]
    values = pa.array(["a", "", None, "iceberg"])
    assert found.derivation.apply(values).equals(HiveHash().apply(values))
    whole = foreign(1, ("h", "order", HiveHash()))
    (mapping,), terms = map_specs({1: whole}, 1, SCHEMA, SCHEMA)
    assert (mapping.fields[0].kind, terms) == ("refused", ())


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    spec = foreign(1, ("c", "country", phalanx.identity("country").derivation))  # type: ignore[arg-type]
    gone = Schema.of(pa.schema([SCHEMA.arrow.field("id")]))
    (mapping,), terms = map_specs({1: spec}, 1, gone, gone)
    assert (mapping.fields[0].kind, terms) == ("refused", ())
    assert "was dropped" in str(mapping.fields[0])
    # A column that cannot be stored here cannot be partitioned by.
    (mapping,), terms = map_specs({1: spec}, 1, SCHEMA, gone)
    assert (mapping.fields[0].kind, terms) == ("refused", ())
    plan = plan_of(specs=(mapping,), columns=(ColumnMapping("x", "interval", None, "no name"),))
    assert plan.refusals == ("x interval is refused (no name)", str(mapping.fields[0]))
    assert plan.refusals[0] in str(plan)


@given(st.data())
def test_every_spec_of_the_format_is_the_same_after_an_import(data: st.DataObject) -> None:
    drawn = data.draw(rows(max_rows=0))
    spec = data.draw(specs(drawn))
    (mapping,), terms = map_specs({1: spec}, 1, drawn.schema, drawn.schema)
    assert build_next_spec(terms, drawn.schema, {}) == spec
    assert all(field.kind == "exact" for field in mapping.fields)


def plan_of(**changes: object) -> ImportPlan:
    values: dict[str, object] = {
        "system": "lance",
        "source": "old",
        "state": "version 3",
        "uri": "new",
        "is_new": True,
        "partition_by": (phalanx.year("at"),),
        "label": "year(at)",
        "chosen_by": "source",
        "specs": (),
        "columns": (ColumnMapping("id", "int64", "int64"),),
        "total": ImportSize(3, 30, 3000),
        "remaining": ImportSize(1, 10, 1000),
        "chunks": 1,
    }
    return ImportPlan(**{**values, **changes})  # type: ignore[arg-type]


def test_a_plan_is_a_value_that_explains_itself() -> None:
    plan = plan_of()
    assert str(plan).splitlines() == [
        "import of old (lance, version 3)",
        "into new, a new table",
        "partitioned by year(at), as in the source",
        "columns: 1 column of 1 unchanged",
        "imports 1 file, 10 rows, 1.0 kB in 1 chunk",
        "of 3 files, 30 rows, 3.0 kB; the rest is already imported",
    ]
    assert pickle.loads(pickle.dumps(plan)) == plan == plan_of()
    assert json.loads(json.dumps(plan.to_dict()))["left"] == {"files": 1, "rows": 10, "bytes": 1000}
    unknown = plan_of(
        total=ImportSize(1, None, 10), remaining=ImportSize(1, None, 10), is_new=False
    )
    assert "imports 1 file, rows unknown, 10 bytes in 1 chunk" in str(unknown)
    assert "into new, an existing table" in str(unknown)


KINDS = st.recursive(
    st.sampled_from([pa.string_view(), pa.uuid(), pa.binary_view(), pa.int32(), pa.string()]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.list_(kind, 2)),
        inner.map(lambda kind: pa.struct([("a", kind), ("b", pa.int8())])),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    ),
    max_leaves=3,
)


@given(KINDS)
def test_storable_types_hold_the_same_values(kind: pa.DataType) -> None:
    stored = to_storable_type(kind)
    assert to_storable_type(stored) == stored
    assert "view" not in str(stored)
    assert "extension" not in str(stored)
    nothing = pa.nulls(3, kind) if not isinstance(kind, pa.BaseExtensionType) else None
    if nothing is not None and "extension" not in str(kind):
        assert cast_to_storable(nothing, stored).to_pylist() == nothing.to_pylist()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.uuid(), [b"0" * 16, None]),
        (pa.string_view(), ["a", None, "a text that is longer than a view holds"]),
        (pa.list_(pa.string(), 2), [["a", "b"], None]),
        (pa.decimal64(12, 2), [None]),
        (pa.struct([("u", pa.uuid())]), [{"u": b"1" * 16}, None]),
    ],
)
def test_values_stay_what_they_are(kind: pa.DataType, values: list[object]) -> None:
    plain = pa.array(values, to_storable_type(kind))
    given_array = (
        plain.cast(kind) if kind != pa.uuid() else pa.ExtensionArray.from_storage(kind, plain)
    )
    assert cast_to_storable(given_array, to_storable_type(kind)).equals(plain)
