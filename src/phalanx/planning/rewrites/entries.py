"""Data files as columns: what a rewrite is planned from, wherever the files come from.

A table of entries belongs to one spec. Each row is a data file: the values of its partition, one
column for each field of the spec, and the columns below, which no field id can be confused with.
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
from phalanx.model.sql.literals import one_form

PATH, BYTES, ROWS = ".path", ".bytes", ".rows"
# Files of one partition are taken in this order, then by path: an id, or a sequence number.
POSITION = ".position"
# The delete files that apply to the data file. `rows` is NULL where nobody knows how many rows of
# this very file they delete.
DELETES = ".deletes"

DELETES_TYPE = pa.list_(
    pa.struct([("path", pa.string()), ("bytes", pa.int64()), ("rows", pa.int64())])
)
FILE_COLUMNS: Mapping[str, pa.DataType] = {
    PATH: pa.string(),
    BYTES: pa.int64(),
    ROWS: pa.int64(),
    POSITION: pa.int64(),
    DELETES: DELETES_TYPE,
}
_OPTIONAL = {POSITION, DELETES}


def file_entries(
    partitions: pa.Table | None,
    paths: Sequence[str] | pa.Array,
    *,
    bytes: Any,
    rows: Any,
    positions: Any = None,
    deletes: Any = None,
) -> pa.Table:
    """Entries under one spec.

    `partitions` has a column for each field, named by its id; None under a spec without fields.
    `rows` are those that were written, deleted ones included. `positions` and `deletes` may be
    left out.
    """
    given = {PATH: paths, BYTES: bytes, ROWS: rows, POSITION: positions, DELETES: deletes}
    columns = {
        name: _column(values, FILE_COLUMNS[name])
        for name, values in given.items()
        if values is not None
    }
    if partitions is not None:
        columns = {name: partitions.column(name) for name in partitions.column_names} | columns
    return pa.table(columns)


def _column(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(kind)
    return pa.array(values, kind)


def checked(entries: pa.Table, spec_id: int, spec: PartitionSpec) -> pa.Table:
    """The entries with every column in its type: the spec's fields in order, then the file's.

    Raises `SchemaMismatch` if a column is missing, or of another type.
    """
    expected = {field.field_id: field.result_type for field in spec.fields}
    arrays = [
        one_form(_existing(entries, name, kind, spec_id).combine_chunks())
        for name, kind in expected.items()
    ]
    for name, kind in FILE_COLUMNS.items():
        if name in _OPTIONAL and name not in entries.column_names:
            arrays.append(_defaults(kind, entries.num_rows))
            continue
        column = _existing(entries, name, kind, spec_id)
        if name != DELETES and column.null_count:
            raise SchemaMismatch(
                f"The entries of spec v{spec_id} have NULL in {name!r}: every file has a value."
            )
        arrays.append(column.combine_chunks())
    return pa.table(arrays, schema=pa.schema([*expected.items(), *FILE_COLUMNS.items()]))


def _existing(entries: pa.Table, name: str, kind: pa.DataType, spec_id: int) -> pa.ChunkedArray:
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


def _defaults(kind: pa.DataType, rows: int) -> pa.Array:
    if kind == DELETES_TYPE:
        return pa.nulls(rows, kind)
    return pa.array(np.zeros(rows, dtype=np.int64))


def numbers(entries: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """A column of whole numbers."""
    found: npt.NDArray[np.int64] = entries.column(name).combine_chunks().to_numpy()
    return found


def delete_counts(
    entries: pa.Table,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """For each file how many delete files it has, and how many of its rows they surely delete."""
    deletes = entries.column(DELETES).combine_chunks()
    files = pc.fill_null(pc.list_value_length(deletes), 0).to_numpy().astype(np.int64)
    if not files.any():
        return files, np.zeros(len(files))
    known = pc.fill_null(pc.struct_field(pc.list_flatten(deletes), "rows"), 0).to_numpy()
    owners = pc.list_parent_indices(deletes).to_numpy()
    deleted = np.bincount(owners, weights=known, minlength=len(files))
    return files, deleted.astype(np.float64)
