"""conformance/evolution.json: how partition specs follow each other, for any implementation."""

import json
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import InvalidSpec
from phalanx.model.schema.arrow_json import type_from_json
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec, check_specs
from phalanx.model.specs.partition_by import (
    PartitionBy,
    PartitionTerm,
    expression,
    parse_partition_by,
)
from phalanx.model.specs.spec import PartitionSpec

Json = dict[str, Any]
TABLE = json.loads((Path(__file__).parents[2] / "conformance" / "evolution.json").read_text())


def partition_by(written: str | list[str | Json]) -> PartitionBy:
    """Return the `partition_by` of a case as the library takes it."""
    if isinstance(written, str):
        return written
    terms: list[PartitionTerm] = []
    for item in written:
        if isinstance(item, str):
            terms.extend(parse_partition_by(item))
        else:
            result_type = type_from_json(item["result_type"])
            custom = expression(
                item["expression"], item["columns"], result_type, field_id=item.get("field_id")
            )
            terms.append(custom)
    return terms


@pytest.mark.parametrize("sequence", TABLE["sequences"], ids=lambda each: each["about"])
def test_specs_follow_as_listed(sequence: Json) -> None:
    schema = Schema.from_json(json.dumps(TABLE["schema"]))
    specs: dict[int, PartitionSpec] = {}
    for step in sequence["steps"]:
        if "rename" in step:
            schema = schema.rename(*step["rename"])
            continue
        by = partition_by(step["partition_by"])
        if step.get("refused"):
            with pytest.raises(InvalidSpec) as refused:
                build_next_spec(by, schema, specs)
            for word in step["mentions"]:
                assert word in str(refused.value), step
            continue
        spec = build_next_spec(by, schema, specs)
        assert json.loads(spec.to_json()) == step["spec"]
        spec.check(schema)
        specs[spec.id] = spec
    check_specs(specs)


@pytest.mark.parametrize("sequence", TABLE["sequences"], ids=lambda each: each["about"])
def test_listed_specs_give_every_meaning_one_id_and_every_id_one_meaning(sequence: Json) -> None:
    """The table itself obeys the format: Field ID Reuse."""
    by_id: dict[str, str] = {}
    by_meaning: dict[str, str] = {}
    for step in sequence["steps"]:
        for field in step.get("spec", {}).get("fields", []):
            derived = field.get("transform", field.get("expression"))
            meaning = json.dumps([field["source_ids"], derived])
            assert by_id.setdefault(field["field_id"], meaning) == meaning
            assert by_meaning.setdefault(meaning, field["field_id"]) == field["field_id"]


@pytest.mark.parametrize("case", TABLE["stored"], ids=lambda case: case["about"])
def test_stored_specs_are_checked(case: Json) -> None:
    specs = {
        int(number): PartitionSpec.from_json(json.dumps(spec))
        for number, spec in case["specs"].items()
    }
    if not case["refused"]:
        check_specs(specs)
        schema = Schema.from_json(json.dumps(TABLE["schema"]))
        assert build_next_spec("bucket(16, id)", schema, specs).id == max(specs) + 1
        return
    with pytest.raises(InvalidSpec) as refused:
        check_specs(specs)
    for word in case["mentions"]:
        assert word in str(refused.value)
