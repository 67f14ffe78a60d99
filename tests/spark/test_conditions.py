"""Conditions of Spark as predicates, without Spark: exact where declared, never too narrow."""

from __future__ import annotations

import math
import operator
import struct
from typing import Any

import pyarrow as pa
import pytest

from phalanx.model.predicates.evaluation import match_rows
from phalanx.model.predicates.predicate import FALSE, TRUE
from phalanx.model.predicates.rendering import summarize
from phalanx.model.schema.schema import Schema
from phalanx.spark.pushdown.conditions import Translator

NAN = math.nan
NEGATIVE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
SCHEMA = Schema.of(
    pa.schema(
        [
            ("i", pa.int32()),
            ("u", pa.uint64()),
            ("s", pa.string()),
            ("f", pa.float64()),
            ("d", pa.date32()),
            ("ns", pa.timestamp("ns")),
            ("ms", pa.timestamp("ms")),
            ("ts", pa.timestamp("us", "UTC")),
            ("t", pa.time64("us")),
            ("place", pa.struct([("city", pa.string())])),
        ]
    )
)
SIGNS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def column(*path: str) -> dict[str, Any]:
    return {"column": list(path)}


def value(text: str | None, kind: str) -> dict[str, Any]:
    return {"value": text, "type": kind}


def call(name: str, *args: Any, **more: str) -> dict[str, Any]:
    return {"call": name, "args": list(args), **more}


def rows_of(name: str, values: pa.Array) -> pa.RecordBatch:
    """A batch of the schema in which only one column has values."""
    columns = [
        values if each.name == name else pa.nulls(len(values), each.type) for each in SCHEMA.arrow
    ]
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.arrow.names)


def find_kept_rows(tree: dict[str, Any], rows: pa.RecordBatch, zone: str = "UTC") -> list[int]:
    found = Translator(SCHEMA, zone).where_true(tree)
    mask = match_rows(found.on_rows, rows)
    return [place for place, keep in enumerate(mask.to_pylist()) if keep]


FLOATS = [0.0, -0.0, 1.5, -1.5, NAN, NEGATIVE_NAN, math.inf, -math.inf, 1e300, None]


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("constant", ["0.0", "-0.0", "1.5", "NaN", "Infinity", "-Infinity"])
def test_floats_are_compared_as_spark_does(sign: str, constant: str) -> None:
    def key(number: float) -> tuple[bool, float]:
        return (True, 0.0) if math.isnan(number) else (False, number + 0.0)

    rows = rows_of("f", pa.array(FLOATS, pa.float64()))
    limit = key(float(constant))
    expected = [
        place
        for place, number in enumerate(FLOATS)
        if number is not None and SIGNS[sign](key(number), limit)
    ]
    assert find_kept_rows(call(sign, column("f"), value(constant, "double")), rows) == expected
    # NOT keeps the rest, without NULL.
    negated = call("NOT", call(sign, value(constant, "double"), column("f")))
    mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(sign, sign)
    wanted = [
        place
        for place, number in enumerate(FLOATS)
        if number is not None and not SIGNS[mirrored](key(number), limit)
    ]
    assert find_kept_rows(negated, rows) == wanted


@pytest.mark.parametrize("sign", SIGNS)
def test_nanoseconds_are_the_microsecond_that_spark_sees(sign: str) -> None:
    numbers = [-1001, -1000, -999, -1, 0, 1, 999, 1000, 1001, 1999, 2000, None]
    rows = rows_of("ns", pa.array(numbers, pa.int64()).cast(pa.timestamp("ns")))
    for limit in (-1, 0, 1):
        expected = [
            place
            for place, number in enumerate(numbers)
            if number is not None and SIGNS[sign](number // 1000, limit)
        ]
        assert (
            find_kept_rows(call(sign, column("ns"), value(str(limit), "timestamp_ntz")), rows)
            == expected
        )


@pytest.mark.parametrize(
    ("tree", "shown", "exact"),
    [
        (call("=", column("i"), value("7", "integer")), "i = 7", True),
        (call("=", column("i"), value(None, "integer")), "false", True),
        (call("<=>", column("i"), value(None, "integer")), "i IS NULL", True),
        (
            call("NOT", call("<=>", column("i"), value("7", "integer"))),
            "i <> 7 OR i IS NULL",
            True,
        ),
        (call("IN", column("s"), value("a", "string"), value(None, "string")), "s = 'a'", True),
        (
            call("NOT", call("IN", column("s"), value("a", "string"), value(None, "string"))),
            "false",
            True,
        ),
        (call("STARTS_WITH", column("s"), value("a%_\\", "string")), "s LIKE 'a\\%\\_\\\\%'", True),
        (call("=", column("u"), value("300", "decimal(20,0)")), "u = 300", True),
        (call(">", column("u"), value("-1", "decimal(20,0)")), "u IS NOT NULL", True),
        (call("=", column("ms"), value("1", "timestamp_ntz")), "false", True),
        (call("<", column("ms"), value("1", "timestamp_ntz")), "ms <= '1970-01-01T00:00:00'", True),
        (
            call("=", call("EXTRACT", column("d"), field="YEAR"), value("2024", "integer")),
            "d >= '2024-01-01' AND d < '2025-01-01'",
            True,
        ),
        (
            call("=", call("EXTRACT", column("d"), field="MONTH"), value("2", "integer")),
            "date_part('month', \"d\") = 2",
            False,
        ),
        (
            call("OR", call("=", column("i"), value("7", "integer")), call("UNKNOWN")),
            "true",
            False,
        ),
        (
            call("AND", call("=", column("i"), value("7", "integer")), call("UNKNOWN")),
            "i = 7",
            False,
        ),
        (
            call("NOT", call("AND", call("UNKNOWN"), call("IS_NULL", column("i")))),
            "true",
            False,
        ),
        (call("=", column("i"), column("u")), "true", False),
        (call("IS_NULL", column("place")), "true", False),
        (call("IS_NOT_NULL", column("place", "city")), "place.city IS NOT NULL", True),
        (call("=", column("t"), value("1", "time(6)")), "true", False),
        (call("=", column("s"), value("a", "string collate UTF8_LCASE")), "true", False),
        (
            call("=", call("SUBSTRING", column("s"), value("1", "integer")), value("a", "string")),
            "s LIKE 'a%'",
            False,
        ),
    ],
)
def test_what_is_taken_over(tree: dict[str, Any], shown: str, exact: bool) -> None:
    found = Translator(SCHEMA, "America/New_York").where_true(tree)
    assert (summarize(found.predicate), found.exact) == (shown, exact)


def test_parts_of_dates_are_for_partitions_only() -> None:
    part = call("=", call("EXTRACT", column("d"), field="MONTH"), value("2", "integer"))
    found = Translator(SCHEMA, "UTC").where_true(
        call("AND", part, call("IS_NOT_NULL", column("d")))
    )
    assert summarize(found.on_rows) == "d IS NOT NULL"
    assert Translator(SCHEMA, "UTC").where_true(call("ALWAYS_FALSE")).predicate == FALSE
    assert Translator(SCHEMA, "UTC").where_true(call("ALWAYS_TRUE")).predicate == TRUE


def test_years_in_a_zone_have_a_day_more_at_both_ends() -> None:
    tree = call("=", call("EXTRACT", column("ts"), field="YEAR"), value("2024", "integer"))
    found = Translator(SCHEMA, "America/New_York").where_true(tree)
    assert summarize(found.predicate) == (
        "ts >= '2023-12-31T00:00:00Z' AND ts < '2025-01-02T00:00:00Z'"
    )
    assert not found.exact
    assert Translator(SCHEMA, "UTC").where_true(tree).exact
    day = call("CAST", column("ts"), type="date")
    spelt = call("=", call("EXTRACT", day, field="YEAR"), value("2024", "integer"))
    assert Translator(SCHEMA, "America/New_York").where_true(spelt) == found
    years = [value(text, "integer") for text in ("2023", "2024")]
    several = call("IN", call("EXTRACT", column("d"), field="YEAR"), *years)
    assert summarize(Translator(SCHEMA, "UTC").where_true(several).predicate) == (
        "(d >= '2023-01-01' AND d < '2024-01-01') OR (d >= '2024-01-01' AND d < '2025-01-01')"
    )
