"""Commit conflicts: how to recognize Lance's errors, and how to retry."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lance.commit import CommitConflictError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

AttemptResult = TypeVar("AttemptResult")

_CONFLICT_MESSAGES = (
    "Too many concurrent writers",
    "Retryable commit conflict",
    "Incompatible transaction",
    "Commit conflict",
    "commit conflict",
)
_LOGGER = logging.getLogger("phalanx.storage")
_MAX_ATTEMPTS = 40
# The longest wait, in durations of one attempt. Longer waits starve the writer.
_MAX_WAIT = 12


def is_commit_conflict(error: BaseException) -> bool:
    """Whether another writer committed first, and nothing of ours was committed."""
    if isinstance(error, CommitConflictError):
        return True
    return isinstance(error, OSError) and any(sign in str(error) for sign in _CONFLICT_MESSAGES)


class UncertainCommit(OSError):
    """A commit that ended in an error and may have succeeded nevertheless."""


@contextmanager
def detect_uncertain_commit() -> Iterator[None]:
    """Raise errors of a commit as `UncertainCommit`, except commit conflicts."""
    try:
        yield
    except OSError as error:
        if is_commit_conflict(error):
            raise
        raise UncertainCommit(str(error)) from error


def retry_conflicts(
    attempt: Callable[[], AttemptResult], attempts: int = _MAX_ATTEMPTS, *, eager: bool = False
) -> AttemptResult:
    """Repeat an attempt, which must start from scratch, until it has no commit conflict.

    After a conflict it waits for a random time that grows with the number of lost attempts and with
    the duration of an attempt, so that it suits slow and fast stores. With `eager` it waits at most
    as long as one attempt took: for writers that must redo more after each concurrent commit.
    """
    started = 0.0

    def run_attempt() -> AttemptResult:
        nonlocal started
        started = time.monotonic()
        return attempt()

    def wait(state: RetryCallState) -> float:
        took = time.monotonic() - started
        longest = took if eager else took * min(2**state.attempt_number, _MAX_WAIT)
        seconds = random.uniform(0, longest)
        _LOGGER.debug(
            "Another writer committed before attempt %d; retrying in %.3f s",
            *(state.attempt_number, seconds),
        )
        return seconds

    retrying = Retrying(
        retry=retry_if_exception(is_commit_conflict),
        wait=wait,
        stop=stop_after_attempt(attempts),
        reraise=True,
    )
    return retrying(run_attempt)
