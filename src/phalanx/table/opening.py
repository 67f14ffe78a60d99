"""Tables made and opened: where one is, and in which layout."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from phalanx.errors import NotPartitioned, PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import next_spec
from phalanx.model.specs.hive_properties import HiveProperties
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.stored_json import TEXT, check_object, parse
from phalanx.storage.commit import creation
from phalanx.storage.hive import creation as hive_creation
from phalanx.storage.hive.root import open_root
from phalanx.storage.lance.failures import told
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.leaf import check_storable
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.naming import new_salt
from phalanx.storage.state.properties import EXPRESSIONS, NAMESPACE, Properties, properties_of
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.jobs.write_job import APPEND, WriteJob
from phalanx.table.table import Table
from phalanx.table.transactions import strong_mode as strong

LAYOUTS = (NAMESPACE, EXPRESSIONS, "hive")


def create(
    uri: str | os.PathLike[str],
    schema: pa.Schema,
    partition_by: PartitionBy,
    *,
    transaction: str = "weak",
    layout: str = "namespace",
    storage_options: dict[str, str] | None = None,
    checksums: bool = False,
) -> Table:
    """Make a partitioned namespace; an existing one is an error.

    With `layout="expressions"` it is one of the draft in which every partition field is stored as
    an expression; its buckets go by `md5_int`, and are never those of the newest format.
    `layout="hive"` makes one of `key=value` folders instead, which has weak mode only. With
    `checksums` it is written down what each file holds, for `Table.verify` to compare; see
    `Table.set_checksums` for what that costs.
    """
    if layout not in LAYOUTS:
        raise PhalanxError(
            f"Cannot create a table with layout={layout!r}: expected {NAMESPACE!r}, the newest "
            f"format, or {EXPRESSIONS!r} or 'hive', drafts before it."
        )
    location = Location.of(uri, storage_options)
    if layout == "hive" and checksums:
        raise PhalanxError(
            f"Cannot create {location} with checksums: the hive layout has none. Use "
            "layout='namespace', or leave them out."
        )
    if layout == "hive":
        return Table(_create_hive(location, schema, partition_by, transaction))
    properties = _properties(location, schema, partition_by, transaction, layout, checksums)
    with told(f"create {location}"):
        manifest = creation.create(location, properties)
        return Table(strong.complete(manifest) if transaction == "strong" else manifest)


def create_for_rows(
    location: Location, schema: pa.Schema, partition_by: PartitionBy, transaction: str
) -> Table:
    """A table of the newest format, whose first snapshot is that of the rows that follow."""
    properties = _properties(location, schema, partition_by, transaction)
    return Table(creation.create(location, properties, with_head=transaction == "strong"))


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table of the newest format that is not there yet: it is made with its first rows."""

    location: Location
    properties: Properties

    @classmethod
    def of(
        cls, location: Location, schema: pa.Schema, partition_by: PartitionBy, transaction: str
    ) -> NewTable:
        """The table with these columns, partitions and mode."""
        return cls(location, _properties(location, schema, partition_by, transaction))

    @classmethod
    def from_json(cls, location: Location, text: str) -> NewTable:
        """The table, as `to_json` wrote it down."""
        what = f"the properties of the new table {location}"
        said = parse(text, what)
        check_object(said, what, dict.fromkeys(said if isinstance(said, dict) else (), TEXT))
        properties = properties_of(said, location.uri)
        check_storable(properties.schema)
        return cls(location, properties)

    def to_json(self) -> str:
        """Its properties."""
        return json.dumps(self.properties.to_metadata())

    @property
    def table(self) -> Table:
        """The table without rows as it will be, which nobody else sees."""
        staged = creation.staged_manifest(self.location, self.properties)
        return Table(Manifest(self.location, staged))

    def begin(
        self, operation: str = APPEND, where: str = "true", marker: str | None = None
    ) -> WriteJob:
        """A write of the first rows; the table appears when they are committed."""
        return WriteJob.begin_new(self.location, self.properties, operation, where, marker)

    def create(self) -> Table:
        """Make it without rows."""
        is_strong = self.properties.mode == "strong"
        with creation.being_created(
            self.location, self.properties, with_head=is_strong
        ) as manifest:
            strong.begin_history(manifest)
        return Table(Manifest.open(self.location))

    @property
    def is_there(self) -> bool:
        """Whether it was made: this table, and no other in its place."""
        try:
            found = Manifest.open(self.location)
        except NotPartitioned:
            return False
        return found.properties.salt == self.properties.salt


def _properties(
    location: Location,
    schema: pa.Schema,
    partition_by: PartitionBy,
    transaction: str,
    layout: str = NAMESPACE,
    checksums: bool = False,
) -> Properties:
    if transaction not in ("weak", "strong"):
        raise PhalanxError(
            f"Cannot create a table with transaction={transaction!r}: expected 'weak' or 'strong'."
        )
    numbered = Schema.of(schema)
    check_storable(numbered)
    spec = next_spec(partition_by, numbered, {}, drafted=layout == EXPRESSIONS)
    hive_creation.check_not_hive(location)
    return Properties(
        numbered, {spec.id: spec}, transaction, new_salt(), 0, None, layout, checksums=checksums
    )


def _create_hive(
    location: Location, schema: pa.Schema, partition_by: PartitionBy, transaction: str
) -> LeafListing:
    if transaction != "weak":
        raise PhalanxError(
            f"Cannot create {location} with transaction={transaction!r}: the hive layout has weak "
            "mode only. Use layout='namespace', or leave it out."
        )
    properties = HiveProperties.of(schema, partition_by)
    check_storable(properties.schema)
    return hive_creation.create(location, properties)


def open(
    uri: str | os.PathLike[str],
    *,
    storage_options: dict[str, str] | None = None,
    trust_locations: bool = False,
    properties: Mapping[str, str] | None = None,
) -> Table:
    """The partitioned namespace at a path or URI, in whichever layout it is.

    Partitions outside of the table's folder, which another writer's manifest may list, are opened
    only if `adopt` has made them the table's, or to be read with `trust_locations`: whoever wrote
    the manifest then says what is read. They are never written or removed for that.

    `properties` are those of the hive layout (`lance.partitioning.…`) that count instead of what
    is stored there.
    """
    location = Location.of(uri, storage_options, trust_locations)
    with told(f"open {location}"):
        return Table(open_root(location, properties))
