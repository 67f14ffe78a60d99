"""Ends a writer at a named fault point: by SIGKILL, or by an error."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import phalanx
from faults.programs.strong_changes import CHANGES, DRAFT_CHANGES
from phalanx.storage.lance.fault_points import FaultPoint, Observer, observe_fault_points
from processes import SERVER

_LONGEST = 60


@contextmanager
def count_steps() -> Iterator[Counter[FaultPoint]]:
    """Count how often each step is reached."""
    found: Counter[FaultPoint] = Counter()
    lock = threading.Lock()

    def observe(step: FaultPoint) -> None:
        with lock:
            found[step] += 1

    with observe_fault_points(observe):
        yield found


@contextmanager
def fail_at(step: FaultPoint, time: int, error: BaseException) -> Iterator[None]:
    """Raise the error when the step is reached for the n-th time; `time` is n, from 1."""

    def fail() -> NoReturn:
        raise error

    with observe_fault_points(_end_at(step, time, fail)):
        yield


def kill_at(step: FaultPoint, time: int, root: Path, name: str) -> bool:
    """Run the change in a new process and kill it at the step. Return whether it died there."""
    process = SERVER.Process(target=_die, args=(step.name, time, str(root), name))
    process.start()
    process.join(_LONGEST)
    assert process.exitcode in (0, -signal.SIGKILL), (name, step, process.exitcode)
    return process.exitcode != 0


def _die(step: str, time: int, root: str, name: str) -> None:
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with observe_fault_points(_end_at(FaultPoint[step], time, kill)):
        (CHANGES | DRAFT_CHANGES)[name].run(phalanx.open(root))


def _end_at(step: FaultPoint, time: int, end: Callable[[], None]) -> Observer:
    left = time
    lock = threading.Lock()

    def observe(reached: FaultPoint) -> None:
        nonlocal left
        with lock:
            left -= reached is step
            is_now = reached is step and not left
        if is_now:
            end()

    return observe
