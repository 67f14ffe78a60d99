"""New tables in the Hive-style layout, and new leaves: of several that make one, one does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from phalanx.errors import CommitConflict, NotPartitioned, PhalanxError
from phalanx.model.specs.hive_properties import IS_PARTITIONED, HiveProperties
from phalanx.storage.commit.writing import MainBranches
from phalanx.storage.hive.files import HiveFiles
from phalanx.storage.hive.root import HiveRoot, manifest_properties, open_root, stored_properties
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.location import Location, new_cache
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.lance.retries import is_lost_race
from phalanx.storage.manifest.manifest import DIRECTORY, Manifest
from phalanx.storage.new_leaves import NewLeaves, created_once
from phalanx.storage.state.table_state import LeafListing


def create(root: Location, properties: HiveProperties) -> HiveRoot:
    """A new table without partitions; its properties are where a manifest is, else in a file."""
    try:
        open_root(root)
    except NotPartitioned:
        pass
    else:
        raise _taken(root)
    stated = properties.to_properties()
    in_manifest = manifest_properties(root)
    if in_manifest is None:
        made = HiveFiles(root).create_properties(stated)
    else:
        made = IS_PARTITIONED not in in_manifest and _put(root, stated)
    if not made:
        raise _taken(root)
    reach(Step.MANIFEST_CREATED)
    return HiveRoot(root, stated, has_manifest=in_manifest is not None)


def check_not_hive(root: Location) -> None:
    """Refuse a root where a table in the Hive-style layout is."""
    if IS_PARTITIONED in (stored_properties(root) or {}):
        raise _taken(root)


def _taken(root: Location) -> PhalanxError:
    return PhalanxError(
        f"Cannot create {root}: a table exists there. Open it with phalanx.open, or choose "
        "another path."
    )


def _put(root: Location, stated: Mapping[str, str]) -> bool:
    """Make the properties those of a manifest that has none; False if another was first."""
    dataset = root.own(DIRECTORY).open(cache=new_cache())
    if IS_PARTITIONED in dataset.metadata:
        return False
    try:
        dataset.update_metadata(dict[str, str | None](stated))
    except OSError as error:
        if not is_lost_race(error):
            raise
        return False
    return True


class HiveBranches(MainBranches):
    """The leaves of the Hive-style layout: a commit to a main branch is seen at once."""

    def ensure_partitions(self, keys: pa.Table, new: NewLeaves) -> None:
        """Create the leaves that are missing; who creates one at the same time finds it."""
        root = self.manifest
        assert isinstance(root, HiveRoot)
        missing = root.missing(keys)
        if missing.num_rows:
            root.check_current()
            stored = root.hive.stored
            in_parallel(
                lambda location: created_once(root.root.child(location), stored),
                root.new_leaves(missing),
            )
            now = root.latest()
            if not isinstance(now, HiveRoot) or now.missing(keys).num_rows:
                raise CommitConflict(
                    f"Cannot write to {root.root}: partitions of it are being removed, or it was "
                    "upgraded. Look at the table as it is now, and write again."
                )
            self.manifest = now


def main_branches(manifest: LeafListing, complete: Callable[[Manifest], Manifest]) -> MainBranches:
    """The leaves of a table as weak mode writes them; `complete` ends a change of the mode."""
    kind = HiveBranches if isinstance(manifest, HiveRoot) else MainBranches
    return kind(manifest, complete)
