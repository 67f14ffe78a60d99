"""The identity of a partition: a spec version and the values of its fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from phalanx.model.schema.grouping import Groups, group
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec

# The column of the spec's id among those of partition fields, whose ids have no dot.
SPEC_ID = ".spec_id"
# How Arrow begins the text of a date or time that has no day in the calendar.
_BEYOND_THE_CALENDAR = "<value out of range"


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """A partition: its spec's id, and one value for each field of that spec."""

    spec_id: int
    values: tuple[Any, ...]

    @classmethod
    def of_entry(cls, spec_id: int, spec: PartitionSpec, values: Sequence[Any]) -> PartitionKey:
        """The key of an entry under its own spec, whatever the newest spec is."""
        return cls(spec_id, tuple(values) if spec.fields else ())

    @property
    def partition(self) -> tuple[Any, ...] | None:
        """The values; None under a spec without fields."""
        return self.values or None

    def sort_key(self) -> tuple[int, tuple[tuple[int, Any], ...]]:
        """The place among other keys: by spec, then by values as plans have them, NULL last."""
        return self.spec_id, tuple(map(_ranked, self.values))


def _ranked(value: Any) -> tuple[int, Any]:
    """The value behind a number that puts NaN and NULL last.

    Whole numbers stand also for moments beyond the calendar, which come before or after all others.
    """
    if value is None:
        return 3, None
    if isinstance(value, int):
        return (-1 if value < 0 else 1), value
    return (2, None) if value != value else (0, value)


def key_columns(spec_id: int, values: pa.Table, rows: int) -> pa.Table:
    """Partition keys as columns: the spec's id, then one column for each of its fields."""
    spec_ids = pa.repeat(pa.scalar(spec_id, pa.int32()), rows)
    return pa.Table.from_arrays(
        [spec_ids, *values.columns], schema=pa.schema([(SPEC_ID, pa.int32()), *values.schema])
    )


def keyed(spec: PartitionSpec, rows: pa.RecordBatch, schema: Schema) -> Groups:
    """The rows by partition: which key each row has."""
    found = group(spec.partition_values(rows, schema), rows.num_rows)
    return replace(found, keys=key_columns(spec.id, found.keys, found.count))


def keys_of(columns: pa.Table) -> Iterator[PartitionKey]:
    """The keys that key columns hold."""
    rows = zip(*(plain_values(column) for column in columns.columns), strict=True)
    return (PartitionKey(spec_id, tuple(values)) for spec_id, *values in rows)


def plain_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The values as Python has them; nanoseconds that Python cannot hold stay whole numbers."""
    kind = column.type
    nanoseconds = (pt.is_timestamp(kind) or pt.is_duration(kind)) and kind.unit == "ns"
    if nanoseconds or (pt.is_time64(kind) and kind.unit == "ns"):
        return [_plain(value) for value in column]
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_plain(value) for value in column]


def _plain(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return value.value


def json_value(value: Any) -> Any:
    """A partition value as JSON has it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def text_of(value: pa.Scalar) -> str | None:
    """A partition value as text (format: Runtime Namespace Properties); None for NULL.

    Dates and times are ISO 8601, zoned ones in UTC; bytes are hexadecimal; a duration, and a time
    beyond the calendar, is the number that is stored.
    """
    if not value.is_valid:
        return None
    kind = value.type
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return str(value.as_py().hex())
    if pt.is_timestamp(kind) and kind.tz is not None:
        value = value.cast(pa.timestamp(kind.unit, "UTC"))
    text: str = value.cast(pa.string()).as_py()
    if text.startswith(_BEYOND_THE_CALENDAR) and pt.is_temporal(kind):
        return str(value.value)
    if not pt.is_timestamp(kind):
        return text
    day, _, time = text.rstrip("Z").partition(" ")
    whole, _, fraction = time.partition(".")
    fraction = fraction.rstrip("0")
    return f"{day}T{whole}{'.' if fraction else ''}{fraction}{'Z' if kind.tz else ''}"
