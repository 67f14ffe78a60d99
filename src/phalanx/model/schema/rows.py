"""Conforming rows to the table's schema: columns by name, casts without loss, allowed NULLs.

Rows that do not fit are refused before anything is written; the error has the column, the value
and what was expected.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import SchemaMismatch
from phalanx.model.schema.field_ids import FIELD_ID
from phalanx.model.schema.names import find_close_names
from phalanx.model.schema.schema import Schema

_FIELD_ID = FIELD_ID.encode()


def to_reader(data: Any) -> pa.RecordBatchReader:
    """Return a reader of anything that exports an Arrow stream, or of a pandas DataFrame."""
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.Table):
        return data.to_reader()
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        try:
            return pa.Table.from_pandas(data, preserve_index=False).to_reader()
        except (ValueError, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatch(f"Cannot read the DataFrame as Arrow: {error}") from None
    if hasattr(data, "__arrow_c_stream__"):
        try:
            return pa.RecordBatchReader.from_stream(data)
        except pa.ArrowInvalid:
            raise SchemaMismatch(
                f"Cannot read rows from {type(data).__name__}: expected named columns. "
                "Make it a table."
            ) from None
    raise SchemaMismatch(
        f"Cannot read rows from {type(data).__name__}: expected Arrow data (pyarrow, polars, "
        "DuckDB: anything with __arrow_c_stream__) or a pandas DataFrame. For a list of dicts "
        "use pa.Table.from_pylist; collect a lazy frame, and pass the reader of a dataset."
    )


def conform_rows(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the batches in the schema's order and types; raise `SchemaMismatch` if one misfits."""
    check_column_names(reader.schema, schema)
    plain = remove_ids(schema)
    done = 0
    try:
        for batch in reader:
            arrays = [fit_array(batch.column(f.name), f, f.name, done) for f in plain]
            yield make_readable(pa.RecordBatch.from_arrays(arrays, schema=plain))
            done += batch.num_rows
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SchemaMismatch(f"Cannot read the rows after row {done}: {error}") from None


def check_schema_fits(given: pa.Schema, schema: pa.Schema) -> None:
    """Refuse columns and types that cannot fit the schema, regardless of the values."""
    nothing = [pa.array([], field.type) for field in given]
    batch = pa.RecordBatch.from_arrays(nothing, schema=given)
    for _ in conform_rows(pa.RecordBatchReader.from_batches(given, [batch]), schema):
        pass


def make_readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows; copy columns that Lance, DataFusion or Arrow would misread."""
    if not any(map(_is_misread, batch.columns)):
        return batch
    arrays = [copy_array(array) if _is_misread(array) else array for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def copy_array(array: pa.Array) -> pa.Array:
    """Copy an array to its own memory; `take` returns wrong values for vectors of vectors."""
    return pa.concat_arrays([array])


def _is_misread(array: pa.Array) -> bool:
    """Return whether it has a sliced inner struct or vector, or misaligned decimals.

    Lance requires 16-byte numbers at multiples of 16; a JVM or a file aligns them only to 8.
    """
    kind = array.type
    if pt.is_decimal128(kind) or pt.is_decimal256(kind):
        return bool(array.buffers()[1].address % 16)
    if pt.is_struct(kind):
        children = [array.field(place) for place in range(kind.num_fields)]
        return any(
            (pt.is_struct(child.type) and child.offset != 0) or _is_misread(child)
            for child in children
        )
    if pt.is_fixed_size_list(kind):
        return bool(pt.is_fixed_size_list(kind.value_type) and array.offset != 0)
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _is_misread(array.values)
    if pt.is_map(kind):
        return _is_misread(array.keys) or _is_misread(array.items)
    return bool(pt.is_dictionary(kind) and _is_misread(array.dictionary))


def combine_batches(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Combine the batches into one."""
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
    return pa.concat_batches(batches)


def check_column_names(given: pa.Schema, schema: pa.Schema) -> None:
    """Refuse missing, extra and duplicate columns."""
    missing = [name for name in schema.names if name not in given.names]
    extra = [name for name in given.names if name not in schema.names]
    doubled = sorted({name for name in given.names if given.names.count(name) > 1})
    if missing:
        close = find_close_names(missing[0], extra)
        hint = f" Did you mean {close[0]!r} as {missing[0]!r}? Rename it." if close else ""
        raise SchemaMismatch(
            f"The data lacks {_format_columns(missing)}: expected {', '.join(schema.names)}."
            f"{hint or ' Add what is missing, with NULL where there is no value.'}"
        )
    if extra:
        raise SchemaMismatch(
            f"The data has {_format_columns(extra)}, which the table does not have: expected "
            f"{', '.join(schema.names)}. Leave them out, or add them to the table with "
            "add_column."
        )
    if doubled:
        raise SchemaMismatch(
            f"The data has {_format_columns(doubled)} more than once: expected once."
        )


@lru_cache(maxsize=64)
def to_row_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of the table's rows, without field ids."""
    return remove_ids(schema.arrow)


@lru_cache(maxsize=256)
def select_schema(schema: Schema, names: tuple[str, ...]) -> pa.Schema:
    """Return the schema of rows with these columns; struct fields are named by path, as 's.t'."""
    return pa.schema([select_field(to_row_schema(schema), name) for name in names])


def select_field(schema: pa.Schema, name: str) -> pa.Field:
    """Return a column of a schema, or a struct field, named by its whole path."""
    top, *inside = name.split(".")
    field = schema.field(top)
    if not inside:
        return field
    nullable = field.nullable
    for part in inside:
        field = field.type.field(part)
        nullable = nullable or field.nullable
    return field.with_name(name).with_nullable(nullable)


def select_column(rows: pa.RecordBatch | pa.Table, name: str) -> pa.Array | pa.ChunkedArray:
    """Return a column of some rows, or a struct field: NULL where its struct is NULL."""
    if name in rows.schema.names:
        return rows.column(name)
    top, *inside = name.split(".")
    found = rows.column(top)
    for part in inside:
        found = pc.struct_field(found, part)
    return found


def is_small_type(kind: pa.DataType) -> bool:
    """Return whether each value of this type takes only a few bytes."""
    return bool(pt.is_primitive(kind)) or bool(pt.is_boolean(kind))


def remove_ids(schema: pa.Schema) -> pa.Schema:
    """Return the schema without field ids: they belong to the table, not to rows."""
    return pa.schema([_remove_id(field) for field in schema], metadata=schema.metadata)


def _remove_id(field: pa.Field) -> pa.Field:
    kind = field.type
    if pt.is_struct(kind):
        kind = pa.struct([_remove_id(child) for child in kind])
    elif pt.is_fixed_size_list(kind):
        kind = pa.list_(_remove_id(kind.value_field), kind.list_size)
    elif pt.is_large_list(kind):
        kind = pa.large_list(_remove_id(kind.value_field))
    elif pt.is_list(kind):
        kind = pa.list_(_remove_id(kind.value_field))
    elif pt.is_map(kind):
        kind = pa.map_(_remove_id(kind.key_field), _remove_id(kind.item_field), kind.keys_sorted)
    metadata = {key: text for key, text in (field.metadata or {}).items() if key != _FIELD_ID}
    return pa.field(field.name, kind, field.nullable, metadata or None)


def _format_columns(names: list[str]) -> str:
    return f"the column{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


def fit_array(array: pa.Array, field: pa.Field, path: str, done: int) -> pa.Array:
    """Cast the array to the field's type without loss; refuse NULL if it is not nullable."""
    if array.type != field.type:
        array = _cast_array(array, field.type, path)
    _check_nulls(array, field, path, done)
    return array


def _cast_array(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Cast the values to another type of their family; cast nested children one by one."""
    if pt.is_dictionary(array.type) and not pt.is_dictionary(kind):
        array = _decode(array)
    if array.type == kind:
        return array
    if pt.is_null(array.type):
        return pa.nulls(len(array), kind)
    if not is_same_family(array.type, kind):
        raise SchemaMismatch(
            f"Column {path!r} is {kind}, but the data has it as {array.type}. Cast it first."
        )
    if pt.is_nested(kind) and array.offset:
        # Arrow cannot build a nested array with NULLs from a slice.
        array = copy_array(array)
    try:
        if pt.is_struct(kind):
            return _cast_struct(array, kind, path)
        if pt.is_map(kind):
            return _cast_map(array, kind, path)
        if _is_list(kind):
            return _cast_list(array, kind, path)
        cast = array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"Column {path!r} is {kind}, and the data ({array.type}) does not fit: {error}. "
            "Correct the values, or promote the column."
        ) from None
    if pt.is_floating(kind):
        _check_exact(array, cast, path)
    return cast


def _decode(array: pa.DictionaryArray) -> pa.Array:
    values = array.dictionary
    if pt.is_string_view(values.type) or pt.is_binary_view(values.type):
        # Arrow cannot take from a view.
        values = values.cast(pa.string() if pt.is_string_view(values.type) else pa.binary())
    return values.take(array.indices)


def _cast_struct(array: pa.StructArray, kind: pa.StructType, path: str) -> pa.Array:
    given = [child.name for child in array.type]
    expected = [child.name for child in kind]
    if sorted(given) != sorted(expected):
        raise SchemaMismatch(
            f"Column {path!r} has the fields {', '.join(expected)}, but the data has "
            f"{', '.join(given)}. Make them the same."
        )
    children = [
        _cast_array(array.field(child.name), child.type, f"{path}.{child.name}") for child in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=_nulls_of(array))


def _cast_list(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Cast the items of a list on their own.

    Arrow's cast of a list drops and adds struct fields, and refuses NULL items whose fields are
    not nullable, though a NULL has no fields.
    """
    if pt.is_fixed_size_list(kind):
        given = pa.field(kind.value_field.name, array.type.value_type)
        array = array.cast(pa.list_(given, kind.list_size))
        values = _cast_array(array.values, kind.value_type, f"{path}[]")
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=_nulls_of(array))
    offsets, items = split_list(array)
    build, width = (
        (pa.LargeListArray, pa.int64()) if pt.is_large_list(kind) else (pa.ListArray, pa.int32())
    )
    values = _cast_array(items, kind.value_type, f"{path}[]")
    return build.from_arrays(offsets.cast(width), values, type=kind, mask=_nulls_of(array))


def split_list(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the offsets and the items of a list array that is not a slice."""
    if pt.is_fixed_size_list(array.type):
        lengths = array.is_valid().to_numpy(zero_copy_only=False) * array.type.list_size
        return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64()), array.flatten()
    if not (pt.is_list(array.type) or pt.is_large_list(array.type)):
        array = array.cast(pa.large_list(array.type.value_field))
    return array.offsets, array.values


def _cast_map(array: pa.MapArray, kind: pa.MapType, path: str) -> pa.Array:
    keys = _cast_array(array.keys, kind.key_type, f"{path}[]")
    items = _cast_array(array.items, kind.item_type, f"{path}[]")
    return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=_nulls_of(array))


def _nulls_of(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _check_exact(array: pa.Array, cast: pa.Array, path: str) -> None:
    """Refuse a number that the float type cannot hold exactly.

    Items of lists and vectors may be rounded, as embeddings are, but never to infinity.
    """
    back = cast.cast(array.type, safe=False)
    same = pc.equal(back, array)
    if pt.is_floating(array.type):
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(array)))
        if "[]" in path:
            same = pc.or_(same, pc.is_finite(back))
    if not pc.all(same, min_count=0).as_py():
        worst = array.filter(pc.invert(pc.fill_null(same, True)))[0].as_py()
        raise SchemaMismatch(
            f"Column {path!r} is {cast.type}, which cannot hold {worst!r} ({array.type}) exactly. "
            f"Round it yourself with a cast, or promote the column to {array.type}."
        )


def _check_nulls(
    array: pa.Array, field: pa.Field, path: str, done: int, numbers: pa.Array | None = None
) -> None:
    """Refuse NULL in a non-nullable field; `numbers` are the row numbers of nested values."""
    if not field.nullable and array.null_count:
        place = pc.index(array.is_null(), True).as_py()
        row = done + (place if numbers is None else numbers[place].as_py())
        raise SchemaMismatch(
            f"Column {path!r} is not nullable, but row {row} of the data has NULL in it. "
            "Give it a value, or leave the row out."
        )
    kind = field.type
    if not _forbids_null_inside(kind):
        return
    if numbers is None:
        numbers = pa.array(range(len(array)), pa.int64())
    if pt.is_struct(kind):
        # Children of a NULL struct have no value.
        present, inside = array.filter(array.is_valid()), numbers.filter(array.is_valid())
        for child in kind:
            values = pc.struct_field(present, child.name)
            _check_nulls(values, child, f"{path}.{child.name}", done, inside)
    elif _is_list(kind):
        inside = numbers.take(pc.list_parent_indices(array))
        _check_nulls(pc.list_flatten(array), kind.value_field, f"{path}[]", done, inside)
    elif pt.is_map(kind):
        present, inside = array.filter(array.is_valid()), numbers.take(_rows_of_items(array))
        for part, items in ((kind.key_field, present.keys), (kind.item_field, present.items)):
            _check_nulls(items, part, f"{path}[]", done, inside)


def _rows_of_items(array: pa.MapArray) -> pa.Array:
    offsets = array.offsets.to_numpy()
    counts = np.diff(offsets) * array.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(np.repeat(np.arange(len(array)), counts), pa.int64())


def _forbids_null(field: pa.Field) -> bool:
    return not field.nullable or _forbids_null_inside(field.type)


def _forbids_null_inside(kind: pa.DataType) -> bool:
    if pt.is_map(kind):
        # Arrow allows no NULL as a key.
        return _forbids_null_inside(kind.key_type) or _forbids_null(kind.item_field)
    return any(_forbids_null(kind.field(place)) for place in range(kind.num_fields))


_FAMILIES = (
    lambda kind: pt.is_integer(kind) or pt.is_decimal(kind) or pt.is_floating(kind),
    lambda kind: pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind),
    lambda kind: (
        pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_fixed_size_binary(kind)
        or pt.is_binary_view(kind)
    ),
    pt.is_date,
    pt.is_time,
    pt.is_duration,
    lambda kind: pt.is_timestamp(kind) and kind.tz is None,
    lambda kind: pt.is_timestamp(kind) and kind.tz is not None,
    pt.is_struct,
    pt.is_map,
    pt.is_boolean,
)


def is_same_family(given: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether values of one type may be cast implicitly to the other."""
    if pt.is_dictionary(expected):
        inner = given.value_type if pt.is_dictionary(given) else given
        return is_same_family(inner, expected.value_type)
    if _is_list(given) and _is_list(expected):
        return given.value_type == expected.value_type or is_same_family(
            given.value_type, expected.value_type
        )
    if pt.is_null(given):
        return True
    if pt.is_floating(given) and not pt.is_floating(expected):
        return False
    if pt.is_decimal(given) and not pt.is_decimal(expected):
        # Spark's only type for unsigned 64-bit numbers is a decimal.
        return given.scale == 0 and bool(pt.is_integer(expected))
    return any(belongs(given) and belongs(expected) for belongs in _FAMILIES)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))
