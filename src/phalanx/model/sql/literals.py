"""Constants: their SQL text, their order, and a normal form of equal values.

Lance and DataFusion parse the same text for every type here, except that Lance parses a plain
INT64_MIN as a float: it is always written as a cast.
"""

from __future__ import annotations

import math
from datetime import datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import PhalanxError

_UNIT_NAMES = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9
_INT64_MIN = -(2**63)
_WIDE = Context(prec=100)
_PLAIN_NAMES: dict[pa.DataType, str] = {
    pa.null(): "Null",
    pa.bool_(): "Boolean",
    pa.float16(): "Float16",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.string(): "Utf8",
    pa.large_string(): "LargeUtf8",
    pa.string_view(): "Utf8View",
    pa.binary(): "Binary",
    pa.large_binary(): "LargeBinary",
    pa.binary_view(): "BinaryView",
    pa.date32(): "Date32",
    pa.date64(): "Date64",
    pa.month_day_nano_interval(): "Interval(MonthDayNano)",
} | {
    data_type: ("UInt" if pt.is_unsigned_integer(data_type) else "Int") + str(data_type.bit_width)
    for data_type in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    )
}


class NotExpressible(PhalanxError):
    """DataFusion can parse this part of an expression, but Phalanx cannot render it as SQL."""


def quote_identifier(name: str, mark: str) -> str:
    """Quote an identifier with the given mark."""
    return mark + name.replace(mark, mark * 2) + mark


def quote_string(text: str) -> str:
    """Quote a string as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def to_type_name(data_type: pa.DataType) -> str:
    """Return the name of a type for `arrow_cast`."""
    if (name := _PLAIN_NAMES.get(data_type)) is not None:
        return name
    if pt.is_timestamp(data_type):
        zone = "None" if data_type.tz is None else f'Some("{data_type.tz}")'
        return f"Timestamp({_UNIT_NAMES[data_type.unit]}, {zone})"
    if pt.is_time(data_type):
        return f"Time{data_type.bit_width}({_UNIT_NAMES[data_type.unit]})"
    if pt.is_duration(data_type):
        return f"Duration({_UNIT_NAMES[data_type.unit]})"
    if pt.is_decimal(data_type):
        return f"Decimal{data_type.bit_width}({data_type.precision}, {data_type.scale})"
    if pt.is_fixed_size_binary(data_type):
        return f"FixedSizeBinary({data_type.byte_width})"
    if pt.is_dictionary(data_type):
        index, value = to_type_name(data_type.index_type), to_type_name(data_type.value_type)
        return f"Dictionary({index}, {value})"
    raise NotExpressible(f"a constant of type {data_type}")


def render_comparand(value: pa.Scalar) -> str:
    """Render a constant for comparison with a column of its type: readable, and exact there."""
    data_type = value.type
    if value.is_valid:
        if pt.is_integer(data_type) and value.as_py() != _INT64_MIN:
            return str(value.as_py())
        if pt.is_large_string(data_type) or pt.is_string_view(data_type):
            return quote_string(value.as_py())
        if data_type == pa.float64() and math.isfinite(number := value.as_py()) and number != 0:
            return repr(number)
    return render_typed(value)


def render_comparands(values: pa.Array) -> list[str]:
    """Render many constants of one type, each as `render_comparand` does."""
    if pt.is_integer(values.type) and _INT64_MIN not in (numbers := values.to_pylist()):
        return list(map(str, numbers))
    if pt.is_string(values.type) or pt.is_large_string(values.type):
        return [quote_string(text) for text in values.to_pylist()]
    return [render_comparand(value) for value in values]


def render_readable(values: pa.Array) -> list[str]:
    """Render constants for people: dates and times as text, numbers as digits."""
    return [_render_readable_value(value) for value in values]


def _render_readable_value(value: pa.Scalar) -> str:
    data_type = value.type
    if pt.is_decimal(data_type):
        return format(value.as_py(), "f")
    if pt.is_floating(data_type):
        return repr(float(value.as_py()))
    if pt.is_temporal(data_type) and (shown := format_iso(value)) is not None:
        zoned = pt.is_timestamp(data_type) and data_type.tz is not None
        return quote_string(shown + "Z" if zoned else shown)
    return render_comparand(value)


def render_typed(value: pa.Scalar) -> str:
    """Render a constant that DataFusion and Lance parse to the same value of the same type."""
    data_type = value.type
    if not value.is_valid:
        return f"arrow_cast(NULL, '{to_type_name(data_type)}')"
    if pt.is_boolean(data_type):
        return "true" if value.as_py() else "false"
    if data_type == pa.int64() and value.as_py() != _INT64_MIN:
        return str(value.as_py())
    if pt.is_integer(data_type):
        return _render_cast(quote_string(str(value.as_py())), data_type)
    if pt.is_floating(data_type):
        return _render_float(float(value.as_py()), data_type)
    if pt.is_decimal(data_type):
        return _render_decimal(value)
    if pt.is_string(data_type):
        return quote_string(value.as_py())
    if pt.is_large_string(data_type) or pt.is_string_view(data_type):
        return _render_cast(quote_string(value.as_py()), data_type)
    if _is_bytes(data_type):
        hexed = f"X'{value.as_py().hex()}'"
        return hexed if pt.is_binary(data_type) else _render_cast(hexed, data_type)
    if pt.is_temporal(data_type) and not pt.is_interval(data_type):
        return _render_temporal(value)
    if pt.is_interval(data_type):
        months, days, nanoseconds = value.as_py()
        return f"INTERVAL '{months} MONTHS {days} DAYS {nanoseconds} NANOSECONDS'"
    if pt.is_dictionary(data_type):
        return _render_cast(render_typed(value.value), data_type)
    if pt.is_list(data_type):
        return f"make_array({', '.join(map(render_typed, value.values))})"
    if pt.is_struct(data_type):
        pairs = (f"{quote_string(name)}, {render_typed(item)}" for name, item in value.items())
        return f"named_struct({', '.join(pairs)})"
    raise NotExpressible(f"a constant of type {data_type}")


def _render_cast(sql: str, data_type: pa.DataType) -> str:
    return f"arrow_cast({sql}, '{to_type_name(data_type)}')"


def _render_decimal(value: pa.Scalar) -> str:
    data_type, digits = value.type, quote_string(format(value.as_py(), "f"))
    if data_type.scale >= 0:
        return _render_cast(digits, data_type)
    # Text cannot be cast to a negative scale; integers can.
    return _render_cast(_render_cast(digits, pa.decimal256(76, 0)), data_type)


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(
        pt.is_binary(data_type)
        or pt.is_large_binary(data_type)
        or pt.is_fixed_size_binary(data_type)
        or pt.is_binary_view(data_type)
    )


def _render_float(number: float, data_type: pa.DataType) -> str:
    # Plain digits would be parsed as a decimal.
    if math.isinf(number):
        return _render_cast("'inf'" if number > 0 else "'-inf'", data_type)
    return _render_cast("'NaN'" if math.isnan(number) else quote_string(repr(number)), data_type)


def _render_temporal(value: pa.Scalar) -> str:
    data_type = value.type
    shown = format_iso(value)
    if shown is None:
        # Plain digits are int64, which casts to every type here except 32-bit times.
        ticks = str(to_ordinal(value))
        return _render_cast(
            _render_cast(ticks, pa.int32()) if pt.is_time32(data_type) else ticks, data_type
        )
    if pt.is_date32(data_type):
        return f"DATE '{shown}'"
    zoned = pt.is_timestamp(data_type) and data_type.tz is not None
    return _render_cast(quote_string(shown + "Z" if zoned else shown), data_type)


def format_iso(value: pa.Scalar) -> str | None:
    """Format a date, time or timestamp (in UTC) by ISO 8601; None if the year is out of range."""
    data_type = value.type
    if pt.is_duration(data_type):
        return None
    if pt.is_time(data_type):
        nanoseconds = to_ordinal(value) * _NANOSECONDS[data_type.unit]
        seconds, fraction = divmod(nanoseconds, 10**9)
        if not 0 <= seconds < 86_400:
            return None
        whole = (datetime.min + timedelta(seconds=seconds)).time()
        return whole.isoformat() + _format_fraction(fraction)
    unit = _DAY if pt.is_date32(data_type) else _NANOSECONDS[getattr(data_type, "unit", "ms")]
    seconds, fraction = divmod(to_ordinal(value) * unit, 10**9)
    try:
        moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
    except OverflowError:
        return None
    if pt.is_date(data_type) and moment.time() == time.min and not fraction:
        return moment.date().isoformat()
    return moment.isoformat() + _format_fraction(fraction)


def _format_fraction(nanoseconds: int) -> str:
    return "" if nanoseconds == 0 else f".{nanoseconds:09d}".rstrip("0")


def is_text(data_type: pa.DataType) -> bool:
    """Return whether it is a string type."""
    return bool(
        pt.is_string(data_type) or pt.is_large_string(data_type) or pt.is_string_view(data_type)
    )


def storage_type_of(data_type: pa.DataType) -> pa.DataType | None:
    """Return the integer type that stores a date, time, timestamp or duration; else None."""
    if pt.is_temporal(data_type) and not pt.is_interval(data_type):
        return pa.int32() if data_type.bit_width == 32 else pa.int64()
    return None


def to_ordinal(value: pa.Scalar) -> Any:
    """Return a valid constant as a Python number, text or bytes with the same order.

    Dates, times and decimals give the integer that stores them.
    """
    if pt.is_decimal(value.type):
        return int(value.as_py().scaleb(value.type.scale, _WIDE))
    storage = storage_type_of(value.type)
    return value.as_py() if storage is None else value.cast(storage).as_py()


def from_ordinal(number: Any, data_type: pa.DataType) -> pa.Scalar:
    """Return the constant of `data_type` with this ordinal; raise if it is out of range."""
    if pt.is_decimal(data_type):
        return pa.scalar(Decimal(number).scaleb(-data_type.scale, _WIDE), data_type)
    storage = storage_type_of(data_type)
    if storage is None:
        return pa.scalar(number, data_type)
    return pa.scalar(number, storage).cast(data_type)


def find_successor(value: pa.Scalar) -> pa.Scalar | None:
    """Return the next larger value of a discrete type; None if there is none."""
    return _find_neighbour(value, 1)


def find_predecessor(value: pa.Scalar) -> pa.Scalar | None:
    """Return the next smaller value of a discrete type; None if there is none."""
    return _find_neighbour(value, -1)


def is_discrete(data_type: pa.DataType) -> bool:
    """Return whether every value but the extremes has a successor and a predecessor."""
    return bool(
        pt.is_integer(data_type)
        or pt.is_boolean(data_type)
        or pt.is_decimal(data_type)
        or data_type == pa.float64()
        or storage_type_of(data_type) is not None
    )


def _find_neighbour(value: pa.Scalar, step: int) -> pa.Scalar | None:
    data_type = value.type
    if data_type == pa.float64():
        number = value.as_py()
        nearest = float(np.nextafter(number, math.inf * step))
        return None if math.isnan(number) or nearest == number else pa.scalar(nearest)
    if pt.is_boolean(data_type):
        return pa.scalar(step > 0) if value.as_py() is (step < 0) else None
    following = to_ordinal(value) + step
    if pt.is_time(data_type) and not 0 <= following * _NANOSECONDS[data_type.unit] < _DAY:
        return None
    try:
        return from_ordinal(following, data_type)
    except (pa.ArrowInvalid, OverflowError):
        return None


def has_utc_calendar(data_type: pa.DataType) -> bool:
    """Return whether SQL computes the calendar parts of the type in UTC."""
    if not pt.is_timestamp(data_type) or data_type.tz is None:
        return True
    return data_type.tz.upper() in {"UTC", "Z", "+00:00", "-00:00", "ETC/UTC"}


def drop_duplicates(values: pa.Array) -> pa.Array:
    """Return the distinct values."""
    return dictionary_encode(values).dictionary


def dictionary_encode(values: pa.Array) -> pa.DictionaryArray:
    """Encode the values as indices into their distinct values, NULL included."""
    if pt.is_decimal(values.type) and values.type.bit_width < 128:
        # Arrow cannot encode narrower decimals.
        wide = dictionary_encode(
            values.cast(pa.decimal128(values.type.precision, values.type.scale))
        )
        return pa.DictionaryArray.from_arrays(wide.indices, wide.dictionary.cast(values.type))
    return values.dictionary_encode(null_encoding="encode")


def add_both_zeros(values: pa.Array) -> pa.Array:
    """Add the other zero to floats that contain one: SQL treats 0.0 and -0.0 as equal.

    Lance and DataFusion do so too, but not in a long IN, nor in an IN on a cast column.
    """
    if not pt.is_floating(values.type) or len(values) < 2 or 0 not in values.to_pylist():
        return values
    zeros = pa.array([0.0, -0.0]).cast(values.type)
    return drop_duplicates(pa.concat_arrays([values, zeros]))


def normalize_values(values: pa.Array) -> pa.Array:
    """Normalize floats to one zero and one NaN and decode dictionaries; keep other arrays."""
    if pt.is_dictionary(values.type):
        return normalize_values(values.dictionary_decode())
    if not pt.is_floating(values.type):
        return values
    if values.type == pa.float16():
        # Arrow cannot compare half floats.
        return normalize_values(values.cast(pa.float32())).cast(pa.float16())
    zero, nan = pa.scalar(0.0, values.type), pa.scalar(math.nan, values.type)
    values = pc.if_else(pc.equal(values, zero), zero, values)
    return pc.if_else(pc.is_nan(values), nan, values)
