"""Partitions that a manifest lists and storage does not have: whole leaves, or files of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.errors import PhalanxError
from phalanx.model.specs.partition_key import PartitionKey, keys_of
from phalanx.planning.pruning.scan_plan import OBJECT_ID, located
from phalanx.storage.lance.failures import is_gone
from phalanx.storage.lance.files import Folder
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.read.rewrite_planning import FileLeaf


@dataclass(frozen=True, slots=True)
class MissingLeaf:
    """A leaf that cannot be opened in the version that readers must read."""

    key: PartitionKey
    object_id: str
    location: Location


def missing_leaves(manifest: Manifest) -> list[MissingLeaf]:
    """The leaves that are listed, and are not there."""

    def checked(each: tuple[MissingLeaf, int | None]) -> MissingLeaf | None:
        leaf, version = each
        try:
            leaf.location.open_leaf(version)
        except (PhalanxError, OSError, ValueError) as error:
            if not is_gone(error):
                raise
            return leaf
        return None

    listed = [
        (MissingLeaf(key, name, manifest.root.child(location)), version)
        for spec_id, leaves in sorted(manifest.leaves().items())
        for key, name, (location, version) in zip(
            keys_of(manifest.keys_of_leaves(spec_id, leaves)),
            leaves.column(OBJECT_ID).to_pylist(),
            located(leaves),
            strict=True,
        )
    ]
    return [leaf for leaf in in_parallel(checked, listed) if leaf is not None]


def missing_files(manifest: Manifest, leaves: Sequence[FileLeaf]) -> dict[str, list[str]]:
    """The data files that leaves need and storage does not have, by the leaves' object ids.

    One listing tells. Where it does not have a file, the leaf is looked at once more: a file may
    be newer than the listing, and a vacuum may have removed one that the newest version lacks.
    """
    inside = f"{manifest.root.uri}/"
    stored = {file.path for file in Folder(manifest.root).files()} if leaves else set()
    doubtful = [
        leaf
        for leaf in leaves
        if not leaf.location.uri.startswith(inside)
        or not stored.issuperset(
            f"{leaf.location.uri.removeprefix(inside)}/{path}" for path in _paths(leaf)
        )
    ]
    if not doubtful:
        return {}
    now = manifest.latest().versions([leaf.object_id for leaf in doubtful])

    def lacking(leaf: FileLeaf) -> list[str]:
        if leaf.object_id not in now:
            return []
        dataset = leaf.location.open_leaf(now[leaf.object_id])
        there = {file.path for file in Folder(leaf.location).files()}
        return sorted(
            {
                path
                for fragment in dataset.get_fragments()
                for file in fragment.metadata.files
                if file.base_id is None and (path := f"data/{file.path}") not in there
            }
        )

    found = zip(doubtful, in_parallel(lacking, doubtful), strict=True)
    return {leaf.object_id: paths for leaf, paths in found if paths}


def _paths(leaf: FileLeaf) -> list[str]:
    return [
        f"data/{file.path}"
        for fragment in leaf.fragments
        for file in fragment.files
        if file.base_id is None
    ]
