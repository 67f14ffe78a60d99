"""Partitions that were dropped: what the manifest says of them until a vacuum.

A dropped partition is a row of another type in place of its table's row, which readers pass over.
Its leaf is as it was: a rollback lists it again, and a writer that needs the partition goes on
with the same leaf, without its rows. When no retained snapshot reads the leaf, vacuum removes both.
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
from phalanx.planning.pruning.scan_plan import OBJECT_ID
from phalanx.planning.pruning.scan_plan import READ_VERSION as LEAF_VERSION
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.reconcile import aligned
from phalanx.storage.leaf.staging import emptied
from phalanx.storage.manifest.columns import READ_VERSION
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.rows import ADDRESS, Addresses
from phalanx.storage.state.naming import SEPARATOR
from phalanx.storage.state.table_state import Leaves

OPERATION = "drop_partitions"
DROPPED = "phalanx_dropped"
_PREFIX = f"__phalanx_dropped{SEPARATOR}"
# More than these are not looked for by their ids.
_FEW = 1000
_FACTS = {"snapshot": COUNT}
_TOLD = ["object_id", "location", READ_VERSION, "metadata", ADDRESS]


@dataclass(frozen=True, slots=True)
class DroppedLeaf:
    """A leaf that is not listed any more: the version that it had, and by which snapshot it went.

    `address` is that of its row in the manifest; both are None before the commit.
    """

    object_id: str
    location: Location
    version: int
    snapshot: int | None = None
    address: int | None = None

    def without_rows(self, schema: Schema) -> int:
        """A version of the leaf with the namespace's schema, and no rows."""
        version = emptied(self.location, self.version).version
        emptied_leaf = self.location.open_leaf(version)
        return int(aligned(self.location, emptied_leaf, schema, is_ours=True).version)

    def count_rows(self) -> int:
        """How many rows it had."""
        return int(self.location.open_leaf(self.version).count_rows())


def rows_of_dropped(tables: pa.Table, snapshot: int) -> pa.Table:
    """The rows that stand for those of some tables, after a snapshot has dropped them."""
    said = pa.scalar(json.dumps({"snapshot": snapshot}))
    names = pc.binary_join_element_wise(_PREFIX, tables.column("object_id"), "")
    columns = {
        "object_id": names,
        "object_type": pa.repeat(pa.scalar(DROPPED), tables.num_rows),
        "metadata": pa.repeat(said, tables.num_rows),
    }
    for name, column in columns.items():
        tables = tables.set_column(tables.column_names.index(name), name, column)
    return tables


def dropped_leaves(
    manifest: Manifest, names: Iterable[str] | None = None
) -> dict[str, DroppedLeaf]:
    """The leaves (of these) that were dropped, by object id."""
    wanted = None if names is None else set(names)
    found: dict[str, DroppedLeaf] = {}
    if wanted is not None and not wanted:
        return found
    rows = _rows(manifest, wanted)
    for row in rows.select(_TOLD).to_pylist() if rows.num_rows else ():
        name = row["object_id"].removeprefix(_PREFIX)
        if wanted is None or name in wanted:
            found[name] = DroppedLeaf(
                name,
                manifest.root.child(row["location"]),
                row[READ_VERSION],
                read_object(row["metadata"], f"the manifest row {row['object_id']}", _FACTS)[
                    "snapshot"
                ],
                row[ADDRESS],
            )
    return found


# Leaves that are neither listed nor needed, and whose files are not all gone yet.
LEAVING = f"__phalanx_leaving{SEPARATOR}"


@dataclass(frozen=True, slots=True)
class LeavingLeaf:
    """A leaf that vacuum has to remove, and the address of the row that says so."""

    location: Location
    address: int


def rows_of_leaving(leaves: Iterable[DroppedLeaf]) -> dict[str, str]:
    """What the rows of leaves that are to be removed say, by their ids: where each is.

    Nothing else remembers a leaf that is not in the root under a name that Phalanx gives.
    """
    return {
        f"{LEAVING}{uuid.uuid4().hex}": json.dumps({"location": each.location.uri})
        for each in leaves
    }


def leaving_leaves(manifest: Manifest) -> list[LeavingLeaf]:
    """The leaves that vacuum has to remove."""
    rows = manifest.table(
        "object_type = 'phalanx'", ["object_id", "metadata"], with_row_address=True
    )
    said = (rows.column(name).to_pylist() for name in ("object_id", "metadata", ADDRESS))
    return [
        LeavingLeaf(manifest.root.child(_place(name, text)), address)
        for name, text, address in zip(*said, strict=True)
        if name.startswith(LEAVING)
    ]


def _place(name: str, text: str | None) -> str:
    found = read_object(text, f"the manifest row {name}", {"location": TEXT})
    return str(found["location"])


def parted(leaves: Leaves, names: Collection[str] | None) -> tuple[Leaves, dict[str, int]]:
    """The leaves with one of these object ids (None: all), and the versions of the others."""
    chosen: Leaves = {}
    others: dict[str, int] = {}
    known = pa.array(names or (), pa.string())
    for number, some in leaves.items():
        is_chosen = pc.is_in(some.column(OBJECT_ID), known)
        if names is None:
            is_chosen = pa.repeat(pa.scalar(True), some.num_rows)
        chosen[number] = some.filter(is_chosen)
        rest = some.filter(pc.invert(is_chosen))
        columns = (rest.column(name).to_pylist() for name in (OBJECT_ID, LEAF_VERSION))
        others |= zip(*columns, strict=True)
    return chosen, others


def addresses_of(leaves: Iterable[DroppedLeaf]) -> Addresses:
    """Where the manifest has the rows of these."""
    return np.array([each.address for each in leaves if each.address is not None], np.uint64)


def with_dropped(manifest: Manifest) -> Manifest:
    """The manifest as it would be if nothing had been dropped."""
    rows = _rows(manifest)
    if not rows.num_rows:
        return manifest
    names = [name.removeprefix(_PREFIX) for name in rows.column("object_id").to_pylist()]
    place = rows.column_names.index("object_id")
    return manifest.with_leaves(rows.set_column(place, "object_id", pa.array(names, pa.string())))


def _rows(manifest: Manifest, names: Collection[str] | None = None) -> pa.Table:
    if READ_VERSION not in manifest.dataset.schema.names:
        return pa.table({"object_id": pa.array([], pa.string())})
    condition = f"object_type = '{DROPPED}'"
    if names is not None and len(names) <= _FEW:
        ids = ", ".join("'" + f"{_PREFIX}{name}".replace("'", "''") + "'" for name in names)
        condition += f" AND object_id IN ({ids})"
    return manifest.table(condition, with_row_address=True)
