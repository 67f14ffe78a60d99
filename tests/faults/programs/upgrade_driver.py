"""A process that upgrades a table in the Hive-style layout, and is killed at a step."""

from __future__ import annotations

import os
import signal
import threading

import phalanx
from phalanx.storage.lance.fault_points import Step, observed
from processes import SERVER

_LONGEST = 60


def killed_at(step: int, uri: str) -> bool:
    """Whether a process of its own died after so many steps; else the upgrade came to its end."""
    process = SERVER.Process(target=_upgrade, args=(step, uri))
    process.start()
    process.join(_LONGEST)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode != 0


def _upgrade(last: int, uri: str) -> None:
    left = last
    lock = threading.Lock()

    def observe(_: Step) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    with observed(observe):
        phalanx.open(uri).upgrade()
