"""Read the data files of a DuckLake table as columns: partition values, deletes and bounds.

The catalog filters by partition values where it can; the rest is filtered on what it returns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.foreign.ducklake.catalog import LakeTable
from phalanx.foreign.ducklake.columns import has_stable_texts, parse_type
from phalanx.foreign.ducklake.connection import CatalogReader, quote_text
from phalanx.foreign.ducklake.partition_values import render_condition
from phalanx.foreign.ducklake.specs import UNPARTITIONED
from phalanx.model.predicates.predicate import TRUE, Predicate, find_predicate_columns
from phalanx.model.schema.names import FieldPath
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.file_bounds import FileBounds
from phalanx.planning.rewrites.entries import DELETES_TYPE

FILE_ID, PATH, ROWS, BYTES = ".file_id", ".path", ".rows", ".bytes"
# DuckLake writes their bounds in another form than their values.
_TYPES_WITHOUT_BOUNDS = ("blob", "json")


def read_files(
    reader: CatalogReader, table: LakeTable, spec: PartitionSpec, projected: Predicate = TRUE
) -> pa.Table:
    """Return the files of one partitioning that the catalog's filter keeps, ordered by id.

    The columns of the file come first, then one for each partition field, named by its id.
    """
    casts = table.partitionings.casts[spec.id]
    texts = [f"v{index}.partition_value" for index in range(len(spec.fields))]
    typed = [
        f"TRY_CAST({text} AS {cast}) AS p{index}"
        for index, (text, cast) in enumerate(zip(texts, casts, strict=True))
    ]
    joins = [
        f"JOIN {reader.qualify('ducklake_file_partition_value')} v{index} "
        f"ON v{index}.data_file_id = f.data_file_id AND v{index}.table_id = {table.id} "
        f"AND v{index}.partition_key_index = {index}"
        for index in range(len(spec.fields))
    ]
    own = "IS NULL" if spec.id == UNPARTITIONED else f"= {spec.id}"
    conditions = [table.snapshot_condition("f"), f"f.partition_id {own}"]
    stored = zip(texts, table.stored_values[spec.id], strict=True)
    keys = dict(zip((field.column for field in spec.fields), stored, strict=True))
    if (condition := render_condition(projected, keys)) is not None:
        conditions.append(condition)
    columns = ["f.data_file_id", path_sql("f", table), "f.record_count", "f.file_size_bytes"]
    found = reader.fetch_arrow(
        f"SELECT {', '.join([*columns, *typed])} FROM {reader.qualify('ducklake_data_file')} f "
        f"{' '.join(joins)} WHERE {' AND '.join(conditions)} ORDER BY f.data_file_id"
    )
    schema = _files_schema(spec)
    arrays = [column.cast(kind) for column, kind in zip(found.columns, schema.types, strict=True)]
    return pa.table(arrays, schema=schema)


def empty_files(spec: PartitionSpec) -> pa.Table:
    """Return an empty result of `read_files`."""
    return _files_schema(spec).empty_table()


def _files_schema(spec: PartitionSpec) -> pa.Schema:
    own = [(FILE_ID, pa.int64()), (PATH, pa.string()), (ROWS, pa.int64()), (BYTES, pa.int64())]
    return pa.schema([*own, *((field.field_id, field.result_type) for field in spec.fields)])


def count_files(reader: CatalogReader, table: LakeTable) -> dict[int, int]:
    """Count the files of each partitioning."""
    rows = reader.fetch_rows(
        f"SELECT coalesce(f.partition_id, {UNPARTITIONED}), count(*) "
        f"FROM {reader.qualify('ducklake_data_file')} f "
        f"WHERE {table.snapshot_condition('f')} GROUP BY 1"
    )
    return {int(spec_id): int(count) for spec_id, count in rows}


@dataclass(frozen=True, slots=True)
class DuckLakeDeletes:
    """Delete files with the id of the data file that they belong to, ordered by that id."""

    files: pa.Table

    def lists_for(self, file_ids: pa.ChunkedArray | pa.Array) -> pa.Array:
        """Return the delete files of each data file as a list; the ids must be in order."""
        ids = np.asarray(file_ids)
        owners = np.asarray(self.files.column("data_file_id"))
        starts = np.searchsorted(owners, ids, "left")
        ends = np.searchsorted(owners, ids, "right")
        counts = ends - starts
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        indices = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
        chosen = self.files.take(pa.array(indices, pa.int64()))
        structs = pa.StructArray.from_arrays(
            [chosen.column(name).combine_chunks() for name in ("path", "bytes", "rows")],
            fields=list(DELETES_TYPE.value_type),
        )
        return pa.ListArray.from_arrays(pa.array(offsets), structs, type=DELETES_TYPE)


def read_deletes(reader: CatalogReader, table: LakeTable) -> DuckLakeDeletes:
    """Return all delete files at the snapshot, including deletes inlined in the catalog."""
    found = reader.fetch_arrow(
        f"SELECT d.data_file_id, {path_sql('d', table)} AS path, "
        "d.file_size_bytes AS bytes, d.delete_count AS rows "
        f"FROM {reader.qualify('ducklake_delete_file')} d WHERE {table.snapshot_condition('d')}"
    )
    parts = [_cast_deletes(found)]
    if reader.has_table(inlined_deletes_table(table)):
        name = inlined_deletes_table(table)
        inlined = reader.fetch_arrow(
            f"SELECT file_id AS data_file_id, {quote_text(f'catalog:{name}')} AS path,"
            f" 0 AS bytes, count(*) AS rows FROM {reader.qualify(name)} "
            f"WHERE begin_snapshot <= {table.snapshot} GROUP BY 1"
        )
        parts.append(_cast_deletes(inlined))
    every = pa.concat_tables(parts)
    return DuckLakeDeletes(every.sort_by([("data_file_id", "ascending"), ("path", "ascending")]))


def path_sql(alias: str, table: LakeTable) -> str:
    """Return SQL for the absolute path of a file."""
    path = f"{alias}.path"
    return f"CASE WHEN {path}_is_relative THEN {quote_text(table.root)} || {path} ELSE {path} END"


def inlined_deletes_table(table: LakeTable) -> str:
    """Return the name of the catalog table with inlined deletes."""
    return f"ducklake_inlined_delete_{table.id}"


def _cast_deletes(found: pa.Table) -> pa.Table:
    schema = pa.schema([("data_file_id", pa.int64()), *DELETES_TYPE.value_type])
    arrays = [column.cast(kind) for column, kind in zip(found.columns, schema.types, strict=True)]
    return pa.table(arrays, schema=schema)


def read_bounds(
    reader: CatalogReader, table: LakeTable, files: pa.Table, predicate: Predicate
) -> dict[FieldPath, FileBounds]:
    """Return the bounds of the columns that a predicate reads, in the order of the files."""
    found: dict[FieldPath, FileBounds] = {}
    columns = table.columns
    for path in sorted(find_predicate_columns(predicate)):
        column_id = columns.schema.id_of(path)
        column = columns.current.get(column_id)
        kind = None if column is None else parse_type(column.type)
        if column is None or kind is None or column.type in _TYPES_WITHOUT_BOUNDS:
            continue
        if has_stable_texts(columns.types_of(column_id)):
            found[path] = _read_column_bounds(reader, table, files, column_id, kind.sql, kind.arrow)
    return found


def _read_column_bounds(
    reader: CatalogReader,
    table: LakeTable,
    files: pa.Table,
    column_id: int,
    sql_type: str,
    kind: pa.DataType,
) -> FileBounds:
    stats = reader.qualify("ducklake_file_column_stats")
    reader.connection.register("wanted", pa.table({"id": files.column(FILE_ID)}))
    rows = reader.fetch_arrow(
        f"SELECT s.data_file_id, TRY_CAST(s.min_value AS {sql_type}) AS low, "
        f"TRY_CAST(s.max_value AS {sql_type}) AS high, s.value_count, s.null_count, "
        f"CAST(s.contains_nan AS BOOLEAN) AS contains_nan FROM {stats} s "
        "SEMI JOIN wanted ON s.data_file_id = wanted.id "
        f"WHERE s.table_id = {table.id} AND s.column_id = {column_id} ORDER BY s.data_file_id"
    )
    ids = np.asarray(files.column(FILE_ID))
    known = np.asarray(rows.column("data_file_id"))
    indices = np.searchsorted(known, ids)
    has_stats = indices < len(known)
    has_stats[has_stats] = known[indices[has_stats]] == ids[has_stats]
    taken = rows.take(pa.array(indices, pa.int64(), mask=~has_stats))
    values, nulls = (_read_counts(taken, name) for name in ("value_count", "null_count"))
    # For some types DuckLake always writes counts of zero.
    counted = values + nulls == np.asarray(files.column(ROWS))
    may_hold_nan = np.zeros(len(ids), dtype=bool)
    if pa.types.is_floating(kind):
        may_hold_nan = ~pc.equal(taken.column("contains_nan"), False).fill_null(False).to_numpy()
    return FileBounds(
        taken.column("low").cast(kind).combine_chunks(),
        taken.column("high").cast(kind).combine_chunks(),
        ~counted | (nulls > 0),
        ~counted | (values > 0),
        may_hold_nan,
    )


def _read_counts(stats: pa.Table, name: str) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = (
        pc.fill_null(stats.column(name).cast(pa.int64()), -1).to_numpy().astype(np.int64)
    )
    return found
