"""Tasks of about equal bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.planning.splits import (
    FEWEST_BYTES,
    MOST_BYTES,
    OPENING_BYTES,
    fits_one,
    packed,
    split_size,
)


@given(st.lists(st.integers(0, 10_000_000), max_size=60), st.integers(1, 20_000_000))
def test_tasks_keep_the_order_and_the_limit_and_are_as_few_and_equal_as_can_be(
    sizes: list[int], most: int
) -> None:
    tasks = packed(list(enumerate(sizes)), lambda piece: piece[1], most)
    assert [piece for task in tasks for piece in task] == list(enumerate(sizes))
    filled = [sum(size + OPENING_BYTES for _, size in task) for task in tasks]
    for task, bytes_of_task in zip(tasks, filled, strict=True):
        assert bytes_of_task <= most or len(task) == 1
    # Greedily filled tasks are the fewest that there can be.
    fewest, left = 0, 0
    for size in sizes:
        if size + OPENING_BYTES > left:
            fewest, left = fewest + 1, most
        left -= size + OPENING_BYTES
    assert len(tasks) == fewest
    assert fits_one(sizes, lambda size: size, most) == (len(tasks) == 1)


def test_the_last_task_is_no_remainder() -> None:
    tasks = packed([10 << 20] * 9, lambda size: size, 42 << 20)
    assert [len(task) for task in tasks] == [3, 3, 3]


def test_small_tables_have_few_tasks_and_large_ones_tasks_of_a_bounded_size() -> None:
    assert split_size(1 << 20, None) == FEWEST_BYTES
    assert split_size(1 << 50, None) == MOST_BYTES
    assert split_size(1 << 50, 5) == 5
