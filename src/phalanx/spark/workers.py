"""Python workers of Spark: processes that run one task after another."""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle() -> None:
    """Make the worker quick for its next tasks; called by each, it acts once in a process.

    Spark has a worker look for garbage after every task, among all objects there are. Those of
    the modules that are loaded by now are no garbage: left out, a task costs some 50 ms less.
    """
    gc.freeze()
