"""Where the leaves of a write are that many tasks share: those there are, and those to be made."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from phalanx.planning.pruning.scan_plan import located
from phalanx.storage.hive.root import HiveRoot
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.partition_rows import new_partitions
from phalanx.storage.new_leaves import NewLeaves
from phalanx.storage.state.table_state import LeafListing

# The version of a leaf that the manifest does not list.
NEW = -1


def leaves_of(
    manifest: LeafListing, keys: pa.Table, new: NewLeaves
) -> list[tuple[str, int | None]]:
    """For each partition key its leaf's location and version."""
    places = manifest.places(keys)
    found: list[tuple[str, int | None]] = [("", NEW)] * keys.num_rows
    listed = np.flatnonzero(places >= 0)
    spec = manifest.properties.spec
    leaves = manifest.leaves()[spec.id].take(pa.array(places[listed]))
    for place, leaf_found in zip(listed.tolist(), located(leaves), strict=True):
        found[place] = leaf_found
    missing = np.flatnonzero(places < 0)
    if len(missing):
        locations = _new_locations(manifest, keys.take(pa.array(missing)), new)
        for place, location in zip(missing.tolist(), locations, strict=True):
            found[place] = (location, NEW)
    return found


def _new_locations(manifest: LeafListing, keys: pa.Table, new: NewLeaves) -> list[str]:
    if isinstance(manifest, HiveRoot):
        return manifest.new_leaves(keys)
    assert isinstance(manifest, Manifest)
    rows = new_partitions(manifest, keys, new.directory)
    locations: list[str] = rows.column("location").drop_null().to_pylist()
    return locations
