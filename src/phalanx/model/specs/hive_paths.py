"""Folder names and partition values in the paths of the Hive-style layout: `key=value`.

Names are escaped as in Hive, including `$`, which separates names in a Lance namespace. NULL is
Hive's marker, and text equal to the marker is escaped. An empty string is an empty name, which Hive
would read as NULL. Values are ISO 8601 for dates, times and timestamps (zoned ones in UTC), or
Arrow's stored number beyond the years 1 to 9999. Calendar parts have leading zeros: `2025`, `08`.
Every name and value is read back exactly as written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSpec, PhalanxError, format_value
from phalanx.model.specs.partition_key import format_partition_value
from phalanx.model.specs.spec import PartitionField
from phalanx.model.sql.literals import storage_type_of
from phalanx.model.transforms.calendar_parts import CalendarPart, Year
from phalanx.model.transforms.transform import IDENTITY

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
TABLE_SUFFIX = ".lance"
# File systems do not allow longer names.
_MAX_NAME_BYTES = 255
_SPECIAL = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^$]")
_ESCAPED = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
# The days since 1970 of the years 1 to 9999.
_CALENDAR_DAYS = range(-719_162, 2_932_897)
_TICKS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_STORED_NUMBER = re.compile(r"-?\d+")


def escape(text: str) -> str:
    """Replace each special character with a percent sign and two hexadecimal digits."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)


def unescape(text: str) -> str:
    """Undo `escape`. A percent sign without two digits stays as it is."""
    return _ESCAPED.sub(_decode_escapes, text)


def format_folder_name(key: str, text: str | None) -> str:
    """Return the folder name for a value of a key; None is NULL."""
    if text is None:
        value = NULL_NAME
    elif text == NULL_NAME:
        value = f"%{ord(text[0]):02X}{text[1:]}"
    elif text.endswith(TABLE_SUFFIX):
        # Otherwise the folder would look like a table.
        value = f"{escape(text.removesuffix(TABLE_SUFFIX))}%2E{TABLE_SUFFIX[1:]}"
    else:
        value = escape(text)
    name = f"{escape(key)}={value}"
    if len(name.encode()) + len(TABLE_SUFFIX) > _MAX_NAME_BYTES:
        raise PhalanxError(
            f"Cannot create a partition named {name[:40]}…: a folder's name has at most "
            f"{_MAX_NAME_BYTES} bytes, but this one has {len(name.encode())}. Partition by "
            "truncate, bucket or hash of the column instead."
        )
    return name


def parse_folder_name(name: str) -> tuple[str, str | None] | None:
    """Return the key and the value of a folder name; None if it is not a partition."""
    key, separator, value = name.partition("=")
    if not separator:
        return None
    return unescape(key), None if value == NULL_NAME else unescape(value)


def _decode_escapes(found: re.Match[str]) -> str:
    octets = bytes.fromhex(found[0].replace("%", ""))
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return found[0]


def check_path_type(kind: pa.DataType) -> None:
    """Raise `InvalidSpec` for a type whose values cannot be restored from text."""
    is_moment = pt.is_date32(kind) or pt.is_timestamp(kind) or pt.is_time(kind)
    is_text = pt.is_string(kind) or pt.is_large_string(kind)
    if is_text or is_moment or pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_decimal(kind):
        return
    raise InvalidSpec(
        f"Cannot partition by a column of type {kind}: the hive layout stores the values of "
        "identity columns only as text in the path, and supports strings, integers, booleans, "
        "decimals, date32, times and timestamps. Use bucket, truncate or hash instead."
    )


def format_path_value(field: PartitionField, value: pa.Scalar) -> str | None:
    """Return the text of a partition value; None for NULL."""
    if not value.is_valid:
        return None
    if isinstance(field.derivation, CalendarPart):
        width = 4 if field.derivation == Year() else 2
        return f"{value.as_py():0{width}d}"
    if pt.is_decimal(value.type):
        return f"{value.as_py():f}"
    if (stored := storage_type_of(value.type)) is not None:
        number = value.cast(stored).as_py()
        if (
            not pt.is_time(value.type)
            and number // _ticks_per_day(value.type) not in _CALENDAR_DAYS
        ):
            return str(number)
    return format_partition_value(value)


def _ticks_per_day(kind: pa.DataType) -> int:
    return 1 if pt.is_date32(kind) else 86_400 * _TICKS_PER_SECOND[kind.unit]


def parse_path_values(
    field: PartitionField, texts: Sequence[str | None], paths: Sequence[str]
) -> pa.Array:
    """Parse partition values; a `PhalanxError` names the path of an invalid one."""
    kind = field.result_type
    try:
        return _parse_values(pa.array(texts, pa.string()), kind)
    except (pa.ArrowInvalid, OverflowError):
        pass
    for text, path in zip(texts, paths, strict=True):
        try:
            _parse_values(pa.array([text], pa.string()), kind)
        except (pa.ArrowInvalid, OverflowError):
            raise PhalanxError(
                f"Cannot read the partition at {path}: {field.field_id} is {format_value(text)}, "
                f"expected {kind}. Rename the folder, or move it out of the table."
            ) from None
    raise AssertionError("each value can be parsed alone, but not all together")


def _parse_values(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    stored = storage_type_of(kind)
    if stored is None:
        return texts.cast(kind)
    given = texts.to_pylist()
    numbers = [_STORED_NUMBER.fullmatch(text or "") is not None for text in given]
    moments = [
        None if text is None or is_number else _to_iso(text, kind)
        for text, is_number in zip(given, numbers, strict=True)
    ]
    plain = [
        int(text) if is_number and text is not None else None
        for text, is_number in zip(given, numbers, strict=True)
    ]
    parsed = pa.array(moments, pa.string()).cast(_parsing_type(kind))
    counted = parsed.cast(storage_type_of(parsed.type)).cast(stored)
    return pc.coalesce(counted, pa.array(plain, stored)).cast(kind)


def _parsing_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to parse the text with: Arrow cannot parse times of day."""
    if pt.is_timestamp(kind):
        return pa.timestamp(kind.unit, None if kind.tz is None else "UTC")
    return pa.timestamp(kind.unit) if pt.is_time(kind) else kind


def _to_iso(text: str, kind: pa.DataType) -> str:
    if pt.is_time(kind):
        return f"1970-01-01T{text}"
    if not pt.is_timestamp(kind) or kind.tz is None or text.endswith("Z"):
        return text
    # Without a zone the value is in UTC, like all partition values.
    return f"{text}Z"


def is_in_path(field: PartitionField) -> bool:
    """Return whether the source column is stored in the path and not in the leaves."""
    return field.derivation == IDENTITY
