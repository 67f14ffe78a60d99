"""The files of a Lance table that no version needs any more.

A file of a kind that is not known here is never among them, nor one outside the table's folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import lance

from phalanx.storage.lance import checksums
from phalanx.storage.lance.files import StoredFile
from phalanx.storage.lance.location import Location

VERSION = "version"
# The name that versions list a file by, from its path. Several files may go under one name.
_KINDS = {
    VERSION: re.compile(r"_versions/(?P<name>d?[0-9]+)\.manifest"),
    "transaction": re.compile(r"_transactions/(?P<name>[0-9]+-[0-9a-f-]{36})\.txn"),
    # What is too large for a data file is in a folder beside it.
    "data": re.compile(r"data/(?P<name>[^/]+?)(?:\.lance|/[^/]+\.blob)"),
    "deletions": re.compile(r"_deletions/(?P<name>[0-9]+-[0-9]+-[0-9]+)\.(?:arrow|bin)"),
    "index": re.compile(r"_indices/(?P<name>[0-9a-f-]{36})/.+"),
    # What was being written to a local disk when its process was killed; no version lists it.
    "temporary": re.compile(
        r"(?P<name>(?:data|_deletions|_versions|_transactions)/\.tmp[0-9A-Za-z]{6}"
        r"|_versions/d?[0-9]+\.manifest#[0-9]+)"
    ),
}
# At the end of names on a local disk, until the file is whole and gets its own.
_STAGED = re.compile(r"#[0-9]+$")
# Newer tables count their versions down, so that the newest is listed first.
_COUNTED_DOWN = 20
_LAST = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Name:
    """What versions call a file: its kind, and its name among those of this kind."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Unlisted:
    """The files of one table that can go, each with its name.

    `elsewhere` has the names of files that its versions read in other tables. `left_alone` says
    why nothing of the table can go.
    """

    files: tuple[tuple[Name, StoredFile], ...] = ()
    elsewhere: frozenset[Name] = frozenset()
    left_alone: str | None = None


def name_of(path: str) -> Name | None:
    """The name of a file, by its path in the table's folder; None for what is not known.

    A checksum goes by the name of its file, also one that a killed writer has not renamed yet.
    """
    path = checksums.file_of(_STAGED.sub("", path)) or path
    for kind, pattern in _KINDS.items():
        if match := pattern.fullmatch(path):
            name = match["name"]
            return Name(kind, str(_version(name)) if kind == VERSION else name)
    return None


def main_versions(files: Iterable[StoredFile]) -> dict[int, datetime]:
    """The versions of a table's main branch, oldest first, and when each was made."""
    found = {}
    for file in files:
        match = _KINDS[VERSION].fullmatch(file.path)
        if match and not match["name"].startswith("d"):
            found[_version(match["name"])] = file.modified
    return dict(sorted(found.items()))


def unlisted(
    location: Location,
    files: Sequence[StoredFile],
    needed: Iterable[int],
    before: datetime,
    *,
    only_newest: bool = False,
) -> Unlisted:
    """The files from before a time that neither the needed versions list nor the main branch.

    Of the main branch count the newest version, every one that was the newest at any moment
    since that time (unless `only_newest`), and those that have a tag.
    """
    if any(file.path.startswith(("_refs/branches/", "tree/")) for file in files):
        return Unlisted(left_alone="it has branches of its own, which read its files")
    mains = main_versions(files)
    wanted = {*needed, *(list(mains)[-1:] if only_newest else _newest_since(mains, before))}
    if any(file.path.startswith("_refs/tags/") for file in files):
        wanted |= {int(tag["version"]) for tag in location.open().tags.list().values()}
    has_indexes = any(file.path.startswith("_indices/") for file in files)
    listed: set[Name] = set()
    elsewhere: set[Name] = set()
    for version in wanted:
        dataset = location.open_leaf(version)
        reads_others = bool(dataset.base_paths())
        names = set(_listed(dataset, has_indexes or reads_others))
        listed |= names
        if reads_others:
            elsewhere |= names
    found = []
    for file in files:
        name = name_of(file.path) if file.modified < before else None
        if name is not None and name not in listed:
            found.append((name, file))
    return Unlisted(tuple(found), frozenset(elsewhere))


def _newest_since(mains: Mapping[int, datetime], moment: datetime) -> Iterator[int]:
    for version, successor in pairwise(mains):
        if mains[successor] >= moment:
            yield version
    yield from list(mains)[-1:]


def _version(name: str) -> int:
    if name.startswith("d"):
        return int(name[1:])
    return _LAST - int(name) if len(name) == _COUNTED_DOWN else int(name)


def _listed(dataset: lance.LanceDataset, has_indexes: bool) -> Iterator[Name]:
    """The names of all files that a version is made of."""
    yield Name(VERSION, str(dataset.version))
    # Lance also has it in the version itself; what it wrote long ago only here.
    transaction = dataset.read_transaction(dataset.version)
    if transaction is not None:
        yield Name("transaction", f"{transaction.read_version}-{transaction.uuid}")
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        overlays = [overlay.data_file for overlay in metadata.overlays]
        for file in (*metadata.files, *overlays):
            yield Name("data", file.path.removesuffix(".lance"))
        if (deleted := metadata.deletion_file) is not None:
            name = f"{metadata.id}-{deleted.read_version}-{deleted.id}"
            yield Name("deletions", name)
    if has_indexes:
        for index in dataset.describe_indices():
            for segment in index.segments:
                yield Name("index", str(segment.uuid))
