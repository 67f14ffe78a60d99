"""What a plan says about itself, and the traps that brute force has found."""

from __future__ import annotations

import math
import pickle
import time

import pyarrow as pa
import pytest

from phalanx import bucket, expression, identity, multi_bucket, year
from phalanx.errors import InvalidSpec
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.planning.pruning.projection import SpecProjection
from phalanx.planning.pruning.prune import prune
from properties.oracle import find_matches

SCHEMA = Schema.of(
    pa.schema(
        [
            ("id", pa.int64()),
            ("ts", pa.timestamp("us")),
            ("country", pa.string()),
            ("f", pa.float64()),
            ("amount", pa.int32()),
        ]
    )
)


def project(partition_by: PartitionBy, where: str) -> SpecProjection:
    spec = build_next_spec(partition_by, SCHEMA, {})
    return prune(bind_predicate(where, SCHEMA), {1: spec}, SCHEMA).specs[0]


def test_conditions_that_prune_nothing_fail_open_only_if_a_partition_field_could_have_helped() -> (
    None
):
    found = project("country, bucket(16, id)", "length(country) > 3 AND amount > 5 AND id = 7")
    assert [reason.condition for reason in found.fail_open] == ['character_length("country") > 3']
    assert [reason.pushed for reason in found.reasons][:2] == [None, None]


@pytest.mark.parametrize(
    ("partition_by", "where", "why"),
    [
        ("bucket(16, id)", "id > 5", "bucket does not preserve order"),
        ("month(ts)", "ts > '2025-01-01'", "month is cyclic: a range also needs the coarser parts"),
        ("year(ts)", "ts > '2025-02-03'", "the range ends within one year"),
        ("country", "amount = 3", "no partition field comes from amount"),
        ("truncate(3, country)", "country LIKE 'abcd%'", "the prefix is longer than the width"),
        (
            [multi_bucket(["id", "country"], 8)],
            "id = 3",
            "multi_bucket needs all of its columns",
        ),
    ],
)
def test_a_residual_has_its_reason(partition_by: PartitionBy, where: str, why: str) -> None:
    (reason,) = project(partition_by, where).reasons
    assert (reason.exact, reason.why) == (False, why)


def test_a_long_list_is_pushed_whole_and_shown_short() -> None:
    values = ", ".join(map(str, range(70_000)))
    found = project("id", f"id IN ({values})")
    assert to_datafusion(found.filter).endswith("69998, 69999)")
    assert to_datafusion(found.residual) == "true"
    assert found.reasons[0].condition == "id IN (0, 1, 2, 3, 4, 5, 6, 7, … 70,000 values)"


def test_too_many_pairs_of_values_fail_open_but_lose_nothing() -> None:
    values = ", ".join(map(str, range(300)))
    texts = ", ".join(f"'{n}'" for n in range(300))
    where = f"id IN ({values}) AND country IN ({texts})"
    found = project([multi_bucket(["id", "country"], 8), bucket("id", 4)], where)
    assert to_datafusion(found.filter) == "partition_field_id_bucket IN (0, 1, 2, 3)"
    assert to_datafusion(found.residual) == to_datafusion(bind_predicate(where, SCHEMA))


def test_a_query_on_floats_is_not_taken_for_the_fields_own_expression() -> None:
    """The partition value is computed from 0.0, but the row may hold −0.0: 1 / −0.0 is −inf."""
    term = expression("CAST(1.0 / col0 > 0 AS INT)", ["f"], pa.int32(), field_id="above")
    found = project([term], "CAST(1.0 / f > 0 AS INT) = 0")
    assert to_datafusion(found.filter) == "true"


def test_a_negative_nan_is_below_all_numbers_and_its_partition_is_kept() -> None:
    found = project([identity("f")], "f < 0.5")
    assert to_datafusion(found.filter) == (
        "partition_field_f < 0.5 OR partition_field_f = arrow_cast('NaN', 'Float64')"
    )
    assert math.isnan(
        build_next_spec(["f"], SCHEMA, {})
        .fields[0]
        .derivation.apply(pa.array([-math.nan]))[0]
        .as_py()
    )


def test_a_long_chain_of_alternatives_is_planned_and_stays_sound() -> None:
    where = " OR ".join(f"(id = {n} AND country = 'c{n}')" for n in range(200))
    found = project("country", where)
    listed = to_datafusion(found.filter)
    assert all(f"'c{n}'" in listed for n in range(200))
    assert to_datafusion(found.residual) != "true"


def test_a_pruning_can_be_pickled() -> None:
    specs = {1: build_next_spec([year("ts"), "country"], SCHEMA, {})}
    pruning = prune(
        bind_predicate("ts > '2025-01-01' AND country IN ('a', 'b')", SCHEMA), specs, SCHEMA
    )
    assert pickle.loads(pickle.dumps(pruning)) == pruning


def test_every_spec_is_projected_by_its_own_fields() -> None:
    first = build_next_spec("country", SCHEMA, {})
    second = build_next_spec("year(ts)", SCHEMA, {1: first})
    pruning = prune(bind_predicate("country = 'US'", SCHEMA), {2: second, 1: first}, SCHEMA)
    assert pruning.manifest_filter == (
        "object_type = 'table' AND ((object_id LIKE 'v1$%' AND partition_field_country = 'US') OR "
        "object_id LIKE 'v2$%')"
    )
    assert [to_datafusion(spec.residual) for spec in pruning.specs] == ["true", "country = 'US'"]


def test_what_can_never_be_true_reads_nothing() -> None:
    specs = {1: build_next_spec("bucket(16, id)", SCHEMA, {})}
    for where in ("id > 5 AND id < 6", "id = 1 AND id = 2", "id IS NULL AND id = 1", "false"):
        pruning = prune(bind_predicate(where, SCHEMA), specs, SCHEMA)
        assert pruning.manifest_filter == "false", where


def test_no_time_comes_before_midnight() -> None:
    schema = Schema.of(pa.schema([("t", pa.time32("s"))]))
    pruning = prune(
        bind_predicate("t < '00:00:00'", schema),
        {1: build_next_spec("hour(t)", schema, {})},
        schema,
    )
    assert pruning.manifest_filter == "false"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("= DATE '2300-01-01'", "false"),
        ("< DATE '2300-01-01'", "ns IS NOT NULL"),
        (">= DATE '2300-01-01'", "false"),
        ("> DATE '1600-01-01'", "ns IS NOT NULL"),
        ("<= DATE '1600-01-01'", "false"),
        ("= DATE '1600-01-01'", "false"),
    ],
)
def test_days_that_a_column_cannot_hold_decide_the_comparison(
    condition: str, expected: str
) -> None:
    schema = Schema.of(pa.schema([("ns", pa.timestamp("ns"))]))
    assert to_datafusion(bind_predicate(f"CAST(ns AS DATE) {condition}", schema)) == expected


def test_a_bound_without_a_year_keeps_all_and_the_other_bound_still_prunes() -> None:
    schema = Schema.of(pa.schema([("s", pa.timestamp("s"))]))
    spec = build_next_spec("year(s), month(s)", schema, {})
    far = "s < arrow_cast(1735689600000000000, 'Timestamp(Second, None)')"
    alone = prune(bind_predicate(far, schema), {1: spec}, schema).specs[0]
    assert to_datafusion(alone.filter) == "true"
    assert alone.fail_open
    both = prune(bind_predicate(f"{far} AND s >= '2025-01-01'", schema), {1: spec}, schema).specs[0]
    assert to_datafusion(both.filter) == "partition_field_s_year >= 2025"
    assert to_datafusion(both.residual).startswith("s < arrow_cast(1735689600000000000")


def test_now_is_the_time_of_the_query() -> None:
    first = to_datafusion(bind_predicate("ts <= now()", SCHEMA))
    time.sleep(0.01)
    assert to_datafusion(bind_predicate("ts <= now()", SCHEMA)) != first


def test_a_zero_means_both_zeros_with_any_other_condition() -> None:
    found = project("bucket(4, f)", "f = 0 AND 1.0 / f < 0")
    assert to_datafusion(found.filter) == "partition_field_f_bucket = 0"


def test_expressions_that_differ_in_the_sign_of_zero_differ() -> None:
    term = "CASE WHEN 1.0 / (col0 * {}) > 0 THEN 1 ELSE 2 END"
    specs = {
        n: build_next_spec(
            [expression(term.format(zero), ["id"], pa.int64(), field_id="x")], SCHEMA, {}
        )
        for n, zero in enumerate(("0.0", "-0.0"), start=1)
    }
    assert specs[1].fields[0].meaning != specs[2].fields[0].meaning


def test_half_floats_are_pruned() -> None:
    schema = Schema.of(pa.schema([("h", pa.float16())]))
    pruning = prune(bind_predicate("h <> 0", schema), {1: build_next_spec("h", schema, {})}, schema)
    assert to_datafusion(pruning.specs[0].filter) == "partition_field_h IS NOT NULL"


def test_an_expression_that_fails_once_its_column_is_promoted_is_refused() -> None:
    schema = Schema.of(pa.schema([("a", pa.int8())]))
    with pytest.raises(InvalidSpec, match="equal numbers must fall in one partition"):
        build_next_spec([expression("col0 + col0", ["a"], pa.int8(), field_id="x")], schema, {})


ZEROS = Schema.of(pa.schema([("i", pa.int32()), ("f", pa.float32()), ("g", pa.float64())]))


@pytest.mark.parametrize(
    "where",
    [
        "i NOT IN (-0.0, 10.0)",
        "i IN (-0.0, 10.0)",
        "f NOT IN (-0.0, 10.0)",
        "f NOT IN (0.0, 10.0)",
        "f IN (-0.0, 10.0)",
        "g NOT IN (-0.0, 1, 2, 3, 10.0)",
        "g NOT IN (0.0, 0.0, 1, 2)",
        "g = -0.0 OR i = 7 OR g = 1 OR f = 8 OR g = 2 OR i = 9 OR g = 3 OR g = 10",
    ],
)
@pytest.mark.parametrize("partition_by", ["i, f, g", "bucket(4, i), bucket(4, f), bucket(4, g)"])
def test_both_zeros_are_equal_also_in_lists(where: str, partition_by: str) -> None:
    """No partition with a matching row is dropped, and the residual finds the very same rows."""
    numbers = [0.0, -0.0, 1.0, 10.0, None]
    rows = pa.table([pa.array(numbers, kind.type) for kind in ZEROS.arrow], names=ZEROS.arrow.names)
    spec = build_next_spec(partition_by, ZEROS, {})
    found = prune(bind_predicate(where, ZEROS), {1: spec}, ZEROS).specs[0]
    values = spec.compute_partition_values(rows, ZEROS)
    named = values.rename_columns([field.column for field in spec.fields])
    expected = find_matches(rows, where).to_pylist()
    kept = find_matches(named, to_datafusion(found.filter)).to_pylist()
    assert all(keep for keep, match in zip(kept, expected, strict=True) if match)
    rest = find_matches(rows, to_datafusion(found.residual)).to_pylist()
    assert [keep and match for keep, match in zip(kept, rest, strict=True)] == expected


@pytest.mark.parametrize(
    ("kind", "filters"),
    [
        (pa.timestamp("s"), "true"),
        (pa.date32(), "true"),
        (pa.timestamp("ns"), "partition_field_t_month IS NULL"),
    ],
)
def test_moments_too_far_for_sql_are_not_lost(kind: pa.DataType, filters: str) -> None:
    """Past the year 262,000 DataFusion finds no month, but there is one."""
    schema = Schema.of(pa.schema([("t", kind)]))
    spec = build_next_spec("month(t)", schema, {})
    found = prune(bind_predicate("date_part('month', t) IS NULL", schema), {1: spec}, schema).specs[
        0
    ]
    assert to_datafusion(found.filter) == filters
    if kind == pa.timestamp("s"):
        rows = pa.table({"t": pa.array([9_223_372_036_854, 0], kind)})
        assert spec.compute_partition_values(rows, schema).to_pylist() == [
            {"t_month": 1},
            {"t_month": 1},
        ]
        assert find_matches(rows, to_datafusion(found.residual)).to_pylist() == [True, False]
