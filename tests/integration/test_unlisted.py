"""The files of plain Lance tables: each kind that versions list is known by its name."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import blob_array, blob_field

from phalanx.storage.cleanup.unlisted import find_unlisted, list_main_versions, parse_file_name
from phalanx.storage.lance.files import Folder
from phalanx.storage.lance.location import Location

LATER = datetime.now(UTC) + timedelta(days=1)


def remove_unlisted(location: Location, needed: Iterable[int] = ()) -> list[str]:
    """Delete the files that are not listed; return their kinds."""
    folder = Folder(location)
    found = find_unlisted(location, folder.list_files(), needed, LATER)
    folder.delete([file.path for _, file in found.files])
    return sorted(name.kind for name, _ in found.files)


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return Location.of(tmp_path / "table")


def ints(start: int, count: int = 10) -> pa.Table:
    return pa.table({"n": pa.array(range(start, start + count), pa.int64())})


def test_blobs_go_with_their_data_file(location: Location) -> None:
    schema = pa.schema([blob_field("b"), ("n", pa.int64())])
    for size in (100_000, 200_000):
        blobs = blob_array([b"x" * size, b"y" * 10_000_000, b"z"])
        rows = pa.table([blobs, pa.array([1, 2, 3])], schema=schema)
        lance.write_dataset(rows, location.uri, mode="overwrite", data_storage_version="2.2")
    kinds = remove_unlisted(location)
    assert kinds.count("version") == kinds.count("transaction") == 1
    # A data file, and two others.
    assert kinds.count("data") == 3
    left = [file.path for file in Folder(location).list_files() if file.path.startswith("data/")]
    assert len(left) == 3
    blobs = lance.dataset(location.uri).take_blobs("b", indices=[0, 1, 2])
    assert [len(blob.readall()) for blob in blobs] == [200_000, 10_000_000, 1]


def test_indexes_of_all_segments_stay(location: Location) -> None:
    dataset = lance.write_dataset(ints(0), location.uri)
    dataset.create_scalar_index("n", "BTREE")
    lance.write_dataset(ints(10), location.uri, mode="append")
    dataset = lance.dataset(location.uri)
    dataset.optimize.optimize_indices(num_indices_to_merge=0)
    dataset.optimize.compact_files(defer_index_remap=True)
    before = {
        file.path for file in Folder(location).list_files() if file.path.startswith("_indices/")
    }
    assert remove_unlisted(location)
    assert before == {
        file.path for file in Folder(location).list_files() if file.path.startswith("_indices/")
    }
    dataset = lance.dataset(location.uri)
    assert dataset.to_table(filter="n = 15")["n"].to_pylist() == [15]
    dataset.create_scalar_index("n", "BTREE", replace=True)
    remove_unlisted(location)
    assert lance.dataset(location.uri).to_table(filter="n = 15")["n"].to_pylist() == [15]


@pytest.mark.parametrize("many", [False, True])
def test_deleted_rows(location: Location, many: bool) -> None:
    """Few are stored as a list, many as a bitmap."""
    dataset = lance.write_dataset(ints(0, 100_000), location.uri)
    for number in range(3):
        dataset.delete(f"n % 7 = {number}" if many else f"n = {number}")
    kinds = remove_unlisted(location, {2})
    assert kinds.count("deletions") == 1
    assert kinds.count("version") == 2
    suffix = "bin" if many else "arrow"
    names = [file.path for file in Folder(location).list_files() if "_deletions/" in file.path]
    assert len(names) == 2
    assert all(name.endswith(suffix) for name in names)
    for version in (2, 4):
        assert lance.dataset(location.uri, version=version).to_table().num_rows < 100_000


@pytest.mark.parametrize(
    "name",
    [
        "data/.tmpab4GBq",
        "_versions/.tmpab4GBq",
        "_versions/18446744073709551613.manifest#1",
        "_versions/d9356658117394430836.manifest#2",
    ],
)
def test_what_a_killed_writer_was_writing(name: str, location: Location) -> None:
    dataset = lance.write_dataset(ints(0), location.uri)
    debris = Path(location.uri) / name
    debris.write_bytes(b"half a file")
    assert remove_unlisted(location) == ["temporary"]
    assert not debris.exists()
    assert dataset.to_table().num_rows == 10


def test_old_names_of_versions(location: Location) -> None:
    lance.write_dataset(ints(0), location.uri, enable_v2_manifest_paths=False)
    for number in range(1, 4):
        lance.write_dataset(ints(number), location.uri, mode="overwrite")
    files = Folder(location).list_files()
    assert "_versions/1.manifest" in {file.path for file in files}
    assert list(list_main_versions(files)) == [1, 2, 3, 4]
    assert remove_unlisted(location, {2}).count("version") == 2
    assert lance.dataset(location.uri, version=2).to_table()["n"][0].as_py() == 1
    assert lance.dataset(location.uri).to_table()["n"][0].as_py() == 3


def test_a_checksum_that_was_being_written() -> None:
    checksum = "_phalanx_checksums/data/x.lance.json"
    assert (
        parse_file_name(f"{checksum}#1")
        == parse_file_name(checksum)
        == parse_file_name("data/x.lance")
    )


@pytest.mark.parametrize(
    "path",
    [
        "data/x.lance#1",
        "_versions/notes#1",
        "_versions/latest_version_hint.json",
        "_versions/.tmp_5.manifest",
        "_refs/tags/one.json",
        "data/x.parquet",
        "data/.tmpfile",
        "data/tmpab4GBq",
        "data/inner/x.lance",
        "_deletions/notes.arrow",
        "_transactions/notes.txn",
        "_indices/notes.txt",
        "tree/mine/data/x.lance",
        "other",
    ],
)
def test_strange_files_have_no_name(path: str) -> None:
    assert parse_file_name(path) is None
