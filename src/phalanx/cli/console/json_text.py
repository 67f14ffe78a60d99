"""Convert Arrow data and values to JSON that every parser accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from phalanx.model.specs.partition_key import to_json_value


def dumps(value: Any, indent: int | None = None) -> str:
    """Return the value as JSON; NaN must be converted to text before."""
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)


def iter_rows(batch: pa.RecordBatch | pa.Table) -> Iterator[dict[str, Any]]:
    """Yield each row as a JSON object."""
    columns = [to_values(column) for column in batch.columns]
    for row in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, row, strict=True))


def to_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as JSON values.

    Dates and times are ISO text; zoned timestamps in nanoseconds, or outside of Python's range,
    are in UTC. Decimals and non-finite floats are text, bytes are hex, durations count the unit of
    the column, and a map is a list of keys and values.
    """
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in to_values(chunk)]
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return to_values(column.storage)
    if pt.is_dictionary(kind):
        return to_values(column.dictionary_decode())
    if pt.is_struct(kind):
        children = [to_values(column.field(place)) for place in range(kind.num_fields)]
        names = [child.name for child in kind]
        return [
            dict(zip(names, [child[row] for child in children], strict=True)) if valid else None
            for row, valid in enumerate(column.is_valid().to_pylist())
        ]
    if pt.is_nested(kind):
        return [to_values(scalar.values) if scalar.is_valid else None for scalar in column]
    if pt.is_duration(kind):
        return list(column.cast(pa.int64()).to_pylist())
    if pt.is_temporal(kind):
        return _format_temporal(column)
    return [to_json_value(value) for value in column.to_pylist()]


def _format_temporal(column: pa.Array) -> list[Any]:
    kind = column.type
    # Python has no nanoseconds.
    if not (pt.is_timestamp(kind) or pt.is_time64(kind)) or kind.unit != "ns":
        try:
            return [to_json_value(value) for value in column.to_pylist()]
        except (ValueError, OverflowError):
            pass
    if pt.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp(kind.unit, "UTC"))
    texts = column.cast(pa.string()).to_pylist()
    return [text and text.replace(" ", "T", 1) for text in texts]
