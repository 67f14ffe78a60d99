"""Values as the conformance tables write them in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def scalar_of(written: Any, data_type: pa.DataType) -> pa.Scalar:
    """Return the Arrow value of a JSON value, as conformance/README.md describes."""
    if written is None:
        return pa.scalar(None, data_type)
    if pt.is_temporal(data_type):
        return _moment(written, data_type)
    if pt.is_integer(data_type):
        return pa.scalar(int(written), data_type)
    if pt.is_floating(data_type):
        return pa.scalar(float(written), pa.float64()).cast(data_type)
    if pt.is_decimal(data_type):
        return pa.scalar(Decimal(written), data_type)
    if pt.is_string(data_type) or pt.is_large_string(data_type) or pt.is_boolean(data_type):
        return pa.scalar(written, data_type)
    return pa.scalar(bytes.fromhex(written), data_type)


def _moment(written: int | str, data_type: pa.DataType) -> pa.Scalar:
    if isinstance(written, int) or written.lstrip("-").isdigit():
        storage = pa.int32() if data_type.bit_width == 32 else pa.int64()
        return pa.scalar(int(written), storage).cast(data_type)
    if pt.is_time(data_type):
        whole, _, fraction = written.partition(".")
        at = time.fromisoformat(whole)
        seconds = at.hour * 3600 + at.minute * 60 + at.second
        nanoseconds = seconds * 10**9 + int(fraction.ljust(9, "0"))
        return _moment(nanoseconds // (10**9 // PER_SECOND[data_type.unit]), data_type)
    if pt.is_timestamp(data_type) and data_type.tz is not None:
        return pa.scalar(written).cast(pa.timestamp(data_type.unit, "UTC")).cast(data_type)
    return pa.scalar(written).cast(data_type)


def array_of(written: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Return the Arrow array of a JSON list."""
    if pt.is_dictionary(data_type):
        return array_of(written, data_type.value_type).dictionary_encode().cast(data_type)
    return pa.array([scalar_of(value, data_type) for value in written], data_type)


def exact(values: pa.Array | pa.ChunkedArray) -> list[str]:
    """Return texts that are equal only for equal values. Zeros differ by sign; all NaNs are one."""
    if pt.is_temporal(values.type):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return [repr(value) for value in values.to_pylist()]
