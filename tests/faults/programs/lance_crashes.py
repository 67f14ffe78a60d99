"""Deaths of a process just before or just after a call of Lance that writes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import lance
from lance import LanceDataset
from lance.dataset import MergeInsertBuilder
from lance.fragment import LanceFragment

from phalanx.storage.leaf import leaf, reconcile

PLACES: tuple[tuple[Any, str], ...] = (
    (lance, "write_dataset"),
    (leaf, "write_fragments"),
    (reconcile, "write_fragments"),
    (LanceDataset, "commit"),
    (LanceDataset, "deep_clone"),
    (LanceDataset, "drop"),
    (LanceDataset, "update_metadata"),
    (LanceDataset, "add_columns"),
    (LanceDataset, "alter_columns"),
    (LanceDataset, "drop_columns"),
    (MergeInsertBuilder, "execute"),
    (LanceFragment, "delete_rows"),
)


class Death(BaseException):
    """The simulated death of the process. No handler of `Exception` catches it."""


class CrashCounter:
    """Counts the moments at which the process can die, and kills it at one of them."""

    def __init__(self, moment: int, kill: bool) -> None:
        self.moment = moment
        self.kill = kill
        self.passed = 0
        self.dead = False
        self._lock = threading.Lock()

    def pass_moment(self) -> None:
        with self._lock:
            if self.passed == self.moment:
                if self.kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                self.dead = True
            self.passed += 1
            if self.dead:
                raise Death


@contextmanager
def crash_at(moment: int, kill: bool = False) -> Iterator[CrashCounter]:
    """Die at a moment, counted from 0. Each call of `PLACES` has one before and one after it."""
    crash = CrashCounter(moment, kill)

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            crash.pass_moment()
            result = function(*arguments, **named)
            crash.pass_moment()
            return result

        return call

    with ExitStack() as stack:
        for owner, name in PLACES:
            original = getattr(owner, name)
            replacement: Any = wrap(original)
            if isinstance(vars(owner).get(name), staticmethod):
                replacement = staticmethod(replacement)
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield crash
