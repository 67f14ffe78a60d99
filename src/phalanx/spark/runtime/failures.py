"""Translation of errors between Phalanx and Spark, into one line each."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from phalanx.errors import PhalanxError, hide_secrets
from phalanx.storage.lance.failures import translate_errors

SparkMethod = TypeVar("SparkMethod", bound=Callable[..., Any])

_OURS = re.compile(r"phalanx\.errors\.(?:\w+): (.+)")
_RAISED = re.compile(r"^\w[\w.]*(?:Error|Exception|Warning): .+$", re.MULTILINE)
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
# Spark Connect puts the class in parentheses.
_CLASS = re.compile(r"^(?:: )?(?:(?:[a-z][\w$]*\.)+\w+: |\((?:[a-z][\w$]*\.)+\w+\) )")


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Make Spark show errors of Phalanx without the Python stack."""
    try:
        with translate_errors("run a task of Spark"):
            yield
    except PhalanxError:
        # The worker process reads it when it reports the error; then it ends.
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def without_traceback(method: SparkMethod) -> SparkMethod:
    """Decorate a method that Spark calls in a worker process with `hide_traceback`."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        with hide_traceback():
            return method(*arguments, **options)

    return cast(SparkMethod, call)


@contextmanager
def translate_spark_errors(what: str) -> Iterator[None]:
    """Translate errors of Spark on the driver to `PhalanxError`, with the reason in one line."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise PhalanxError(f"Cannot {what}: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    """Return the reason of a Spark error in one line: the error of a task, else the root cause."""
    text = hide_secrets(str(error).strip()) or type(error).__name__
    if (ours := _OURS.search(text)) is not None:
        return ours[1].strip()
    if (raised := _RAISED.findall(text)) and "Traceback (most recent call last)" in text:
        return str(raised[-1]).strip()
    lines = [line for line in text.splitlines() if not line.startswith(("\t", "An error occurred"))]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    parts = dict.fromkeys(
        _CLASS.sub("", _STATE.sub("", each)) for each in [*lines[:1], *causes[-1:]]
    )
    return " ".join(parts)
