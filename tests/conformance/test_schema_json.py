"""conformance/schema_json.json: the JSON form of types and schemas, for any implementation."""

import json
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import InvalidSchema
from phalanx.model.schema.arrow_json import type_from_json, type_to_json
from phalanx.model.schema.schema import Schema

CASES = json.loads((Path(__file__).parents[2] / "conformance" / "schema_json.json").read_text())


def name_case(case: dict[str, Any]) -> str:
    return case.get("arrow") or case.get("about") or json.dumps(case["json"])[:60]


@pytest.mark.parametrize("case", CASES["types"], ids=name_case)
def test_a_type_reads_and_writes_as_listed(case: dict[str, Any]) -> None:
    arrow_type = type_from_json(case["json"])
    assert str(arrow_type) == case["arrow"]
    assert type_to_json(arrow_type) == case["json"]
    assert list(type_to_json(arrow_type)) == list(case["json"]), "the order of the keys"


@pytest.mark.parametrize("case", CASES["readable"], ids=lambda case: json.dumps(case["json"])[:60])
def test_other_spellings_are_read(case: dict[str, Any]) -> None:
    arrow_type = type_from_json(case["json"])
    assert str(arrow_type) == case["arrow"]
    assert type_to_json(arrow_type) != case["json"]


@pytest.mark.parametrize("case", CASES["schemas"], ids=name_case)
def test_a_schema_reads_and_writes_as_listed(case: dict[str, Any]) -> None:
    schema = Schema.from_json(json.dumps(case["json"]))
    assert [
        {
            "name": column.name,
            "arrow": str(column.type),
            "id": schema.id_of((column.name,)),
            "nullable": column.nullable,
        }
        for column in schema.arrow
    ] == case["columns"]
    assert schema.last_field_id == case["last_field_id"]
    assert schema.to_json() == json.dumps(case["json"], separators=(",", ":"))


@pytest.mark.parametrize("case", CASES["unreadable_types"], ids=name_case)
def test_an_unreadable_type_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchema) as refused:
        type_from_json(case["json"])
    if "at" in case:
        assert repr(case["at"]) in str(refused.value)


@pytest.mark.parametrize("case", CASES["unreadable_schemas"], ids=name_case)
def test_an_unreadable_schema_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchema) as refused:
        Schema.from_json(json.dumps(case["json"]))
    if "at" in case:
        assert repr(case["at"]) in str(refused.value)
