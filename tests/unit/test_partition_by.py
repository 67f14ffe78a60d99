"""What users write to partition a table, as text and as calls."""

import pickle
import re
from typing import Any

import pyarrow as pa
import pytest

import phalanx
from phalanx.errors import InvalidSpec
from phalanx.model.specs.partition_by import (
    CustomExpression,
    PartitionTerm,
    bucket,
    day,
    expression,
    hour,
    identity,
    month,
    multi_bucket,
    parse_partition_by,
    truncate,
    year,
)
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.calendar_parts import Day, Hour, Month, Year
from phalanx.model.transforms.transform import IDENTITY
from phalanx.model.transforms.truncate import Truncate

# --- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("country", [identity("country")]),
        ("identity(country)", [identity("country")]),
        ("year(ts)", [year("ts")]),
        ("month(ts)", [month("ts")]),
        ("day(ts)", [day("ts")]),
        ("hour(ts)", [hour("ts")]),
        ("bucket(16, id)", [bucket("id", 16)]),
        ("bucket(id, 16)", [bucket("id", 16)]),
        ("truncate(4, name)", [truncate("name", 4)]),
        ("truncate(name, 4)", [truncate("name", 4)]),
        ("multi_bucket(a, b, 8)", [multi_bucket(["a", "b"], 8)]),
        ("multi_bucket(8, a, b)", [multi_bucket(["a", "b"], 8)]),
        ("multi_bucket(a, 8, b)", [multi_bucket(["a", "b"], 8)]),
        ("multi_bucket(a, 8)", [multi_bucket(["a"], 8)]),
        ("multi_bucket(b, a, b, 8)", [multi_bucket(["b", "a", "b"], 8)]),
        (
            "year(ts), bucket(16, id), truncate(4, name), country",
            [year("ts"), bucket("id", 16), truncate("name", 4), identity("country")],
        ),
        ("", []),
        (" \n ", []),
    ],
)
def test_every_form_of_the_text(text: str, terms: list[PartitionTerm]) -> None:
    assert parse_partition_by(text) == tuple(terms)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("  year ( ts ) ,country  ", [year("ts"), identity("country")]),
        ("year(ts),country", [year("ts"), identity("country")]),
        ("year(\n  ts\n),\n\tcountry", [year("ts"), identity("country")]),
        ("YEAR(Ts), Bucket(ID, 16)", [year("Ts"), bucket("ID", 16)]),
        ("bucket(007, id)", [bucket("id", 7)]),
    ],
)
def test_space_and_the_case_of_transforms_do_not_matter(
    text: str, terms: list[PartitionTerm]
) -> None:
    assert parse_partition_by(text) == tuple(terms)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("country AS land", identity("country", field_id="land")),
        ("country as land", identity("country", field_id="land")),
        ("year(ts) AS event_year", year("ts", field_id="event_year")),
        ("bucket(16, id) AS key", bucket("id", 16, field_id="key")),
        ("multi_bucket(a, b, 8) AS key", multi_bucket(["a", "b"], 8, field_id="key")),
        ('country AS "two words"', identity("country", field_id="two words")),
        ("country AS `two words`", identity("country", field_id="two words")),
        ("as AS as", identity("as", field_id="as")),
        ("as", identity("as")),
        ("country AS year", identity("country", field_id="year")),
    ],
)
def test_as_gives_the_field_id(text: str, term: PartitionTerm) -> None:
    assert parse_partition_by(text) == (term,)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ('"two words"', "two words"),
        ("`two words`", "two words"),
        ('"a""b"', 'a"b'),
        ("`a``b`", "a`b"),
        ('"a`b"', "a`b"),
        ('`a"b`', 'a"b'),
        ('"year(ts)"', "year(ts)"),
        ('"a, b"', "a, b"),
        ('"16"', "16"),
        ("at.city", "at.city"),
        ("at.deep.city", "at.deep.city"),
        ('"at.city"', "at.city"),
        ("Ländercode", "Ländercode"),
        ("日付", "日付"),
        ("_x1", "_x1"),
        ("year", "year"),
        ("bucket", "bucket"),
    ],
)
def test_columns_of_any_name(text: str, column: str) -> None:
    assert parse_partition_by(text) == (identity(column),)
    assert parse_partition_by(f"bucket({text}, 4)") == (bucket(column, 4),)
    assert parse_partition_by(f"a, year({text}) AS y, b") == (
        identity("a"),
        year(column, field_id="y"),
        identity("b"),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (",", "expected a column or a transform"),
        ("a,", "expected a column or a transform"),
        (",a", "expected a column or a transform"),
        ("a,,b", "expected a column or a transform"),
        ("16", "expected a column or a transform"),
        ("(a)", "expected a column or a transform"),
        ("a b", "expected a comma between fields"),
        ("year(ts) month(ts)", "expected a comma between fields"),
        ("a AS", "expected a comma between fields"),
        ("a AS 5", "expected a comma between fields"),
        ("a AS b c", "expected a comma between fields"),
        ("a)", "expected a comma between fields"),
        ("year()", "expected a column or a number"),
        ("year(", "expected a column or a number"),
        ("bucket(16,)", "expected a column or a number"),
        ("year((ts))", "expected a column or a number"),
        ("year(ts", "expected a comma or a closing parenthesis"),
        ("bucket(16 id)", "expected a comma or a closing parenthesis"),
        ("year(ts, ts)", "year cannot take 2 such arguments"),
        ("year(16)", "year needs a column"),
        ("year(16, ts)", "year cannot take 2 such arguments"),
        ("identity(a, 4)", "identity cannot take 2 such arguments"),
        ("bucket(id)", "bucket needs a number of buckets beside id"),
        ("bucket(16)", "bucket needs a column"),
        ("bucket(16, 8)", "bucket needs a column"),
        ("bucket(a, b, 16)", "bucket cannot take 3 such arguments"),
        ("truncate(name)", "truncate needs a width beside name"),
        ("multi_bucket(a, b)", "multi_bucket needs a number of buckets beside a, b"),
        ("multi_bucket(8)", "multi_bucket needs a column"),
        ("multi_bucket(a, 8, 8)", "multi_bucket cannot take 3 such arguments"),
        ("week(ts)", "unknown transform 'week'; expected one of identity, year"),
        ("expression(a)", "unknown transform 'expression'"),
        ("a.year(ts)", "unknown transform 'a.year'"),
        ("bucket(-1, id)", "unexpected '-1, id)'"),
        ("bucket(1.5, id)", "unexpected '.5, id)'"),
        ("bucket(id, '16')", "unexpected \"'16')\""),
        (f"bucket({'9' * 5000}, id)", "the number 99999999999999999999… is too large"),
        ("a; DROP TABLE t", "unexpected '; DROP TABLE t'"),
        ('"a', "unexpected '\"a'"),
        ('""', "unexpected '\"\"'"),
        ("`a", "unexpected '`a'"),
        ("a.", "unexpected '.'"),
        ("a+b", "unexpected '+b'"),
    ],
)
def test_unreadable_text_is_refused_with_an_example(text: str, why: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_partition_by(text)
    message = str(refused.value)
    assert repr(text)[:200] in message
    assert why in message
    assert "bucket(16, id)" in message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("bucket(0, id)", "num_buckets 0 in bucket"),
        ("multi_bucket(a, b, 0)", "num_buckets 0 in multi_bucket"),
        ("truncate(0, name)", "width 0 in truncate"),
        ("bucket(2147483648, id)", "num_buckets 2147483648"),
    ],
)
def test_parameters_out_of_range_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidSpec, match=why):
        parse_partition_by(text)


# --- calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "derivation", "columns"),
    [
        (identity("a"), IDENTITY, ("a",)),
        (year("a"), Year(), ("a",)),
        (month("a"), Month(), ("a",)),
        (day("a"), Day(), ("a",)),
        (hour("a"), Hour(), ("a",)),
        (bucket("a", 16), Bucket(16), ("a",)),
        (multi_bucket(["a", "b"], 8), MultiBucket(8), ("a", "b")),
        (truncate("a", 4), Truncate(4), ("a",)),
        (
            expression("upper(col0)", ["a"], pa.string()),
            CustomExpression("upper(col0)", pa.string()),
            ("a",),
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_calls_say_what_to_derive_from_which_columns(
    term: PartitionTerm, derivation: Any, columns: tuple[str, ...]
) -> None:
    assert term.derivation == derivation
    assert term.columns == columns
    assert term.field_id is None
    assert pickle.loads(pickle.dumps(term)) == term


@pytest.mark.parametrize(
    "term",
    [
        identity("a", field_id="x"),
        year("a", field_id="x"),
        month("a", field_id="x"),
        day("a", field_id="x"),
        hour("a", field_id="x"),
        bucket("a", 16, field_id="x"),
        multi_bucket(["a", "b"], 8, field_id="x"),
        truncate("a", 4, field_id="x"),
        expression("upper(col0)", ["a"], pa.string(), field_id="x"),
    ],
    ids=lambda term: type(term.derivation).__name__,
)
def test_every_call_takes_a_field_id(term: PartitionTerm) -> None:
    assert term.field_id == "x"


def test_the_version_is_public() -> None:
    assert re.match(r"\d+[.+]", phalanx.__version__)


def test_the_calls_are_public() -> None:
    for call in (identity, year, month, day, hour, bucket, multi_bucket, truncate, expression):
        assert getattr(phalanx, call.__name__) is call


def test_a_list_mixes_names_and_calls() -> None:
    listed = ["country", bucket("id", 16), year("ts", field_id="y")]
    assert parse_partition_by(listed) == (
        identity("country"),
        bucket("id", 16),
        year("ts", field_id="y"),
    )
    assert parse_partition_by(tuple(listed)) == parse_partition_by(listed)


def test_text_in_a_list_is_a_column_and_nothing_else() -> None:
    assert parse_partition_by(["year(ts)", "a, b"]) == (identity("year(ts)"), identity("a, b"))


@pytest.mark.parametrize("item", [None, 5, ("a", 16), IDENTITY, b"a"], ids=repr)
def test_a_list_of_anything_else_is_refused(item: Any) -> None:
    with pytest.raises(InvalidSpec, match="expected a column name or one of identity, year") as no:
        parse_partition_by([item])
    assert repr(item) in str(no.value)


@pytest.mark.parametrize("value", [None, 5, IDENTITY], ids=repr)
def test_what_is_neither_list_nor_text_is_refused(value: Any) -> None:
    with pytest.raises(InvalidSpec, match="expected a list or text"):
        parse_partition_by(value)


@pytest.mark.parametrize("count", [0, -1, 2**31, True, 1.5, "16", None], ids=repr)
def test_calls_refuse_parameters_that_are_no_positive_number(count: Any) -> None:
    for make in (
        lambda: bucket("a", count),
        lambda: multi_bucket(["a"], count),
        lambda: truncate("a", count),
    ):
        with pytest.raises(InvalidSpec, match="expected a whole number from 1 to 2147483647"):
            make()
