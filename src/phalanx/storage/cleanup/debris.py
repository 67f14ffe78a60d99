"""The files of a whole namespace that nothing needs: of its tables, and of leaves of nobody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from phalanx.storage.changes.updates import FOLDER, name_at
from phalanx.storage.cleanup.unlisted import VERSION, Name, Unlisted, name_of, unlisted
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.files import Folder, StoredFile, is_below, tables_inside
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.state.naming import LEAF_DIRECTORY

ORPHAN = "orphan"
UPDATES = "updates"
# What Lance writes beside the versions, and no version lists.
_HINT = "_versions/latest_version_hint.json"
_TAGS = "_refs/tags/"


@dataclass(frozen=True, slots=True)
class LanceTable:
    """A table of the namespace, and the versions of it that are needed in any case.

    It may be a branch of a table: whatever else reads that table may need its files.
    """

    location: Location
    needed: frozenset[int] = frozenset()
    is_branch: bool = False
    # Whether nothing of it is needed.
    is_gone: bool = False
    # Whether no version is needed for having been the newest just now.
    only_newest: bool = False


@dataclass(frozen=True, slots=True)
class DebrisFile:
    """A file that can go: its kind, and its path in a folder that can delete it."""

    folder: Folder
    kind: str
    path: str
    bytes: int
    modified: datetime

    @property
    def uri(self) -> str:
        """Where it is."""
        return f"{self.folder.location}/{self.path}"


@dataclass(frozen=True, slots=True)
class Debris:
    """All that can go, and the reason for each table of which nothing can."""

    files: tuple[DebrisFile, ...]
    left_alone: dict[str, str]

    def remove(self) -> None:
        """Delete it: versions first, so that none is ever there without its files."""
        for of_versions, step in ((True, Step.VERSIONS_DELETED), (False, Step.FILES_DELETED)):
            chosen = [file for file in self.files if (file.kind == VERSION) is of_versions]
            for folder, files in groupby(chosen, lambda file: file.folder):
                folder.delete([file.path for file in files])
            reach(step)
        for folder, files in groupby(self.files, lambda file: file.folder):
            folder.remove_empty({path for file in files for path in _folders_of_its_own(file)})


@dataclass(frozen=True, slots=True)
class _Listing:
    """The files of one table, by their paths in it; `prefix` leads there from the folder."""

    table: LanceTable
    folder: Folder
    prefix: str
    files: list[StoredFile]


def debris(
    root: Folder,
    files: Sequence[StoredFile],
    tables: Sequence[LanceTable],
    before: datetime,
    updates: frozenset[str] = frozenset(),
) -> Debris:
    """What no version that counts lists, from before a time, in the tables and beside them.

    `files` are all that the root holds. A table outside of it is listed by itself. `updates` are
    the names of those that are needed.
    """
    start = f"{root.location}/"
    tables = _each_once(tables)
    inside = {
        table.location.uri.removeprefix(start): table
        for table in tables
        if table.location.uri.startswith(start)
    }
    outside = [table for table in tables if not table.location.uri.startswith(start)]
    owned, others = _by_table(files, inside)
    foreign = tables_inside(file.path for file in others)
    others = [file for file in others if not is_below(file.path, foreign)]
    listings = [
        _Listing(table, root, f"{path}/", owned.get(path, [])) for path, table in inside.items()
    ]
    listings += in_parallel(_listed_alone, outside)
    found = in_parallel(lambda each: _unlisted(each, before), listings)
    # No two files have the same name: what one table reads in another is known by it.
    elsewhere = {name for each in found for name in each.elsewhere}
    return Debris(
        tuple(
            file
            for listing, each in zip(listings, found, strict=True)
            for file in _of_table(listing, each, elsewhere)
        )
        + tuple(_orphans(root, others, tables, before))
        + tuple(_updates(root, others, updates, before)),
        {
            str(listing.table.location): each.left_alone
            for listing, each in zip(listings, found, strict=True)
            if each.left_alone is not None
        },
    )


def _each_once(tables: Iterable[LanceTable]) -> list[LanceTable]:
    """The tables, each with all versions that are needed, however often it is listed."""
    found: dict[str, LanceTable] = {}
    for table in tables:
        known = found.setdefault(table.location.uri, table)
        if known is not table:
            found[table.location.uri] = LanceTable(
                known.location,
                known.needed | table.needed,
                known.is_branch or table.is_branch,
                known.is_gone and table.is_gone,
            )
    return list(found.values())


def _unlisted(listing: _Listing, before: datetime) -> Unlisted:
    table = listing.table
    if table.is_gone and not listing.files:
        return Unlisted()
    if (why := table.location.why_not_ours(table.is_gone)) is not None:
        return Unlisted(left_alone=why)
    if table.is_gone:
        # Versions go last: as long as one is there, the leaf says whose it is.
        ordered = sorted(listing.files, key=lambda file: file.path.startswith("_versions/"))
        known = [(name_of(file.path), file) for file in ordered]
        return Unlisted(
            tuple(
                (name or Name(ORPHAN, file.path), file)
                for name, file in known
                if name is not None or file.path == _HINT or file.path.startswith(_TAGS)
            )
        )
    if table.is_branch:
        return Unlisted(left_alone="it is a branch, and tags of its table may need its versions")
    return unlisted(
        table.location, listing.files, table.needed, before, only_newest=table.only_newest
    )


def _by_table(
    files: Sequence[StoredFile], tables: dict[str, LanceTable]
) -> tuple[dict[str, list[StoredFile]], list[StoredFile]]:
    """The files in each table's folder, by their paths there; and all others."""
    owned: dict[str, list[StoredFile]] = defaultdict(list)
    others = []
    deepest = max((path.count("/") for path in tables), default=0) + 1
    for file in files:
        steps = file.path.split("/")
        # A table within the folder of another has its own files.
        for depth in range(min(deepest, len(steps) - 1), 0, -1):
            path = "/".join(steps[:depth])
            if path in tables:
                inner = "/".join(steps[depth:])
                owned[path].append(StoredFile(inner, file.bytes, file.modified))
                break
        else:
            others.append(file)
    return owned, others


def _listed_alone(table: LanceTable) -> _Listing:
    folder = Folder(table.location)
    return _Listing(table, folder, "", folder.files())


def _of_table(listing: _Listing, found: Unlisted, elsewhere: set[Name]) -> Iterator[DebrisFile]:
    for name, file in found.files:
        if name not in elsewhere:
            path = f"{listing.prefix}{file.path}"
            kind = ORPHAN if listing.table.is_gone else name.kind
            yield DebrisFile(listing.folder, kind, path, file.bytes, file.modified)


def _orphans(
    root: Folder, others: Sequence[StoredFile], tables: Sequence[LanceTable], before: datetime
) -> Iterator[DebrisFile]:
    """The files of leaves that a writer made, and died before its commit.

    Only a folder whose name Phalanx would give counts, with nothing strange or recent in it, and
    by whose name no table goes, wherever that is.
    """
    known = {step for table in tables for step in table.location.uri.split("/")}
    folders: dict[str, list[StoredFile]] = defaultdict(list)
    for file in others:
        top, _, inner = file.path.partition("/")
        if LEAF_DIRECTORY.fullmatch(top) and top not in known:
            folders[top].append(StoredFile(inner, file.bytes, file.modified))
    for top, files in folders.items():
        if all(
            file.modified < before and (file.path == _HINT or name_of(file.path) is not None)
            for file in files
        ):
            for file in files:
                yield DebrisFile(root, ORPHAN, f"{top}/{file.path}", file.bytes, file.modified)


def _updates(
    root: Folder, others: Sequence[StoredFile], needed: frozenset[str], before: datetime
) -> Iterator[DebrisFile]:
    """The updates of snapshots that are over, and of writers that died before their commit."""
    for file in others:
        name = name_at(file.path)
        if name is not None and name not in needed and file.modified < before:
            yield DebrisFile(root, UPDATES, file.path, file.bytes, file.modified)


def _folders_of_its_own(file: DebrisFile) -> Iterator[str]:
    """The folders that were made for a file, and for others that go with it."""
    if file.kind == UPDATES:
        yield FOLDER
    elif file.kind == ORPHAN:
        yield file.path.partition("/")[0]
    elif file.kind == "index" or file.path.endswith(".blob"):
        yield file.path.rpartition("/")[0]
