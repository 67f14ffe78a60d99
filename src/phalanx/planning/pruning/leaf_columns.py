"""The columns of the Arrow tables that list leaves: these, then one for each partition field."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

# Field ids have no dot, so these names cannot collide with them.
LEAF_OBJECT_ID, LEAF_LOCATION, LEAF_VERSION = ".object_id", ".location", ".read_version"
# The address of the leaf's row in the manifest.
MANIFEST_ROW = ".row_address"
LEAF_COLUMNS = (LEAF_OBJECT_ID, LEAF_LOCATION, LEAF_VERSION, MANIFEST_ROW)


def list_leaf_versions(leaves: pa.Table) -> Iterator[tuple[str, int | None]]:
    """Yield the location of each leaf and the version to read (None: the newest)."""
    locations, versions = leaves.column(LEAF_LOCATION), leaves.column(LEAF_VERSION)
    return zip(locations.to_pylist(), versions.to_pylist(), strict=True)
