"""Creating and opening tables, in each layout."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import pyarrow as pa

from phalanx.arguments import Layout, Mode
from phalanx.errors import InvalidArgument, NotPartitioned
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.hive_properties import HiveProperties
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.stored_json import TEXT, check_object, parse_json
from phalanx.storage.commit import creation
from phalanx.storage.hive import creation as hive_creation
from phalanx.storage.hive.root import open_table_state
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.leaf import check_storable
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.naming import generate_salt
from phalanx.storage.state.properties import (
    EXPRESSIONS_LAYOUT,
    NAMESPACE_LAYOUT,
    Properties,
    parse_properties,
)
from phalanx.storage.state.table_state import TableState
from phalanx.table.jobs.write_job import APPEND, WriteJob
from phalanx.table.table import Table
from phalanx.table.transactions import strong_mode

LAYOUTS: tuple[Layout, ...] = get_args(Layout)


def create(
    uri: str | os.PathLike[str],
    schema: pa.Schema,
    partition_by: PartitionBy,
    *,
    transaction: Mode = "weak",
    layout: Layout = "namespace",
    storage_options: dict[str, str] | None = None,
    checksums: bool = False,
) -> Table:
    """Create a partitioned namespace.

    Args:
        uri: The path or URI. There must be no table yet.
        schema: The columns; each gets a `lance:field_id`, unless all have one.
        partition_by: A list whose items are column names (identity) or made by `identity`, `year`,
            `month`, `day`, `hour`, `bucket`, `multi_bucket`, `truncate` or `expression`; or the
            same as text: "year(ts), bucket(16, id), country".
        transaction: "weak": a write commits each partition by itself; "strong": one snapshot.
        layout: "namespace", the newest format; "expressions", a draft of it that stores every
            partition field as an expression, with other buckets (`md5_int`); or "hive", folders
            named `key=value`, in weak mode only.
        storage_options: The options of the object store, such as credentials.
        checksums: Record a checksum of each file, for `Table.verify`; see `Table.set_checksums`
            for the cost.

    Returns:
        The new table.

    Raises:
        InvalidSchema: The schema cannot be stored.
        InvalidSpec: `partition_by` does not fit the schema, or breaks a rule of the format.
        InvalidArgument: `transaction` or `layout` is none of the above, or they do not go together.
        PhalanxError: There is a table already.

    Example:
        >>> events = phalanx.create(uri, schema, ["country", phalanx.bucket("id", 16)])
        >>> events
        <phalanx.Table ... by country, bucket(16, id)>
    """
    if layout not in LAYOUTS:
        raise InvalidArgument(
            f"Cannot create a table with layout={layout!r}: expected {NAMESPACE_LAYOUT!r}, the "
            f"newest format, or {EXPRESSIONS_LAYOUT!r} or 'hive', drafts before it."
        )
    location = Location.of(uri, storage_options)
    if layout == "hive" and checksums:
        raise InvalidArgument(
            f"Cannot create {location} with checksums: the hive layout has none. Use "
            "layout='namespace', or leave them out."
        )
    if layout == "hive":
        return Table(_create_hive(location, schema, partition_by, transaction))
    properties = _build_properties(location, schema, partition_by, transaction, layout, checksums)
    with translate_errors(f"create {location}"):
        manifest = creation.create_namespace(location, properties)
        return Table(strong_mode.complete_change(manifest) if transaction == "strong" else manifest)


def create_for_rows(
    location: Location, schema: pa.Schema, partition_by: PartitionBy, transaction: str
) -> Table:
    """Create a table of the newest format, whose first snapshot adds its first rows."""
    properties = _build_properties(location, schema, partition_by, transaction)
    return Table(creation.create_namespace(location, properties, with_head=transaction == "strong"))


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table of the newest format that is created with its first rows."""

    location: Location
    properties: Properties

    @classmethod
    def of(
        cls, location: Location, schema: pa.Schema, partition_by: PartitionBy, transaction: str
    ) -> NewTable:
        """Make the table with these columns, partitions and mode."""
        return cls(location, _build_properties(location, schema, partition_by, transaction))

    @classmethod
    def from_json(cls, location: Location, text: str) -> NewTable:
        """Read what `to_json` wrote."""
        what = f"the properties of the new table {location}"
        found = parse_json(text, what)
        check_object(found, what, dict.fromkeys(found if isinstance(found, dict) else (), TEXT))
        properties = parse_properties(found, location.uri)
        check_storable(properties.schema)
        return cls(location, properties)

    def to_json(self) -> str:
        """Return the properties as JSON."""
        return json.dumps(self.properties.to_metadata())

    @property
    def table(self) -> Table:
        """The table as it will be, without rows; in memory only."""
        staged = creation.build_manifest(self.location, self.properties)
        return Table(Manifest(self.location, staged))

    def begin(
        self, operation: str = APPEND, where: str = "true", marker: str | None = None
    ) -> WriteJob:
        """Begin the write of the first rows, whose commit creates the table."""
        return WriteJob.begin_new(self.location, self.properties, operation, where, marker)

    def create(self) -> Table:
        """Create it without rows."""
        is_strong = self.properties.mode == "strong"
        with creation.stage_namespace(
            self.location, self.properties, with_head=is_strong
        ) as manifest:
            strong_mode.commit_first_snapshot(manifest)
        return Table(Manifest.open(self.location))

    @property
    def exists(self) -> bool:
        """Whether this table was created, and no other one at its location."""
        try:
            found = Manifest.open(self.location)
        except NotPartitioned:
            return False
        return found.properties.salt == self.properties.salt


def _build_properties(
    location: Location,
    schema: pa.Schema,
    partition_by: PartitionBy,
    transaction: str,
    layout: str = NAMESPACE_LAYOUT,
    checksums: bool = False,
) -> Properties:
    if transaction not in ("weak", "strong"):
        raise InvalidArgument(
            f"Cannot create a table with transaction={transaction!r}: expected 'weak' or 'strong'."
        )
    numbered = Schema.of(schema)
    check_storable(numbered)
    spec = build_next_spec(partition_by, numbered, {}, is_draft=layout == EXPRESSIONS_LAYOUT)
    hive_creation.check_not_hive(location)
    return Properties(
        numbered,
        {spec.id: spec},
        transaction,
        generate_salt(),
        0,
        None,
        layout,
        checksums=checksums,
    )


def _create_hive(
    location: Location, schema: pa.Schema, partition_by: PartitionBy, transaction: str
) -> TableState:
    if transaction != "weak":
        raise InvalidArgument(
            f"Cannot create {location} with transaction={transaction!r}: the hive layout has weak "
            "mode only. Use layout='namespace', or leave it out."
        )
    properties = HiveProperties.of(schema, partition_by)
    check_storable(properties.schema)
    return hive_creation.create_hive_table(location, properties)


def open(
    uri: str | os.PathLike[str],
    *,
    storage_options: dict[str, str] | None = None,
    trust_locations: bool = False,
    properties: Mapping[str, str] | None = None,
) -> Table:
    """Open a partitioned namespace, in any layout.

    Args:
        uri: The path or URI.
        storage_options: The options of the object store, such as credentials.
        trust_locations: Also read partitions outside of the table's folder that were not adopted;
            the writer of the manifest then decides what is read. They are never written or removed.
        properties: Properties of the hive layout (`lance.partitioning.…`) to use instead of those
            stored.

    Returns:
        The table.

    Raises:
        NotPartitioned: There is no partitioned namespace.
        InvalidManifest: It breaks the format, or a newer version of Phalanx wrote it.

    Example:
        >>> phalanx.open(uri).scan().count_rows()
        3
    """
    location = Location.of(uri, storage_options, trust_locations)
    with translate_errors(f"open {location}"):
        return Table(open_table_state(location, properties))
