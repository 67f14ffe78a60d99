"""Arrow schemas as JSON, without loss: the JsonArrowSchema of lance-namespace.

Other clients keep only the keys `type`, `fields` and `length` of a type. Other parameters are
therefore part of the type's name: `timestamp[ms, tz=UTC]`, `dictionary[ordered]`.

Arrow names the entries field of a map itself and keeps no metadata on it, so its name, nullability
and metadata are not read back.
"""

import re
import reprlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from phalanx.errors import InvalidSchema
from phalanx.model.schema.names import FieldPath

Json: TypeAlias = dict[str, Any]

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_FLOATS = ("float16", "float32", "float64")
_DATES = ("date32", "date64")
_BYTES = ("utf8", "large_utf8", "binary", "large_binary")
_SIMPLE_TYPES = {
    **{name: getattr(pa, name)() for name in ("null", *_INTEGERS, *_FLOATS, *_DATES, *_BYTES)},
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
}
# `bool` is written because it is after `boolean`. Names without a unit mean microseconds.
_TYPE_NAMES = {
    **{arrow_type: name for name, arrow_type in _SIMPLE_TYPES.items()},
    pa.timestamp("us"): "timestamp",
    pa.duration("us"): "duration",
}
_DECIMALS = ("decimal32", "decimal64", "decimal128", "decimal256")
# The first unit is the default of a name without one.
_UNITS = {
    "timestamp": ("us", "s", "ms", "ns"),
    "duration": ("us", "s", "ms", "ns"),
    "time32": ("ms", "s"),
    "time64": ("us", "ns"),
}
_TEMPORAL = re.compile(
    r"(?P<name>timestamp|time32|time64|duration)"
    r"(?P<parameters>\[(?P<unit>\w+)(, ?tz=(?P<timezone>.+))?\])?",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
_NESTED_NAMES = (
    *("fixed_size_binary", "list", "large_list", "fixed_size_list", "struct"),
    *("map", "map[keys_sorted]", "dictionary", "dictionary[ordered]"),
)
_SCALES = range(-128, 128)
_LENGTHS = range(2**31)
# Arrow's limit for an imported type.
_MAX_DEPTH = 64


def schema_to_json(schema: pa.Schema) -> Json:
    """Write a schema as JSON; raise `InvalidSchema` for a column whose type has no JSON."""
    written: Json = {"fields": [_write_field(field, ()) for field in schema]}
    if schema.metadata:
        written["metadata"] = _write_metadata(schema.metadata, ())
    return written


def field_to_json(field: pa.Field) -> Json:
    """Write a field as JSON; raise `InvalidSchema` if its type has no JSON."""
    return _write_field(field, ())


def type_to_json(arrow_type: pa.DataType) -> Json:
    """Write a type as JSON; raise `InvalidSchema` if it has no JSON."""
    return _write_type(arrow_type, ())


def schema_from_json(obj: object) -> pa.Schema:
    """Read a schema from JSON; `InvalidSchema` names the column that cannot be read."""
    if not isinstance(obj, Mapping):
        raise _read_error((), obj, 'a schema {"fields": [...]}')
    metadata = _read_metadata(obj.get("metadata"), ())
    return pa.schema(_read_fields(obj, (), None), metadata=metadata)


def field_from_json(obj: object) -> pa.Field:
    """Read a field from JSON; `InvalidSchema` names the column that cannot be read."""
    return _read_field(obj, ())


def type_from_json(obj: object) -> pa.DataType:
    """Read a type from JSON; raise `InvalidSchema` if it cannot be read."""
    return _read_type(obj, ())


def _write_field(field: pa.Field, parent: FieldPath) -> Json:
    path = (*parent, field.name)
    written: Json = {
        "name": field.name,
        "nullable": field.nullable,
        "type": _write_type(field.type, path),
    }
    if field.metadata:
        written["metadata"] = _write_metadata(field.metadata, path)
    return written


def _write_metadata(metadata: Mapping[bytes, bytes], path: FieldPath) -> dict[str, str]:
    try:
        return {key.decode(): value.decode() for key, value in metadata.items()}
    except UnicodeDecodeError as error:
        raise InvalidSchema(
            f"Cannot write the metadata of {_describe_path(path)} as JSON: "
            f"{reprlib.repr(error.object)} is not UTF-8. Metadata must be text: encode the bytes, "
            "for instance as base64."
        ) from error


def _write_type(arrow_type: pa.DataType, path: FieldPath) -> Json:
    if len(path) > _MAX_DEPTH:
        raise _write_error(path[:1], arrow_type, f"it is nested deeper than {_MAX_DEPTH} levels")
    # An extension type may be unhashable.
    if not isinstance(arrow_type, pa.BaseExtensionType) and arrow_type in _TYPE_NAMES:
        return {"type": _TYPE_NAMES[arrow_type]}
    match arrow_type:
        case pa.TimestampType() | pa.Time32Type() | pa.Time64Type() | pa.DurationType():
            return {"type": str(arrow_type)}
        case (
            pa.Decimal32Type() | pa.Decimal64Type() | pa.Decimal128Type() | pa.Decimal256Type()
        ) as decimal:
            if decimal.scale not in _SCALES:
                raise _write_error(path, decimal, "the scale must be between -128 and 127")
            length = decimal.precision * 1000 + decimal.scale
            return {"type": f"decimal{decimal.bit_width}", "length": length}
        case pa.FixedSizeBinaryType() as binary:
            if binary.byte_width not in _LENGTHS:
                raise _write_error(path, binary, "the length must not be negative")
            return {"type": "fixed_size_binary", "length": binary.byte_width}
        case pa.StructType() as struct:
            return {"type": "struct", "fields": [_write_field(child, path) for child in struct]}
        case pa.ListType() as items:
            return {"type": "list", "fields": [_write_field(items.value_field, path)]}
        case pa.LargeListType() as items:
            return {"type": "large_list", "fields": [_write_field(items.value_field, path)]}
        case pa.FixedSizeListType() as items:
            item = _write_field(items.value_field, path)
            return {"type": "fixed_size_list", "fields": [item], "length": items.list_size}
        case pa.MapType() as pairs:
            name = "map[keys_sorted]" if pairs.keys_sorted else "map"
            return {"type": name, "fields": [_write_field(pairs.field(0), path)]}
        case pa.DictionaryType() as words:
            name = "dictionary[ordered]" if words.ordered else "dictionary"
            parts = [pa.field("index", words.index_type), pa.field("value", words.value_type)]
            return {"type": name, "fields": [_write_field(part, path) for part in parts]}
        case _:
            raise _write_error(path, arrow_type, "the format has no name for this type")


def _read_fields(obj: Mapping[str, Any], path: FieldPath, count: int | None) -> list[pa.Field]:
    fields = obj.get("fields")
    if not isinstance(fields, list) or (count is not None and len(fields) != count):
        counted = "a list of fields" if count is None else f"a list of {count} field(s)"
        raise _read_error(path, fields, f'{counted} in "fields"')
    return [_read_field(field, path) for field in fields]


def _read_field(obj: object, parent: FieldPath) -> pa.Field:
    if not isinstance(obj, Mapping) or not isinstance(name := obj.get("name"), str):
        raise _read_error(parent, obj, 'a field {"name": string, "nullable": ..., "type": ...}')
    path = (*parent, name)
    nullable = obj.get("nullable")
    if not isinstance(nullable, bool):
        raise _read_error(path, nullable, 'true or false in "nullable"')
    arrow_type = _read_type(obj.get("type"), path)
    metadata = _read_metadata(obj.get("metadata"), path)
    try:
        return pa.field(name, arrow_type, nullable, metadata)
    except ValueError as error:
        raise _read_error(path, obj, f"a field that Arrow accepts ({error})") from error


def _read_metadata(obj: object, path: FieldPath) -> dict[bytes, bytes] | None:
    match obj:
        case None:
            return None
        case Mapping() if all(isinstance(text, str) for item in obj.items() for text in item):
            try:
                return {key.encode(): value.encode() for key, value in obj.items()}
            except UnicodeEncodeError as error:
                raise _read_error(path, obj, "metadata that is valid Unicode") from error
        case _:
            raise _read_error(path, obj, 'an object of strings in "metadata"')


def _read_type(obj: object, path: FieldPath) -> pa.DataType:
    if len(path) > _MAX_DEPTH:
        raise _read_error(path[:1], obj, f"at most {_MAX_DEPTH} levels of nesting")
    if not isinstance(obj, Mapping) or not isinstance(spelled := obj.get("type"), str):
        raise _read_error(path, obj, 'a type {"type": string, ...}')
    try:
        return _build_type(spelled, obj, path)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _read_error(path, obj, f"parameters that Arrow accepts ({error})") from error


def _build_type(spelled: str, obj: Mapping[str, Any], path: FieldPath) -> pa.DataType:
    name = spelled.lower()
    if temporal := _TEMPORAL.fullmatch(spelled):
        return _read_temporal(temporal, obj, path)
    match name:
        case _ if name in _SIMPLE_TYPES:
            return _SIMPLE_TYPES[name]
        case _ if name in _DECIMALS:
            encoded = _read_length(obj, path)
            # A negative scale reduces the encoded thousands by one.
            precision = (encoded + 128) // 1000
            scale = encoded - precision * 1000
            if scale not in _SCALES:
                raise _read_error(path, encoded, "precision * 1000 + scale, scale from -128 to 127")
            return getattr(pa, name)(precision, scale)
        case "fixed_size_binary":
            return pa.binary(_read_length(obj, path))
        case "struct":
            return pa.struct(_read_fields(obj, path, None))
        case "list":
            return pa.list_(*_read_fields(obj, path, 1))
        case "large_list":
            return pa.large_list(*_read_fields(obj, path, 1))
        case "fixed_size_list":
            return pa.list_(*_read_fields(obj, path, 1), _read_length(obj, path))
        case "map" | "map[keys_sorted]":
            (entries,) = _read_fields(obj, path, 1)
            if not pa.types.is_struct(entries.type) or entries.type.num_fields != 2:
                raise _read_error(path, obj, "one field: a struct of the key and the value")
            return pa.map_(*entries.type, keys_sorted=name == "map[keys_sorted]")
        case "dictionary" | "dictionary[ordered]":
            index, value = _read_fields(obj, path, 2)
            return pa.dictionary(index.type, value.type, ordered=name == "dictionary[ordered]")
        case _:
            known = ", ".join((*_SIMPLE_TYPES, *_DECIMALS, *_UNITS, *_NESTED_NAMES))
            raise _read_error(path, spelled, f"one of the type names {known}")


def _read_temporal(parts: re.Match[str], obj: Mapping[str, Any], path: FieldPath) -> pa.DataType:
    """Read a time type, with parameters in brackets or in the keys `unit` and `timezone`."""
    name = parts["name"].lower()
    keys = (obj.get("unit"), obj.get("timezone"))
    if parts["parameters"] is None:
        unit, timezone = keys
    elif keys == (None, None):
        unit, timezone = parts["unit"], parts["timezone"]
    else:
        raise _read_error(path, obj, "the parameters in the type's name or in keys, not in both")
    unit = _UNITS[name][0] if unit is None else str(unit).lower()
    if unit not in _UNITS[name]:
        raise _read_error(path, obj, f"the unit of {name} to be one of {', '.join(_UNITS[name])}")
    match name, timezone:
        case "timestamp", None | str():
            return pa.timestamp(unit, timezone)
        case _, None:
            return getattr(pa, name)(unit)
        case _:
            raise _read_error(path, obj, "a timezone only as a string and only for timestamp")


def _read_length(obj: Mapping[str, Any], path: FieldPath) -> int:
    length = obj.get("length")
    if isinstance(length, bool) or not isinstance(length, int) or length not in _LENGTHS:
        raise _read_error(path, length, 'an integer from 0 to 2147483647 in "length"')
    return length


def _read_error(path: FieldPath, found: object, expected: str) -> InvalidSchema:
    shown = "nothing" if found is None else reprlib.repr(found)
    return InvalidSchema(
        f"Cannot read the schema JSON at {_describe_path(path)}: expected {expected}, found "
        f"{shown}."
    )


def _write_error(path: FieldPath, arrow_type: pa.DataType, reason: str) -> InvalidSchema:
    return InvalidSchema(
        f"Cannot write {_describe_path(path)} ({arrow_type}) as schema JSON: {reason}. Cast it to "
        "a number, decimal, date, time, string, binary, list, struct, map or dictionary."
    )


def _describe_path(path: FieldPath) -> str:
    return f"column {'.'.join(path)!r}" if path else "the top"
