"""The contract of a transform, and identity, the simplest one (format: Partition Transform).

A transform knows its JSON, its result type, its value for an Arrow array, the SQL it stands for,
what a condition on its source says about its value, its label, and what it can be joined with.
The law of `project`: if a row satisfies the leaf, its partition value satisfies the projection.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSpec
from phalanx.model.predicates.predicate import (
    FALSE,
    Compare,
    In,
    IsNull,
    Leaf,
    Like,
    NotIn,
    NotNull,
    Predicate,
    any_of,
)
from phalanx.model.sql.literals import distinct, is_discrete, one_form, predecessor, successor
from phalanx.model.sql.syntax import Column

# Stands in a message for the name of the column, which a transform does not know.
COLUMN = "<column>"
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Projection:
    """What a condition on the source implies for the partition value.

    `exact` means the other way round too: every row of a matching partition satisfies the
    condition. Where it does not, `reason` says why the scan still has to filter.
    """

    predicate: Predicate
    exact: bool
    reason: str = ""


class Transform(ABC):
    """A function from source values to a partition value that keeps NULL, and only NULL, NULL."""

    name: ClassVar[str]
    # Whether `apply` finds the values that are stored; of those of other systems some depend on
    # what nobody recorded.
    is_repeatable: ClassVar[bool] = True

    @property
    def calendar_part(self) -> Transform:
        """The part of the date chain that the values are, in whatever type they are stored."""
        return self

    @property
    def parameters(self) -> Mapping[str, int]:
        """The parameters as the format's JSON names them."""
        return {}

    def to_json(self) -> dict[str, Any]:
        """The `transform` object of a partition field."""
        return {"type": self.name, **self.parameters}

    @abstractmethod
    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        """The exact type of the partition value; `InvalidSpec` if the sources do not fit."""

    @abstractmethod
    def apply(self, *columns: pa.Array) -> pa.Array:
        """The partition value of every row, in the result type."""

    @abstractmethod
    def sql(self, *sources: pa.DataType) -> str:
        """The derived expression over `col0`, `col1`, …"""

    def label(self, *names: str) -> str:
        """How people write it: `bucket(16, id)`."""
        return f"{self.name}({', '.join([*map(str, self.parameters.values()), *names])})"

    def keeps_order(self, source: pa.DataType) -> bool:
        """Whether a larger source value never has a smaller partition value."""
        return False

    def has_gaps_in_sql(self, source: pa.DataType) -> bool:
        """Whether DataFusion finds NULL for some values that have a partition value."""
        return False

    def project(self, leaf: Leaf, source: pa.DataType, target: Column) -> Projection:
        """What the leaf, a condition on the one source, says about the partition value."""
        match leaf:
            case IsNull():
                return Projection(IsNull(target), True)
            case NotNull():
                return Projection(NotNull(target), True)
            case In(values=values):
                found = distinct(self.apply(values))
                return Projection(In(target, found), False, f"{self.name} holds many values")
            case Compare():
                return self._project_range(leaf, source, target)
            case NotIn() | Like():
                return Projection(NotNull(target), False, f"{self.name} holds many values")

    def _project_range(self, leaf: Compare, source: pa.DataType, target: Column) -> Projection:
        if not (self.keeps_order(source) and is_discrete(source)):
            return Projection(NotNull(target), False, f"{self.name} does not keep order")
        bound = inclusive_bound(leaf)
        if bound is None:
            return Projection(FALSE, True)
        value = self.apply(pa.array([bound.value], bound.value.type))[0]
        beyond = (successor if bound.is_upper else predecessor)(bound.value)
        exact = beyond is None or self.apply(pa.array([beyond], beyond.type))[0] != value
        operator = "<=" if bound.is_upper else ">="
        reason = "" if exact else f"the range ends within one {self.name}"
        return Projection(Compare(target, operator, value), exact, reason)

    def ducklake_name(self, source: pa.DataType) -> str:
        """How DuckLake's catalogs write it; `InvalidSpec` where they have nothing that means it."""
        raise InvalidSpec(
            f"Cannot write {self.label(COLUMN)} to a DuckLake catalog: it has no such transform, "
            "only identity, year, month, day, hour, and buckets of another hash. Partition by one "
            "of these."
        )

    def reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        """What turns this transform's values into the coarser one's; None where nothing does."""
        return IDENTITY if self == coarser else None


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range, as a value that still belongs to it."""

    value: pa.Scalar
    is_upper: bool


def inclusive_bound(leaf: Compare) -> Bound | None:
    """The last value of a discrete type that satisfies the comparison; None if there is none."""
    match leaf.operator:
        case "<=":
            return Bound(leaf.value, True)
        case ">=":
            return Bound(leaf.value, False)
    is_upper = leaf.operator == "<"
    value = (predecessor if is_upper else successor)(leaf.value)
    return None if value is None else Bound(value, is_upper)


@dataclass(frozen=True, slots=True)
class Identity(Transform):
    """The source value itself; equal floats in one form."""

    name: ClassVar[str] = "identity"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        (source,) = sources
        if pt.is_dictionary(source):
            return self.result_type(source.value_type)
        if pt.is_struct(source) and source.num_fields:
            raise InvalidSpec(
                f"Cannot partition by a column of type {source}: identity takes single values. "
                f"Name a field inside it, as '{COLUMN}.{'.'.join(_first_path(source))}'."
            )
        if pt.is_nested(source) or pt.is_null(source) or pt.is_interval(source):
            raise InvalidSpec(
                f"Cannot partition by a column of type {source}: identity takes numbers, booleans, "
                "strings, binary, dates, times and decimals. Use an expression field instead."
            )
        return source

    def apply(self, *columns: pa.Array) -> pa.Array:
        (column,) = columns
        return one_form(column)

    def sql(self, *sources: pa.DataType) -> str:
        return "col0"

    def label(self, *names: str) -> str:
        return names[0]

    def keeps_order(self, source: pa.DataType) -> bool:
        return True

    def ducklake_name(self, source: pa.DataType) -> str:
        return self.name

    def project(self, leaf: Leaf, source: pa.DataType, target: Column) -> Projection:
        if not pt.is_floating(source) or isinstance(leaf, IsNull | NotNull):
            return Projection(_moved(leaf, target), True)
        return Projection(
            self._project_float(leaf, target), False, "equal floats share a partition"
        )

    def _project_float(self, leaf: Leaf, target: Column) -> Predicate:
        """As DataFusion compares floats: a NaN with its sign set sorts below all numbers.

        The partition of NaN holds those too; and a long NOT IN tells −0.0 from 0.0.
        """
        match leaf:
            case In(values=values):
                return In(target, distinct(one_form(values)))
            case NotIn(values=values):
                numbers = values.cast(pa.float64())
                unlike = pc.and_(pc.not_equal(numbers, 0.0), pc.invert(pc.is_nan(numbers)))
                others = values.filter(unlike)
                return NotIn(target, others) if len(others) else NotNull(target)
            case Compare(operator="<" | "<=", value=value):
                nan = pa.array([math.nan], value.type)
                return any_of((_moved(leaf, target), In(target, nan)))
        return _moved(leaf, target)

    def reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        try:
            coarser.result_type(source)
        except InvalidSpec:
            return None
        return coarser if coarser.is_repeatable else None


IDENTITY = Identity()


def _moved(leaf: Leaf, target: Column) -> Leaf:
    """The same condition on another term."""
    match leaf:
        case Compare(operator=operator, value=value):
            return Compare(target, operator, value)
        case In(values=values):
            return In(target, values)
        case NotIn(values=values):
            return NotIn(target, values)
        case IsNull():
            return IsNull(target)
        case NotNull():
            return NotNull(target)
        case Like(pattern=pattern, negated=negated, case_sensitive=sensitive):
            return Like(target, pattern, negated, sensitive)


def _first_path(struct: pa.DataType) -> tuple[str, ...]:
    """The way to the first value inside a struct."""
    first = struct.field(0)
    inner = _first_path(first.type) if pt.is_struct(first.type) and first.type.num_fields else ()
    return (first.name, *inner)


def check_positive(name: str, parameter: str, value: int) -> None:
    """Refuse a parameter that is no positive 32-bit number."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _INT32_MAX:
        raise InvalidSpec(
            f"Cannot use {parameter} {value!r} in {name}: expected a whole number "
            f"from 1 to {_INT32_MAX}."
        )
