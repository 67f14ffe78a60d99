"""The files of the Hive-style layout: its folders, and the file with its properties.

Folders are listed level by level, many in parallel. As in Hive, names that begin with `_` or `.`
are ignored, and so are names that are not `key=value`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from obstore.exceptions import AlreadyExistsError, NotFoundError

from phalanx.errors import PhalanxError
from phalanx.model.locations import SCHEME
from phalanx.model.specs.hive_paths import TABLE_SUFFIX, parse_folder_name
from phalanx.model.stored_json import read_object
from phalanx.storage.lance.files import open_store, translate_store_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel

# Stock clients list only names that end in .lance.
PROPERTIES_FILE = "_lance_partitioning.json"
_VERSIONS = "_versions"
_HIDDEN_PREFIXES = ("_", ".")
# Stock clients name the folders of tables in their manifest like this.
_MANIFEST_TABLE_NAME = re.compile(r"[0-9a-f]{8}_.+")
_FILE_SCHEME = "file://"


class HiveFiles:
    """The folders and the properties file below a root."""

    def __init__(self, root: Location) -> None:
        self.root = root
        self._path = _local_path(root)
        self._store = None if self._path is not None else open_store(root)

    # ── properties ───────────────────────────────────────────────────────────────────────────

    def read_properties(self) -> dict[str, str] | None:
        """Read the properties file; None if there is none."""
        with translate_store_errors(f"open {self.root}"):
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
        """Write the properties file; False if there is one already."""
        with translate_store_errors(f"create {self.root}"):
            if self._path is not None:
                os.makedirs(self._path, exist_ok=True)
            store = open_store(self.root)
            text = json.dumps(dict(properties), indent=2, ensure_ascii=False)
            try:
                store.put(PROPERTIES_FILE, text.encode(), mode="create")
            except (AlreadyExistsError, FileExistsError):
                return False
            return True

    def remove_properties(self) -> None:
        """Remove the properties file, if it exists."""
        with translate_store_errors(f"upgrade {self.root}"):
            try:
                open_store(self.root).delete(PROPERTIES_FILE)
            except (FileNotFoundError, NotFoundError):
                return

    # ── leaves ───────────────────────────────────────────────────────────────────────────────

    def list_leaves(self, keys: Sequence[str]) -> list[tuple[str, list[str | None]]]:
        """Return the path of every leaf folder below the root, and the texts of its values."""
        with translate_store_errors(f"list the partitions of {self.root}"):
            level: list[tuple[str, list[str | None]]] = [("", [])]
            for depth, key in enumerate(keys):
                is_last = depth == len(keys) - 1
                inside = map_parallel(lambda each: self._list_folders(each[0]), level)
                level = [
                    (f"{path}/{name}" if path else name, [*texts, text])
                    for (path, texts), names in zip(level, inside, strict=True)
                    for name in names
                    for text in self._parse_name(path, name, key, is_last)
                ]
            return level

    def parse_names(self, names: Sequence[str], keys: Sequence[str]) -> list[str | None] | None:
        """Return the texts of the values in folder names; None if they are not of a leaf."""
        texts: list[str | None] = []
        for depth, name in enumerate(names):
            # Names deeper than the partitioning are refused like unexpected folders.
            key, is_last = keys[min(depth, len(keys) - 1)], depth == len(keys) - 1
            found = self._parse_name("/".join(names[:depth]), name, key, is_last)
            if not found:
                return None
            texts += found
        return texts if len(texts) == len(keys) else None

    def to_uri_path(self, path: str) -> str:
        """Convert a path below the root to a location: URIs escape percent signs again."""
        return path.replace("%", "%25") if SCHEME.match(self.root.uri) else path

    def has_versions(self, path: str) -> bool:
        """Whether a folder has a Lance table: a dead writer may have left an empty folder."""
        with translate_store_errors(f"list the partitions of {self.root}"):
            if self._path is None:
                listed = self._store.list(f"{path}/{_VERSIONS}", chunk_size=1)  # type: ignore[union-attr]
                return any(len(chunk) for chunk in listed)
            try:
                return bool(os.listdir(os.path.join(self._path, path, _VERSIONS)))
            except (FileNotFoundError, NotADirectoryError):
                return False

    def _parse_name(self, parent: str, name: str, key: str, is_last: bool) -> list[str | None]:
        """Return the text of a folder's value in a list, which is empty for other folders."""
        is_table = name.endswith(TABLE_SUFFIX)
        if name.startswith(_HIDDEN_PREFIXES) or "=" not in name:
            return []
        read = parse_folder_name(name.removesuffix(TABLE_SUFFIX) if is_last else name)
        assert read is not None
        if read[0] == key and is_table == is_last:
            return [read[1]]
        if not parent and _MANIFEST_TABLE_NAME.fullmatch(name):
            return []
        expected = f"{key}=<value>{TABLE_SUFFIX if is_last else ''}"
        raise PhalanxError(
            f"Cannot read {self.root}: it has a folder {f'{parent}/{name}'.lstrip('/')}, expected "
            f"{expected} there. Its rows belong to no partition: move it out of the table, or "
            "open the table with the properties that it has."
        )

    def _list_folders(self, path: str) -> list[str]:
        """Return the names of the folders directly in a folder."""
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
    return (
        unquote(root.uri.removeprefix(_FILE_SCHEME))
        if root.uri.startswith(_FILE_SCHEME)
        else root.uri
    )
