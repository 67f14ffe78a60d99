"""Settings that the worker processes of Spark receive once."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import traceback
from phalanx.spark.runtime.workers import silence_worker_exit

silence_worker_exit()
silence_worker_exit()

def fails(filename, error):
    scope = {"error": error}
    code = compile("def worker():\\n    raise error", filename, "exec")
    exec(code, scope)
    try:
        scope["worker"]()
    except BaseException:
        traceback.print_exc()

fails("x.zip/pyspark/daemon.py", BrokenPipeError("idle"))
fails("x.zip/pyspark/daemon.py", ValueError("wrong"))
fails("users.py", BrokenPipeError("theirs"))
"""


def test_a_worker_that_ends_for_being_idle_prints_no_stack() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    told = [line for line in done.stderr.splitlines() if not line.startswith((" ", "Traceback"))]
    assert told == ["ValueError: wrong", "BrokenPipeError: theirs"]
