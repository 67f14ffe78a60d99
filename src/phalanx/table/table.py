"""The table that a user holds: one logical table, made of many Lance tables."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from phalanx.errors import SchemaMismatch
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.specs.spec import PartitionSpec
from phalanx.storage.lance.failures import tells
from phalanx.table import evolution as property_changes
from phalanx.table.past import Past
from phalanx.table.reads import Reads
from phalanx.table.upkeep import Upkeep
from phalanx.table.writes import Writes


class Table(Reads, Writes, Upkeep, Past):
    """A partitioned namespace, as one table. Every call sees what is stored at its time."""

    @tells("evolve")
    def evolve(self, partition_by: PartitionBy) -> PartitionSpec:
        """Write under another spec from now on; what is stored stays as it is."""
        self._manifest, spec = property_changes.evolve(self._writable(), partition_by)
        return spec

    def add_column(self, field: pa.Field) -> None:
        """Add a nullable column, NULL in every row there is."""
        if not isinstance(field, pa.Field):
            raise SchemaMismatch(f"Cannot add {field!r}: expected pa.field(name, type).")
        self._change(
            "add_column",
            {"name": field.name, "type": str(field.type)},
            lambda properties: property_changes.added(properties, field),
        )

    def drop_column(self, name: str) -> None:
        """Remove a column, which the newest spec must not need."""
        self._change(
            "drop_column",
            {"name": name},
            lambda properties: property_changes.dropped(properties, name),
        )

    def rename_column(self, old: str, new: str) -> None:
        """Give a column another name; partitions do not change."""
        self._change(
            "rename_column",
            {"name": old, "new": new},
            lambda properties: property_changes.renamed(properties, old, new),
        )

    def promote_column(self, name: str, type: pa.DataType) -> None:
        """Give a column a wider type; partitions do not change."""
        self._change(
            "promote_column",
            {"name": str(name), "type": str(type)},
            lambda properties: property_changes.promoted(properties, name, type),
        )

    @tells("change the schema of")
    def _change(
        self, name: str, arguments: Mapping[str, str], change: property_changes.SchemaChange
    ) -> None:
        self._manifest = property_changes.change_schema(self._unpinned(), name, arguments, change)
