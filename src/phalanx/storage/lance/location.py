"""The location of a table: one picklable value, from the user's call to Spark's executors."""

from __future__ import annotations

import functools
import os
import re
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lance

from phalanx.errors import InvalidArgument, PhalanxError, UntrustedLocation, format_value
from phalanx.model.locations import SCHEME, resolve_location
from phalanx.storage.lance.failures import translate_read_errors
from phalanx.storage.lance.forks import mark_lance_used
from phalanx.storage.lance.ownership import (
    Owner,
    explain_not_owned,
    explain_unreadable,
    is_same_store,
)

# A scheme without its two slashes, or the in-memory store, which each process has for itself.
_UNSUPPORTED_SCHEME = re.compile(r"memory://|(?:file|s3|gs|az|abfss?|https?):(?!//)", re.IGNORECASE)
# The owners last read from leaves, by URI: a leaf is opened shortly before it is written.
_owners: dict[str, Owner | None] = {}
_MAX_OWNERS = 100_000

# When pylance 14 reads a transaction that compacted indexed rows, it passes fewer arguments than
# this class takes, and raises TypeError. test_lance_facts.py fails once that is fixed.
lance.LanceOperation.RewrittenIndex.__init__.__defaults__ = ("", b"", 0)

_WITH_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@]*:[^/?#]*@")

_first_use = threading.Lock()


@dataclass(frozen=True, slots=True)
class Location:
    """A path or URI with the options of its object store."""

    uri: str
    storage_options: dict[str, str] | None = field(default=None, hash=False, repr=False)
    # Whether tables are created and removed at the same paths, so that caches must not be shared.
    has_reused_paths: bool = False
    # The namespace here; for a leaf the one that lists it.
    table: Owner | None = None
    # Whether leaves outside the root may be read even if they do not name this table as owner.
    trust_locations: bool = False
    # Whether the table has checksums of its files enabled.
    checksums: bool = field(default=False, compare=False)

    @classmethod
    def of(
        cls,
        uri: str | os.PathLike[str],
        storage_options: dict[str, str] | None = None,
        trust_locations: bool = False,
    ) -> Location:
        """Return the location that a user names; local paths become absolute."""
        text = os.fspath(uri) if isinstance(uri, str | os.PathLike) else uri
        if not isinstance(text, str) or not text.strip() or _UNSUPPORTED_SCHEME.match(text):
            raise InvalidArgument(
                f"Cannot use {format_value(uri)} as the location of a table: expected a path, or a "
                "URI such as s3://bucket/table or file:///folder/table."
            )
        if _WITH_PASSWORD.match(text):
            raise InvalidArgument(
                f"Cannot use {format_value(text)} as the location of a table: it contains a "
                "password, which would appear in messages and plans. Pass it in storage_options."
            )
        options = storage_options or {}
        if wrong := [key for key, text in options.items() if not isinstance(text, str)]:
            raise InvalidArgument(
                f"Cannot use storage_options with {wrong[0]!r} of type "
                f"{type(options[wrong[0]]).__name__}: expected a string. Put the value in quotes."
            )
        if not SCHEME.match(text):
            text = str(Path(text).expanduser().absolute())
        return cls(text.rstrip("/") or "/", storage_options, trust_locations=trust_locations)

    def with_table(self, id: str) -> Location:
        """Return this root as that of the namespace with this id."""
        return replace(self, table=Owner(id, self.uri))

    def leaf(self, location: str) -> Location:
        """Return the location of a leaf, given its location in the manifest of this root.

        Opening it, or reading its `write_options`, raises `UntrustedLocation` unless the table may
        access it.
        """
        where = resolve_location(self.uri, location).uri
        return replace(self, uri=where, table=self.table or Owner("", self.uri))

    def subfolder(self, name: str) -> Location:
        """Return a subfolder that Phalanx itself names and no manifest lists."""
        return replace(self, uri=f"{self.uri}/{name}", table=None)

    def open(self, version: int | None = None, session: Any = None) -> lance.LanceDataset:
        """Open the Lance table here, with the shared metadata cache or another `session`.

        A session identifies a version by path and number, so it must not contain versions of an
        earlier table at the same path. A missing table or version raises Lance's own error; every
        other failure is a `StorageFailure`.
        """
        mark_lance_used()
        table = self.table
        if (
            table is not None
            and not self.trust_locations
            and not is_same_store(table.root, self.uri)
        ):
            raise UntrustedLocation(
                f"Cannot open {self}, which the manifest of {table.root} lists: it is in another "
                "store. If you trust the writer of the manifest, open the table with "
                "trust_locations=True to read it."
            )
        try:
            found = lance.dataset(
                self.uri,
                version=version,
                storage_options=self.storage_options,
                session=self._session if session is None else session,
            )
            # The schema is decoded on first access.
            assert found.schema is not None
        except BaseException as error:
            if isinstance(error, OSError | ValueError) and "not found" in str(error).lower():
                raise
            which = "" if version is None else f" in version {version}"
            with translate_read_errors(f"open {self}{which}"):
                raise
        if self.table is not None:
            self._check_readable(self.table, found)
        return found

    def open_leaf(self, version: int | None = None) -> lance.LanceDataset:
        """Open the leaf here, which a manifest lists."""
        try:
            return self.open(version)
        except ValueError as error:
            if "not found" not in str(error):
                raise
            which = "" if version is None else f" in version {version}"
            if self.has_reused_paths:
                raise PhalanxError(
                    f"The partition at {self} is missing{which}: it was removed while it was read. "
                    "Try again."
                ) from None
            raise PhalanxError(
                f"The partition at {self} is in the manifest, but missing{which}: vacuum removed "
                "the snapshot being read, or files were removed outside Phalanx. Read a newer "
                "snapshot, or restore the partition from a copy."
            ) from None

    def _check_readable(self, table: Owner, dataset: lance.LanceDataset) -> None:
        record = Owner.of(dataset)
        if len(_owners) >= _MAX_OWNERS:
            _owners.clear()
        _owners[self.uri] = record
        if self.trust_locations or explain_unreadable(table, self.uri, record) is None:
            return
        # An old version may date from before the table adopted the leaf.
        if (why := explain_unreadable(table, self.uri, self._read_owner())) is not None:
            raise UntrustedLocation(
                f"Cannot read {self}, which the manifest of {table.root} lists: {why}. Add it to "
                f"the table with adopt({self.uri!r}); or, if you trust the writer of the manifest, "
                "open the table with trust_locations=True to read it."
            )

    @property
    def is_outside(self) -> bool:
        """Whether it is outside its table's folder, so that opening it reads its owner."""
        return self.table is not None and explain_unreadable(self.table, self.uri, None) is not None

    def explain_not_owned(self, is_partly_gone: bool = False) -> str | None:
        """Return why the leaf here must not be written or deleted; None if it may be.

        A leaf that is partly deleted may have no version left that names its owner.
        """
        if self.table is None:
            return None
        try:
            record = self._read_owner()
        except (OSError, ValueError) as error:
            if not is_partly_gone or "not found" not in str(error).lower():
                raise
            record = None
        return explain_not_owned(self.table, self.uri, record)

    def _read_owner(self) -> Owner | None:
        return Owner.of(replace(self, trust_locations=True).open())

    def _check_writable(self, table: Owner) -> None:
        if self.uri in _owners and explain_not_owned(table, self.uri, _owners[self.uri]) is None:
            return
        if (why := explain_not_owned(table, self.uri, self._read_owner())) is not None:
            raise UntrustedLocation(
                f"Cannot write to {self}, which the manifest of {table.root} lists: {why}. Add it "
                f"to the table with adopt({self.uri!r}), or append its rows to your own table."
            )

    @property
    def _session(self) -> Any:
        return create_session() if self.has_reused_paths else shared_session()

    @property
    def is_local(self) -> bool:
        """Whether it is on a file system and not in an object store."""
        return not SCHEME.match(self.uri) or self.uri.startswith("file://")

    @property
    def write_options(self) -> dict[str, Any]:
        """The keyword arguments for Lance's writing functions.

        Refuses a leaf that does not belong to the table.
        """
        if self.table is not None:
            self._check_writable(self.table)
        return {"storage_options": self.storage_options}

    def __str__(self) -> str:
        return self.uri


def create_session() -> Any:
    """Create an empty cache of Lance metadata."""
    mark_lance_used()
    return lance.Session()  # type: ignore[attr-defined]


def shared_session() -> Any:
    """Return the metadata cache that all leaves of this process share: no path is reused."""
    # Two threads must not create one each.
    with _first_use:
        return _create_shared_session()


def clear_shared_session() -> None:
    """Drop the shared cache, so that files removed from storage are not read from memory."""
    _create_shared_session.cache_clear()


@functools.lru_cache(maxsize=1)
def _create_shared_session() -> Any:
    return create_session()
