"""Everything Phalanx raises on purpose.

    PhalanxError
    ├── InvalidSchema      a schema that cannot be stored, or schema JSON that cannot be read
    ├── InvalidSpec        a partition spec that breaks a rule of the format
    ├── InvalidPredicate   a `where` that does not parse, bind or compare
    ├── SchemaMismatch     data or a change that does not fit the namespace schema
    ├── CommitConflict     another writer committed first, and the two cannot be merged
    ├── PartialWrite       some partitions have the change, others have not
    ├── NotPartitioned     the path holds no partitioned namespace
    ├── InvalidManifest    a manifest, or what a manifest row says, that breaks the format
    ├── UnknownSpec        data written under a spec version that has no definition
    ├── InvalidCatalog     another system's catalog that is damaged, too new, or no such catalog
    ├── StorageFailure     the store below failed: no permission, no space, a damaged file
    │   └── UnknownOutcome it failed in the middle of a commit, which may stand or not
    ├── ForeignWrite       someone wrote to a leaf table past Phalanx
    └── UntrustedLocation  a listed leaf at a place that is not this table's to use

A message says what failed, the value, what was expected, and what to do. It shows no secrets.
"""

import re


class PhalanxError(Exception):
    """The root of all errors raised by Phalanx."""


class InvalidSchema(PhalanxError):
    """A schema that cannot be stored, or schema JSON that cannot be read."""


class InvalidSpec(PhalanxError):
    """A partition spec that breaks a rule of the format."""


class InvalidPredicate(PhalanxError):
    """A `where` that does not parse, bind or compare."""


class SchemaMismatch(PhalanxError):
    """Data or a change that does not fit the namespace schema."""


class CommitConflict(PhalanxError):
    """Another writer committed first, and the two cannot be merged."""


class PartialWrite(PhalanxError):
    """A change without a transaction that reached some partitions and not others."""


class NotPartitioned(PhalanxError):
    """The path holds no partitioned namespace."""


class InvalidManifest(PhalanxError):
    """A manifest, or what a manifest row says, that breaks the format."""


class UnknownSpec(PhalanxError):
    """Data written under a spec version that has no definition."""


class InvalidCatalog(PhalanxError):
    """Another system's catalog that is damaged, too new, or lacks what is asked for."""


class StorageFailure(PhalanxError):
    """The store below failed: no permission, no space, a damaged or missing file."""


class UnknownOutcome(StorageFailure):
    """The store failed in the middle of a commit: it may stand, now or later, or not."""


class ForeignWrite(PhalanxError):
    """Someone wrote to a leaf table past Phalanx."""


class UntrustedLocation(PhalanxError):
    """A manifest lists a leaf at a place that is not this table's to read, write or delete."""


# In URIs what stands between a user and the host, and settings whose names say what they are.
_IN_URI = re.compile(r"(://[^:/@?#\s]*:)[^/?#\s]*@")
_SETTING = re.compile(
    r"""(?ix) \b( [\w.-]* (?: password | passwd | passphrase | pwd | secret | token | signature
                | access_key | account_key | credential ) [\w.-]* | sig )
        (\s*=\s* | ['"]:\s*) (?: '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.)*" | [^&;,\s'"]+ )"""
)


def without_secrets(text: str) -> str:
    """A text with the passwords, keys and tokens in it replaced, for messages and `repr`.

    >>> without_secrets("postgres://me:pw@host/db?sslpassword=pw")
    'postgres://me:***@host/db?sslpassword=***'
    """
    return _SETTING.sub(r"\1\2***", _IN_URI.sub(r"\1***@", text))


def shown(value: object) -> str:
    """A value as a message shows it: long ones are cut, and secrets left out."""
    text = repr(without_secrets(value)) if isinstance(value, str) else without_secrets(repr(value))
    return text if len(text) <= 200 else f"{text[:200]}…"
