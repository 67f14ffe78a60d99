"""Tasks of about equal bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.planning.splits import (
    FILE_OPEN_COST_BYTES,
    MAX_TASK_BYTES,
    MIN_TASK_BYTES,
    choose_task_bytes,
    fits_in_one_task,
    pack_in_tasks,
)


@given(st.lists(st.integers(0, 10_000_000), max_size=60), st.integers(1, 20_000_000))
def test_tasks_keep_the_order_and_the_limit_and_are_as_few_and_equal_as_can_be(
    sizes: list[int], most: int
) -> None:
    tasks = pack_in_tasks(list(enumerate(sizes)), lambda piece: piece[1], most)
    assert [piece for task in tasks for piece in task] == list(enumerate(sizes))
    filled = [sum(size + FILE_OPEN_COST_BYTES for _, size in task) for task in tasks]
    for task, bytes_of_task in zip(tasks, filled, strict=True):
        assert bytes_of_task <= most or len(task) == 1
    # Greedily filled tasks are the fewest that there can be.
    fewest, left = 0, 0
    for size in sizes:
        if size + FILE_OPEN_COST_BYTES > left:
            fewest, left = fewest + 1, most
        left -= size + FILE_OPEN_COST_BYTES
    assert len(tasks) == fewest
    assert fits_in_one_task(sizes, lambda size: size, most) == (len(tasks) == 1)


def test_the_last_task_is_no_remainder() -> None:
    tasks = pack_in_tasks([10 << 20] * 9, lambda size: size, 42 << 20)
    assert [len(task) for task in tasks] == [3, 3, 3]


def test_small_tables_have_few_tasks_and_large_ones_tasks_of_a_bounded_size() -> None:
    assert choose_task_bytes(1 << 20, None) == MIN_TASK_BYTES
    assert choose_task_bytes(1 << 50, None) == MAX_TASK_BYTES
    assert choose_task_bytes(1 << 50, 5) == 5
