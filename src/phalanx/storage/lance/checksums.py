"""Checksums of a table's files, for tables that ask for them.

Beside each file of a Lance table is one in the folder `_phalanx_checksums`, under the same path
with `.json` at its end: the SHA-256 and the length of the file. Lance, stock clients and older
versions of Phalanx pass over that folder, and vacuum removes a checksum with its file.

A checksum is made where the file is written, by whoever writes it, or when a version is committed
that has the file: by reading it back. Lance's files never change once they are written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import lance
from lance.fragment import FragmentMetadata
from obstore.exceptions import NotFoundError

from phalanx.errors import PhalanxError, StorageFailure
from phalanx.model.stored_json import COUNT, matching, read_object
from phalanx.storage.lance.failures import reading
from phalanx.storage.lance.files import store_of, telling
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel

FOLDER = "_phalanx_checksums"
ALGORITHM = "sha256"
_SUFFIX = ".json"
_HINT = "_versions/latest_version_hint.json"
_RULES = {ALGORITHM: matching("[0-9a-f]{64}", "64 hexadecimal digits"), "bytes": COUNT}
_CHUNK = 8 << 20
_LAST_VERSION = 2**64 - 1
_FIRST_DETACHED = 2**63


@dataclass(frozen=True, slots=True)
class Checksum:
    """What a file was when it was written."""

    sha256: str
    bytes: int

    @classmethod
    def from_json(cls, text: object, path: str) -> Checksum:
        """The checksum in a file."""
        found = read_object(text, f"the checksum {path}", _RULES)
        return cls(found[ALGORITHM], found["bytes"])

    def to_json(self) -> str:
        """The checksum as its file has it."""
        return json.dumps({ALGORITHM: self.sha256, "bytes": self.bytes})


def path_of(path: str) -> str:
    """Where the checksum of a file is, by the file's path in its table."""
    return f"{FOLDER}/{path}{_SUFFIX}"


def file_of(path: str) -> str | None:
    """The file that a checksum is of, by the checksum's path; None for any other path."""
    if not path.startswith(f"{FOLDER}/") or not path.endswith(_SUFFIX):
        return None
    return path[len(FOLDER) + 1 : -len(_SUFFIX)]


def data_files(fragments: Iterable[FragmentMetadata]) -> Iterator[str]:
    """The paths of the data files of fragments, as far as they are in the table's own folder."""
    for fragment in fragments:
        overlays = [overlay.data_file for overlay in fragment.overlays]
        for file in (*fragment.files, *overlays):
            if file.base_id is None:
                yield f"data/{file.path}"


def deletion_file(fragment: FragmentMetadata) -> str | None:
    """The path of the file that says which rows of a fragment are deleted, if there is one."""
    found = fragment.deletion_file
    if found is None or found.base_id is not None:
        return None
    ending = "arrow" if found.file_type == "array" else "bin"
    return f"_deletions/{fragment.id}-{found.read_version}-{found.id}.{ending}"


def version_files(version: int) -> tuple[str, ...]:
    """The paths that a version may be at: Lance has named them in two ways."""
    if version >= _FIRST_DETACHED:
        return (f"_versions/d{version}.manifest",)
    return (f"_versions/{_LAST_VERSION - version:020d}.manifest", f"_versions/{version}.manifest")


def files_of(dataset: lance.LanceDataset) -> set[str]:
    """The data and deletion files of a version."""
    fragments = [each.metadata for each in dataset.get_fragments()]
    deletions = (path for each in fragments if (path := deletion_file(each)) is not None)
    return {*data_files(fragments), *deletions}


def segments_of(dataset: lance.LanceDataset) -> set[str]:
    """The folders of the indexes of a version."""
    if not dataset.has_index:
        return set()
    return {
        f"_indices/{segment.uuid}"
        for index in dataset.describe_indices()
        for segment in index.segments
        if segment.base_id is None
    }


# ── writing ──────────────────────────────────────────────────────────────────────────────────


def record(location: Location, paths: Iterable[str]) -> None:
    """Write the checksums of files that were just written, where the table wants them."""
    if location.checksums:
        files = TableFiles(location)
        in_parallel(files.record, sorted(set(paths)))


def record_commit(
    location: Location, before: lance.LanceDataset, after: lance.LanceDataset
) -> None:
    """Write the checksums of what a commit has added to a table, where the table wants them."""
    if not location.checksums:
        return
    files = TableFiles(location)
    new = files_of(after) - files_of(before)
    for folder in segments_of(after) - segments_of(before):
        new |= set(files.below(folder))
    in_parallel(files.record, sorted(new))
    files.record_version(after.version)


def complete(location: Location, dataset: lance.LanceDataset) -> int:
    """Write the checksums that files of a version lack; how many there were."""
    files = TableFiles(location)
    wanted = files_of(dataset)
    for folder in segments_of(dataset):
        wanted |= set(files.below(folder))
    known = set(files.below(FOLDER))
    missing = [path for path in sorted(wanted) if path_of(path) not in known]
    in_parallel(files.record, missing)
    files.record_version(dataset.version)
    return len(missing)


class TableFiles:
    """The files of one Lance table, read and written beside Lance."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._store: Any = store_of(location)

    def below(self, folder: str) -> Iterator[str]:
        """The paths of all files in a folder."""
        with telling(f"list the files of {self.location}/{folder}"):
            for chunk in self._store.list(f"{folder}/"):
                for found in chunk:
                    yield found["path"]

    def record(self, path: str) -> None:
        """Write the checksum of a file, unless it has one."""
        with telling(f"write the checksum of {self.location}/{path}"):
            if self._exists(path_of(path)):
                return
            text = self.measured(path).to_json()
            self._store.put(path_of(path), text.encode())

    def record_version(self, version: int) -> None:
        """The same for a version, wherever Lance has put it."""
        for path in version_files(version):
            with telling(f"write the checksum of {self.location}/{path}"):
                if self._exists(path):
                    self.record(path)
                    return

    def measured(self, path: str) -> Checksum:
        """What a file is now; FileNotFoundError where there is none."""
        digest, length = hashlib.sha256(), 0
        for chunk in self._store.get(path).stream(min_chunk_size=_CHUNK):
            digest.update(chunk)
            length += len(chunk)
        return Checksum(digest.hexdigest(), length)

    def content(self, path: str) -> bytes:
        """The bytes of a small file."""
        return bytes(self._store.get(path).bytes())

    def recorded(self, path: str) -> Checksum | None:
        """The checksum that was written of a file; None if none was."""
        place = path_of(path)
        try:
            with reading(f"read the checksum {self.location}/{place}"):
                data = bytes(self._store.get(place).bytes())
                return Checksum.from_json(data.decode(), f"{self.location}/{place}")
        except StorageFailure as error:
            if isinstance(error.__cause__, FileNotFoundError | NotFoundError):
                return None
            raise

    def check(self, path: str) -> str | None:
        """What is wrong with a file by its checksum; None if all is well, or none was written."""
        try:
            wanted = self.recorded(path)
        except PhalanxError as error:
            return str(error)
        if wanted is None:
            return None
        with reading(f"read {self.location}/{path}"):
            found = self.measured(path)
        if found.bytes != wanted.bytes:
            return f"it has {found.bytes:,} bytes, and {wanted.bytes:,} were written"
        return None if found == wanted else "its content is not what was written (SHA-256)"

    def hinted_version(self) -> int:
        """The newest version as Lance has noted it for itself; 0 where it has not."""
        try:
            with reading("read a hint"):
                text = bytes(self._store.get(_HINT).bytes()).decode()
                return int(read_object(text, "a hint", {"version": COUNT})["version"])
        except PhalanxError:
            return 0

    def _exists(self, path: str) -> bool:
        try:
            self._store.head(path)
        except (FileNotFoundError, NotFoundError):
            return False
        return True
