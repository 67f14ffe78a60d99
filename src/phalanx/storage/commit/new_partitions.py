"""Partitions that a transaction creates, with new leaves or those of dropped partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.model.specs.partition_key import PartitionKey, read_keys
from phalanx.storage.commit.publishing import check_main, locations_of
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.leaf.leaf import LeafCreator
from phalanx.storage.manifest.dropped import DroppedLeaf, read_dropped_leaves
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.partition_rows import build_partition_rows
from phalanx.storage.state.naming import leaf_directory


@dataclass(frozen=True, slots=True)
class NewPartition:
    """An empty leaf; `dropped` is its former state if it is reused from a dropped partition.

    `main` is the newest version of its main branch.
    """

    key: PartitionKey
    key_row: pa.Table
    object_id: str
    location: Location
    version: int
    main: int
    dropped: DroppedLeaf | None


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """New partitions, and the manifest rows that list them and their namespaces."""

    leaves: list[NewPartition]
    rows: pa.Table

    @property
    def versions(self) -> dict[str, int]:
        """The version of each leaf, by object id."""
        return {each.object_id: each.version for each in self.leaves}


def create_partitions(
    base: Manifest,
    manifest: Manifest,
    missing: pa.Table,
    new: LeafCreator,
    dropped: Mapping[str, int],
) -> NewPartitions:
    """Create the leaves of missing partitions, or reuse those of dropped ones.

    `dropped` has the versions of leaves that the transaction itself dropped since `base`.
    """
    rows = build_partition_rows(manifest, missing, new.choose_directory)
    tables = rows.filter(pc.equal(rows.column("object_type"), "table"))
    names = tables.column("object_id").to_pylist()
    before = read_dropped_leaves(base, [name for name in names if name not in dropped])
    since = [name for name in names if name in dropped]
    for name, location in locations_of(base, since).items():
        before[name] = DroppedLeaf(name, location, dropped[name])
    schema, root = manifest.properties.schema, manifest.root

    def make(index: int) -> NewPartition:
        name, directory = names[index], tables.column("location")[index].as_py()
        known = before.get(name)
        if known is None:
            location = root.leaf(directory)
            version = main = new.create(location, schema)
        else:
            location = known.location
            main = check_main(base, name, location, known.version)
            version = known.stage_empty(schema)
        return NewPartition(
            keys[index], missing.slice(index, 1), name, location, version, main, known
        )

    keys = list(read_keys(missing))
    leaves = map_parallel(make, range(len(names)))
    locations = {each.object_id: each.location.uri.removeprefix(f"{root.uri}/") for each in leaves}
    return NewPartitions(leaves, _set_locations(rows, locations))


def build_leaf_rows(
    manifest: Manifest, keys: pa.Table, locations: Sequence[str]
) -> tuple[pa.Table, list[str]]:
    """Build the rows that list leaves with these keys and locations; also their object ids."""
    rows = build_partition_rows(manifest, keys, leaf_directory)
    tables = rows.filter(pc.equal(rows.column("object_type"), "table"))
    names = tables.column("object_id").to_pylist()
    return _set_locations(rows, dict(zip(names, locations, strict=True))), names


def _set_locations(rows: pa.Table, locations: Mapping[str, str]) -> pa.Table:
    """Set the location of each table row."""
    column = [locations.get(name) for name in rows.column("object_id").to_pylist()]
    where = rows.column_names.index("location")
    return rows.set_column(where, "location", pa.array(column, pa.string()))
