"""The same transactions on Phalanx, DuckLake and Iceberg: tables of events by tenant."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Protocol

import duckdb
import duckdb_extension_ducklake
import duckdb_extension_sqlite_scanner
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy.exc import OperationalError

import phalanx
from phalanx.errors import CommitConflict

_PARTITIONED_BY = "tenant"
# pyiceberg warns of every lost race. The benchmark measures its cost.
logging.getLogger("pyiceberg").setLevel(logging.ERROR)


class Refused(Exception):
    """Other writers committed first too often. A repetition of the append may succeed."""


class Lake(Protocol):
    """A table to which rows are appended; a schema creates it."""

    def append(self, rows: pa.Table) -> None:
        """Append the rows in one transaction. If it raises `Refused`, nothing was written."""


class StrongPhalanx:
    """A Phalanx table in strong mode."""

    def __init__(self, folder: Path, schema: pa.Schema | None = None) -> None:
        if schema is not None:
            phalanx.create(folder, schema, _PARTITIONED_BY, transaction="strong")
        self._table = phalanx.open(folder)

    def append(self, rows: pa.Table) -> None:
        """Append the rows in one transaction."""
        try:
            self._table.append(rows)
        except CommitConflict as error:
            raise Refused(str(error)) from error


class DuckLake:
    """A table in a DuckLake whose catalog is a SQLite database."""

    def __init__(self, folder: Path, schema: pa.Schema | None = None) -> None:
        self._connection = duckdb.connect()
        for module in (duckdb_extension_sqlite_scanner, duckdb_extension_ducklake):
            (extension,) = Path(module.__file__).parent.glob("extensions/*/*.duckdb_extension")
            self._connection.execute(f"LOAD '{extension}'")
        # Without a write-ahead log even opening the catalog fails while another process writes.
        # Rows stay in the catalog unless inlining is off.
        self._connection.execute(
            f"ATTACH 'ducklake:sqlite:{folder}.sqlite' AS lake (DATA_PATH '{folder}', "
            "DATA_INLINING_ROW_LIMIT 0, META_JOURNAL_MODE 'WAL', META_BUSY_TIMEOUT 5000)"
        )
        self._connection.execute("USE lake")
        self._connection.execute("SET ducklake_max_retry_count = 100")
        self._connection.execute("SET ducklake_retry_wait_ms = 10")
        if schema is not None:
            self._connection.register("sample", schema.empty_table())
            self._connection.execute("CREATE TABLE events AS SELECT * FROM sample")
            self._connection.execute(f"ALTER TABLE events SET PARTITIONED BY ({_PARTITIONED_BY})")

    def append(self, rows: pa.Table) -> None:
        """Append the rows in one transaction."""
        self._connection.register("arrived", rows)
        try:
            self._connection.execute("INSERT INTO events SELECT * FROM arrived")
        except duckdb.Error as error:
            # DuckLake retries after conflicts, but not if the catalog is locked.
            if "database is locked" not in str(error) and "conflict" not in str(error).lower():
                raise
            raise Refused(str(error)) from error


class Iceberg:
    """An Iceberg table that pyiceberg writes, whose catalog is a SQLite database."""

    def __init__(self, folder: Path, schema: pa.Schema | None = None) -> None:
        catalog = SqlCatalog(
            "bench", uri=f"sqlite:///{folder}.sqlite", warehouse=f"file://{folder}"
        )
        if schema is not None:
            catalog.create_namespace("bench")
            # It gives up after a hundred lost races.
            patience = {"commit.retry.num-retries": "100", "commit.retry.min-wait-ms": "10"}
            made = catalog.create_table("bench.events", schema, properties=patience)
            with made.update_spec() as update:
                update.add_identity(_PARTITIONED_BY)
        self._table: Any = catalog.load_table("bench.events")

    def append(self, rows: pa.Table) -> None:
        """Append the rows in one transaction."""
        try:
            self._table.append(rows)
        except (CommitFailedException, OperationalError) as error:
            self._table.refresh()
            raise Refused(str(error)) from error


LAKES: dict[str, type[StrongPhalanx] | type[DuckLake] | type[Iceberg]] = {
    "Phalanx": StrongPhalanx,
    "DuckLake": DuckLake,
    "pyiceberg": Iceberg,
}
