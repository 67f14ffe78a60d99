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

from phalanx.errors import PhalanxError, UntrustedLocation, shown
from phalanx.model.locations import SCHEME, placed
from phalanx.storage.lance.failures import reading
from phalanx.storage.lance.forks import use_lance
from phalanx.storage.lance.ownership import Owner, is_same_store, why_not_ours, why_unreadable

# A scheme without its two slashes, and the store of which every process has its own.
_ODD_SCHEME = re.compile(r"memory://|(?:file|s3|gs|az|abfss?|https?):(?!//)", re.IGNORECASE)
# What was last seen written down in leaves, by their URIs: they were opened a moment ago.
_records: dict[str, Owner | None] = {}
_MOST_RECORDS = 100_000

# pylance 14 reads the transaction that compacted indexed rows with fewer arguments than this class
# takes, and raises TypeError: test_lance_facts.py tells when that is over.
lance.LanceOperation.RewrittenIndex.__init__.__defaults__ = ("", b"", 0)

_WITH_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@]*:[^/?#]*@")

_first_use = threading.Lock()


@dataclass(frozen=True, slots=True)
class Location:
    """A path or URI, and what the object store needs to be told."""

    uri: str
    storage_options: dict[str, str] | None = field(default=None, hash=False, repr=False)
    # Whether tables come and go under the paths below: no cache may know them by these.
    has_reused_paths: bool = False
    # The namespace here; for a leaf the one that lists it.
    table: Owner | None = None
    # Whether leaves outside of the root may be read that are not recorded as the table's.
    trusts: bool = False
    # Whether the table below wants checksums of its files.
    checksums: bool = field(default=False, compare=False)

    @classmethod
    def of(
        cls,
        uri: str | os.PathLike[str],
        storage_options: dict[str, str] | None = None,
        trusts: bool = False,
    ) -> Location:
        """The location that a user names; local paths become absolute."""
        text = os.fspath(uri) if isinstance(uri, str | os.PathLike) else uri
        if not isinstance(text, str) or not text.strip() or _ODD_SCHEME.match(text):
            raise PhalanxError(
                f"Cannot use {shown(uri)} as the place of a table: expected a path, or a URI such "
                "as s3://bucket/table or file:///folder/table."
            )
        if _WITH_PASSWORD.match(text):
            raise PhalanxError(
                f"Cannot use {shown(text)} as the place of a table: it has a password in it, which "
                "would stand in messages and plans. Give it in storage_options."
            )
        options = storage_options or {}
        if wrong := [key for key, text in options.items() if not isinstance(text, str)]:
            raise PhalanxError(
                f"Cannot use storage_options with {wrong[0]!r} of type "
                f"{type(options[wrong[0]]).__name__}: expected text. Write it in quotes."
            )
        if not SCHEME.match(text):
            text = str(Path(text).expanduser().absolute())
        return cls(text.rstrip("/") or "/", storage_options, trusts=trusts)

    def of_table(self, id: str) -> Location:
        """The same root, of the namespace with this id."""
        return replace(self, table=Owner(id, self.uri))

    def child(self, location: str) -> Location:
        """The leaf at the location that a manifest here has of it.

        Opening it, and asking for its `write_options`, raises `UntrustedLocation` where that is
        not the table's to do.
        """
        where = placed(self.uri, location).uri
        return replace(self, uri=where, table=self.table or Owner("", self.uri))

    def own(self, name: str) -> Location:
        """What is here under a name that Phalanx has given, and no manifest tells."""
        return replace(self, uri=f"{self.uri}/{name}", table=None)

    def open(self, version: int | None = None, cache: Any = None) -> lance.LanceDataset:
        """The Lance table here, with a cache of metadata: that which all tables share, or another.

        A cache knows a version by its path and number: one of a table that was made anew at the
        same path must not be known already. That there is no such table, or no such version of
        it, is an error of Lance; any other failure is a `StorageFailure`.
        """
        use_lance()
        table = self.table
        if table is not None and not self.trusts and not is_same_store(table.root, self.uri):
            raise UntrustedLocation(
                f"Cannot open {self}, which the manifest of {table.root} lists: it is in another "
                "store. If you trust whoever wrote the manifest, open the table with "
                "trust_locations=True to read it."
            )
        try:
            found = lance.dataset(
                self.uri,
                version=version,
                storage_options=self.storage_options,
                session=self._cache if cache is None else cache,
            )
            # It is decoded when it is first asked for.
            assert found.schema is not None
        except BaseException as error:
            if isinstance(error, OSError | ValueError) and "not found" in str(error).lower():
                raise
            which = "" if version is None else f" in version {version}"
            with reading(f"open {self}{which}"):
                raise
        if self.table is not None:
            self._check_readable(self.table, found)
        return found

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

    def _check_readable(self, table: Owner, dataset: lance.LanceDataset) -> None:
        record = Owner.of(dataset)
        if len(_records) >= _MOST_RECORDS:
            _records.clear()
        _records[self.uri] = record
        if self.trusts or why_unreadable(table, self.uri, record) is None:
            return
        # An old version may be from before the leaf was the table's.
        if (why := why_unreadable(table, self.uri, self._newest_record())) is not None:
            raise UntrustedLocation(
                f"Cannot read {self}, which the manifest of {table.root} lists: {why}. Make it the "
                f"table's with adopt({self.uri!r}); or, if you trust whoever wrote the manifest, "
                "open the table with trust_locations=True to read it."
            )

    @property
    def is_outside(self) -> bool:
        """Whether it is outside of its table's folder, so that opening it asks for its record."""
        return self.table is not None and why_unreadable(self.table, self.uri, None) is not None

    def why_not_ours(self, is_partly_gone: bool = False) -> str | None:
        """Why the leaf here must be neither written nor deleted, as it is now; None if it may.

        One that is partly gone may have no version any more that could tell.
        """
        if self.table is None:
            return None
        try:
            record = self._newest_record()
        except (OSError, ValueError) as error:
            if not is_partly_gone or "not found" not in str(error).lower():
                raise
            record = None
        return why_not_ours(self.table, self.uri, record)

    def _newest_record(self) -> Owner | None:
        return Owner.of(replace(self, trusts=True).open())

    def _check_writable(self, table: Owner) -> None:
        known = self.uri in _records
        if known and why_not_ours(table, self.uri, _records[self.uri]) is None:
            return
        if (why := why_not_ours(table, self.uri, self._newest_record())) is not None:
            raise UntrustedLocation(
                f"Cannot write to {self}, which the manifest of {table.root} lists: {why}. Make it "
                f"the table's with adopt({self.uri!r}), or append its rows to a table of yours."
            )

    @property
    def _cache(self) -> Any:
        return new_cache() if self.has_reused_paths else session()

    @property
    def is_local(self) -> bool:
        """Whether it is on a file system rather than in an object store."""
        return not SCHEME.match(self.uri) or self.uri.startswith("file://")

    @property
    def write_options(self) -> dict[str, Any]:
        """The keyword arguments that every writing function of Lance takes.

        Refuses a leaf that is not the table's.
        """
        if self.table is not None:
            self._check_writable(self.table)
        return {"storage_options": self.storage_options}

    def __str__(self) -> str:
        return self.uri


def new_cache() -> Any:
    """A cache of Lance metadata that knows nothing yet."""
    use_lance()
    return lance.Session()  # type: ignore[attr-defined]


def session() -> Any:
    """The cache of Lance metadata that all leaves in this process share: no path is used twice."""
    # Two threads that come first must not make two.
    with _first_use:
        return _shared_cache()


def forget_session() -> None:
    """Begin with a cache that knows nothing: what is gone from storage is not read from memory."""
    _shared_cache.cache_clear()


@functools.lru_cache(maxsize=1)
def _shared_cache() -> Any:
    return new_cache()
