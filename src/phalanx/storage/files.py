"""The files of a store: listed with their times, and deleted many at once.

Lance lists no times. The store's own clock gives them, and only times of one store are compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from phalanx.errors import PhalanxError, StorageFailure
from phalanx.model.locations import SCHEME
from phalanx.storage.failures import plain_reason
from phalanx.storage.location import Location
from phalanx.storage.parallel import in_parallel

# What object stores take in one request.
_BATCH = 1000
_LISTED_AT_ONCE = 10_000
# Options of the connection; Lance takes them among those of the store.
_OF_THE_CLIENT = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "timeout",
    "user_agent",
}
# Options that only Lance knows; how it uploads and retries changes nothing here.
_OF_LANCE = ("lance_", "download_retry", "client_", "request_timeout", "new_table_")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file by its path below the folder that was listed."""

    path: str
    bytes: int
    modified: datetime


class Folder:
    """All that is stored below a location."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.is_local = location.is_local
        self._store = store_of(location)

    def files(self) -> list[StoredFile]:
        """Every file, at any depth: one listing, whatever the number of folders."""
        with telling(f"list the files of {self.location}"):
            return [
                StoredFile(found["path"], found["size"], found["last_modified"])
                for chunk in self._store.list(chunk_size=_LISTED_AT_ONCE)
                for found in chunk
            ]

    def folders(self) -> list[str]:
        """The names of the folders directly in it, in order."""
        with telling(f"list the folders of {self.location}"):
            found = self._store.list_with_delimiter()["common_prefixes"]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; those that are gone already are none the worse."""
        batches = [paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH)]
        with telling(f"delete files of {self.location}"):
            in_parallel(self._delete, batches)

    def _delete(self, paths: Sequence[str]) -> None:
        try:
            self._store.delete(list(paths))
        except FileNotFoundError:
            # Another vacuum was first with some of them.
            for path in paths:
                with suppress(FileNotFoundError):
                    self._store.delete(path)

    def remove_empty(self, folders: Iterable[str]) -> None:
        """Remove folders without files, where the store has folders at all."""
        if not self.is_local:
            return
        root = self.location.uri.removeprefix("file://")
        for folder in folders:
            for path, _, _ in os.walk(os.path.join(root, folder), topdown=False):
                with suppress(OSError):
                    os.rmdir(path)


def store_of(location: Location) -> Any:
    """The store below a location, whose paths are those of its files as they are."""
    if not SCHEME.match(location.uri):
        with telling(f"open {location}"):
            return LocalStore(location.uri)
    options = location.storage_options or {}
    client = {key: text for key, text in options.items() if key.lower() in _OF_THE_CLIENT}
    config = {
        key: text
        for key, text in options.items()
        if key not in client and not key.lower().startswith(_OF_LANCE)
    }
    with telling(f"open {location}"):
        if location.is_local:
            return from_url(location.uri)
        return from_url(location.uri, config=config, client_options=client)  # type: ignore[call-overload]


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Errors of the store become one message that says what could not be done."""
    try:
        yield
    except PhalanxError:
        raise
    except (BaseError, OSError, ValueError) as error:
        # Below the first line is how the error looks inside.
        first = ValueError(str(error).split("\n\n")[0])
        raise StorageFailure(f"Cannot {what}: {plain_reason(first)}") from None
