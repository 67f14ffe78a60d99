"""Comparisons of a cast column as those of the column, value by value.

DataFusion judges, and DuckDB, which is given the cast column as Arrow casts it.
"""

import itertools
import math
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pytest
from datafusion import SessionContext

from phalanx.model.predicates.predicate import FALSE, Compare, In, NotIn, NotNull, Predicate, all_of
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.predicates.uncast import uncast_comparison, uncast_membership
from phalanx.model.sql.literals import from_ordinal, render_typed, to_type_name
from phalanx.model.sql.syntax import Column
from properties.oracle import by_duckdb

X = Column(("x",))
OPERATORS = ("<", "<=", ">", ">=")
DAY = 86_400


def decimals(low: int, high: int, kind: pa.DataType) -> pa.Array:
    return pa.array([from_ordinal(n, kind) for n in range(low, high)], kind)


def ordinals(numbers: Sequence[int], kind: pa.DataType) -> pa.Array:
    return pa.array([from_ordinal(n, kind) for n in numbers], kind)


FLOATS = [0.0, -0.0, 0.5, -0.5, 1.0, 1.5, 2.0, -2.0, 100.0, -100.0, math.inf, -math.inf, math.nan]
INT8 = pa.array([*range(-128, 128)], pa.int8())
UINT8 = pa.array([*range(256)], pa.uint8())
SMALL = [-(2**31), -1000, -3, -2, -1, 0, 1, 2, 3, 1000, 2**31 - 1]
INT32 = pa.array(SMALL, pa.int32())
LARGE = [2**53 - 1, 2**53 - 2, -(2**53) + 1, 2**60, -(2**60), 2**63 - 1, -(2**63)]
INT64 = pa.array([*SMALL, *LARGE])
UINT64 = pa.array([0, 1, 2, 3, 2**53 - 1, 2**64 - 1], pa.uint64())
DEC = decimals(-35, 36, pa.decimal128(3, 1))
FLOAT16 = pa.array([*FLOATS, 0.0999755859375, 65504.0], pa.float16())
FLOAT32 = pa.array([*FLOATS, 0.1, 16777216.0, 3.4028234663852886e38, 1e-45], pa.float32())
DATES = ordinals([-2, -1, 0, 1, 2, 20_088, 20_089, -700_000], pa.date32())
AROUND = [-DAY - 1, -DAY, -DAY + 1, -2, -1, 0, 1, 2, DAY - 1, DAY, DAY + 1, 1_735_689_600]
SECONDS = ordinals(AROUND, pa.timestamp("s"))
MILLIS = ordinals([n * 1000 + k for n in AROUND for k in (-1, 0, 1)], pa.timestamp("ms"))
UTC_SECONDS = ordinals(AROUND, pa.timestamp("s", "UTC"))


def scalars(kind: pa.DataType, *values: object) -> list[pa.Scalar]:
    if pa.types.is_floating(kind):
        return [pa.scalar(value, pa.float64()).cast(kind) for value in values]
    return [pa.scalar(value, kind) for value in values]


def moments(kind: pa.DataType, *numbers: int) -> list[pa.Scalar]:
    return [from_ordinal(number, kind) for number in numbers]


WHOLE = (-129, -128, -127, -3, -1, 0, 1, 2, 3, 127, 128, 255, 256)
PARTS = (-1000.5, -128.5, -128.0, -2.5, -0.0, 0.0, 0.25, 1.0, 2.5, 126.5, 127.0, 127.5, 1e6)
ENDS = (math.inf, -math.inf, math.nan)
F16, F32, F64 = pa.float16(), pa.float32(), pa.float64()
S, MS, US, NS = (pa.timestamp(unit) for unit in ("s", "ms", "us", "ns"))
HALVES = [Decimal(n) / 4 for n in (-1040, -516, -512, -10, -1, 0, 1, 4, 10, 508, 510, 1020, 1024)]
# Every pair: the column's values, and constants in the type that the column is cast to.
PAIRS = [
    (INT8, scalars(pa.int16(), *WHOLE)),
    (INT8, scalars(pa.int64(), *WHOLE, 2**62)),
    (INT8, scalars(F64, *PARTS, *ENDS)),
    (INT8, scalars(F32, *PARTS, *ENDS)),
    (INT8, scalars(F16, *PARTS[1:-1], *ENDS)),
    (INT8, scalars(pa.decimal128(6, 2), *HALVES)),
    (UINT8, scalars(pa.int16(), *WHOLE)),
    (UINT8, scalars(pa.uint32(), *WHOLE[5:])),
    (UINT8, scalars(F64, *PARTS, 255.5, *ENDS)),
    (UINT8, scalars(pa.decimal128(6, 2), *HALVES)),
    (INT32, scalars(pa.int64(), *WHOLE, 3_000_000_000, -3_000_000_000)),
    (INT32, scalars(F64, *PARTS, 2.0**31, -(2.0**31), -(2.0**31) - 1, *ENDS)),
    (INT64, scalars(F64, *PARTS, 2.0**53 - 1, -(2.0**53) + 1, *ENDS)),
    (INT64, scalars(pa.decimal128(22, 2), Decimal("2.5"), Decimal(2), Decimal(-(2**63)) - 1)),
    (UINT64, scalars(F64, *PARTS, *ENDS)),
    (UINT64, scalars(pa.decimal128(22, 1), Decimal("2.5"), Decimal(2**64), Decimal(-1))),
    (DEC, scalars(pa.decimal128(6, 3), *(Decimal(n) / 1000 for n in range(-3600, 3601, 150)))),
    (DEC, scalars(pa.decimal128(9, 1), *(Decimal(n) / 10 for n in (-9999, -35, 0, 5, 9999)))),
    (FLOAT16, scalars(F32, *PARTS, 0.1, 65504.0, 65505.0, 1e30, *ENDS)),
    (FLOAT16, scalars(F64, *PARTS, 0.1, 65504.0, 65520.0, 1e300, *ENDS)),
    (FLOAT32, scalars(F64, *PARTS, 0.1, 16777217.0, 3.5e38, -3.5e38, 1e300, 1e-50, *ENDS)),
    (DATES, moments(S, -DAY - 1, -DAY, -1, 0, 1, DAY // 2, DAY, 20_088 * DAY)),
    (DATES, moments(MS, -DAY * 1000, -1, 0, 1, DAY * 500, DAY * 1000)),
    (DATES, moments(US, -DAY * 10**6, -1, 0, 1, DAY * 10**6)),
    (SECONDS, moments(MS, -1500, -1000, -500, -1, 0, 1, 500, 1000, DAY * 1000 + 1)),
    (SECONDS, moments(NS, -1, 0, 1, 500_000_000, 1_000_000_000)),
    (MILLIS, moments(US, -1500, -1000, -1, 0, 1, 500, 1000, 86_400_000_000)),
    (SECONDS, moments(pa.date32(), -2, -1, 0, 1, 2, 20_089)),
    (MILLIS, moments(pa.date32(), -2, -1, 0, 1, 2, 20_089)),
    (UTC_SECONDS, moments(pa.date32(), -2, -1, 0, 1, 2, 20_089)),
    (UTC_SECONDS, moments(pa.timestamp("ms", "UTC"), -1500, -1, 0, 1, 1000)),
]


def pair_id(pair: tuple[pa.Array, list[pa.Scalar]]) -> str:
    return f"{pair[0].type} as {pair[1][0].type}"


def rows_of(domain: pa.Array, target: pa.DataType) -> SessionContext:
    """The column and what DataFusion casts it to, kept apart: it must not move the cast itself."""
    session = SessionContext()
    column = pa.concat_arrays([domain, pa.nulls(1, domain.type)])
    session.register_record_batches("given", [pa.table({"x": column}).to_batches()])
    cast = f"SELECT x, arrow_cast(x, '{to_type_name(target)}') AS y FROM given"
    session.register_record_batches("rows", [session.sql(cast).collect()])
    return session


def differences(
    session: SessionContext, checks: Sequence[tuple[str, Predicate]]
) -> list[tuple[str, str]]:
    """The checks whose condition on the cast column and predicate on the column itself differ."""
    shown = [(condition, to_datafusion(predicate)) for condition, predicate in checks]
    columns = ", ".join(
        f"coalesce({condition}, false) = coalesce({text}, false) AS c{place}"
        for place, (condition, text) in enumerate(shown)
    )
    found = session.sql(f"SELECT {columns} FROM rows").to_arrow_table()
    return [
        pair
        for pair, column in zip(shown, found.columns, strict=True)
        if not all(column.to_pylist())
    ]


def differences_in_duckdb(
    domain: pa.Array, target: pa.DataType, checks: Sequence[tuple[str, Predicate]]
) -> list[tuple[str, str]]:
    """The same by DuckDB, which must support every check."""
    column = pa.concat_arrays([domain, pa.nulls(1, domain.type)])
    rows = pa.table({"x": column, "y": column.cast(target, safe=False)})
    found = []
    for condition, predicate in checks:
        text = to_datafusion(predicate)
        told = [by_duckdb(rows, each) for each in (condition, text)]
        assert None not in told, (condition, text)
        wanted, given = (each.fill_null(False) for each in told)
        if not given.equals(wanted):
            found.append((condition, text))
    return found


def is_float_zero(constant: pa.Scalar) -> bool:
    return pa.types.is_floating(constant.type) and constant.as_py() == 0


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_comparisons_hold_for_the_same_rows(pair: tuple[pa.Array, list[pa.Scalar]]) -> None:
    domain, constants = pair
    checks = []
    for constant, operator in itertools.product(constants, OPERATORS):
        predicate = uncast_comparison(X, domain.type, operator, constant)
        assert predicate is not None, (constant, operator)
        checks.append((f"y {operator} {render_typed(constant)}", predicate))
    assert differences(rows_of(domain, constants[0].type), checks) == []
    assert differences_in_duckdb(domain, constants[0].type, checks) == []


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_memberships_hold_for_the_same_rows(pair: tuple[pa.Array, list[pa.Scalar]]) -> None:
    domain, constants = pair
    by_day = pa.types.is_timestamp(domain.type) and pa.types.is_date(constants[0].type)
    checks = []
    lists = [[constant] for constant in constants]
    if not by_day:
        several = [constant for constant in constants if not is_float_zero(constant)]
        lists += [several[:3], several]
    for listed, negated in itertools.product(lists, (False, True)):
        array = pa.array(listed, listed[0].type)
        predicate = uncast_membership(X, domain.type, array, negated)
        if by_day and negated:
            assert predicate is None, "the days around would need an alternative"
            continue
        assert predicate is not None, listed
        test = "NOT IN" if negated else "IN"
        checks.append((f"y {test} ({', '.join(map(render_typed, listed))})", predicate))
    assert differences(rows_of(domain, constants[0].type), checks) == []
    assert differences_in_duckdb(domain, constants[0].type, checks) == []


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (pa.int64(), pa.scalar(2.0**53)),
        (pa.int64(), pa.scalar(-(2.0**60))),
        (pa.int32(), pa.scalar(2.0**24, pa.float32())),
        (pa.int64(), pa.scalar(5, pa.int32())),
        (pa.int64(), pa.scalar(5, pa.uint64())),
        (pa.uint32(), pa.scalar(5, pa.int32())),
        (pa.int64(), pa.scalar("5")),
        (pa.string(), pa.scalar(5)),
        (pa.float64(), pa.scalar(5)),
        (pa.float64(), pa.scalar(1.5, pa.float32())),
        (pa.decimal128(9, 2), pa.scalar(Decimal("1.5"), pa.decimal128(9, 1))),
        (pa.decimal128(9, 2), pa.scalar(1.5)),
        (pa.timestamp("us"), from_ordinal(5, pa.timestamp("s"))),
        (pa.timestamp("us"), from_ordinal(5, pa.timestamp("us", "UTC"))),
        (pa.timestamp("us", "Europe/Paris"), from_ordinal(5, pa.timestamp("us", "UTC"))),
        (pa.timestamp("us", "Europe/Paris"), from_ordinal(5, pa.date32())),
        (pa.date32(), from_ordinal(5, pa.timestamp("us", "UTC"))),
        (pa.bool_(), pa.scalar(1)),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_casts_that_may_lose_something_stay(source: pa.DataType, value: pa.Scalar) -> None:
    for operator in OPERATORS:
        assert uncast_comparison(X, source, operator, value) is None
    for negated in (False, True):
        assert uncast_membership(X, source, pa.array([value], value.type), negated) is None


def test_without_a_cast_nothing_changes() -> None:
    value, values = pa.scalar(5), pa.array([5, 6])
    assert uncast_comparison(X, pa.int64(), "<", value) == Compare(X, "<", value)
    assert uncast_membership(X, pa.int64(), values, False) == In(X, values)
    assert uncast_membership(X, pa.int64(), values, True) == NotIn(X, values)


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        (">", 2.5, Compare(X, ">", pa.scalar(2, pa.int8()))),
        (">=", 2.5, Compare(X, ">", pa.scalar(2, pa.int8()))),
        ("<", 2.5, Compare(X, "<=", pa.scalar(2, pa.int8()))),
        ("<=", -2.5, Compare(X, "<=", pa.scalar(-3, pa.int8()))),
        ("<", 2.0, Compare(X, "<", pa.scalar(2, pa.int8()))),
        (">", 127.5, Compare(X, ">", pa.scalar(127, pa.int8()))),
        (">", 200.0, FALSE),
        ("<", 200.0, NotNull(X)),
        (">", -200.0, NotNull(X)),
        ("<=", -200.0, FALSE),
        ("<", math.inf, NotNull(X)),
        (">", math.inf, FALSE),
        (">", -math.inf, NotNull(X)),
        ("<", math.nan, NotNull(X)),
        (">=", math.nan, FALSE),
    ],
)
def test_the_form_of_a_comparison(operator: str, value: float, expected: Predicate) -> None:
    assert uncast_comparison(X, pa.int8(), operator, pa.scalar(value)) == expected


def test_the_form_of_a_membership() -> None:
    def among(values: list[float], negated: bool) -> Predicate | None:
        return uncast_membership(X, pa.int8(), pa.array(values), negated)

    assert among([1.0, 2.5, 3.0, 1000.0], False) == In(X, pa.array([1, 3], pa.int8()))
    assert among([1.0, 2.5], True) == NotIn(X, pa.array([1], pa.int8()))
    assert among([2.5, math.nan], False) == FALSE
    assert among([2.5, -1000.0], True) == NotNull(X)


def test_a_day_is_a_range_of_instants() -> None:
    day = from_ordinal(1, pa.date32())
    found = uncast_membership(X, pa.timestamp("s"), pa.array([day], pa.date32()), False)
    assert found == all_of(
        (
            Compare(X, ">=", from_ordinal(DAY, pa.timestamp("s"))),
            Compare(X, "<", from_ordinal(2 * DAY, pa.timestamp("s"))),
        )
    )


def test_days_beyond_the_instants_of_a_column_decide() -> None:
    for days, below in ((2**31 - 1, True), (-(2**31), False)):
        far = from_ordinal(days, pa.date32())
        for operator in OPERATORS:
            every = operator.startswith("<") == below
            found = uncast_comparison(X, pa.timestamp("ns"), operator, far)
            assert found == (NotNull(X) if every else FALSE)
