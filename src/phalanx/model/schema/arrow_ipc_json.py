"""Arrow schemas in the JSON of Arrow's integration tests, without loss.

A type is `{"name": "int", "bitWidth": 64, "isSigned": true}`, and every field has `children`. The
Hive-style layout stores this JSON; other writers may use that of `arrow_json`. The first type of a
schema shows which of the two it is.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from phalanx.errors import InvalidSchema
from phalanx.model.schema import arrow_json
from phalanx.model.schema.arrow_json import Json

_UNITS = {"SECOND": "s", "MILLISECOND": "ms", "MICROSECOND": "us", "NANOSECOND": "ns"}
_UNIT_NAMES = {unit: name for name, unit in _UNITS.items()}
_PRECISIONS = {"HALF": pa.float16(), "SINGLE": pa.float32(), "DOUBLE": pa.float64()}
_SIMPLE_TYPES = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "utf8": pa.string(),
    "largeutf8": pa.large_string(),
    "binary": pa.binary(),
    "largebinary": pa.large_binary(),
}
_SIMPLE_TYPE_NAMES = {kind: name for name, kind in _SIMPLE_TYPES.items()}


def schema_to_ipc_json(schema: pa.Schema) -> Json:
    """Write a schema as JSON; raise `InvalidSchema` for a type that has no JSON."""
    ids = iter(range(1 << 31))
    written: Json = {"fields": [_write_field(field, ids) for field in schema]}
    if schema.metadata:
        written["metadata"] = _write_metadata(schema.metadata)
    return written


def schema_from_any_json(obj: object) -> pa.Schema:
    """Read a schema from either JSON; `InvalidSchema` says what cannot be read."""
    if not isinstance(obj, Mapping) or not isinstance(fields := obj.get("fields"), list):
        raise _read_error(obj, 'a schema {"fields": [...]}')
    first = fields[0] if fields else None
    kind = first.get("type") if isinstance(first, Mapping) else None
    if not isinstance(kind, Mapping) or "name" not in kind:
        return arrow_json.schema_from_json(obj)
    return pa.schema(map(_read_field, fields), metadata=_read_metadata(obj.get("metadata")))


def _write_field(field: pa.Field, ids: Any) -> Json:
    kind, dictionary = field.type, None
    if isinstance(kind, pa.DictionaryType):
        index = _write_type(kind.index_type)
        dictionary = {"id": next(ids), "indexType": index, "isOrdered": kind.ordered}
        kind = kind.value_type
    children = [kind.field(place) for place in range(kind.num_fields)]
    written: Json = {
        "name": field.name,
        "type": _write_type(kind),
        "nullable": field.nullable,
        "children": [_write_field(child, ids) for child in children],
    }
    if dictionary is not None:
        written["dictionary"] = dictionary
    if field.metadata:
        written["metadata"] = _write_metadata(field.metadata)
    return written


def _write_metadata(metadata: Mapping[bytes, bytes]) -> list[Json]:
    try:
        return [{"key": key.decode(), "value": text.decode()} for key, text in metadata.items()]
    except UnicodeDecodeError:
        raise InvalidSchema(
            "Cannot write the schema as JSON: its metadata is not UTF-8. Encode it as text."
        ) from None


def _write_type(kind: pa.DataType) -> Json:
    match kind:
        case pa.TimestampType():
            zone = {} if kind.tz is None else {"timezone": kind.tz}
            return {"name": "timestamp", "unit": _UNIT_NAMES[kind.unit], **zone}
        case pa.Time32Type() | pa.Time64Type():
            unit = _UNIT_NAMES[kind.unit]
            return {"name": "time", "unit": unit, "bitWidth": kind.bit_width}
        case pa.DurationType():
            return {"name": "duration", "unit": _UNIT_NAMES[kind.unit]}
        case pa.Decimal32Type() | pa.Decimal64Type() | pa.Decimal128Type() | pa.Decimal256Type():
            width = {"precision": kind.precision, "scale": kind.scale, "bitWidth": kind.bit_width}
            return {"name": "decimal", **width}
        case pa.FixedSizeBinaryType():
            return {"name": "fixedsizebinary", "byteWidth": kind.byte_width}
        case pa.StructType():
            return {"name": "struct"}
        case pa.ListType():
            return {"name": "list"}
        case pa.LargeListType():
            return {"name": "largelist"}
        case pa.FixedSizeListType():
            return {"name": "fixedsizelist", "listSize": kind.list_size}
        case pa.MapType():
            return {"name": "map", "keysSorted": kind.keys_sorted}
    if kind in _SIMPLE_TYPE_NAMES:
        return {"name": _SIMPLE_TYPE_NAMES[kind]}
    if pa.types.is_integer(kind):
        signed = bool(pa.types.is_signed_integer(kind))
        return {"name": "int", "bitWidth": kind.bit_width, "isSigned": signed}
    if pa.types.is_floating(kind):
        name = next(name for name, found in _PRECISIONS.items() if found == kind)
        return {"name": "floatingpoint", "precision": name}
    if pa.types.is_date(kind):
        return {"name": "date", "unit": "DAY" if kind == pa.date32() else "MILLISECOND"}
    raise InvalidSchema(f"Cannot write the type {kind} as Arrow JSON. Cast the column.")


def _read_field(obj: object) -> pa.Field:
    if not isinstance(obj, Mapping) or not isinstance(obj.get("name"), str):
        raise _read_error(obj, 'a field {"name": …, "type": …, "nullable": …, "children": […]}')
    children = obj.get("children") or []
    if not isinstance(children, list):
        raise _read_error(children, "a list of children")
    try:
        kind = _read_type(obj.get("type"), [_read_field(child) for child in children])
        if (words := obj.get("dictionary")) is not None:
            index = _read_type(words["indexType"], []) if "indexType" in words else pa.int32()
            kind = pa.dictionary(index, kind, bool(words.get("isOrdered", False)))
        nullable = bool(obj.get("nullable", True))
        return pa.field(obj["name"], kind, nullable, _read_metadata(obj.get("metadata")))
    except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException):
        raise _read_error(obj, "a field of Arrow's JSON") from None


def _read_metadata(obj: object) -> dict[str, str] | None:
    if not obj:
        return None
    if isinstance(obj, Mapping):
        return {str(key): str(text) for key, text in obj.items()}
    if not isinstance(obj, list):
        raise _read_error(obj, "a list of keys and values as metadata")
    return {str(each["key"]): str(each["value"]) for each in obj}


def _read_type(obj: object, children: list[pa.Field]) -> pa.DataType:
    match obj:
        case {"name": str(name)} if name in _SIMPLE_TYPES:
            return _SIMPLE_TYPES[name]
        case {"name": "int", "bitWidth": int(bits), "isSigned": bool(signed)}:
            return getattr(pa, f"{'' if signed else 'u'}int{bits}")()
        case {"name": "floatingpoint", "precision": str(precision)}:
            return _PRECISIONS[precision]
        case {"name": "decimal", "precision": int(precision), "scale": int(scale), **rest}:
            return getattr(pa, f"decimal{rest.get('bitWidth', 128)}")(precision, scale)
        case {"name": "date", "unit": "DAY" | "MILLISECOND" as unit}:
            return pa.date32() if unit == "DAY" else pa.date64()
        case {"name": "time", "unit": str(unit), **rest}:
            natural = 32 if unit in ("SECOND", "MILLISECOND") else 64
            return getattr(pa, f"time{rest.get('bitWidth', natural)}")(_UNITS[unit])
        case {"name": "timestamp", "unit": str(unit), **rest}:
            return pa.timestamp(_UNITS[unit], rest.get("timezone") or None)
        case {"name": "duration", "unit": str(unit)}:
            return pa.duration(_UNITS[unit])
        case {"name": "fixedsizebinary", "byteWidth": int(width)}:
            return pa.binary(width)
        case {"name": "struct"}:
            return pa.struct(children)
        case {"name": "list"}:
            return pa.list_(*children)
        case {"name": "largelist"}:
            return pa.large_list(*children)
        case {"name": "fixedsizelist", "listSize": int(size)}:
            return pa.list_(*children, size)
        case {"name": "map", **rest}:
            key, item = children[0].type
            return pa.map_(key, item, keys_sorted=bool(rest.get("keysSorted", False)))
    raise _read_error(obj, "a type of Arrow's JSON")


def _read_error(found: object, expected: str) -> InvalidSchema:
    shown = "nothing" if found is None else reprlib.repr(found)
    return InvalidSchema(f"Cannot read the schema JSON: expected {expected}, found {shown}.")
