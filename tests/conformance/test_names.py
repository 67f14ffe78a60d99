"""conformance/names.json: names that Phalanx derives, for any implementation.

The tests derive each name a second time, in a few lines that follow docs/FORMAT.md and share no
code with Phalanx.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from conformance.values import scalar_of
from phalanx.model.schema.arrow_json import type_from_json
from phalanx.storage.commit.history_rows import StreamBatch, marker_row_id
from phalanx.storage.leaf.leaf import LeafCreator
from phalanx.storage.leaf.marks import Mark
from phalanx.storage.state.naming import canonicalize_value, partition_name
from phalanx.storage.state.properties import parse_properties

Json = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "conformance"
TABLE = json.loads((FOLDER / "names.json").read_text())
PROPERTIES = json.loads((FOLDER / "properties.json").read_text())
BASE_36 = "0123456789abcdefghijklmnopqrstuvwxyz"


def describe_case(case: Json) -> str:
    return str(case.get("about") or " ".join(str(value) for value in case.values())[:60])


def digest(data: bytes, size: int) -> bytes:
    return hashlib.blake2b(data, digest_size=size).digest()


@pytest.mark.parametrize("case", TABLE["partitions"], ids=describe_case)
def test_the_name_of_a_partition(case: Json) -> None:
    value = scalar_of(case["value"], type_from_json(case["type"]))
    assert canonicalize_value(value) == case["canonical"]
    found = partition_name(case["salt"], case["parent"], case["field_id"], value)
    assert found == case["name"]


@pytest.mark.parametrize("case", TABLE["partitions"], ids=describe_case)
def test_the_table_follows_the_document(case: Json) -> None:
    parts = [case[key].encode() for key in ("salt", "parent", "field_id", "canonical")]
    hashed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    number = int.from_bytes(digest(hashed, 16), "little")
    assert case["name"] == "".join(BASE_36[number // 36**place % 36] for place in range(16))


def test_different_values_have_different_names() -> None:
    keys = ("salt", "parent", "field_id", "canonical")
    named = {tuple(case[key] for key in keys): case["name"] for case in TABLE["partitions"]}
    assert len(set(named.values())) == len(named)


@pytest.mark.parametrize("case", TABLE["leaf_directories"], ids=describe_case)
def test_the_directory_that_the_tasks_of_a_write_share(case: Json) -> None:
    prefix = digest(f"{case['job']}/{case['object_id']}".encode(), 4).hex()
    assert case["directory"] == f"{prefix}_{case['object_id']}"
    assert LeafCreator(case["job"]).choose_directory(case["object_id"]) == case["directory"]


@pytest.mark.parametrize("case", TABLE["markers"], ids=describe_case)
def test_the_row_of_a_marker(case: Json) -> None:
    text = case["text"] if "text" in case else f"stream {case['query']}"
    assert case["row"] == f"__phalanx_marker${digest(text.encode(), 16).hex()}"
    marker = case["text"] if "text" in case else StreamBatch(case["query"], case["batch"])
    assert marker_row_id(marker) == case["row"]


@pytest.mark.parametrize("case", TABLE["commit_messages"], ids=describe_case)
def test_the_message_of_a_commit(case: Json) -> None:
    table = digest(case["salt"].encode(), 8).hex()
    assert case["message"] == f"phalanx {case['kind']} {table} {case['epoch']}"
    stored = {"phalanx.salt": case["salt"], "phalanx.epoch": str(case["epoch"])}
    properties = parse_properties(PROPERTIES["base"] | stored, "root")
    assert str(Mark.of(case["kind"], properties)) == case["message"]
