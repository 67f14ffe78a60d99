"""A process that upgrades a table in the Hive-style layout, killed at a step."""

from __future__ import annotations

import os
import signal
import threading

import phalanx
from phalanx.storage.lance.fault_points import FaultPoint, observe_fault_points
from processes import SERVER

_LONGEST = 60


def kill_upgrade_at(step: int, uri: str) -> bool:
    """Run the upgrade in a new process and kill it after `step` steps. Return whether it died."""
    process = SERVER.Process(target=_upgrade, args=(step, uri))
    process.start()
    process.join(_LONGEST)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode != 0


def _upgrade(last: int, uri: str) -> None:
    left = last
    lock = threading.Lock()

    def observe(_: FaultPoint) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    with observe_fault_points(observe):
        phalanx.open(uri).upgrade()
