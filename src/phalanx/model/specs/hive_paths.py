"""Partition values as the text in a path, and back: exactly, for every type that has such a text.

Dates, times and timestamps are ISO 8601, zoned ones in UTC, and beyond the years 1 to 9999 the
number that Arrow stores. Calendar parts have leading zeros: `2025`, `08`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSpec, PhalanxError, shown
from phalanx.model.specs.partition_key import text_of
from phalanx.model.specs.spec import PartitionField
from phalanx.model.sql.literals import storage_type
from phalanx.model.transforms.calendar_parts import CalendarPart, Year
from phalanx.model.transforms.transform import IDENTITY

# From the first day of the year 1 to the last of 9999, counted from 1970.
_CALENDAR_DAYS = range(-719_162, 2_932_897)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_STORED_NUMBER = re.compile(r"-?\d+")


def check_text(kind: pa.DataType) -> None:
    """Refuse a type whose values cannot be told exactly from their text."""
    is_moment = pt.is_date32(kind) or pt.is_timestamp(kind) or pt.is_time(kind)
    is_text = pt.is_string(kind) or pt.is_large_string(kind)
    if is_text or is_moment or pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_decimal(kind):
        return
    raise InvalidSpec(
        f"Cannot partition by a column of type {kind}: the hive layout keeps the values of "
        "identity columns as text in the path only, and takes strings, integers, booleans, "
        "decimals, date32, times and timestamps. Use bucket, truncate or hash of it."
    )


def text_in_path(field: PartitionField, value: pa.Scalar) -> str | None:
    """The text of a partition value; None for NULL."""
    if not value.is_valid:
        return None
    if isinstance(field.derivation, CalendarPart):
        width = 4 if field.derivation == Year() else 2
        return f"{value.as_py():0{width}d}"
    if pt.is_decimal(value.type):
        return f"{value.as_py():f}"
    if (stored := storage_type(value.type)) is not None:
        number = value.cast(stored).as_py()
        if not pt.is_time(value.type) and number // _per_day(value.type) not in _CALENDAR_DAYS:
            return str(number)
    return text_of(value)


def _per_day(kind: pa.DataType) -> int:
    return 1 if pt.is_date32(kind) else 86_400 * _PER_SECOND[kind.unit]


def values_in_paths(
    field: PartitionField, texts: Sequence[str | None], paths: Sequence[str]
) -> pa.Array:
    """The partition values that texts stand for; `PhalanxError` names the path of a wrong one."""
    kind = field.result_type
    try:
        return _parsed(pa.array(texts, pa.string()), kind)
    except (pa.ArrowInvalid, OverflowError):
        pass
    for text, path in zip(texts, paths, strict=True):
        try:
            _parsed(pa.array([text], pa.string()), kind)
        except (pa.ArrowInvalid, OverflowError):
            raise PhalanxError(
                f"Cannot read the partition at {path}: {field.field_id} is {shown(text)}, expected "
                f"{kind}. Rename the folder, or move it out of the table."
            ) from None
    raise AssertionError("each text can be read, and not all of them")


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    stored = storage_type(kind)
    if stored is None:
        return texts.cast(kind)
    given = texts.to_pylist()
    numbers = [_STORED_NUMBER.fullmatch(text or "") is not None for text in given]
    moments = [
        None if text is None or is_number else _iso(text, kind)
        for text, is_number in zip(given, numbers, strict=True)
    ]
    plain = [
        int(text) if is_number and text is not None else None
        for text, is_number in zip(given, numbers, strict=True)
    ]
    parsed = pa.array(moments, pa.string()).cast(_parsed_as(kind))
    counted = parsed.cast(storage_type(parsed.type)).cast(stored)
    return pc.coalesce(counted, pa.array(plain, stored)).cast(kind)


def _parsed_as(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow reads such a text as: it reads no times of day."""
    if pt.is_timestamp(kind):
        return pa.timestamp(kind.unit, None if kind.tz is None else "UTC")
    return pa.timestamp(kind.unit) if pt.is_time(kind) else kind


def _iso(text: str, kind: pa.DataType) -> str:
    if pt.is_time(kind):
        return f"1970-01-01T{text}"
    if not pt.is_timestamp(kind) or kind.tz is None or text.endswith("Z"):
        return text
    # Who writes no zone means UTC, as all partition values do.
    return f"{text}Z"


def is_in_path(field: PartitionField) -> bool:
    """Whether the column itself is in the path, and not in the leaves."""
    return field.derivation == IDENTITY
