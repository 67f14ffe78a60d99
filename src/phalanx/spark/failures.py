"""Errors on their way to Spark: one line that says what is wrong."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from phalanx.errors import PhalanxError

Method = TypeVar("Method", bound=Callable[..., Any])


@contextmanager
def in_one_line() -> Iterator[None]:
    """Have Spark show an error of Phalanx without the Python stack, which says nothing more."""
    try:
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
