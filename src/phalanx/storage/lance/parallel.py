"""Work on many leaves at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# Lance waits for storage most of the time, and encodes outside the interpreter's lock.
THREADS = min(32, 4 + 2 * (os.cpu_count() or 1))
# Each writer holds some megabytes of every column.
WRITE_THREADS = min(16, 2 * (os.cpu_count() or 1))


def in_parallel(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int = THREADS
) -> list[Result]:
    """The function's results in the order of the items; the first failure stops the rest."""
    work = list(items)
    if len(work) <= 1:
        return [function(item) for item in work]
    with ThreadPoolExecutor(min(threads, len(work))) as pool:
        futures = [pool.submit(function, item) for item in work]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
    return [future.result() for future in futures if not future.cancelled()]


def outcomes(
    function: Callable[[Item], Result], items: Sequence[Item], threads: int = THREADS
) -> list[Result | Exception]:
    """What became of every item: its result, or the error that it ended with."""

    def settled(future: Future[Result]) -> Result | Exception:
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, Exception):
            return error
        raise error

    with ThreadPoolExecutor(max(1, min(threads, len(items)))) as pool:
        return [settled(future) for future in [pool.submit(function, item) for item in items]]
