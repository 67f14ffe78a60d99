"""Split a DuckLake table into units that an import reads without the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from phalanx.errors import InvalidCatalog, PhalanxError
from phalanx.foreign.ducklake.catalog import LakeTable, check_snapshot
from phalanx.foreign.ducklake.columns import parse_type
from phalanx.foreign.ducklake.connection import CatalogReader
from phalanx.foreign.ducklake.files import inlined_deletes_table, path_sql
from phalanx.foreign.ducklake.inlined import count_inlined, read_defaults, read_inlined
from phalanx.foreign.ducklake.units import (
    FileUnit,
    InlinedUnit,
    LakeFile,
    count_visible_rows,
    match_columns,
    read_delete_positions,
    without_field_ids,
)
from phalanx.foreign.file_systems import refuse_outside
from phalanx.planning.import_plan import ImportUnit

_Options = tuple[tuple[str, str], ...]


def make_import_units(
    table: LakeTable, storage_options: Mapping[str, str] | None, *, trust_locations: bool
) -> list[ImportUnit]:
    """Return all rows at the snapshot: a unit for each data file and each inlined table.

    Raises for files outside of the lake's folder unless `trust_locations` is set.
    """
    if table.columns.unreadable:
        columns = ", ".join(f"{name} ({kind})" for name, kind in table.columns.unreadable.items())
        raise PhalanxError(
            f"Cannot import table {table.name}: Arrow cannot represent the columns {columns}. "
            "Cast them in DuckLake, or drop them."
        )
    options = tuple(sorted((storage_options or {}).items()))
    with table.location.open() as reader:
        check_snapshot(reader, table)
        defaults = read_defaults(reader, list(table.columns.current.values()))
        files = _make_file_units(reader, table, options, defaults, trust_locations)
        units: list[ImportUnit] = list(files)
        for inlined in count_inlined(reader, table):
            rows = read_inlined(reader, table, inlined)
            target = pa.schema([without_field_ids(field) for field in table.columns.schema.arrow])
            arrays = match_columns(rows, table.columns.schema.arrow, defaults)
            stored = pa.table(arrays, schema=target)
            units.append(InlinedUnit(inlined.table, stored.num_rows, stored.nbytes, stored))
        return units


def _make_file_units(
    reader: CatalogReader,
    table: LakeTable,
    options: _Options,
    defaults: Mapping[int, pa.Scalar],
    trust_locations: bool,
) -> list[FileUnit]:
    partial = (
        "partial_max" if "partial_max" in reader.describe_columns("ducklake_data_file") else "NULL"
    )
    files = reader.fetch_rows(
        f"SELECT f.data_file_id, {path_sql('f', table)}, f.record_count, f.file_size_bytes, "
        f"f.encryption_key, f.mapping_id, {partial}, f.file_format "
        f"FROM {reader.qualify('ducklake_data_file')} f WHERE {table.snapshot_condition('f')} "
        "ORDER BY f.data_file_id"
    )
    deletes = _read_delete_files(reader, table, options)
    if not trust_locations:
        listed = [file[1] for file in files]
        listed += [file.path for own_deletes in deletes.values() for file, _ in own_deletes]
        for path in listed:
            refuse_outside(path, table.lake_root, f"Table {table.name} of {table.location}")
    inlined = _read_inlined_deletes(reader, table)
    mappings = _read_name_mappings(reader, table)
    units = []
    for file_id, path, rows, size, key, mapping, last, kind in files:
        _check_readable(path, key, kind, "parquet")
        stored = LakeFile(path, options, _snapshot_limit(last, table))
        own_deletes = deletes.get(file_id, ())
        deleted = inlined.get(file_id, pa.array([], pa.int64()))
        mapped: dict[str, Any] = {}
        if mapping is not None:
            mapped = _apply_name_mapping(reader, table, mappings.get(mapping), path)
        visible_rows = rows if stored.snapshot is None else count_visible_rows(stored)
        deleted_rows = len(deleted) + sum(
            count if file.snapshot is None else len(read_delete_positions(file))
            for file, count in own_deletes
        )
        units.append(
            FileUnit(
                f"{table.id}:{file_id}:{path}",
                int(visible_rows) - deleted_rows,
                int(size),
                stored,
                table.columns.schema,
                tuple(file for file, _ in own_deletes),
                deleted,
                defaults,
                **mapped,
            )
        )
    return units


def _snapshot_limit(last: int | None, table: LakeTable) -> int | None:
    """Return the snapshot after which rows of a file are ignored; None if it has no newer rows."""
    return table.snapshot if last is not None and int(last) > table.snapshot else None


def _check_readable(path: str, key: object, kind: object, expected: str) -> None:
    if key is not None:
        raise PhalanxError(
            f"Cannot read {path}: it is encrypted. First copy the table to an unencrypted one in "
            "DuckLake."
        )
    if str(kind) != expected:
        raise PhalanxError(
            f"Cannot read {path}: it has the format {kind}, expected {expected}. First rewrite the "
            "files in DuckLake."
        )


def _read_delete_files(
    reader: CatalogReader, table: LakeTable, options: _Options
) -> dict[int, tuple[tuple[LakeFile, int], ...]]:
    partial = (
        "partial_max"
        if "partial_max" in reader.describe_columns("ducklake_delete_file")
        else "NULL"
    )
    rows = reader.fetch_rows(
        f"SELECT d.data_file_id, {path_sql('d', table)}, d.encryption_key, d.format, {partial}, "
        f"d.delete_count FROM {reader.qualify('ducklake_delete_file')} d "
        f"WHERE {table.snapshot_condition('d')} ORDER BY d.delete_file_id"
    )
    found: dict[int, tuple[tuple[LakeFile, int], ...]] = {}
    for file_id, path, key, kind, last, count in rows:
        _check_readable(path, key, kind, "parquet")
        stored = LakeFile(path, options, _snapshot_limit(last, table))
        found[file_id] = (*found.get(file_id, ()), (stored, int(count)))
    return found


def _read_inlined_deletes(reader: CatalogReader, table: LakeTable) -> dict[int, pa.Array]:
    if not reader.has_table(inlined_deletes_table(table)):
        return {}
    rows = reader.fetch_arrow(
        f"SELECT file_id, list(row_id ORDER BY row_id) AS positions "
        f"FROM {reader.qualify(inlined_deletes_table(table))} "
        f"WHERE begin_snapshot <= {table.snapshot} GROUP BY 1"
    )
    files, positions = rows.column("file_id").to_pylist(), rows.column("positions")
    return {
        file_id: positions[index].values.cast(pa.int64()) for index, file_id in enumerate(files)
    }


def _read_name_mappings(
    reader: CatalogReader, table: LakeTable
) -> dict[int, list[tuple[Any, ...]]]:
    """Return the column names of files that DuckLake did not write, by mapping id."""
    if not reader.has_table("ducklake_name_mapping"):
        return {}
    rows = reader.fetch_rows(
        "SELECT n.mapping_id, n.column_id, n.source_name, n.target_field_id, n.parent_column, "
        f"n.is_partition FROM {reader.qualify('ducklake_name_mapping')} n "
        f"JOIN {reader.qualify('ducklake_column_mapping')} m USING (mapping_id) "
        f"WHERE m.table_id = {table.id}"
    )
    found: dict[int, list[tuple[Any, ...]]] = {}
    for mapping, *row in rows:
        found.setdefault(mapping, []).append(tuple(row))
    return found


def _apply_name_mapping(
    reader: CatalogReader, table: LakeTable, rows: list[tuple[Any, ...]] | None, path: str
) -> dict[str, Any]:
    """Return the field ids of the columns of a file by name, and the values from its path."""
    if rows is None:
        raise InvalidCatalog(
            f"Data file {path} has a name mapping that ducklake_name_mapping does not list. "
            "The catalog is damaged."
        )
    by_id = {row[0]: row for row in rows}
    names: dict[tuple[str, ...], int] = {}
    constants: dict[int, pa.Scalar] = {}
    for _, name, target, parent, is_partition in rows:
        steps = [str(name)]
        while parent is not None and parent in by_id:
            steps.insert(0, str(by_id[parent][1]))
            parent = by_id[parent][3]
        if str(is_partition).lower() in ("true", "1"):
            constants[int(target)] = _value_from_path(reader, table, path, str(name), int(target))
        else:
            names[tuple(steps)] = int(target)
    return {"names": names, "constants": constants}


def _value_from_path(
    reader: CatalogReader, table: LakeTable, path: str, name: str, target: int
) -> pa.Scalar:
    column = table.columns.find_last(target)
    kind = None if column is None else parse_type(column.type)
    texts = [part.partition("=")[2] for part in path.split("/") if part.startswith(f"{name}=")]
    if kind is None or not texts:
        raise InvalidCatalog(
            f"Data file {path} has no value of column {name!r} in its path, as "
            "ducklake_name_mapping requires."
        )
    text = None if texts[-1] == "__HIVE_DEFAULT_PARTITION__" else unquote(texts[-1])
    value = reader.fetch_arrow(f"SELECT CAST(? AS {kind.sql}) AS v", [text])
    return value.column("v").cast(kind.arrow)[0]
