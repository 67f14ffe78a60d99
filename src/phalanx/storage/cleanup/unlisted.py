"""Unlisted files: those of a Lance table that no needed version lists.

Files of an unknown kind are never among them, nor files outside the table's folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import lance

from phalanx.errors import PhalanxError
from phalanx.storage.lance import checksums
from phalanx.storage.lance.failures import is_missing_file
from phalanx.storage.lance.files import StoredFile
from phalanx.storage.lance.location import Location

VERSION_KIND = "version"
# Patterns that extract from a path the name by which versions list the file. Several files may
# have one name.
_KINDS = {
    VERSION_KIND: re.compile(r"_versions/(?P<name>d?[0-9]+)\.manifest"),
    "transaction": re.compile(r"_transactions/(?P<name>[0-9]+-[0-9a-f-]{36})\.txn"),
    # Large blobs are in a folder beside the data file.
    "data": re.compile(r"data/(?P<name>[^/]+?)(?:\.lance|/[^/]+\.blob)"),
    "deletions": re.compile(r"_deletions/(?P<name>[0-9]+-[0-9]+-[0-9]+)\.(?:arrow|bin)"),
    "index": re.compile(r"_indices/(?P<name>[0-9a-f-]{36})/.+"),
    # Partial files of a killed process on a local disk; no version lists them.
    "temporary": re.compile(
        r"(?P<name>(?:data|_deletions|_versions|_transactions)/\.tmp[0-9A-Za-z]{6}"
        r"|_versions/d?[0-9]+\.manifest#[0-9]+)"
    ),
}
# The suffix of a partial file on a local disk, until it is complete and renamed.
_STAGED = re.compile(r"#[0-9]+$")
# Newer tables name versions in descending order with so many digits, to list the newest first.
_DESCENDING_DIGITS = 20
_MAX_VERSION = 2**64 - 1


@dataclass(frozen=True, slots=True)
class FileName:
    """The name by which versions list a file: its kind, and its name within the kind."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class UnlistedFiles:
    """The unlisted files of one table, each with its name.

    `elsewhere` has the names of files that its versions read in other tables. `left_alone` is the
    reason why no file of the table can be removed.
    """

    files: tuple[tuple[FileName, StoredFile], ...] = ()
    elsewhere: frozenset[FileName] = frozenset()
    left_alone: str | None = None


def parse_file_name(path: str) -> FileName | None:
    """Return the name of a file from its path in the table's folder; None if it is unknown.

    A checksum has the name of its file, even if a killed writer has not renamed it yet.
    """
    path = checksums.checksummed_path(_STAGED.sub("", path)) or path
    for kind, pattern in _KINDS.items():
        if match := pattern.fullmatch(path):
            name = match["name"]
            return FileName(kind, str(_parse_version(name)) if kind == VERSION_KIND else name)
    return None


def list_main_versions(files: Iterable[StoredFile]) -> dict[int, datetime]:
    """Return the versions of a table's main branch, oldest first, and when each was made."""
    found = {}
    for file in files:
        match = _KINDS[VERSION_KIND].fullmatch(file.path)
        if match and not match["name"].startswith("d"):
            found[_parse_version(match["name"])] = file.modified
    return dict(sorted(found.items()))


def find_unlisted(
    location: Location,
    files: Sequence[StoredFile],
    needed: Iterable[int],
    before: datetime,
    *,
    only_newest: bool = False,
) -> UnlistedFiles:
    """Find files older than a time that neither a needed version nor the main branch lists.

    The versions of the main branch that count are the newest, those that were the newest at any
    moment since that time (unless `only_newest`), and those with a tag.
    """
    if any(file.path.startswith(("_refs/branches/", "tree/")) for file in files):
        return UnlistedFiles(left_alone="it has branches of its own, which read its files")
    mains = list_main_versions(files)
    wanted = {*needed, *(list(mains)[-1:] if only_newest else _list_newest_since(mains, before))}
    if any(file.path.startswith("_refs/tags/") for file in files):
        wanted |= {int(tag["version"]) for tag in location.open().tags.list().values()}
    has_indexes = any(file.path.startswith("_indices/") for file in files)
    listed: set[FileName] = set()
    elsewhere: set[FileName] = set()
    for version in wanted:
        dataset = location.open_leaf(version)
        reads_others = bool(dataset.base_paths())
        names = set(_list_files(dataset, has_indexes or reads_others))
        listed |= names
        if reads_others:
            elsewhere |= names
    found = []
    for file in files:
        name = parse_file_name(file.path) if file.modified < before else None
        if name is not None and name not in listed:
            found.append((name, file))
    return UnlistedFiles(tuple(found), frozenset(elsewhere))


def find_files_elsewhere(location: Location, versions: Iterable[int]) -> frozenset[FileName]:
    """Return the names of files that these versions read in other tables; skip missing versions."""
    found: set[FileName] = set()
    for version in versions:
        try:
            dataset = location.open_leaf(version)
        except PhalanxError as error:
            if not is_missing_file(error):
                raise
            continue
        if dataset.base_paths():
            found |= set(_list_files(dataset, has_indexes=True))
    return frozenset(found)


def _list_newest_since(mains: Mapping[int, datetime], moment: datetime) -> Iterator[int]:
    for version, successor in pairwise(mains):
        if mains[successor] >= moment:
            yield version
    yield from list(mains)[-1:]


def _parse_version(name: str) -> int:
    if name.startswith("d"):
        return int(name[1:])
    return _MAX_VERSION - int(name) if len(name) == _DESCENDING_DIGITS else int(name)


def _list_files(dataset: lance.LanceDataset, has_indexes: bool) -> Iterator[FileName]:
    """Return the names of all files of a version."""
    yield FileName(VERSION_KIND, str(dataset.version))
    # Newer versions also contain their transaction; old ones have only this file.
    transaction = dataset.read_transaction(dataset.version)
    if transaction is not None:
        yield FileName("transaction", f"{transaction.read_version}-{transaction.uuid}")
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        overlays = [overlay.data_file for overlay in metadata.overlays]
        for file in (*metadata.files, *overlays):
            yield FileName("data", file.path.removesuffix(".lance"))
        if (deleted := metadata.deletion_file) is not None:
            name = f"{metadata.id}-{deleted.read_version}-{deleted.id}"
            yield FileName("deletions", name)
    if has_indexes:
        for index in dataset.describe_indices():
            for segment in index.segments:
                yield FileName("index", str(segment.uuid))
