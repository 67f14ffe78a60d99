"""Conversion of types of other systems to types of the format with the same values."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt


def to_storable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the format that holds the same values, if there is one.

    Extension types (UUID, JSON) and view layouts are replaced by their plain types.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return to_storable_type(kind.storage_type)
    if pt.is_string_view(kind):
        return pa.string()
    if pt.is_binary_view(kind):
        return pa.binary()
    if pt.is_decimal32(kind) or pt.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if pt.is_dictionary(kind):
        return pa.dictionary(kind.index_type, to_storable_type(kind.value_type), kind.ordered)
    if pt.is_struct(kind):
        return pa.struct([to_storable_field(child) for child in kind])
    if pt.is_map(kind):
        return pa.map_(
            to_storable_field(kind.key_field), to_storable_field(kind.item_field), kind.keys_sorted
        )
    if pt.is_fixed_size_list(kind):
        item = to_storable_field(kind.value_field)
        is_vector = pt.is_primitive(item.type) or pt.is_fixed_size_list(item.type)
        return pa.list_(item, kind.list_size) if is_vector else pa.list_(item)
    if pt.is_large_list(kind):
        return pa.large_list(to_storable_field(kind.value_field))
    if pt.is_list(kind):
        return pa.list_(to_storable_field(kind.value_field))
    return kind


def to_storable_field(field: pa.Field) -> pa.Field:
    """Return the field with a type of the format."""
    return field.with_type(to_storable_type(field.type))


def cast_to_storable(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast the values to the type that `to_storable_type` returned for them."""
    if array.type == kind:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return cast_to_storable(array.storage, kind)
    return array.cast(kind)
