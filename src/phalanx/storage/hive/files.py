"""The Hive-style layout on a store: its folders, and the file with its properties.

Folders are listed level by level, many at once. Names that begin with `_` or `.` are of other
tools, as everywhere in Hive's world, and so is everything that is no `key=value`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from obstore.exceptions import AlreadyExistsError, NotFoundError

from phalanx.errors import PhalanxError
from phalanx.model.hive_names import TABLE_SUFFIX, read_folder_name
from phalanx.model.locations import SCHEME
from phalanx.model.stored_json import read_object
from phalanx.storage.lance.files import store_of, telling
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel

# Directory listings of stock clients show what ends in .lance only.
PROPERTIES_FILE = "_lance_partitioning.json"
_VERSIONS = "_versions"
_OF_OTHERS = ("_", ".")
# How stock clients name the folders of tables that their manifest lists.
_OF_A_MANIFEST = re.compile(r"[0-9a-f]{8}_.+")
_FILE = "file://"


class HiveFiles:
    """The folders below a root."""

    def __init__(self, root: Location) -> None:
        self.root = root
        self._path = _local_path(root)
        self._store = None if self._path is not None else store_of(root)

    # ── properties ───────────────────────────────────────────────────────────────────────────

    def read_properties(self) -> dict[str, str] | None:
        """What the file of properties says; None if there is none."""
        with telling(f"open {self.root}"):
            try:
                if self._path is not None:
                    with open(os.path.join(self._path, PROPERTIES_FILE), encoding="utf-8") as file:
                        text = file.read()
                else:
                    found = self._store.get(PROPERTIES_FILE)  # type: ignore[union-attr]
                    text = bytes(found.bytes()).decode()
            except (FileNotFoundError, NotADirectoryError, NotFoundError):
                return None
        stored = read_object(text, f"{PROPERTIES_FILE} of {self.root}", {})
        return {key: each for key, each in stored.items() if isinstance(each, str)}

    def create_properties(self, properties: Mapping[str, str]) -> bool:
        """Write the file as a whole; False if there is one already."""
        with telling(f"create {self.root}"):
            if self._path is not None:
                os.makedirs(self._path, exist_ok=True)
            store = store_of(self.root)
            text = json.dumps(dict(properties), indent=2, ensure_ascii=False)
            try:
                store.put(PROPERTIES_FILE, text.encode(), mode="create")
            except (AlreadyExistsError, FileExistsError):
                return False
            return True

    def remove_properties(self) -> None:
        """Remove the file, if it is there."""
        with telling(f"upgrade {self.root}"):
            try:
                store_of(self.root).delete(PROPERTIES_FILE)
            except (FileNotFoundError, NotFoundError):
                return

    # ── leaves ───────────────────────────────────────────────────────────────────────────────

    def leaves(self, keys: Sequence[str]) -> list[tuple[str, list[str | None]]]:
        """Every folder of a leaf, by its path below the root, and the texts of its values."""
        with telling(f"list the partitions of {self.root}"):
            level: list[tuple[str, list[str | None]]] = [("", [])]
            for depth, key in enumerate(keys):
                is_last = depth == len(keys) - 1
                inside = in_parallel(lambda each: self._folders(each[0]), level)
                level = [
                    (f"{path}/{name}" if path else name, [*texts, text])
                    for (path, texts), names in zip(level, inside, strict=True)
                    for name in names
                    for text in self._value(path, name, key, is_last)
                ]
            return level

    def values(self, names: Sequence[str], keys: Sequence[str]) -> list[str | None] | None:
        """The texts of the values in such names of folders; None if they are of others."""
        texts: list[str | None] = []
        for depth, name in enumerate(names):
            # What is deeper than the partitioning is refused as a folder of another one.
            key, is_last = keys[min(depth, len(keys) - 1)], depth == len(keys) - 1
            found = self._value("/".join(names[:depth]), name, key, is_last)
            if not found:
                return None
            texts += found
        return texts if len(texts) == len(keys) else None

    def uri_path(self, path: str) -> str:
        """A path below the root as a location has it: URIs escape percent signs once more."""
        return path.replace("%", "%25") if SCHEME.match(self.root.uri) else path

    def has_version(self, path: str) -> bool:
        """Whether there is a Lance table: a writer that died may have left a folder alone."""
        with telling(f"list the partitions of {self.root}"):
            if self._path is None:
                listed = self._store.list(f"{path}/{_VERSIONS}", chunk_size=1)  # type: ignore[union-attr]
                return any(len(chunk) for chunk in listed)
            try:
                return bool(os.listdir(os.path.join(self._path, path, _VERSIONS)))
            except (FileNotFoundError, NotADirectoryError):
                return False

    def _value(self, parent: str, name: str, key: str, is_last: bool) -> list[str | None]:
        """The text of a folder's value, in a list; nothing for a folder of others."""
        is_table = name.endswith(TABLE_SUFFIX)
        if name.startswith(_OF_OTHERS) or "=" not in name:
            return []
        read = read_folder_name(name.removesuffix(TABLE_SUFFIX) if is_last else name)
        assert read is not None
        if read[0] == key and is_table == is_last:
            return [read[1]]
        if not parent and _OF_A_MANIFEST.fullmatch(name):
            return []
        expected = f"{key}=<value>{TABLE_SUFFIX if is_last else ''}"
        raise PhalanxError(
            f"Cannot read {self.root}: it has a folder {f'{parent}/{name}'.lstrip('/')}, expected "
            f"{expected} there. Its rows belong to no partition: move it out of the table, or "
            "open the table with the properties that it has."
        )

    def _folders(self, path: str) -> list[str]:
        """The names of the folders right below one."""
        if self._path is None:
            listed = self._store.list_with_delimiter(path or None)  # type: ignore[union-attr]
            return sorted(prefix.rpartition("/")[2] for prefix in listed["common_prefixes"])
        try:
            with os.scandir(os.path.join(self._path, path)) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return []


def _local_path(root: Location) -> str | None:
    if not root.is_local:
        return None
    return unquote(root.uri.removeprefix(_FILE)) if root.uri.startswith(_FILE) else root.uri
