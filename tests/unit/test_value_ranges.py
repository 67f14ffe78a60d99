"""Conditions on values with known ranges only."""

import pyarrow as pa
import pytest

from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.schema.schema import Schema
from phalanx.planning.pruning.value_ranges import ValueRange, can_match_ranges

SCHEMA = Schema.of(pa.schema([("s", pa.string()), ("n", pa.int32())]))


@pytest.mark.parametrize(
    ("sql", "low", "high", "expected"),
    [
        ("s LIKE 'ab%'", "aa", "ac", True),
        ("s LIKE 'ab%'", "ac", "ad", False),
        ("s NOT LIKE 'ab%'", "ab", "abz", False),
        ("s NOT LIKE 'ab%'", "ab", "ac", True),
        ("s NOT LIKE 'ab%'", "a", "ab", True),
        ("s NOT LIKE 'ab%c'", "ab", "abz", True),
        ("s NOT LIKE '%'", "a", "b", False),
        ("s NOT ILIKE 'ab%'", "ab", "abz", True),
        (r"s NOT LIKE 'a\%%'", "a%", "a%b", False),
        (r"s NOT LIKE 'a\%%'", "a%", "ab", True),
        ("s NOT LIKE 'ab%' OR n = 0", "ab", "abz", False),
    ],
)
def test_patterns(sql: str, low: str, high: str, expected: bool) -> None:
    ranges = {
        "s": ValueRange(low, high, has_null=True, has_nan=False),
        "n": ValueRange(None, None, has_null=True, has_nan=False),
    }
    assert can_match_ranges(bind_predicate(sql, SCHEMA), ranges) is expected
