"""Tables of DuckLakes: `phalanx.ducklake.open(catalog, table)` plans what a query would read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from phalanx.foreign.ducklake.plan import DuckLakePlan, PlannedFile
from phalanx.foreign.ducklake.table import DuckLakeTable, open_table

__all__ = ["DuckLakePlan", "DuckLakeTable", "PlannedFile", "open"]


def open(
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
    """A table of a DuckLake, at its newest snapshot or at another.

    `catalog` is a DuckDB or SQLite file or a connection text of PostgreSQL, with DuckLake's own
    prefixes (`ducklake:sqlite:…`, `ducklake:postgres:dbname=…`) or without. The table is in schema
    `main` unless `schema`, or `table` as `schema.table`, names another.

    `snapshot` is an id or a time. `time_parts` says whether the partitionings `year`, `month`,
    `day` and `hour` hold calendar parts (`"calendar"`), as all known versions of DuckLake write
    them, or counts since 1970 (`"epoch"`), as its document has them; by default the catalog's
    version decides. `data_path` replaces the folder of files that the catalog names,
    `metadata_schema` the schema in which the database keeps the catalog's tables. Files outside of
    that folder are planned, and read by an import only with `trust_locations=True`.
    """
    return open_table(
        catalog,
        table,
        schema=schema,
        snapshot=snapshot,
        time_parts=time_parts,
        data_path=data_path,
        metadata_schema=metadata_schema,
        storage_options=storage_options,
        trust_locations=trust_locations,
    )
