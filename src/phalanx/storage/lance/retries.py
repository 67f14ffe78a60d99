"""Lost races: how Lance tells of them, and how to try again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lance.commit import CommitConflictError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

Result = TypeVar("Result")

_SIGNS = (
    "Too many concurrent writers",
    "Retryable commit conflict",
    "Incompatible transaction",
    "Commit conflict",
    "commit conflict",
)
_MOST_ATTEMPTS = 40
# In attempts: who waits longer than the others take to commit never gets a turn.
_LONGEST_WAIT = 12


def is_lost_race(error: BaseException) -> bool:
    """Whether someone else committed first, and nothing of ours was."""
    if isinstance(error, CommitConflictError):
        return True
    return isinstance(error, OSError) and any(sign in str(error) for sign in _SIGNS)


class Unsettled(OSError):
    """A commit that ended in an error, and may stand nevertheless."""


@contextmanager
def settling() -> Iterator[None]:
    """Errors of a commit in here are lost races, or leave it open whether it stands."""
    try:
        yield
    except OSError as error:
        if is_lost_race(error):
            raise
        raise Unsettled(str(error)) from error


def until_won(
    attempt: Callable[[], Result], attempts: int = _MOST_ATTEMPTS, *, eager: bool = False
) -> Result:
    """The result of the first attempt that loses no race; every attempt must start afresh.

    After a lost race it waits for a random time, of as many attempts as were lost, more or less:
    that is long on a slow store and short on a fast one, and nobody waits until others are done.
    Who is `eager` waits only as long as an attempt took: for whom others' commits are more work.
    """
    started = 0.0

    def timed() -> Result:
        nonlocal started
        started = time.monotonic()
        return attempt()

    def wait(state: RetryCallState) -> float:
        took = time.monotonic() - started
        if eager:
            return random.uniform(0, took)
        return random.uniform(0, took * min(2**state.attempt_number, _LONGEST_WAIT))

    retrying = Retrying(
        retry=retry_if_exception(is_lost_race),
        wait=wait,
        stop=stop_after_attempt(attempts),
        reraise=True,
    )
    return retrying(timed)
