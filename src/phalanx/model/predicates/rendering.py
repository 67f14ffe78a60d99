"""Rendering of predicates as SQL for Lance and DataFusion, and as text for people.

No user text ever reaches Lance: its filters are rendered here from bound predicates.
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
    find_predicate_columns,
    is_on_column,
    split_conjuncts,
    walk_atomic_predicates,
)
from phalanx.model.sql.literals import (
    quote_identifier,
    quote_string,
    render_comparands,
    render_readable,
)
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
    """Render the predicate in Lance's dialect: identifiers in backticks, every constant typed.

    The predicate must be the first part of `split_for_lance`.
    """
    return _render(_guard_not_in(predicate), _LANCE)


def _guard_not_in(predicate: Predicate, below_or: bool = False) -> Predicate:
    """Add IS NOT NULL to each NOT IN below an OR.

    Lance evaluates `x NOT IN (1, 2) OR x NOT IN (3, 4)` as TRUE even where x is NULL.
    """
    match predicate:
        case And(parts=parts):
            return all_of(_guard_not_in(part, below_or) for part in parts)
        case Or(parts=parts):
            return any_of(_guard_not_in(part, True) for part in parts)
        case NotIn(term=term, values=values) if below_or and len(values) > 1:
            return And((predicate, NotNull(term)))
    return predicate


def to_datafusion(predicate: Predicate) -> str:
    """Render the predicate in DataFusion's dialect, every constant typed."""
    return _render(predicate, _DATAFUSION)


def summarize(predicate: Predicate) -> str:
    """Render the predicate for people: plain constants, long lists cut. Not to be executed."""
    return _render(predicate, _READABLE)


def split_for_lance(predicate: Predicate) -> tuple[Predicate, Predicate]:
    """Split the predicate in two that must both hold: what Lance can filter by, and the rest."""
    lance: list[Predicate] = []
    rest: list[Predicate] = []
    for part in split_conjuncts(predicate):
        (lance if _can_lance_filter(part) else rest).append(part)
    return all_of(lance), all_of(rest)


def _can_lance_filter(predicate: Predicate) -> bool:
    return all(
        is_on_column(atom)
        # Lance cannot escape a backtick in a name.
        and not any("`" in name for path in find_predicate_columns(atom) for name in path)
        for atom in walk_atomic_predicates(predicate)
    )


@dataclass(frozen=True, slots=True)
class _Style:
    """How to render names and constants, and the most items of a list to render."""

    name: Callable[[str], str]
    constants: Callable[[pa.Array], list[str]]
    max_items: int | None = None


def _render(predicate: Predicate, style: _Style) -> str:
    match predicate:
        case Always(value=value):
            return "true" if value else "false"
        case And(parts=parts):
            return " AND ".join(_render_nested(part, style) for part in parts)
        case Or(parts=parts):
            return _render_or(parts, style)
        case Opaque(sql=sql):
            if style is _LANCE:
                raise AssertionError(f"an opaque predicate cannot be rendered for Lance: {sql}")
            return sql
    term = _render_term(predicate.term, style)
    match predicate:
        case Compare(operator=operator, value=value):
            (constant,) = style.constants(pa.array([value], value.type))
            return f"{term} {operator} {constant}"
        case In(values=values):
            return f"{term} {_render_list(values, '=', 'IN', style)}"
        case NotIn(values=values):
            return f"{term} {_render_list(values, '<>', 'NOT IN', style)}"
        case IsNull():
            return f"{term} IS NULL"
        case NotNull():
            return f"{term} IS NOT NULL"
        case Like(pattern=pattern, negated=negated, case_sensitive=sensitive):
            test = ("NOT " if negated else "") + ("LIKE" if sensitive else "ILIKE")
            return f"{term} {test} {quote_string(pattern)}"


def _render_list(values: pa.Array, is_one: str, is_in: str, style: _Style) -> str:
    if len(values) == 1:
        return f"{is_one} {style.constants(values)[0]}"
    written = style.constants(values.slice(0, style.max_items))
    if len(written) < len(values):
        written.append(f"… {len(values):,} values")
    return f"{is_in} ({', '.join(written)})"


def _render_nested(predicate: Predicate, style: _Style) -> str:
    rendered = _render(predicate, style)
    return f"({rendered})" if isinstance(predicate, And | Or) else rendered


def _render_or(parts: tuple[Predicate, ...], style: _Style) -> str:
    """Render OR in balanced halves: parsers recurse into a long chain."""
    if style.max_items is not None and len(parts) > style.max_items:
        return f"{_render_or(parts[: style.max_items], style)} OR … {len(parts):,} alternatives"
    if len(parts) <= 16:
        return " OR ".join(_render_nested(part, style) for part in parts)
    middle = len(parts) // 2
    return f"({_render_or(parts[:middle], style)}) OR ({_render_or(parts[middle:], style)})"


def _render_term(term: Node, style: _Style) -> str:
    if isinstance(term, Column):
        return ".".join(style.name(name) for name in term.path)
    return to_sql(term)


def _quote_for_lance(name: str) -> str:
    return name if _MANIFEST_COLUMN.fullmatch(name) else quote_identifier(name, "`")


def _quote_for_datafusion(name: str) -> str:
    plain = _PLAIN_NAME.fullmatch(name) and name not in _KEYWORDS
    return name if plain else quote_identifier(name, '"')


_LANCE = _Style(_quote_for_lance, render_comparands)
_DATAFUSION = _Style(_quote_for_datafusion, render_comparands)
_READABLE = _Style(_quote_for_datafusion, render_readable, max_items=8)
