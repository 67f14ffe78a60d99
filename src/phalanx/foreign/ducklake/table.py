"""A DuckLake table at a snapshot: its partitionings, and plans of scans and rewrites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Unpack

import pyarrow as pa

from phalanx.arguments import RewriteArguments
from phalanx.foreign.ducklake.catalog import LakeTable, check_snapshot, read_table
from phalanx.foreign.ducklake.connection import CatalogLocation
from phalanx.foreign.ducklake.files import BYTES, FILE_ID, PATH, ROWS, read_deletes, read_files
from phalanx.foreign.ducklake.import_source import make_import_units
from phalanx.foreign.ducklake.plan import DuckLakePlan, plan_files_to_scan
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.import_plan import ImportUnit
from phalanx.planning.rewrite import RewriteDataFilesPlanner, RewritePlan, file_entries
from phalanx.planning.rewrites.options import build_rewrite_options


@dataclass(frozen=True, slots=True)
class DuckLakeTable:
    """A DuckLake table at one snapshot. The catalog is never written.

    `specs` has the partitionings by `partition_id`, and under 0 that of files without one.
    """

    _table: LakeTable
    _storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    _trusts_locations: bool = False

    @property
    def name(self) -> str:
        """The name of the table, qualified by its schema."""
        return self._table.name

    @property
    def catalog(self) -> str:
        """The location of the catalog, without a password."""
        return self._table.location.address

    @property
    def schema(self) -> pa.Schema:
        """The columns at the snapshot, with DuckLake's field ids."""
        return self._table.columns.schema.arrow

    @property
    def unreadable_columns(self) -> Mapping[str, str]:
        """The columns that `schema` omits because Arrow cannot represent their types."""
        return self._table.columns.unreadable

    @property
    def specs(self) -> Mapping[int, PartitionSpec]:
        """All partitionings by id, with DuckLake's own semantics."""
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
        """The DuckLake version of the catalog."""
        return self._table.version

    @property
    def time_parts(self) -> str:
        """How year, month, day and hour are interpreted: `calendar` or `epoch`."""
        return self._table.time_parts

    def __repr__(self) -> str:
        return f"DuckLakeTable({self.name!r}, snapshot={self.snapshot})"

    def plan(self, where: str | None = None) -> DuckLakePlan:
        """Plan the files of all partitionings that may hold matching rows."""
        return plan_files_to_scan(self._table, where)

    def plan_rewrite(
        self, where: str | None = None, **options: Unpack[RewriteArguments]
    ) -> RewritePlan:
        """Plan which files to rewrite together, without rows inlined in the catalog."""
        chosen, table = build_rewrite_options(where, options), self._table
        with table.location.open() as reader:
            check_snapshot(reader, table)
            deletes = read_deletes(reader, table)
            entries = {}
            for spec_id, spec in self.specs.items():
                files = read_files(reader, table, spec)
                names = [field.field_id for field in spec.fields]
                entries[spec_id] = file_entries(
                    files.select(names) if names else None,
                    files.column(PATH),
                    bytes=files.column(BYTES),
                    rows=files.column(ROWS),
                    positions=files.column(FILE_ID),
                    deletes=deletes.lists_for(files.column(FILE_ID)),
                )
        schema = table.columns.schema
        return RewriteDataFilesPlanner(schema, self.specs, entries, chosen).plan()

    def import_units(self) -> list[ImportUnit]:
        """Internal: return all rows in units of one file, which any process can read alone."""
        return make_import_units(
            self._table, dict(self._storage_options), trust_locations=self._trusts_locations
        )


def open_ducklake_table(
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
    """Open a table; raise `InvalidCatalog` if the catalog is damaged."""
    location = CatalogLocation.of(catalog, metadata_schema)
    found = read_table(location, table, schema, snapshot, time_parts, data_path)
    return DuckLakeTable(found, tuple(sorted((storage_options or {}).items())), trust_locations)
