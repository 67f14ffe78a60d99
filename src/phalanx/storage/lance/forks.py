"""Lance in a forked process: its threads stay in the parent, so that the child hangs or crashes."""

from __future__ import annotations

import os

from phalanx.errors import PhalanxError

_is_used = False
_is_cut_off = False


def use_lance() -> None:
    """Say that Lance is about to be used; refused where a fork has left its threads behind."""
    global _is_used
    check_fork()
    _is_used = True


def check_fork() -> None:
    """Refuse to go on in a process that was forked from one that had used Lance."""
    if _is_cut_off:
        raise PhalanxError(
            f"Cannot use Phalanx in the process {os.getpid()}: it was forked from one that had "
            "used Lance, whose threads do not come along. Start processes by spawn or forkserver, "
            "as multiprocessing.get_context('spawn') does, or fork before the first table is "
            "opened."
        )


def _after_fork() -> None:
    global _is_cut_off
    _is_cut_off = _is_cut_off or _is_used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
