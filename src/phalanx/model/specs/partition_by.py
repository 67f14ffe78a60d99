"""The `partition_by` argument: columns and transforms of columns, as objects or text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from phalanx.errors import InvalidSpec, format_value
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.calendar_parts import Day, Hour, Month, Year
from phalanx.model.transforms.hive import HiveHash
from phalanx.model.transforms.transform import IDENTITY, Transform
from phalanx.model.transforms.truncate import Truncate


@dataclass(frozen=True, slots=True)
class CustomExpression:
    """An expression as the user wrote it, before it is checked against a schema."""

    sql: str
    result_type: pa.DataType


@dataclass(frozen=True, slots=True)
class PartitionTerm:
    """One item of `partition_by`.

    Internal: `derivation`.

    Attributes:
        columns: The names of the source columns.
        field_id: The id of the partition field; None: it is derived from the columns.
    """

    derivation: Transform | CustomExpression
    columns: tuple[str, ...]
    field_id: str | None = None


PartitionBy: TypeAlias = "str | PartitionTerm | Sequence[str | PartitionTerm]"


def identity(column: str, *, field_id: str | None = None) -> PartitionTerm:
    """Partition by the column's own value."""
    return PartitionTerm(IDENTITY, (column,), field_id)


def year(column: str, *, field_id: str | None = None) -> PartitionTerm:
    """Partition by the calendar year of a date or timestamp, in UTC."""
    return PartitionTerm(Year(), (column,), field_id)


def month(column: str, *, field_id: str | None = None) -> PartitionTerm:
    """Partition by the month, 1 to 12, of a date or timestamp, in UTC."""
    return PartitionTerm(Month(), (column,), field_id)


def day(column: str, *, field_id: str | None = None) -> PartitionTerm:
    """Partition by the day of the month, 1 to 31, of a date or timestamp, in UTC."""
    return PartitionTerm(Day(), (column,), field_id)


def hour(column: str, *, field_id: str | None = None) -> PartitionTerm:
    """Partition by the hour, 0 to 23, of a timestamp (in UTC) or a time."""
    return PartitionTerm(Hour(), (column,), field_id)


def bucket(column: str, n: int, *, field_id: str | None = None) -> PartitionTerm:
    """Partition into `n` buckets by the hash of the value."""
    return PartitionTerm(Bucket(n), (column,), field_id)


def multi_bucket(columns: Sequence[str], n: int, *, field_id: str | None = None) -> PartitionTerm:
    """Partition into `n` buckets by the hash of several values together."""
    return PartitionTerm(MultiBucket(n), _to_tuple(columns), field_id)


def truncate(column: str, width: int, *, field_id: str | None = None) -> PartitionTerm:
    """Partition by the first `width` characters, or by a number cut to a multiple of `width`."""
    return PartitionTerm(Truncate(width), (column,), field_id)


def hive_hash(column: str, *, field_id: str | None = None) -> PartitionTerm:
    """Partition by the hash of a value of any type, as text; only in the hive layout."""
    return PartitionTerm(HiveHash(), (column,), field_id)


def expression(
    sql: str, columns: Sequence[str], result_type: pa.DataType, *, field_id: str | None = None
) -> PartitionTerm:
    """Partition by a DataFusion expression over `col0`, `col1`, …, the given columns in order.

    Zoned timestamps are evaluated in UTC, like all partition values.
    """
    if not isinstance(result_type, pa.DataType):
        raise InvalidSpec(
            f"Cannot use the result type {result_type!r}: expected an Arrow type, such as "
            "pa.int64()."
        )
    return PartitionTerm(CustomExpression(sql, result_type), _to_tuple(columns), field_id)


def _to_tuple(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns as a tuple; a single column may be given without a list."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def parse_partition_by(partition_by: PartitionBy) -> tuple[PartitionTerm, ...]:
    """Return the items of `partition_by`; a string inside a list is a column name."""
    if isinstance(partition_by, str):
        return _parse_text(partition_by)
    if isinstance(partition_by, PartitionTerm):
        partition_by = [partition_by]
    if not isinstance(partition_by, Iterable):
        raise InvalidSpec(f"Cannot partition by {partition_by!r}: expected a list or text.")
    terms = []
    for item in partition_by:
        if isinstance(item, PartitionTerm) and not all(isinstance(c, str) for c in item.columns):
            raise InvalidSpec(f"Cannot partition by {item.columns!r}: expected column names.")
        if isinstance(item, str):
            terms.append(identity(item))
        elif isinstance(item, PartitionTerm):
            terms.append(item)
        else:
            raise InvalidSpec(
                f"Cannot partition by {item!r}: expected a column name or one of "
                "identity, year, month, day, hour, bucket, multi_bucket, truncate, expression, and "
                "hash in the hive layout."
            )
    return tuple(terms)


_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*|"(?:[^"]|"")+"|`(?:[^`]|``)+`)"""
    r"""|(?P<number>\d+)|(?P<mark>[(),]))""",
)
_WITHOUT_NUMBER = {
    **{"identity": identity, "year": year, "month": month, "day": day, "hour": hour},
    "hash": hive_hash,
}
_WITH_NUMBER = {"bucket": bucket, "truncate": truncate}


def _parse_text(text: str) -> tuple[PartitionTerm, ...]:
    """Parse text such as `year(ts), bucket(16, id), country AS land`."""
    tokens = _tokenize(text)
    terms: list[PartitionTerm] = []
    while tokens:
        if terms and tokens.pop(0) != ("mark", ","):
            raise _syntax_error(text, "expected a comma between fields")
        terms.append(_parse_term(text, tokens))
    return tuple(terms)


def _tokenize(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position = 0
    while text[position:].strip():
        if (match := _TOKEN.match(text, position)) is None:
            raise _syntax_error(text, f"unexpected {text[position:].strip()[:20]!r}")
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind]))
        position = match.end()
    return tokens


def _parse_term(text: str, tokens: list[tuple[str, str]]) -> PartitionTerm:
    if not tokens or tokens[0][0] != "name":
        raise _syntax_error(text, "expected a column or a transform")
    name = tokens.pop(0)[1]
    if tokens and tokens[0] == ("mark", "("):
        tokens.pop(0)
        term = _build_term(text, name, _parse_arguments(text, tokens))
    else:
        term = identity(_unquote(name))
    if len(tokens) >= 2 and tokens[0][1].lower() == "as" and tokens[1][0] == "name":
        tokens.pop(0)
        term = replace(term, field_id=_unquote(tokens.pop(0)[1]))
    return term


def _parse_arguments(text: str, tokens: list[tuple[str, str]]) -> list[str | int]:
    arguments: list[str | int] = []
    while True:
        if not tokens or tokens[0][0] == "mark":
            raise _syntax_error(text, "expected a column or a number")
        kind, value = tokens.pop(0)
        arguments.append(_parse_number(text, value) if kind == "number" else _unquote(value))
        mark = tokens.pop(0) if tokens else ("", "")
        if mark == ("mark", ")"):
            return arguments
        if mark != ("mark", ","):
            raise _syntax_error(text, "expected a comma or a closing parenthesis")


def _parse_number(text: str, digits: str) -> int:
    # Python does not parse very long numbers.
    if len(digits) > 20:
        raise _syntax_error(text, f"the number {digits[:20]}… is too large")
    return int(digits)


def _build_term(text: str, name: str, arguments: list[str | int]) -> PartitionTerm:
    columns = [argument for argument in arguments if isinstance(argument, str)]
    numbers = [argument for argument in arguments if isinstance(argument, int)]
    match name.lower(), columns, numbers:
        case kind, [column], [] if kind in _WITHOUT_NUMBER:
            return _WITHOUT_NUMBER[kind](column)
        case kind, [column], [number] if kind in _WITH_NUMBER:
            return _WITH_NUMBER[kind](column, number)
        case "multi_bucket", [_, *_], [number]:
            return multi_bucket(columns, number)
        case kind, [], _ if kind in {*_WITHOUT_NUMBER, *_WITH_NUMBER, "multi_bucket"}:
            raise _syntax_error(text, f"{kind} needs a column")
        case kind, _, [] if kind in {*_WITH_NUMBER, "multi_bucket"}:
            needed = "width" if kind == "truncate" else "number of buckets"
            raise _syntax_error(text, f"{kind} needs a {needed} beside {', '.join(columns)}")
        case kind, _, _ if kind in {*_WITHOUT_NUMBER, *_WITH_NUMBER, "multi_bucket"}:
            raise _syntax_error(text, f"{kind} cannot take {len(arguments)} such arguments")
    known = ", ".join([*_WITHOUT_NUMBER, *_WITH_NUMBER, "multi_bucket"])
    raise _syntax_error(text, f"unknown transform {name!r}; expected one of {known}")


def _unquote(name: str) -> str:
    mark = name[0]
    return name[1:-1].replace(mark * 2, mark) if mark in '"`' else name


def _syntax_error(text: str, why: str) -> InvalidSpec:
    return InvalidSpec(
        f"Cannot partition by {format_value(text)}: {why}. Write, for example, "
        "'year(ts), bucket(16, id), truncate(4, name), country'."
    )
