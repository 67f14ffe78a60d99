"""Open the files that catalogs of other systems list, if they may be opened.

A path in a catalog is untrusted text. It may name a file, but no user and no endpoint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.fs as fs

from phalanx.errors import PhalanxError, UntrustedLocation

# Our names of storage options, and those of Arrow.
_ARROW_S3_OPTIONS = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "region": "region",
    "endpoint": "endpoint_override",
    "endpoint_url": "endpoint_override",
}
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<store>[^/?#]*)(?P<key>.*)", re.DOTALL)
# Schemes that name the same store.
_SCHEME_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}
_SUPPORTED_SCHEMES = ("file", "s3", "gs", "abfs")


def is_inside(path: str, folder: str) -> bool:
    """Return whether a file is below a folder, after following symbolic links.

    >>> is_inside("s3a://lake/sales/../private/x.parquet", "s3://lake/sales")
    False
    """
    store, key = _normalize(path)
    other, root = _normalize(folder)
    return store == other and key.startswith(root.rstrip("/") + "/")


def refuse_outside(path: str, folder: str, owner: str) -> None:
    """Raise for a file that is not below the folder of the table that lists it."""
    if not is_inside(path, folder):
        raise UntrustedLocation(
            f"{owner} lists {path!r}, which is outside of its folder {folder}. Such files are "
            "opened only with trust_locations=True: pass it if you trust the writer of the table."
        )


def _normalize(path: str) -> tuple[str, str]:
    """Return the store of a path, and the path within it without `.` and `..`."""
    found = _URI.fullmatch(path)
    if found is None or found["scheme"].lower() == "file":
        local = path if found is None else found["store"] + found["key"]
        return "file", os.path.realpath(local.removeprefix("file:"))
    scheme = found["scheme"].lower()
    if {".", ".."} & set(found["key"].split("/")):
        # Object stores have no such folders, but a client may resolve them.
        return f"odd {path}", path
    return f"{_SCHEME_ALIASES.get(scheme, scheme)}://{found['store']}", found["key"]


def open_input(path: str, options: Mapping[str, str]) -> pa.NativeFile:
    """Open the file at a path or URI; raise OSError if that fails."""
    found = _URI.fullmatch(path)
    if found is not None:
        scheme = _SCHEME_ALIASES.get(found["scheme"].lower(), found["scheme"].lower())
        names_more = "?" in path or "#" in path or ("@" in found["store"] and scheme != "abfs")
        if scheme not in _SUPPORTED_SCHEMES or names_more:
            # Arrow reads connection settings from the query string.
            raise PhalanxError(
                f"Cannot read {path!r}: expected a path, or a URI with the scheme "
                f"{', '.join(_SUPPORTED_SCHEMES)} that names a file and no user or settings."
            )
    if path.startswith(("s3://", "s3a://")):
        return _s3_file_system(options).open_input_file(path.partition("://")[2])
    if "://" in path:
        system, inside = fs.FileSystem.from_uri(path)
        return system.open_input_file(inside)
    return fs.LocalFileSystem().open_input_file(path)


def _s3_file_system(options: Mapping[str, str]) -> fs.FileSystem:
    known = {}
    for name, value in options.items():
        plain = name.lower().removeprefix("aws_")
        if plain in _ARROW_S3_OPTIONS:
            known[_ARROW_S3_OPTIONS[plain]] = value
        elif plain == "allow_http" and str(value).lower() in ("true", "1"):
            known["scheme"] = "http"
    return fs.S3FileSystem(**known)
