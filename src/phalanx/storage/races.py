"""Lost races: how Lance tells of them, and how to try again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lance.commit import CommitConflictError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

Result = TypeVar("Result")

_SIGNS = (
    "Too many concurrent writers",
    "Retryable commit conflict",
    "Incompatible transaction",
    "Commit conflict",
    "commit conflict",
)
_MOST_ATTEMPTS = 40


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


def until_won(attempt: Callable[[], Result], attempts: int = _MOST_ATTEMPTS) -> Result:
    """The result of the first attempt that loses no race; every attempt must start afresh."""
    retrying = Retrying(
        retry=retry_if_exception(is_lost_race),
        wait=wait_random_exponential(multiplier=0.01, max=1),
        stop=stop_after_attempt(attempts),
        reraise=True,
    )
    return retrying(attempt)
