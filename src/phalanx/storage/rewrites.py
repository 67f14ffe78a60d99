"""Files that a change of the schema wrote in place of others: they hold the same rows.

Numbers of fragments do not tell: after a rollback other rows may come under the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise

from lance import LanceOperation

from phalanx.errors import PhalanxError
from phalanx.storage.history_rows import entries_of
from phalanx.storage.location import Location
from phalanx.storage.manifest import Manifest


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

    for old, new in _alignments(manifest, object_id, location, versions):
        # What vacuum has removed tells nothing.
        with suppress(PhalanxError):
            before, after = _paths(location, old), _paths(location, new)
            for number in before.keys() & after.keys():
                paths = [*before[number], *after[number]]
                for path in paths:
                    one[first(path)] = first(paths[0])
    return {path: first(path) for path in one}


def _alignments(
    manifest: Manifest, object_id: str, location: Location, versions: Iterable[int]
) -> Iterator[tuple[int, int]]:
    """Versions, and what they became when they got another schema: fragment for fragment."""
    entries = entries_of(manifest, object_id)
    for before, after in pairwise(entries):
        # Where the main branch was taken over, it was changed since the snapshot before.
        if after.operation == "change" and after.main is None:
            yield before.version, after.version
    rolled_back = (entry.version for entry in entries if entry.operation == "rollback")
    for version in {*versions, *rolled_back}:
        with suppress(PhalanxError, OSError, ValueError):
            if (origin := _origin(location, version)) != version:
                yield origin, version


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
