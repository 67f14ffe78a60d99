"""conformance/file_names.json: what vacuum may remove, and what it must keep."""

import json
from pathlib import Path

import pytest

from phalanx.storage.changes.updates import parse_updates_path
from phalanx.storage.cleanup.unlisted import FileName, parse_file_name
from phalanx.storage.state.naming import LEAF_DIRECTORY

TABLE = json.loads((Path(__file__).parents[2] / "conformance" / "file_names.json").read_text())


@pytest.mark.parametrize("case", TABLE["known"], ids=lambda case: case["path"])
def test_a_known_file_has_a_kind_and_a_name(case: dict[str, str]) -> None:
    assert parse_file_name(case["path"]) == FileName(case["kind"], case["name"])


@pytest.mark.parametrize("path", TABLE["kept"])
def test_a_file_that_must_be_kept_is_unknown(path: str) -> None:
    assert parse_file_name(path) is None


@pytest.mark.parametrize("name", TABLE["leaf_directories"]["may"])
def test_a_directory_that_may_be_an_orphaned_leaf(name: str) -> None:
    assert LEAF_DIRECTORY.fullmatch(name)


@pytest.mark.parametrize("name", TABLE["leaf_directories"]["must_not"])
def test_a_directory_that_is_no_leaf_of_ours(name: str) -> None:
    assert not LEAF_DIRECTORY.fullmatch(name)


@pytest.mark.parametrize("path", TABLE["updates"]["may"])
def test_a_file_of_updates(path: str) -> None:
    assert f"_phalanx_updates/{parse_updates_path(path)}.arrow" == path


@pytest.mark.parametrize("path", TABLE["updates"]["must_not"])
def test_a_file_that_has_no_updates(path: str) -> None:
    assert parse_updates_path(path) is None
