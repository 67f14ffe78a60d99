"""SQL's three-valued logic in plain Python: conditions with their SQL text and their result.

It shares no code with Phalanx. A condition is True, False or None (NULL) for a row. Numbers are
exact fractions, timestamps are counts of nanoseconds, and dates are counts of days.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

Row = Mapping[str, Any]
Truth = bool | None


@dataclass(frozen=True)
class Condition:
    """A condition as SQL, and what it is for a row."""

    sql: str
    of: Callable[[Row], Truth]

    def __repr__(self) -> str:
        return self.sql


# --- The rows ------------------------------------------------------------------------------------

TYPES: dict[str, pa.DataType] = {
    "i": pa.int64(),
    "j": pa.int8(),
    "u": pa.uint64(),
    "d": pa.decimal128(9, 2),
    "w": pa.decimal128(38, 10),
    "v": pa.decimal128(38, 0),
    "f": pa.float64(),
    "s": pa.string(),
    "b": pa.bool_(),
    "ts": pa.timestamp("ns"),
    "tm": pa.timestamp("us"),
    "te": pa.timestamp("s"),
    "day": pa.date32(),
}
SCHEMA = pa.schema(list(TYPES.items()))
_PER_UNIT = {"ns": 1, "us": 10**3, "s": 10**9}
_MOMENTS = [
    "1677-09-21T00:12:43.145224194",
    "1969-12-31T23:59:59.999999999",
    "1970-01-01T00:00:00",
    "2024-02-29T12:00:00.5",
    "2024-12-31T23:59:59.999999999",
    "2025-01-01T00:00:00",
    "2262-04-11T23:47:16.854775806",
]
_FAR = ["0001-01-01T00:00:00", "1500-06-01T00:00:00", "9999-12-31T23:59:59"]
_DAYS = ["1969-12-31", "1970-01-01", "2024-02-29", "2024-12-31", "2025-01-01", "9999-12-31"]
_TEXTS = ["", "a", "ab", "a%b", "a_b", "abc", "b\\", "é", "A"]
_VALUES: dict[str, list[Any]] = {
    "i": [-(2**63), -3, -1, 0, 1, 2, 3, 2**53, 2**53 + 1, 2**63 - 1],
    "j": [-128, -1, 0, 1, 2, 3, 127],
    "u": [0, 1, 2, 3, 2**63, 2**64 - 1],
    "d": ["-9999999.99", "-0.10", "0.00", "0.10", "0.11", "1.00", "2.50", "99999.99", "9999999.99"],
    "w": ["-1", "0.1", "0.1000000001", "2.5", "1234567890123456789012345678.0123456789"],
    "v": ["-1", "0", "1", "2", "9007199254740993", "9" * 38],
    "f": [-math.inf, -1.5, -0.0, 0.0, 0.1, 1.0, 2.5, 2.0**53, 99999.99, math.inf, math.nan],
    "s": _TEXTS,
    "b": [False, True],
    "ts": _MOMENTS,
    "tm": _MOMENTS + _FAR,
    "te": _MOMENTS + _FAR,
    "day": _DAYS,
}


def _nanoseconds(text: str) -> int:
    whole, _, fraction = text.partition(".")
    seconds = (datetime.fromisoformat(whole) - datetime(1970, 1, 1)) // timedelta(seconds=1)
    return seconds * 10**9 + int(fraction.ljust(9, "0") or 0)


def _store(name: str, value: Any) -> Any:
    """Convert a listed value to the form in which a row has it."""
    kind = TYPES[name]
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        unit = _PER_UNIT[kind.unit]
        return _nanoseconds(value) // unit * unit
    if pa.types.is_date(kind):
        return (date.fromisoformat(value) - date(1970, 1, 1)).days
    if pa.types.is_decimal(kind) or pa.types.is_integer(kind):
        return Fraction(value)
    return value


def _arrow(name: str, value: Any) -> Any:
    kind = TYPES[name]
    if value is None or not (pa.types.is_temporal(kind) or pa.types.is_decimal(kind)):
        return value
    if pa.types.is_decimal(kind):
        return Decimal(value)
    stored = _store(name, value)
    return stored if pa.types.is_date(kind) else stored // _PER_UNIT[kind.unit]


def _column(name: str, values: list[Any]) -> pa.Array:
    kind = TYPES[name]
    plain = [_arrow(name, value) for value in values]
    if pa.types.is_timestamp(kind):
        return pa.array(plain, pa.int64()).cast(kind)
    if pa.types.is_date(kind):
        return pa.array(plain, pa.int32()).cast(kind)
    return pa.array(plain, kind)


@st.composite
def tables(draw: st.DrawFn, most: int = 24) -> tuple[pa.Table, list[Row]]:
    """Rows of all columns with NULLs: for Arrow, and for Python."""
    count = draw(st.integers(1, most))
    chosen = {
        name: draw(st.lists(st.sampled_from([*values, None]), min_size=count, max_size=count))
        for name, values in _VALUES.items()
    }
    rows = [{name: _store(name, chosen[name][place]) for name in TYPES} for place in range(count)]
    return pa.table([_column(n, chosen[n]) for n in TYPES], schema=SCHEMA), rows


# --- The meaning of comparisons ------------------------------------------------------------------


def _order(left: Any, right: Any) -> int:
    """Less, equal or greater; every NaN is equal to itself and above all numbers."""
    nan = [isinstance(side, float) and math.isnan(side) for side in (left, right)]
    if any(nan):
        return nan[0] - nan[1]
    return int(left > right) - int(left < right)


_TESTS: dict[str, Callable[[int], bool]] = {
    "=": lambda order: order == 0,
    "<>": lambda order: order != 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


def _align(left: Any, right: Any) -> tuple[Any, Any]:
    """Two numbers as they are compared: as floats if one is a float, else exactly."""
    if isinstance(left, float) or isinstance(right, float):
        return float(left), float(right)
    return left, right


def _compare(operator: str, left: Any, right: Any) -> Truth:
    if left is None or right is None:
        return None
    return _TESTS[operator](_order(*_align(left, right)))


def evaluate_and(left: Truth, right: Truth) -> Truth:
    """AND."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def evaluate_or(left: Truth, right: Truth) -> Truth:
    """OR."""
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


def negate(value: Truth) -> Truth:
    """NOT."""
    return None if value is None else not value


# --- Conditions ----------------------------------------------------------------------------------

_EXACT = ("i", "j", "u", "d", "w", "v")
_NUMBERS = (*_EXACT, "f")
_MOMENT_COLUMNS = ("ts", "tm", "te")
_NUMBER_TEXTS = [
    *("-1", "0", "1", "2", "3", "2.5", "-0.5", "0.1", "0.10", "0.105", "0.1000000001", "1e0"),
    *("2.50", "99999.99", "99999.991", "9999999.99", "10000000", "128", "-129", "1.0", "1e3"),
    *("9007199254740992", "9007199254740993", "9007199254740993.5", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775809", "18446744073709551615"),
    *("18446744073709551616", "99999999999999999999999", "1234567890123456789012345678.0123456789"),
    *(
        "0.00000000000000000000001",
        "1e300",
        "1e-200",
        "-1e300",
        "99999999999999999999999999999999999999",
        "2.0",
    ),
]
_OPERATORS = st.sampled_from(list(_TESTS))
Constant = tuple[str, Any]


def _numbers() -> st.SearchStrategy[Constant]:
    return st.sampled_from(_NUMBER_TEXTS).map(lambda text: (text, Fraction(text)))


def _moments() -> st.SearchStrategy[Constant]:
    texts = st.sampled_from([*_MOMENTS, *_FAR, "2024-02-29T12:00:00", "2025-01-01T00:00:00.1"])
    return texts.map(lambda text: (f"TIMESTAMP '{text}'", _nanoseconds(text)))


def _days() -> st.SearchStrategy[Constant]:
    return st.sampled_from([*_DAYS, "0001-01-01"]).map(
        lambda text: (f"DATE '{text}'", (date.fromisoformat(text) - date(1970, 1, 1)).days)
    )


def _texts() -> st.SearchStrategy[Constant]:
    return st.sampled_from(_TEXTS).map(lambda text: ("'" + text.replace("'", "''") + "'", text))


def _constants(name: str) -> st.SearchStrategy[Constant]:
    if name in _NUMBERS:
        return _numbers()
    if name in _MOMENT_COLUMNS:
        return _moments()
    return {"day": _days(), "s": _texts()}[name]


@st.composite
def _comparisons(draw: st.DrawFn) -> Condition:
    name = draw(st.sampled_from([*_NUMBERS, *_MOMENT_COLUMNS, "day", "s"]))
    operator = draw(_OPERATORS)
    text, value = draw(_constants(name))
    if draw(st.booleans()):
        return Condition(f"{name} {operator} {text}", lambda r: _compare(operator, r[name], value))
    return Condition(f"{text} {operator} {name}", lambda r: _compare(operator, value, r[name]))


@st.composite
def _betweens(draw: st.DrawFn) -> Condition:
    name = draw(st.sampled_from([*_NUMBERS, *_MOMENT_COLUMNS, "day", "s"]))
    (low_text, low), (high_text, high) = draw(_constants(name)), draw(_constants(name))
    inverted = draw(st.booleans())

    def of(row: Row) -> Truth:
        inside = evaluate_and(_compare(">=", row[name], low), _compare("<=", row[name], high))
        return negate(inside) if inverted else inside

    test = "NOT BETWEEN" if inverted else "BETWEEN"
    return Condition(f"{name} {test} {low_text} AND {high_text}", of)


@st.composite
def _memberships(draw: st.DrawFn) -> Condition:
    name = draw(st.sampled_from([*_NUMBERS, "day", "s", "tm"]))
    constants = draw(st.lists(_constants(name), min_size=1, max_size=5))
    if draw(st.integers(0, 3)) == 0:
        constants.append(("NULL", None))
    inverted = draw(st.booleans())

    def of(row: Row) -> Truth:
        found: Truth = False
        for _, value in constants:
            found = evaluate_or(found, _compare("=", row[name], value))
        return negate(found) if inverted else found

    listed = ", ".join(text for text, _ in constants)
    return Condition(f"{name} {'NOT IN' if inverted else 'IN'} ({listed})", of)


@st.composite
def _column_pairs(draw: st.DrawFn) -> Condition:
    pairs = [("i", "j"), ("i", "u"), ("i", "d"), ("d", "w"), ("w", "v"), ("i", "f"), ("d", "f")]
    pairs += [("i", "i"), ("v", "i"), ("tm", "te"), ("j", "u"), ("s", "s"), ("d", "d")]
    left, right = draw(st.sampled_from(pairs))
    operator = draw(_OPERATORS)
    return Condition(f"{left} {operator} {right}", lambda r: _compare(operator, r[left], r[right]))


@st.composite
def _distinctions(draw: st.DrawFn) -> Condition:
    name = draw(st.sampled_from([*_NUMBERS, "day", "s", "tm"]))
    text, value = draw(st.one_of(_constants(name), st.just(("NULL", None))))
    inverted = draw(st.booleans())

    def of(row: Row) -> Truth:
        if row[name] is None or value is None:
            same: Truth = row[name] is None and value is None
        else:
            same = _compare("=", row[name], value)
        return same if inverted else negate(same)

    test = "IS NOT DISTINCT FROM" if inverted else "IS DISTINCT FROM"
    return Condition(f"{name} {test} {text}", of)


@st.composite
def _parts(draw: st.DrawFn) -> Condition:
    part = draw(st.sampled_from(["year", "month", "day"]))
    name = draw(st.sampled_from([*_MOMENT_COLUMNS, "day"]))
    operator = draw(_OPERATORS)
    number = draw(
        st.sampled_from([1, 2, 12, 31, 1500, 1677, 1970, 2024, 2262, 9999, 100_000, -5, 2**40])
    )
    inverted = draw(st.booleans())

    def of(row: Row) -> Truth:
        if row[name] is None:
            return None
        if name == "day":
            moment: date = date(1970, 1, 1) + timedelta(days=row[name])
        else:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=row[name] // 10**9)
        found: int = getattr(moment, part)
        return _compare(operator, number, found) if inverted else _compare(operator, found, number)

    call = f"date_part('{part}', {name})"
    return Condition(
        f"{number} {operator} {call}" if inverted else f"{call} {operator} {number}", of
    )


@st.composite
def _choices(draw: st.DrawFn) -> Condition:
    name = draw(st.sampled_from(_EXACT))
    text, value = draw(_numbers())
    operator = draw(_OPERATORS)
    instead = draw(st.sampled_from([-1, 0, 1, 3]))
    sql = f"coalesce({name}, {instead}) {operator} {text}"
    return Condition(
        sql, lambda r: _compare(operator, instead if r[name] is None else r[name], value)
    )


def _plain() -> st.SearchStrategy[Condition]:
    null = st.sampled_from(sorted(TYPES)).map(
        lambda name: Condition(f"{name} IS NULL", lambda r: r[name] is None)
    )
    not_null = st.sampled_from(sorted(TYPES)).map(
        lambda name: Condition(f"{name} IS NOT NULL", lambda r: r[name] is not None)
    )
    flag = st.sampled_from(
        [
            Condition("b", lambda r: r["b"]),
            Condition("b = true", lambda r: r["b"]),
            Condition("b <> true", lambda r: negate(r["b"])),
            Condition("b = NULL", lambda r: None),
            Condition("i < NULL", lambda r: None),
        ]
    )
    return st.one_of(
        *(_comparisons(), _comparisons(), _memberships(), _memberships(), _betweens()),
        *(_column_pairs(), _distinctions(), _parts(), _choices(), null, not_null, flag),
    )


_TRUTH_TESTS: dict[str, Callable[[Truth], bool]] = {
    "IS TRUE": lambda value: value is True,
    "IS NOT TRUE": lambda value: value is not True,
    "IS FALSE": lambda value: value is False,
    "IS NOT FALSE": lambda value: value is not False,
    "IS NULL": lambda value: value is None,
    "IS NOT NULL": lambda value: value is not None,
}


def _test_truth(inner: Condition, test: str) -> Condition:
    return Condition(f"({inner.sql}) {test}", lambda r: _TRUTH_TESTS[test](inner.of(r)))


def _case(when: Condition, then: Condition, otherwise: Condition) -> Condition:
    return Condition(
        f"CASE WHEN {when.sql} THEN {then.sql} ELSE {otherwise.sql} END",
        lambda r: then.of(r) if when.of(r) is True else otherwise.of(r),
    )


def _and(x: Condition, y: Condition) -> Condition:
    return Condition(f"({x.sql}) AND ({y.sql})", lambda r: evaluate_and(x.of(r), y.of(r)))


def _or(x: Condition, y: Condition) -> Condition:
    return Condition(f"({x.sql}) OR ({y.sql})", lambda r: evaluate_or(x.of(r), y.of(r)))


def _not(x: Condition) -> Condition:
    return Condition(f"NOT ({x.sql})", lambda r: negate(x.of(r)))


def _equal(x: Condition, y: Condition) -> Condition:
    return Condition(f"({x.sql}) = ({y.sql})", lambda r: _compare("=", x.of(r), y.of(r)))


def conditions() -> st.SearchStrategy[Condition]:
    """Comparisons of all kinds, below AND, OR, NOT, IS and CASE."""

    def combined(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
        return st.one_of(
            st.builds(_and, inner, inner),
            st.builds(_or, inner, inner),
            st.builds(_not, inner),
            st.builds(_test_truth, inner, st.sampled_from(list(_TRUTH_TESTS))),
            st.builds(_case, inner, inner, inner),
            st.builds(_equal, inner, inner),
        )

    return st.recursive(_plain(), combined, max_leaves=5)
