"""Rows with equal values, for any number of them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from phalanx.model.schema.grouping import find_positions

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [3, None, -7],
    pa.bool_(): [True, None],
    pa.string(): ["", None, "ä", "a"],
    pa.large_string(): ["", None, "ä"],
    pa.binary(): [b"", None, b"\xff"],
    pa.binary(2): [b"ab", None],
    pa.float16(): [1.5, None, math.nan],
    pa.float32(): [0.5, None, math.nan],
    pa.float64(): [0.5, None, math.nan, math.inf],
    pa.decimal128(9, 2): [Decimal("1.50"), None],
    pa.decimal256(50, 2): [Decimal("1.50"), None],
    pa.date32(): [date(2024, 1, 1), None],
    pa.date64(): [date(2024, 1, 1), None],
    pa.time32("s"): [time(1), None],
    pa.time64("us"): [time(1), None],
    pa.timestamp("us"): [datetime(2024, 1, 1), None],
    pa.timestamp("ns", "UTC"): [datetime(2024, 1, 1, tzinfo=UTC), None],
    pa.duration("ms"): [5, None],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
@pytest.mark.parametrize("extra", [0, 1000])
def test_rows_are_found_among_few_and_among_many(kind: pa.DataType, extra: int) -> None:
    """Many other values change the search method; the positions must be the same."""
    values = VALUES[kind]
    count = len(values)
    sought = pa.table({"i": pa.array([5] * count), "v": pa.array(values, kind)})
    others = pa.table(
        {"i": pa.array(range(1000, 1000 + extra), pa.int64()), "v": pa.nulls(extra, kind)}
    )
    among = pa.concat_tables([others, sought.slice(1), sought.slice(0, 1)])
    last = extra + count - 1
    assert find_positions(sought, among).tolist() == [last, *range(extra, last)]
    assert find_positions(sought, among.slice(0, last)).tolist() == [-1, *range(extra, last)]
    assert find_positions(sought.slice(0, 0), among).tolist() == []
