"""Files with the same rows: those that a schema change or a compaction wrote in place of others.

Fragment numbers do not identify rows: after a rollback, other rows may have the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise

from lance import LanceOperation
from lance.fragment import FragmentMetadata

from phalanx.errors import PhalanxError
from phalanx.storage.commit.history_rows import LeafVersionRow, read_leaf_versions
from phalanx.storage.commit.publishing import has_contents_of
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest

# The paths of all files of a fragment, which contain its rows, including deleted ones.
Contents = tuple[str, ...]


def contents_of(fragment: FragmentMetadata) -> Contents:
    """Return the paths of the files of a fragment."""
    overlays = [overlay.data_file for overlay in fragment.overlays]
    return tuple(file.path for file in (*fragment.files, *overlays))


def find_aligned_contents(
    manifest: Manifest, object_id: str, location: Location, versions: Iterable[int]
) -> dict[Contents, Contents]:
    """Map fragments that differ only by a schema change to one representative.

    Their rows have the same offsets, including deleted ones. The changes are found in snapshots,
    and in these versions, which may be in no snapshot.
    """
    one: dict[Contents, Contents] = {}

    def find_first(contents: Contents) -> Contents:
        while one.get(contents, contents) != contents:
            contents = one[contents]
        return contents

    for old, new in _find_alignments(manifest, object_id, location, versions):
        # Skip what vacuum has removed.
        with suppress(PhalanxError):
            before, after = _read_contents(location, old), _read_contents(location, new)
            for number in before.keys() & after.keys():
                one[find_first(after[number])] = find_first(before[number])
    return {contents: find_first(contents) for contents in one}


def read_compactions(
    manifest: Manifest, object_id: str, location: Location
) -> Iterator[LanceOperation.RewriteGroup]:
    """Return the fragments of a leaf before and after each compaction by a snapshot."""
    for entry in read_leaf_versions(manifest, object_id):
        if entry.operation == "rewrite" and entry.version is not None:
            # Skip what vacuum has removed.
            with suppress(PhalanxError, OSError, ValueError):
                dataset = location.open_leaf(entry.version)
                made = dataset.read_transaction(entry.version)
                if made is not None and isinstance(made.operation, LanceOperation.Rewrite):
                    yield from made.operation.groups


def _read_contents(location: Location, version: int) -> dict[int, Contents]:
    return {
        fragment.fragment_id: contents_of(fragment.metadata)
        for fragment in location.open_leaf(version).get_fragments()
    }


def find_equivalent_files(
    manifest: Manifest, object_id: str, location: Location, versions: Iterable[int]
) -> dict[str, str]:
    """Map files of a leaf that are known to have the same rows to one representative.

    The changes are found in snapshots, and in these versions, which may be in no snapshot yet.
    """
    one: dict[str, str] = {}

    def find_first(path: str) -> str:
        while path in one and one[path] != path:
            path = one[path]
        return path

    def unite(paths: list[str]) -> None:
        for path in paths:
            one[find_first(path)] = find_first(paths[0])

    for old, new in _find_alignments(manifest, object_id, location, versions):
        # Skip what vacuum has removed.
        with suppress(PhalanxError):
            before, after = _read_paths(location, old), _read_paths(location, new)
            for number in before.keys() & after.keys():
                unite([*before[number], *after[number]])
    for old, new in _find_compactions(manifest, object_id):
        with suppress(PhalanxError):
            before, after = _read_paths(location, old), _read_paths(location, new)
            removed, added = before.keys() - after.keys(), after.keys() - before.keys()
            unite(
                [path for number in sorted(removed) for path in before[number]]
                + [path for number in sorted(added) for path in after[number]]
            )
    return {path: find_first(path) for path in one}


def find_old_files(location: Location, before: int, entry: LeafVersionRow) -> set[str]:
    """Return the files, of a version and the one before it, that have no new rows.

    Another program may have compacted the leaf. If it put old and new rows into one file, all rows
    of that file count as new.
    """
    known = {path for paths in _read_paths(location, before).values() for path in paths}
    if entry.main is not None:
        for operation in read_foreign_operations(location, before, entry.main):
            if isinstance(operation, LanceOperation.Rewrite):
                for group in operation.groups:
                    if known.issuperset(_paths_of(group.old_fragments)):
                        known |= _paths_of(group.new_fragments)
    return known


def read_foreign_operations(location: Location, before: int, main: int) -> list[object]:
    """Return the operations on the main branch since it had the contents of a version."""
    branch = location.open_leaf(main)
    found: list[object] = []
    # Skip what vacuum or another program has removed.
    with suppress(PhalanxError, OSError, ValueError):
        while main > 0 and not has_contents_of(branch, main, before):
            made = branch.read_transaction(main)
            found.append(None if made is None else made.operation)
            main -= 1
    return found[::-1]


def _paths_of(fragments: Iterable[FragmentMetadata]) -> set[str]:
    return {file.path for fragment in fragments for file in fragment.files}


def _find_alignments(
    manifest: Manifest, object_id: str, location: Location, versions: Iterable[int]
) -> Iterator[tuple[int, int]]:
    """Return pairs of versions before and after a schema change, equal fragment by fragment."""
    entries = read_leaf_versions(manifest, object_id)
    for before, after in pairwise(entries):
        # A main branch that was taken over also has other changes.
        if after.operation == "change" and after.main is None:
            yield from _pair_versions(before, after)
    rolled_back = (
        entry.version
        for entry in entries
        if entry.operation == "rollback" and entry.version is not None
    )
    for version in {*versions, *rolled_back}:
        with suppress(PhalanxError, OSError, ValueError):
            if (origin := _find_origin(location, version)) != version:
                yield origin, version


def _find_compactions(manifest: Manifest, object_id: str) -> Iterator[tuple[int, int]]:
    """Return pairs of versions before and after a compaction."""
    for before, after in pairwise(read_leaf_versions(manifest, object_id)):
        if after.operation == "rewrite":
            yield from _pair_versions(before, after)


def _pair_versions(before: LeafVersionRow, after: LeafVersionRow) -> Iterator[tuple[int, int]]:
    if before.version is not None and after.version is not None:
        yield before.version, after.version


def _find_origin(location: Location, version: int) -> int:
    """Return the version before the schema changes that led to this one."""
    dataset = location.open_leaf(version)
    while (made := dataset.read_transaction(version)) is not None:
        if not isinstance(made.operation, LanceOperation.Merge):
            break
        version = made.read_version
    return version


def _read_paths(location: Location, version: int) -> dict[int, list[str]]:
    return {
        fragment.fragment_id: [file.path for file in fragment.metadata.files]
        for fragment in location.open_leaf(version).get_fragments()
    }
