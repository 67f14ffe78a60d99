"""conformance/md5_hashes.json: the hash of the expression draft, for any implementation."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conformance.test_hashes import array_of
from phalanx.model.transforms.expression import build_expression, read_expression

CASES = json.loads(
    (Path(__file__).parents[2] / "conformance" / "md5_hashes.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: f"{case['type']} {case['value']}")
def test_a_value_hashes_as_listed(case: dict[str, Any]) -> None:
    array = array_of(case["type"], case["value"])
    hashed = read_expression("md5_int(col0)", 1, pa.int64())
    assert hashed.apply(array).to_pylist() == [case["hash"]]
    if not pa.types.is_null(array.type):
        assert build_expression("md5_int(col0)", [array.type], pa.int64()) == hashed


@pytest.mark.parametrize("case", CASES["multi"], ids=lambda case: f"{case['values']}")
def test_several_values_hash_as_listed(case: dict[str, Any]) -> None:
    arrays = list(map(array_of, case["types"], case["values"]))
    names = ", ".join(f"col{place}" for place in range(len(arrays)))
    kinds = [array.type for array in arrays]
    hashed = build_expression(f"md5_int(concat({names}))", kinds, pa.int64())
    assert hashed.apply(*arrays).to_pylist() == [case["hash"]]


@pytest.mark.parametrize("case", CASES["buckets"], ids=lambda case: f"{case['value']} {case}")
def test_a_value_falls_in_the_bucket_listed(case: dict[str, Any]) -> None:
    array = array_of(case["type"], case["value"])
    sql = f"abs(md5_int(col0)) % {case['num_buckets']}"
    found = build_expression(sql, [array.type], pa.int64()).apply(array)
    assert (found.type, found.to_pylist()) == (pa.int64(), [case["bucket"]])
