"""Relative times in a predicate: `event_date >= now - 90 days`.

`now`, and `today` (the start of the day in UTC), plus or minus spans of time, become constants of
the type that they are compared with.
"""

from __future__ import annotations

import calendar
import re
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidPredicate, format_value
from phalanx.model.schema.schema import Schema
from phalanx.model.sql import engine
from phalanx.model.sql.literals import NotExpressible
from phalanx.model.sql.syntax import (
    Call,
    Constant,
    InList,
    Node,
    list_subexpressions,
    map_nodes,
    to_sql,
    walk_nodes,
)

_UNITS = "second|minute|hour|day|week|month|year"
_SPAN = rf"\s*(?P<sign>[+-])\s*(?P<count>\d+)\s*(?P<unit>{_UNITS})s?\b"
_QUOTED = r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\""
_SPANS = _SPAN.replace("?P<sign>", "?:").replace("?P<count>", "?:").replace("?P<unit>", "?:")
_PHRASE = re.compile(
    rf"{_QUOTED}|(?P<moment>\b(?P<start>now|today)\b(?!\s*[(.])(?:{_SPANS})*)", re.IGNORECASE
)
_MARK = "\x00moment "
_COMPARISONS = frozenset({"=", "!=", "<", "<=", ">", ">="})


def resolve_relative_times(where: str, schema: Schema, now: datetime) -> str:
    """Replace the relative times of a predicate by constants; return others unchanged."""
    if not isinstance(where, str):
        raise InvalidPredicate(
            f"Cannot use the predicate {format_value(where)}: expected SQL text."
        )
    columns = {name.lower() for name in schema.names}
    found: list[str] = []

    def mark(match: re.Match[str]) -> str:
        phrase = match["moment"]
        if phrase is None or match["start"].lower() in columns:
            return match[0]
        found.append(phrase)
        return f"'{_MARK}{len(found) - 1}'"

    text = _PHRASE.sub(mark, where)
    if not found:
        return where

    def refuse(why: str) -> NoReturn:
        raise InvalidPredicate(f"Cannot use the predicate {format_value(where)}: {why}")

    def phrase_of(node: Node) -> str | None:
        value = node.value.as_py() if isinstance(node, Constant) else None
        if not isinstance(value, str) or not value.startswith(_MARK):
            return None
        return found[int(value.removeprefix(_MARK))]

    def to_literal(node: Node, kind: pa.DataType) -> Node:
        phrase = phrase_of(node)
        if phrase is None:
            return node
        if not (pt.is_date(kind) or pt.is_timestamp(kind)):
            refuse(f"{phrase!r} is compared with {kind}, expected a date or a timestamp.")
        try:
            return Constant(_to_constant(parse_relative_time(phrase, now), kind))
        except (OverflowError, ValueError, pa.ArrowException):
            refuse(f"{phrase!r} is out of the range of the calendar. Use a shorter span.")

    def replace_phrases(node: Node) -> Node:
        if not any(phrase_of(child) for child in list_subexpressions(node)):
            return node
        match node:
            case Call(name=name, args=(left, right)) if name in _COMPARISONS:
                other = right if phrase_of(left) else left
                if phrase_of(other) is None:
                    kind = engine.infer_type(other, schema.arrow)
                    return Call(name, (to_literal(left, kind), to_literal(right, kind)))
            case InList(arg=arg, items=items, negated=negated) if phrase_of(arg) is None:
                kind = engine.infer_type(arg, schema.arrow)
                return InList(arg, tuple(to_literal(item, kind) for item in items), negated)
        return node

    try:
        node = map_nodes(
            engine.parse_expression(text, schema.arrow, exact_numbers=True), replace_phrases
        )
        if lost := [phrase for part in walk_nodes(node) if (phrase := phrase_of(part))]:
            refuse(f"expected {lost[0]!r} to be compared with a column, as in 'day >= {lost[0]}'.")
        return to_sql(node)
    except NotExpressible as error:
        refuse(f"{error} is not supported. Write that part in another way.")
    except engine.BadExpression as error:
        end = "" if str(error).endswith((".", "?")) else "."
        refuse(f"{error}{end}")


def parse_relative_time(phrase: str, now: datetime) -> datetime:
    """Return the time in UTC of a phrase such as `today - 3 months`."""
    moment = now.astimezone(UTC)
    if phrase.lower().startswith("today"):
        moment = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    for span in re.finditer(_SPAN, phrase, re.IGNORECASE):
        count = int(span["sign"] + span["count"])
        unit = span["unit"].lower()
        if unit in ("month", "year"):
            moment = _add_months(moment, count * (12 if unit == "year" else 1))
        else:
            moment += timedelta(**{f"{unit}s": count})
    return moment


def _add_months(moment: datetime, months: int) -> datetime:
    """Return the same day of another month, or its last day."""
    years, month = divmod(moment.month - 1 + months, 12)
    year, month = moment.year + years, month + 1
    last = calendar.monthrange(year, month)[1]
    return moment.replace(year=year, month=month, day=min(moment.day, last))


def _to_constant(moment: datetime, kind: pa.DataType) -> pa.Scalar:
    if pt.is_date(kind):
        return pa.scalar(moment.date(), kind)
    if kind.tz is None:
        moment = moment.replace(tzinfo=None)
    return pa.scalar(moment, pa.timestamp("us", kind.tz)).cast(kind, safe=False)
