"""conformance/spec_json.json: the JSON of partition specs, for any implementation."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace_urllib3_client.models import PartitionSpec as ClientSpec

from phalanx.errors import InvalidSpec
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec

Json = dict[str, Any]
TABLE = json.loads((Path(__file__).parents[2] / "conformance" / "spec_json.json").read_text())

APPENDIX_A = """
{
  "partition_spec_v1": {
    "id": 1,
    "fields": [
      {
        "field_id": "event_date",
        "source_ids": [1],
        "transform": { "type": "identity" },
        "result_type": { "type": "date32" }
      }
    ]
  },
  "partition_spec_v2": {
    "id": 2,
    "fields": [
      {
        "field_id": "event_year",
        "source_ids": [1],
        "transform": { "type": "year" },
        "result_type": { "type": "int32" }
      },
      {
        "field_id": "country",
        "source_ids": [2],
        "transform": { "type": "identity" },
        "result_type": { "type": "utf8" }
      }
    ]
  },
  "schema": {
    "fields": [
      {
        "name": "id",
        "nullable": false,
        "type": { "type": "int64" },
        "metadata": { "lance:field_id": "0" }
      },
      {
        "name": "event_date",
        "nullable": true,
        "type": { "type": "date32" },
        "metadata": { "lance:field_id": "1" }
      },
      {
        "name": "country",
        "nullable": true,
        "type": { "type": "utf8" },
        "metadata": { "lance:field_id": "2" }
      }
    ]
  }
}
"""
APPENDIX_E = (
    '{"properties": {"partition_spec": "{\\"id\\":1,\\"fields\\":[{\\"field_id\\":\\"event_date\\",'
    '\\"source_ids\\":[1],\\"transform\\":{\\"type\\":\\"identity\\"},'
    '\\"result_type\\":{\\"type\\":\\"date32\\"}}]}"}}'
)


def describe_case(case: Json) -> str:
    return str(case["about"])


@pytest.mark.parametrize("case", TABLE["written"], ids=describe_case)
def test_specs_are_written_byte_for_byte(case: Json) -> None:
    spec = PartitionSpec.from_json(case["text"])
    assert spec.to_json() == case["text"]
    assert PartitionSpec.from_json(spec.to_json()) == spec
    listed = json.loads(case["text"])
    assert spec.id == listed["id"]
    assert [field.field_id for field in spec.fields] == [f["field_id"] for f in listed["fields"]]
    for field, given in zip(spec.fields, listed["fields"], strict=True):
        assert list(field.source_ids) == given["source_ids"]
        assert field.expression == given.get("expression")
        assert (field.transform is None) == ("transform" not in given)


@pytest.mark.parametrize("case", TABLE["read"], ids=describe_case)
def test_other_texts_are_read(case: Json) -> None:
    assert case["text"] != case["written"]
    spec = PartitionSpec.from_json(case["text"])
    assert spec.to_json() == case["written"]
    assert spec == PartitionSpec.from_json(case["written"])


@pytest.mark.parametrize("case", TABLE["refused"], ids=describe_case)
def test_what_is_no_spec_is_refused(case: Json) -> None:
    with pytest.raises(InvalidSpec) as refused:
        PartitionSpec.from_json(case["text"])
    for word in case.get("mentions", []):
        assert word in str(refused.value)


@pytest.mark.parametrize("opening", ["[", '{"fields":[{"result_type":{"fields":[{"type":'])
def test_nesting_without_end_is_refused(opening: str) -> None:
    with pytest.raises(InvalidSpec):
        PartitionSpec.from_json(opening * 100_000)


@pytest.mark.parametrize("text", [None, 1, {"id": 1, "fields": []}], ids=repr)
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(InvalidSpec):
        PartitionSpec.from_json(text)


# --- the appendices ------------------------------------------------------------------------------


def test_appendix_a_is_read_and_fits_its_schema() -> None:
    stored = json.loads(APPENDIX_A)
    schema = Schema.from_json(json.dumps(stored["schema"]))
    specs = {n: PartitionSpec.from_json(json.dumps(stored[f"partition_spec_v{n}"])) for n in (1, 2)}
    for number, spec in specs.items():
        assert spec.id == number
        spec.check(schema)
        assert json.loads(spec.to_json()) == stored[f"partition_spec_v{number}"]
    assert specs[1].label(schema) == "event_date"
    assert specs[2].label(schema) == "year(event_date), country"
    columns = {field.column: field.result_type for spec in specs.values() for field in spec.fields}
    assert columns == {
        "partition_field_event_date": pa.date32(),
        "partition_field_event_year": pa.int32(),
        "partition_field_country": pa.string(),
    }


def test_appendix_e_is_written_to_the_byte() -> None:
    text = json.loads(APPENDIX_E)["properties"]["partition_spec"]
    stored = json.loads(APPENDIX_A)["partition_spec_v1"]
    assert PartitionSpec.from_json(json.dumps(stored)).to_json() == text
    assert TABLE["written"][0]["text"] == text


# --- the client of lance-namespace ---------------------------------------------------------------


@pytest.mark.parametrize("case", TABLE["written"], ids=describe_case)
def test_the_namespace_client_takes_our_json_and_gives_it_back(case: Json) -> None:
    ours = PartitionSpec.from_json(case["text"])
    theirs = ClientSpec.from_json(ours.to_json())
    assert theirs is not None
    assert theirs.id == ours.id
    assert [field.field_id for field in theirs.fields] == [field.field_id for field in ours.fields]
    assert theirs.to_dict() == json.loads(case["text"])
    assert PartitionSpec.from_json(json.dumps(theirs.to_dict())) == ours
    assert PartitionSpec.from_json(theirs.to_json()).to_json() == case["text"]
