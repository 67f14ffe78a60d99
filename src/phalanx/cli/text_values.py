"""Values that CSV and JSON write as text, as the columns of a table have them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

# A time of day, and after it a zone.
_HAS_ZONE = r"[T ]\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"


def csv_type(kind: pa.DataType) -> pa.DataType:
    """The type to read a CSV column as; `parsed` makes the table's type of it."""
    if pt.is_dictionary(kind):
        return csv_type(kind.value_type)
    return pa.string() if _is_zoned(kind) or _is_bytes(kind) else kind


def json_type(kind: pa.DataType) -> pa.DataType:
    """The type to read a JSON field as; `parsed` makes the table's type of it."""
    if pt.is_dictionary(kind):
        return json_type(kind.value_type)
    if _is_zoned(kind) or _is_bytes(kind) or pt.is_date(kind) or pt.is_time(kind):
        return pa.string()
    if pt.is_struct(kind):
        return pa.struct([child.with_type(json_type(child.type)) for child in kind])
    if _is_list(kind):
        return pa.list_(kind.value_field.with_type(json_type(kind.value_type)))
    return kind


def parsed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array with its text parsed; ArrowInvalid names the text that does not fit.

    A timestamp without a zone is taken in the zone of its column. Bytes are written as hex.
    """
    if pt.is_dictionary(kind):
        return parsed(array, kind.value_type)
    if pt.is_struct(kind) and pt.is_struct(array.type):
        children = [
            parsed(child, field.type) for child, field in zip(array.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(
            children, names=[field.name for field in kind], mask=array.is_null()
        )
    if _is_list(kind) and pt.is_list(array.type):
        return _parsed_lists(array, kind)
    if not pt.is_string(array.type) or pt.is_string(kind) or pt.is_large_string(kind):
        return array
    if _is_zoned(kind):
        return _zoned(array, kind)
    if _is_bytes(kind):
        return _from_hex(array, kind)
    if pt.is_time(kind):
        # Arrow parses a time of day only as a part of a timestamp.
        unit = kind.unit
        moments = pc.binary_join_element_wise("1970-01-01T", array, "")
        return moments.cast(pa.timestamp(unit)).cast(kind)
    return array.cast(kind)


def _parsed_lists(array: pa.ListArray, kind: pa.DataType) -> pa.Array:
    items = parsed(array.flatten(), kind.value_type)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = pa.array([0, *lengths.cumsum()], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, items, mask=array.is_null())
    return lists.cast(kind) if pt.is_fixed_size_list(kind) else lists


def _zoned(array: pa.StringArray, kind: pa.TimestampType) -> pa.Array:
    zoned = pc.match_substring_regex(array, _HAS_ZONE)
    local = pc.if_else(zoned, None, array).cast(pa.timestamp(kind.unit))
    return pc.coalesce(
        pc.if_else(zoned, array, None).cast(kind), pc.assume_timezone(local, kind.tz)
    )


def _from_hex(array: pa.StringArray, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(
            [None if text is None else bytes.fromhex(text) for text in array.to_pylist()], kind
        )
    except ValueError as error:
        raise pa.ArrowInvalid(f"bytes are written as hexadecimal digits: {error}") from None


def _is_zoned(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) and kind.tz is not None)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_fixed_size_binary(kind)
        or pt.is_binary_view(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))
