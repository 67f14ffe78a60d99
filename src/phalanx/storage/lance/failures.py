"""Translation of errors from Lance and the store into `StorageFailure` with one clear message.

`translate_read_errors` is for code that only reads stored data: every error there is a failure of
the store, except bugs in Phalanx itself, which pass unchanged. `translate_errors` is for whole
calls, which may also process data of the caller: it translates only what certainly comes from
Lance.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, TypeVar, cast

import pyarrow as pa

from phalanx.errors import PhalanxError, StorageFailure, hide_secrets
from phalanx.storage.lance.forks import check_fork

_Item = TypeVar("_Item")
_Method = TypeVar("_Method", bound=Callable[..., Any])

# Lance appends the position in its source code.
_SOURCE_LINE = re.compile(r",? ?(/\S+|rust/\S+)\.rs:\d+(:\d+)?")
_MISSING_FILE = re.compile(
    r"not found|no such file|one of its files is missing|The partition at .* missing", re.IGNORECASE
)
_PREFIXES = re.compile(r"^(?:External error: |LanceError\(\w+\): |Generic \w+ error: )+")
# What decoders raise for damaged bytes: those of Rust, of Arrow and of Python.
_READ_ERRORS = (
    OSError,
    ValueError,
    RuntimeError,
    LookupError,
    OverflowError,
    AssertionError,
    pa.ArrowException,
)


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raise errors of Lance as `StorageFailure`; errors in the caller's data pass."""
    check_fork()
    try:
        yield
    except PhalanxError:
        raise
    except BaseException as error:
        if not is_lance_error(error):
            raise
        raise StorageFailure(f"Cannot {what}: {summarize_error(error)}") from error


@contextmanager
def translate_read_errors(what: str) -> Iterator[None]:
    """Raise every error of code that only reads stored data as `StorageFailure`.

    A failed lookup or assertion in a line of Phalanx is a bug and not damage, and passes: code that
    reads possibly damaged data checks what it finds.
    """
    try:
        yield
    except PhalanxError:
        raise
    except BaseException as error:
        if not (isinstance(error, _READ_ERRORS) or is_panic(error)) or _is_own_bug(error):
            raise
        raise StorageFailure(f"Cannot {what}: {_explain(error)}") from error


def _is_own_bug(error: BaseException) -> bool:
    """Whether a lookup or assertion failed in a line of Phalanx."""
    if not isinstance(error, LookupError | AssertionError):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] == __name__.partition(".")[0]


def _explain(error: BaseException) -> str:
    if is_missing_file(error):
        return (
            "one of its files is missing. Vacuum removed the version that was being read, or files "
            "were removed outside Phalanx. Read the table again; if that fails too, restore the "
            f"files from a copy. The file: {summarize_error(error)}"
        )
    return (
        f"{summarize_error(error)} If the file is damaged, restore it from a copy; verify() lists "
        "all damaged files."
    )


def is_missing_file(error: BaseException) -> bool:
    """Whether the error says that a file, or a version of a leaf, does not exist."""
    return _MISSING_FILE.search(str(error)) is not None


def read_each(items: Iterable[_Item], what: str) -> Iterator[_Item]:
    """Yield the items, with `translate_read_errors` around producing each of them.

    What the caller does with an item is not covered.
    """
    with translate_read_errors(what):
        source = iter(items)
    while True:
        with translate_read_errors(what):
            try:
                item = next(source)
            except StopIteration:
                return
        yield item


class ErrorTranslator:
    """Base class of objects that users hold: no error of the store leaves their public interface.

    Every public method and property of a subclass runs inside `translate_errors`, generators
    included. By default the message names the method; `describe_as` gives it other words.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in list(vars(cls).items()):
            if not name.startswith("_"):
                setattr(cls, name, _wrap_member(name, member))

    def _error_location(self) -> object:
        """Return the location for messages, without accessing storage."""
        raise NotImplementedError


def describe_as(what: str) -> Callable[[_Method], _Method]:
    """Translate errors in a method; the message says that it could not do `what`."""

    def wrap(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(self: ErrorTranslator, *arguments: Any, **options: Any) -> Any:
            with translate_errors(f"{what} {self._error_location()}"):
                return method(self, *arguments, **options)

        @functools.wraps(method)
        def iterate(self: ErrorTranslator, *arguments: Any, **options: Any) -> Any:
            with translate_errors(f"{what} {self._error_location()}"):
                yield from method(self, *arguments, **options)

        guarded = iterate if inspect.isgeneratorfunction(method) else call
        guarded.is_guarded = True  # type: ignore[attr-defined]
        return cast(_Method, guarded)

    return wrap


def _wrap_member(name: str, member: Any) -> Any:
    if isinstance(member, property) and member.fget is not None:
        read = _wrap_method(member.fget, f"read the {name} of")
        return property(read, member.fset, member.fdel, member.__doc__)
    if isinstance(member, FunctionType):
        return _wrap_method(member, f"run {name}() on")
    return member


def _wrap_method(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    return method if hasattr(method, "is_guarded") else describe_as(what)(method)


def is_lance_error(error: BaseException) -> bool:
    """Whether the error comes from Lance: a panic, or it names Lance or its source code."""
    if is_panic(error):
        return True
    if not isinstance(error, OSError | ValueError | RuntimeError | pa.ArrowException):
        return False
    text = str(error)
    return "LanceError" in text or _SOURCE_LINE.search(text) is not None


def is_panic(error: BaseException) -> bool:
    """Whether the error is a panic of native code, which is not a subclass of `Exception`.

    Every extension module has its own class for panics.
    """
    return type(error).__module__ == "pyo3_runtime"


def summarize_error(error: BaseException) -> str:
    """Return the message in one line, without wrappers and source positions."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, LookupError | AssertionError):
        text = f"{type(error).__name__}: {text}"
    text = hide_secrets(_PREFIXES.sub("", _SOURCE_LINE.sub("", text)))
    return re.sub(r"\s*[\r\n]\s*", " ", text).strip().rstrip(".,") + "."
