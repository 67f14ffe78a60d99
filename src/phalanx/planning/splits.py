"""Pack items of known sizes into tasks of about equal size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

_Item = TypeVar("_Item")

MAX_TASK_BYTES = 128 << 20
# Starting a task costs as much as reading some megabytes.
MIN_TASK_BYTES = 32 << 20
# Enough tasks to keep the executors of a small cluster busy to the end.
_TARGET_TASKS = 16
# Opening a file costs as much as reading this many bytes.
FILE_OPEN_COST_BYTES = 256 << 10


def choose_task_bytes(total: int, requested: int | None) -> int:
    """Return the bytes of a task: as requested, or enough tasks that are not too small."""
    return requested or min(MAX_TASK_BYTES, max(MIN_TASK_BYTES, total // _TARGET_TASKS))


def pack_in_tasks(
    items: Sequence[_Item], size: Callable[[_Item], int], max_bytes: int
) -> list[tuple[_Item, ...]]:
    """Pack items in order into tasks of at most `max_bytes`; a larger item is a task by itself.

    Use as few tasks as possible, and make them as equal as the order allows.
    """
    if not items:
        return []
    ends = np.cumsum([size(piece) + FILE_OPEN_COST_BYTES for piece in items], dtype=np.int64)
    fewest = _find_task_ends(ends, max_bytes)
    low, high = int(ends[-1]) // len(fewest), max_bytes
    while low < high:
        middle = (low + high) // 2
        if len(_find_task_ends(ends, middle)) > len(fewest):
            low = middle + 1
        else:
            high = middle
    cuts = _find_task_ends(ends, high)
    return [tuple(items[start:end]) for start, end in zip([0, *cuts], cuts, strict=False)]


def fits_in_one_task(items: Sequence[_Item], size: Callable[[_Item], int], max_bytes: int) -> bool:
    """Return whether `pack_in_tasks` returns one task for the items."""
    if len(items) <= 1:
        return len(items) == 1
    return sum(size(piece) + FILE_OPEN_COST_BYTES for piece in items) <= max_bytes


def _find_task_ends(ends: npt.NDArray[np.int64], max_bytes: int) -> list[int]:
    """Return the end of each task if every task takes as many items as fit."""
    cuts: list[int] = []
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        fits = int(np.searchsorted(ends, before + max_bytes, side="right"))
        start = max(fits, start + 1)
        cuts.append(start)
    return cuts
