"""Types of other systems as the format has them: the same values, another way to hold them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt


def storable_type(kind: pa.DataType) -> pa.DataType:
    """The type that holds the same values and has a name in the format, where there is one.

    What Arrow adds to a type (a UUID, a JSON text) is left away; so is how values are laid out.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return storable_type(kind.storage_type)
    if pt.is_string_view(kind):
        return pa.string()
    if pt.is_binary_view(kind):
        return pa.binary()
    if pt.is_decimal32(kind) or pt.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if pt.is_dictionary(kind):
        return pa.dictionary(kind.index_type, storable_type(kind.value_type), kind.ordered)
    if pt.is_struct(kind):
        return pa.struct([storable_field(child) for child in kind])
    if pt.is_map(kind):
        return pa.map_(
            storable_field(kind.key_field), storable_field(kind.item_field), kind.keys_sorted
        )
    if pt.is_fixed_size_list(kind):
        item = storable_field(kind.value_field)
        is_vector = pt.is_primitive(item.type) or pt.is_fixed_size_list(item.type)
        return pa.list_(item, kind.list_size) if is_vector else pa.list_(item)
    if pt.is_large_list(kind):
        return pa.large_list(storable_field(kind.value_field))
    if pt.is_list(kind):
        return pa.list_(storable_field(kind.value_field))
    return kind


def storable_field(field: pa.Field) -> pa.Field:
    """The field in a type that the format has."""
    return field.with_type(storable_type(field.type))


def as_stored(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in the type that `storable_type` gave for theirs."""
    if array.type == kind:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return as_stored(array.storage, kind)
    return array.cast(kind)
