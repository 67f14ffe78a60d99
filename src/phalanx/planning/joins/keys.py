"""The columns that a join compares, and the type in which it compares them.

Values compare as in Spark: regardless of width, −0.0 equal to 0.0, all NaN equal, and times in
microseconds. NULL equals nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidArgument, InvalidSchema, SchemaMismatch
from phalanx.model.schema.schema import Schema
from phalanx.model.sql.literals import normalize_values

JoinOn: TypeAlias = str | Sequence[str | tuple[str, str]]
_MAX_DIGITS = 38


@dataclass(frozen=True, slots=True)
class JoinKey:
    """A column of each side.

    Attributes:
        left: The column of the left table.
        right: The column of the right table.
        type: The type in which they are compared.
    """

    left: str
    right: str
    type: pa.DataType

    @property
    def columns(self) -> tuple[str, str]:
        """The left and the right column."""
        return self.left, self.right

    def __str__(self) -> str:
        return self.left if self.left == self.right else f"{self.left} = {self.right}"


def resolve_join_keys(on: JoinOn, left: Schema, right: Schema) -> tuple[JoinKey, ...]:
    """Resolve `on`: a column, a list of columns, or a list of (left, right) pairs."""
    pairs = [on] if isinstance(on, str) else list(on) if isinstance(on, Sequence) else []
    if not pairs:
        raise InvalidArgument(
            f"Cannot join on {on!r}: expected a column, a list of columns, or a list of "
            "(left, right) pairs."
        )
    return tuple(dict.fromkeys(_resolve_key(pair, left, right) for pair in pairs))


def _resolve_key(pair: object, left: Schema, right: Schema) -> JoinKey:
    names = (pair, pair) if isinstance(pair, str) else pair
    if not (
        isinstance(names, tuple | list)
        and len(names) == 2
        and all(isinstance(name, str) for name in names)
    ):
        raise InvalidArgument(
            f"Cannot join on {pair!r}: expected the name of a column, or a pair of names (left, "
            "right)."
        )
    one, other = (
        _resolve_column(name, schema, side)
        for name, schema, side in zip(names, (left, right), ("left", "right"), strict=True)
    )
    left_type, right_type = left.arrow.field(one).type, right.arrow.field(other).type
    common = find_common_type(left_type, right_type)
    if common is None:
        raise SchemaMismatch(
            f"Cannot join on {one!r} ({left_type}) and {other!r} ({right_type}): expected "
            "numbers of one kind, text, bytes, dates, times, or timestamps that both have a time "
            "zone or both have none. Give one table a column of the other's type."
        )
    return JoinKey(one, other, common)


def _resolve_column(name: str, schema: Schema, side: str) -> str:
    try:
        path = schema.resolve(name)
    except InvalidSchema as error:
        raise SchemaMismatch(f"Cannot join on {name!r} of the {side} table: {error}") from None
    if len(path) > 1:
        raise SchemaMismatch(
            f"Cannot join on {name!r} of the {side} table: it is inside {path[0]!r}, and a join "
            "compares whole columns. Copy it to a top-level column."
        )
    return path[0]


def find_common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type in which two columns are compared; None if they are not comparable."""
    left, right = (_decode_type(kind) for kind in (left, right))
    both = (left, right)
    if all(map(pt.is_integer, both)):
        if pa.uint64() not in both:
            return pa.int64()
        return pa.uint64() if left == right else pa.decimal128(20, 0)
    if all(map(pt.is_decimal, both)):
        scale = max(0, left.scale, right.scale)
        digits = scale + max(kind.precision - kind.scale for kind in both)
        return pa.decimal128(digits, scale) if digits <= _MAX_DIGITS else None
    if all(map(pt.is_timestamp, both)):
        zones = {kind.tz is None for kind in both}
        return None if len(zones) > 1 else pa.timestamp("us", None if True in zones else "UTC")
    families = (
        (pt.is_boolean, pa.bool_()),
        (pt.is_floating, pa.float64()),
        (_is_text, pa.string()),
        (_is_binary, pa.binary()),
        (pt.is_date, pa.date32()),
        (pt.is_time, pa.time64("us")),
        # Durations compare as microseconds.
        (pt.is_duration, pa.int64()),
    )
    return next((kind for test, kind in families if all(map(test, both))), None)


def to_comparable(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values to the type of the comparison and normalize equal values."""
    if pt.is_duration(column.type) and not pt.is_duration(kind):
        column = cast_values(column, pa.duration("us"))
    return normalize_values(cast_values(column, kind))


def cast_values(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values to a related type, truncating nanoseconds to microseconds."""
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    given = column.type
    if given == kind:
        return column
    if pt.is_timestamp(given) and given.unit == "ns":
        column = pc.floor_temporal(column, unit="microsecond")
    if pt.is_duration(given) and given.unit == "ns":
        return pc.divide(column.cast(pa.int64()), 1000).cast(kind)
    return column.cast(kind, safe=not pt.is_time64(given))


def has_nanoseconds(kind: pa.DataType) -> bool:
    """Return whether the type has nanoseconds, which a join truncates to microseconds."""
    temporal = pt.is_timestamp(kind) or pt.is_duration(kind) or pt.is_time64(kind)
    return bool(temporal and kind.unit == "ns")


def _decode_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pt.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_fixed_size_binary(kind)
        or pt.is_binary_view(kind)
    )
