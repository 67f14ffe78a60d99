"""Folders of tables: list, create, move and remove them.

A folder with a manifest is a table, and a folder with versions is a Lance table; any other folder
may contain tables. Names that begin with `_` or `.` are hidden.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from phalanx.errors import PhalanxError, StorageFailure
from phalanx.storage.lance.files import Folder, find_nested_tables, is_below
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.manifest.manifest import MANIFEST_DIRECTORY
from phalanx.storage.state.naming import LEAF_DIRECTORY

_LANCE_VERSIONS = "_versions"
_HIDDEN = ("_", ".")
# Linux's AT_FDCWD and RENAME_EXCHANGE, the arguments of renameat2.
_CURRENT_DIRECTORY, _RENAME_EXCHANGE = -100, 2


@dataclass(frozen=True, slots=True)
class FolderListing:
    """The tables and folders directly in a folder, sorted by name."""

    tables: tuple[str, ...]
    folders: tuple[str, ...]


def list_folder(location: Location) -> FolderListing | None:
    """Return the tables and folders directly in a folder; None if it does not exist."""
    names = _list_names(location)
    if names is None:
        return None
    shown = [name for name in names if not name.startswith(_HIDDEN)]
    inside = map_parallel(lambda name: _list_names(location.subfolder(name)) or [], shown)
    kinds = dict(zip(shown, inside, strict=True))
    candidates = [name for name in shown if MANIFEST_DIRECTORY in kinds[name]]

    def is_table(name: str) -> bool:
        return _LANCE_VERSIONS in (
            _list_names(location.subfolder(name).subfolder(MANIFEST_DIRECTORY)) or []
        )

    checks = map_parallel(is_table, candidates)
    return FolderListing(
        tuple(name for name, is_one in zip(candidates, checks, strict=True) if is_one),
        tuple(
            name
            for name in shown
            if not {MANIFEST_DIRECTORY, _LANCE_VERSIONS} & {*kinds[name]}
            and not _is_unfinished(kinds[name])
        ),
    )


def _is_unfinished(names: Sequence[str]) -> bool:
    """Whether folder names are those of a table whose creation has not finished.

    It has leaves, and at most some files of a manifest.
    """
    return bool(names) and all(
        name == MANIFEST_DIRECTORY or LEAF_DIRECTORY.fullmatch(name) for name in names
    )


def has_anything(location: Location) -> bool:
    """Whether there is a file or a folder at a location."""
    if location.is_local:
        return _local_path(location).exists()
    return bool(Folder(location).list_files())


def is_unfinished(location: Location) -> bool:
    """Whether a folder has only files of writers that died before they created a table.

    Vacuum removes them once a table exists there.
    """
    paths = [file.path.split("/") for file in Folder(location).list_files()]
    return all(len(path) > 1 for path in paths) and _is_unfinished([path[0] for path in paths])


def is_empty_folder(location: Location) -> bool:
    """Whether a folder is empty."""
    return not (
        any(_local_path(location).iterdir()) if location.is_local else Folder(location).list_files()
    )


def _list_names(location: Location) -> list[str] | None:
    """Return the names of the folders in a folder, including hidden ones."""
    if location.is_local and not _local_path(location).is_dir():
        return None
    return Folder(location).list_folders()


def is_visible_name(part: str) -> bool:
    """Whether a text can be the name of a folder that is not hidden."""
    return bool(part) and not part.startswith(_HIDDEN) and "/" not in part and "\\" not in part


def check_name(name: Sequence[str]) -> None:
    """Refuse a name with a part that is hidden or cannot be the name of a folder."""
    for part in name:
        if not is_visible_name(part):
            raise PhalanxError(
                f"Cannot use the name {part!r}: it becomes the name of a folder. Expected one "
                "without slashes that does not begin with '_' or '.'."
            )


def make_folder(location: Location) -> None:
    """Create a folder; object stores have no empty folders."""
    if location.is_local:
        with _translate_errors(f"create the folder {location}"):
            _local_path(location).mkdir(parents=True, exist_ok=True)


def remove_folder(location: Location) -> None:
    """Remove an empty folder."""
    if location.is_local:
        with _translate_errors(f"remove the folder {location}"):
            os.rmdir(_local_path(location))


def remove_table(location: Location) -> None:
    """Remove a table and its folder, the manifest first, so that the table disappears at once.

    Symbolic links are removed, but not their targets. Other tables inside the folder stay, and so
    do partitions outside it.
    """
    if location.is_local and _local_path(location).is_symlink():
        # The target of the link is not in this folder, and may have other users.
        with _translate_errors(f"remove the link {location}"):
            _local_path(location).unlink()
        return
    if location.is_local and not _local_path(location).exists():
        return
    folder = Folder(location)
    paths = [file.path for file in folder.list_files()]
    others = find_nested_tables(paths)
    paths = [path for path in paths if not is_below(path, others)]
    is_manifest = [path.startswith(f"{MANIFEST_DIRECTORY}/") for path in paths]
    for wanted in (True, False):
        chosen = [path for path, is_one in zip(paths, is_manifest, strict=True) if is_one is wanted]
        folder.delete(chosen)
    if location.is_local:
        _remove_rest(_local_path(location))


def _remove_rest(path: Path) -> None:
    """Remove what is left of a table: empty folders and symbolic links."""
    for folder, names, files in os.walk(path, topdown=False):
        for name in (*names, *files):
            link = os.path.join(folder, name)
            if os.path.islink(link):
                with suppress(OSError):
                    os.unlink(link)
        with suppress(OSError):
            os.rmdir(folder)


def move_table(source: Location, target: Location, set_aside: Location | None = None) -> None:
    """Move a table on a file system.

    An existing table at the target moves to `set_aside`. On Linux the two are exchanged in one
    step; on other systems the target is missing for a moment. Without `set_aside` the target must
    not exist.
    """
    old = None if set_aside is None else _local_path(set_aside)
    path = _local_path(target)
    with _translate_errors(f"move the new table to {target}"):
        if old is not None and _try_exchange(_local_path(source), path):
            _local_path(source).rename(old)
            return
        if old is not None:
            path.rename(old)
        try:
            _local_path(source).rename(path)
        except OSError:
            if old is not None:
                old.rename(path)
            raise


def _try_exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False if the system cannot."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if swap is None:
        return False
    return not swap(
        _CURRENT_DIRECTORY,
        os.fsencode(one),
        _CURRENT_DIRECTORY,
        os.fsencode(other),
        _RENAME_EXCHANGE,
    )


def remove_abandoned(location: Location, prefixes: Sequence[str], older_than: timedelta) -> None:
    """Remove hidden tables in a folder that have not changed for some time."""
    if not location.is_local or not _local_path(location).is_dir():
        return
    moment = datetime.now(UTC) - older_than
    for name in _list_names(location) or []:
        if name.startswith(tuple(prefixes)):
            left = location.subfolder(name)
            # Another process may remove it too.
            with suppress(PhalanxError, OSError):
                made = datetime.fromtimestamp(_local_path(left).stat().st_mtime, UTC)
                times = [made, *(file.modified for file in Folder(left).list_files())]
                if max(times) < moment:
                    remove_table(left)


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailure(f"Cannot {what}: {error.strerror}. Check the path.") from None


def _local_path(location: Location) -> Path:
    return Path(location.uri.removeprefix("file://"))
