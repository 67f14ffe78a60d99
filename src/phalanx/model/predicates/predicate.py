"""Predicates: what a row must satisfy, in a form that can be projected, rendered and kept.

A bound predicate has no NOT: negation is pushed into the leaves, so that a row matches exactly
when the tree is TRUE, and AND and OR never have to think of NULL. Each leaf compares one term
with constants; the term is a column, or an expression that a partition field may also compute.
What has no such form is `Opaque`: only DataFusion evaluates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from phalanx.model.sql.syntax import Column, Node, columns


@dataclass(frozen=True, slots=True)
class Always:
    """TRUE or FALSE for every row."""

    value: bool


@dataclass(frozen=True, slots=True)
class And:
    """All of them."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any of them."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """`term < value`, and `<= > >=`; the value is never NULL."""

    term: Node
    operator: str
    value: pa.Scalar

    def __reduce__(self) -> tuple[Callable[..., Compare], tuple[Node, str, pa.Array]]:
        # A scalar is pickled as a value of Python's, which has no far dates and no nanoseconds.
        return _compare, (self.term, self.operator, pa.array([self.value], self.value.type))


def _compare(term: Node, operator: str, values: pa.Array) -> Compare:
    return Compare(term, operator, values[0])


@dataclass(frozen=True, slots=True)
class In:
    """`term IN values`; equality is an `In` of one. The values are never NULL."""

    term: Node
    values: pa.Array


@dataclass(frozen=True, slots=True)
class NotIn:
    """`term NOT IN values`, which no NULL satisfies."""

    term: Node
    values: pa.Array


@dataclass(frozen=True, slots=True)
class IsNull:
    """`term IS NULL`."""

    term: Node


@dataclass(frozen=True, slots=True)
class NotNull:
    """`term IS NOT NULL`."""

    term: Node


@dataclass(frozen=True, slots=True)
class Like:
    """`term [NOT] LIKE pattern`, or ILIKE when case does not matter; backslash escapes."""

    term: Node
    pattern: str
    negated: bool = False
    case_sensitive: bool = True

    @property
    def prefix(self) -> str:
        """What every matching text starts with."""
        return self._split()[0]

    @property
    def is_prefix_test(self) -> bool:
        """Whether the pattern asks for its prefix and nothing more."""
        return self.case_sensitive and self._split()[1] == "%"

    def _split(self) -> tuple[str, str]:
        prefix: list[str] = []
        position, pattern = 0, self.pattern
        while position < len(pattern) and pattern[position] not in "%_":
            if pattern[position] == "\\" and position + 1 < len(pattern):
                position += 1
            prefix.append(pattern[position])
            position += 1
        return "".join(prefix), pattern[position:]


@dataclass(frozen=True, slots=True)
class Opaque:
    """A condition in DataFusion's SQL that Phalanx cannot look into."""

    sql: str
    columns: frozenset[tuple[str, ...]]


Leaf: TypeAlias = Compare | In | NotIn | IsNull | NotNull | Like
Predicate: TypeAlias = Always | And | Or | Leaf | Opaque

_OPPOSITES = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}

TRUE = Always(True)
FALSE = Always(False)


def all_of(parts: Iterable[Predicate]) -> Predicate:
    """The conjunction, flattened and without its constants."""
    kept: list[Predicate] = []
    for part in parts:
        match part:
            case Always(value=False):
                return FALSE
            case Always():
                pass
            case And(parts=inner):
                kept.extend(inner)
            case _:
                kept.append(part)
    return kept[0] if len(kept) == 1 else And(tuple(kept)) if kept else TRUE


def any_of(parts: Iterable[Predicate]) -> Predicate:
    """The disjunction, flattened and without its constants."""
    kept: list[Predicate] = []
    for part in parts:
        match part:
            case Always(value=True):
                return TRUE
            case Always():
                pass
            case Or(parts=inner):
                kept.extend(inner)
            case _:
                kept.append(part)
    return kept[0] if len(kept) == 1 else Or(tuple(kept)) if kept else FALSE


def complement(predicate: Predicate) -> Predicate:
    """What the rows satisfy that do not satisfy the predicate, NULL included."""
    match predicate:
        case Always(value=value):
            return Always(not value)
        case And(parts=parts):
            return any_of(map(complement, parts))
        case Or(parts=parts):
            return all_of(map(complement, parts))
        case Opaque(sql=sql, columns=read):
            return Opaque(f"({sql} IS NOT TRUE)", read)
        case Compare(term=term, operator=operator, value=value):
            return any_of((Compare(term, _OPPOSITES[operator], value), IsNull(term)))
        case In(term=term, values=values):
            return any_of((NotIn(term, values), IsNull(term)))
        case NotIn(term=term, values=values):
            return any_of((In(term, values), IsNull(term)))
        case IsNull(term=term):
            return NotNull(term)
        case NotNull(term=term):
            return IsNull(term)
        case Like(term=term, pattern=pattern, negated=negated, case_sensitive=sensitive):
            return any_of((Like(term, pattern, not negated, sensitive), IsNull(term)))


def among(term: Node, values: pa.Array) -> Predicate:
    """`term` is one of the values, NULL included."""
    present = values.drop_null()
    parts: list[Predicate] = [In(term, present)] if len(present) else []
    return any_of([*parts, IsNull(term)] if values.null_count else parts)


def conjuncts(predicate: Predicate) -> tuple[Predicate, ...]:
    """The parts that must all hold."""
    match predicate:
        case And(parts=parts):
            return parts
        case Always(value=True):
            return ()
    return (predicate,)


def leaves(predicate: Predicate) -> Iterator[Leaf | Opaque]:
    """Every leaf below the predicate."""
    match predicate:
        case Always():
            return
        case And(parts=parts) | Or(parts=parts):
            for part in parts:
                yield from leaves(part)
        case _:
            yield predicate


def is_on_column(leaf: Leaf | Opaque) -> bool:
    """Whether the leaf compares a bare column."""
    return not isinstance(leaf, Opaque) and isinstance(leaf.term, Column)


def columns_of(predicate: Predicate) -> frozenset[tuple[str, ...]]:
    """The paths of all columns a predicate reads."""
    found: frozenset[tuple[str, ...]] = frozenset()
    for leaf in leaves(predicate):
        found |= leaf.columns if isinstance(leaf, Opaque) else columns(leaf.term)
    return found
