"""Python workers of Spark: processes that run one task after another."""

from __future__ import annotations

import functools
import gc
import sys
import traceback
from typing import Any


@functools.cache
def settle() -> None:
    """Make the worker quick for its next tasks; called by each, it acts once in a process.

    Spark has a worker look for garbage after every task, among all objects there are. Those of
    the modules that are loaded by now are no garbage: left out, a task costs some 50 ms less.
    """
    gc.freeze()


@functools.cache
def end_quietly() -> None:
    """Have a worker that Spark no longer needs say nothing of it.

    Spark closes the socket of a worker that was idle for a minute. One by Unix sockets cannot
    answer to that, and would print its stack as if something had failed.
    """
    print_exc = traceback.print_exc

    @functools.wraps(print_exc)
    def print_unless_ended(*arguments: Any, **options: Any) -> None:
        if not _is_ending(sys.exc_info()[1]):
            print_exc(*arguments, **options)

    traceback.print_exc = print_unless_ended


def _is_ending(error: BaseException | None) -> bool:
    """Whether it is Spark's own loop over the tasks that has lost its socket."""
    if not isinstance(error, BrokenPipeError):
        return False
    *_, last = traceback.extract_tb(error.__traceback__)
    return last.filename.replace("\\", "/").endswith("pyspark/daemon.py")
