"""The names of partition namespaces and leaf directories (format: Partition Namespace Naming).

A name looks random, but two writers that create the same partition at the same time derive the
same name, so that the manifest's primary key rejects one of them.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string

import pyarrow as pa
import pyarrow.types as pt

# The most digits of a snapshot number.
_MAX_DIGITS = 18
SEPARATOR = "$"
TABLE_NAME = "dataset"
# The directories that `leaf_directory` returns for ids of `table_id` and `partition_name`.
LEAF_DIRECTORY = re.compile(r"[0-9a-f]{8}_v[0-9]+(\$[0-9a-z]{16})*\$dataset")
_DIGITS = string.digits + string.ascii_lowercase
_LENGTH = 16


def generate_salt() -> str:
    """Generate the salt that makes the names of one namespace differ from all others."""
    return secrets.token_hex(16)


def partition_name(salt: str, parent: str, field_id: str, value: pa.Scalar) -> str:
    """Return sixteen characters of a–z0–9 for the partition with this value and parent."""
    parts = [salt, parent, field_id, canonicalize_value(value)]
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    number = int.from_bytes(digest.digest(), "little")
    name = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        name.append(_DIGITS[digit])
    return "".join(name)


def canonicalize_value(value: pa.Scalar) -> str:
    """Return the same text for equal values of any width, and different texts otherwise."""
    if not value.is_valid:
        return "null"
    kind = value.type
    if pt.is_floating(kind):
        return f"float:{value.cast(pa.float64()).as_py()!r}"
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return f"binary:{value.as_py().hex()}"
    if pt.is_timestamp(kind) or pt.is_time(kind) or pt.is_duration(kind) or pt.is_date(kind):
        return f"{kind}:{value.value}"
    return f"value:{value.as_py()}"


def table_id(namespace_id: str) -> str:
    """Return the object id of the leaf table in a partition namespace."""
    return f"{namespace_id}{SEPARATOR}{TABLE_NAME}"


def leaf_directory(object_id: str, prefix: str | None = None) -> str:
    """Return a directory that no other table has or had (format: Appendix B)."""
    return f"{prefix or secrets.token_hex(4)}_{object_id}"


def spec_namespace(spec_id: int) -> str:
    """Return the namespace that holds all data of a spec version."""
    return f"v{spec_id}"


def is_snapshot_number(text: str) -> bool:
    """Whether the end of a row's id is the number of a snapshot."""
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
