"""DuckLake tables: plans of what a query would read, and of what should be rewritten.

>>> lake = phalanx.ducklake.open("lake.ducklake", "sales.orders")
>>> print(lake.plan("order_id = 42"))
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from phalanx.arguments import TimeParts
from phalanx.foreign.ducklake.inlined import InlinedRows
from phalanx.foreign.ducklake.plan import DuckLakePlan, PlannedFile
from phalanx.foreign.ducklake.table import DuckLakeTable, open_ducklake_table

__all__ = ["DuckLakePlan", "DuckLakeTable", "InlinedRows", "PlannedFile", "open"]


def open(
    catalog: str | Path,
    table: str,
    *,
    schema: str | None = None,
    snapshot: int | str | datetime | None = None,
    time_parts: TimeParts | None = None,
    data_path: str | None = None,
    metadata_schema: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    trust_locations: bool = False,
) -> DuckLakeTable:
    """Open a table of a DuckLake at a snapshot.

    Args:
        catalog: A DuckDB or SQLite file, or a connection text of PostgreSQL, with DuckLake's
            prefixes (`ducklake:sqlite:…`, `ducklake:postgres:dbname=…`) or without.
        table: The name, as `table` or `schema.table`.
        schema: The schema of the table; None: "main".
        snapshot: The id, or a time; None: the newest.
        time_parts: Whether `year`, `month`, `day` and `hour` partitions hold calendar parts
            ("calendar"), as all known versions of DuckLake write them, or counts since 1970
            ("epoch"), as its specification says; None: by the catalog's version.
        data_path: The folder of the files, instead of the one that the catalog names.
        metadata_schema: The database schema of the catalog's own tables.
        storage_options: The options of the object store of the files.
        trust_locations: Let an import read files outside of the folder, too.

    Returns:
        The table: `specs`, `plan(where)` and `plan_rewrite(where)`.

    Raises:
        InvalidCatalog: The catalog is damaged or too new, or has no such table or snapshot.
        InvalidArgument: `time_parts` is none of the above.
    """
    return open_ducklake_table(
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
