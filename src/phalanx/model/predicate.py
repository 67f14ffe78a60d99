"""Predicates: what a row must satisfy, in a form that can be projected, rendered and kept.

A bound predicate has no NOT: negation is pushed into the leaves, so that a row matches exactly
when the tree is TRUE, and AND and OR never have to think of NULL. Each leaf compares one term
with constants; the term is a column, or an expression that a partition field may also compute.
What has no such form is `Opaque`: only DataFusion evaluates it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from phalanx.model.literals import comparands_sql, plain_texts, quote, text_sql
from phalanx.model.syntax import Column, Node, columns, to_sql


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

_PLAIN_NAME = re.compile("[a-z_][a-z0-9_]*")
_MANIFEST_COLUMN = re.compile("object_id|object_type|partition_field_[a-z0-9_]+")
_KEYWORD_TEXT = """
all and any array as asc at between bigint binary boolean both by case cast char character
column columns create cross cube current current_date current_time current_timestamp date
day decimal default delete desc describe distinct double drop else end escape except exists
explain extract false fetch filter first float for from full function glob group having hour
if ilike in inner insert int integer intersect interval into is join last lateral left like
limit list map minute minus month natural not null nulls numeric offset on or order outer
over overlay partition position precision quarter range real regexp right rlike rollup row
rows second select session_user set similar smallint some string struct substring table text
then time timestamp timestamptz tinyint to trailing trim true try_cast uescape union unique
unknown unnest update user using values varchar view week when where window with within year
zone
"""
_KEYWORDS = frozenset(_KEYWORD_TEXT.split())

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


def columns_of(predicate: Predicate) -> frozenset[tuple[str, ...]]:
    """The paths of all columns a predicate reads."""
    found: frozenset[tuple[str, ...]] = frozenset()
    for leaf in leaves(predicate):
        found |= leaf.columns if isinstance(leaf, Opaque) else columns(leaf.term)
    return found


def to_lance(predicate: Predicate) -> str:
    """The predicate in Lance's dialect: identifiers in backticks, every constant typed.

    Only what `for_lance` lets through can be rendered.
    """
    return _render(predicate, _LANCE)


def to_datafusion(predicate: Predicate) -> str:
    """The predicate in DataFusion's dialect, every constant typed."""
    return _render(predicate, _DATAFUSION)


def summary(predicate: Predicate) -> str:
    """The predicate as people want to read it: constants plain, long lists cut. Not to be run."""
    return _render(predicate, _PEOPLE)


def for_lance(predicate: Predicate) -> tuple[Predicate, Predicate]:
    """The predicate as two that must both hold: what Lance can filter by, and the rest."""
    lance: list[Predicate] = []
    rest: list[Predicate] = []
    for part in conjuncts(predicate):
        (lance if _is_for_lance(part) else rest).append(part)
    return all_of(lance), all_of(rest)


def _is_for_lance(predicate: Predicate) -> bool:
    return all(
        not isinstance(leaf, Opaque) and isinstance(leaf.term, Column) for leaf in leaves(predicate)
    )


@dataclass(frozen=True, slots=True)
class _Style:
    """How to write names and constants, and how many parts of a long list."""

    name: Callable[[str], str]
    constants: Callable[[pa.Array], list[str]]
    most: int | None = None


def _render(predicate: Predicate, style: _Style) -> str:
    match predicate:
        case Always(value=value):
            return "true" if value else "false"
        case And(parts=parts):
            return " AND ".join(_nested(part, style) for part in parts)
        case Or(parts=parts):
            return _any(parts, style)
        case Opaque(sql=sql):
            if style is _LANCE:
                raise AssertionError(f"Lance must not see {sql}")
            return sql
    term = _term(predicate.term, style)
    match predicate:
        case Compare(operator=operator, value=value):
            (constant,) = style.constants(pa.array([value], value.type))
            return f"{term} {operator} {constant}"
        case In(values=values):
            return f"{term} {_listed(values, '=', 'IN', style)}"
        case NotIn(values=values):
            return f"{term} {_listed(values, '<>', 'NOT IN', style)}"
        case IsNull():
            return f"{term} IS NULL"
        case NotNull():
            return f"{term} IS NOT NULL"
        case Like(pattern=pattern, negated=negated, case_sensitive=sensitive):
            test = ("NOT " if negated else "") + ("LIKE" if sensitive else "ILIKE")
            return f"{term} {test} {text_sql(pattern)}"


def _listed(values: pa.Array, is_one: str, is_in: str, style: _Style) -> str:
    if len(values) == 1:
        return f"{is_one} {style.constants(values)[0]}"
    written = style.constants(values.slice(0, style.most))
    if len(written) < len(values):
        written.append(f"… {len(values):,} values")
    return f"{is_in} ({', '.join(written)})"


def _nested(predicate: Predicate, style: _Style) -> str:
    rendered = _render(predicate, style)
    return f"({rendered})" if isinstance(predicate, And | Or) else rendered


def _any(parts: tuple[Predicate, ...], style: _Style) -> str:
    """OR in balanced halves: parsers recurse into a long chain."""
    if style.most is not None and len(parts) > style.most:
        return f"{_any(parts[: style.most], style)} OR … {len(parts):,} alternatives"
    if len(parts) <= 16:
        return " OR ".join(_nested(part, style) for part in parts)
    middle = len(parts) // 2
    return f"({_any(parts[:middle], style)}) OR ({_any(parts[middle:], style)})"


def _term(term: Node, style: _Style) -> str:
    if isinstance(term, Column):
        return ".".join(style.name(name) for name in term.path)
    return to_sql(term)


def _lance_name(name: str) -> str:
    return name if _MANIFEST_COLUMN.fullmatch(name) else quote(name, "`")


def _datafusion_name(name: str) -> str:
    plain = _PLAIN_NAME.fullmatch(name) and name not in _KEYWORDS
    return name if plain else quote(name, '"')


_LANCE = _Style(_lance_name, comparands_sql)
_DATAFUSION = _Style(_datafusion_name, comparands_sql)
_PEOPLE = _Style(_datafusion_name, plain_texts, most=8)
