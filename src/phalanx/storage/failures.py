"""What fails below Phalanx, told as one clear message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from phalanx.errors import PhalanxError, StorageFailure, without_secrets
from phalanx.storage.forks import check_fork

# Lance adds the place in its own source code.
_SOURCE_PLACE = re.compile(r",? ?(/\S+|rust/\S+)\.rs:\d+(:\d+)?")
_GONE = re.compile(r"not found|no such file|not there", re.IGNORECASE)
_WRAPPING = re.compile(r"^(?:External error: |LanceError\(\w+\): |Generic \w+ error: )+")


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turn an error of Lance into `StorageFailure`; errors of the caller's own data pass."""
    check_fork()
    try:
        yield
    except PhalanxError:
        raise
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        if not is_lances(error):
            raise
        raise StorageFailure(f"Cannot {what}: {plain_reason(error)}") from error


@contextmanager
def reading(what: str) -> Iterator[None]:
    """While files of a leaf are read: whatever fails below Phalanx, and why a file may be gone."""
    try:
        yield
    except PhalanxError:
        raise
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        if not is_gone(error):
            raise StorageFailure(f"Cannot read {what}: {plain_reason(error)}") from error
        raise StorageFailure(
            f"Cannot read {what}: a file of it is not there any more. A vacuum removed the version "
            "that was being read, or something removed files past Phalanx. Read the table again; "
            "if that fails too, restore the files from a copy. The file: "
            f"{plain_reason(error)}"
        ) from error


def is_gone(error: BaseException) -> bool:
    """Whether the error says that a file, or a version of a leaf, is not there."""
    return _GONE.search(str(error)) is not None


def is_lances(error: BaseException) -> bool:
    """Whether the error comes from Lance: it names itself, or a place in its source."""
    text = str(error)
    return "LanceError" in text or _SOURCE_PLACE.search(text) is not None


def plain_reason(error: BaseException) -> str:
    """The message in one line, without wrappings and places in foreign source code."""
    text = str(error).strip() or type(error).__name__
    text = without_secrets(_WRAPPING.sub("", _SOURCE_PLACE.sub("", text)))
    return re.sub(r"\s*[\r\n]\s*", " ", text).strip().rstrip(".,") + "."
