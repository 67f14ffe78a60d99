"""Files of other systems, wherever they are, open for reading."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.fs as fs

# The names that object stores go by here, and what Arrow calls them.
_S3_OPTIONS = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "region": "region",
    "endpoint": "endpoint_override",
    "endpoint_url": "endpoint_override",
}


def opened(path: str, options: Mapping[str, str]) -> pa.NativeFile:
    """The file at a path or URI; OSError if it cannot be opened."""
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
