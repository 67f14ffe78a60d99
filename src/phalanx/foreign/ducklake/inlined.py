"""Rows of a DuckLake table that still stand in its catalog, in tables of their own.

There is one for each version of the table's columns. SQLite and PostgreSQL keep many types as
text, which DuckDB casts back as DuckLake does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from phalanx.errors import InvalidCatalog
from phalanx.foreign.ducklake.catalog import LakeTable
from phalanx.foreign.ducklake.columns import Column, fields_at
from phalanx.foreign.ducklake.connection import CatalogReading, quoted_name
from phalanx.foreign.ducklake_types import NESTED, column_type

_TABLES = "ducklake_inlined_data_tables"


@dataclass(frozen=True, slots=True)
class InlinedRows:
    """A table of the catalog with rows of a lake's table, and how many stand at the snapshot."""

    table: str
    rows: int
    schema_version: int


def count_inlined(reading: CatalogReading, table: LakeTable) -> tuple[InlinedRows, ...]:
    """The tables of the catalog that hold rows of the table at the snapshot."""
    if not reading.has(_TABLES):
        return ()
    listed = reading.rows(
        f"SELECT table_name, schema_version FROM {reading.table(_TABLES)} "
        f"WHERE table_id = {table.id} ORDER BY schema_version"
    )
    found = []
    for name, version in listed:
        if not reading.has(str(name)):
            raise InvalidCatalog(
                f"{table.location.titled} has no table {name}, which {_TABLES} lists for table "
                f"{table.name}: rows are lost. The catalog is damaged."
            )
        sql = f"SELECT count(*) FROM {reading.table(str(name))} r WHERE {_standing(table)}"
        if rows := int(reading.rows(sql)[0][0]):
            found.append(InlinedRows(str(name), rows, int(version)))
    return tuple(found)


def read_inlined(reading: CatalogReading, table: LakeTable, inlined: InlinedRows) -> pa.Table:
    """The rows with the columns that they were written with, which have their ids."""
    snapshot = _snapshot_of(reading, table, inlined)
    fields, _ = fields_at(table.columns.history, snapshot, f"Table {table.name}")
    stored = reading.columns(inlined.table)
    columns = {column.name: column for column in table.columns.parts(None, snapshot)}
    missing = [field.name for field in fields if field.name not in stored]
    if missing:
        raise InvalidCatalog(
            f"{table.location.titled}: {inlined.table} has no column {missing[0]!r}, which table "
            f"{table.name} had in schema version {inlined.schema_version}. The catalog is damaged."
        )
    selected = ", ".join(
        f"CAST({_text(name, stored[name], columns[name])} AS "
        f"{_sql_type(columns[name], table, snapshot)}) AS {quoted_name(name)}"
        for name in (field.name for field in fields)
    )
    rows = reading.arrow(
        f"SELECT {selected} FROM {reading.table(inlined.table)} r WHERE {_standing(table)} "
        "ORDER BY r.row_id"
    )
    return rows.cast(pa.schema([field.with_nullable(True) for field in fields]))


def _snapshot_of(reading: CatalogReading, table: LakeTable, inlined: InlinedRows) -> int:
    """A snapshot at which the table had the columns of the rows."""
    rows = reading.rows(
        f"SELECT min(begin_snapshot) FROM {reading.table('ducklake_schema_versions')} "
        f"WHERE schema_version = {inlined.schema_version} "
        f"AND (table_id IS NULL OR table_id = {table.id})"
    )
    if rows[0][0] is None:
        raise InvalidCatalog(
            f"{table.location.titled}: {inlined.table} is of schema version "
            f"{inlined.schema_version}, which ducklake_schema_versions does not have. "
            "The catalog is damaged."
        )
    return int(rows[0][0])


def _standing(table: LakeTable) -> str:
    return (
        f"r.begin_snapshot <= {table.snapshot} AND "
        f"(r.end_snapshot IS NULL OR r.end_snapshot > {table.snapshot})"
    )


def _sql_type(column: Column, table: LakeTable, snapshot: int) -> str:
    """The type of a column at a snapshot, as DuckDB writes it."""
    if column.type not in NESTED:
        found = column_type(column.type)
        return "VARCHAR" if found is None else found.sql
    parts = table.columns.parts(column.id, snapshot)
    types = [_sql_type(part, table, snapshot) for part in parts]
    match column.type:
        case "list":
            return f"{types[0]}[]"
        case "map":
            return f"MAP({types[0]}, {types[1]})"
    inside = zip(parts, types, strict=True)
    return f"STRUCT({', '.join(f'{quoted_name(part.name)} {kind}' for part, kind in inside)})"


def _text(name: str, stored: str, column: Column) -> str:
    """A stored value; PostgreSQL keeps texts as bytes, for they may hold zeros."""
    value = f"r.{quoted_name(name)}"
    return f"decode({value})" if stored == "BLOB" and column.type != "blob" else value


def defaults_of(reading: CatalogReading, columns: Sequence[Column]) -> Mapping[int, pa.Scalar]:
    """What rows written before a column was added have in it, where that is not NULL."""
    found: dict[int, pa.Scalar] = {}
    for column in columns:
        kind = column_type(column.type)
        if column.initial_default is None or kind is None:
            continue
        value = reading.arrow(f"SELECT CAST(? AS {kind.sql}) AS v", [column.initial_default])
        found[column.id] = value.column("v").cast(kind.arrow)[0]
    return found
