"""Files that catalogs of other systems list: which of them may be opened, and how.

A path in a catalog is a stranger's text. It names a file and nothing else: no user, no endpoint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.fs as fs

from phalanx.errors import PhalanxError

# The names that object stores go by here, and what Arrow calls them.
_S3_OPTIONS = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "region": "region",
    "endpoint": "endpoint_override",
    "endpoint_url": "endpoint_override",
}
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<store>[^/?#]*)(?P<key>.*)", re.DOTALL)
# The schemes that mean the same store.
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}
_READ_FROM = ("file", "s3", "gs", "abfs")


def is_inside(path: str, folder: str) -> bool:
    """Whether a file is below a folder; links on a file system are followed to find out.

    >>> is_inside("s3a://lake/sales/../private/x.parquet", "s3://lake/sales")
    False
    """
    store, key = _place(path)
    other, root = _place(folder)
    return store == other and key.startswith(root.rstrip("/") + "/")


def refuse_outside(path: str, folder: str, whose: str) -> None:
    """Refuse to touch a file that is not below the folder of the table that lists it."""
    if not is_inside(path, folder):
        raise PhalanxError(
            f"{whose} lists {path!r}, which is outside of its folder {folder}. Files elsewhere are "
            "opened only with trust_locations=True: pass it if you trust who wrote the table."
        )


def _place(path: str) -> tuple[str, str]:
    """The store of a path, and its place there without `.` and `..`."""
    found = _URI.fullmatch(path)
    if found is None or found["scheme"].lower() == "file":
        local = path if found is None else found["store"] + found["key"]
        return "file", os.path.realpath(local.removeprefix("file:"))
    scheme = found["scheme"].lower()
    if {".", ".."} & set(found["key"].split("/")):
        # An object store has no such folders, yet a client may resolve them.
        return f"odd {path}", path
    return f"{_SAME_STORE.get(scheme, scheme)}://{found['store']}", found["key"]


def opened(path: str, options: Mapping[str, str]) -> pa.NativeFile:
    """The file at a path or URI; OSError if it cannot be opened."""
    found = _URI.fullmatch(path)
    if found is not None:
        scheme = _SAME_STORE.get(found["scheme"].lower(), found["scheme"].lower())
        names_more = "?" in path or "#" in path or ("@" in found["store"] and scheme != "abfs")
        if scheme not in _READ_FROM or names_more:
            # Arrow takes settings of the connection from what follows a question mark.
            raise PhalanxError(
                f"Cannot read {path!r}: expected a path, or a URI of {', '.join(_READ_FROM)} that "
                "names a file and no user or settings."
            )
    if path.startswith(("s3://", "s3a://")):
        return _s3(options).open_input_file(path.partition("://")[2])
    if "://" in path:
        system, inside = fs.FileSystem.from_uri(path)
        return system.open_input_file(inside)
    return fs.LocalFileSystem().open_input_file(path)


def _s3(options: Mapping[str, str]) -> fs.FileSystem:
    known = {}
    for name, value in options.items():
        plain = name.lower().removeprefix("aws_")
        if plain in _S3_OPTIONS:
            known[_S3_OPTIONS[plain]] = value
        elif plain == "allow_http" and str(value).lower() in ("true", "1"):
            known["scheme"] = "http"
    return fs.S3FileSystem(**known)
