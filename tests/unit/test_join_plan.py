"""Plans of joins: which leaves meet, which versions need a shuffle, what each kind reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest

from phalanx.errors import InvalidArgument, PhalanxError, SchemaMismatch
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import (
    bucket,
    day,
    expression,
    identity,
    month,
    truncate,
    year,
)
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.joins.execution import JoinTask, LeafPiece
from phalanx.planning.joins.keys import JoinOn, resolve_join_keys, to_comparable
from phalanx.planning.joins.kinds import JOIN_HOWS, parse_how
from phalanx.planning.joins.leaves import JoinedTable, JoinFragment, JoinLeaf, SpecLeaves
from phalanx.planning.joins.plan import JoinPlan, build_join_plan

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("country", pa.string()),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us")),
        ("ns", pa.timestamp("ns")),
    ]
)
MEGABYTE = 1 << 20
ONE_TASK = 128 * MEGABYTE
Values = Sequence[tuple[Any, ...]]


def table(
    name: str,
    *versions: tuple[Any, Values],
    columns: pa.Schema = COLUMNS,
    fragments: tuple[int, ...] = (MEGABYTE,),
) -> JoinedTable:
    """A table with leaves of some values under each version of its partitioning."""
    schema = Schema.of(columns)
    specs: dict[int, PartitionSpec] = {}
    found = []
    for partition_by, values in versions:
        spec = build_next_spec(partition_by, schema, specs)
        specs[spec.id] = spec
        fields = pa.schema([(field.field_id, field.result_type) for field in spec.fields])
        arrays = [
            pa.array([row[place] for row in values], field.type)
            for place, field in enumerate(fields)
        ]
        leaves = tuple(
            JoinLeaf(
                PartitionKey(spec.id, tuple(row)),
                f"{name}/v{spec.id}/{'/'.join(map(str, row))}",
                2**63 + place,
                tuple(JoinFragment(number, 10, size) for number, size in enumerate(fragments)),
            )
            for place, row in enumerate(values)
        )
        found.append(SpecLeaves(spec, leaves, pa.table(arrays, schema=fields)))
    return JoinedTable(name, schema, tuple(found))


def plan(left: JoinedTable, right: JoinedTable, on: JoinOn = "id") -> JoinPlan:
    return build_join_plan(left, right, resolve_join_keys(on, left.schema, right.schema))


def numbers(*values: Any) -> Values:
    return [(value,) for value in values]


def list_joined_values(found: JoinPlan) -> list[tuple[list[Any], list[Any]]]:
    """The values of the leaves in each group."""

    def values(leaves: Sequence[JoinLeaf]) -> list[Any]:
        return [
            leaf.key.values[0] if len(leaf.key.values) == 1 else leaf.key.values for leaf in leaves
        ]

    return [(values(group.left), values(group.right)) for group in found.groups]


# --- which leaves meet ----------------------------------------------------------------------------


def test_the_table_of_appendix_f() -> None:
    orders = table(
        "orders",
        ([bucket("customer_id", 16)], numbers(*range(16))),
        columns=pa.schema([("order_id", pa.int64()), ("customer_id", pa.int64())]),
    )
    customers = table("customers", ([bucket("id", 8)], numbers(*range(8))))
    found = plan(orders, customers, [("customer_id", "id")])
    assert found.compatible
    assert found.reason == ""
    assert list_joined_values(found) == [([i, i + 8], [i]) for i in range(8)]
    assert (found.left_only, found.right_only) == ((), ())
    turned = plan(customers, orders, [("id", "customer_id")])
    assert list_joined_values(turned) == [([i], [i, i + 8]) for i in range(8)]


def test_a_finer_date_chain_is_grouped_under_the_coarser() -> None:
    days = [(2024, 1, 1), (2024, 1, 2), (2024, 2, 1), (2025, 1, 1), (None, None, None)]
    finest = table("a", ([year("ts"), month("ts"), day("ts")], days))
    months = table("b", ([year("ts"), month("ts")], [(2024, 1), (2024, 2), (2025, 2)]))
    years = table("c", ([year("ts")], numbers(2023, 2024, 2025)))
    by_month = plan(finest, months, "ts")
    assert list_joined_values(by_month) == [
        ([(2024, 1, 1), (2024, 1, 2)], [(2024, 1)]),
        ([(2024, 2, 1)], [(2024, 2)]),
    ]
    by_year = plan(finest, years, "ts")
    assert list_joined_values(by_year) == [(days[:3], [2024]), ([days[3]], [2025])]
    # NULL meets nothing.
    assert [leaf.key.values for leaf in by_year.left_only] == [(None, None, None)]
    assert [leaf.key.values for leaf in by_year.right_only] == [(2023,)]


def test_dates_are_grouped_under_their_year() -> None:
    dates = table("a", ([identity("day")], numbers(date(2024, 5, 1), date(2025, 1, 1), None)))
    years = table("b", ([year("day")], numbers(2024, 2025, None)))
    found = plan(dates, years, "day")
    assert list_joined_values(found) == [([date(2024, 5, 1)], [2024]), ([date(2025, 1, 1)], [2025])]
    assert len(found.left_only) == len(found.right_only) == 1


def test_a_join_on_some_of_the_fields() -> None:
    values = [("FR", 0), ("FR", 1), ("US", 0), ("US", 1), ("US", None)]
    left = table("a", (["country", bucket("id", 2)], values))
    right = table("b", ([bucket("id", 4), "country"], [(0, "US"), (3, "US"), (1, "FR")]))
    on_id = plan(left, right, "id")
    assert list_joined_values(on_id) == [
        ([("FR", 0), ("US", 0)], [(0, "US")]),
        ([("FR", 1), ("US", 1)], [(1, "FR"), (3, "US")]),
    ]
    on_both = plan(left, right, ["id", "country"])
    assert list_joined_values(on_both) == [
        ([("FR", 1)], [(1, "FR")]),
        ([("US", 0)], [(0, "US")]),
        ([("US", 1)], [(3, "US")]),
    ]
    assert [leaf.key.values for leaf in on_both.left_only] == [("FR", 0), ("US", None)]


def test_an_expression_may_be_null_for_a_key_that_is_not() -> None:
    sign = expression("CASE WHEN col0 > 0 THEN 1 END", ["id"], pa.int64(), field_id="sign")
    left = table("a", ([sign], numbers(1, None)))
    right = table("b", (["id"], numbers(-5, 5, None)))
    assert list_joined_values(plan(left, right)) == [([1], [5]), ([None], [-5])]


def test_nanoseconds_are_not_kept_apart_by_a_join_that_does_not_see_them() -> None:
    left = table("a", (["ns"], numbers(datetime(2025, 1, 1))))
    right = table("b", (["ns"], numbers(datetime(2025, 1, 1))))
    found = plan(left, right, "ns")
    assert not found.compatible
    assert "microseconds" in found.reason
    years = table("c", ([year("ns")], numbers(2025)))
    assert plan(left, years, "ns").compatible


def test_a_column_may_be_joined_with_two() -> None:
    pair = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    left = table("a", ([bucket("id", 2)], numbers(0, 1)))
    right = table("b", ([bucket("a", 2)], numbers(0, 1)), columns=pair)
    assert plan(left, right, [("id", "a"), ("id", "b")]).compatible
    assert plan(left, right, [("id", "b"), ("id", "a")]).compatible


# --- several spec versions ------------------------------------------------------------------------


def several() -> JoinPlan:
    """Left v1 fits both right versions, left v2 only the second."""
    left = table("a", ([bucket("id", 4)], numbers(0, 1)), ([truncate("id", 10)], numbers(0, 10)))
    right = table("b", ([bucket("id", 2)], numbers(0, 1)), (["id"], numbers(3, 10)))
    return plan(left, right)


def specs_of(task: JoinTask) -> tuple[set[int], set[int]]:
    def numbers(pieces: Sequence[LeafPiece]) -> set[int]:
        return {piece.leaf.key.spec_id for piece in pieces}

    return numbers(task.left), numbers(task.right)


def test_each_pair_of_versions_is_planned_on_its_own() -> None:
    found = several()
    assert [(pair.left, pair.right, pair.compatible) for pair in found.pairs] == [
        (1, 1, True),
        (1, 2, True),
        (2, 1, False),
        (2, 2, True),
    ]
    assert not found.compatible
    assert found.reason == (
        "left spec v2 and right spec v1: truncate(10, id) and bucket(2, id) are not compatible"
    )


def test_an_inner_join_shuffles_only_what_does_not_fit() -> None:
    found = several().plan_execution("inner", ONE_TASK)
    assert [(each.left_specs, each.right_specs) for each in found.shuffles] == [((2,), (1,))]
    assert [specs_of(task) for task in found.tasks] == [({1}, {1, 2}), ({2}, {2})]


@pytest.mark.parametrize("how", ["left", "semi", "anti"])
def test_left_rows_see_the_whole_right_side(how: Any) -> None:
    found = several().plan_execution(how, ONE_TASK)
    assert [(each.left_specs, each.right_specs) for each in found.shuffles] == [((2,), (1, 2))]
    assert [specs_of(task)[0] for task in found.tasks] == [{1}]


def test_right_rows_see_the_whole_left_side() -> None:
    found = several().plan_execution("right", ONE_TASK)
    assert [(each.left_specs, each.right_specs) for each in found.shuffles] == [((1, 2), (1,))]
    assert [specs_of(task)[1] for task in found.tasks] == [{2}]


def test_a_full_join_is_a_left_join_and_the_lonely_right_rows() -> None:
    found = several().plan_execution("full", ONE_TASK)
    assert [task.kind for task in found.tasks] == ["left", "right_anti"]
    assert [each.kind for each in found.shuffles] == ["left", "right_anti"]


def test_a_full_join_in_which_nothing_fits_is_one_shuffle() -> None:
    left = table("a", ([bucket("id", 3)], numbers(0)))
    right = table("b", ([bucket("id", 2)], numbers(0)))
    found = plan(left, right).plan_execution("full")
    assert [each.kind for each in found.shuffles] == ["full"]
    assert found.tasks == ()


# --- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "left", "right"),
    [
        ("inner", [1], [1]),
        ("semi", [1], [1]),
        ("left", [0, 1, None], [1]),
        ("anti", [0, 1, None], [1]),
        ("right", [1], [1, 3, None]),
        ("full", [0, 1, None], [1, 3, None]),
    ],
)
def test_leaves_without_a_partner_are_read_only_to_be_kept(how: Any, left: Any, right: Any) -> None:
    mine = table("a", ([bucket("id", 4)], numbers(0, 1, None)))
    theirs = table("b", ([bucket("id", 4)], numbers(1, 3, None)))
    (task,) = plan(mine, theirs).plan_execution(how, ONE_TASK).tasks
    assert sorted((p.leaf.key.values[0] for p in task.left), key=str) == left
    assert sorted((p.leaf.key.values[0] for p in task.right), key=str) == right


def test_an_empty_side() -> None:
    mine = table("a", ([bucket("id", 4)], numbers(0, 1)))
    nobody = table("b", ([bucket("id", 4)], []))
    found = plan(mine, nobody)
    assert found.compatible
    assert found.groups == ()
    assert found.plan_execution("inner").tasks == ()
    (task,) = found.plan_execution("left").tasks
    assert (len(task.left), len(task.right)) == (2, 0)


def test_small_groups_share_a_task() -> None:
    mine = table("a", ([bucket("id", 16)], numbers(*range(16))))
    theirs = table("b", ([bucket("id", 16)], numbers(*range(16))))
    found = plan(mine, theirs)
    assert len(found.plan_execution("inner", ONE_TASK).tasks) == 1
    assert len(found.plan_execution("inner", 10 * MEGABYTE).tasks) == 4
    assert found.plan_execution("inner", 10 * MEGABYTE).cut_groups == 0


@pytest.mark.parametrize("how", JOIN_HOWS)
def test_a_large_group_is_cut_along_the_rows_that_are_kept(how: Any) -> None:
    large = table("a", ([bucket("id", 1)], numbers(0)), fragments=(100 * MEGABYTE,) * 8)
    small = table("b", ([bucket("id", 1)], numbers(0)), fragments=(MEGABYTE,))
    found = plan(large, small).plan_execution(how, 100 * MEGABYTE)
    kept = [task for task in found.tasks if task.kind != "right_anti"]
    if how in ("right",):
        # Splitting the small side would read the large one repeatedly.
        assert len(found.tasks) == 1
        return
    assert found.cut_groups == 1
    assert [piece.fragments for task in kept for piece in task.left] == [(n,) for n in range(8)]
    assert all(task.right == (LeafPiece(small.leaves[0]),) for task in kept)
    assert len(found.tasks) - len(kept) == (1 if how == "full" else 0)


def test_two_large_sides_are_not_read_too_often() -> None:
    one, other = (
        table(name, ([bucket("id", 1)], numbers(0)), fragments=(100 * MEGABYTE,) * 50)
        for name in ("a", "b")
    )
    found = plan(one, other).plan_execution("left", 100 * MEGABYTE)
    read = sum(piece.bytes for task in found.tasks for piece in task.right)
    assert 1 < len(found.tasks) <= 8
    assert read <= 4 * 2 * 50 * 100 * MEGABYTE


# --- reports --------------------------------------------------------------------------------------


def test_a_plan_explains_itself() -> None:
    assert str(several()).splitlines()[:12] == [
        "join a",
        "with b",
        "on   id",
        "2 groups, and a shuffle of 1 of 4 version pairs",
        "",
        "left spec v1 by bucket(4, id), right spec v1 by bucket(2, id)",
        "  joins where remainder(2, id_bucket) = id_bucket",
        "  2 common values",
        "",
        "left spec v1 by bucket(4, id), right spec v2 by id",
        "  joins where id_bucket = bucket(4, id)",
        "  2 common values",
    ]
    assert "a shuffle of left v2 with right v1" in str(several())


def test_a_plan_as_json() -> None:
    found = json.loads(json.dumps(several().to_dict()))
    assert found["on"] == [["id", "id"]]
    assert found["compatible"] is False
    assert found["left"]["specs"][1]["partition_by"] == "truncate(10, id)"
    assert found["pairs"][0]["fields"] == [
        {
            "left": "id_bucket",
            "right": "id_bucket",
            "left_reduction": "remainder(2, id_bucket)",
            "right_reduction": "id_bucket",
        }
    ]
    leaf = found["groups"][0]["left"][0]
    assert leaf["version"] == str(2**63)
    assert leaf["values"] == {"id_bucket": 0}
    assert leaf["bytes"] == MEGABYTE
    assert set(found["executions"]) == set(JOIN_HOWS)


# --- what is asked for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ([], "expected a column"),
        (5, "expected a column"),
        ([("id", "id", "id")], "pair of names"),
        ("nope", "of the left table"),
        ([("id", "country")], "'country' (string)"),
        ([("day", "ts")], "timestamp"),
        ("point.x", "whole columns"),
    ],
)
def test_what_cannot_be_joined_is_refused(on: Any, words: str) -> None:
    point = COLUMNS.append(pa.field("point", pa.struct([("x", pa.int64())])))
    schema = Schema.of(point)
    with pytest.raises((SchemaMismatch, InvalidArgument), match="Cannot join on") as refused:
        resolve_join_keys(on, schema, schema)
    assert words in str(refused.value)
    is_argument = words in ("expected a column", "pair of names")
    assert isinstance(refused.value, InvalidArgument) == is_argument


def test_kinds_of_join_have_the_names_of_spark() -> None:
    assert [
        parse_how(name) for name in ("INNER", "left_outer", "outer", "leftsemi", "left_anti")
    ] == [
        "inner",
        "left",
        "full",
        "semi",
        "anti",
    ]
    with pytest.raises(PhalanxError, match="how='cross': expected one of inner, left"):
        parse_how("cross")


@pytest.mark.parametrize(
    ("given", "kind", "values", "expected"),
    [
        (pa.uint64(), pa.decimal128(20, 0), [2**64 - 1], [2**64 - 1]),
        (pa.float32(), pa.float64(), [-0.0], [0.0]),
        (
            pa.timestamp("ns"),
            pa.timestamp("us"),
            [-1],
            [datetime(1969, 12, 31, 23, 59, 59, 999999)],
        ),
        (pa.date64(), pa.date32(), [86_400_000], [date(1970, 1, 2)]),
        (pa.binary(2), pa.binary(), [b"ab"], [b"ab"]),
        (pa.duration("ns"), pa.int64(), [1999], [1]),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), ["a"], ["a"]),
    ],
)
def test_values_are_compared_in_one_form(
    given: pa.DataType, kind: pa.DataType, values: list[Any], expected: list[Any]
) -> None:
    found = to_comparable(pa.array(values, given), kind)
    assert found.type == kind
    assert found.to_pylist() == expected
    assert str(found.to_pylist()) == str(pa.array(expected, kind).to_pylist())
