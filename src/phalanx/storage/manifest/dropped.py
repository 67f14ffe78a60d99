"""Dropped partitions, which stay recorded in the manifest until a vacuum.

A row of type `phalanx_dropped`, which readers ignore, replaces the `table` row of a dropped
partition. Its leaf stays as it is: a rollback lists it again, and a writer that needs the partition
reuses the leaf without its rows. When no retained snapshot reads the leaf, vacuum removes both.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.model.schema.schema import Schema
from phalanx.model.stored_json import COUNT, TEXT, read_object
from phalanx.planning.pruning.leaf_columns import LEAF_OBJECT_ID
from phalanx.planning.pruning.leaf_columns import LEAF_VERSION as LEAF_VERSION
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.reconcile import stage_aligned
from phalanx.storage.leaf.staging import stage_emptied
from phalanx.storage.manifest.columns import READ_VERSION
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.rows import LANCE_ROW_ADDRESS, RowAddresses
from phalanx.storage.state.naming import SEPARATOR
from phalanx.storage.state.table_state import Leaves

DROP_OPERATION = "drop_partitions"
DROPPED_TYPE = "phalanx_dropped"
_PREFIX = f"__phalanx_dropped{SEPARATOR}"
_FIELDS = {"snapshot": COUNT}
_COLUMNS = ["object_id", "location", READ_VERSION, "metadata", LANCE_ROW_ADDRESS]


@dataclass(frozen=True, slots=True)
class DroppedLeaf:
    """A leaf that is no longer listed, its last version, and the snapshot that dropped it.

    `address` is that of its manifest row. `snapshot` and `address` are None before the commit.
    """

    object_id: str
    location: Location
    version: int
    snapshot: int | None = None
    address: int | None = None

    def stage_empty(self, schema: Schema) -> int:
        """Stage a version of the leaf with the namespace's schema and no rows; return it."""
        version = stage_emptied(self.location, self.version).version
        emptied_leaf = self.location.open_leaf(version)
        return int(stage_aligned(self.location, emptied_leaf, schema, is_ours=True).version)

    def count_rows(self) -> int:
        """Return how many rows the leaf had when it was dropped."""
        return int(self.location.open_leaf(self.version).count_rows())


def build_dropped_rows(tables: pa.Table, snapshot: int) -> pa.Table:
    """Build the rows that replace the `table` rows of partitions that a snapshot drops."""
    metadata = pa.scalar(json.dumps({"snapshot": snapshot}))
    names = pc.binary_join_element_wise(_PREFIX, tables.column("object_id"), "")
    columns = {
        "object_id": names,
        "object_type": pa.repeat(pa.scalar(DROPPED_TYPE), tables.num_rows),
        "metadata": pa.repeat(metadata, tables.num_rows),
    }
    for name, column in columns.items():
        tables = tables.set_column(tables.column_names.index(name), name, column)
    return tables


def read_dropped_leaves(
    manifest: Manifest, names: Iterable[str] | None = None
) -> dict[str, DroppedLeaf]:
    """Return the dropped leaves by object id: all, or those with these ids."""
    wanted = None if names is None else set(names)
    found: dict[str, DroppedLeaf] = {}
    if wanted is not None and not wanted:
        return found
    rows = _read_rows(manifest, wanted)
    for row in rows.select(_COLUMNS).to_pylist() if rows.num_rows else ():
        name = row["object_id"].removeprefix(_PREFIX)
        if wanted is None or name in wanted:
            found[name] = DroppedLeaf(
                name,
                manifest.root.leaf(row["location"]),
                row[READ_VERSION],
                read_object(row["metadata"], f"the manifest row {row['object_id']}", _FIELDS)[
                    "snapshot"
                ],
                row[LANCE_ROW_ADDRESS],
            )
    return found


# Rows of leaves that no snapshot needs, and of which some files still exist.
LEAVING_PREFIX = f"__phalanx_leaving{SEPARATOR}"


@dataclass(frozen=True, slots=True)
class LeafToRemove:
    """A leaf that vacuum has to remove, and the address of its manifest row."""

    location: Location
    address: int


def build_leaving_rows(leaves: Iterable[DroppedLeaf]) -> dict[str, str]:
    """Build the metadata of the rows of leaves to remove, by row id: where each leaf is.

    Vacuum could not find a leaf again that is outside the root or has a name of another writer.
    """
    return {
        f"{LEAVING_PREFIX}{uuid.uuid4().hex}": json.dumps({"location": each.location.uri})
        for each in leaves
    }


def read_leaving_leaves(manifest: Manifest) -> list[LeafToRemove]:
    """Return the leaves that vacuum has to remove."""
    rows = manifest.select_rows(
        "phalanx", ["object_id", "metadata"], prefix=LEAVING_PREFIX, with_row_address=True
    )
    columns = (
        rows.column(name).to_pylist() for name in ("object_id", "metadata", LANCE_ROW_ADDRESS)
    )
    return [
        LeafToRemove(manifest.root.leaf(_read_location(name, text)), address)
        for name, text, address in zip(*columns, strict=True)
    ]


def _read_location(name: str, text: str | None) -> str:
    found = read_object(text, f"the manifest row {name}", {"location": TEXT})
    return str(found["location"])


def split_by_id(leaves: Leaves, names: Collection[str] | None) -> tuple[Leaves, dict[str, int]]:
    """Split leaves into those with these object ids (None: all), and versions of the others."""
    chosen: Leaves = {}
    others: dict[str, int] = {}
    known = pa.array(names or (), pa.string())
    for number, some in leaves.items():
        is_chosen = pc.is_in(some.column(LEAF_OBJECT_ID), known)
        if names is None:
            is_chosen = pa.repeat(pa.scalar(True), some.num_rows)
        chosen[number] = some.filter(is_chosen)
        rest = some.filter(pc.invert(is_chosen))
        columns = (rest.column(name).to_pylist() for name in (LEAF_OBJECT_ID, LEAF_VERSION))
        others |= zip(*columns, strict=True)
    return chosen, others


def row_addresses_of(leaves: Iterable[DroppedLeaf]) -> RowAddresses:
    """Return the addresses of the manifest rows of these leaves."""
    return np.array([each.address for each in leaves if each.address is not None], np.uint64)


def include_dropped(manifest: Manifest) -> Manifest:
    """Return the manifest as if no partition had been dropped."""
    rows = _read_rows(manifest)
    if not rows.num_rows:
        return manifest
    names = [name.removeprefix(_PREFIX) for name in rows.column("object_id").to_pylist()]
    index = rows.column_names.index("object_id")
    return manifest.with_leaves(rows.set_column(index, "object_id", pa.array(names, pa.string())))


def _read_rows(manifest: Manifest, names: Collection[str] | None = None) -> pa.Table:
    if READ_VERSION not in manifest.dataset.schema.names:
        return pa.table({"object_id": pa.array([], pa.string())})
    ids = None if names is None else [f"{_PREFIX}{name}" for name in names]
    return manifest.select_rows(DROPPED_TYPE, ids=ids, with_row_address=True)
