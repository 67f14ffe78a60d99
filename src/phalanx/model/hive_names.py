"""The names of folders in the Hive-style layout: `key=value`, escaped as Hive does.

Escaped are Hive's own characters, and `$`, which separates names in a Lance namespace. A NULL is
Hive's marker, and a text that reads like the marker is escaped. An empty text is an empty name,
which Hive would take for NULL. Every name is read back as exactly what was written.
"""

from __future__ import annotations

import re

from phalanx.errors import PhalanxError

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
TABLE_SUFFIX = ".lance"
# No file system takes longer names.
_MOST_BYTES = 255
_SPECIAL = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^$]")
_ESCAPED = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


def escaped(text: str) -> str:
    """The text with a percent sign and two digits in place of each special character."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)


def unescaped(text: str) -> str:
    """The text before it was escaped; a percent sign without two digits stands for itself."""
    return _ESCAPED.sub(_decoded, text)


def folder_name(key: str, text: str | None) -> str:
    """The name of the folder with this value of a key; None is NULL."""
    if text is None:
        value = NULL_NAME
    elif text == NULL_NAME:
        value = f"%{ord(text[0]):02X}{text[1:]}"
    elif text.endswith(TABLE_SUFFIX):
        # It would look like a table.
        value = f"{escaped(text.removesuffix(TABLE_SUFFIX))}%2E{TABLE_SUFFIX[1:]}"
    else:
        value = escaped(text)
    name = f"{escaped(key)}={value}"
    if len(name.encode()) + len(TABLE_SUFFIX) > _MOST_BYTES:
        raise PhalanxError(
            f"Cannot make a partition named {name[:40]}…: a folder's name has at most "
            f"{_MOST_BYTES} bytes, and this one {len(name.encode())}. Partition by truncate, "
            "bucket or hash of the column instead."
        )
    return name


def read_folder_name(name: str) -> tuple[str, str | None] | None:
    """The key and the value of a folder; None for a folder that is no partition."""
    key, separator, value = name.partition("=")
    if not separator:
        return None
    return unescaped(key), None if value == NULL_NAME else unescaped(value)


def _decoded(found: re.Match[str]) -> str:
    octets = bytes.fromhex(found[0].replace("%", ""))
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return found[0]
