"""Predicates as text: for Lance, for DataFusion and for people.

No user text ever reaches Lance: what it filters by is written here from a bound predicate.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from phalanx.model.predicates.predicate import (
    Always,
    And,
    Compare,
    In,
    IsNull,
    Like,
    NotIn,
    NotNull,
    Opaque,
    Or,
    Predicate,
    all_of,
    any_of,
    columns_of,
    conjuncts,
    is_on_column,
    leaves,
)
from phalanx.model.sql.literals import comparands_sql, plain_texts, quote, text_sql
from phalanx.model.sql.syntax import Column, Node, to_sql

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


def to_lance(predicate: Predicate) -> str:
    """The predicate in Lance's dialect: identifiers in backticks, every constant typed.

    Only what `for_lance` lets through can be rendered.
    """
    return _render(_guarded(predicate), _LANCE)


def _guarded(predicate: Predicate, inside: bool = False) -> Predicate:
    """The predicate with IS NOT NULL beside each NOT IN below an OR.

    Lance takes `x NOT IN (1, 2) OR x NOT IN (3, 4)` for TRUE, also where x is NULL.
    """
    match predicate:
        case And(parts=parts):
            return all_of(_guarded(part, inside) for part in parts)
        case Or(parts=parts):
            return any_of(_guarded(part, True) for part in parts)
        case NotIn(term=term, values=values) if inside and len(values) > 1:
            return And((predicate, NotNull(term)))
    return predicate


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
        is_on_column(leaf)
        # Lance has no way to write such a name.
        and not any("`" in name for path in columns_of(leaf) for name in path)
        for leaf in leaves(predicate)
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
