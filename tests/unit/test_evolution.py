"""New spec versions: numbers, field ids, reuse and refusals beyond the conformance table."""

import json

import pyarrow as pa
import pytest

from phalanx.errors import InvalidSpec
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec, check_specs
from phalanx.model.specs.partition_by import (
    PartitionBy,
    bucket,
    expression,
    identity,
    multi_bucket,
    truncate,
    year,
)
from phalanx.model.specs.spec import PartitionSpec

SCHEMA = Schema.of(
    pa.schema(
        [
            ("id", pa.int64()),
            ("ts", pa.timestamp("us")),
            ("country", pa.string()),
            ("small", pa.int32()),
            ("at", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
            ("price", pa.decimal128(9, 2)),
        ]
    )
)


def build_specs(*steps: PartitionBy, schema: Schema = SCHEMA) -> dict[int, PartitionSpec]:
    specs: dict[int, PartitionSpec] = {}
    for partition_by in steps:
        spec = build_next_spec(partition_by, schema, specs)
        specs[spec.id] = spec
    return specs


def ids(spec: PartitionSpec) -> list[str]:
    return [field.field_id for field in spec.fields]


# --- numbers -------------------------------------------------------------------------------------


def test_specs_are_numbered_from_one() -> None:
    assert list(build_specs("country", "id", "country")) == [1, 2, 3]


def test_the_number_follows_the_highest_one_whatever_is_missing() -> None:
    specs = build_specs("country", "id", "year(ts)")
    assert build_next_spec("country", SCHEMA, {3: specs[3], 1: specs[1]}).id == 4
    assert build_next_spec("country", SCHEMA, {3: specs[3]}).id == 4


def test_the_earlier_specs_stay_as_they_are() -> None:
    specs = build_specs("country, bucket(16, id)")
    before = specs[1].to_json()
    build_next_spec("bucket(8, id), country", SCHEMA, specs)
    assert specs[1].to_json() == before
    assert list(specs) == [1]


# --- ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "newest"),
    [
        (["bucket(16, id)", "bucket(8, id)"], ["id_bucket_8"]),
        (["bucket(16, id)", "bucket(8, id)", "bucket(4, id)"], ["id_bucket_4"]),
        (["bucket(16, id)", "bucket(8, id)", "bucket(16, id)"], ["id_bucket"]),
        (["country AS id_bucket_8, bucket(16, id)", "bucket(8, id)"], ["id_bucket_8_2"]),
        (
            [
                "country AS id_bucket, small AS id_bucket_8, year(ts) AS id_bucket_8_2",
                "bucket(8, id)",
            ],
            ["id_bucket_8_3"],
        ),
        (["truncate(4, country)", "truncate(2, country)"], ["country_truncate_2"]),
        (["truncate(4, country) AS country", "country"], ["country_2"]),
        (
            ["truncate(4, country) AS country, id AS country_2", "country"],
            ["country_3"],
        ),
        (["month(ts) AS ts_year", "year(ts)"], ["ts_year_2"]),
        (["multi_bucket(id, country, 8)"], ["id_country_multi_bucket"]),
        (["multi_bucket(id, 8)"], ["id_multi_bucket"]),
        (["multi_bucket(id, 8), bucket(8, id)"], ["id_multi_bucket", "id_bucket"]),
        (
            ["multi_bucket(id, country, 8)", "multi_bucket(id, country, 9)"],
            ["id_country_multi_bucket_9"],
        ),
        (["ID"], ["id"]),
        (["Year(TS)"], ["ts_year"]),
    ],
)
def test_default_ids(steps: list[str], newest: list[str]) -> None:
    specs = build_specs(*steps)
    assert ids(specs[len(steps)]) == newest
    check_specs(specs)


def test_a_reused_field_is_the_earlier_one() -> None:
    specs = build_specs("bucket(16, id) AS key, country")
    again = build_next_spec([identity("country"), bucket("id", 16)], SCHEMA, specs)
    assert again.fields == (specs[1].fields[1], specs[1].fields[0])


def test_the_first_id_wins_where_foreign_specs_hold_two_for_one_meaning() -> None:
    one = build_next_spec("country AS a", SCHEMA, {})
    two = PartitionSpec(2, build_next_spec("country AS b", SCHEMA, {}).fields)
    assert ids(build_next_spec("country", SCHEMA, {2: two, 1: one})) == ["a"]
    with pytest.raises(InvalidSpec, match=r"'b'.*'a'"):
        build_next_spec("country AS b", SCHEMA, {1: one, 2: two})


def test_ids_of_columns_that_cannot_name_a_manifest_column_must_be_given() -> None:
    schema = Schema.of(pa.schema([("a`b", pa.int64())]))
    with pytest.raises(InvalidSpec, match="field id 'a`b'"):
        build_next_spec(["a`b"], schema, {})
    assert ids(build_next_spec([identity("a`b", field_id="ab")], schema, {})) == ["ab"]


# --- sources -------------------------------------------------------------------------------------


def test_renaming_changes_neither_sources_nor_ids() -> None:
    specs = build_specs("bucket(16, id), at.city AS city")
    renamed = SCHEMA.rename("id", "customer").rename("at", "place")
    again = build_next_spec("bucket(16, customer), place.city", renamed, specs)
    assert again.fields == specs[1].fields
    assert again.label(renamed) == "bucket(16, customer), place.city"


def test_a_dropped_and_added_column_is_another_source() -> None:
    specs = build_specs("country")
    replaced = SCHEMA.drop("country").add(pa.field("country", pa.string()))
    spec = build_next_spec("country", replaced, specs)
    assert ids(spec) == ["country_2"]
    assert spec.fields[0].source_ids == (replaced.id_of("country"),)
    assert spec.fields[0].source_ids != specs[1].fields[0].source_ids
    check_specs({**specs, 2: spec})


def test_a_dropped_column_cannot_be_partitioned_by() -> None:
    specs = build_specs("country")
    with pytest.raises(InvalidSpec, match="country"):
        build_next_spec("country", SCHEMA.drop("country"), specs)


# --- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_by", ["small", "truncate(10, small)"])
def test_a_promoted_source_must_take_its_field_along(partition_by: str) -> None:
    specs = build_specs(partition_by)
    promoted = SCHEMA.promote("small", pa.int64())
    with pytest.raises(InvalidSpec, match=r"result type int64.*holds int32"):
        build_next_spec(partition_by, promoted, specs)


@pytest.mark.parametrize("partition_by", ["bucket(16, small)", "multi_bucket(small, id, 4)"])
def test_a_promoted_source_of_a_bucket_changes_nothing(partition_by: str) -> None:
    specs = build_specs(partition_by)
    promoted = SCHEMA.promote("small", pa.int64())
    assert build_next_spec(partition_by, promoted, specs).fields == specs[1].fields


@pytest.mark.parametrize(
    ("partition_by", "kind"),
    [
        ("small", pa.int32()),
        ("country", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("truncate(10, price)", pa.decimal128(9, 2)),
        ("truncate(5, small)", pa.int32()),
        ("year(ts)", pa.int32()),
        ("bucket(4, id)", pa.int32()),
        ("multi_bucket(id, country, 4)", pa.int32()),
        ("at.zip AS zip", pa.int32()),
    ],
)
def test_result_types_are_exact(partition_by: str, kind: pa.DataType) -> None:
    spec = build_next_spec(partition_by, SCHEMA, {})
    assert spec.fields[0].result_type == kind
    spec.check(SCHEMA)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition_by", "message"),
    [
        ("nope", "Cannot partition by nope: .*'nope'"),
        ("at.nope AS x", r"at\.nope"),
        ([multi_bucket([], 4)], "multi_bucket needs at least one source"),
        ([expression("1", [], pa.int64(), field_id="x")], "at least one source"),
        ([expression("upper(col0)", ["country"], pa.string())], "field_id="),
        ("at.city", "field_id="),
        ("country, country", "'country' twice"),
        ("country, identity(country) AS land", "'country' and 'land', which have the same meaning"),
        ("country, id AS country", "'country' for both country and id"),
        ("year(ts), year(ts)", "'ts_year' twice"),
    ],
    ids=str,
)
def test_refusals_of_a_first_spec(partition_by: PartitionBy, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        build_next_spec(partition_by, SCHEMA, {})


@pytest.mark.parametrize(
    ("partition_by", "message"),
    [
        ("id AS country", "'country' for id: it means country, and a field id never changes its"),
        ("bucket(8, id) AS key", r"'key' for bucket\(8, id\): it means bucket\(16, id\)"),
        ("bucket(16, id) AS other", "'other': an earlier spec has the same field as 'key'"),
        ("country AS land", "'land': an earlier spec has the same field as 'country'"),
        ("country, country", "'country'"),
        ("bucket(16, id), year(ts), bucket(16, id) AS key", "'key'"),
        ([truncate("country", 4, field_id="key")], "'key'"),
        ([year("ts", field_id="country")], "'country'"),
    ],
    ids=str,
)
def test_refusals_of_a_later_spec(partition_by: PartitionBy, message: str) -> None:
    specs = build_specs("country, bucket(16, id) AS key")
    with pytest.raises(InvalidSpec, match=message):
        build_next_spec(partition_by, SCHEMA, specs)


# --- stored specs --------------------------------------------------------------------------------


def test_no_specs_are_fine() -> None:
    check_specs({})


def test_a_spec_under_another_number_is_refused() -> None:
    spec = build_next_spec("country", SCHEMA, {})
    with pytest.raises(InvalidSpec, match="partition_spec_v2 holds spec 1"):
        check_specs({2: spec})


def test_an_id_with_two_meanings_is_refused() -> None:
    one = build_next_spec("country AS x", SCHEMA, {})
    two = PartitionSpec(2, build_next_spec("id AS x", SCHEMA, {}).fields)
    with pytest.raises(InvalidSpec, match=r"'x'.*spec 2"):
        check_specs({1: one, 2: two})


def test_an_id_with_two_meanings_in_one_spec_cannot_be_made() -> None:
    one = build_next_spec("country AS x", SCHEMA, {}).fields[0]
    two = build_next_spec("id AS x", SCHEMA, {}).fields[0]
    with pytest.raises(InvalidSpec, match="'x' twice"):
        PartitionSpec(1, (one, two))


@pytest.mark.parametrize("number", [-1, True, "1", 1.0, None], ids=repr)
def test_a_spec_id_is_a_number(number: object) -> None:
    with pytest.raises(InvalidSpec, match="spec id"):
        PartitionSpec(number, ())  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0, -1, True, "1", 1.0, None], ids=repr)
def test_a_stored_spec_id_is_a_positive_number(number: object) -> None:
    with pytest.raises(InvalidSpec, match="spec id"):
        PartitionSpec.from_json(json.dumps({"id": number, "fields": []}))
