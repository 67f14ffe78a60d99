"""Partition values as the text in a path, and back: exactly, for every type that has such a text.

Dates, times and timestamps are ISO 8601, zoned ones in UTC, and beyond the years 1 to 9999 the
number that Arrow stores. Calendar parts have leading zeros: `2025`, `08`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidSpec, PhalanxError, shown
from phalanx.model.calendar_parts import CalendarPart, Year
from phalanx.model.literals import storage_type
from phalanx.model.partition_key import text_of
from phalanx.model.spec import PartitionField
from phalanx.model.transform import IDENTITY

_IN_THE_CALENDAR = re.compile(r"\d{4}-|\d\d:")
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
    text = text_of(value)
    if pt.is_temporal(value.type) and not _IN_THE_CALENDAR.match(str(text)):
        return str(value.cast(storage_type(value.type)).as_py())
    return text


def values_in_paths(
    field: PartitionField, texts: Sequence[str | None], paths: Sequence[str]
) -> pa.Array:
    """The partition values that texts stand for; `PhalanxError` names the path of a wrong one."""
    kind = field.result_type
    try:
        return _parsed(pa.array(texts, pa.string()), kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    for text, path in zip(texts, paths, strict=True):
        try:
            _parsed(pa.array([text], pa.string()), kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise PhalanxError(
                f"Cannot read the partition at {path}: {field.field_id} is {shown(text)}, expected "
                f"{kind}. Rename the folder, or move it out of the table."
            ) from None
    raise AssertionError("each text can be read, and not all of them")


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pt.is_temporal(kind):
        return texts.cast(kind)
    return pa.concat_arrays(
        [pa.nulls(0, kind), *(_moment(text, kind) for text in texts.to_pylist())]
    )


def _moment(text: str | None, kind: pa.DataType) -> pa.Array:
    if text is None:
        return pa.nulls(1, kind)
    if _STORED_NUMBER.fullmatch(text):
        return pa.array([int(text)], storage_type(kind)).cast(kind)
    if pt.is_timestamp(kind) and kind.tz is not None:
        # Who writes no zone means UTC, as all partition values do.
        zoned = text if text.endswith("Z") else f"{text}Z"
        return pa.array([zoned]).cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
    return pa.array([text]).cast(kind)


def is_in_path(field: PartitionField) -> bool:
    """Whether the column itself is in the path, and not in the leaves."""
    return field.derivation == IDENTITY
