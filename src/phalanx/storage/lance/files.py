"""Listing of files with their modification times, and deletion in batches.

Lance does not list times. They come from the store's own clock: compare only times of one store.
On a file system, nothing behind a symbolic link is listed or deleted, because it may belong to
another table. The folder itself may be a link.
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
from phalanx.storage.lance.failures import summarize_error
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import to_local_path
from phalanx.storage.lance.parallel import map_parallel

# The most paths that object stores delete in one request.
_DELETE_BATCH = 1000
# Paths that only the folders of tables contain.
_TABLE_MARKERS = ("/__manifest/", "/_lance_partitioning.json")
_LIST_CHUNK = 10_000
# Options of the HTTP client, which Lance takes among the storage options.
_CLIENT_OPTIONS = {
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
# With these prefixes Lance takes client options too, also from the environment.
_STORE_PREFIXES = {"s3": "aws_", "az": "azure_", "abfss": "azure_", "gs": "google_"}
# Options of Lance only, for uploads and retries; the store does not take them.
_LANCE_OPTION_PREFIXES = ("lance_", "download_retry", "client_", "request_timeout", "new_table_")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file, with its path relative to the listed folder."""

    path: str
    bytes: int
    modified: datetime


class Folder:
    """Everything stored below a location."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._path = to_local_path(location.uri)
        self._store = None if self._path is not None else open_store(location)

    def list_files(self) -> list[StoredFile]:
        """List all files at any depth, in one listing."""
        with translate_store_errors(f"list the files of {self.location}"):
            if self._store is None:
                return list(self._list_local_files(""))
            return [
                StoredFile(found["path"], found["size"], found["last_modified"])
                for chunk in self._store.list(chunk_size=_LIST_CHUNK)
                for found in chunk
            ]

    def list_folders(self) -> list[str]:
        """List the names of the direct subfolders, sorted; includes links to folders."""
        with translate_store_errors(f"list the folders of {self.location}"):
            if self._store is None:
                with os.scandir(self._local_path("")) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir())
            found = self._store.list_with_delimiter()["common_prefixes"]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; files that are already gone are ignored."""
        batches = [
            paths[start : start + _DELETE_BATCH] for start in range(0, len(paths), _DELETE_BATCH)
        ]
        with translate_store_errors(f"delete files of {self.location}"):
            map_parallel(self._delete, batches)

    def _delete(self, paths: Sequence[str]) -> None:
        if self._store is None:
            self._delete_local(paths)
            return
        try:
            self._store.delete(list(paths))
        except FileNotFoundError:
            # Another vacuum has deleted some of them.
            for path in paths:
                with suppress(FileNotFoundError):
                    self._store.delete(path)

    def remove_empty_folders(self, folders: Iterable[str]) -> None:
        """Remove folders without files, if the store has folders."""
        if self._store is not None:
            return
        for folder in folders:
            if self._is_behind_link(folder):
                continue
            for path, _, _ in os.walk(self._local_path(folder), topdown=False):
                with suppress(OSError):
                    os.rmdir(path)

    # ── on a file system ─────────────────────────────────────────────────────────────────────

    def _local_path(self, path: str) -> str:
        assert self._path is not None
        return os.path.join(self._path, path) if path else self._path

    def _list_local_files(self, folder: str) -> Iterator[StoredFile]:
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            try:
                entries = os.scandir(self._local_path(folder))
            except FileNotFoundError:
                # A vacuum has removed it since the listing began.
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
                    os.unlink(self._local_path(path))

    def _is_behind_link(self, path: str) -> bool:
        """Whether a path leads out of the folder at the time of the call."""
        steps = [step for step in path.split("/") if step]
        return any(
            step == ".." or os.path.islink(self._local_path("/".join(steps[: depth + 1])))
            for depth, step in enumerate(steps)
        )


def find_nested_tables(paths: Iterable[str]) -> frozenset[str]:
    """Return the folders below a root that are tables of their own, given all paths."""
    return frozenset(
        path.partition(mark)[0] for path in paths for mark in _TABLE_MARKERS if mark in path
    )


def is_below(path: str, folders: Set[str]) -> bool:
    """Whether a path is inside one of these folders."""
    if not folders:
        return False
    steps = path.split("/")
    return any("/".join(steps[:depth]) in folders for depth in range(1, len(steps)))


def open_store(location: Location) -> Any:
    """Open the object store of a location; its paths are relative to the location."""
    if not SCHEME.match(location.uri):
        with translate_store_errors(f"open {location}"):
            return LocalStore(location.uri)
    prefix = _STORE_PREFIXES.get(location.uri.partition("://")[0].lower(), "")
    options = {key.lower(): text for key, text in (location.storage_options or {}).items()}
    environment = {key.lower(): text for key, text in os.environ.items()}
    # obstore takes these options from nowhere else.
    client = {
        name: known[key]
        for known in (environment, options)
        for name in _CLIENT_OPTIONS
        for key in (f"{prefix}{name}", name)
        if key in known and (known is options or key != name)
    }
    config = {
        key: text
        for key, text in options.items()
        if key.removeprefix(prefix) not in _CLIENT_OPTIONS
        and not key.startswith(_LANCE_OPTION_PREFIXES)
    }
    with translate_store_errors(f"open {location}"):
        if location.is_local:
            return from_url(location.uri)
        return from_url(location.uri, config=config, client_options=client)  # type: ignore[call-overload]


@contextmanager
def translate_store_errors(what: str) -> Iterator[None]:
    """Raise errors of the store as `StorageFailure` that says what failed."""
    try:
        yield
    except PhalanxError:
        raise
    except (BaseError, OSError, ValueError) as error:
        # The paragraphs after the first are debug output.
        first = ValueError(str(error).split("\n\n")[0])
        raise StorageFailure(f"Cannot {what}: {summarize_error(first)}") from None
