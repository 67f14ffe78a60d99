"""Creation of tables and leaves in the Hive-style layout; one of several creators succeeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pyarrow as pa

from phalanx.errors import CommitConflict, NotPartitioned, PhalanxError
from phalanx.model.specs.hive_properties import HIVE_IS_PARTITIONED, HiveProperties
from phalanx.model.specs.partition_key import read_keys
from phalanx.storage.commit.writing import WeakTarget
from phalanx.storage.hive.files import HiveFiles
from phalanx.storage.hive.root import (
    HiveRoot,
    open_table_state,
    read_manifest_properties,
    read_stored_properties,
)
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.location import Location, create_session
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.lance.retries import is_commit_conflict
from phalanx.storage.leaf.leaf import LeafCreator, create_leaf_once
from phalanx.storage.manifest.manifest import MANIFEST_DIRECTORY, Manifest
from phalanx.storage.state.table_state import TableState

_LOGGER = logging.getLogger("phalanx.storage")


def create_hive_table(root: Location, properties: HiveProperties) -> HiveRoot:
    """Create a table without partitions; its properties go to a manifest if one exists."""
    try:
        open_table_state(root)
    except NotPartitioned:
        pass
    else:
        raise _already_exists(root)
    raw_properties = properties.to_properties()
    in_manifest = read_manifest_properties(root)
    if in_manifest is None:
        made = HiveFiles(root).create_properties(raw_properties)
    else:
        made = HIVE_IS_PARTITIONED not in in_manifest and _put_properties(root, raw_properties)
    if not made:
        raise _already_exists(root)
    fault_point(FaultPoint.MANIFEST_CREATED)
    _LOGGER.info("Created %s", root)
    return HiveRoot(root, raw_properties, has_manifest=in_manifest is not None)


def check_not_hive(root: Location) -> None:
    """Refuse a root that has a table in the Hive-style layout."""
    if HIVE_IS_PARTITIONED in (read_stored_properties(root) or {}):
        raise _already_exists(root)


def _already_exists(root: Location) -> PhalanxError:
    return PhalanxError(
        f"Cannot create {root}: a table exists there. Open it with phalanx.open, or choose "
        "another path."
    )


def _put_properties(root: Location, raw_properties: Mapping[str, str]) -> bool:
    """Write the properties to a manifest that has none; False if another writer was first."""
    dataset = root.subfolder(MANIFEST_DIRECTORY).open(session=create_session())
    if HIVE_IS_PARTITIONED in dataset.metadata:
        return False
    try:
        dataset.update_metadata(dict[str, str | None](raw_properties))
    except OSError as error:
        if not is_commit_conflict(error):
            raise
        return False
    return True


class HiveTarget(WeakTarget):
    """Applies writes to the leaves of the Hive-style layout, each visible at once."""

    def ensure_partitions(self, keys: pa.Table, new: LeafCreator) -> None:
        """Create the missing leaves; concurrent creators share them."""
        root = self.state
        assert isinstance(root, HiveRoot)
        missing = root.select_missing_keys(keys)
        if missing.num_rows:
            root.check_current()
            stored = root.hive.leaf_schema
            map_parallel(
                lambda location: create_leaf_once(root.root.leaf(location), stored),
                root.locations_for(missing),
            )
            now = root.load_latest()
            if not isinstance(now, HiveRoot) or now.select_missing_keys(keys).num_rows:
                raise CommitConflict(
                    f"Cannot write to {root.root}: its partitions are being removed, or it was "
                    "upgraded. Look at the table as it is now, and write again.",
                    partitions=read_keys(keys),
                )
            self.state = now


def make_weak_target(
    state: TableState, complete_mode_change: Callable[[Manifest], Manifest]
) -> WeakTarget:
    """Return a target for weak writes to a table in any layout."""
    kind = HiveTarget if isinstance(state, HiveRoot) else WeakTarget
    return kind(state, complete_mode_change)
