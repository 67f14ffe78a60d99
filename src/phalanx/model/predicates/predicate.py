"""Bound predicates: conditions on rows that can be projected, rendered and stored.

A bound predicate has no NOT: negation is pushed into the atomic predicates, so that a row matches
exactly when the tree is TRUE, and AND and OR need no rule for NULL. Each atomic predicate compares
one term with constants; the term is a column, or an expression that a partition field may also
compute. A condition without such a form is `Opaque`: only DataFusion evaluates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from phalanx.model.sql.syntax import Column, Node, find_columns


@dataclass(frozen=True, slots=True)
class Always:
    """TRUE or FALSE for every row."""

    value: bool


@dataclass(frozen=True, slots=True)
class And:
    """A conjunction of predicates."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """A disjunction of predicates."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """`term < value`, or with `<=`, `>` or `>=`; the value is never NULL."""

    term: Node
    operator: str
    value: pa.Scalar

    def __reduce__(self) -> tuple[Callable[..., Compare], tuple[Node, str, pa.Array]]:
        # Scalars are pickled as Python values, which lack distant dates and nanoseconds.
        return _unpickle_compare, (
            self.term,
            self.operator,
            pa.array([self.value], self.value.type),
        )


def _unpickle_compare(term: Node, operator: str, values: pa.Array) -> Compare:
    return Compare(term, operator, values[0])


@dataclass(frozen=True, slots=True)
class In:
    """`term IN values`; equality is an `In` of one value. The values are never NULL."""

    term: Node
    values: pa.Array


@dataclass(frozen=True, slots=True)
class NotIn:
    """`term NOT IN values`; a NULL term does not match."""

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
    """`term [NOT] LIKE pattern`, or ILIKE if not `case_sensitive`; backslash escapes."""

    term: Node
    pattern: str
    negated: bool = False
    case_sensitive: bool = True

    @property
    def prefix(self) -> str:
        """The prefix of every matching text."""
        return self._split_pattern()[0]

    @property
    def is_prefix_test(self) -> bool:
        """Whether the pattern tests only for a prefix."""
        return self.case_sensitive and self._split_pattern()[1] == "%"

    def _split_pattern(self) -> tuple[str, str]:
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
    """A condition in DataFusion's SQL that Phalanx cannot analyze."""

    sql: str
    columns: frozenset[tuple[str, ...]]


AtomicPredicate: TypeAlias = Compare | In | NotIn | IsNull | NotNull | Like
Predicate: TypeAlias = Always | And | Or | AtomicPredicate | Opaque

_OPPOSITES = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}

TRUE = Always(True)
FALSE = Always(False)


def all_of(parts: Iterable[Predicate]) -> Predicate:
    """Return the conjunction of the parts, flattened and without constants."""
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
    """Return the disjunction of the parts, flattened and without constants."""
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
    """Return the predicate that matches exactly the other rows, including those with NULL."""
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


def one_of(term: Node, values: pa.Array) -> Predicate:
    """Return the predicate that `term` is one of the values, where NULL equals NULL."""
    present = values.drop_null()
    parts: list[Predicate] = [In(term, present)] if len(present) else []
    return any_of([*parts, IsNull(term)] if values.null_count else parts)


def split_conjuncts(predicate: Predicate) -> tuple[Predicate, ...]:
    """Return the parts of a conjunction; a predicate without AND is one part."""
    match predicate:
        case And(parts=parts):
            return parts
        case Always(value=True):
            return ()
    return (predicate,)


def walk_atomic_predicates(predicate: Predicate) -> Iterator[AtomicPredicate | Opaque]:
    """Iterate over the atomic and opaque predicates of a predicate."""
    match predicate:
        case Always():
            return
        case And(parts=parts) | Or(parts=parts):
            for part in parts:
                yield from walk_atomic_predicates(part)
        case _:
            yield predicate


def is_on_column(atom: AtomicPredicate | Opaque) -> bool:
    """Return whether the predicate compares a plain column."""
    return not isinstance(atom, Opaque) and isinstance(atom.term, Column)


def find_predicate_columns(predicate: Predicate) -> frozenset[tuple[str, ...]]:
    """Return the paths of all columns that a predicate reads."""
    found: frozenset[tuple[str, ...]] = frozenset()
    for atom in walk_atomic_predicates(predicate):
        found |= atom.columns if isinstance(atom, Opaque) else find_columns(atom.term)
    return found
