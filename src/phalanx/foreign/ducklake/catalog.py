"""Read the description of one table at one snapshot from a DuckLake catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from phalanx.errors import InvalidArgument, InvalidCatalog
from phalanx.foreign.ducklake.columns import LakeColumns, read_columns
from phalanx.foreign.ducklake.connection import CatalogLocation, CatalogReader
from phalanx.foreign.ducklake.partition_values import StoredValues, read_stored_values
from phalanx.foreign.ducklake.specs import Partitionings, read_partitionings
from phalanx.model.schema.names import find_close_names

# The DuckLake versions whose documentation and code this follows.
_OLDEST_VERSION, _NEWEST_VERSION = (0, 3), (1, 1)
_REQUIRED_TABLES = (
    "ducklake_metadata",
    "ducklake_snapshot",
    "ducklake_schema",
    "ducklake_table",
    "ducklake_column",
    "ducklake_partition_info",
    "ducklake_partition_column",
    "ducklake_data_file",
    "ducklake_file_partition_value",
    "ducklake_delete_file",
    "ducklake_file_column_stats",
)
TIME_PARTS = ("calendar", "epoch")
_URI = re.compile(r"[a-z][a-z0-9+.-]+://")


@dataclass(frozen=True, slots=True, eq=False)
class LakeTable:
    """A table of a lake at a snapshot.

    `root` is the folder of its files, `lake_root` that of all files of the lake. `stored_values`
    has, for each partitioning, the distinct values of each partition key.
    """

    location: CatalogLocation
    name: str
    id: int
    snapshot: int
    version: str
    root: str
    lake_root: str
    time_parts: str
    columns: LakeColumns
    partitionings: Partitionings
    stored_values: Mapping[int, tuple[StoredValues, ...]]

    def snapshot_condition(self, alias: str) -> str:
        """Return SQL that selects catalog rows of this table that are valid at the snapshot."""
        return (
            f"{alias}.table_id = {self.id} AND {alias}.begin_snapshot <= {self.snapshot} AND "
            f"({alias}.end_snapshot IS NULL OR {alias}.end_snapshot > {self.snapshot})"
        )


def read_table(
    location: CatalogLocation,
    table: str,
    schema: str | None,
    snapshot: int | str | datetime | None,
    time_parts: str | None,
    data_path: str | None,
) -> LakeTable:
    """Read what planning needs to know of a table; raise `InvalidCatalog` if it is damaged."""
    if time_parts not in (None, *TIME_PARTS):
        raise InvalidArgument(
            f"Cannot read time parts as {time_parts!r}: expected 'calendar', 'epoch' or None, "
            "which lets the version of the catalog decide."
        )
    with location.open() as reader:
        metadata = _read_metadata(reader)
        version = _check_version(metadata.get("version"), location)
        number = _find_snapshot(reader, snapshot)
        schema_name, table_name = _split_name(table, schema)
        schema_id, schema_name, schema_path = _find_object(
            reader, "schema", schema_name, number, f"schema {schema_name!r}"
        )
        table_id, table_name, table_path = _find_object(
            reader, "table", table_name, number, f"table {table_name!r}", schema_id
        )
        label = f"Table {schema_name}.{table_name} of {location}"
        columns = read_columns(reader, table_id, number, label)
        # All known versions store calendar parts under the plain names.
        chosen = time_parts or "calendar"
        partitionings = read_partitionings(reader, table_id, columns, chosen, label)
        root = lake = _resolve_root(location, data_path or metadata.get("data_path"))
        for path, relative in (schema_path, table_path):
            root = f"{root}{path}" if relative else path
        found = LakeTable(
            location,
            f"{schema_name}.{table_name}",
            table_id,
            number,
            version,
            root,
            lake,
            chosen,
            columns,
            partitionings,
            {},
        )
        stored = read_stored_values(
            reader, table_id, found.snapshot_condition("f"), partitionings, label
        )
        return replace(found, stored_values=stored)


def check_snapshot(reader: CatalogReader, table: LakeTable) -> None:
    """Raise if the snapshot was expired since: its files may be gone from the catalog."""
    sql = f"SELECT count(*) FROM {reader.qualify('ducklake_snapshot')} WHERE snapshot_id = ?"
    if not reader.fetch_rows(sql, [table.snapshot])[0][0]:
        raise InvalidCatalog(
            f"Snapshot {table.snapshot} of {table.location} has been expired since table "
            f"{table.name} was opened. Open it again."
        )


def _read_metadata(reader: CatalogReader) -> dict[str, str]:
    missing = [name for name in _REQUIRED_TABLES if not reader.has_table(name)]
    if missing:
        raise InvalidCatalog(
            f"{reader.location.title} has no table {missing[0]} in schema "
            f"{reader.location.metadata_schema!r}: it is not a DuckLake catalog, or it is damaged."
        )
    rows = reader.fetch_rows(
        f"SELECT key, value FROM {reader.qualify('ducklake_metadata')} WHERE scope IS NULL"
    )
    return {str(key): str(value) for key, value in rows}


def _check_version(text: str | None, location: CatalogLocation) -> str:
    found = re.match(r"(\d+)\.(\d+)", text or "")
    known = " to ".join(".".join(map(str, each)) for each in (_OLDEST_VERSION, _NEWEST_VERSION))
    if found is None:
        raise InvalidCatalog(
            f"ducklake_metadata of {location} has the version {text!r}: expected {known}."
        )
    version = (int(found[1]), int(found[2]))
    if version > _NEWEST_VERSION:
        raise InvalidCatalog(
            f"{location.title} has DuckLake version {text}: expected {known}. "
            "A newer Phalanx may read it."
        )
    if version < _OLDEST_VERSION:
        raise InvalidCatalog(
            f"{location.title} has DuckLake version {text}: expected {known}. "
            "Attach it once with DuckLake, which upgrades it."
        )
    return str(text)


def _find_snapshot(reader: CatalogReader, wanted: int | str | datetime | None) -> int:
    name = reader.qualify("ducklake_snapshot")
    if isinstance(wanted, str):
        try:
            wanted = datetime.fromisoformat(wanted)
        except ValueError:
            raise InvalidArgument(
                f"Cannot read the snapshot {wanted!r}: expected its number, or a time in ISO 8601."
            ) from None
    if wanted is None:
        sql = f"SELECT max(snapshot_id) FROM {name}"
    elif isinstance(wanted, datetime):
        moment = wanted if wanted.tzinfo else wanted.replace(tzinfo=UTC)
        sql = (
            f"SELECT max(snapshot_id) FROM {name} "
            f"WHERE CAST(snapshot_time AS TIMESTAMPTZ) <= TIMESTAMPTZ '{moment.isoformat()}'"
        )
    else:
        sql = f"SELECT max(snapshot_id) FROM {name} WHERE snapshot_id = {int(wanted)}"
    found = reader.fetch_rows(sql)[0][0]
    if found is None:
        known = reader.fetch_rows(f"SELECT min(snapshot_id), max(snapshot_id) FROM {name}")[0]
        raise InvalidCatalog(
            f"{reader.location.title} has no snapshot "
            f"{'at all' if wanted is None else wanted}: it has snapshots {known[0]} to "
            f"{known[1]}, except for expired ones."
        )
    return int(found)


def _split_name(table: str, schema: str | None) -> tuple[str, str]:
    if schema is None and "." in table:
        first, _, rest = table.partition(".")
        return first, rest
    return schema or "main", table


def _find_object(
    reader: CatalogReader,
    kind: str,
    name: str,
    snapshot: int,
    what: str,
    schema_id: int | None = None,
) -> tuple[int, str, tuple[str, bool]]:
    """Return the id, name and path of a schema or table that exists at the snapshot."""
    inside = "" if schema_id is None else f" AND schema_id = {schema_id}"
    rows = reader.fetch_rows(
        f"SELECT {kind}_id, {kind}_name, path, path_is_relative "
        f"FROM {reader.qualify(f'ducklake_{kind}')} WHERE begin_snapshot <= {snapshot} "
        f"AND (end_snapshot IS NULL OR end_snapshot > {snapshot}){inside}"
    )
    exact = [row for row in rows if row[1] == name]
    same = exact or [row for row in rows if str(row[1]).lower() == name.lower()]
    if len(same) != 1:
        names = sorted(str(row[1]) for row in rows)
        close = find_close_names(name, names)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InvalidCatalog(
            f"{reader.location.title} has no {what} at snapshot {snapshot}. "
            f"It has {', '.join(names) or 'none'}.{hint}"
        )
    found = same[0]
    relative = str(found[3]).lower() in ("true", "1")
    return int(found[0]), str(found[1]), (str(found[2] or ""), relative)


def _resolve_root(location: CatalogLocation, data_path: str | None) -> str:
    """Return the folder of the lake's files.

    A relative path is resolved in the working directory, as DuckLake does, or beside the catalog.
    """
    if not data_path:
        raise InvalidCatalog(f"ducklake_metadata of {location} has no data_path: pass data_path=…")
    path = data_path if data_path.endswith("/") else f"{data_path}/"
    if _URI.match(path) or Path(path).is_absolute():
        return path
    beside = None if location.folder is None else location.folder / path
    if beside is not None and beside.is_dir() and not Path(path).is_dir():
        return f"{beside}/"
    return f"{Path(path).absolute()}/"
