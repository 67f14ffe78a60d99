"""Spark on this machine, for commands that need it or may use it."""

from __future__ import annotations

from typing import Any

from phalanx.cli.console.messages import working
from phalanx.errors import PhalanxError


def local_spark(command: str) -> Any:
    """A session for the command; says how to install Spark where there is none."""
    try:
        from phalanx.spark import local_session
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise PhalanxError(
            f"Cannot {command} without Spark, which is not installed. Install it: "
            "pip install 'phalanx-lance[spark]'"
        ) from None
    with working("starting Spark"):
        return local_session(f"phalanx {command}")
