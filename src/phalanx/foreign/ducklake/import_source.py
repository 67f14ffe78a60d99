"""A DuckLake table cut into units that an import reads, each without the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from phalanx.errors import InvalidCatalog, PhalanxError
from phalanx.foreign.ducklake.catalog import LakeTable, check_snapshot
from phalanx.foreign.ducklake.connection import CatalogReading
from phalanx.foreign.ducklake.files import inlined_deletes, resolved
from phalanx.foreign.ducklake.inlined import count_inlined, defaults_of, read_inlined
from phalanx.foreign.ducklake.units import (
    FileUnit,
    InlinedUnit,
    StoredFile,
    positions,
    rows_up_to,
)
from phalanx.foreign.ducklake_rows import conformed, plain
from phalanx.foreign.ducklake_types import column_type
from phalanx.foreign.file_systems import refuse_outside
from phalanx.planning.import_plan import ImportUnit

_Options = tuple[tuple[str, str], ...]


def import_units(
    table: LakeTable, storage_options: Mapping[str, str] | None, *, trust_locations: bool
) -> list[ImportUnit]:
    """All rows at the snapshot: a unit for each data file, and one for each inlined table.

    Files outside of the lake's folder are refused unless `trust_locations` says otherwise.
    """
    if table.columns.unreadable:
        columns = ", ".join(f"{name} ({kind})" for name, kind in table.columns.unreadable.items())
        raise PhalanxError(
            f"Cannot import table {table.name}: Arrow has no form of the columns {columns}. "
            "Cast them in DuckLake, or drop them."
        )
    options = tuple(sorted((storage_options or {}).items()))
    with table.location.reading() as reading:
        check_snapshot(reading, table)
        defaults = defaults_of(reading, list(table.columns.current.values()))
        files = _file_units(reading, table, options, defaults, trust_locations)
        units: list[ImportUnit] = list(files)
        for inlined in count_inlined(reading, table):
            rows = read_inlined(reading, table, inlined)
            target = pa.schema([plain(field) for field in table.columns.schema.arrow])
            arrays = conformed(rows, table.columns.schema.arrow, defaults)
            stored = pa.table(arrays, schema=target)
            units.append(InlinedUnit(inlined.table, stored.num_rows, stored.nbytes, stored))
        return units


def _file_units(
    reading: CatalogReading,
    table: LakeTable,
    options: _Options,
    defaults: Mapping[int, pa.Scalar],
    trust_locations: bool,
) -> list[FileUnit]:
    partial = "partial_max" if "partial_max" in reading.columns("ducklake_data_file") else "NULL"
    files = reading.rows(
        f"SELECT f.data_file_id, {resolved('f', table)}, f.record_count, f.file_size_bytes, "
        f"f.encryption_key, f.mapping_id, {partial}, f.file_format "
        f"FROM {reading.table('ducklake_data_file')} f WHERE {table.at('f')} "
        "ORDER BY f.data_file_id"
    )
    deletes = _delete_files(reading, table, options)
    if not trust_locations:
        listed = [file[1] for file in files]
        listed += [file.path for own in deletes.values() for file, _ in own]
        for path in listed:
            refuse_outside(path, table.lake, f"Table {table.name} of {table.location}")
    inlined = _inlined_deletes(reading, table)
    mappings = _mappings(reading, table)
    units = []
    for file_id, path, rows, size, key, mapping, last, kind in files:
        _check_readable(path, key, kind, "parquet")
        stored = StoredFile(path, options, _cut(last, table))
        own = deletes.get(file_id, ())
        deleted = inlined.get(file_id, pa.array([], pa.int64()))
        known: dict[str, Any] = {}
        if mapping is not None:
            known = _mapped(reading, table, mappings.get(mapping), path)
        standing = rows if stored.snapshot is None else rows_up_to(stored)
        gone = len(deleted) + sum(
            count if file.snapshot is None else len(positions(file)) for file, count in own
        )
        units.append(
            FileUnit(
                f"{table.id}:{file_id}:{path}",
                int(standing) - gone,
                int(size),
                stored,
                table.columns.schema,
                tuple(file for file, _ in own),
                deleted,
                defaults,
                **known,
            )
        )
    return units


def _cut(last: int | None, table: LakeTable) -> int | None:
    """The snapshot by which rows of a file are told apart, where it has later ones."""
    return table.snapshot if last is not None and int(last) > table.snapshot else None


def _check_readable(path: str, key: object, kind: object, expected: str) -> None:
    if key is not None:
        raise PhalanxError(
            f"Cannot read {path}: it is encrypted. Copy the table in DuckLake to one without "
            "encryption first."
        )
    if str(kind) != expected:
        raise PhalanxError(
            f"Cannot read {path}: it is of the format {kind}, expected {expected}. Rewrite the "
            "files in DuckLake first."
        )


def _delete_files(
    reading: CatalogReading, table: LakeTable, options: _Options
) -> dict[int, tuple[tuple[StoredFile, int], ...]]:
    partial = "partial_max" if "partial_max" in reading.columns("ducklake_delete_file") else "NULL"
    rows = reading.rows(
        f"SELECT d.data_file_id, {resolved('d', table)}, d.encryption_key, d.format, {partial}, "
        f"d.delete_count FROM {reading.table('ducklake_delete_file')} d WHERE {table.at('d')} "
        "ORDER BY d.delete_file_id"
    )
    found: dict[int, tuple[tuple[StoredFile, int], ...]] = {}
    for file_id, path, key, kind, last, count in rows:
        _check_readable(path, key, kind, "parquet")
        stored = StoredFile(path, options, _cut(last, table))
        found[file_id] = (*found.get(file_id, ()), (stored, int(count)))
    return found


def _inlined_deletes(reading: CatalogReading, table: LakeTable) -> dict[int, pa.Array]:
    if not reading.has(inlined_deletes(table)):
        return {}
    rows = reading.arrow(
        f"SELECT file_id, list(row_id ORDER BY row_id) AS places "
        f"FROM {reading.table(inlined_deletes(table))} "
        f"WHERE begin_snapshot <= {table.snapshot} GROUP BY 1"
    )
    files, places = rows.column("file_id").to_pylist(), rows.column("places")
    return {file_id: places[index].values.cast(pa.int64()) for index, file_id in enumerate(files)}


def _mappings(reading: CatalogReading, table: LakeTable) -> dict[int, list[tuple[Any, ...]]]:
    """How files that DuckLake did not write name the table's columns."""
    if not reading.has("ducklake_name_mapping"):
        return {}
    rows = reading.rows(
        "SELECT n.mapping_id, n.column_id, n.source_name, n.target_field_id, n.parent_column, "
        f"n.is_partition FROM {reading.table('ducklake_name_mapping')} n "
        f"JOIN {reading.table('ducklake_column_mapping')} m USING (mapping_id) "
        f"WHERE m.table_id = {table.id}"
    )
    found: dict[int, list[tuple[Any, ...]]] = {}
    for mapping, *row in rows:
        found.setdefault(mapping, []).append(tuple(row))
    return found


def _mapped(
    reading: CatalogReading, table: LakeTable, rows: list[tuple[Any, ...]] | None, path: str
) -> dict[str, Any]:
    """The ids of the file's columns by their names, and the values that its path gives."""
    if rows is None:
        raise InvalidCatalog(
            f"Data file {path} has a mapping of names that ducklake_name_mapping does not list. "
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
            constants[int(target)] = _from_path(reading, table, path, str(name), int(target))
        else:
            names[tuple(steps)] = int(target)
    return {"names": names, "constants": constants}


def _from_path(
    reading: CatalogReading, table: LakeTable, path: str, name: str, target: int
) -> pa.Scalar:
    column = table.columns.last(target)
    kind = None if column is None else column_type(column.type)
    texts = [part.partition("=")[2] for part in path.split("/") if part.startswith(f"{name}=")]
    if kind is None or not texts:
        raise InvalidCatalog(
            f"Data file {path} should have the value of column {name!r} in its path, as "
            "ducklake_name_mapping says: it has none."
        )
    text = None if texts[-1] == "__HIVE_DEFAULT_PARTITION__" else unquote(texts[-1])
    value = reading.arrow(f"SELECT CAST(? AS {kind.sql}) AS v", [text])
    return value.column("v").cast(kind.arrow)[0]
