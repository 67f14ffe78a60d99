"""Files that a change of the schema, or a compaction, wrote in place of others: the same rows.

Numbers of fragments do not tell: after a rollback other rows may come under the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise

from lance import LanceOperation
from lance.fragment import FragmentMetadata

from phalanx.errors import PhalanxError
from phalanx.storage.commit.history_rows import Entry, entries_of
from phalanx.storage.commit.publishing import shows
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest

# What holds the rows of a fragment, the deleted ones included: the names of all its files.
Contents = tuple[str, ...]


def contents_of(fragment: FragmentMetadata) -> Contents:
    """The files that a fragment is made of."""
    overlays = [overlay.data_file for overlay in fragment.overlays]
    return tuple(file.path for file in (*fragment.files, *overlays))


def aligned_contents(
    manifest: Manifest, object_id: str, location: Location, versions: Iterable[int]
) -> dict[Contents, Contents]:
    """For fragments that differ only by the schema they were written in, one that stands for all.

    Their rows have the same places, deleted ones included. The snapshots tell, and these versions,
    which may be in no snapshot.
    """
    one: dict[Contents, Contents] = {}

    def first(contents: Contents) -> Contents:
        while one.get(contents, contents) != contents:
            contents = one[contents]
        return contents

    for old, new in _alignments(manifest, object_id, location, versions):
        # What vacuum has removed tells nothing.
        with suppress(PhalanxError):
            before, after = _contents(location, old), _contents(location, new)
            for number in before.keys() & after.keys():
                one[first(after[number])] = first(before[number])
    return {contents: first(contents) for contents in one}


def compactions_of(
    manifest: Manifest, object_id: str, location: Location
) -> Iterator[LanceOperation.RewriteGroup]:
    """The fragments of a leaf that snapshots wrote anew, and those that they became."""
    for entry in entries_of(manifest, object_id):
        if entry.operation == "rewrite" and entry.version is not None:
            # What vacuum has removed tells nothing.
            with suppress(PhalanxError, OSError, ValueError):
                dataset = location.open_leaf(entry.version)
                made = dataset.read_transaction(entry.version)
                if made is not None and isinstance(made.operation, LanceOperation.Rewrite):
                    yield from made.operation.groups


def _contents(location: Location, version: int) -> dict[int, Contents]:
    return {
        fragment.fragment_id: contents_of(fragment.metadata)
        for fragment in location.open_leaf(version).get_fragments()
    }


def same_files(
    manifest: Manifest, object_id: str, location: Location, versions: Iterable[int]
) -> dict[str, str]:
    """For files of a leaf that hold the same rows, as far as is known, one file for all of them.

    The snapshots tell, and these versions, which may be in no snapshot yet.
    """
    one: dict[str, str] = {}

    def first(path: str) -> str:
        while path in one and one[path] != path:
            path = one[path]
        return path

    def unite(paths: list[str]) -> None:
        for path in paths:
            one[first(path)] = first(paths[0])

    for old, new in _alignments(manifest, object_id, location, versions):
        # What vacuum has removed tells nothing.
        with suppress(PhalanxError):
            before, after = _paths(location, old), _paths(location, new)
            for number in before.keys() & after.keys():
                unite([*before[number], *after[number]])
    for old, new in _compactions(manifest, object_id):
        with suppress(PhalanxError):
            before, after = _paths(location, old), _paths(location, new)
            gone, came = before.keys() - after.keys(), after.keys() - before.keys()
            unite(
                [path for number in sorted(gone) for path in before[number]]
                + [path for number in sorted(came) for path in after[number]]
            )
    return {path: first(path) for path in one}


def known_files(location: Location, before: int, entry: Entry) -> set[str]:
    """The files of a new version of a leaf, and of the one before, whose rows are not new.

    Someone may have compacted the leaf past Phalanx. Where old and new rows came into one file,
    all its rows count as new.
    """
    known = {path for paths in _paths(location, before).values() for path in paths}
    if entry.main is not None:
        for operation in foreign_operations(location, before, entry.main):
            if isinstance(operation, LanceOperation.Rewrite):
                for group in operation.groups:
                    if known.issuperset(_files(group.old_fragments)):
                        known |= _files(group.new_fragments)
    return known


def foreign_operations(location: Location, before: int, main: int) -> list[object]:
    """What was done on the main branch since it showed a version, the oldest first."""
    branch = location.open_leaf(main)
    found: list[object] = []
    # What vacuum or another clean-up has removed tells nothing.
    with suppress(PhalanxError, OSError, ValueError):
        while main > 0 and not shows(branch, main, before):
            made = branch.read_transaction(main)
            found.append(None if made is None else made.operation)
            main -= 1
    return found[::-1]


def _files(fragments: Iterable[FragmentMetadata]) -> set[str]:
    return {file.path for fragment in fragments for file in fragment.files}


def _alignments(
    manifest: Manifest, object_id: str, location: Location, versions: Iterable[int]
) -> Iterator[tuple[int, int]]:
    """Versions, and what they became when they got another schema: fragment for fragment."""
    entries = entries_of(manifest, object_id)
    for before, after in pairwise(entries):
        # Where the main branch was taken over, it was changed since the snapshot before.
        if after.operation == "change" and after.main is None:
            yield from _both(before, after)
    rolled_back = (
        entry.version
        for entry in entries
        if entry.operation == "rollback" and entry.version is not None
    )
    for version in {*versions, *rolled_back}:
        with suppress(PhalanxError, OSError, ValueError):
            if (origin := _origin(location, version)) != version:
                yield origin, version


def _compactions(manifest: Manifest, object_id: str) -> Iterator[tuple[int, int]]:
    """Versions, and what they became when files were written anew as others."""
    for before, after in pairwise(entries_of(manifest, object_id)):
        if after.operation == "rewrite":
            yield from _both(before, after)


def _both(before: Entry, after: Entry) -> Iterator[tuple[int, int]]:
    if before.version is not None and after.version is not None:
        yield before.version, after.version


def _origin(location: Location, version: int) -> int:
    """The version that was last brought in line with another schema to become this one."""
    dataset = location.open_leaf(version)
    while (made := dataset.read_transaction(version)) is not None:
        if not isinstance(made.operation, LanceOperation.Merge):
            break
        version = made.read_version
    return version


def _paths(location: Location, version: int) -> dict[int, list[str]]:
    return {
        fragment.fragment_id: [file.path for file in fragment.metadata.files]
        for fragment in location.open_leaf(version).get_fragments()
    }
