"""Arrow data and values as JSON that every parser takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from phalanx.model.specs.partition_key import json_value


def dumps(value: Any, indent: int | None = None) -> str:
    """The value as JSON; NaN must have become text before."""
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)


def rows(batch: pa.RecordBatch | pa.Table) -> Iterator[dict[str, Any]]:
    """Each row as a JSON object."""
    columns = [values(column) for column in batch.columns]
    for row in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, row, strict=True))


def values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values as JSON has them.

    Dates and times are ISO text, zoned timestamps in nanoseconds or out of Python's range in
    UTC. Decimals and non-finite floats are text, bytes are hex, durations count the column's
    unit, and a map is a list of keys and values.
    """
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in values(chunk)]
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return values(column.storage)
    if pt.is_dictionary(kind):
        return values(column.dictionary_decode())
    if pt.is_struct(kind):
        children = [values(column.field(place)) for place in range(kind.num_fields)]
        names = [child.name for child in kind]
        return [
            dict(zip(names, [child[row] for child in children], strict=True)) if valid else None
            for row, valid in enumerate(column.is_valid().to_pylist())
        ]
    if pt.is_nested(kind):
        return [values(scalar.values) if scalar.is_valid else None for scalar in column]
    if pt.is_duration(kind):
        return list(column.cast(pa.int64()).to_pylist())
    if pt.is_temporal(kind):
        return _temporal(column)
    return [json_value(value) for value in column.to_pylist()]


def _temporal(column: pa.Array) -> list[Any]:
    kind = column.type
    # Python has no nanoseconds.
    if not (pt.is_timestamp(kind) or pt.is_time64(kind)) or kind.unit != "ns":
        try:
            return [json_value(value) for value in column.to_pylist()]
        except (ValueError, OverflowError):
            pass
    if pt.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp(kind.unit, "UTC"))
    texts = column.cast(pa.string()).to_pylist()
    return [text and text.replace(" ", "T", 1) for text in texts]
