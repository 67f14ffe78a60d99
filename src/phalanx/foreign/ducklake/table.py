"""A table of a DuckLake at a snapshot: what it is partitioned by, and what a query reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from phalanx.foreign.ducklake.catalog import LakeTable, check_snapshot, read_table
from phalanx.foreign.ducklake.connection import CatalogLocation
from phalanx.foreign.ducklake.files import BYTES, FILE_ID, PATH, ROWS, read_deletes, read_files
from phalanx.foreign.ducklake.import_source import import_units
from phalanx.foreign.ducklake.plan import DuckLakePlan, plan_scan
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.import_plan import ImportUnit
from phalanx.planning.rewrite import RewriteDataFilesPlanner, RewritePlan, file_entries
from phalanx.planning.rewrites.options import rewrite_options


@dataclass(frozen=True, slots=True)
class DuckLakeTable:
    """A table of a DuckLake at one snapshot; the catalog is read, and never written.

    `specs` has the partitionings by their `partition_id`, and under 0 that of files without one.
    """

    _table: LakeTable
    _storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    _trusts_locations: bool = False

    @property
    def name(self) -> str:
        """The table's name, after that of its schema."""
        return self._table.name

    @property
    def catalog(self) -> str:
        """Where the catalog is, without a password."""
        return self._table.location.place

    @property
    def schema(self) -> pa.Schema:
        """The columns at the snapshot, with DuckLake's ids."""
        return self._table.columns.schema.arrow

    @property
    def unreadable_columns(self) -> Mapping[str, str]:
        """Columns of types that Arrow has no form of, which `schema` leaves out."""
        return self._table.columns.unreadable

    @property
    def specs(self) -> Mapping[int, PartitionSpec]:
        """All partitionings by id, with DuckLake's own meaning."""
        return self._table.partitionings.specs

    @property
    def spec(self) -> PartitionSpec:
        """The partitioning of new rows at the snapshot."""
        return self.specs[self._table.partitionings.newest]

    @property
    def snapshot(self) -> int:
        """The snapshot that the table was opened at."""
        return self._table.snapshot

    @property
    def version(self) -> str:
        """The version of DuckLake's format that the catalog has."""
        return self._table.version

    @property
    def time_parts(self) -> str:
        """What year, month, day and hour are taken for: `calendar` or `epoch`."""
        return self._table.time_parts

    def __repr__(self) -> str:
        return f"DuckLakeTable({self.name!r}, snapshot={self.snapshot})"

    def plan(self, where: str | None = None) -> DuckLakePlan:
        """The files that can hold a row which matches, of all partitionings."""
        return plan_scan(self._table, where)

    def plan_rewrite(self, where: str | None = None, **options: Any) -> RewritePlan:
        """Which files are worth rewriting together; rows inlined in the catalog are in none."""
        chosen, table = rewrite_options(where, options), self._table
        with table.location.reading() as reading:
            check_snapshot(reading, table)
            deletes = read_deletes(reading, table)
            entries = {}
            for spec_id, spec in self.specs.items():
                files = read_files(reading, table, spec)
                names = [field.field_id for field in spec.fields]
                entries[spec_id] = file_entries(
                    files.select(names) if names else None,
                    files.column(PATH),
                    bytes=files.column(BYTES),
                    rows=files.column(ROWS),
                    positions=files.column(FILE_ID),
                    deletes=deletes.of(files.column(FILE_ID)),
                )
        schema = table.columns.schema
        return RewriteDataFilesPlanner(schema, self.specs, entries, chosen).plan()

    def import_units(self) -> list[ImportUnit]:
        """All rows in units of one file each, which any process reads without the catalog."""
        return import_units(
            self._table, dict(self._storage_options), trust_locations=self._trusts_locations
        )


def open_table(
    catalog: str | Path,
    table: str,
    *,
    schema: str | None = None,
    snapshot: int | str | datetime | None = None,
    time_parts: str | None = None,
    data_path: str | None = None,
    metadata_schema: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    trust_locations: bool = False,
) -> DuckLakeTable:
    """Open a table; `InvalidCatalog` says where the catalog is not what it should be."""
    location = CatalogLocation.of(catalog, metadata_schema)
    found = read_table(location, table, schema, snapshot, time_parts, data_path)
    return DuckLakeTable(found, tuple(sorted((storage_options or {}).items())), trust_locations)
