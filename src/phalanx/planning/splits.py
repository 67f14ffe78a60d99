"""Work for many tasks: pieces of known sizes, packed so that the tasks are about equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Piece = TypeVar("Piece")

MOST_BYTES = 128 << 20
# A task costs as much as reading some megabytes.
FEWEST_BYTES = 32 << 20
# So many tasks keep the executors of a small cluster busy to the end.
_TASKS = 16
# Opening a file takes as long as reading so many bytes.
OPENING_BYTES = 256 << 10


def split_size(total: int, wanted: int | None) -> int:
    """How many bytes make a task: as wanted, else so that there are enough, not too small ones."""
    return wanted or min(MOST_BYTES, max(FEWEST_BYTES, total // _TASKS))


def packed(
    pieces: Sequence[Piece], size: Callable[[Piece], int], most: int
) -> list[tuple[Piece, ...]]:
    """The pieces in their order, in tasks of at most so many bytes; a larger piece is alone.

    No more tasks than need be, and as equal as the order allows.
    """
    if not pieces:
        return []
    ends = np.cumsum([size(piece) + OPENING_BYTES for piece in pieces], dtype=np.int64)
    fewest = _cuts(ends, most)
    low, high = int(ends[-1]) // len(fewest), most
    while low < high:
        middle = (low + high) // 2
        if len(_cuts(ends, middle)) > len(fewest):
            low = middle + 1
        else:
            high = middle
    cuts = _cuts(ends, high)
    return [tuple(pieces[start:end]) for start, end in zip([0, *cuts], cuts, strict=False)]


def fits_one(pieces: Sequence[Piece], size: Callable[[Piece], int], most: int) -> bool:
    """Whether `packed` has one task for the pieces."""
    if len(pieces) <= 1:
        return len(pieces) == 1
    return sum(size(piece) + OPENING_BYTES for piece in pieces) <= most


def _cuts(ends: npt.NDArray[np.int64], most: int) -> list[int]:
    """Where each task ends, if it takes as many pieces as fit."""
    cuts: list[int] = []
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        fits = int(np.searchsorted(ends, before + most, side="right"))
        start = max(fits, start + 1)
        cuts.append(start)
    return cuts
