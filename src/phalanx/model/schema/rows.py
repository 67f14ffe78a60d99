"""Rows as the namespace schema has them: columns by name, types without loss, NULL where allowed.

What does not fit is refused with the column, the value and what was expected, before anything
is written.
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
from phalanx.model.schema.names import close_names
from phalanx.model.schema.schema import Schema

_FIELD_ID = FIELD_ID.encode()


def reader_of(data: Any) -> pa.RecordBatchReader:
    """The rows of anything that exports an Arrow stream, or of a pandas DataFrame."""
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
                f"Cannot read rows from {type(data).__name__}: expected columns with names, and "
                "it has one without. Make it a table."
            ) from None
    raise SchemaMismatch(
        f"Cannot read rows from {type(data).__name__}: expected Arrow data (pyarrow, polars, "
        "DuckDB: anything with __arrow_c_stream__) or a pandas DataFrame. For a list of dicts "
        "use pa.Table.from_pylist; of a lazy frame or a dataset give what it reads."
    )


def conformed(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in the schema's order and types; `SchemaMismatch` on the first misfit."""
    check_columns(reader.schema, schema)
    plain = without_ids(schema)
    done = 0
    try:
        for batch in reader:
            arrays = [fitted(batch.column(f.name), f, f.name, done) for f in plain]
            yield readable(pa.RecordBatch.from_arrays(arrays, schema=plain))
            done += batch.num_rows
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SchemaMismatch(f"Cannot read the rows after row {done}: {error}") from None


def check_fits(given: pa.Schema, schema: pa.Schema) -> None:
    """Refuse columns and types that no rows could fit by; values are not looked at."""
    nothing = [pa.array([], field.type) for field in given]
    batch = pa.RecordBatch.from_arrays(nothing, schema=given)
    for _ in conformed(pa.RecordBatchReader.from_batches(given, [batch]), schema):
        pass


def readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows; what Lance, DataFusion or Arrow itself misreads is copied."""
    if not any(map(_is_misread, batch.columns)):
        return batch
    arrays = [copied(array) if _is_misread(array) else array for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def copied(array: pa.Array) -> pa.Array:
    """The same values in memory of their own; `take` gives others where vectors are in vectors."""
    return pa.concat_arrays([array])


def _is_misread(array: pa.Array) -> bool:
    """Whether it has a sliced struct in a struct, a sliced vector of vectors, or crooked decimals.

    Lance wants numbers of 16 bytes at multiples of 16; those from a JVM or a file are at any of 8.
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


def one_batch(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The batches as one."""
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
    return pa.concat_batches(batches)


def check_columns(given: pa.Schema, schema: pa.Schema) -> None:
    """Refuse a missing, an extra and a doubled column."""
    missing = [name for name in schema.names if name not in given.names]
    extra = [name for name in given.names if name not in schema.names]
    doubled = sorted({name for name in given.names if given.names.count(name) > 1})
    if missing:
        close = close_names(missing[0], extra)
        hint = f" Did you mean {close[0]!r} as {missing[0]!r}? Rename it." if close else ""
        raise SchemaMismatch(
            f"The data lacks {_columns(missing)}: expected {', '.join(schema.names)}."
            f"{hint or ' Add what is missing, with NULL where there is no value.'}"
        )
    if extra:
        raise SchemaMismatch(
            f"The data has {_columns(extra)}, which the table has not: expected "
            f"{', '.join(schema.names)}. Leave out what is extra, or add it to the table with "
            "add_column."
        )
    if doubled:
        raise SchemaMismatch(f"The data has {_columns(doubled)} more than once: expected once.")


@lru_cache(maxsize=64)
def plain_schema(schema: Schema) -> pa.Schema:
    """The namespace's schema as its rows have it."""
    return without_ids(schema.arrow)


@lru_cache(maxsize=256)
def chosen_schema(schema: Schema, names: tuple[str, ...]) -> pa.Schema:
    """The schema of rows with these columns; a field inside structs goes by its path, as 's.t'."""
    return pa.schema([chosen_field(plain_schema(schema), name) for name in names])


def chosen_field(schema: pa.Schema, name: str) -> pa.Field:
    """A column of a schema, or a field inside one, which has its whole path as its name."""
    top, *inside = name.split(".")
    field = schema.field(top)
    if not inside:
        return field
    nullable = field.nullable
    for part in inside:
        field = field.type.field(part)
        nullable = nullable or field.nullable
    return field.with_name(name).with_nullable(nullable)


def chosen_column(rows: pa.RecordBatch | pa.Table, name: str) -> pa.Array | pa.ChunkedArray:
    """A column of some rows, or a field inside one: NULL where what it is in is NULL."""
    if name in rows.schema.names:
        return rows.column(name)
    top, *inside = name.split(".")
    found = rows.column(top)
    for part in inside:
        found = pc.struct_field(found, part)
    return found


def is_short(kind: pa.DataType) -> bool:
    """Whether each value of this type takes a few bytes."""
    return bool(pt.is_primitive(kind)) or bool(pt.is_boolean(kind))


def without_ids(schema: pa.Schema) -> pa.Schema:
    """The schema as rows have it: ids belong to the table."""
    return pa.schema([_bare(field) for field in schema], metadata=schema.metadata)


def _bare(field: pa.Field) -> pa.Field:
    kind = field.type
    if pt.is_struct(kind):
        kind = pa.struct([_bare(child) for child in kind])
    elif pt.is_fixed_size_list(kind):
        kind = pa.list_(_bare(kind.value_field), kind.list_size)
    elif pt.is_large_list(kind):
        kind = pa.large_list(_bare(kind.value_field))
    elif pt.is_list(kind):
        kind = pa.list_(_bare(kind.value_field))
    elif pt.is_map(kind):
        kind = pa.map_(_bare(kind.key_field), _bare(kind.item_field), kind.keys_sorted)
    metadata = {key: text for key, text in (field.metadata or {}).items() if key != _FIELD_ID}
    return pa.field(field.name, kind, field.nullable, metadata or None)


def _columns(names: list[str]) -> str:
    return f"the column{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


def fitted(array: pa.Array, field: pa.Field, path: str, done: int) -> pa.Array:
    """The array in the field's type, without loss; NULL only where the field allows it."""
    if array.type != field.type:
        array = _cast(array, field.type, path)
    _check_nulls(array, field, path, done)
    return array


def _cast(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """The values in another type of their family; the children of nested types one by one."""
    if pt.is_dictionary(array.type) and not pt.is_dictionary(kind):
        array = _decoded(array)
    if array.type == kind:
        return array
    if pt.is_null(array.type):
        return pa.nulls(len(array), kind)
    if not is_same_family(array.type, kind):
        raise SchemaMismatch(
            f"Column {path!r} is {kind}, but the data has it as {array.type}. Cast it first."
        )
    if pt.is_nested(kind) and array.offset:
        # Arrow builds no nested array with NULLs from a slice.
        array = copied(array)
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


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    values = array.dictionary
    if pt.is_string_view(values.type) or pt.is_binary_view(values.type):
        # Arrow cannot take from a view.
        values = values.cast(pa.string() if pt.is_string_view(values.type) else pa.binary())
    return values.take(array.indices)


def _cast_struct(array: pa.StructArray, kind: pa.StructType, path: str) -> pa.Array:
    given = [child.name for child in array.type]
    wanted = [child.name for child in kind]
    if sorted(given) != sorted(wanted):
        raise SchemaMismatch(
            f"Column {path!r} has the fields {', '.join(wanted)}, but the data has "
            f"{', '.join(given)}. Make them the same."
        )
    children = [
        _cast(array.field(child.name), child.type, f"{path}.{child.name}") for child in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=_nulls_of(array))


def _cast_list(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """The list with its items cast by themselves.

    Arrow's own cast drops and adds struct fields, and refuses items that are NULL where their
    fields are not nullable, though a NULL has no fields.
    """
    if pt.is_fixed_size_list(kind):
        given = pa.field(kind.value_field.name, array.type.value_type)
        array = array.cast(pa.list_(given, kind.list_size))
        values = _cast(array.values, kind.value_type, f"{path}[]")
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=_nulls_of(array))
    offsets, items = offsets_and_items(array)
    build, width = (
        (pa.LargeListArray, pa.int64()) if pt.is_large_list(kind) else (pa.ListArray, pa.int32())
    )
    values = _cast(items, kind.value_type, f"{path}[]")
    return build.from_arrays(offsets.cast(width), values, type=kind, mask=_nulls_of(array))


def offsets_and_items(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Where the items of each list begin and end, and the items; of a list that is no slice."""
    if pt.is_fixed_size_list(array.type):
        lengths = array.is_valid().to_numpy(zero_copy_only=False) * array.type.list_size
        return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64()), array.flatten()
    if not (pt.is_list(array.type) or pt.is_large_list(array.type)):
        array = array.cast(pa.large_list(array.type.value_field))
    return array.offsets, array.values


def _cast_map(array: pa.MapArray, kind: pa.MapType, path: str) -> pa.Array:
    keys = _cast(array.keys, kind.key_type, f"{path}[]")
    items = _cast(array.items, kind.item_type, f"{path}[]")
    return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=_nulls_of(array))


def _nulls_of(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _check_exact(array: pa.Array, cast: pa.Array, path: str) -> None:
    """A number that the float type cannot hold is refused, not rounded.

    The items of lists and vectors may be rounded, as embeddings are; but never to infinity.
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
    """Refuse NULL where there must be none; `numbers` are the rows that nested values are in."""
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
        # Children under a NULL struct have no value of their own.
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
        # Arrow itself has no NULL for a key.
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


def is_same_family(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pt.is_dictionary(wanted):
        inner = given.value_type if pt.is_dictionary(given) else given
        return is_same_family(inner, wanted.value_type)
    if _is_list(given) and _is_list(wanted):
        return given.value_type == wanted.value_type or is_same_family(
            given.value_type, wanted.value_type
        )
    if pt.is_null(given):
        return True
    if pt.is_floating(given) and not pt.is_floating(wanted):
        return False
    if pt.is_decimal(given) and not pt.is_decimal(wanted):
        # Spark has no other type for unsigned 64-bit numbers.
        return given.scale == 0 and bool(pt.is_integer(wanted))
    return any(belongs(given) and belongs(wanted) for belongs in _FAMILIES)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))
