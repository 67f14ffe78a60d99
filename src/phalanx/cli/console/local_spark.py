"""Start Spark on this machine, for commands that need it or can use it."""

from __future__ import annotations

from typing import Any

from phalanx.cli.console.messages import show_spinner
from phalanx.errors import PhalanxError


def start_local_spark(command: str) -> Any:
    """Return a Spark session for the command; raise if Spark is not installed."""
    try:
        from phalanx.spark import local_session
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise PhalanxError(
            f"Cannot {command} without Spark, which is not installed. Install it: "
            "pip install 'phalanx-lance[spark]'"
        ) from None
    with show_spinner("starting Spark"):
        return local_session(f"phalanx {command}")
