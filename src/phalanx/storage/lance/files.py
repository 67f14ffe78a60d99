"""The files of a store: listed with their times, and deleted many at once.

Lance lists no times. The store's own clock gives them, and only times of one store are compared.
On a file system nothing behind a symbolic link is listed or deleted: it belongs to whoever has it
elsewhere. The folder itself may be a link.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from phalanx.errors import PhalanxError, StorageFailure
from phalanx.model.locations import SCHEME
from phalanx.storage.lance.failures import plain_reason
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import local_path
from phalanx.storage.lance.parallel import in_parallel

# What object stores take in one request.
_BATCH = 1000
# What only the folders of tables have in them.
_MARKS_OF_TABLES = ("/__manifest/", "/_lance_partitioning.json")
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
        self._path = local_path(location.uri)
        self._store = None if self._path is not None else store_of(location)

    def files(self) -> list[StoredFile]:
        """Every file, at any depth: one listing, whatever the number of folders."""
        with telling(f"list the files of {self.location}"):
            if self._store is None:
                return list(self._local_files(""))
            return [
                StoredFile(found["path"], found["size"], found["last_modified"])
                for chunk in self._store.list(chunk_size=_LISTED_AT_ONCE)
                for found in chunk
            ]

    def folders(self) -> list[str]:
        """The names of the folders directly in it, in order; also of links to folders."""
        with telling(f"list the folders of {self.location}"):
            if self._store is None:
                with os.scandir(self._at("")) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir())
            found = self._store.list_with_delimiter()["common_prefixes"]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; those that are gone already are none the worse."""
        batches = [paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH)]
        with telling(f"delete files of {self.location}"):
            in_parallel(self._delete, batches)

    def _delete(self, paths: Sequence[str]) -> None:
        if self._store is None:
            self._delete_local(paths)
            return
        try:
            self._store.delete(list(paths))
        except FileNotFoundError:
            # Another vacuum was first with some of them.
            for path in paths:
                with suppress(FileNotFoundError):
                    self._store.delete(path)

    def remove_empty(self, folders: Iterable[str]) -> None:
        """Remove folders without files, where the store has folders at all."""
        if self._store is not None:
            return
        for folder in folders:
            if self._is_behind_link(folder):
                continue
            for path, _, _ in os.walk(self._at(folder), topdown=False):
                with suppress(OSError):
                    os.rmdir(path)

    # ── on a file system ─────────────────────────────────────────────────────────────────────

    def _at(self, path: str) -> str:
        assert self._path is not None
        return os.path.join(self._path, path) if path else self._path

    def _local_files(self, folder: str) -> Iterator[StoredFile]:
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            try:
                entries = os.scandir(self._at(folder))
            except FileNotFoundError:
                # A vacuum has removed it since it was listed.
                continue
            with entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    elif entry.is_file(follow_symlinks=False):
                        with suppress(FileNotFoundError):
                            found = entry.stat(follow_symlinks=False)
                            made = datetime.fromtimestamp(found.st_mtime, UTC)
                            yield StoredFile(path, found.st_size, made)

    def _delete_local(self, paths: Sequence[str]) -> None:
        linked: dict[str, bool] = {}
        for path in paths:
            parent = os.path.dirname(path)
            if parent not in linked:
                linked[parent] = self._is_behind_link(parent)
            if not linked[parent]:
                with suppress(FileNotFoundError):
                    os.unlink(self._at(path))

    def _is_behind_link(self, path: str) -> bool:
        """Whether a path leads out of the folder, now that something is to be removed there."""
        steps = [step for step in path.split("/") if step]
        return any(
            step == ".." or os.path.islink(self._at("/".join(steps[: depth + 1])))
            for depth, step in enumerate(steps)
        )


def tables_inside(paths: Iterable[str]) -> frozenset[str]:
    """The folders below a root that are tables of their own, from the paths of all its files."""
    return frozenset(
        path.partition(mark)[0] for path in paths for mark in _MARKS_OF_TABLES if mark in path
    )


def is_below(path: str, folders: Set[str]) -> bool:
    """Whether a path is that of something in one of these folders."""
    if not folders:
        return False
    steps = path.split("/")
    return any("/".join(steps[:depth]) in folders for depth in range(1, len(steps)))


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
