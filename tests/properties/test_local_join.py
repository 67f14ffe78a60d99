"""The local join against brute force: all kinds, any memory, keys with NULL, NaN and two zeros."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.planning.joins.keys import to_comparable
from phalanx.storage.streams.hash_join import KEY_PREFIX, JoinInput, hash_join, hash_join_schema
from properties.join_oracle import brute_force, count_rows, same
from tables import SOAK

KINDS = ("inner", "left", "right", "full", "semi", "anti", "right_anti")
FLOATS = st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5, None, math.inf])
TEXTS = st.sampled_from(["a", "b", "", None])
SIDES = st.lists(st.tuples(FLOATS, TEXTS), max_size=25)


def rows_of(values: list[tuple[float | None, str | None]], sizes: list[int]) -> JoinInput:
    """Rows with a float, a text, a vector and a number, in batches of the given sizes."""
    schema = pa.schema(
        [
            ("f", pa.float64()),
            ("t", pa.string()),
            ("v", pa.list_(pa.int32())),
            ("n", pa.int64()),
            (f"{KEY_PREFIX}0", pa.float64()),
            (f"{KEY_PREFIX}1", pa.string()),
        ]
    )
    floats = pa.array([value for value, _ in values], pa.float64())
    texts = pa.array([value for _, value in values], pa.string())
    numbers = pa.array(range(len(values)), pa.int64())
    vectors = pa.array(
        [[n, n] if n % 3 else None for n in range(len(values))], schema.field(2).type
    )
    whole = pa.RecordBatch.from_arrays(
        [floats, texts, vectors, numbers, to_comparable(floats, pa.float64()), texts], schema=schema
    )

    def read() -> Iterator[pa.RecordBatch]:
        start = 0
        for size in sizes:
            if start < whole.num_rows:
                yield whole.slice(start, size)
            start += size
        if start < whole.num_rows:
            yield whole.slice(start)

    return JoinInput(schema, read, whole.nbytes)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=500 if SOAK else 80)
@given(
    left=SIDES,
    right=SIDES,
    sizes=st.lists(st.integers(1, 9), max_size=4),
    memory=st.sampled_from([1, 400, 1 << 20]),
)
def test_a_local_join_is_what_brute_force_finds(
    kind: str,
    left: list[tuple[float | None, str | None]],
    right: list[tuple[float | None, str | None]],
    sizes: list[int],
    memory: int,
) -> None:
    mine, theirs = rows_of(left, sizes), rows_of(right, sizes[::-1])
    found = list(hash_join(kind, mine, theirs, memory))
    schema = hash_join_schema(mine, theirs, kind)
    assert all(batch.schema == schema for batch in found)

    def plain(side: JoinInput) -> list[tuple[object, ...]]:
        batches = [batch.select(side.columns) for batch in side.read()]
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    expected = brute_force(
        kind,
        plain(mine),
        plain(theirs),
        lambda one, other: same(one[0], other[0]) and same(one[1], other[1]),
        (4, 4),
    )
    assert (
        count_rows([tuple(row.values()) for batch in found for row in batch.to_pylist()])
        == expected
    )


@pytest.mark.parametrize(("kind", "rows"), [("semi", 60_000), ("anti", 0), ("right_anti", 0)])
@pytest.mark.parametrize("memory", [1 << 18, 1 << 30])
def test_a_key_that_all_rows_share_is_no_square(kind: str, rows: int, memory: int) -> None:
    mine, theirs = (rows_of([(1.5, "a")] * count, [5_000] * 10) for count in (60_000, 80_000))
    assert sum(batch.num_rows for batch in hash_join(kind, mine, theirs, memory)) == rows
