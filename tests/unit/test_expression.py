"""Partition expressions: the six requirements of the format, and the values they give."""

import hashlib
import pickle
import struct
from typing import Any

import mmh3
import pyarrow as pa
import pytest

from phalanx.errors import InvalidSpec, SchemaMismatch
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import bucket, expression, multi_bucket
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.calendar_parts import Day, Hour, Month, Year
from phalanx.model.transforms.expression import Expression, build_expression, read_expression
from phalanx.model.transforms.transform import IDENTITY, Transform
from phalanx.model.transforms.truncate import Truncate

TEXT, INT, DATE = pa.string(), pa.int64(), pa.date32()
MOMENT, PARIS = pa.timestamp("us"), pa.timestamp("us", "Europe/Paris")


def values(sql: str, result: pa.DataType, *columns: pa.Array) -> list[Any]:
    """What the expression gives for the columns, after every check; its type must be exact."""
    derivation = build_expression(sql, [column.type for column in columns], result)
    found = derivation.apply(*columns)
    assert found.type == result
    return list(found.to_pylist())


# --- (1) deterministic, (2) stateless ------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("now()", "now"),
        ("NOW()", "now"),
        ("col0 + random()", "random"),
        ("random()", "random"),
        ("uuid()", "uuid"),
        ("current_date", "current_date"),
        ("current_date()", "current_date"),
        ("today()", "current_date"),
        ("current_time", "current_time"),
        ("current_timestamp", "now"),
        ("current_timestamp()", "now"),
        ("CASE WHEN col0 > 1 THEN now() END", "now"),
        ("coalesce(col0, random())", "random"),
        ("version()", "version"),
        ("murmur3(uuid())", "uuid"),
    ],
)
def test_what_depends_on_more_than_the_row_is_refused_by_name(sql: str, named: str) -> None:
    with pytest.raises(
        InvalidSpec, match="is volatile, and a partition must depend on the row only"
    ) as refused:
        read_expression(sql, 1, INT)
    assert f"{named}()" in str(refused.value)
    assert repr(sql) in str(refused.value)


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("sum(col0)", "aggregate function sum"),
        ("count(*)", "aggregate function count"),
        ("1 + max(col0)", "aggregate function max"),
        ("array_agg(col0)", "aggregate function array_agg"),
        ("row_number() OVER ()", "window function row_number"),
        ("lag(col0) OVER (ORDER BY col0)", "window function lag"),
        ("max(col0) OVER ()", "window function max"),
        ("(SELECT 1)", "subquery"),
        ("col0 IN (SELECT 1)", "subquery"),
        ("EXISTS (SELECT 1)", "subquery"),
        ("col0 > ALL (SELECT 1)", "subquery"),
        ("unnest([1, 2])", "set-returning function"),
        ("$1", r"parameter \$1"),
        ("?", "parameter"),
    ],
)
def test_what_is_no_value_of_one_row_is_refused_by_name(sql: str, named: str) -> None:
    with pytest.raises(InvalidSpec, match=named) as refused:
        build_expression(sql, [INT], INT)
    assert "not a value of one row" in str(refused.value)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("", "an expression"),
        ("col0 +", "an expression"),
        ("(col0", r"\)"),
        ("col0; DROP TABLE t", ";"),
        ("col0) OR (1 = 1", r"\)"),
        ("*", r"\*"),
        ("col1", "col1.*col0"),
        ("country", "country"),
        ("nosuch(col0)", "nosuch"),
        ("col0 + 'a' + []", "col0"),
    ],
)
def test_text_that_is_no_expression_is_refused(sql: str, why: str) -> None:
    with pytest.raises(InvalidSpec, match=why):
        build_expression(sql, [INT], INT)


@pytest.mark.parametrize("text", [None, 5, b"col0", ["col0"]], ids=repr)
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(InvalidSpec, match="expected SQL text"):
        read_expression(text, 1, INT)


# --- (3) type-promotion resistant ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "source", "result", "example"),
    [
        ("arrow_typeof(col0)", pa.int32(), TEXT, "0 as int32 gives Int32 but as int8 gives Int8"),
        ("arrow_typeof(col0)", pa.float64(), TEXT, "as double gives Float64"),
        ("CAST(col0 AS VARCHAR)", pa.float32(), TEXT, "as float gives"),
        ("CAST(col0 AS VARCHAR)", pa.float64(), TEXT, "as double gives"),
        ("arrow_typeof(col0)", pa.decimal128(9, 2), TEXT, r"as decimal128\(9, 2\) gives"),
        ("col0 + arrow_cast(0.1, 'Float16')", pa.float16(), pa.float64(), "as halffloat gives"),
    ],
)
def test_values_that_depend_on_the_width_are_refused_with_an_example(
    sql: str, source: pa.DataType, result: pa.DataType, example: str
) -> None:
    with pytest.raises(InvalidSpec, match=example) as refused:
        build_expression(sql, [source], result)
    assert "equal numbers must fall in one partition" in str(refused.value)


def test_every_source_is_tried_in_its_widths() -> None:
    with pytest.raises(InvalidSpec, match="as int32 gives aInt32 but as int8 gives aInt8"):
        build_expression("col0 || arrow_typeof(col1)", [TEXT, pa.int32()], TEXT)


@pytest.mark.parametrize(
    ("sql", "source", "result"),
    [
        ("CAST(col0 AS VARCHAR)", pa.int32(), TEXT),
        ("CAST(col0 AS VARCHAR)", pa.uint8(), TEXT),
        ("col0 % 7", pa.int8(), INT),
        ("col0 * 1000000", pa.int32(), INT),
        ("col0 / 2", pa.float32(), pa.float64()),
        ("abs(murmur3(col0)) % 5 + 1", pa.uint32(), INT),
        ("murmur3(col0)", pa.float32(), pa.int32()),
        ("murmur3(col0)", pa.decimal128(9, 2), pa.int32()),
        ("col0 > 5", pa.uint64(), pa.bool_()),
        ("arrow_typeof(col0)", TEXT, TEXT),
    ],
)
def test_values_that_do_not_depend_on_the_width_are_fine(
    sql: str, source: pa.DataType, result: pa.DataType
) -> None:
    assert isinstance(build_expression(sql, [source], result), Expression)


# --- (4) column removal resistant ----------------------------------------------------------------


def test_a_source_that_is_gone_counts_as_null() -> None:
    schema = Schema.of(pa.schema([("a", TEXT), ("b", TEXT)]))
    both = "coalesce(col0, 'none') || coalesce(col1, '-')"
    spec = build_next_spec(
        [
            expression(both, ["a", "b"], TEXT, field_id="x"),
            expression("upper(col0)", ["a"], TEXT, field_id="up"),
            expression("col0 IS NULL", ["a"], pa.bool_(), field_id="gone"),
            bucket("a", 4),
            multi_bucket(["a", "b"], 1000),
        ],
        schema,
        {},
    )
    found = spec.compute_partition_values(pa.table({"b": ["1", None]}), schema.drop("a"))
    assert found.schema == pa.schema([(f.field_id, f.result_type) for f in spec.fields])
    assert found.to_pylist() == [
        {
            "x": "none1",
            "up": None,
            "gone": True,
            "a_bucket": None,
            "a_b_multi_bucket": abs(mmh3.hash(b"1", 0, signed=True)) % 1000,
        },
        {"x": "none-", "up": None, "gone": True, "a_bucket": None, "a_b_multi_bucket": None},
    ]


# --- (5) NULL safe -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "result", "given", "expected"),
    [
        ("upper(col0)", TEXT, [None, "a"], [None, "A"]),
        ("coalesce(upper(col0), '~')", TEXT, [None, "a"], ["~", "A"]),
        ("col0 IS NULL", pa.bool_(), [None, "a"], [True, False]),
        ("length(col0)", INT, [None, None], [None, None]),
        ("murmur3(col0)", pa.int32(), [None], [None]),
        ("md5_int(col0)", INT, [None], [None]),
        ("murmur3_multi(col0, 'x')", pa.int32(), [None], [mmh3.hash(b"x", 0, signed=True)]),
    ],
)
def test_null_has_a_defined_value(
    sql: str, result: pa.DataType, given: list[Any], expected: list[Any]
) -> None:
    assert values(sql, result, pa.array(given, TEXT)) == expected


def test_an_expression_that_fails_for_null_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="fails for NULL"):
        build_expression("CAST(coalesce(col0, 'x') AS BIGINT)", [TEXT], INT)


# --- (6) consistent with the result type ---------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "source", "result"),
    [
        ("col0 % 7", INT, TEXT),
        ("upper(col0)", TEXT, INT),
        ("col0 > 5", INT, INT),
        ("length(col0)", TEXT, pa.float64()),
        ("date_trunc('day', col0)", MOMENT, DATE),
        ("date_trunc('day', col0)", PARIS, MOMENT),
        ("NULL", INT, INT),
    ],
)
def test_another_kind_of_result_is_refused(
    sql: str, source: pa.DataType, result: pa.DataType
) -> None:
    with pytest.raises(InvalidSpec, match="declared") as refused:
        build_expression(sql, [source], result)
    assert str(result) in str(refused.value)


@pytest.mark.parametrize(
    "result",
    [pa.list_(INT), pa.struct([("a", INT)]), pa.null(), pa.dictionary(pa.int32(), TEXT)],
    ids=str,
)
def test_a_result_that_is_no_partition_value_is_refused(result: pa.DataType) -> None:
    with pytest.raises(InvalidSpec, match="cannot be a partition value"):
        build_expression("upper(col0)", [TEXT], result)


@pytest.mark.parametrize(
    ("sql", "column", "result", "expected"),
    [
        ("col0 % 7", pa.array([9, -9]), pa.int8(), [2, -2]),
        ("col0 % 7", pa.array([9, -9], pa.int16()), pa.int32(), [2, -2]),
        ("length(col0)", pa.array(["abc"]), pa.uint8(), [3]),
        ("upper(col0)", pa.array(["a"]), pa.large_string(), ["A"]),
        ("upper(col0)", pa.array(["a"], pa.large_string()), TEXT, ["A"]),
        ("upper(col0)", pa.array(["a", "b"]).dictionary_encode(), TEXT, ["A", "B"]),
        ("col0 / 2", pa.array([3.0], pa.float32()), pa.float32(), [1.5]),
        ("col0 || 'x'", pa.array([], TEXT), TEXT, []),
        ("7", pa.array([1, 2]), INT, [7, 7]),
        ("CASE WHEN col0 > 1 THEN 'big' END", pa.array([1, 2]), TEXT, [None, "big"]),
        ("col0 IN ('a', 'b')", pa.array(["a", "c"]), pa.bool_(), [True, False]),
    ],
)
def test_the_result_has_exactly_the_declared_type(
    sql: str, column: pa.Array, result: pa.DataType, expected: list[Any]
) -> None:
    assert values(sql, result, column) == expected


@pytest.mark.parametrize(
    ("sql", "column", "result", "why"),
    [
        ("col0 * 100", pa.array([2]), pa.int8(), "200 not in range"),
        ("100 / col0", pa.array([0]), INT, "[Dd]ivide by zero"),
        ("CAST(col0 AS BIGINT)", pa.array(["x"]), INT, "x"),
    ],
)
def test_a_row_that_does_not_fit_is_a_mismatch(
    sql: str, column: pa.Array, result: pa.DataType, why: str
) -> None:
    derivation = build_expression(sql, [column.type], result)
    with pytest.raises(SchemaMismatch, match=why) as refused:
        derivation.apply(column)
    assert repr(sql) in str(refused.value)


def test_floats_come_in_one_form() -> None:
    column = pa.array([-0.0, float("nan"), -float("nan")])
    found = build_expression("col0 + 0.0 * col0", [pa.float64()], pa.float64()).apply(column)
    assert [struct.pack(">d", value) for value in found.to_pylist()] == [
        struct.pack(">d", 0.0),
        bytes.fromhex("7ff8000000000000"),
        bytes.fromhex("7ff8000000000000"),
    ]


def test_zoned_timestamps_are_taken_in_utc() -> None:
    midnight_in_paris = pa.array([1_735_686_000_000_000], PARIS)
    by_month = "date_part('year', col0) * 100 + date_part('month', col0)"
    assert values(by_month, pa.int32(), midnight_in_paris) == [202412]


# --- hashes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a", "US", "naïve", "😀", "x" * 1000])
def test_md5_int_is_the_first_eight_bytes_signed(text: str) -> None:
    digest = hashlib.md5(text.encode()).digest()
    expected = int.from_bytes(digest[:8], "big", signed=True)
    assert values("md5_int(col0)", INT, pa.array([text, None])) == [expected, None]
    assert values("md5_int(col0)", INT, pa.array([None, text.encode()])) == [None, expected]


def test_md5_int_of_many_slices() -> None:
    column = pa.array(["a", None, "b", "c", None, "d"]).slice(1, 4)
    expected = [
        None if text is None else struct.unpack(">q", hashlib.md5(text.encode()).digest()[:8])[0]
        for text in column.to_pylist()
    ]
    assert values("md5_int(col0)", INT, column) == expected


def test_murmur3_works_anywhere_in_an_expression() -> None:
    column = pa.array(["us", "de", None])
    hashes = [mmh3.hash(text, 0, signed=True) for text in (b"US", b"DE")]
    assert values("murmur3(upper(col0))", pa.int32(), column) == [*hashes, None]
    assert values("coalesce(murmur3(upper(col0)), 0) > 0", pa.bool_(), column) == [
        *(number > 0 for number in hashes),
        False,
    ]
    twice = [mmh3.hash(struct.pack("<q", number), 0, signed=True) for number in hashes]
    assert values("murmur3(murmur3(upper(col0)))", pa.int32(), column) == [*twice, None]


def test_murmur3_multi_joins_the_bytes_of_what_is_there() -> None:
    texts, numbers = pa.array(["US", None, "US", None]), pa.array([1, 1, None, None])
    parts = [b"US" + struct.pack("<q", 1), struct.pack("<q", 1), b"US"]
    expected = [mmh3.hash(part, 0, signed=True) for part in parts]
    found = values("murmur3_multi(col0, col1) + 0", INT, texts, numbers)
    assert found == [*expected, None]


def test_the_smallest_hash_has_an_absolute_value_in_an_expression_too() -> None:
    column = pa.array([bytes.fromhex("55076f83")])
    assert mmh3.hash(bytes.fromhex("55076f83"), 0, signed=True) == -(2**31)
    assert Bucket(10).apply(column).to_pylist() == [8]
    assert values("abs(murmur3(col0)) % 10 + 1", INT, column) == [9]


@pytest.mark.parametrize(
    ("sql", "sources", "why"),
    [
        ("murmur3()", [INT], "murmur3 takes"),
        ("murmur3(col0, col0)", [INT], "murmur3 takes"),
        ("murmur3_multi()", [INT], "murmur3_multi takes"),
        ("md5_int(col0, col0)", [TEXT], "md5_int takes"),
        ("murmur3(col0)", [pa.list_(INT)], "list<item: int64>"),
        ("murmur3_multi(col0, col1)", [INT, pa.struct([("a", INT)])], "struct"),
        ("md5_int(col0)", [pa.list_(INT)], "list<item: int64>"),
        ("md5_int(concat(col0, col1))", [TEXT, pa.duration("s")], "duration"),
    ],
)
def test_hashes_of_what_cannot_be_hashed_are_refused(
    sql: str, sources: list[pa.DataType], why: str
) -> None:
    with pytest.raises(InvalidSpec, match=why):
        build_expression(sql, sources, pa.int32())


# --- well-known transforms -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "sources", "result", "known"),
    [
        ("col0", [INT], INT, IDENTITY),
        ("COL0", [TEXT], TEXT, IDENTITY),
        ("(col0)", [TEXT], TEXT, IDENTITY),
        ("date_part('year', col0)", [MOMENT], pa.int32(), Year()),
        ("date_part('MONTH', col0)", [DATE], pa.int32(), Month()),
        ("DATE_PART('day', col0)", [PARIS], pa.int32(), Day()),
        ("extract(hour FROM col0)", [MOMENT], pa.int32(), Hour()),
        ("abs(murmur3(col0)) % 16", [INT], pa.int32(), Bucket(16)),
        ("abs(murmur3_multi(col0, col1)) % 8", [INT, TEXT], pa.int32(), MultiBucket(8)),
        ("abs(murmur3_multi(col0)) % 8", [INT], pa.int32(), MultiBucket(8)),
        ("left(col0, 4)", [TEXT], TEXT, Truncate(4)),
        ("col0 - (col0 % 5)", [pa.int32()], pa.int32(), Truncate(5)),
        ("col0 - col0 % 5", [pa.decimal128(9, 2)], pa.decimal128(9, 2), Truncate(5)),
    ],
)
def test_a_well_known_transform_is_recognised(
    sql: str, sources: list[pa.DataType], result: pa.DataType, known: Transform
) -> None:
    assert build_expression(sql, sources, result) == known
    assert read_expression(sql, len(sources), result) == known


@pytest.mark.parametrize(
    ("sql", "sources", "result"),
    [
        ("date_part('week', col0)", [MOMENT], pa.int32()),
        ("date_part('year', col0) + 0", [MOMENT], pa.int32()),
        ("abs(murmur3_multi(col1, col0)) % 8", [INT, TEXT], pa.int32()),
        ("abs(murmur3(col1)) % 8", [INT, TEXT], pa.int32()),
        ("murmur3(col0) % 8", [INT], pa.int32()),
        ("left(col0, -1)", [TEXT], TEXT),
        ("left(col0, 0)", [TEXT], TEXT),
        ("right(col0, 4)", [TEXT], TEXT),
        ("(col0 % 5) - col0", [INT], INT),
        ("col0 + (col0 % 5)", [INT], INT),
        ("col1", [INT, TEXT], TEXT),
    ],
)
def test_what_only_looks_like_one_stays_an_expression(
    sql: str, sources: list[pa.DataType], result: pa.DataType
) -> None:
    found = build_expression(sql, sources, result)
    assert isinstance(found, Expression)
    assert found.sql(*sources) == sql


@pytest.mark.parametrize(
    ("sql", "sources", "result", "why"),
    [
        ("date_part('year', col0)", [MOMENT], INT, "transform year.*int32, not int64"),
        ("abs(murmur3(col0)) % 16", [INT], INT, "transform bucket.*int32, not int64"),
        ("col0 - (col0 % 5)", [pa.int32()], INT, "transform truncate.*int32, not int64"),
        ("col0", [pa.int32()], INT, "transform identity.*int32, not int64"),
        ("date_part('hour', col0)", [DATE], pa.int32(), "hour of a column of type date32"),
        ("col0 - (col0 % 5)", [pa.float32()], pa.float32(), "truncate a column of type float"),
    ],
)
def test_a_well_known_transform_keeps_its_own_rules(
    sql: str, sources: list[pa.DataType], result: pa.DataType, why: str
) -> None:
    with pytest.raises(InvalidSpec, match=why):
        build_expression(sql, sources, result)


@pytest.mark.parametrize(
    ("sql", "source"),
    [("left(col0, 4)", INT), ("col0 - (col0 % 5)", TEXT)],
)
def test_the_form_for_text_is_no_truncate_of_numbers_nor_the_other_way_round(
    sql: str, source: pa.DataType
) -> None:
    with pytest.raises(InvalidSpec):
        build_expression(sql, [source], source)


@pytest.mark.parametrize("sql", ["col0", "date_part('year', col0)", "left(col0, 4)"])
def test_a_well_known_transform_with_a_source_too_many_is_refused(sql: str) -> None:
    kind = MOMENT if "year" in sql else TEXT
    result = pa.int32() if "year" in sql else TEXT
    with pytest.raises(InvalidSpec):
        build_expression(sql, [kind, INT], result)


# --- identity of expressions ---------------------------------------------------------------------


def test_expressions_are_equal_if_they_parse_to_the_same() -> None:
    one, two = (build_expression(sql, [TEXT], TEXT) for sql in ("upper(col0)", " UPPER( COL0 ) "))
    assert one == two
    assert hash(one) == hash(two)
    assert one != build_expression("lower(col0)", [TEXT], TEXT)
    assert one != build_expression("upper(col0)", [TEXT], pa.large_string())


def test_an_expression_survives_a_copy() -> None:
    made = build_expression("coalesce(upper(col0), '~')", [TEXT], TEXT)
    copied = pickle.loads(pickle.dumps(made))
    assert copied == made
    assert copied.apply(pa.array(["a", None])).to_pylist() == ["A", "~"]


def test_labels_show_the_text_and_the_columns() -> None:
    made = build_expression("col0 || col1", [TEXT, TEXT], TEXT)
    assert made.label("a", "b") == "expression('col0 || col1', a, b)"


def test_sources_are_widened_together_too() -> None:
    """A sum that overflows only when both of its columns are large depends on their width."""
    with pytest.raises(InvalidSpec, match="equal numbers must fall in one partition"):
        build_expression("abs(murmur3(col0 + col1)) % 4 + 1", [pa.int32(), pa.int32()], pa.int64())


# --- long and deep expressions -------------------------------------------------------------------


def test_a_long_sum_is_taken() -> None:
    sql = "abs(murmur3(col0)) % 4" + " + 1" * 60
    assert values(sql, INT, pa.array([34])) == [abs(mmh3.hash(struct.pack("<q", 34))) % 4 + 60]


@pytest.mark.parametrize(
    "sql", ["col0" + " + 1" * 1500, "col0" + " + 1" * 300, "upper(" * 200 + "col0" + ")" * 200]
)
def test_an_expression_too_long_or_too_deep_is_refused(sql: str) -> None:
    with pytest.raises(InvalidSpec, match=r"levels of operators|it has a chain of more than"):
        read_expression(sql, 1, INT)


# --- what a stored spec can hold -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "source", "result"),
    [
        ("upper(col0)", TEXT, pa.string_view()),
        ("encode(col0, 'hex')", pa.binary(), pa.string_view()),
        ("INTERVAL '1 day'", INT, pa.month_day_nano_interval()),
    ],
)
def test_a_result_type_that_cannot_be_stored_is_refused(
    sql: str, source: pa.DataType, result: pa.DataType
) -> None:
    with pytest.raises(InvalidSpec, match="cannot be stored in a spec"):
        build_expression(sql, [source], result)


@pytest.mark.parametrize("kind", [pa.decimal32(7, 2), pa.decimal64(12, 2)])
@pytest.mark.parametrize(
    ("sql", "result"),
    [("col0 % 7", INT), ("abs(col0 % 10)", INT), ("ln(abs(col0) + 1)", pa.float64())],
)
def test_fractions_show_that_a_decimal_depends_on_its_width(
    sql: str, result: pa.DataType, kind: pa.DataType
) -> None:
    with pytest.raises(InvalidSpec, match="equal numbers must fall in one partition"):
        build_expression(sql, [kind], result)


@pytest.mark.parametrize(
    ("sql", "result"), [("col0 * 2", pa.decimal128(38, 2)), ("round(col0)", pa.decimal128(12, 2))]
)
def test_a_wide_decimal_is_not_tried_in_a_narrower_one(sql: str, result: pa.DataType) -> None:
    assert isinstance(build_expression(sql, [pa.decimal128(12, 2)], result), Expression)


@pytest.mark.parametrize(
    ("sql", "result", "known"),
    [
        ("left(col0, 3)", TEXT, Truncate(3)),
        ("left(col0, 3)", pa.large_string(), Truncate(3)),
        ("left(col0, 3)", pa.int32(), None),
        ("col0 - (col0 % 3)", pa.int32(), Truncate(3)),
        ("col0 - (col0 % 3)", pa.decimal128(9, 2), Truncate(3)),
        ("col0 - (col0 % 3)", TEXT, None),
    ],
)
def test_a_form_of_truncate_is_recognized_by_its_result_type(
    sql: str, result: pa.DataType, known: Transform | None
) -> None:
    found = read_expression(sql, 1, result)
    assert found == known if known is not None else isinstance(found, Expression)
