"""What fails below Phalanx, told as one clear message.

Two guards stand between Lance and a user. `reading` is around code that only reads what is stored:
what fails there is a failure of the store, but for mistakes of Phalanx itself, which pass as they
are. `told` is around whole calls, which may also run
over data of the caller: there only what is certainly Lance's becomes a `StorageFailure`.
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

from phalanx.errors import PhalanxError, StorageFailure, without_secrets
from phalanx.storage.lance.forks import check_fork

Item = TypeVar("Item")
Method = TypeVar("Method", bound=Callable[..., Any])

# Lance adds the place in its own source code.
_SOURCE_PLACE = re.compile(r",? ?(/\S+|rust/\S+)\.rs:\d+(:\d+)?")
_GONE = re.compile(r"not found|no such file|not there", re.IGNORECASE)
_WRAPPING = re.compile(r"^(?:External error: |LanceError\(\w+\): |Generic \w+ error: )+")
# What decoders raise over bytes that nobody wrote: from Rust, from Arrow, and from Python's own.
_FAILURES = (
    OSError,
    ValueError,
    RuntimeError,
    LookupError,
    OverflowError,
    AssertionError,
    pa.ArrowException,
)


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turn an error of Lance into `StorageFailure`; errors of the caller's own data pass."""
    check_fork()
    try:
        yield
    except PhalanxError:
        raise
    except BaseException as error:
        if not is_lances(error):
            raise
        raise StorageFailure(f"Cannot {what}: {plain_reason(error)}") from error


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn every error of code that only reads what is stored into `StorageFailure`.

    A failed lookup or assertion in a line of Phalanx is a mistake there, and not damage: lines that
    look into what may be damaged check what they find.
    """
    try:
        yield
    except PhalanxError:
        raise
    except BaseException as error:
        if not (isinstance(error, _FAILURES) or is_panic(error)) or _is_mistake(error):
            raise
        raise StorageFailure(f"Cannot {what}: {_why(error)}") from error


def _is_mistake(error: BaseException) -> bool:
    """Whether a line of Phalanx looked up what is not there, or asserted what does not hold."""
    if not isinstance(error, LookupError | AssertionError):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] == __name__.partition(".")[0]


def _why(error: BaseException) -> str:
    if is_gone(error):
        return (
            "a file of it is not there any more. A vacuum removed the version that was being "
            "read, or something removed files past Phalanx. Read the table again; if that fails "
            f"too, restore the files from a copy. The file: {plain_reason(error)}"
        )
    return (
        f"{plain_reason(error)} If the file is damaged, verify() says what else is: restore it "
        "from a copy."
    )


def is_gone(error: BaseException) -> bool:
    """Whether the error says that a file, or a version of a leaf, is not there."""
    return _GONE.search(str(error)) is not None


def reading_each(items: Iterable[Item], what: str) -> Iterator[Item]:
    """The items as they come, and `reading` around the work for each of them.

    What the caller does with an item is not guarded.
    """
    with reading(what):
        source = iter(items)
    while True:
        with reading(what):
            try:
                item = next(source)
            except StopIteration:
                return
        yield item


class Guarded:
    """What a user holds: no error of the store below leaves a public method or property of it.

    A class that is made of this one guards itself with `told`, generators included. What could
    not be done is told by the method's name; `tells` gives it other words.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in list(vars(cls).items()):
            if not name.startswith("_"):
                setattr(cls, name, _guarded(name, member))

    def _stored_at(self) -> object:
        """Where it is, for messages; no storage is asked for it."""
        raise NotImplementedError


def tells(what: str) -> Callable[[Method], Method]:
    """Errors of the store below become one message that says what could not be done."""

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Guarded, *arguments: Any, **options: Any) -> Any:
            with told(f"{what} {self._stored_at()}"):
                return method(self, *arguments, **options)

        @functools.wraps(method)
        def iterate(self: Guarded, *arguments: Any, **options: Any) -> Any:
            with told(f"{what} {self._stored_at()}"):
                yield from method(self, *arguments, **options)

        guarded = iterate if inspect.isgeneratorfunction(method) else call
        guarded.is_guarded = True  # type: ignore[attr-defined]
        return cast(Method, guarded)

    return wrap


def _guarded(name: str, member: Any) -> Any:
    if isinstance(member, property) and member.fget is not None:
        read = _unless_guarded(member.fget, f"tell the {name} of")
        return property(read, member.fset, member.fdel, member.__doc__)
    if isinstance(member, FunctionType):
        return _unless_guarded(member, f"run {name}() on")
    return member


def _unless_guarded(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    return method if hasattr(method, "is_guarded") else tells(what)(method)


def is_lances(error: BaseException) -> bool:
    """Whether the error comes from Lance: a panic, or it names itself or a place in its source."""
    if is_panic(error):
        return True
    if not isinstance(error, OSError | ValueError | RuntimeError | pa.ArrowException):
        return False
    text = str(error)
    return "LanceError" in text or _SOURCE_PLACE.search(text) is not None


def is_panic(error: BaseException) -> bool:
    """Whether it is a panic of native code, which Python's `Exception` does not include.

    Every extension has a class of its own for them.
    """
    return type(error).__module__ == "pyo3_runtime"


def plain_reason(error: BaseException) -> str:
    """The message in one line, without wrappings and places in foreign source code."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, LookupError | AssertionError):
        text = f"{type(error).__name__}: {text}"
    text = without_secrets(_WRAPPING.sub("", _SOURCE_PLACE.sub("", text)))
    return re.sub(r"\s*[\r\n]\s*", " ", text).strip().rstrip(".,") + "."
