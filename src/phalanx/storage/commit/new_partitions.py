"""Partitions that a transaction makes: leaves of its own, or those of partitions once dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.model.specs.partition_key import PartitionKey, keys_of
from phalanx.storage.commit.publishing import check_main, locations_of
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.manifest.dropped import DroppedLeaf, dropped_leaves
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.partition_rows import new_partitions
from phalanx.storage.new_leaves import NewLeaves
from phalanx.storage.state.naming import leaf_directory


@dataclass(frozen=True, slots=True)
class MadePartition:
    """A leaf without rows; `before` tells what it was when it was dropped, if it was.

    `main` is the version that its main branch shows.
    """

    key: PartitionKey
    key_row: pa.Table
    object_id: str
    location: Location
    version: int
    main: int
    before: DroppedLeaf | None


@dataclass(frozen=True, slots=True)
class MadePartitions:
    """Leaves, and the rows that list them and their namespaces in a manifest."""

    leaves: list[MadePartition]
    rows: pa.Table

    @property
    def versions(self) -> dict[str, int]:
        """The version of each leaf, by object id."""
        return {each.object_id: each.version for each in self.leaves}


def made_partitions(
    base: Manifest,
    manifest: Manifest,
    missing: pa.Table,
    new: NewLeaves,
    dropped: Mapping[str, int],
) -> MadePartitions:
    """Make the leaves that a manifest lacks, and go on with those that were dropped.

    `dropped` has the versions of those that the manifest lacks since the base, where they were.
    """
    rows = new_partitions(manifest, missing, new.directory)
    tables = rows.filter(pc.equal(rows.column("object_type"), "table"))
    names = tables.column("object_id").to_pylist()
    before = dropped_leaves(base, [name for name in names if name not in dropped])
    since = [name for name in names if name in dropped]
    for name, location in locations_of(base, since).items():
        before[name] = DroppedLeaf(name, location, dropped[name])
    schema, root = manifest.properties.schema, manifest.root

    def make(place: int) -> MadePartition:
        name, directory = names[place], tables.column("location")[place].as_py()
        known = before.get(name)
        if known is None:
            location = root.child(directory)
            version = main = new.create(location, schema)
        else:
            location = known.location
            main = check_main(base, name, location, known.version)
            version = known.without_rows(schema)
        return MadePartition(
            keys[place], missing.slice(place, 1), name, location, version, main, known
        )

    keys = list(keys_of(missing))
    leaves = in_parallel(make, range(len(names)))
    places = {each.object_id: each.location.uri.removeprefix(f"{root.uri}/") for each in leaves}
    return MadePartitions(leaves, _located(rows, places))


def rows_of_made(
    manifest: Manifest, keys: pa.Table, places: Sequence[str]
) -> tuple[pa.Table, list[str]]:
    """The rows that list leaves at these places, and their object ids, by their partition keys."""
    rows = new_partitions(manifest, keys, leaf_directory)
    tables = rows.filter(pc.equal(rows.column("object_type"), "table"))
    names = tables.column("object_id").to_pylist()
    return _located(rows, dict(zip(names, places, strict=True))), names


def _located(rows: pa.Table, places: Mapping[str, str]) -> pa.Table:
    """The rows of tables, each at its place."""
    column = [places.get(name) for name in rows.column("object_id").to_pylist()]
    where = rows.column_names.index("location")
    return rows.set_column(where, "location", pa.array(column, pa.string()))
