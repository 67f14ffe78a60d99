"""Debris: the files of a namespace that nothing needs, in its tables and in orphaned leaves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from phalanx.errors import PhalanxError
from phalanx.storage.changes.updates import UPDATES_FOLDER, parse_updates_path
from phalanx.storage.cleanup.unlisted import (
    VERSION_KIND,
    FileName,
    UnlistedFiles,
    find_files_elsewhere,
    find_unlisted,
    list_main_versions,
    parse_file_name,
)
from phalanx.storage.lance.failures import is_missing_file
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.files import Folder, StoredFile, find_nested_tables, is_below
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.state.naming import LEAF_DIRECTORY

ORPHAN = "orphan"
UPDATES_KIND = "updates"
# Lance writes this beside the versions, and no version lists it.
_HINT = "_versions/latest_version_hint.json"
_TAGS = "_refs/tags/"
# Why vacuum skips a leaf: it lacks a version that a retained snapshot needs.
MISSING_VERSION = "a version that a retained snapshot needs is missing"


@dataclass(frozen=True, slots=True)
class LanceTable:
    """A Lance table of the namespace, and the versions of it that are always needed.

    If it is a branch of a table, readers of that table may need its files.
    """

    location: Location
    needed: frozenset[int] = frozenset()
    is_branch: bool = False
    # Whether no version of it is needed.
    is_unneeded: bool = False
    # Whether versions that were the newest a short time ago are not needed.
    keeps_only_newest: bool = False


@dataclass(frozen=True, slots=True)
class DebrisFile:
    """A file to remove: its kind, and its path in a folder."""

    folder: Folder
    kind: str
    path: str
    bytes: int
    modified: datetime

    @property
    def uri(self) -> str:
        """The URI of the file."""
        return f"{self.folder.location}/{self.path}"


@dataclass(frozen=True, slots=True)
class Debris:
    """The files to remove, and the tables that are left alone, each with the reason."""

    files: tuple[DebrisFile, ...]
    left_alone: dict[str, str]

    def remove(self) -> None:
        """Delete the files; versions first, so that no version ever lacks its files."""
        for of_versions, step in (
            (True, FaultPoint.VERSIONS_DELETED),
            (False, FaultPoint.FILES_DELETED),
        ):
            chosen = [file for file in self.files if (file.kind == VERSION_KIND) is of_versions]
            for folder, files in groupby(chosen, lambda file: file.folder):
                folder.delete([file.path for file in files])
            fault_point(step)
        for folder, files in groupby(self.files, lambda file: file.folder):
            folder.remove_empty_folders({path for file in files for path in _own_folders_of(file)})


@dataclass(frozen=True, slots=True)
class _TableFiles:
    """The files of one table, by their paths in it; `prefix` is its path in the folder."""

    table: LanceTable
    folder: Folder
    prefix: str
    files: list[StoredFile]


def find_debris(
    root: Folder,
    files: Sequence[StoredFile],
    tables: Sequence[LanceTable],
    before: datetime,
    updates: frozenset[str] = frozenset(),
) -> Debris:
    """Find files older than a time that no needed version lists, in tables and outside them.

    `files` are all files in the root; tables outside the root are listed separately. `updates` are
    the names of files of updates that are needed.
    """
    start = f"{root.location}/"
    tables = _merge_duplicates(tables)
    inside = {
        table.location.uri.removeprefix(start): table
        for table in tables
        if table.location.uri.startswith(start)
    }
    outside = [table for table in tables if not table.location.uri.startswith(start)]
    owned, others = _split_by_table(files, inside)
    foreign = find_nested_tables(file.path for file in others)
    others = [file for file in others if not is_below(file.path, foreign)]
    listings = [
        _TableFiles(table, root, f"{path}/", owned.get(path, [])) for path, table in inside.items()
    ]
    listings += map_parallel(_list_table, outside)
    found = map_parallel(lambda each: _find_unlisted(each, before), listings)
    # File names are unique, so a name identifies a file that one table reads in another.
    elsewhere = {name for each in found for name in each.elsewhere}
    return Debris(
        tuple(
            file
            for listing, each in zip(listings, found, strict=True)
            for file in _find_table_debris(listing, each, elsewhere)
        )
        + tuple(_find_orphans(root, others, tables, before))
        + tuple(_find_updates(root, others, updates, before)),
        {
            str(listing.table.location): each.left_alone
            for listing, each in zip(listings, found, strict=True)
            if each.left_alone is not None
        },
    )


def _merge_duplicates(tables: Iterable[LanceTable]) -> list[LanceTable]:
    """Return each table once, with all its needed versions."""
    found: dict[str, LanceTable] = {}
    for table in tables:
        known = found.setdefault(table.location.uri, table)
        if known is not table:
            found[table.location.uri] = LanceTable(
                known.location,
                known.needed | table.needed,
                known.is_branch or table.is_branch,
                known.is_unneeded and table.is_unneeded,
            )
    return list(found.values())


def _find_unlisted(listing: _TableFiles, before: datetime) -> UnlistedFiles:
    table = listing.table
    if table.is_unneeded and not listing.files:
        return UnlistedFiles()
    try:
        return _find_unlisted_of_leaf(listing, before)
    except (OSError, ValueError, PhalanxError) as error:
        # Vacuum removes the files of all other leaves. Health reports this one.
        if table.location.table is None or not is_missing_file(error):
            raise
        versions = {*table.needed, *list_main_versions(listing.files)}
        elsewhere = find_files_elsewhere(table.location, versions)
        return UnlistedFiles(elsewhere=elsewhere, left_alone=MISSING_VERSION)


def _find_unlisted_of_leaf(listing: _TableFiles, before: datetime) -> UnlistedFiles:
    table = listing.table
    if (why := table.location.explain_not_owned(table.is_unneeded)) is not None:
        return UnlistedFiles(left_alone=why)
    if table.is_unneeded:
        # Remove versions last: as long as one exists, the leaf has its owner's record.
        ordered = sorted(listing.files, key=lambda file: file.path.startswith("_versions/"))
        known = [(parse_file_name(file.path), file) for file in ordered]
        return UnlistedFiles(
            tuple(
                (name or FileName(ORPHAN, file.path), file)
                for name, file in known
                if name is not None or file.path == _HINT or file.path.startswith(_TAGS)
            )
        )
    if table.is_branch:
        return UnlistedFiles(
            left_alone="it is a branch, and tags of its table may need its versions"
        )
    return find_unlisted(
        table.location, listing.files, table.needed, before, only_newest=table.keeps_only_newest
    )


def _split_by_table(
    files: Sequence[StoredFile], tables: dict[str, LanceTable]
) -> tuple[dict[str, list[StoredFile]], list[StoredFile]]:
    """Split files into those of each table, by their paths in it, and all others."""
    owned: dict[str, list[StoredFile]] = defaultdict(list)
    others = []
    deepest = max((path.count("/") for path in tables), default=0) + 1
    for file in files:
        steps = file.path.split("/")
        # A table in the folder of another table has its own files.
        for depth in range(min(deepest, len(steps) - 1), 0, -1):
            path = "/".join(steps[:depth])
            if path in tables:
                inner = "/".join(steps[depth:])
                owned[path].append(StoredFile(inner, file.bytes, file.modified))
                break
        else:
            others.append(file)
    return owned, others


def _list_table(table: LanceTable) -> _TableFiles:
    folder = Folder(table.location)
    return _TableFiles(table, folder, "", folder.list_files())


def _find_table_debris(
    listing: _TableFiles, found: UnlistedFiles, elsewhere: set[FileName]
) -> Iterator[DebrisFile]:
    for name, file in found.files:
        if name not in elsewhere:
            path = f"{listing.prefix}{file.path}"
            kind = ORPHAN if listing.table.is_unneeded else name.kind
            yield DebrisFile(listing.folder, kind, path, file.bytes, file.modified)


def _find_orphans(
    root: Folder, others: Sequence[StoredFile], tables: Sequence[LanceTable], before: datetime
) -> Iterator[DebrisFile]:
    """Find the files of orphaned leaves, whose writer died before its commit.

    A folder counts only if it has a name that Phalanx would give, no unknown or recent file, and
    if no listed table, in any location, has this name.
    """
    known = {step for table in tables for step in table.location.uri.split("/")}
    folders: dict[str, list[StoredFile]] = defaultdict(list)
    for file in others:
        top, _, inner = file.path.partition("/")
        if LEAF_DIRECTORY.fullmatch(top) and top not in known:
            folders[top].append(StoredFile(inner, file.bytes, file.modified))
    for top, files in folders.items():
        if all(
            file.modified < before
            and (file.path == _HINT or parse_file_name(file.path) is not None)
            for file in files
        ):
            for file in files:
                yield DebrisFile(root, ORPHAN, f"{top}/{file.path}", file.bytes, file.modified)


def _find_updates(
    root: Folder, others: Sequence[StoredFile], needed: frozenset[str], before: datetime
) -> Iterator[DebrisFile]:
    """Find files of updates of expired snapshots, and of writers that died before a commit."""
    for file in others:
        name = parse_updates_path(file.path)
        if name is not None and name not in needed and file.modified < before:
            yield DebrisFile(root, UPDATES_KIND, file.path, file.bytes, file.modified)


def _own_folders_of(file: DebrisFile) -> Iterator[str]:
    """Return the folders that were created for a file, and for others that are removed with it."""
    if file.kind == UPDATES_KIND:
        yield UPDATES_FOLDER
    elif file.kind == ORPHAN:
        yield file.path.partition("/")[0]
    elif file.kind == "index" or file.path.endswith(".blob"):
        yield file.path.rpartition("/")[0]
