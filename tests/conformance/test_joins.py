"""conformance/joins.json: which specs can be joined without a shuffle, for any implementation."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conformance.values import array_of, exact
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.transforms.expression import Expression
from phalanx.model.transforms.transform import Transform
from phalanx.planning.joins.compatibility import (
    Compatibility,
    GroupKey,
    JoinSide,
    find_compatibility,
)

Json = dict[str, Any]
CASES = json.loads((Path(__file__).parents[2] / "conformance" / "joins.json").read_text())["cases"]
all_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case["about"])


def side_of(written: Json) -> JoinSide:
    schema = Schema.from_json(json.dumps(written["schema"]))
    return JoinSide(PartitionSpec.from_json(json.dumps(written["spec"])), schema)


def compare_case(case: Json) -> Compatibility:
    on = [tuple(pair) for pair in case["on"]]
    return find_compatibility(side_of(case["left"]), side_of(case["right"]), on)


def format_reduction(reduction: Transform) -> Any:
    return reduction.text if isinstance(reduction, Expression) else reduction.to_json()


@all_cases
def test_the_specs_of_both_sides_fit_their_schemas(case: Json) -> None:
    for side in (side_of(case["left"]), side_of(case["right"])):
        side.spec.check(side.schema)
        assert side.spec.fields


@all_cases
def test_joins_are_compatible_as_listed(case: Json) -> None:
    found = compare_case(case)
    assert found.compatible == case["compatible"]
    assert [
        {
            "left": key.left.field_id,
            "right": key.right.field_id,
            "left_reduction": format_reduction(key.left_reduction),
            "right_reduction": format_reduction(key.right_reduction),
        }
        for key in found.keys
    ] == case["keys"]
    assert (found.reason == "") == found.compatible
    assert case.get("because", "") in found.reason


@all_cases
def test_compatibility_has_no_side(case: Json) -> None:
    turned = {
        "left": case["right"],
        "right": case["left"],
        "on": [pair[::-1] for pair in case["on"]],
    }
    one = {(key.left.field_id, key.right.field_id) for key in compare_case(case).keys}
    other = {(key.right.field_id, key.left.field_id) for key in compare_case(turned).keys}
    assert one == other


# --- rows with equal keys meet --------------------------------------------------------------------


def group_values(case: Json, name: str, key: GroupKey) -> list[str]:
    """The common value of every `equal` row on one side."""
    side = side_of(case[name])
    is_left = name == "left"
    field = key.left if is_left else key.right
    reduction = key.left_reduction if is_left else key.right_reduction
    joined = {pair[0 if is_left else 1]: place for place, pair in enumerate(case["on"])}
    columns = []
    for column in side.schema.arrow:
        if column.name in joined:
            values = [row[joined[column.name]] for row in case["equal"]]
            columns.append(array_of(values, column.type))
        else:
            columns.append(pa.nulls(len(case["equal"]), column.type))
    rows = pa.table(columns, schema=side.schema.arrow)
    values = field.apply(rows, side.schema)
    return exact(reduction.apply(values))


@pytest.mark.parametrize(
    "case", [case for case in CASES if "equal" in case], ids=lambda case: case["about"]
)
def test_rows_with_equal_keys_meet_in_one_group(case: Json) -> None:
    for key in compare_case(case).keys:
        assert group_values(case, "left", key) == group_values(case, "right", key)


def test_the_table_of_appendix_f() -> None:
    case = CASES[0]
    (key,) = compare_case(case).keys
    orders = key.left_reduction.apply(pa.array(range(16), pa.int32())).to_pylist()
    customers = key.right_reduction.apply(pa.array(range(8), pa.int32())).to_pylist()
    found = [
        [customer, [order for order in range(16) if orders[order] == common]]
        for customer, common in enumerate(customers)
    ]
    assert found == case["matching"]
    assert found == [[i, [i, i + 8]] for i in range(8)]


def test_null_keys_stay_null_in_every_reduction() -> None:
    for case in CASES:
        for key in compare_case(case).keys:
            for field, reduction in (
                (key.left, key.left_reduction),
                (key.right, key.right_reduction),
            ):
                assert reduction.apply(pa.nulls(2, field.result_type)).null_count == 2
