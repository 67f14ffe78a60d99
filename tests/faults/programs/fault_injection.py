"""Writers that end at a named step: killed with SIGKILL, or by an error."""

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
from phalanx.storage.lance.fault_points import Observer, Step, observed
from processes import SERVER

_LONGEST = 60


@contextmanager
def counted() -> Iterator[Counter[Step]]:
    """How often each step is reached."""
    found: Counter[Step] = Counter()
    lock = threading.Lock()

    def observe(step: Step) -> None:
        with lock:
            found[step] += 1

    with observed(observe):
        yield found


@contextmanager
def failing_at(step: Step, time: int, error: BaseException) -> Iterator[None]:
    """Raise the error when the step is reached for that time, from 1."""

    def fail() -> NoReturn:
        raise error

    with observed(_ending_at(step, time, fail)):
        yield


def killed_at(step: Step, time: int, root: Path, name: str) -> bool:
    """Whether a process of its own that makes the change died there; else it came to its end."""
    process = SERVER.Process(target=_die, args=(step.name, time, str(root), name))
    process.start()
    process.join(_LONGEST)
    assert process.exitcode in (0, -signal.SIGKILL), (name, step, process.exitcode)
    return process.exitcode != 0


def _die(step: str, time: int, root: str, name: str) -> None:
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with observed(_ending_at(Step[step], time, kill)):
        (CHANGES | DRAFT_CHANGES)[name].run(phalanx.open(root))


def _ending_at(step: Step, time: int, end: Callable[[], None]) -> Observer:
    left = time
    lock = threading.Lock()

    def observe(reached: Step) -> None:
        nonlocal left
        with lock:
            left -= reached is step
            is_now = reached is step and not left
        if is_now:
            end()

    return observe
