"""Units of a DuckLake table: one file each, which any process can read without the catalog.

Rows are converted to the current columns of the table, matched by field id and never by name. A
column added later has its initial default in older rows, a dropped one is omitted, and one whose
type was widened is cast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from phalanx.errors import InvalidCatalog, SchemaMismatch, StorageFailure
from phalanx.foreign.file_systems import open_input
from phalanx.model.schema.field_ids import FIELD_ID
from phalanx.model.schema.schema import Schema

# In a file with rows of several snapshots, the snapshot that added each row.
_SNAPSHOT_COLUMN = "_ducklake_internal_snapshot_id"
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of the lake; if `snapshot` is set, only its rows up to that snapshot count."""

    path: str
    options: tuple[tuple[str, str], ...] = field(repr=False)
    snapshot: int | None = None

    def open_parquet(self) -> pq.ParquetFile:
        """Open the file; raise `StorageFailure` if it is missing or not Parquet."""
        try:
            return pq.ParquetFile(open_input(self.path, dict(self.options)))
        except (OSError, pa.ArrowException) as error:
            raise StorageFailure(
                f"Cannot read {self.path}, which the DuckLake catalog lists: {error}"
            ) from None


@dataclass(frozen=True, slots=True, eq=False)
class FileUnit:
    """A data file, the rows deleted from it, and the mapping of its columns.

    For a file that DuckLake did not write, `names` maps its columns to field ids and `constants`
    holds the values from its path.
    """

    id: str
    rows: int
    bytes: int
    file: LakeFile
    schema: Schema
    deletes: tuple[LakeFile, ...]
    deleted: pa.Array
    defaults: Mapping[int, pa.Scalar]
    names: Mapping[tuple[str, ...], int] | None = None
    constants: Mapping[int, pa.Scalar] | None = None

    def check(self) -> None:
        """Raise if a file of the unit is missing or not Parquet."""
        for file in (self.file, *self.deletes):
            file.open_parquet().close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the table's columns, without deleted ones."""
        target = pa.schema([without_field_ids(field) for field in self.schema.arrow])
        gone = self._deleted_positions()
        source = self.file.open_parquet()
        known = {**self.defaults, **(self.constants or {})}
        with source:
            start = 0
            for batch in _read_batches(source, self.file.path):
                kept = self._keep_mask(batch, gone, start)
                start += batch.num_rows
                arrays = match_columns(self._with_field_ids(batch), self.schema.arrow, known)
                rows = pa.RecordBatch.from_arrays(arrays, schema=target)
                yield rows if kept is None else rows.filter(pa.array(kept))

    def _keep_mask(
        self, batch: pa.RecordBatch, gone: npt.NDArray[np.int64], start: int
    ) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the visible rows of the batch; None if all are."""
        first, last = np.searchsorted(gone, (start, start + batch.num_rows))
        later = None
        if self.file.snapshot is not None:
            numbers = batch.column(_SNAPSHOT_COLUMN).to_numpy(zero_copy_only=False)
            later = numbers > self.file.snapshot
        if first == last and later is None:
            return None
        kept = np.ones(batch.num_rows, dtype=bool) if later is None else ~later
        kept[gone[first:last] - start] = False
        return kept

    def _deleted_positions(self) -> npt.NDArray[np.int64]:
        """Return the positions of deleted rows in the file, in order."""
        found = [np.asarray(self.deleted, dtype=np.int64)]
        found += [read_delete_positions(file) for file in self.deletes]
        return np.unique(np.concatenate(found))

    def _with_field_ids(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with field ids on its columns."""
        if self.names is None:
            return batch
        fields = [_add_field_ids(field, self.names, ()) for field in batch.schema]
        return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


@dataclass(frozen=True, slots=True, eq=False)
class InlinedUnit:
    """Rows that were inlined in the catalog; the unit carries them, as they are few."""

    id: str
    rows: int
    bytes: int
    stored: pa.Table

    def check(self) -> None:
        """Do nothing: there is no file that could be missing."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the table's columns, without deleted ones."""
        yield from self.stored.to_batches(max_chunksize=_BATCH_ROWS)


def read_delete_positions(file: LakeFile) -> npt.NDArray[np.int64]:
    """Return the positions of the rows that a delete file deletes."""
    with file.open_parquet() as source:
        columns = ["pos", *([] if file.snapshot is None else [_SNAPSHOT_COLUMN])]
        rows = source.read(columns=columns)
    if file.snapshot is not None:
        rows = rows.filter(pc.less_equal(rows.column(_SNAPSHOT_COLUMN), file.snapshot))
    found: npt.NDArray[np.int64] = rows.column("pos").to_numpy().astype(np.int64)
    return found


def count_visible_rows(file: LakeFile) -> int:
    """Count the rows of a file that are visible at its snapshot."""
    with file.open_parquet() as source:
        if _SNAPSHOT_COLUMN not in source.schema_arrow.names:
            raise InvalidCatalog(
                f"{file.path} has no column {_SNAPSHOT_COLUMN}, although ducklake_data_file says "
                "that it has rows of several snapshots."
            )
        numbers = source.read(columns=[_SNAPSHOT_COLUMN]).column(_SNAPSHOT_COLUMN)
    return int(np.count_nonzero(numbers.to_numpy() <= file.snapshot))


def _read_batches(source: pq.ParquetFile, path: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from source.iter_batches(batch_size=_BATCH_ROWS)
    except (OSError, pa.ArrowException) as error:
        raise StorageFailure(f"Cannot read the rows of {path}: {error}") from None


def _add_field_ids(
    field: pa.Field, names: Mapping[tuple[str, ...], int], above: tuple[str, ...]
) -> pa.Field:
    path = (*above, field.name)
    kind: Any = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_add_field_ids(inner, names, path) for inner in kind])
    found = names.get(path)
    metadata = None if found is None else {"PARQUET:field_id": str(found)}
    return pa.field(field.name, kind, field.nullable, metadata)


_PARQUET_ID = b"PARQUET:field_id"
_OWN_ID = FIELD_ID.encode()
_DASHES = (8, 12, 16, 20)
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)


def field_id_of(field: pa.Field) -> int | None:
    """Return the id of a field of a DuckLake file or of a schema; None if it has none."""
    metadata = field.metadata or {}
    text = metadata.get(_PARQUET_ID, metadata.get(_OWN_ID))
    return None if text is None else int(text)


def match_columns(
    rows: pa.RecordBatch | pa.Table, target: pa.Schema, defaults: Mapping[int, pa.Scalar]
) -> list[pa.Array]:
    """Return the columns of the target, taken from the columns of the rows with the same ids."""
    by_id = {field_id_of(target_field): index for index, target_field in enumerate(rows.schema)}
    found = []
    for target_field in target:
        index = by_id.get(field_id_of(target_field))
        if index is None:
            found.append(_fill_absent(target_field, rows.num_rows, defaults))
        else:
            written = rows.schema.field(index).type
            found.append(
                _convert(_combine_chunks(rows.column(index)), written, target_field, defaults)
            )
    return found


def _combine_chunks(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    # Arrow cannot build a nested array from a slice.
    return pa.concat_arrays([array]) if array.offset else array


def _fill_absent(field: pa.Field, rows: int, defaults: Mapping[int, pa.Scalar]) -> pa.Array:
    """Return the values of a column that the rows were written without."""
    default = defaults.get(field_id_of(field) or 0)
    return (
        pa.nulls(rows, without_field_ids(field).type)
        if default is None
        else pa.repeat(default, rows)
    )


def _convert(
    array: pa.Array, written: pa.DataType, field: pa.Field, defaults: Mapping[int, pa.Scalar]
) -> pa.Array:
    """Convert values to the type of the field; children of nested types match by id."""
    kind = field.type
    if isinstance(array, pa.ExtensionArray):
        array, written = array.storage, array.storage.type
    absent = array.is_null() if array.null_count else None
    if pt.is_struct(kind) and pt.is_struct(written):
        parts = {field_id_of(written.field(index)): index for index in range(written.num_fields)}
        children = []
        for inner in kind:
            index = parts.get(field_id_of(inner))
            if index is None:
                children.append(_fill_absent(inner, len(array), defaults))
            else:
                child = array.field(index)
                children.append(_convert(child, written.field(index).type, inner, defaults))
        names = [without_field_ids(inner) for inner in kind]
        return pa.StructArray.from_arrays(children, fields=names, mask=absent)
    if pt.is_list(kind) and (pt.is_list(written) or pt.is_large_list(written)):
        values = _convert(array.values, written.value_type, kind.value_field, defaults)
        offsets = array.offsets.cast(pa.int32())
        return pa.ListArray.from_arrays(
            offsets, values, type=without_field_ids(field).type, mask=absent
        )
    if pt.is_map(kind) and pt.is_map(written):
        keys = _convert(array.keys, written.key_type, kind.key_field, defaults)
        items = _convert(array.items, written.item_type, kind.item_field, defaults)
        return pa.MapArray.from_arrays(
            array.offsets, keys, items, type=without_field_ids(field).type, mask=absent
        )
    return _cast(array, kind, field.name)


def _cast(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    if array.type == kind:
        return array
    if pt.is_string(kind) and pt.is_fixed_size_binary(array.type) and array.type.byte_width == 16:
        return format_uuids(array)
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"Column {name!r} is {kind}, but a file has it as {array.type}, which cannot be cast: "
            f"{error}."
        ) from None


def format_uuids(array: pa.Array) -> pa.Array:
    """Format UUIDs of 16 bytes as DuckDB does."""
    data = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    data = data[16 * array.offset :][: 16 * len(array)].reshape(-1, 16)
    digits = _HEX[data].reshape(-1, 32)
    texts = np.insert(digits, _DASHES, ord("-"), axis=1)
    offsets = np.arange(len(array) + 1, dtype=np.int32) * 36
    found = pa.StringArray.from_buffers(
        len(array), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(texts))
    )
    return pc.if_else(array.is_valid(), found, None) if array.null_count else found


def without_field_ids(field: pa.Field) -> pa.Field:
    """Return the field without ids, also inside nested types."""
    kind: Any = field.type
    if pt.is_struct(kind):
        kind = pa.struct([without_field_ids(inner) for inner in kind])
    elif pt.is_list(kind):
        kind = pa.list_(without_field_ids(kind.value_field))
    elif pt.is_map(kind):
        kind = pa.map_(without_field_ids(kind.key_field), without_field_ids(kind.item_field))
    return pa.field(field.name, kind, field.nullable)
