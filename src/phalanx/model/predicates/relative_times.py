"""Moments in a predicate as people write them: `event_date >= now - 90 days`.

`now`, and `today` (when the day began, in UTC), plus or minus spans of time, become constants in
the type of what they are compared with.
"""

from __future__ import annotations

import calendar
import re
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidPredicate, shown
from phalanx.model.schema.schema import Schema
from phalanx.model.sql import engine
from phalanx.model.sql.literals import NotExpressible
from phalanx.model.sql.syntax import Call, InList, Literal, Node, children, to_sql, transform, walk

_UNITS = "second|minute|hour|day|week|month|year"
_SPAN = rf"\s*(?P<sign>[+-])\s*(?P<count>\d+)\s*(?P<unit>{_UNITS})s?\b"
_QUOTED = r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\""
_SPANS = _SPAN.replace("?P<sign>", "?:").replace("?P<count>", "?:").replace("?P<unit>", "?:")
_PHRASE = re.compile(
    rf"{_QUOTED}|(?P<moment>\b(?P<start>now|today)\b(?!\s*[(.])(?:{_SPANS})*)", re.IGNORECASE
)
_MARK = "\x00moment "
_COMPARISONS = frozenset({"=", "!=", "<", "<=", ">", ">="})


def with_moments(where: str, schema: Schema, now: datetime) -> str:
    """The predicate with constants in place of moments; as it is where there are none."""
    if not isinstance(where, str):
        raise InvalidPredicate(f"Cannot use the predicate {shown(where)}: expected SQL text.")
    columns = {name.lower() for name in schema.names}
    found: list[str] = []

    def marked(match: re.Match[str]) -> str:
        phrase = match["moment"]
        if phrase is None or match["start"].lower() in columns:
            return match[0]
        found.append(phrase)
        return f"'{_MARK}{len(found) - 1}'"

    text = _PHRASE.sub(marked, where)
    if not found:
        return where

    def refuse(why: str) -> NoReturn:
        raise InvalidPredicate(f"Cannot use the predicate {shown(where)}: {why}")

    def phrase_of(node: Node) -> str | None:
        value = node.value.as_py() if isinstance(node, Literal) else None
        if not isinstance(value, str) or not value.startswith(_MARK):
            return None
        return found[int(value.removeprefix(_MARK))]

    def typed(node: Node, kind: pa.DataType) -> Node:
        phrase = phrase_of(node)
        if phrase is None:
            return node
        if not (pt.is_date(kind) or pt.is_timestamp(kind)):
            refuse(f"{phrase!r} is compared with {kind}, expected a date or a timestamp.")
        try:
            return Literal(_constant(moment_of(phrase, now), kind))
        except (OverflowError, ValueError, pa.ArrowException):
            refuse(f"{phrase!r} is beyond the calendar. Take a shorter time.")

    def replaced(node: Node) -> Node:
        if not any(phrase_of(child) for child in children(node)):
            return node
        match node:
            case Call(name=name, args=(left, right)) if name in _COMPARISONS:
                other = right if phrase_of(left) else left
                if phrase_of(other) is None:
                    kind = engine.type_of(other, schema.arrow)
                    return Call(name, (typed(left, kind), typed(right, kind)))
            case InList(arg=arg, items=items, negated=negated) if phrase_of(arg) is None:
                kind = engine.type_of(arg, schema.arrow)
                return InList(arg, tuple(typed(item, kind) for item in items), negated)
        return node

    try:
        node = transform(engine.parse(text, schema.arrow, exact_numbers=True), replaced)
        if lost := [phrase for part in walk(node) if (phrase := phrase_of(part))]:
            refuse(f"expected {lost[0]!r} to be compared with a column, as in 'day >= {lost[0]}'.")
        return to_sql(node)
    except NotExpressible as error:
        refuse(f"{error} is not supported. Write that part in another way.")
    except engine.BadExpression as error:
        end = "" if str(error).endswith((".", "?")) else "."
        refuse(f"{error}{end}")


def moment_of(phrase: str, now: datetime) -> datetime:
    """What a phrase such as `today - 3 months` means, in UTC."""
    moment = now.astimezone(UTC)
    if phrase.lower().startswith("today"):
        moment = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    for span in re.finditer(_SPAN, phrase, re.IGNORECASE):
        count = int(span["sign"] + span["count"])
        unit = span["unit"].lower()
        if unit in ("month", "year"):
            moment = _months_later(moment, count * (12 if unit == "year" else 1))
        else:
            moment += timedelta(**{f"{unit}s": count})
    return moment


def _months_later(moment: datetime, months: int) -> datetime:
    """The same day of another month, or its last one."""
    years, month = divmod(moment.month - 1 + months, 12)
    year, month = moment.year + years, month + 1
    last = calendar.monthrange(year, month)[1]
    return moment.replace(year=year, month=month, day=min(moment.day, last))


def _constant(moment: datetime, kind: pa.DataType) -> pa.Scalar:
    if pt.is_date(kind):
        return pa.scalar(moment.date(), kind)
    if kind.tz is None:
        moment = moment.replace(tzinfo=None)
    return pa.scalar(moment, pa.timestamp("us", kind.tz)).cast(kind, safe=False)
