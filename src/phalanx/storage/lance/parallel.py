"""Work on many leaves in parallel threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Lance mostly waits for storage, and encodes without holding the GIL.
THREADS = min(32, 4 + 2 * (os.cpu_count() or 1))
# Each writer buffers some megabytes of every column.
WRITE_THREADS = min(16, 2 * (os.cpu_count() or 1))


def map_parallel(
    function: Callable[[_Item], _Result], items: Iterable[_Item], threads: int = THREADS
) -> list[_Result]:
    """Apply a function to the items, in order of the items; the first failure stops the rest."""
    work = list(items)
    if len(work) <= 1:
        return [function(item) for item in work]
    with ThreadPoolExecutor(min(threads, len(work))) as pool:
        futures = [pool.submit(function, item) for item in work]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
    return [future.result() for future in futures if not future.cancelled()]


def collect_outcomes(
    function: Callable[[_Item], _Result], items: Sequence[_Item], threads: int = THREADS
) -> list[_Result | Exception]:
    """Apply a function to the items and return each item's result or error."""

    def outcome_of(future: Future[_Result]) -> _Result | Exception:
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, Exception):
            return error
        raise error

    with ThreadPoolExecutor(max(1, min(threads, len(items)))) as pool:
        return [outcome_of(future) for future in [pool.submit(function, item) for item in items]]
