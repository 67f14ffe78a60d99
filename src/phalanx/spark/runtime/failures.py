"""Errors on their way to Spark: one line that says what is wrong."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from phalanx.errors import PhalanxError, without_secrets
from phalanx.storage.lance.failures import told

Method = TypeVar("Method", bound=Callable[..., Any])

_OURS = re.compile(r"phalanx\.errors\.(?:\w+): (.+)")
_RAISED = re.compile(r"^\w[\w.]*(?:Error|Exception|Warning): .+$", re.MULTILINE)
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
# Connect has the class in parentheses.
_CLASS = re.compile(r"^(?:: )?(?:(?:[a-z][\w$]*\.)+\w+: |\((?:[a-z][\w$]*\.)+\w+\) )")


@contextmanager
def in_one_line() -> Iterator[None]:
    """Have Spark show an error of Phalanx without the Python stack, which says nothing more."""
    try:
        with told("do what Spark asks for"):
            yield
    except PhalanxError:
        # Read by the worker process that is about to report the error, and to end.
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def told_in_one_line(method: Method) -> Method:
    """A method that Spark calls in a worker process."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        with in_one_line():
            return method(*arguments, **options)

    return cast(Method, call)


@contextmanager
def of_spark(what: str) -> Iterator[None]:
    """Turn an error of Spark on the driver into one of Phalanx, with its reason in one line."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise PhalanxError(f"Cannot {what}: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    """What an error of Spark says, in one line: what Phalanx raised in a task, else the cause."""
    text = without_secrets(str(error).strip()) or type(error).__name__
    if (ours := _OURS.search(text)) is not None:
        return ours[1].strip()
    if (raised := _RAISED.findall(text)) and "Traceback (most recent call last)" in text:
        return str(raised[-1]).strip()
    lines = [line for line in text.splitlines() if not line.startswith(("\t", "An error occurred"))]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    told = dict.fromkeys(
        _CLASS.sub("", _STATE.sub("", each)) for each in [*lines[:1], *causes[-1:]]
    )
    return " ".join(told)
