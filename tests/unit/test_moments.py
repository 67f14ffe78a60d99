"""Moments in predicates: what they mean, and in which type."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from phalanx.errors import InvalidPredicate
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import Compare
from phalanx.model.predicates.relative_times import parse_relative_time, resolve_relative_times
from phalanx.model.schema.schema import Schema

NOW = datetime(2024, 3, 31, 13, 30, 15, 250_000, tzinfo=UTC)
SCHEMA = Schema.of(
    pa.schema(
        [
            ("day", pa.date32()),
            ("at", pa.timestamp("s")),
            ("zoned", pa.timestamp("ns", "Europe/Paris")),
            ("n", pa.int64()),
            ("today's", pa.string()),
        ]
    )
)


@pytest.mark.parametrize(
    ("phrase", "meaning"),
    [
        ("now", "2024-03-31T13:30:15.250000"),
        ("TODAY", "2024-03-31T00:00:00"),
        ("now - 90 days", "2024-01-01T13:30:15.250000"),
        ("now-1day", "2024-03-30T13:30:15.250000"),
        ("today - 1 month", "2024-02-29T00:00:00"),
        ("today + 1 month", "2024-04-30T00:00:00"),
        ("today - 13 months", "2023-02-28T00:00:00"),
        ("today - 2 years", "2022-03-31T00:00:00"),
        ("today - 1 year - 2 weeks + 3 hours", "2023-03-17T03:00:00"),
        ("now - 30 minutes + 15 seconds", "2024-03-31T13:00:30.250000"),
    ],
)
def test_what_a_phrase_means(phrase: str, meaning: str) -> None:
    assert parse_relative_time(phrase, NOW) == datetime.fromisoformat(meaning).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("day >= now - 90 days", pa.scalar(datetime(2024, 1, 1).date(), pa.date32())),
        (
            "now - 1 hours <= at",
            pa.scalar(datetime(2024, 3, 31, 12, 30, 15), pa.timestamp("s")),
        ),
        (
            "zoned > today",
            pa.scalar(datetime(2024, 3, 31, tzinfo=UTC), pa.timestamp("ns", "Europe/Paris")),
        ),
    ],
)
def test_it_has_the_type_of_the_column(where: str, expected: pa.Scalar) -> None:
    found = bind_predicate(resolve_relative_times(where, SCHEMA, NOW), SCHEMA)
    assert isinstance(found, Compare)
    assert (found.value.type, found.value) == (expected.type, expected)


def test_only_moments_are_replaced() -> None:
    for where in ("n = 1", "\"today's\" = 'now - 1 day'", "at > now()"):
        assert resolve_relative_times(where, SCHEMA, NOW) == where
    other = Schema.of(pa.schema([("now", pa.int64())]))
    assert resolve_relative_times("now > 3", other, NOW) == "now > 3"
    both = resolve_relative_times(
        "day BETWEEN today - 7 days AND today OR day IN (now)", SCHEMA, NOW
    )
    assert bind_predicate(both, SCHEMA) == bind_predicate(
        "day BETWEEN '2024-03-24' AND '2024-03-31' OR day IN ('2024-03-31')", SCHEMA
    )


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("n > now", ("'now'", "int64", "expected a date or a timestamp")),
        ("now > today", ("compared with a column",)),
        ("now", ("compared with a column",)),
        ("day > now - 99999 years", ("out of the range of the calendar",)),
        ("nope > now", ("No column 'nope'",)),
        ("day > > now", ("Cannot use the predicate",)),
    ],
)
def test_what_cannot_be_meant_is_refused(where: str, words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidPredicate) as raised:
        resolve_relative_times(where, SCHEMA, NOW)
    assert all(word in str(raised.value) for word in (*words, where[:8])), raised.value
