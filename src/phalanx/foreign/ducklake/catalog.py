"""What a DuckLake catalog says about one table at one snapshot."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from phalanx.errors import InvalidCatalog, PhalanxError
from phalanx.foreign.ducklake.columns import Columns, read_columns
from phalanx.foreign.ducklake.connection import CatalogLocation, CatalogReading
from phalanx.foreign.ducklake.partition_values import read_stored
from phalanx.foreign.ducklake.specs import Partitionings, read_partitionings
from phalanx.foreign.ducklake_filter import StoredValues
from phalanx.model.schema.names import close_names

# What its documents and its code say was read for these versions.
_OLDEST, _NEWEST = (0, 3), (1, 1)
_NEEDED = (
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

    `root` is the folder of its files, `lake` that of all files of its lake; `stored` has for each
    partitioning the different values that its files have in each key.
    """

    location: CatalogLocation
    name: str
    id: int
    snapshot: int
    version: str
    root: str
    lake: str
    time_parts: str
    columns: Columns
    partitionings: Partitionings
    stored: Mapping[int, tuple[StoredValues, ...]]

    def at(self, alias: str) -> str:
        """The condition that a row of the catalog is of this table and stands at the snapshot."""
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
    """All that planning needs to know of a table; `InvalidCatalog` says where it is damaged."""
    if time_parts not in (None, *TIME_PARTS):
        raise PhalanxError(
            f"Cannot read time parts as {time_parts!r}: expected 'calendar', 'epoch' or None, "
            "which decides by the catalog's version."
        )
    with location.reading() as reading:
        metadata = _metadata(reading)
        version = _checked_version(metadata.get("version"), location)
        number = _snapshot(reading, snapshot)
        schema_name, table_name = _named(table, schema)
        schema_id, schema_name, schema_path = _found(
            reading, "schema", schema_name, number, f"schema {schema_name!r}"
        )
        table_id, table_name, table_path = _found(
            reading, "table", table_name, number, f"table {table_name!r}", schema_id
        )
        place = f"Table {schema_name}.{table_name} of {location}"
        columns = read_columns(reading, table_id, number, place)
        # All versions up to today's have calendar parts under the plain names.
        chosen = time_parts or "calendar"
        partitionings = read_partitionings(reading, table_id, columns, chosen, place)
        root = lake = _root(location, data_path or metadata.get("data_path"))
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
        stored = read_stored(reading, table_id, found.at("f"), partitionings, place)
        return replace(found, stored=stored)


def check_snapshot(reading: CatalogReading, table: LakeTable) -> None:
    """Refuse a snapshot that was expired since: its files may be gone from the catalog."""
    sql = f"SELECT count(*) FROM {reading.table('ducklake_snapshot')} WHERE snapshot_id = ?"
    if not reading.rows(sql, [table.snapshot])[0][0]:
        raise InvalidCatalog(
            f"Snapshot {table.snapshot} of {table.location} has been expired since table "
            f"{table.name} was opened. Open it again."
        )


def _metadata(reading: CatalogReading) -> dict[str, str]:
    missing = [name for name in _NEEDED if not reading.has(name)]
    if missing:
        raise InvalidCatalog(
            f"{reading.location.titled} has no table {missing[0]} in schema "
            f"{reading.location.metadata_schema!r}: it is no DuckLake catalog, or a damaged one."
        )
    rows = reading.rows(
        f"SELECT key, value FROM {reading.table('ducklake_metadata')} WHERE scope IS NULL"
    )
    return {str(key): str(value) for key, value in rows}


def _checked_version(text: str | None, location: CatalogLocation) -> str:
    found = re.match(r"(\d+)\.(\d+)", text or "")
    known = " to ".join(".".join(map(str, each)) for each in (_OLDEST, _NEWEST))
    if found is None:
        raise InvalidCatalog(
            f"ducklake_metadata of {location} has the version {text!r}: expected {known}."
        )
    version = (int(found[1]), int(found[2]))
    if version > _NEWEST:
        raise InvalidCatalog(
            f"{location.titled} has DuckLake's version {text}: Phalanx knows {known}. "
            "A newer Phalanx may read it."
        )
    if version < _OLDEST:
        raise InvalidCatalog(
            f"{location.titled} has DuckLake's version {text}: Phalanx knows {known}. "
            "Attach it once with DuckLake, which brings it up to date."
        )
    return str(text)


def _snapshot(reading: CatalogReading, wanted: int | str | datetime | None) -> int:
    name = reading.table("ducklake_snapshot")
    if isinstance(wanted, str):
        try:
            wanted = datetime.fromisoformat(wanted)
        except ValueError:
            raise PhalanxError(
                f"Cannot read the snapshot {wanted!r}: expected its number, or a time as in "
                "ISO 8601."
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
    found = reading.rows(sql)[0][0]
    if found is None:
        known = reading.rows(f"SELECT min(snapshot_id), max(snapshot_id) FROM {name}")[0]
        raise InvalidCatalog(
            f"{reading.location.titled} has no snapshot "
            f"{'at all' if wanted is None else wanted}: there are those from {known[0]} to "
            f"{known[1]}, unless they were expired."
        )
    return int(found)


def _named(table: str, schema: str | None) -> tuple[str, str]:
    if schema is None and "." in table:
        first, _, rest = table.partition(".")
        return first, rest
    return schema or "main", table


def _found(
    reading: CatalogReading,
    kind: str,
    name: str,
    snapshot: int,
    what: str,
    schema_id: int | None = None,
) -> tuple[int, str, tuple[str, bool]]:
    """The id, the name and the path of a schema or table that stands at the snapshot."""
    inside = "" if schema_id is None else f" AND schema_id = {schema_id}"
    rows = reading.rows(
        f"SELECT {kind}_id, {kind}_name, path, path_is_relative "
        f"FROM {reading.table(f'ducklake_{kind}')} WHERE begin_snapshot <= {snapshot} "
        f"AND (end_snapshot IS NULL OR end_snapshot > {snapshot}){inside}"
    )
    exact = [row for row in rows if row[1] == name]
    same = exact or [row for row in rows if str(row[1]).lower() == name.lower()]
    if len(same) != 1:
        names = sorted(str(row[1]) for row in rows)
        close = close_names(name, names)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InvalidCatalog(
            f"{reading.location.titled} has no {what} at snapshot {snapshot}. "
            f"It has {', '.join(names) or 'none'}.{hint}"
        )
    found = same[0]
    relative = str(found[3]).lower() in ("true", "1")
    return int(found[0]), str(found[1]), (str(found[2] or ""), relative)


def _root(location: CatalogLocation, data_path: str | None) -> str:
    """The folder of the lake's files; one without a root is where DuckLake was started from."""
    if not data_path:
        raise InvalidCatalog(
            f"ducklake_metadata of {location} has no data_path: give it as data_path=…"
        )
    path = data_path if data_path.endswith("/") else f"{data_path}/"
    if _URI.match(path) or Path(path).is_absolute():
        return path
    beside = None if location.folder is None else location.folder / path
    if beside is not None and beside.is_dir() and not Path(path).is_dir():
        return f"{beside}/"
    return f"{Path(path).absolute()}/"
