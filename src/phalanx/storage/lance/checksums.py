"""SHA-256 checksums of a table's files, for tables that enable them.

The checksum of a file is stored in the folder `_phalanx_checksums` of the same Lance table, under
the file's path with the suffix `.json`: the SHA-256 and the length of the file. Lance, stock
clients and older versions of Phalanx ignore that folder. Vacuum removes a checksum with its file.

A checksum is recorded by the process that writes the file, or when a version that contains the
file is committed, by reading the file back. Lance never changes a file once it is written.
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
from phalanx.model.stored_json import COUNT, read_object, text_rule
from phalanx.storage.lance.failures import translate_read_errors
from phalanx.storage.lance.files import open_store, translate_store_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel

CHECKSUM_FOLDER = "_phalanx_checksums"
ALGORITHM = "sha256"
_SUFFIX = ".json"
_VERSION_HINT = "_versions/latest_version_hint.json"
_RULES = {ALGORITHM: text_rule("[0-9a-f]{64}", "64 hexadecimal digits"), "bytes": COUNT}
_CHUNK = 8 << 20
_LAST_VERSION = 2**64 - 1
_FIRST_DETACHED = 2**63


@dataclass(frozen=True, slots=True)
class Checksum:
    """The SHA-256 and the length of a file when it was written."""

    sha256: str
    bytes: int

    @classmethod
    def from_json(cls, text: object, path: str) -> Checksum:
        """Parse the content of a checksum file."""
        found = read_object(text, f"the checksum {path}", _RULES)
        return cls(found[ALGORITHM], found["bytes"])

    def to_json(self) -> str:
        """Return the content of the checksum file."""
        return json.dumps({ALGORITHM: self.sha256, "bytes": self.bytes})


def checksum_path(path: str) -> str:
    """Return the path of a file's checksum, both relative to the table."""
    return f"{CHECKSUM_FOLDER}/{path}{_SUFFIX}"


def checksummed_path(path: str) -> str | None:
    """Return the path of the file that a checksum belongs to; None for other paths."""
    if not path.startswith(f"{CHECKSUM_FOLDER}/") or not path.endswith(_SUFFIX):
        return None
    return path[len(CHECKSUM_FOLDER) + 1 : -len(_SUFFIX)]


def data_file_paths(fragments: Iterable[FragmentMetadata]) -> Iterator[str]:
    """Yield the paths of the fragments' data files inside the table's own folder."""
    for fragment in fragments:
        overlays = [overlay.data_file for overlay in fragment.overlays]
        for file in (*fragment.files, *overlays):
            if file.base_id is None:
                yield f"data/{file.path}"


def deletion_file_path(fragment: FragmentMetadata) -> str | None:
    """Return the path of a fragment's deletion file; None if it has none."""
    found = fragment.deletion_file
    if found is None or found.base_id is not None:
        return None
    ending = "arrow" if found.file_type == "array" else "bin"
    return f"_deletions/{fragment.id}-{found.read_version}-{found.id}.{ending}"


def version_file_paths(version: int) -> tuple[str, ...]:
    """Return the possible paths of a version file: Lance has two naming schemes."""
    if version >= _FIRST_DETACHED:
        return (f"_versions/d{version}.manifest",)
    return (f"_versions/{_LAST_VERSION - version:020d}.manifest", f"_versions/{version}.manifest")


def list_version_files(dataset: lance.LanceDataset) -> set[str]:
    """Return the paths of the data and deletion files of a version."""
    fragments = [each.metadata for each in dataset.get_fragments()]
    deletions = (path for each in fragments if (path := deletion_file_path(each)) is not None)
    return {*data_file_paths(fragments), *deletions}


def list_index_folders(dataset: lance.LanceDataset) -> set[str]:
    """Return the folders of the index segments of a version."""
    if not dataset.has_index:
        return set()
    return {
        f"_indices/{segment.uuid}"
        for index in dataset.describe_indices()
        for segment in index.segments
        if segment.base_id is None
    }


# ── writing ──────────────────────────────────────────────────────────────────────────────────


def record_checksums(location: Location, paths: Iterable[str]) -> None:
    """Record the checksums of new files, if the table has checksums enabled."""
    if location.checksums:
        files = TableFiles(location)
        map_parallel(files.record, sorted(set(paths)))


def record_new_files(
    location: Location, before: lance.LanceDataset, after: lance.LanceDataset
) -> None:
    """Record the checksums of the files that a commit added, if they are enabled."""
    if not location.checksums:
        return
    files = TableFiles(location)
    new = list_version_files(after) - list_version_files(before)
    for folder in list_index_folders(after) - list_index_folders(before):
        new |= set(files.list_files(folder))
    map_parallel(files.record, sorted(new))
    files.record_version(after.version)


def record_missing(location: Location, dataset: lance.LanceDataset) -> int:
    """Record the missing checksums of a version's files. Return how many were missing."""
    files = TableFiles(location)
    wanted = list_version_files(dataset)
    for folder in list_index_folders(dataset):
        wanted |= set(files.list_files(folder))
    known = set(files.list_files(CHECKSUM_FOLDER))
    missing = [path for path in sorted(wanted) if checksum_path(path) not in known]
    map_parallel(files.record, missing)
    files.record_version(dataset.version)
    return len(missing)


class TableFiles:
    """The files of one Lance table, accessed without Lance."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._store: Any = open_store(location)

    def list_files(self, folder: str) -> Iterator[str]:
        """Yield the paths of all files below a folder."""
        with translate_store_errors(f"list the files of {self.location}/{folder}"):
            for chunk in self._store.list(f"{folder}/"):
                for found in chunk:
                    yield found["path"]

    def record(self, path: str) -> None:
        """Record the checksum of a file, unless it has one."""
        with translate_store_errors(f"write the checksum of {self.location}/{path}"):
            if self._exists(checksum_path(path)):
                return
            text = self.compute_checksum(path).to_json()
            self._store.put(checksum_path(path), text.encode())

    def record_version(self, version: int) -> None:
        """Record the checksum of a version file, under either naming scheme."""
        for path in version_file_paths(version):
            with translate_store_errors(f"write the checksum of {self.location}/{path}"):
                if self._exists(path):
                    self.record(path)
                    return

    def compute_checksum(self, path: str) -> Checksum:
        """Compute the checksum of a file. Raises FileNotFoundError if it is missing."""
        digest, length = hashlib.sha256(), 0
        for chunk in self._store.get(path).stream(min_chunk_size=_CHUNK):
            digest.update(chunk)
            length += len(chunk)
        return Checksum(digest.hexdigest(), length)

    def read_bytes(self, path: str) -> bytes:
        """Read a small file."""
        return bytes(self._store.get(path).bytes())

    def read_checksum(self, path: str) -> Checksum | None:
        """Return the recorded checksum of a file; None if there is none."""
        stored_at = checksum_path(path)
        try:
            with translate_read_errors(f"read the checksum {self.location}/{stored_at}"):
                data = bytes(self._store.get(stored_at).bytes())
                return Checksum.from_json(data.decode(), f"{self.location}/{stored_at}")
        except StorageFailure as error:
            if isinstance(error.__cause__, FileNotFoundError | NotFoundError):
                return None
            raise

    def check(self, path: str) -> str | None:
        """Compare a file with its checksum and describe the difference.

        Return None if they match, or if no checksum is recorded.
        """
        try:
            wanted = self.read_checksum(path)
        except PhalanxError as error:
            return str(error)
        if wanted is None:
            return None
        with translate_read_errors(f"read {self.location}/{path}"):
            found = self.compute_checksum(path)
        if found.bytes != wanted.bytes:
            return f"it has {found.bytes:,} bytes, but {wanted.bytes:,} were written"
        return None if found == wanted else "its content differs from what was written (SHA-256)"

    def read_version_hint(self) -> int:
        """Return the newest version in Lance's version hint; 0 if there is none."""
        try:
            with translate_read_errors("read the version hint"):
                text = bytes(self._store.get(_VERSION_HINT).bytes()).decode()
                return int(read_object(text, "the version hint", {"version": COUNT})["version"])
        except PhalanxError:
            return 0

    def _exists(self, path: str) -> bool:
        try:
            self._store.head(path)
        except (FileNotFoundError, NotFoundError):
            return False
        return True
