"""Compare what a manifest lists with what storage holds.

Finds listed leaves and files that are missing, and stored leaves that no manifest row lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.errors import PhalanxError
from phalanx.model.specs.partition_key import PartitionKey, read_keys
from phalanx.planning.pruning.leaf_columns import LEAF_OBJECT_ID, list_leaf_versions
from phalanx.storage.cleanup.expiry import has_files
from phalanx.storage.commit.publishing import locations_of
from phalanx.storage.lance.failures import is_missing_file
from phalanx.storage.lance.files import Folder
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import Owner
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.manifest.dropped import include_dropped, read_leaving_leaves
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.naming import LEAF_DIRECTORY
from phalanx.table.read.rewrite_planning import PlannedLeaf


@dataclass(frozen=True, slots=True)
class MissingLeaf:
    """A leaf that cannot be opened in the version that readers must read."""

    key: PartitionKey
    object_id: str
    location: Location


def find_missing_leaves(manifest: Manifest) -> list[MissingLeaf]:
    """Return the listed leaves that storage does not have."""

    def check(each: tuple[MissingLeaf, int | None]) -> MissingLeaf | None:
        leaf, version = each
        try:
            leaf.location.open_leaf(version)
        except (PhalanxError, OSError, ValueError) as error:
            if not is_missing_file(error):
                raise
            return leaf
        return None

    listed = [
        (MissingLeaf(key, name, manifest.root.leaf(location)), version)
        for spec_id, leaves in sorted(manifest.list_leaves().items())
        for key, name, (location, version) in zip(
            read_keys(manifest.leaf_keys(spec_id, leaves)),
            leaves.column(LEAF_OBJECT_ID).to_pylist(),
            list_leaf_versions(leaves),
            strict=True,
        )
    ]
    return [leaf for leaf in map_parallel(check, listed) if leaf is not None]


def find_missing_files(manifest: Manifest, leaves: Sequence[PlannedLeaf]) -> dict[str, list[str]]:
    """Return the data files that leaves need and storage does not have, by object id.

    Lists the root once. If the listing lacks a file, the leaf is opened and listed again: the file
    may be newer than the listing, or a vacuum may have removed it because the newest version does
    not need it.
    """
    inside = f"{manifest.root.uri}/"
    stored = {file.path for file in Folder(manifest.root).list_files()} if leaves else set()
    doubtful = [
        leaf
        for leaf in leaves
        if not leaf.location.uri.startswith(inside)
        or not stored.issuperset(
            f"{leaf.location.uri.removeprefix(inside)}/{path}" for path in _data_paths(leaf)
        )
    ]
    if not doubtful:
        return {}
    now = manifest.load_latest().leaf_versions([leaf.object_id for leaf in doubtful])

    def list_missing(leaf: PlannedLeaf) -> list[str]:
        if leaf.object_id not in now:
            return []
        dataset = leaf.location.open_leaf(now[leaf.object_id])
        stored_paths = {file.path for file in Folder(leaf.location).list_files()}
        return sorted(
            {
                path
                for fragment in dataset.get_fragments()
                for file in fragment.metadata.files
                if file.base_id is None and (path := f"data/{file.path}") not in stored_paths
            }
        )

    found = zip(doubtful, map_parallel(list_missing, doubtful), strict=True)
    return {leaf.object_id: paths for leaf, paths in found if paths}


def _data_paths(leaf: PlannedLeaf) -> list[str]:
    return [
        f"data/{file.path}"
        for fragment in leaf.fragments
        for file in fragment.files
        if file.base_id is None
    ]


_HIDDEN = ("_", ".")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A stored leaf that nothing lists; `why` is None if the next vacuum removes it."""

    location: Location
    why: str | None


def find_leftovers(manifest: Manifest) -> list[Leftover]:
    """Return the leaves that a vacuum has yet to remove, and unlisted leaves of this table.

    Skips folders with a name that Phalanx generates: every vacuum finds and removes those itself.
    """
    leaving = [each.location for each in read_leaving_leaves(manifest) if has_files(each.location)]
    found = [Leftover(each, each.explain_not_owned(True)) for each in leaving]
    listed = {each.uri for each in locations_of(include_dropped(manifest)).values()}
    listed |= {each.uri for each in leaving}
    for name in Folder(manifest.root).list_folders():
        location = manifest.root.subfolder(name)
        if name.startswith(_HIDDEN) or LEAF_DIRECTORY.fullmatch(name) or location.uri in listed:
            continue
        if any(uri.startswith(f"{location.uri}/") for uri in listed):
            continue
        record = _read_owner(location)
        table = manifest.root.table
        if record is not None and table is not None and record.is_same_namespace(table):
            why = "the manifest has no record that it was a partition"
            found.append(Leftover(location, why))
    return found


def _read_owner(location: Location) -> Owner | None:
    try:
        return Owner.of(location.open())
    except (OSError, ValueError):
        return None
