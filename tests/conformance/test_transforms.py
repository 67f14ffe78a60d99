"""conformance/transforms.json: partition values, for any implementation."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mmh3
import pyarrow as pa
import pyarrow.types as pt
import pytest
from datafusion import SessionContext

from conformance.values import array_of, exact
from phalanx.errors import InvalidSpec
from phalanx.model.murmur3 import murmur3
from phalanx.model.schema.arrow_json import type_from_json
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.transforms.registry import transform_from_json

Json = dict[str, Any]
TABLE = json.loads((Path(__file__).parents[2] / "conformance" / "transforms.json").read_text())


def name_case(case: Json) -> str:
    transform = case["transform"]
    kind = transform.get("type") if isinstance(transform, dict) else transform
    sources = ",".join(source["type"] for source in case.get("sources", []))
    return f"{kind}({sources}) {case.get('about', '')}".strip()


def spec_of(case: Json) -> tuple[PartitionSpec, Schema]:
    """A spec with the one field of the case, over columns c0, c1, … and one that nothing reads."""
    kinds = [type_from_json(source) for source in case["sources"]]
    columns = [pa.field(f"c{place}", kind) for place, kind in enumerate(kinds)]
    field = {
        "field_id": "f",
        "source_ids": list(range(1, len(kinds) + 1)),
        "transform": case["transform"],
        "result_type": case["result_type"],
    }
    # The ids of nested columns would take more than one number each.
    ids = [{"lance:field_id": str(place + 1)} for place in range(len(columns))]
    numbered = [column.with_metadata(m) for column, m in zip(columns, ids, strict=True)]
    spare = pa.field("spare", pa.int8(), metadata={"lance:field_id": "0"})
    schema = Schema.of(pa.schema([spare, *numbered]))
    return PartitionSpec.from_json(json.dumps({"id": 1, "fields": [field]})), schema


def rows_of(case: Json) -> pa.Table:
    kinds = [type_from_json(source) for source in case["sources"]]
    columns = {
        f"c{place}": array_of([row["in"][place] for row in case["rows"]], kind)
        for place, kind in enumerate(kinds)
    }
    return pa.table({"spare": pa.nulls(len(case["rows"]), pa.int8()), **columns})


@pytest.mark.parametrize("case", TABLE["cases"], ids=name_case)
def test_a_transform_gives_the_listed_values_in_the_listed_type(case: Json) -> None:
    spec, schema = spec_of(case)
    spec.check(schema)
    result_type = type_from_json(case["result_type"])
    found = spec.compute_partition_values(rows_of(case), schema).column("f")
    assert found.type == result_type
    assert exact(found) == exact(array_of([row["out"] for row in case["rows"]], result_type))


@pytest.mark.parametrize("case", TABLE["cases"], ids=name_case)
def test_a_row_does_not_depend_on_its_neighbours(case: Json) -> None:
    spec, schema = spec_of(case)
    rows, result_type = rows_of(case), type_from_json(case["result_type"])
    for place, row in enumerate(case["rows"]):
        alone = spec.compute_partition_values(rows.slice(place, 1), schema).column("f")
        assert exact(alone) == exact(array_of([row["out"]], result_type))


def list_hashes() -> Iterator[tuple[str, int, int, int]]:
    """Bytes, their hash, the number of buckets, and the bucket."""
    for case in TABLE["cases"]:
        count = case["transform"].get("num_buckets")
        for row in case["rows"]:
            if "bytes" in row:
                yield row["bytes"], row["hash"], count, row["out"]
    for group in TABLE["agree"]:
        yield group["bytes"], group["hash"], group["num_buckets"], group["out"]


def test_the_listed_hashes_are_those_of_another_implementation() -> None:
    listed = list(list_hashes())
    assert len(listed) > 150
    for hexed, expected, count, bucket in listed:
        assert mmh3.hash(bytes.fromhex(hexed), 0, signed=True) == expected
        assert abs(expected) % count == bucket
    ours = murmur3(pa.array([bytes.fromhex(hexed) for hexed, *_ in listed]))
    assert ours.to_pylist() == [expected for _, expected, *_ in listed]


@pytest.mark.parametrize("group", TABLE["agree"], ids=lambda group: group["about"])
def test_equal_values_share_a_bucket_whatever_their_type(group: Json) -> None:
    assert len(group["members"]) > 1
    for transform in ("bucket", "multi_bucket"):
        for member in group["members"]:
            case = {
                "transform": {"type": transform, "num_buckets": group["num_buckets"]},
                "sources": [member["source"]],
                "result_type": {"type": "int32"},
                "rows": [{"in": [member["value"]]}],
            }
            spec, schema = spec_of(case)
            found = spec.compute_partition_values(rows_of(case), schema).column("f")
            assert found.to_pylist() == [group["out"]], member
            column = rows_of(case).column("c0")
            assert murmur3(column).to_pylist() == [group["hash"]], member


@pytest.mark.parametrize("case", TABLE["refused"], ids=name_case)
def test_a_misfit_is_refused(case: Json) -> None:
    spec, schema = spec_of(case)
    with pytest.raises(InvalidSpec) as refused:
        spec.check(schema)
    kinds = [str(type_from_json(source)) for source in case["sources"]]
    words = [*kinds, case["transform"]["type"], str(type_from_json(case["result_type"]))]
    assert any(word in str(refused.value) for word in words)


@pytest.mark.parametrize("case", TABLE["unreadable"], ids=name_case)
def test_no_transform_is_read_from(case: Json) -> None:
    with pytest.raises(InvalidSpec):
        transform_from_json(case["transform"])


@pytest.mark.parametrize("case", TABLE["cases"], ids=name_case)
def test_the_json_of_a_transform_comes_back(case: Json) -> None:
    transform = transform_from_json(case["transform"])
    assert transform.to_json() == case["transform"]
    assert list(transform.to_json()) == list(case["transform"]), "the order of the keys"


# --- the derived expressions ---------------------------------------------------------------------


def comparable_in_sql() -> list[Json]:
    """Cases that DataFusion evaluates as the format means them.

    It has no murmur3 of its own, takes calendar parts in the column's zone, wraps in far years,
    keeps both zeros, and overflows where a width is wider than the type.
    """
    found = []
    for case in TABLE["cases"]:
        kinds = [type_from_json(source) for source in case["sources"]]
        zoned = any(pt.is_timestamp(kind) and kind.tz is not None for kind in kinds)
        far = any(_is_stored_number(value, kinds[0]) for row in case["rows"] for value in row["in"])
        hashes = "num_buckets" in case["transform"]
        wide = case["transform"].get("width", 0) > 100
        if not (zoned or far or hashes or wide or any(map(pt.is_dictionary, kinds))):
            found.append(case)
    return found


def _is_stored_number(value: Any, kind: pa.DataType) -> bool:
    digits = isinstance(value, int) or (isinstance(value, str) and value.lstrip("-").isdigit())
    return bool(pt.is_temporal(kind) and digits)


@pytest.mark.parametrize("case", comparable_in_sql(), ids=name_case)
def test_the_derived_expression_gives_the_same(case: Json) -> None:
    kinds = [type_from_json(source) for source in case["sources"]]
    sql = transform_from_json(case["transform"]).sql(*kinds)
    rows = rows_of(case).select(["c0"]).rename_columns(["col0"])
    session = SessionContext()
    session.register_record_batches("rows", [rows.to_batches()])
    found = session.sql(f"SELECT {sql} AS value FROM rows").to_arrow_table().column("value")
    result_type = type_from_json(case["result_type"])
    expected = array_of([row["out"] for row in case["rows"]], result_type)
    assert _numbers(found) == _numbers(expected)


def _numbers(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Values to compare without their types: DataFusion's may be wider than the format's."""
    if pt.is_temporal(values.type):
        return exact(values)
    if not pt.is_floating(values.type):
        return list(values.to_pylist())
    numbers = values.cast(pa.float64()).to_pylist()
    return ["NaN" if number is not None and math.isnan(number) else number for number in numbers]
