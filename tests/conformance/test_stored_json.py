"""conformance/stored_json.json: the JSON objects in rows of the manifest and next to files."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import phalanx
from phalanx.errors import InvalidManifest
from phalanx.storage.commit.head import Head
from phalanx.storage.commit.history_rows import (
    build_history_rows,
    read_leaf_versions,
    read_marker,
    read_snapshot,
)
from phalanx.storage.lance.checksums import Checksum
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.changes import upsert_rows
from phalanx.storage.manifest.dropped import read_dropped_leaves, read_leaving_leaves
from phalanx.storage.manifest.manifest import Manifest
from tables import SCHEMA

Json = dict[str, Any]
TABLE = json.loads((Path(__file__).parents[2] / "conformance" / "stored_json.json").read_text())
LEAF = "v1$0123456789abcdef$dataset"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Location:
    """An empty strong table, whose manifest the cases write rows to."""
    path = tmp_path_factory.mktemp("rows") / "table"
    return Location.of(phalanx.create(path, SCHEMA, ["k"], transaction="strong").uri)


def write(root: Location, name: str, kind: str, text: str) -> Manifest:
    """Write a row with this metadata; other columns are those of a leaf."""
    row = build_history_rows({name: text}, kind)
    row = row.append_column("location", pa.array(["0123abcd_leaf"]))
    row = row.append_column("read_version", pa.array([5], pa.uint64()))
    upsert_rows(Manifest.open(root), row)
    return Manifest.open(root)


def read_version(text: str, root: Location) -> Json:
    manifest = write(root, f"{LEAF}$3", "table_version", text)
    (found,) = read_leaf_versions(manifest, LEAF)
    assert (found.snapshot, found.version) == (3, 5)
    return {"operation": found.operation, "main": found.main}


def read_dropped(text: str, root: Location) -> Json:
    manifest = write(root, f"__phalanx_dropped${LEAF}", "phalanx_dropped", text)
    found = read_dropped_leaves(manifest)[LEAF]
    assert (found.location.uri, found.version) == (f"{root.uri}/0123abcd_leaf", 5)
    return {"snapshot": found.snapshot}


def read_leaving(text: str, root: Location) -> Json:
    manifest = write(root, "__phalanx_leaving$" + "0" * 32, "phalanx", text)
    (found,) = read_leaving_leaves(manifest)
    return {"location": found.location.uri}


READERS: dict[str, Callable[[str, Location], Json]] = {
    "head": lambda text, _: asdict(Head.from_json(text)),
    "snapshot": lambda text, _: read_snapshot(TABLE["snapshot"]["row"], text),
    "version": read_version,
    "marker": lambda text, _: read_marker(text),
    "dropped": read_dropped,
    "leaving": read_leaving,
    "checksum": lambda text, _: asdict(Checksum.from_json(text, "a file")),
}


def cases(key: str) -> list[Any]:
    return [
        pytest.param(kind, case, id=f"{kind}: {case['about']}")
        for kind in READERS
        for case in TABLE[kind][key]
    ]


def test_every_kind_is_read() -> None:
    assert READERS.keys() == TABLE.keys() - {"about"}


@pytest.mark.parametrize(("kind", "case"), cases("valid"))
def test_a_valid_text_has_its_meaning(kind: str, case: Json, root: Location) -> None:
    assert READERS[kind](case["text"], root) == case["value"]


@pytest.mark.parametrize(("kind", "case"), cases("refused"))
def test_an_invalid_text_is_refused(kind: str, case: Json, root: Location) -> None:
    with pytest.raises(InvalidManifest):
        READERS[kind](case["text"], root)


@pytest.mark.parametrize("case", TABLE["head"]["valid"], ids=lambda case: case["about"])
def test_a_head_is_written_with_all_its_keys(case: Json) -> None:
    assert json.loads(Head(**case["value"]).to_json()) == case["value"]


@pytest.mark.parametrize("case", TABLE["checksum"]["valid"], ids=lambda case: case["about"])
def test_a_checksum_is_written_with_all_its_keys(case: Json) -> None:
    assert json.loads(Checksum(**case["value"]).to_json()) == case["value"]
