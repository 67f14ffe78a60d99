"""Work for many tasks: pieces of known sizes, packed so that the tasks are about equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Piece = TypeVar("Piece")

MOST_BYTES = 128 << 20
# A task costs as much as reading some megabytes.
FEWEST_BYTES = 24 << 20
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
    """The pieces in their order, in tasks of at most so many bytes; a larger piece is alone."""
    tasks: list[tuple[Piece, ...]] = []
    waiting: list[Piece] = []
    filled = 0
    for piece in pieces:
        needed = size(piece) + OPENING_BYTES
        if waiting and filled + needed > most:
            tasks.append(tuple(waiting))
            waiting, filled = [], 0
        waiting.append(piece)
        filled += needed
    if waiting:
        tasks.append(tuple(waiting))
    return tasks
