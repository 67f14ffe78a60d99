"""Constants: the SQL they are written as, their order, and one form for equal floats."""

import math
import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from datafusion import SessionContext

from phalanx.model.sql.literals import (
    NotExpressible,
    find_predecessor,
    find_successor,
    format_iso,
    from_ordinal,
    has_utc_calendar,
    is_discrete,
    normalize_values,
    quote_identifier,
    quote_string,
    render_comparand,
    render_comparands,
    render_typed,
    storage_type_of,
    to_ordinal,
    to_type_name,
)

UNITS = ("s", "ms", "us", "ns")
PARIS = "Europe/Paris"
INTEGERS = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
)
TYPES = (
    *(pa.null(), pa.bool_(), *INTEGERS, pa.float16(), pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.string_view()),
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(5)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit, zone) for unit in UNITS for zone in (None, "UTC", PARIS, "+05:30")),
    *(pa.duration(unit) for unit in UNITS),
    *(pa.decimal32(9, 2), pa.decimal64(18, 6), pa.decimal128(38, 10), pa.decimal256(76, 38)),
    *(pa.decimal128(5, -2), pa.month_day_nano_interval(), pa.dictionary(pa.int32(), pa.string())),
)


def evaluate(sql: str) -> pa.ChunkedArray:
    """Evaluate the text in a plain DataFusion session."""
    return SessionContext().sql(f"SELECT {sql} AS value").to_arrow_table().column("value")


# --- names and text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "double", "tick"),
    [
        ("a", '"a"', "`a`"),
        ('a"b', '"a""b"', '`a"b`'),
        ("a`b", '"a`b"', "`a``b`"),
        ("", '""', "``"),
    ],
)
def test_quoted_names(name: str, double: str, tick: str) -> None:
    assert quote_identifier(name, '"') == double
    assert quote_identifier(name, "`") == tick


@pytest.mark.parametrize(
    "text",
    ["", "a", "it's", "''", "a\\'b", "\\", '"', "`", "é😀", "line\nbreak", "%_", "--", "$1", "{}"],
)
def test_text_comes_back_as_it_was(text: str) -> None:
    assert evaluate(quote_string(text)).to_pylist() == [text]


# --- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_datafusion_knows_every_type_by_its_name(data_type: pa.DataType) -> None:
    assert evaluate(f"arrow_cast(NULL, '{to_type_name(data_type)}')").type == data_type


@pytest.mark.parametrize(
    "data_type", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())])], ids=str
)
def test_types_without_a_name_are_reported(data_type: pa.DataType) -> None:
    with pytest.raises(NotExpressible, match=str(data_type)[:4]):
        to_type_name(data_type)


# --- constants -----------------------------------------------------------------------------------

TICKS = (0, 1, -1, 1_735_689_600, -62_135_596_800)
EXTREMES = [
    pa.scalar(end, kind)
    for kind in INTEGERS
    for end in (
        (0, 2**kind.bit_width - 1)
        if str(kind).startswith("u")
        else (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1, -1)
    )
]
CONSTANTS = [
    pa.scalar(True),
    pa.scalar(False),
    *EXTREMES,
    *(pa.scalar(x) for x in (0.0, -0.0, 1.5, 0.1, 1e300, 5e-324, math.inf, -math.inf, math.nan)),
    *(pa.scalar(x, pa.float32()) for x in (0.0, -0.0, 0.1, 3.4028234663852886e38, math.nan)),
    *(pa.scalar(x, pa.float16()) for x in (0.0, 0.5, 65504.0, math.inf)),
    *(pa.scalar(text) for text in ("", "it's", "é😀", "a\\b", "NULL")),
    *(pa.scalar("it's", kind) for kind in (pa.large_string(), pa.string_view())),
    *(pa.scalar(b"\x00'\xff", kind) for kind in (pa.binary(), pa.large_binary(), pa.binary(3))),
    pa.scalar(b"", pa.binary()),
    *(pa.scalar(Decimal(text), pa.decimal128(9, 2)) for text in ("14.20", "-0.01", "0.00")),
    pa.scalar(Decimal("9" * 38), pa.decimal128(38, 0)),
    pa.scalar(Decimal("-" + "9" * 76), pa.decimal256(76, 0)),
    pa.scalar(Decimal("1E-38"), pa.decimal128(38, 38)),
    *(from_ordinal(days, pa.date32()) for days in (0, -1, 20_432, -719_162, 2**31 - 1, -(2**31))),
    *(from_ordinal(days * 86_400_000, pa.date64()) for days in (0, -1, 20_432)),
    *(from_ordinal(tick, pa.time32("s")) for tick in (0, 81_068, 86_399)),
    *(from_ordinal(tick, pa.time32("ms")) for tick in (1, 86_399_999)),
    *(from_ordinal(tick, pa.time64("us")) for tick in (1, 86_399_999_999)),
    *(from_ordinal(tick, pa.time64("ns")) for tick in (1, 86_399_999_999_999)),
    *(from_ordinal(tick, pa.timestamp(unit)) for unit in UNITS for tick in TICKS),
    *(from_ordinal(tick, pa.timestamp(unit, PARIS)) for unit in UNITS for tick in TICKS),
    *(from_ordinal(sign * 4 * 10**12, pa.timestamp("s")) for sign in (1, -1)),
    *(from_ordinal(sign * 4 * 10**12, pa.timestamp("s", PARIS)) for sign in (1, -1)),
    *(from_ordinal(end, pa.timestamp("us")) for end in (2**63 - 1, -(2**63))),
    *(from_ordinal(tick, pa.duration(unit)) for unit in UNITS for tick in (0, 5, -5)),
    *(pa.scalar(None, kind) for kind in (pa.int64(), pa.string(), pa.date32(), pa.timestamp("us"))),
    *(pa.scalar(None, kind) for kind in (pa.null(), pa.decimal128(9, 2), pa.binary(3))),
]


def bits(value: pa.Scalar) -> object:
    """The value such that only the same one looks alike."""
    if not value.is_valid:
        return None
    if pa.types.is_floating(value.type):
        return "NaN" if math.isnan(value.as_py()) else struct.pack(">d", value.as_py())
    return to_ordinal(value)


def constant_id(value: pa.Scalar) -> str:
    return f"{value.type} {bits(value)!r}"


@pytest.mark.parametrize("value", CONSTANTS, ids=constant_id)
def test_a_typed_constant_is_read_back_as_it_was(value: pa.Scalar) -> None:
    found = evaluate(render_typed(value))[0]
    assert found.type == value.type
    assert bits(found) == bits(value)


@pytest.mark.parametrize("value", [v for v in CONSTANTS if v.is_valid], ids=constant_id)
def test_a_comparand_equals_its_column(value: pa.Scalar) -> None:
    session = SessionContext()
    rows = pa.table({"x": pa.array([value, None], value.type)})
    session.register_record_batches("rows", [rows.to_batches()])
    found = session.sql(f"SELECT x = {render_comparand(value)} AS value FROM rows").to_arrow_table()
    assert found.column("value").to_pylist() == [True, None]


def test_a_decimal_of_negative_scale_is_read_back_as_it_was() -> None:
    value = pa.scalar(Decimal(12300), pa.decimal128(5, -2))
    found = evaluate(render_typed(value))[0]
    assert found.type == value.type
    assert found.as_py() == Decimal(12300)


def test_lists_of_comparands_are_those_of_their_values() -> None:
    for values in (
        pa.array([1, -(2**63), 3]),
        pa.array(["a", "it's"]),
        pa.array(["a", "it's"], pa.large_string()),
        pa.array([0.0, 1.5, math.nan]),
        pa.array([0, 20_432], pa.int32()).cast(pa.date32()),
        pa.array([Decimal("14.20")], pa.decimal128(9, 2)),
        pa.array([], pa.int64()),
    ):
        assert render_comparands(values) == [render_comparand(value) for value in values]


def test_nested_constants_are_read_back() -> None:
    listed = pa.scalar([1, 2], pa.list_(pa.int64()))
    assert evaluate(render_typed(listed)).to_pylist() == [[1, 2]]
    named = pa.scalar({"a": 1, "b": "it's"}, pa.struct([("a", pa.int64()), ("b", pa.string())]))
    assert evaluate(render_typed(named)).to_pylist() == [{"a": 1, "b": "it's"}]
    worded = pa.array(["US"]).dictionary_encode()[0]
    assert evaluate(render_typed(worded)).to_pylist() == ["US"]


def test_intervals_are_read_back() -> None:
    value = pa.scalar((1, 2, 3_000_000_000), pa.month_day_nano_interval())
    assert evaluate(render_typed(value)).to_pylist() == [value.as_py()]


def test_a_constant_that_cannot_be_written_is_reported() -> None:
    words = pa.scalar([("a", 1)], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(NotExpressible, match="map"):
        render_typed(words)


# --- ISO text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (from_ordinal(20_432, pa.date32()), "2025-12-10"),
        (from_ordinal(-719_162, pa.date32()), "0001-01-01"),
        (from_ordinal(2_932_896, pa.date32()), "9999-12-31"),
        (from_ordinal(2_932_897, pa.date32()), None),
        (from_ordinal(-719_163, pa.date32()), None),
        (from_ordinal(86_400_000, pa.date64()), "1970-01-02"),
        (from_ordinal(86_400_001, pa.date64()), "1970-01-02T00:00:00.001"),
        (from_ordinal(81_068, pa.time32("s")), "22:31:08"),
        (from_ordinal(1, pa.time64("ns")), "00:00:00.000000001"),
        (from_ordinal(81_068_500_000, pa.time64("us")), "22:31:08.5"),
        (from_ordinal(0, pa.timestamp("s")), "1970-01-01T00:00:00"),
        (from_ordinal(-1, pa.timestamp("ms")), "1969-12-31T23:59:59.999"),
        (from_ordinal(-1, pa.timestamp("ns")), "1969-12-31T23:59:59.999999999"),
        (from_ordinal(1_735_687_800, pa.timestamp("s", PARIS)), "2024-12-31T23:30:00"),
        (from_ordinal(4 * 10**12, pa.timestamp("s")), None),
        (from_ordinal(5, pa.duration("s")), None),
    ],
    ids=lambda value: value if isinstance(value, str) else str(getattr(value, "type", value)),
)
def test_iso_text_is_in_utc_and_only_for_years_of_four_digits(
    value: pa.Scalar, text: str | None
) -> None:
    assert format_iso(value) == text


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [v for v in CONSTANTS if v.is_valid], ids=constant_id)
def test_ordinals_lead_back(value: pa.Scalar) -> None:
    number = to_ordinal(value)
    assert bits(from_ordinal(number, value.type)) == bits(value)
    if storage_type_of(value.type) is not None or pa.types.is_decimal(value.type):
        assert isinstance(number, int)


@pytest.mark.parametrize(
    ("value", "before", "after"),
    [
        (pa.scalar(5, pa.int8()), 4, 6),
        (pa.scalar(127, pa.int8()), 126, None),
        (pa.scalar(-128, pa.int8()), None, -127),
        (pa.scalar(2**63 - 1), 2**63 - 2, None),
        (pa.scalar(0, pa.uint64()), None, 1),
        (pa.scalar(2**64 - 1, pa.uint64()), 2**64 - 2, None),
        (pa.scalar(False), None, True),
        (pa.scalar(True), False, None),
        (pa.scalar(Decimal("0.00"), pa.decimal128(3, 2)), Decimal("-0.01"), Decimal("0.01")),
        (pa.scalar(Decimal("9.99"), pa.decimal128(3, 2)), Decimal("9.98"), None),
        (pa.scalar(1.0), 0.9999999999999999, 1.0000000000000002),
        (pa.scalar(0.0), -5e-324, 5e-324),
        (pa.scalar(math.inf), 1.7976931348623157e308, None),
        (pa.scalar(-math.inf), None, -1.7976931348623157e308),
        (pa.scalar(math.nan), None, None),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_neighbours(value: pa.Scalar, before: object, after: object) -> None:
    lower, upper = find_predecessor(value), find_successor(value)
    assert (None if lower is None else lower.as_py()) == before
    assert (None if upper is None else upper.as_py()) == after
    for neighbour in (lower, upper):
        assert neighbour is None or neighbour.type == value.type


@pytest.mark.parametrize(
    "kind",
    [pa.date32(), pa.date64(), pa.time64("us"), pa.duration("s")]
    + [pa.timestamp(unit, zone) for unit in UNITS for zone in (None, PARIS)],
    ids=str,
)
def test_neighbours_of_moments_are_one_unit_away(kind: pa.DataType) -> None:
    value = from_ordinal(1000, kind)
    assert to_ordinal(find_successor(value)) == 1001
    assert to_ordinal(find_predecessor(value)) == 999
    assert find_successor(value).type == kind


def test_the_first_and_the_last_moment_have_one_neighbour() -> None:
    last = from_ordinal(2**63 - 1, pa.timestamp("us"))
    assert find_successor(last) is None
    assert to_ordinal(find_predecessor(last)) == 2**63 - 2
    first = from_ordinal(-(2**31), pa.date32())
    assert find_predecessor(first) is None
    assert to_ordinal(find_successor(first)) == -(2**31) + 1


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.float32(), pa.float16()], ids=str)
def test_texts_and_short_floats_have_no_neighbours_here(kind: pa.DataType) -> None:
    assert not is_discrete(kind)


@pytest.mark.parametrize(
    "kind",
    [*INTEGERS, pa.bool_(), pa.float64(), pa.decimal128(9, 2), pa.date32(), pa.timestamp("ns")],
    ids=str,
)
def test_discrete_types(kind: pa.DataType) -> None:
    assert is_discrete(kind)


# --- zones ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "has"),
    [
        (pa.timestamp("us"), True),
        (pa.date32(), True),
        (pa.int64(), True),
        (pa.timestamp("us", "UTC"), True),
        (pa.timestamp("us", "utc"), True),
        (pa.timestamp("us", "Etc/UTC"), True),
        (pa.timestamp("us", "+00:00"), True),
        (pa.timestamp("us", PARIS), False),
        (pa.timestamp("us", "Europe/London"), False),
        (pa.timestamp("us", "+01:00"), False),
    ],
    ids=str,
)
def test_only_utc_means_utc(kind: pa.DataType, has: bool) -> None:
    assert has_utc_calendar(kind) is has


# --- one form ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code", "nan"),
    [
        (pa.float64(), "d", "7ff8000000000000"),
        (pa.float32(), "f", "7fc00000"),
        (pa.float16(), "e", "7e00"),
    ],
    ids=str,
)
def test_floats_have_one_zero_and_one_nan(kind: pa.DataType, code: str, nan: str) -> None:
    values = pa.array([0.0, -0.0, math.nan, -math.nan, 1.5, -1.5, math.inf, None]).cast(kind)
    found = normalize_values(values)
    assert found.type == kind
    packed = [None if x is None else struct.pack(f">{code}", x).hex() for x in found.to_pylist()]
    zero = struct.pack(f">{code}", 0.0).hex()
    rest = [struct.pack(f">{code}", x).hex() for x in (1.5, -1.5, math.inf)]
    assert packed == [zero, zero, nan, nan, *rest, None]


def test_dictionaries_are_decoded_and_the_rest_left_alone() -> None:
    words = pa.array(["a", None, "b", "a"])
    assert normalize_values(words.dictionary_encode()) == words
    assert normalize_values(words) is words
    floats = pa.array([-0.0, None]).dictionary_encode()
    assert str(normalize_values(floats).to_pylist()) == "[0.0, None]"
