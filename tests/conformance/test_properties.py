"""conformance/properties.json: the properties that Phalanx adds to a manifest."""

import json
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import InvalidManifest
from phalanx.storage.state.properties import WRITER_FLAG, Properties, parse_properties

Json = dict[str, Any]
TABLE = json.loads((Path(__file__).parents[2] / "conformance" / "properties.json").read_text())


def describe_case(case: Json) -> str:
    return str(case["about"])


def meaning_of(properties: Properties) -> Json:
    return {
        "mode": properties.mode,
        "salt": properties.salt,
        "epoch": properties.epoch,
        "pending": None if properties.pending is None else json.loads(properties.pending),
        "returns": properties.returns_to_weak,
        "indexes": [each.to_dict() for each in properties.indexes],
        "checksums": properties.checksums,
    }


@pytest.mark.parametrize("case", TABLE["valid"], ids=describe_case)
def test_properties_are_read_as_listed(case: Json) -> None:
    found = parse_properties(TABLE["base"] | case["properties"], "root")
    assert meaning_of(found) | case["value"] == meaning_of(found)


@pytest.mark.parametrize("case", TABLE["valid"], ids=describe_case)
def test_written_properties_have_the_same_meaning(case: Json) -> None:
    found = parse_properties(TABLE["base"] | case["properties"], "root")
    written = found.to_metadata()
    assert written["phalanx.format"] == "1"
    assert parse_properties(written, "root") == found


@pytest.mark.parametrize("case", TABLE["refused"], ids=describe_case)
def test_invalid_properties_are_refused(case: Json) -> None:
    with pytest.raises(InvalidManifest):
        parse_properties(TABLE["base"] | case["properties"], "root")


def test_the_flag_for_stock_writers() -> None:
    assert TABLE["writer_feature_flags"] == WRITER_FLAG
