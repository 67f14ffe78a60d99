"""Predicates: how they combine, and how they are written for DataFusion, for Lance, for people."""

import math
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from datafusion import SessionConfig, SessionContext

from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import (
    FALSE,
    TRUE,
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
    one_of,
    split_conjuncts,
    walk_atomic_predicates,
)
from phalanx.model.predicates.rendering import split_for_lance, summarize, to_datafusion, to_lance
from phalanx.model.schema.schema import Schema
from phalanx.model.sql.literals import from_ordinal
from phalanx.model.sql.syntax import Call, Column, Constant

A, B = Column(("a",)), Column(("b",))
ONE, TWO = In(A, pa.array([1])), In(B, pa.array([2]))
PARIS = "Europe/Paris"


# --- combining -----------------------------------------------------------------------------------


def test_conjunctions_are_flat_and_without_constants() -> None:
    assert all_of([]) == TRUE
    assert all_of([TRUE, TRUE]) == TRUE
    assert all_of([ONE]) is ONE
    assert all_of([ONE, TRUE]) is ONE
    assert all_of([ONE, FALSE, TWO]) == FALSE
    assert all_of([And((ONE, TWO)), ONE]) == And((ONE, TWO, ONE))
    assert all_of([Or((ONE, TWO)), ONE]) == And((Or((ONE, TWO)), ONE))


def test_disjunctions_are_flat_and_without_constants() -> None:
    assert any_of([]) == FALSE
    assert any_of([FALSE, FALSE]) == FALSE
    assert any_of([ONE, FALSE]) is ONE
    assert any_of([ONE, TRUE, TWO]) == TRUE
    assert any_of([Or((ONE, TWO)), ONE]) == Or((ONE, TWO, ONE))
    assert any_of([And((ONE, TWO)), ONE]) == Or((And((ONE, TWO)), ONE))


def test_among_distinguishes_null_from_values() -> None:
    assert one_of(A, pa.array([1, 2])) == In(A, pa.array([1, 2]))
    assert one_of(A, pa.array([1, None])) == Or((In(A, pa.array([1])), IsNull(A)))
    assert one_of(A, pa.array([None, None], pa.int64())) == IsNull(A)
    assert one_of(A, pa.array([], pa.int64())) == FALSE


def test_conjuncts_leaves_and_columns() -> None:
    opaque = Opaque("c < d", frozenset({("c",), ("d", "e")}))
    both = And((ONE, Or((TWO, opaque))))
    assert split_conjuncts(both) == (ONE, Or((TWO, opaque)))
    assert split_conjuncts(TRUE) == ()
    assert split_conjuncts(FALSE) == (FALSE,)
    assert split_conjuncts(ONE) == (ONE,)
    assert list(walk_atomic_predicates(both)) == [ONE, TWO, opaque]
    assert list(walk_atomic_predicates(TRUE)) == []
    assert find_predicate_columns(both) == {("a",), ("b",), ("c",), ("d", "e")}


# --- LIKE ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "prefix", "is_prefix_test"),
    [
        ("a%", "a", True),
        ("abc%", "abc", True),
        ("%", "", True),
        ("abc", "abc", False),
        ("a%b", "a", False),
        ("a_", "a", False),
        ("_%", "", False),
        ("a%%", "a", False),
        ("a\\%%", "a%", True),
        ("a\\_b%", "a_b", True),
        ("a\\\\%", "a\\", True),
        ("a\\%", "a%", False),
        ("a\\", "a\\", False),
        ("", "", False),
        ("é😀%", "é😀", True),
    ],
)
def test_the_prefix_of_a_pattern(pattern: str, prefix: str, is_prefix_test: bool) -> None:
    like = Like(A, pattern)
    assert like.prefix == prefix
    assert like.is_prefix_test == is_prefix_test
    assert not Like(A, pattern, case_sensitive=False).is_prefix_test


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "datafusion", "lance"),
    [
        (("country",), "country", "`country`"),
        (("country_2",), "country_2", "`country_2`"),
        (("_x",), "_x", "`_x`"),
        (("Country",), '"Country"', "`Country`"),
        (("two words",), '"two words"', "`two words`"),
        (("2x",), '"2x"', "`2x`"),
        (("select",), '"select"', "`select`"),
        (("order",), '"order"', "`order`"),
        (("date",), '"date"', "`date`"),
        (("year",), '"year"', "`year`"),
        (("true",), '"true"', "`true`"),
        (("null",), '"null"', "`null`"),
        (('say "hi"',), '"say ""hi"""', '`say "hi"`'),
        (("tick`s",), '"tick`s"', "`tick``s`"),
        (("it's",), '"it\'s"', "`it's`"),
        (("naïve",), '"naïve"', "`naïve`"),
        (("a-b",), '"a-b"', "`a-b`"),
        (("at", "city"), '"at".city', "`at`.`city`"),
        (("At", "City"), '"At"."City"', "`At`.`City`"),
        (("object_id",), "object_id", "object_id"),
        (("object_type",), "object_type", "object_type"),
        (("partition_field_event_year",), *["partition_field_event_year"] * 2),
        (("partition_field_Id",), '"partition_field_Id"', "`partition_field_Id`"),
        (("partition_field_a b",), '"partition_field_a b"', "`partition_field_a b`"),
        (("partition_field_",), "partition_field_", "`partition_field_`"),
    ],
)
def test_names_are_quoted_where_they_must_be(
    path: tuple[str, ...], datafusion: str, lance: str
) -> None:
    assert to_datafusion(IsNull(Column(path))) == f"{datafusion} IS NULL"
    assert to_lance(IsNull(Column(path))) == f"{lance} IS NULL"


def plain_session(table: pa.Table) -> SessionContext:
    names_as_written = {"datafusion.sql_parser.enable_ident_normalization": "false"}
    session = SessionContext(SessionConfig(names_as_written))
    session.register_record_batches("rows", [table.to_batches()])
    return session


def holds(table: pa.Table, predicate: Predicate) -> list[bool | None]:
    """Evaluate the text of the predicate in DataFusion."""
    query = f"SELECT ({to_datafusion(predicate)}) AS value FROM rows"
    found = plain_session(table).sql(query).to_arrow_table()
    return list(found.column("value").to_pylist())


NAMES = [
    *("country", "Country", "COUNTRY", "two words", "2x", 'say "hi"', "tick`s", "it's", "naïve"),
    *("select", "from", "where", "order", "date", "time", "timestamp", "year", "true", "null"),
    *("case", "interval", "all", "end", "is", "not", "user", "values", "exists", "row", "at"),
    *("left", "right", "left_right", "int", "string", "struct", "current_date", "cast", "sum"),
    *("escape", "similar", "between", "any", "position", "trim", "overlay", "floor", "uuid"),
]


@pytest.mark.parametrize("name", NAMES)
def test_datafusion_reads_every_name_as_that_column(name: str) -> None:
    table = pa.table({name: [1, 2, None], "other": [7, 7, 7]})
    assert holds(table, In(Column((name,)), pa.array([1]))) == [True, False, None]
    assert holds(table, IsNull(Column((name,)))) == [False, False, True]


# --- constants -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (pa.scalar(True), "true"),
        (pa.scalar(5, pa.int8()), "5"),
        (pa.scalar(-5, pa.int64()), "-5"),
        (pa.scalar(2**63 - 1, pa.int64()), "9223372036854775807"),
        (pa.scalar(-(2**63), pa.int64()), "arrow_cast('-9223372036854775808', 'Int64')"),
        (pa.scalar(2**64 - 1, pa.uint64()), "18446744073709551615"),
        (pa.scalar(1.5), "1.5"),
        (pa.scalar(1e300), "1e+300"),
        (pa.scalar(0.0), "arrow_cast('0.0', 'Float64')"),
        (pa.scalar(-0.0), "arrow_cast('-0.0', 'Float64')"),
        (pa.scalar(math.nan), "arrow_cast('NaN', 'Float64')"),
        (pa.scalar(math.inf), "arrow_cast('inf', 'Float64')"),
        (pa.scalar(-math.inf), "arrow_cast('-inf', 'Float64')"),
        (pa.scalar(1.5, pa.float32()), "arrow_cast('1.5', 'Float32')"),
        (
            pa.scalar(Decimal("14.20"), pa.decimal128(12, 2)),
            "arrow_cast('14.20', 'Decimal128(12, 2)')",
        ),
        (pa.scalar(Decimal("-1"), pa.decimal256(40, 0)), "arrow_cast('-1', 'Decimal256(40, 0)')"),
        (pa.scalar("it's"), "'it''s'"),
        (pa.scalar('a`b"c\\d'), "'a`b\"c\\d'"),
        (pa.scalar("x", pa.large_string()), "'x'"),
        (pa.scalar(b"\x00\xff"), "X'00ff'"),
        (pa.scalar(b"\x00", pa.large_binary()), "arrow_cast(X'00', 'LargeBinary')"),
        (pa.scalar(b"\x00\x01", pa.binary(2)), "arrow_cast(X'0001', 'FixedSizeBinary(2)')"),
        (from_ordinal(20432, pa.date32()), "DATE '2025-12-10'"),
        (from_ordinal(2**31 - 1, pa.date32()), "arrow_cast(2147483647, 'Date32')"),
        (from_ordinal(20432 * 86_400_000, pa.date64()), "arrow_cast('2025-12-10', 'Date64')"),
        (from_ordinal(81_068, pa.time32("s")), "arrow_cast('22:31:08', 'Time32(Second)')"),
        (
            from_ordinal(81_068_500_000, pa.time64("us")),
            "arrow_cast('22:31:08.5', 'Time64(Microsecond)')",
        ),
        (
            from_ordinal(1_510_871_468, pa.timestamp("s")),
            "arrow_cast('2017-11-16T22:31:08', 'Timestamp(Second, None)')",
        ),
        (
            from_ordinal(-1, pa.timestamp("ns")),
            "arrow_cast('1969-12-31T23:59:59.999999999', 'Timestamp(Nanosecond, None)')",
        ),
        (
            from_ordinal(1_735_687_800_000_000, pa.timestamp("us", PARIS)),
            "arrow_cast('2024-12-31T23:30:00Z', 'Timestamp(Microsecond, Some(\"Europe/Paris\"))')",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.type),
)
def test_constants_are_typed(value: pa.Scalar, text: str) -> None:
    assert to_datafusion(Compare(A, "<", value)) == f"a < {text}"
    assert to_lance(Compare(A, "<", value)) == f"`a` < {text}"


SAMPLES = [
    pa.array([True, False]),
    *(pa.array([5, 6], kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *(pa.array([5, 6], kind) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    pa.array([-(2**63), 2**63 - 1]),
    pa.array([2**64 - 1, 0], pa.uint64()),
    pa.array([0.1, 1e300]),
    pa.array([5e-324, -1.7976931348623157e308]),
    pa.array([math.inf, -math.inf]),
    pa.array([math.nan, 1.0]),
    pa.array([0.1, 3.4028234663852886e38], pa.float32()),
    pa.array([0.5, 65504.0], pa.float16()),
    pa.array([Decimal("14.20"), Decimal("-0.01")], pa.decimal128(12, 2)),
    pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38)], pa.decimal128(38, 0)),
    pa.array([Decimal("9" * 76), Decimal(1)], pa.decimal256(76, 0)),
    pa.array(["it's", "a`b"]),
    pa.array(["%_\\", "line\nbreak"]),
    pa.array(["", "😀"], pa.large_string()),
    pa.array(["--", "/* */ ' OR true"]),
    pa.array([b"", b"\x00'\xff"]),
    pa.array([b"ab", b"\x00\x00"], pa.large_binary()),
    pa.array([b"ab", b"\x00\x00"], pa.binary(2)),
    pa.array([0, -700_000], pa.int32()).cast(pa.date32()),
    pa.array([86_400_000, -86_400_000]).cast(pa.date64()),
    *(pa.array([1, 81_068], pa.int32()).cast(pa.time32(unit)) for unit in ("s", "ms")),
    *(pa.array([1, 81_068_123_456]).cast(pa.time64(unit)) for unit in ("us", "ns")),
    *(pa.array([-1, 10**9]).cast(pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")),
    pa.array([4_000_000_000_000, -4_000_000_000_000]).cast(pa.timestamp("s")),
    pa.array([-1, 10**9]).cast(pa.timestamp("us", PARIS)),
    pa.array([-1, 10**9]).cast(pa.timestamp("ns", "UTC")),
    pa.array([-1, 10**9]).cast(pa.duration("us")),
]


@pytest.mark.parametrize("values", SAMPLES, ids=lambda values: str(values.type))
def test_datafusion_reads_every_constant_as_that_value(values: pa.Array) -> None:
    table = pa.table({"a": values})
    assert holds(table, In(A, values.slice(0, 1))) == [True, False]
    assert holds(table, NotIn(A, values.slice(1, 1))) == [True, False]
    assert holds(table, In(A, values)) == [True, True]
    assert holds(table, And((Compare(A, ">=", values[0]), Compare(A, "<=", values[0])))) == [
        True,
        False,
    ]


# --- whole predicates ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (TRUE, "true"),
        (FALSE, "false"),
        (ONE, "a = 1"),
        (In(A, pa.array([1, 2])), "a IN (1, 2)"),
        (NotIn(A, pa.array([1])), "a <> 1"),
        (NotIn(A, pa.array([1, 2])), "a NOT IN (1, 2)"),
        (Compare(A, ">=", pa.scalar(1)), "a >= 1"),
        (IsNull(A), "a IS NULL"),
        (NotNull(A), "a IS NOT NULL"),
        (Like(A, "x%"), "a LIKE 'x%'"),
        (Like(A, "x%", negated=True), "a NOT LIKE 'x%'"),
        (Like(A, "x%", case_sensitive=False), "a ILIKE 'x%'"),
        (Like(A, "x%", negated=True, case_sensitive=False), "a NOT ILIKE 'x%'"),
        (Like(A, "it's\\%%"), "a LIKE 'it''s\\%%'"),
        (And((ONE, TWO)), "a = 1 AND b = 2"),
        (Or((ONE, TWO)), "a = 1 OR b = 2"),
        (And((ONE, Or((ONE, TWO)))), "a = 1 AND (a = 1 OR b = 2)"),
        (Or((ONE, And((ONE, TWO)))), "a = 1 OR (a = 1 AND b = 2)"),
    ],
)
def test_predicates_in_both_dialects(predicate: Predicate, text: str) -> None:
    assert to_datafusion(predicate) == text
    quoted = text.replace("a ", "`a` ").replace("b ", "`b` ")
    assert to_lance(predicate) == quoted


def test_terms_that_are_expressions_are_written_for_datafusion() -> None:
    term = Call("%", (A, Constant(pa.scalar(7))))
    assert to_datafusion(In(term, pa.array([2]))) == '("a" % 7) = 2'


def test_long_alternatives_are_balanced() -> None:
    parts = tuple(Compare(A, "=" if n % 2 else ">", pa.scalar(n)) for n in range(1000))
    text = to_datafusion(Or(parts))
    depth = deepest = 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        deepest = max(deepest, depth)
    assert depth == 0
    assert deepest <= 10
    assert text.count(" OR ") == 999


def test_a_summary_is_for_people() -> None:
    moment = from_ordinal(1_735_687_800_000_000, pa.timestamp("us"))
    assert "arrow_cast" not in summarize(Compare(A, ">=", moment))
    assert "2024-12-31" in summarize(Compare(A, ">=", moment))
    assert summarize(And((ONE, TWO))) == "a = 1 AND b = 2"
    many = summarize(In(A, pa.array(range(5000))))
    assert "5,000 values" in many
    assert len(many) < 100
    assert len(summarize(Or(tuple(In(A, pa.array([n])) for n in range(5000))))) < 200


# --- what Lance gets -----------------------------------------------------------------------------

SCHEMA = Schema.of(
    pa.schema([("a", pa.int64()), ("b", pa.string()), ("s", pa.struct([("x", pa.int64())]))])
)


@pytest.mark.parametrize(
    ("where", "lance", "rest"),
    [
        ("a = 1", "`a` = 1", "true"),
        ("a = 1 AND b LIKE 'x%'", "`a` = 1 AND `b` LIKE 'x%'", "true"),
        ("s.x = 1", "`s`.`x` = 1", "true"),
        ("a % 2 = 0", "true", '("a" % 2) = 0'),
        ("a = 1 AND a % 2 = 0", "`a` = 1", '("a" % 2) = 0'),
        ("a = 1 OR a % 2 = 0", "true", 'a = 1 OR ("a" % 2) = 0'),
        (
            "a = 1 AND (b = 'x' OR length(b) = 3) AND b <> 'y'",
            "`a` = 1 AND `b` <> 'y'",
            "b = 'x' OR character_length(\"b\") = 3",
        ),
        ("length(b) = 3", "true", 'character_length("b") = 3'),
        ("a = length(b)", "true", '("a" = arrow_cast(character_length("b"), \'Int64\'))'),
        ("true", "true", "true"),
        ("false", "false", "true"),
    ],
)
def test_lance_gets_what_it_can_take_and_datafusion_the_rest(
    where: str, lance: str, rest: str
) -> None:
    first, second = split_for_lance(bind_predicate(where, SCHEMA))
    assert to_lance(first) == lance
    assert to_datafusion(second) == rest


def test_no_opaque_text_reaches_lance() -> None:
    opaque = Opaque("a < b", frozenset({("a",), ("b",)}))
    with pytest.raises(AssertionError, match="cannot be rendered for Lance: a < b"):
        to_lance(opaque)
    assert split_for_lance(And((ONE, opaque))) == (ONE, opaque)


@pytest.mark.parametrize("where", ["a = 1", "b = 'x' OR a > 2", "s.x IS NULL AND b <> 'US'"])
def test_names_for_lance_are_never_in_double_quotes(where: str) -> None:
    """Lance reads a name in double quotes as text: `"country" <> 'US'` would match every row."""
    assert '"' not in to_lance(bind_predicate(where, SCHEMA))


@pytest.mark.parametrize(
    ("number", "storage", "kind"),
    [
        (100_000_000, pa.int32(), pa.date32()),
        (2**62, pa.int64(), pa.timestamp("us", "UTC")),
        (-(2**62), pa.int64(), pa.timestamp("s")),
        (123_456_789_123_456_789, pa.int64(), pa.timestamp("ns")),
    ],
)
def test_a_comparison_travels_with_moments_that_python_has_none_of(
    number: int, storage: pa.DataType, kind: pa.DataType
) -> None:
    sent = Compare(A, "<", pa.scalar(number, storage).cast(kind))
    arrived = pickle.loads(pickle.dumps(sent))
    assert arrived == sent
    assert arrived.value.cast(storage).as_py() == number
