"""The identity of a partition: a spec version and the values of its fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from phalanx.model.schema.grouping import Groups, group_rows
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec

# Field ids have no dot, so no partition field has this column name.
SPEC_ID_COLUMN = ".spec_id"
# Arrow's text for a date or time that is outside the calendar starts with this.
_OUT_OF_RANGE = "<value out of range"


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """A partition of a table.

    Attributes:
        spec_id: The id of the spec.
        values: A value for each field of the spec.
    """

    spec_id: int
    values: tuple[Any, ...]

    @classmethod
    def of_entry(cls, spec_id: int, spec: PartitionSpec, values: Sequence[Any]) -> PartitionKey:
        """Return the key of an entry under its own spec, which may not be the newest."""
        return cls(spec_id, tuple(values) if spec.fields else ())

    @property
    def partition(self) -> tuple[Any, ...] | None:
        """The values; None under a spec without fields."""
        return self.values or None

    def sort_key(self) -> tuple[int, tuple[tuple[int, Any], ...]]:
        """Return the sort key of plans: by spec, then by values, NULL last."""
        return self.spec_id, tuple(map(_rank, self.values))


def _rank(value: Any) -> tuple[int, Any]:
    """Pair the value with a rank that sorts NaN and NULL last.

    Dates outside the calendar are whole numbers and sort before or after all other dates.
    """
    if value is None:
        return 3, None
    if isinstance(value, int):
        return (-1 if value < 0 else 1), value
    return (2, None) if value != value else (0, value)


def to_key_columns(spec_id: int, values: pa.Table, rows: int) -> pa.Table:
    """Return keys as columns: the spec's id, then one column for each of its fields."""
    spec_ids = pa.repeat(pa.scalar(spec_id, pa.int32()), rows)
    return pa.Table.from_arrays(
        [spec_ids, *values.columns],
        schema=pa.schema([(SPEC_ID_COLUMN, pa.int32()), *values.schema]),
    )


def group_by_partition(spec: PartitionSpec, rows: pa.RecordBatch, schema: Schema) -> Groups:
    """Group the rows by their partition key."""
    groups = group_rows(spec.compute_partition_values(rows, schema), rows.num_rows)
    return replace(groups, keys=to_key_columns(spec.id, groups.keys, groups.count))


def read_keys(columns: pa.Table) -> Iterator[PartitionKey]:
    """Yield the keys in a table of key columns."""
    rows = zip(*(to_python_values(column) for column in columns.columns), strict=True)
    return (PartitionKey(spec_id, tuple(values)) for spec_id, *values in rows)


def to_python_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Return Python values; nanoseconds that Python cannot represent stay whole numbers."""
    kind = column.type
    nanoseconds = (pt.is_timestamp(kind) or pt.is_duration(kind)) and kind.unit == "ns"
    if nanoseconds or (pt.is_time64(kind) and kind.unit == "ns"):
        return [_to_python(value) for value in column]
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_to_python(value) for value in column]


def _to_python(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return value.value


def to_json_value(value: Any) -> Any:
    """Return a partition value for JSON."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def format_partition_value(value: pa.Scalar) -> str | None:
    """Return a partition value as text (format: Runtime Namespace Properties); None for NULL.

    Dates and times are ISO 8601, zoned ones in UTC. Bytes are hexadecimal. Durations, and times
    outside the calendar, are their stored numbers.
    """
    if not value.is_valid:
        return None
    kind = value.type
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return str(value.as_py().hex())
    if pt.is_timestamp(kind) and kind.tz is not None:
        value = value.cast(pa.timestamp(kind.unit, "UTC"))
    text: str = value.cast(pa.string()).as_py()
    if text.startswith(_OUT_OF_RANGE) and pt.is_temporal(kind):
        return str(value.value)
    if not pt.is_timestamp(kind):
        return text
    day, _, time = text.rstrip("Z").partition(" ")
    whole, _, fraction = time.partition(".")
    fraction = fraction.rstrip("0")
    return f"{day}T{whole}{'.' if fraction else ''}{fraction}{'Z' if kind.tz else ''}"
