"""Detection of forked processes: Lance's threads stay in the parent, so the child would hang."""

from __future__ import annotations

import os

from phalanx.errors import PhalanxError

_is_lance_used = False
_is_forked_after_use = False


def mark_lance_used() -> None:
    """Record that this process uses Lance; refuse if a fork left its threads behind."""
    global _is_lance_used
    check_fork()
    _is_lance_used = True


def check_fork() -> None:
    """Refuse to continue in a process that was forked from one that had used Lance."""
    if _is_forked_after_use:
        raise PhalanxError(
            f"Cannot use Phalanx in the process {os.getpid()}: it was forked from one that had "
            "used Lance, and a fork does not copy Lance's threads. Start processes with spawn or "
            "forkserver, as multiprocessing.get_context('spawn') does, or fork before the first "
            "table is opened."
        )


def _after_fork() -> None:
    global _is_forked_after_use
    _is_forked_after_use = _is_forked_after_use or _is_lance_used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
