"""Entries: tables of data files of any source, from which a rewrite is planned.

A table of entries belongs to one spec. Each row is a data file, with one column for each field of
the spec and the columns below, which cannot collide with field ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import SchemaMismatch
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql.literals import normalize_values

FILE_PATH, FILE_BYTES, FILE_ROWS = ".path", ".bytes", ".rows"
# An id or sequence number. Files of one partition are ordered by it, then by path.
FILE_POSITION = ".position"
# The delete files that apply to the data file. `rows` is NULL if it is unknown how many rows of
# this data file they delete.
FILE_DELETES = ".deletes"

DELETES_TYPE = pa.list_(
    pa.struct([("path", pa.string()), ("bytes", pa.int64()), ("rows", pa.int64())])
)
FILE_COLUMNS: Mapping[str, pa.DataType] = {
    FILE_PATH: pa.string(),
    FILE_BYTES: pa.int64(),
    FILE_ROWS: pa.int64(),
    FILE_POSITION: pa.int64(),
    FILE_DELETES: DELETES_TYPE,
}
_OPTIONAL = {FILE_POSITION, FILE_DELETES}


def file_entries(
    partitions: pa.Table | None,
    paths: Sequence[str] | pa.Array,
    *,
    bytes: Any,
    rows: Any,
    positions: Any = None,
    deletes: Any = None,
) -> pa.Table:
    """Build the entries of one spec.

    `partitions` has a column for each field id; it is None for a spec without fields. `rows` counts
    the written rows, including deleted ones. `positions` and `deletes` are optional.
    """
    given = {
        FILE_PATH: paths,
        FILE_BYTES: bytes,
        FILE_ROWS: rows,
        FILE_POSITION: positions,
        FILE_DELETES: deletes,
    }
    columns = {
        name: _to_column(values, FILE_COLUMNS[name])
        for name, values in given.items()
        if values is not None
    }
    if partitions is not None:
        columns = {name: partitions.column(name) for name in partitions.column_names} | columns
    return pa.table(columns)


def _to_column(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(kind)
    return pa.array(values, kind)


def normalize_entries(entries: pa.Table, spec_id: int, spec: PartitionSpec) -> pa.Table:
    """Return the entries with the spec's fields in order, then the file columns.

    Raise `SchemaMismatch` if a column is missing or has another type.
    """
    expected = {field.field_id: field.result_type for field in spec.fields}
    arrays = [
        normalize_values(_get_column(entries, name, kind, spec_id).combine_chunks())
        for name, kind in expected.items()
    ]
    for name, kind in FILE_COLUMNS.items():
        if name in _OPTIONAL and name not in entries.column_names:
            arrays.append(_make_defaults(kind, entries.num_rows))
            continue
        column = _get_column(entries, name, kind, spec_id)
        if name != FILE_DELETES and column.null_count:
            raise SchemaMismatch(
                f"The entries of spec v{spec_id} have NULL in {name!r}: every file must have "
                "a value."
            )
        arrays.append(column.combine_chunks())
    return pa.table(arrays, schema=pa.schema([*expected.items(), *FILE_COLUMNS.items()]))


def _get_column(entries: pa.Table, name: str, kind: pa.DataType, spec_id: int) -> pa.ChunkedArray:
    if entries.column_names.count(name) != 1:
        raise SchemaMismatch(
            f"The entries of spec v{spec_id} must have one column {name!r} ({kind}). "
            f"Their columns are {', '.join(entries.column_names)}."
        )
    column = entries.column(name)
    if column.type != kind:
        raise SchemaMismatch(
            f"The entries of spec v{spec_id} have column {name!r} as {column.type}, but it is "
            f"{kind}. Cast it first."
        )
    return column


def _make_defaults(kind: pa.DataType, rows: int) -> pa.Array:
    if kind == DELETES_TYPE:
        return pa.nulls(rows, kind)
    return pa.array(np.zeros(rows, dtype=np.int64))


def read_numbers(entries: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """Return a column of whole numbers as an array."""
    column: npt.NDArray[np.int64] = entries.column(name).combine_chunks().to_numpy()
    return column


def count_deletes(
    entries: pa.Table,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return for each file the number of delete files, and of rows known to be deleted."""
    deletes = entries.column(FILE_DELETES).combine_chunks()
    files = pc.fill_null(pc.list_value_length(deletes), 0).to_numpy().astype(np.int64)
    if not files.any():
        return files, np.zeros(len(files))
    known = pc.fill_null(pc.struct_field(pc.list_flatten(deletes), "rows"), 0).to_numpy()
    owners = pc.list_parent_indices(deletes).to_numpy()
    deleted = np.bincount(owners, weights=known, minlength=len(files))
    return files, deleted.astype(np.float64)
