"""A process that runs the scripts it is given: a module that other processes can import."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

import phalanx


def rows(**columns: list[int]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.int32()) for name, values in columns.items()})


def serve(jobs: Connection) -> None:
    """Run scripts until the other end is closed, and send their output there."""

    def say(*answer: str) -> None:
        jobs.send(list(answer))

    def wait() -> None:
        say("ready")
        jobs.recv()

    def attempt(change: Callable[[], Any]) -> None:
        try:
            change()
        except phalanx.PhalanxError as error:
            say(type(error).__name__, str(error))
        else:
            say("won", "")

    with suppress(EOFError):
        while True:
            job = jobs.recv()
            names = {
                **{"json": json, "pa": pa, "phalanx": phalanx, **job},
                **{"rows": rows, "say": say, "wait": wait, "attempt": attempt},
                "table": functools.partial(
                    phalanx.open, job["root"], storage_options=job["options"]
                ),
            }
            try:
                exec(job["script"], names)
            except EOFError:
                raise
            except BaseException as error:
                say("broke", repr(error))
