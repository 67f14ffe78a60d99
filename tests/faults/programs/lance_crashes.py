"""A process that dies just before or just after any call of Lance that writes."""

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
    """The end of the process: nothing catches it, nothing runs after it."""


class Doom:
    """Counts the moments at which the process can die, and ends it at one of them."""

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
def dying_at(moment: int, kill: bool = False) -> Iterator[Doom]:
    """Die at the given moment, from 0; every call of `PLACES` has one before and one after it."""
    doom = Doom(moment, kill)

    def doomed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            doom.pass_moment()
            result = function(*arguments, **named)
            doom.pass_moment()
            return result

        return call

    with ExitStack() as stack:
        for owner, name in PLACES:
            original = getattr(owner, name)
            replacement: Any = doomed(original)
            if isinstance(vars(owner).get(name), staticmethod):
                replacement = staticmethod(replacement)
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield doom
