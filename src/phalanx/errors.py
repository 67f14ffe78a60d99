"""The errors that Phalanx raises.

    PhalanxError
    ├── InvalidArgument    an argument of a wrong type or value; a ValueError too
    ├── InvalidSchema      a schema that cannot be stored, or schema JSON that cannot be read
    ├── InvalidSpec        a partition spec that breaks a rule of the format
    ├── InvalidPredicate   a `where` that does not parse, bind or compare
    ├── SchemaMismatch     data or a change that does not fit the namespace schema
    ├── CommitConflict     another writer committed first, and the two cannot be merged
    ├── PartialWrite       some partitions have the change, others do not
    ├── NotPartitioned     the path holds no partitioned namespace
    ├── InvalidManifest    a manifest, or a row of it, that breaks the format
    ├── UnknownSpec        data written under a spec version that has no definition
    ├── InvalidCatalog     another system's catalog that is damaged, too new, or no such catalog
    ├── StorageFailure     the store failed: no permission, no space, a damaged file
    │   └── UnknownOutcome the store failed during a commit, which may have succeeded or not
    ├── ForeignWrite       something modified a leaf outside Phalanx
    └── UntrustedLocation  a listed leaf at a location that does not belong to the table

A message says what failed, the value, what was expected, and what to do. It shows no secrets.
`CommitConflict`, `PartialWrite`, `UnknownOutcome` and `ForeignWrite` have the same facts as
attributes. All errors can be pickled, with their attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol


class _PartitionKey(Protocol):
    """A partition by its values: a `phalanx.PartitionKey`."""

    @property
    def spec_id(self) -> int: ...
    @property
    def values(self) -> tuple[Any, ...]: ...


class PhalanxError(Exception):
    """The root of all errors raised by Phalanx."""


class InvalidArgument(PhalanxError, ValueError):
    """An argument of a wrong type or value, regardless of what the table holds."""


class InvalidSchema(PhalanxError):
    """A schema that cannot be stored, or schema JSON that cannot be read."""


class InvalidSpec(PhalanxError):
    """A partition spec that breaks a rule of the format."""


class InvalidPredicate(PhalanxError):
    """A `where` that does not parse, bind or compare."""


class SchemaMismatch(PhalanxError):
    """Data or a change that does not fit the namespace schema."""


class CommitConflict(PhalanxError):
    """Another writer committed first, and the two changes cannot be merged.

    Nothing of the refused change is visible. Read the table again, and repeat the change.

    Attributes:
        partitions: The keys of the partitions that both changed, where they are known; empty
            where the schema, the specs or the mode changed.
        snapshot: The id of the newest snapshot when the conflict was found; None in weak mode, and
            where it is not known.
    """

    def __init__(
        self,
        message: str = "",
        *,
        partitions: Iterable[_PartitionKey] = (),
        snapshot: int | None = None,
    ) -> None:
        super().__init__(message)
        self.partitions = tuple(partitions)
        self.snapshot = snapshot


class PartialWrite(PhalanxError):
    """A change in weak mode that some partitions have, and others do not.

    Attributes:
        written: The keys of the partitions that have the change.
        not_written: The keys of those that do not.
        unknown: The keys of those that may have it or not.
        duplicated: The keys of partitions with rows that exist twice, old and new.
    """

    def __init__(
        self,
        message: str = "",
        *,
        written: Iterable[_PartitionKey] = (),
        not_written: Iterable[_PartitionKey] = (),
        unknown: Iterable[_PartitionKey] = (),
        duplicated: Iterable[_PartitionKey] = (),
    ) -> None:
        super().__init__(message)
        self.written = tuple(written)
        self.not_written = tuple(not_written)
        self.unknown = tuple(unknown)
        self.duplicated = tuple(duplicated)


class NotPartitioned(PhalanxError):
    """The path holds no partitioned namespace."""


class InvalidManifest(PhalanxError):
    """A manifest, or a row of it, that breaks the format."""


class UnknownSpec(PhalanxError):
    """Data written under a spec version that has no definition."""


class InvalidCatalog(PhalanxError):
    """Another system's catalog that is damaged, too new, or lacks what is asked for."""


class StorageFailure(PhalanxError):
    """The store failed: no permission, no space, a damaged or missing file."""


class UnknownOutcome(StorageFailure):
    """The store failed during a commit, which may have succeeded, may still succeed, or may have
    failed.

    Attributes:
        snapshot: The id that the snapshot has, if the commit succeeds.
        partitions: The keys of the partitions that it changes, where they are known.
        markers: The markers of the transaction. With them it can be repeated: it commits once.
    """

    def __init__(
        self,
        message: str = "",
        *,
        snapshot: int | None = None,
        partitions: Iterable[_PartitionKey] = (),
        markers: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.snapshot = snapshot
        self.partitions = tuple(partitions)
        self.markers = tuple(markers)


class ForeignWrite(PhalanxError):
    """Something modified a leaf outside Phalanx.

    Attributes:
        partitions: The keys of the partitions with such a leaf, where they are known.
        locations: The paths or URIs of these leaves.
        version: The version of the leaf that Phalanx did not write.
        snapshot: The id of the snapshot that was committed nevertheless; None: nothing was
            committed.
    """

    def __init__(
        self,
        message: str = "",
        *,
        partitions: Iterable[_PartitionKey] = (),
        locations: Iterable[str] = (),
        version: int | None = None,
        snapshot: int | None = None,
    ) -> None:
        super().__init__(message)
        self.partitions = tuple(partitions)
        self.locations = tuple(locations)
        self.version = version
        self.snapshot = snapshot


class UntrustedLocation(PhalanxError):
    """A manifest lists a leaf at a location that does not belong to the table."""


# A password between the user and the host of a URI, and settings whose name suggests a secret.
_IN_URI = re.compile(r"(://[^:/@?#\s]*:)[^/?#\s]*@")
_SETTING = re.compile(
    r"""(?ix) \b( [\w.-]* (?: password | passwd | passphrase | pwd | secret | token | signature
                | access_key | account_key | credential ) [\w.-]* | sig )
        (\s*=\s* | ['"]:\s*) (?: '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.)*" | [^&;,\s'"]+ )"""
)


def hide_secrets(text: str) -> str:
    """Replace passwords, keys and tokens in a text, for messages and `repr`.

    >>> hide_secrets("postgres://me:pw@host/db?sslpassword=pw")
    'postgres://me:***@host/db?sslpassword=***'
    """
    return _SETTING.sub(r"\1\2***", _IN_URI.sub(r"\1***@", text))


def format_value(value: object) -> str:
    """Format a value for a message: shortened, and without secrets."""
    text = repr(hide_secrets(value)) if isinstance(value, str) else hide_secrets(repr(value))
    return text if len(text) <= 200 else f"{text[:200]}…"
