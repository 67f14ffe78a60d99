"""Random columns of Iceberg types, and conditions on them, for Phalanx and for pyiceberg alike."""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyiceberg import expressions as ice
from pyiceberg import types
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)

from phalanx.model.sql.literals import render_typed, storage_type_of

EPOCH = datetime.datetime(1970, 1, 1)


@dataclasses.dataclass(frozen=True)
class IcebergKind:
    """A type in Iceberg and Arrow, its Python values, and the transforms that accept it."""

    iceberg: types.PrimitiveType
    arrow: pa.DataType
    values: st.SearchStrategy[Any]
    transforms: tuple[Transform[Any, Any], ...]

    def array(self, values: list[Any]) -> pa.Array:
        """Return the values as an Arrow column."""
        plain = [each.bytes if isinstance(each, uuid.UUID) else each for each in values]
        return pa.array(plain, self.arrow)

    def internal(self, value: Any) -> Any:
        """Return the value in the form that pyiceberg's transforms accept."""
        if value is None or (storage := storage_type_of(self.arrow)) is None:
            return value
        return pa.scalar(value, self.arrow).cast(storage).as_py()

    def sql(self, value: Any) -> str:
        """Return the value as a constant in SQL."""
        return render_typed(self.array([value])[0])


def _near(center: int, width: int) -> st.SearchStrategy[int]:
    return st.integers(center - width, center + width)


_SMALL = st.one_of(st.integers(-60, 60), st.integers(-(10**6), 10**6))
_DAYS = st.one_of(_near(0, 800), _near(20_000, 500), st.integers(-140_000, 2_900_000))
_MOMENTS = st.one_of(
    st.builds(
        lambda day, hour, micro: EPOCH + datetime.timedelta(day, hour * 3600, micro),
        _near(0, 800),
        st.integers(0, 23),
        st.sampled_from([0, 1, 3_599_999_999, -1]),
    ),
    st.datetimes(datetime.datetime(1600, 1, 1), datetime.datetime(2500, 1, 1)),
)
_TEXT = st.one_of(
    st.text("abé😀", max_size=5), st.sampled_from(["", "a", "ab", "abc", "abcd", "\U0010ffff"])
)
_BYTES = st.binary(max_size=4)
_TIME_PARTS = (YearTransform(), MonthTransform(), DayTransform())
_BUCKETS = (BucketTransform(4), BucketTransform(7))
_CUTS = (TruncateTransform(1), TruncateTransform(3), TruncateTransform(10))
_ALWAYS = (IdentityTransform(), VoidTransform())

KINDS = (
    IcebergKind(types.IntegerType(), pa.int32(), _SMALL, (*_ALWAYS, *_BUCKETS, *_CUTS)),
    IcebergKind(types.LongType(), pa.int64(), _SMALL, (*_ALWAYS, *_BUCKETS, *_CUTS)),
    IcebergKind(
        types.DecimalType(9, 2),
        pa.decimal128(9, 2),
        st.integers(-3000, 3000).map(lambda n: Decimal(n).scaleb(-2)),
        (*_ALWAYS, *_BUCKETS, *_CUTS),
    ),
    IcebergKind(types.StringType(), pa.string(), _TEXT, (*_ALWAYS, *_BUCKETS, *_CUTS)),
    IcebergKind(types.BinaryType(), pa.binary(), _BYTES, (*_ALWAYS, *_BUCKETS, *_CUTS)),
    IcebergKind(
        types.DateType(),
        pa.date32(),
        _DAYS.filter(lambda day: -719_000 < day < 2_900_000).map(
            lambda day: (EPOCH + datetime.timedelta(day)).date()
        ),
        (*_ALWAYS, *_BUCKETS, *_TIME_PARTS),
    ),
    IcebergKind(
        types.TimestampType(),
        pa.timestamp("us"),
        _MOMENTS,
        (*_ALWAYS, *_BUCKETS, *_TIME_PARTS, HourTransform()),
    ),
    IcebergKind(
        types.TimestamptzType(),
        pa.timestamp("us", "UTC"),
        _MOMENTS.map(lambda moment: moment.replace(tzinfo=datetime.UTC)),
        (*_ALWAYS, *_BUCKETS, *_TIME_PARTS, HourTransform()),
    ),
    IcebergKind(
        types.UUIDType(),
        pa.binary(16),
        st.integers(0, 9).map(lambda n: uuid.UUID(int=n << 64)),
        (*_ALWAYS, *_BUCKETS),
    ),
)


@dataclasses.dataclass(frozen=True)
class Condition:
    """One condition, in SQL and as an expression of pyiceberg."""

    sql: str
    iceberg: ice.BooleanExpression


_COMPARISONS: dict[str, Callable[[str, Any], ice.BooleanExpression]] = {
    "=": ice.EqualTo,
    "!=": ice.NotEqualTo,
    "<": ice.LessThan,
    "<=": ice.LessThanOrEqual,
    ">": ice.GreaterThan,
    ">=": ice.GreaterThanOrEqual,
}


@st.composite
def conditions(draw: st.DrawFn, name: str, kind: IcebergKind, depth: int = 2) -> Condition:
    """A condition on one column."""
    shape = draw(st.sampled_from(["leaf", "leaf", "and", "or", "not"])) if depth else "leaf"
    if shape == "not":
        inner = draw(conditions(name, kind, depth - 1))
        return Condition(f"NOT ({inner.sql})", ice.Not(inner.iceberg))
    if shape in ("and", "or"):
        left, right = (draw(conditions(name, kind, depth - 1)) for _ in range(2))
        make = ice.And if shape == "and" else ice.Or
        return Condition(
            f"({left.sql}) {shape.upper()} ({right.sql})", make(left.iceberg, right.iceberg)
        )
    return draw(_leaf(name, kind))


@st.composite
def _leaf(draw: st.DrawFn, name: str, kind: IcebergKind) -> Condition:
    shapes = ["compare", "compare", "in", "not in", "null", "not null"]
    if kind.arrow == pa.string():
        shapes.append("prefix")
    match draw(st.sampled_from(shapes)):
        case "null":
            return Condition(f"{name} IS NULL", ice.IsNull(name))
        case "not null":
            return Condition(f"{name} IS NOT NULL", ice.NotNull(name))
        case "prefix":
            prefix = draw(st.text("abé😀", min_size=1, max_size=4))
            return Condition(f"{name} LIKE '{prefix}%'", ice.StartsWith(name, prefix))
        case "in" | "not in" as shape:
            values = draw(st.lists(kind.values, min_size=2, max_size=4, unique=True))
            texts = ", ".join(map(kind.sql, values))
            make = ice.In if shape == "in" else ice.NotIn
            return Condition(f"{name} {shape.upper()} ({texts})", make(name, values))
    operator = draw(st.sampled_from(list(_COMPARISONS)))
    value = draw(kind.values)
    # pyiceberg has no constants of UUIDs in ranges.
    if kind.iceberg == types.UUIDType() and operator not in ("=", "!="):
        operator = "="
    return Condition(f"{name} {operator} {kind.sql(value)}", _COMPARISONS[operator](name, value))
