"""The data files of a DuckLake table, as columns: by partitioning, with values, deletes and bounds.

The catalog filters what it can by the partition values; the rest is decided on what it returns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.foreign.ducklake.catalog import LakeTable
from phalanx.foreign.ducklake.connection import CatalogReading
from phalanx.foreign.ducklake.specs import UNPARTITIONED
from phalanx.foreign.ducklake_filter import pushed
from phalanx.foreign.ducklake_types import column_type, keeps_texts
from phalanx.model.predicates.predicate import TRUE, Predicate, columns_of
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.fields import Path
from phalanx.planning.pruning.file_bounds import FileBounds
from phalanx.planning.rewrites.entries import DELETES_TYPE

FILE_ID, PATH, ROWS, BYTES = ".file_id", ".path", ".rows", ".bytes"
# Their bounds are written in another way than their values.
_UNBOUNDED = ("blob", "json")


def read_files(
    reading: CatalogReading, table: LakeTable, spec: PartitionSpec, projected: Predicate = TRUE
) -> pa.Table:
    """The files under one partitioning that the catalog's own filter keeps, in order of their ids.

    The columns of the file come first, then one for each partition field, named by its id.
    """
    casts = table.partitionings.casts[spec.id]
    texts = [f"v{index}.partition_value" for index in range(len(spec.fields))]
    typed = [
        f"TRY_CAST({text} AS {cast}) AS p{index}"
        for index, (text, cast) in enumerate(zip(texts, casts, strict=True))
    ]
    joins = [
        f"JOIN {reading.table('ducklake_file_partition_value')} v{index} "
        f"ON v{index}.data_file_id = f.data_file_id AND v{index}.table_id = {table.id} "
        f"AND v{index}.partition_key_index = {index}"
        for index in range(len(spec.fields))
    ]
    own = "IS NULL" if spec.id == UNPARTITIONED else f"= {spec.id}"
    conditions = [table.at("f"), f"f.partition_id {own}"]
    stored = zip(texts, table.stored[spec.id], strict=True)
    keys = dict(zip((field.column for field in spec.fields), stored, strict=True))
    if (condition := pushed(projected, keys)) is not None:
        conditions.append(condition)
    columns = ["f.data_file_id", resolved("f", table), "f.record_count", "f.file_size_bytes"]
    found = reading.arrow(
        f"SELECT {', '.join([*columns, *typed])} FROM {reading.table('ducklake_data_file')} f "
        f"{' '.join(joins)} WHERE {' AND '.join(conditions)} ORDER BY f.data_file_id"
    )
    schema = _schema(spec)
    arrays = [column.cast(kind) for column, kind in zip(found.columns, schema.types, strict=True)]
    return pa.table(arrays, schema=schema)


def no_files(spec: PartitionSpec) -> pa.Table:
    """What `read_files` finds where there is nothing."""
    return _schema(spec).empty_table()


def _schema(spec: PartitionSpec) -> pa.Schema:
    own = [(FILE_ID, pa.int64()), (PATH, pa.string()), (ROWS, pa.int64()), (BYTES, pa.int64())]
    return pa.schema([*own, *((field.field_id, field.result_type) for field in spec.fields)])


def count_files(reading: CatalogReading, table: LakeTable) -> dict[int, int]:
    """How many files stand under each partitioning."""
    rows = reading.rows(
        f"SELECT coalesce(f.partition_id, {UNPARTITIONED}), count(*) "
        f"FROM {reading.table('ducklake_data_file')} f WHERE {table.at('f')} GROUP BY 1"
    )
    return {int(spec_id): int(count) for spec_id, count in rows}


@dataclass(frozen=True, slots=True)
class Deletes:
    """Delete files by the data file that they belong to, in order of its id."""

    files: pa.Table

    def of(self, file_ids: pa.ChunkedArray | pa.Array) -> pa.Array:
        """For each data file, given in the order of their ids, its delete files as a list."""
        ids = np.asarray(file_ids)
        owners = np.asarray(self.files.column("data_file_id"))
        starts = np.searchsorted(owners, ids, "left")
        ends = np.searchsorted(owners, ids, "right")
        counts = ends - starts
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        places = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
        chosen = self.files.take(pa.array(places, pa.int64()))
        structs = pa.StructArray.from_arrays(
            [chosen.column(name).combine_chunks() for name in ("path", "bytes", "rows")],
            fields=list(DELETES_TYPE.value_type),
        )
        return pa.ListArray.from_arrays(pa.array(offsets), structs, type=DELETES_TYPE)


def read_deletes(reading: CatalogReading, table: LakeTable) -> Deletes:
    """All delete files at the snapshot, those that are rows of the catalog included."""
    found = reading.arrow(
        f"SELECT d.data_file_id, {resolved('d', table)} AS path, "
        "d.file_size_bytes AS bytes, d.delete_count AS rows "
        f"FROM {reading.table('ducklake_delete_file')} d WHERE {table.at('d')}"
    )
    parts = [_typed(found)]
    if reading.has(inlined_deletes(table)):
        inlined = reading.arrow(
            f"SELECT file_id AS data_file_id, {_text(f'catalog:{inlined_deletes(table)}')} AS path,"
            f" 0 AS bytes, count(*) AS rows FROM {reading.table(inlined_deletes(table))} "
            f"WHERE begin_snapshot <= {table.snapshot} GROUP BY 1"
        )
        parts.append(_typed(inlined))
    every = pa.concat_tables(parts)
    return Deletes(every.sort_by([("data_file_id", "ascending"), ("path", "ascending")]))


def resolved(alias: str, table: LakeTable) -> str:
    """Where a file of the table is, for SQL."""
    path = f"{alias}.path"
    return f"CASE WHEN {path}_is_relative THEN {_text(table.root)} || {path} ELSE {path} END"


def inlined_deletes(table: LakeTable) -> str:
    """The table of the catalog that holds deleted rows of data files."""
    return f"ducklake_inlined_delete_{table.id}"


def _typed(found: pa.Table) -> pa.Table:
    schema = pa.schema([("data_file_id", pa.int64()), *DELETES_TYPE.value_type])
    arrays = [column.cast(kind) for column, kind in zip(found.columns, schema.types, strict=True)]
    return pa.table(arrays, schema=schema)


def read_bounds(
    reading: CatalogReading, table: LakeTable, files: pa.Table, predicate: Predicate
) -> dict[Path, FileBounds]:
    """The bounds of the columns that a predicate reads, in the files' order."""
    found: dict[Path, FileBounds] = {}
    columns = table.columns
    for path in sorted(columns_of(predicate)):
        column_id = columns.schema.id_of(path)
        column = columns.current.get(column_id)
        kind = None if column is None else column_type(column.type)
        if column is None or kind is None or column.type in _UNBOUNDED:
            continue
        if keeps_texts(columns.types_of(column_id)):
            found[path] = _bounds(reading, table, files, column_id, kind.sql, kind.arrow)
    return found


def _bounds(
    reading: CatalogReading,
    table: LakeTable,
    files: pa.Table,
    column_id: int,
    sql_type: str,
    kind: pa.DataType,
) -> FileBounds:
    stats = reading.table("ducklake_file_column_stats")
    reading.connection.register("wanted", pa.table({"id": files.column(FILE_ID)}))
    rows = reading.arrow(
        f"SELECT s.data_file_id, TRY_CAST(s.min_value AS {sql_type}) AS low, "
        f"TRY_CAST(s.max_value AS {sql_type}) AS high, s.value_count, s.null_count, "
        f"CAST(s.contains_nan AS BOOLEAN) AS contains_nan FROM {stats} s "
        "SEMI JOIN wanted ON s.data_file_id = wanted.id "
        f"WHERE s.table_id = {table.id} AND s.column_id = {column_id} ORDER BY s.data_file_id"
    )
    ids = np.asarray(files.column(FILE_ID))
    known = np.asarray(rows.column("data_file_id"))
    places = np.searchsorted(known, ids)
    inside = places < len(known)
    inside[inside] = known[places[inside]] == ids[inside]
    taken = rows.take(pa.array(places, pa.int64(), mask=~inside))
    values, nulls = (_counts(taken, name) for name in ("value_count", "null_count"))
    # Some types have counts of zero whatever there is.
    counted = values + nulls == np.asarray(files.column(ROWS))
    others = np.zeros(len(ids), dtype=bool)
    if pa.types.is_floating(kind):
        others = ~pc.equal(taken.column("contains_nan"), False).fill_null(False).to_numpy()
    return FileBounds(
        taken.column("low").cast(kind).combine_chunks(),
        taken.column("high").cast(kind).combine_chunks(),
        ~counted | (nulls > 0),
        ~counted | (values > 0),
        others,
    )


def _counts(stats: pa.Table, name: str) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = (
        pc.fill_null(stats.column(name).cast(pa.int64()), -1).to_numpy().astype(np.int64)
    )
    return found


def _text(value: str) -> str:
    escaped = value.replace("'", "''")
    return f"'{escaped}'"
