"""Rows as they were written, in the table's columns of today: matched by id, never by name.

A column that was added later has its first default in older rows, one that was dropped is gone,
and one whose type was widened is cast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import SchemaMismatch
from phalanx.model.schema.field_ids import FIELD_ID

_PARQUET_ID = b"PARQUET:field_id"
_OWN_ID = FIELD_ID.encode()
_DASHES = (8, 12, 16, 20)
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)


def id_of(field: pa.Field) -> int | None:
    """The id of a field in a file of DuckLake, or in a schema; None if it has none."""
    metadata = field.metadata or {}
    text = metadata.get(_PARQUET_ID, metadata.get(_OWN_ID))
    return None if text is None else int(text)


def conformed(
    rows: pa.RecordBatch | pa.Table, target: pa.Schema, defaults: Mapping[int, pa.Scalar]
) -> list[pa.Array]:
    """The columns of the target from those of the rows that have the same ids."""
    by_id = {id_of(field): place for place, field in enumerate(rows.schema)}
    found = []
    for field in target:
        place = by_id.get(id_of(field))
        if place is None:
            found.append(_absent(field, rows.num_rows, defaults))
        else:
            written = rows.schema.field(place).type
            found.append(_as_type(_whole(rows.column(place)), written, field, defaults))
    return found


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    # Arrow builds no nested array from a slice.
    return pa.concat_arrays([array]) if array.offset else array


def _absent(field: pa.Field, rows: int, defaults: Mapping[int, pa.Scalar]) -> pa.Array:
    """What rows have in a column that they were written without."""
    default = defaults.get(id_of(field) or 0)
    return pa.nulls(rows, plain(field).type) if default is None else pa.repeat(default, rows)


def _as_type(
    array: pa.Array, written: pa.DataType, field: pa.Field, defaults: Mapping[int, pa.Scalar]
) -> pa.Array:
    """The values in the field's type; those inside nested ones by their own ids."""
    kind = field.type
    if isinstance(array, pa.ExtensionArray):
        array, written = array.storage, array.storage.type
    absent = array.is_null() if array.null_count else None
    if pt.is_struct(kind) and pt.is_struct(written):
        parts = {id_of(written.field(place)): place for place in range(written.num_fields)}
        children = []
        for inner in kind:
            place = parts.get(id_of(inner))
            if place is None:
                children.append(_absent(inner, len(array), defaults))
            else:
                child = array.field(place)
                children.append(_as_type(child, written.field(place).type, inner, defaults))
        names = [plain(inner) for inner in kind]
        return pa.StructArray.from_arrays(children, fields=names, mask=absent)
    if pt.is_list(kind) and (pt.is_list(written) or pt.is_large_list(written)):
        values = _as_type(array.values, written.value_type, kind.value_field, defaults)
        offsets = array.offsets.cast(pa.int32())
        return pa.ListArray.from_arrays(offsets, values, type=plain(field).type, mask=absent)
    if pt.is_map(kind) and pt.is_map(written):
        keys = _as_type(array.keys, written.key_type, kind.key_field, defaults)
        items = _as_type(array.items, written.item_type, kind.item_field, defaults)
        return pa.MapArray.from_arrays(
            array.offsets, keys, items, type=plain(field).type, mask=absent
        )
    return _cast(array, kind, field.name)


def _cast(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    if array.type == kind:
        return array
    if pt.is_string(kind) and pt.is_fixed_size_binary(array.type) and array.type.byte_width == 16:
        return uuid_texts(array)
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"Column {name!r} is {kind}, and a file has it as {array.type}, which does not fit: "
            f"{error}."
        ) from None


def uuid_texts(array: pa.Array) -> pa.Array:
    """UUIDs of 16 bytes as DuckDB writes them."""
    data = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    data = data[16 * array.offset :][: 16 * len(array)].reshape(-1, 16)
    digits = _HEX[data].reshape(-1, 32)
    texts = np.insert(digits, _DASHES, ord("-"), axis=1)
    offsets = np.arange(len(array) + 1, dtype=np.int32) * 36
    found = pa.StringArray.from_buffers(
        len(array), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(texts))
    )
    return pc.if_else(array.is_valid(), found, None) if array.null_count else found


def plain(field: pa.Field) -> pa.Field:
    """The field without ids, as rows have it."""
    kind: Any = field.type
    if pt.is_struct(kind):
        kind = pa.struct([plain(inner) for inner in kind])
    elif pt.is_list(kind):
        kind = pa.list_(plain(kind.value_field))
    elif pt.is_map(kind):
        kind = pa.map_(plain(kind.key_field), plain(kind.item_field))
    return pa.field(field.name, kind, field.nullable)
