"""Folders of tables: which tables and folders are in one, and how a whole table goes away.

A folder is a table if it has a manifest, and a Lance table of its own if it has versions; every
other folder may hold tables. Names that begin with `_` or `.` are hidden.
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
from phalanx.storage.lance.files import Folder, is_below, tables_inside
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.manifest.manifest import DIRECTORY
from phalanx.storage.state.naming import LEAF_DIRECTORY

_LANCE_VERSIONS = "_versions"
_HIDDEN = ("_", ".")
# Paths that begin where the process is; two that change places.
_HERE, _EXCHANGE = -100, 2


@dataclass(frozen=True, slots=True)
class Listed:
    """What is in a folder, in the order of the names."""

    tables: tuple[str, ...]
    folders: tuple[str, ...]


def listed(location: Location) -> Listed | None:
    """The tables and folders directly in a folder; None if there is no such folder."""
    names = _names(location)
    if names is None:
        return None
    shown = [name for name in names if not name.startswith(_HIDDEN)]
    inside = in_parallel(lambda name: _names(location.own(name)) or [], shown)
    kinds = dict(zip(shown, inside, strict=True))
    candidates = [name for name in shown if DIRECTORY in kinds[name]]

    def is_table(name: str) -> bool:
        return _LANCE_VERSIONS in (_names(location.own(name).own(DIRECTORY)) or [])

    checks = in_parallel(is_table, candidates)
    return Listed(
        tuple(name for name, is_one in zip(candidates, checks, strict=True) if is_one),
        tuple(
            name
            for name in shown
            if not {DIRECTORY, _LANCE_VERSIONS} & {*kinds[name]} and not _is_unfinished(kinds[name])
        ),
    )


def _is_unfinished(names: Sequence[str]) -> bool:
    """Whether folders are those of a table that is being made, or never was: leaves, and at most
    files of a manifest.
    """
    return bool(names) and all(
        name == DIRECTORY or LEAF_DIRECTORY.fullmatch(name) for name in names
    )


def holds_anything(location: Location) -> bool:
    """Whether there is a file or a folder at a place."""
    if location.is_local:
        return _path(location).exists()
    return bool(Folder(location).files())


def is_unfinished(location: Location) -> bool:
    """Whether all that is in a folder was left by writers that died before they made a table.

    Vacuum removes it, once there is one.
    """
    paths = [file.path.split("/") for file in Folder(location).files()]
    return all(len(path) > 1 for path in paths) and _is_unfinished([path[0] for path in paths])


def is_empty(location: Location) -> bool:
    """Whether nothing is in a folder."""
    return not (any(_path(location).iterdir()) if location.is_local else Folder(location).files())


def _names(location: Location) -> list[str] | None:
    """The names of the folders in a folder, also of the hidden ones."""
    if location.is_local and not _path(location).is_dir():
        return None
    return Folder(location).folders()


def is_name(part: str) -> bool:
    """Whether it can be the name of a folder that is not hidden."""
    return bool(part) and not part.startswith(_HIDDEN) and "/" not in part and "\\" not in part


def check_name(name: Sequence[str]) -> None:
    """Refuse a name that cannot be that of a folder, or is hidden."""
    for part in name:
        if not is_name(part):
            raise PhalanxError(
                f"Cannot use the name {part!r}: it becomes the name of a folder. Expected one "
                "without slashes that does not begin with '_' or '.'."
            )


def make_folder(location: Location) -> None:
    """Make a folder; object stores have none before there is something in it."""
    if location.is_local:
        with _told(f"make the folder {location}"):
            _path(location).mkdir(parents=True, exist_ok=True)


def remove_folder(location: Location) -> None:
    """Remove an empty folder."""
    if location.is_local:
        with _told(f"remove the folder {location}"):
            os.rmdir(_path(location))


def remove_table(location: Location) -> None:
    """Remove a table with all that is in its folder; it is gone with its manifest, first.

    Symbolic links are removed, and what they link to stays. So do other tables inside of the
    folder, and partitions outside of it.
    """
    if location.is_local and _path(location).is_symlink():
        # What it links to is not in this folder, and may have other users.
        with _told(f"remove the link {location}"):
            _path(location).unlink()
        return
    if location.is_local and not _path(location).exists():
        return
    folder = Folder(location)
    paths = [file.path for file in folder.files()]
    others = tables_inside(paths)
    paths = [path for path in paths if not is_below(path, others)]
    is_manifest = [path.startswith(f"{DIRECTORY}/") for path in paths]
    for wanted in (True, False):
        chosen = [path for path, is_one in zip(paths, is_manifest, strict=True) if is_one is wanted]
        folder.delete(chosen)
    if location.is_local:
        _remove_rest(_path(location))


def _remove_rest(path: Path) -> None:
    """Remove what is left of a table: folders without files, and symbolic links."""
    for folder, names, files in os.walk(path, topdown=False):
        for name in (*names, *files):
            link = os.path.join(folder, name)
            if os.path.islink(link):
                with suppress(OSError):
                    os.unlink(link)
        with suppress(OSError):
            os.rmdir(folder)


def move_table(source: Location, target: Location, set_aside: Location | None = None) -> None:
    """Give a table on a file system another place.

    What is there already goes to `set_aside`; on Linux the two change places at one moment, and
    elsewhere there is one without either. Without `set_aside` nothing may be there.
    """
    old = None if set_aside is None else _path(set_aside)
    place = _path(target)
    with _told(f"have the new table take the place {target}"):
        if old is not None and _exchanged(_path(source), place):
            _path(source).rename(old)
            return
        if old is not None:
            place.rename(old)
        try:
            _path(source).rename(place)
        except OSError:
            if old is not None:
                old.rename(place)
            raise


def _exchanged(one: Path, other: Path) -> bool:
    """Have two folders change places, in one step; False where the system has none for it."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if swap is None:
        return False
    return not swap(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE)


def remove_left(location: Location, prefixes: Sequence[str], older_than: timedelta) -> None:
    """Remove hidden tables in a folder that whoever made them has left: nothing changed since."""
    if not location.is_local or not _path(location).is_dir():
        return
    moment = datetime.now(UTC) - older_than
    for name in _names(location) or []:
        if name.startswith(tuple(prefixes)):
            left = location.own(name)
            # Another one may remove it too.
            with suppress(PhalanxError, OSError):
                made = datetime.fromtimestamp(_path(left).stat().st_mtime, UTC)
                times = [made, *(file.modified for file in Folder(left).files())]
                if max(times) < moment:
                    remove_table(left)


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailure(f"Cannot {what}: {error.strerror}. Look at what is there.") from None


def _path(location: Location) -> Path:
    return Path(location.uri.removeprefix("file://"))
