"""Constants: their SQL text, their neighbours in order, and one form for equal floats.

Lance and DataFusion read the same text for every type here, except that Lance takes a plain
INT64_MIN for a float: it is always written as a cast.
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
    """DataFusion understands this part of an expression, but Phalanx cannot write it down."""


def quote(name: str, mark: str) -> str:
    """An identifier in quotes of the given kind."""
    return mark + name.replace(mark, mark * 2) + mark


def text_sql(text: str) -> str:
    """A string as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def type_name(data_type: pa.DataType) -> str:
    """The name by which `arrow_cast` knows a type."""
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
        return f"Dictionary({type_name(data_type.index_type)}, {type_name(data_type.value_type)})"
    raise NotExpressible(f"a constant of type {data_type}")


def comparand_sql(value: pa.Scalar) -> str:
    """A constant to be compared with a column of its own type: readable, and exact beside it."""
    data_type = value.type
    if value.is_valid:
        if pt.is_integer(data_type) and value.as_py() != _INT64_MIN:
            return str(value.as_py())
        if pt.is_large_string(data_type) or pt.is_string_view(data_type):
            return text_sql(value.as_py())
        if data_type == pa.float64() and math.isfinite(number := value.as_py()) and number != 0:
            return repr(number)
    return typed_sql(value)


def comparands_sql(values: pa.Array) -> list[str]:
    """Many constants of one type, each as `comparand_sql` has it."""
    if pt.is_integer(values.type) and _INT64_MIN not in (numbers := values.to_pylist()):
        return list(map(str, numbers))
    if pt.is_string(values.type) or pt.is_large_string(values.type):
        return [text_sql(text) for text in values.to_pylist()]
    return [comparand_sql(value) for value in values]


def plain_texts(values: pa.Array) -> list[str]:
    """Constants as people write them: dates and times as text, numbers as digits."""
    return [_plain_text(value) for value in values]


def _plain_text(value: pa.Scalar) -> str:
    data_type = value.type
    if pt.is_decimal(data_type):
        return format(value.as_py(), "f")
    if pt.is_floating(data_type):
        return repr(float(value.as_py()))
    if pt.is_temporal(data_type) and (shown := iso_text(value)) is not None:
        zoned = pt.is_timestamp(data_type) and data_type.tz is not None
        return text_sql(shown + "Z" if zoned else shown)
    return comparand_sql(value)


def typed_sql(value: pa.Scalar) -> str:
    """A constant that DataFusion and Lance read back as the same value of the same type."""
    data_type = value.type
    if not value.is_valid:
        return f"arrow_cast(NULL, '{type_name(data_type)}')"
    if pt.is_boolean(data_type):
        return "true" if value.as_py() else "false"
    if data_type == pa.int64() and value.as_py() != _INT64_MIN:
        return str(value.as_py())
    if pt.is_integer(data_type):
        return _cast(text_sql(str(value.as_py())), data_type)
    if pt.is_floating(data_type):
        return _float_sql(float(value.as_py()), data_type)
    if pt.is_decimal(data_type):
        return _decimal_sql(value)
    if pt.is_string(data_type):
        return text_sql(value.as_py())
    if pt.is_large_string(data_type) or pt.is_string_view(data_type):
        return _cast(text_sql(value.as_py()), data_type)
    if _is_bytes(data_type):
        hexed = f"X'{value.as_py().hex()}'"
        return hexed if pt.is_binary(data_type) else _cast(hexed, data_type)
    if pt.is_temporal(data_type) and not pt.is_interval(data_type):
        return _temporal_sql(value)
    if pt.is_interval(data_type):
        months, days, nanoseconds = value.as_py()
        return f"INTERVAL '{months} MONTHS {days} DAYS {nanoseconds} NANOSECONDS'"
    if pt.is_dictionary(data_type):
        return _cast(typed_sql(value.value), data_type)
    if pt.is_list(data_type):
        return f"make_array({', '.join(map(typed_sql, value.values))})"
    if pt.is_struct(data_type):
        pairs = (f"{text_sql(name)}, {typed_sql(item)}" for name, item in value.items())
        return f"named_struct({', '.join(pairs)})"
    raise NotExpressible(f"a constant of type {data_type}")


def _cast(sql: str, data_type: pa.DataType) -> str:
    return f"arrow_cast({sql}, '{type_name(data_type)}')"


def _decimal_sql(value: pa.Scalar) -> str:
    data_type, digits = value.type, text_sql(format(value.as_py(), "f"))
    if data_type.scale >= 0:
        return _cast(digits, data_type)
    # Text is not cast to a negative scale; whole numbers are.
    return _cast(_cast(digits, pa.decimal256(76, 0)), data_type)


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(
        pt.is_binary(data_type)
        or pt.is_large_binary(data_type)
        or pt.is_fixed_size_binary(data_type)
        or pt.is_binary_view(data_type)
    )


def _float_sql(number: float, data_type: pa.DataType) -> str:
    # Plain digits would be a decimal.
    if math.isinf(number):
        return _cast("'inf'" if number > 0 else "'-inf'", data_type)
    return _cast("'NaN'" if math.isnan(number) else text_sql(repr(number)), data_type)


def _temporal_sql(value: pa.Scalar) -> str:
    data_type = value.type
    shown = iso_text(value)
    if shown is None:
        # Only times of 32 bits cannot be had from the int64 that plain digits are.
        ticks = str(ordinal(value))
        return _cast(_cast(ticks, pa.int32()) if pt.is_time32(data_type) else ticks, data_type)
    if pt.is_date32(data_type):
        return f"DATE '{shown}'"
    zoned = pt.is_timestamp(data_type) and data_type.tz is not None
    return _cast(text_sql(shown + "Z" if zoned else shown), data_type)


def iso_text(value: pa.Scalar) -> str | None:
    """A date, time or timestamp (in UTC) in ISO form; None where years run past four digits."""
    data_type = value.type
    if pt.is_duration(data_type):
        return None
    if pt.is_time(data_type):
        nanoseconds = ordinal(value) * _NANOSECONDS[data_type.unit]
        seconds, fraction = divmod(nanoseconds, 10**9)
        if not 0 <= seconds < 86_400:
            return None
        whole = (datetime.min + timedelta(seconds=seconds)).time()
        return whole.isoformat() + _fraction_text(fraction)
    unit = _DAY if pt.is_date32(data_type) else _NANOSECONDS[getattr(data_type, "unit", "ms")]
    seconds, fraction = divmod(ordinal(value) * unit, 10**9)
    try:
        moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
    except OverflowError:
        return None
    if pt.is_date(data_type) and moment.time() == time.min and not fraction:
        return moment.date().isoformat()
    return moment.isoformat() + _fraction_text(fraction)


def _fraction_text(nanoseconds: int) -> str:
    return "" if nanoseconds == 0 else f".{nanoseconds:09d}".rstrip("0")


def is_text(data_type: pa.DataType) -> bool:
    """Whether it is a type of texts."""
    return bool(
        pt.is_string(data_type) or pt.is_large_string(data_type) or pt.is_string_view(data_type)
    )


def storage_type(data_type: pa.DataType) -> pa.DataType | None:
    """The integer type that holds a date, time, timestamp or duration; None for other types."""
    if pt.is_temporal(data_type) and not pt.is_interval(data_type):
        return pa.int32() if data_type.bit_width == 32 else pa.int64()
    return None


def ordinal(value: pa.Scalar) -> Any:
    """A valid constant as the Python number, text or bytes that orders like it in its type.

    Dates, times and decimals give the integer that stores them.
    """
    if pt.is_decimal(value.type):
        return int(value.as_py().scaleb(value.type.scale, _WIDE))
    storage = storage_type(value.type)
    return value.as_py() if storage is None else value.cast(storage).as_py()


def from_ordinal(number: Any, data_type: pa.DataType) -> pa.Scalar:
    """The constant of `data_type` whose `ordinal` is `number`; raises if the type ends before."""
    if pt.is_decimal(data_type):
        return pa.scalar(Decimal(number).scaleb(-data_type.scale, _WIDE), data_type)
    storage = storage_type(data_type)
    if storage is None:
        return pa.scalar(number, data_type)
    return pa.scalar(number, storage).cast(data_type)


def successor(value: pa.Scalar) -> pa.Scalar | None:
    """The next larger value of a discrete type; None past the last one, or where there is none."""
    return _neighbour(value, 1)


def predecessor(value: pa.Scalar) -> pa.Scalar | None:
    """The next smaller value of a discrete type; None before the first, or where there is none."""
    return _neighbour(value, -1)


def is_discrete(data_type: pa.DataType) -> bool:
    """Whether every value but the extremes has a next and a previous one."""
    return bool(
        pt.is_integer(data_type)
        or pt.is_boolean(data_type)
        or pt.is_decimal(data_type)
        or data_type == pa.float64()
        or storage_type(data_type) is not None
    )


def _neighbour(value: pa.Scalar, step: int) -> pa.Scalar | None:
    data_type = value.type
    if data_type == pa.float64():
        number = value.as_py()
        nearest = float(np.nextafter(number, math.inf * step))
        return None if math.isnan(number) or nearest == number else pa.scalar(nearest)
    if pt.is_boolean(data_type):
        return pa.scalar(step > 0) if value.as_py() is (step < 0) else None
    following = ordinal(value) + step
    if pt.is_time(data_type) and not 0 <= following * _NANOSECONDS[data_type.unit] < _DAY:
        return None
    try:
        return from_ordinal(following, data_type)
    except (pa.ArrowInvalid, OverflowError):
        return None


def has_utc_meaning(data_type: pa.DataType) -> bool:
    """Whether calendar parts of the column are the same in SQL as in UTC."""
    if not pt.is_timestamp(data_type) or data_type.tz is None:
        return True
    return data_type.tz.upper() in {"UTC", "Z", "+00:00", "-00:00", "ETC/UTC"}


def distinct(values: pa.Array) -> pa.Array:
    """The values without repetition."""
    return encoded(values).dictionary


def encoded(values: pa.Array) -> pa.DictionaryArray:
    """The values as codes into their distinct ones, NULL among them."""
    if pt.is_decimal(values.type) and values.type.bit_width < 128:
        # Arrow groups no narrower decimals.
        wide = encoded(values.cast(pa.decimal128(values.type.precision, values.type.scale)))
        return pa.DictionaryArray.from_arrays(wide.indices, wide.dictionary.cast(values.type))
    return values.dictionary_encode(null_encoding="encode")


def with_both_zeros(values: pa.Array) -> pa.Array:
    """Floats with both zeros if one is among them, as SQL takes them for equal.

    So do Lance and DataFusion, but not in a longer IN, nor in one of a cast column.
    """
    if not pt.is_floating(values.type) or len(values) < 2 or 0 not in values.to_pylist():
        return values
    zeros = pa.array([0.0, -0.0]).cast(values.type)
    return distinct(pa.concat_arrays([values, zeros]))


def one_form(values: pa.Array) -> pa.Array:
    """Floats with one zero and one NaN, dictionaries decoded; other arrays unchanged."""
    if pt.is_dictionary(values.type):
        return one_form(values.dictionary_decode())
    if not pt.is_floating(values.type):
        return values
    if values.type == pa.float16():
        # Arrow cannot compare half floats.
        return one_form(values.cast(pa.float32())).cast(pa.float16())
    zero, nan = pa.scalar(0.0, values.type), pa.scalar(math.nan, values.type)
    values = pc.if_else(pc.equal(values, zero), zero, values)
    return pc.if_else(pc.is_nan(values), nan, values)
