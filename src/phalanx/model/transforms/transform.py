"""The contract of a transform, and identity, the simplest one (format: Partition Transform).

A transform defines its JSON, its result type, its evaluation on Arrow arrays, its SQL expression,
the projection of conditions on its source, its label, and the transforms it can be joined with.
The law of `project`: if a row satisfies the condition, its partition value satisfies the
projection.
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
    AtomicPredicate,
    Compare,
    In,
    IsNull,
    Like,
    NotIn,
    NotNull,
    Predicate,
    any_of,
)
from phalanx.model.sql.literals import (
    drop_duplicates,
    find_predecessor,
    find_successor,
    is_discrete,
    normalize_values,
)
from phalanx.model.sql.syntax import Column

# A transform does not know the column's name: callers replace this in error messages.
COLUMN_PLACEHOLDER = "<column>"
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Projection:
    """The condition on the partition value that a condition on the source implies.

    `exact` means that the converse holds too: every row of a matching partition satisfies the
    condition. Otherwise `reason` says why the scan still has to filter.
    """

    predicate: Predicate
    exact: bool
    reason: str = ""


class Transform(ABC):
    """A function from source values to a partition value. NULL, and only NULL, maps to NULL."""

    name: ClassVar[str]
    # Whether `apply` reproduces the stored values. Some transforms of other systems depend on
    # state that was not recorded.
    is_repeatable: ClassVar[bool] = True

    @property
    def calendar_part(self) -> Transform:
        """The equivalent part of the date chain, regardless of the stored type."""
        return self

    @property
    def parameters(self) -> Mapping[str, int]:
        """The parameters by their names in the format's JSON."""
        return {}

    def to_json(self) -> dict[str, Any]:
        """Return the `transform` object of a partition field."""
        return {"type": self.name, **self.parameters}

    @abstractmethod
    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        """Return the exact type of the partition value; raise `InvalidSpec` for other sources."""

    @abstractmethod
    def apply(self, *columns: pa.Array) -> pa.Array:
        """Compute the partition value of every row, in the result type."""

    @abstractmethod
    def sql(self, *sources: pa.DataType) -> str:
        """Return the derived expression over `col0`, `col1`, …"""

    def label(self, *names: str) -> str:
        """Return the transform as users write it: `bucket(16, id)`."""
        return f"{self.name}({', '.join([*map(str, self.parameters.values()), *names])})"

    def preserves_order(self, source: pa.DataType) -> bool:
        """Return whether a larger source value never has a smaller partition value."""
        return False

    def has_gaps_in_sql(self, source: pa.DataType) -> bool:
        """Return whether the SQL is NULL in DataFusion for some values that have a partition."""
        return False

    def project(self, atom: AtomicPredicate, source: pa.DataType, target: Column) -> Projection:
        """Internal: project a condition on the single source onto the partition value."""
        many_values = f"a partition of {self.name} holds many values"
        match atom:
            case IsNull():
                return Projection(IsNull(target), True)
            case NotNull():
                return Projection(NotNull(target), True)
            case In(values=values):
                found = drop_duplicates(self.apply(values))
                return Projection(In(target, found), False, many_values)
            case Compare():
                return self._project_range(atom, source, target)
            case NotIn() | Like():
                return Projection(NotNull(target), False, many_values)

    def _project_range(self, atom: Compare, source: pa.DataType, target: Column) -> Projection:
        if not (self.preserves_order(source) and is_discrete(source)):
            return Projection(NotNull(target), False, f"{self.name} does not preserve order")
        bound = to_inclusive_bound(atom)
        if bound is None:
            return Projection(FALSE, True)
        value = self.apply(pa.array([bound.value], bound.value.type))[0]
        beyond = (find_successor if bound.is_upper else find_predecessor)(bound.value)
        exact = beyond is None or self.apply(pa.array([beyond], beyond.type))[0] != value
        operator = "<=" if bound.is_upper else ">="
        reason = "" if exact else f"the range ends within one {self.name}"
        return Projection(Compare(target, operator, value), exact, reason)

    def ducklake_name(self, source: pa.DataType) -> str:
        """Return the name in DuckLake catalogs; raise `InvalidSpec` if they have no equivalent."""
        raise InvalidSpec(
            f"Cannot write {self.label(COLUMN_PLACEHOLDER)} to a DuckLake catalog: DuckLake has no "
            "such transform, only identity, year, month, day, hour, and buckets with another "
            "hash. Partition by one of these."
        )

    def find_reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        """Return a transform from these values to the coarser transform's; None if impossible."""
        return IDENTITY if self == coarser else None


@dataclass(frozen=True, slots=True)
class RangeBound:
    """One end of a range, inclusive."""

    value: pa.Scalar
    is_upper: bool


def to_inclusive_bound(atom: Compare) -> RangeBound | None:
    """Return the last value of a discrete type that satisfies the comparison, or None."""
    match atom.operator:
        case "<=":
            return RangeBound(atom.value, True)
        case ">=":
            return RangeBound(atom.value, False)
    is_upper = atom.operator == "<"
    value = (find_predecessor if is_upper else find_successor)(atom.value)
    return None if value is None else RangeBound(value, is_upper)


@dataclass(frozen=True, slots=True)
class Identity(Transform):
    """The source value itself. Equal floats are normalized to one value."""

    name: ClassVar[str] = "identity"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        (source,) = sources
        if pt.is_dictionary(source):
            return self.result_type(source.value_type)
        if pt.is_struct(source) and source.num_fields:
            inner = ".".join(_find_first_field(source))
            raise InvalidSpec(
                f"Cannot partition by a column of type {source}: identity takes single values. "
                f"Name a field inside it, such as '{COLUMN_PLACEHOLDER}.{inner}'."
            )
        if pt.is_nested(source) or pt.is_null(source) or pt.is_interval(source):
            raise InvalidSpec(
                f"Cannot partition by a column of type {source}: identity takes numbers, booleans, "
                "strings, binary, dates, times and decimals. Use an expression field instead."
            )
        return source

    def apply(self, *columns: pa.Array) -> pa.Array:
        (column,) = columns
        return normalize_values(column)

    def sql(self, *sources: pa.DataType) -> str:
        return "col0"

    def label(self, *names: str) -> str:
        return names[0]

    def preserves_order(self, source: pa.DataType) -> bool:
        return True

    def ducklake_name(self, source: pa.DataType) -> str:
        return self.name

    def project(self, atom: AtomicPredicate, source: pa.DataType, target: Column) -> Projection:
        if not pt.is_floating(source) or isinstance(atom, IsNull | NotNull):
            return Projection(_retarget(atom, target), True)
        return Projection(
            self._project_float(atom, target), False, "equal floats share a partition"
        )

    def _project_float(self, atom: AtomicPredicate, target: Column) -> Predicate:
        """Project a condition on floats, as DataFusion compares them.

        A NaN with its sign bit set sorts below all numbers, but shares the partition of NaN. A long
        NOT IN distinguishes −0.0 from 0.0.
        """
        match atom:
            case In(values=values):
                return In(target, drop_duplicates(normalize_values(values)))
            case NotIn(values=values):
                numbers = values.cast(pa.float64())
                unlike = pc.and_(pc.not_equal(numbers, 0.0), pc.invert(pc.is_nan(numbers)))
                others = values.filter(unlike)
                return NotIn(target, others) if len(others) else NotNull(target)
            case Compare(operator="<" | "<=", value=value):
                nan = pa.array([math.nan], value.type)
                return any_of((_retarget(atom, target), In(target, nan)))
        return _retarget(atom, target)

    def find_reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        try:
            coarser.result_type(source)
        except InvalidSpec:
            return None
        return coarser if coarser.is_repeatable else None


IDENTITY = Identity()


def _retarget(atom: AtomicPredicate, target: Column) -> AtomicPredicate:
    """Return the same condition on another term."""
    match atom:
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


def _find_first_field(struct: pa.DataType) -> tuple[str, ...]:
    """Return the path of the first field without fields of its own inside a struct."""
    first = struct.field(0)
    inner = (
        _find_first_field(first.type) if pt.is_struct(first.type) and first.type.num_fields else ()
    )
    return (first.name, *inner)


def check_positive(name: str, parameter: str, value: int) -> None:
    """Raise `InvalidSpec` unless the parameter is a positive 32-bit integer."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _INT32_MAX:
        raise InvalidSpec(
            f"Cannot use {parameter} {value!r} in {name}: expected a whole number "
            f"from 1 to {_INT32_MAX}."
        )
