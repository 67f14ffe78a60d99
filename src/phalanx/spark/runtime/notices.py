"""Notices to the user of a Spark session: logged by `phalanx.spark`, and shown on stderr."""

from __future__ import annotations

import logging
import sys

LOGGER = logging.getLogger("phalanx.spark")


class _StderrHandler(logging.Handler):
    """Writes where Spark writes its own messages, also if `sys.stderr` was replaced meanwhile."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        print(text if "\n" in text else f"phalanx: {text}", file=sys.stderr)


def notify(message: str) -> None:
    """Show a message on stderr and log it at level INFO.

    A higher level of the logger `phalanx.spark` silences it.
    """
    if not any(isinstance(handler, _StderrHandler) for handler in LOGGER.handlers):
        LOGGER.addHandler(_StderrHandler(logging.INFO))
        if LOGGER.level == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)
    LOGGER.info("%s", message)
