"""Rows of a DuckLake table that are inlined in the catalog, in tables of their own.

There is one such table for each version of the schema. SQLite and PostgreSQL store many types as
text, which DuckDB casts back as DuckLake does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from phalanx.errors import InvalidCatalog
from phalanx.foreign.ducklake.catalog import LakeTable
from phalanx.foreign.ducklake.columns import NESTED_TYPES, LakeColumn, arrow_fields_at, parse_type
from phalanx.foreign.ducklake.connection import CatalogReader, quote_name

_TABLES = "ducklake_inlined_data_tables"


@dataclass(frozen=True, slots=True)
class InlinedRows:
    """A catalog table with inlined rows.

    Attributes:
        table: The name of the catalog table.
        rows: The number of rows that are visible at the snapshot.
        schema_version: The version of the schema that the rows have.
    """

    table: str
    rows: int
    schema_version: int


def count_inlined(reader: CatalogReader, table: LakeTable) -> tuple[InlinedRows, ...]:
    """Return the catalog tables with inlined rows of the table at the snapshot."""
    if not reader.has_table(_TABLES):
        return ()
    listed = reader.fetch_rows(
        f"SELECT table_name, schema_version FROM {reader.qualify(_TABLES)} "
        f"WHERE table_id = {table.id} ORDER BY schema_version"
    )
    found = []
    for name, version in listed:
        if not reader.has_table(str(name)):
            raise InvalidCatalog(
                f"{table.location.title} has no table {name}, which {_TABLES} lists for table "
                f"{table.name}: rows are lost. The catalog is damaged."
            )
        sql = (
            f"SELECT count(*) FROM {reader.qualify(str(name))} r WHERE {_visible_condition(table)}"
        )
        if rows := int(reader.fetch_rows(sql)[0][0]):
            found.append(InlinedRows(str(name), rows, int(version)))
    return tuple(found)


def read_inlined(reader: CatalogReader, table: LakeTable, inlined: InlinedRows) -> pa.Table:
    """Return the inlined rows with the columns, and field ids, that they were written with."""
    snapshot = _find_schema_snapshot(reader, table, inlined)
    fields, _ = arrow_fields_at(table.columns.history, snapshot, f"Table {table.name}")
    stored = reader.describe_columns(inlined.table)
    columns = {column.name: column for column in table.columns.children_at(None, snapshot)}
    missing = [field.name for field in fields if field.name not in stored]
    if missing:
        raise InvalidCatalog(
            f"{table.location.title}: {inlined.table} has no column {missing[0]!r}, which table "
            f"{table.name} had in schema version {inlined.schema_version}. The catalog is damaged."
        )
    selected = ", ".join(
        f"CAST({_value_sql(name, stored[name], columns[name])} AS "
        f"{_sql_type(columns[name], table, snapshot)}) AS {quote_name(name)}"
        for name in (field.name for field in fields)
    )
    rows = reader.fetch_arrow(
        f"SELECT {selected} FROM {reader.qualify(inlined.table)} r "
        f"WHERE {_visible_condition(table)} ORDER BY r.row_id"
    )
    return rows.cast(pa.schema([field.with_nullable(True) for field in fields]))


def _find_schema_snapshot(reader: CatalogReader, table: LakeTable, inlined: InlinedRows) -> int:
    """Return a snapshot at which the table had the columns of the rows."""
    rows = reader.fetch_rows(
        f"SELECT min(begin_snapshot) FROM {reader.qualify('ducklake_schema_versions')} "
        f"WHERE schema_version = {inlined.schema_version} "
        f"AND (table_id IS NULL OR table_id = {table.id})"
    )
    if rows[0][0] is None:
        raise InvalidCatalog(
            f"{table.location.title}: {inlined.table} is of schema version "
            f"{inlined.schema_version}, which ducklake_schema_versions does not have. "
            "The catalog is damaged."
        )
    return int(rows[0][0])


def _visible_condition(table: LakeTable) -> str:
    return (
        f"r.begin_snapshot <= {table.snapshot} AND "
        f"(r.end_snapshot IS NULL OR r.end_snapshot > {table.snapshot})"
    )


def _sql_type(column: LakeColumn, table: LakeTable, snapshot: int) -> str:
    """Return the DuckDB type of a column at a snapshot."""
    if column.type not in NESTED_TYPES:
        found = parse_type(column.type)
        return "VARCHAR" if found is None else found.sql
    parts = table.columns.children_at(column.id, snapshot)
    types = [_sql_type(part, table, snapshot) for part in parts]
    match column.type:
        case "list":
            return f"{types[0]}[]"
        case "map":
            return f"MAP({types[0]}, {types[1]})"
    inside = zip(parts, types, strict=True)
    return f"STRUCT({', '.join(f'{quote_name(part.name)} {kind}' for part, kind in inside)})"


def _value_sql(name: str, stored: str, column: LakeColumn) -> str:
    """Return SQL for a stored value; PostgreSQL stores texts as bytes, as they may hold zeros."""
    value = f"r.{quote_name(name)}"
    return f"decode({value})" if stored == "BLOB" and column.type != "blob" else value


def read_defaults(reader: CatalogReader, columns: Sequence[LakeColumn]) -> Mapping[int, pa.Scalar]:
    """Return the non-NULL values, by column id, of rows written before a column was added."""
    found: dict[int, pa.Scalar] = {}
    for column in columns:
        kind = parse_type(column.type)
        if column.initial_default is None or kind is None:
            continue
        value = reader.fetch_arrow(f"SELECT CAST(? AS {kind.sql}) AS v", [column.initial_default])
        found[column.id] = value.column("v").cast(kind.arrow)[0]
    return found
