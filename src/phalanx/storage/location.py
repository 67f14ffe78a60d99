"""Where a namespace lives: one picklable value, from the user's call to an executor's."""

from __future__ import annotations

import functools
import os
import re
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lance

from phalanx.errors import PhalanxError
from phalanx.model.locations import SCHEME, resolved

# A scheme without its two slashes, and the store of which every process has its own.
_ODD_SCHEME = re.compile(r"memory://|(?:file|s3|gs|az|abfss?|https?):(?!//)", re.IGNORECASE)

_first_use = threading.Lock()


@dataclass(frozen=True, slots=True)
class Location:
    """A path or URI, and what the object store needs to be told."""

    uri: str
    storage_options: dict[str, str] | None = field(default=None, hash=False)
    # Whether tables come and go under the paths below: no cache may know them by these.
    has_reused_paths: bool = False

    @classmethod
    def of(
        cls, uri: str | os.PathLike[str], storage_options: dict[str, str] | None = None
    ) -> Location:
        """The location that a user names; local paths become absolute."""
        text = os.fspath(uri) if isinstance(uri, str | os.PathLike) else uri
        if not isinstance(text, str) or not text.strip() or _ODD_SCHEME.match(text):
            raise PhalanxError(
                f"Cannot use {uri!r} as the place of a table: expected a path, or a URI such as "
                "s3://bucket/table or file:///folder/table."
            )
        options = storage_options or {}
        if wrong := [key for key, text in options.items() if not isinstance(text, str)]:
            raise PhalanxError(
                f"Cannot use storage_options with {wrong[0]!r}: {options[wrong[0]]!r}: expected "
                "text. Write it in quotes."
            )
        if not SCHEME.match(text):
            text = str(Path(text).expanduser().absolute())
        return cls(text.rstrip("/") or "/", storage_options)

    def child(self, relative: str) -> Location:
        """The location of what a manifest calls by a path relative to this one."""
        return replace(self, uri=resolved(self.uri, relative))

    def open(self, version: int | None = None, cache: Any = None) -> lance.LanceDataset:
        """The Lance table here, with a cache of metadata: that which all tables share, or another.

        A cache knows a version by its path and number: one of a table that was made anew at the
        same path must not be known already.
        """
        return lance.dataset(
            self.uri,
            version=version,
            storage_options=self.storage_options,
            session=self._cache if cache is None else cache,
        )

    def open_leaf(self, version: int | None = None) -> lance.LanceDataset:
        """The leaf here, which a manifest lists."""
        try:
            return self.open(version)
        except ValueError as error:
            if "not found" not in str(error):
                raise
            which = "" if version is None else f" in version {version}"
            if self.has_reused_paths:
                raise PhalanxError(
                    f"The partition at {self} is not there any more{which}: something removed it "
                    "while it was read. Try again."
                ) from None
            raise PhalanxError(
                f"The partition at {self} is in the manifest, but not there{which}: vacuum removed "
                "the snapshot that is read, or something removed files past Phalanx. Read a newer "
                "snapshot, or restore the partition from a copy."
            ) from None

    @property
    def _cache(self) -> Any:
        return new_cache() if self.has_reused_paths else session()

    @property
    def is_local(self) -> bool:
        """Whether it is on a file system rather than in an object store."""
        return not SCHEME.match(self.uri) or self.uri.startswith("file://")

    @property
    def write_options(self) -> dict[str, Any]:
        """The keyword arguments that every writing function of Lance takes."""
        return {"storage_options": self.storage_options}

    def __str__(self) -> str:
        return self.uri


def canonical(place: str) -> str:
    """The one spelling of a local place: an absolute path without links; others stay as they are.

    >>> canonical("file:///tables/old/../events")
    '/tables/events'
    """
    path = place.removeprefix("file://")
    return os.path.realpath(path) if path.startswith("/") else place


def new_cache() -> Any:
    """A cache of Lance metadata that knows nothing yet."""
    return lance.Session()  # type: ignore[attr-defined]


def session() -> Any:
    """The cache of Lance metadata that all leaves in this process share: no path is used twice."""
    # Two threads that come first must not make two.
    with _first_use:
        return _shared_cache()


@functools.lru_cache(maxsize=1)
def _shared_cache() -> Any:
    return new_cache()
