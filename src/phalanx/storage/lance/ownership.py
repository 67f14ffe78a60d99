"""The namespace that a leaf belongs to: its record in the leaf, and what the record allows.

A leaf inside the root belongs to the table unless its record names another namespace: tables are
moved and copied as a whole, and older ones have no records. Outside the root the record must name
both the namespace and its root: a crafted manifest can copy an id, but cannot change its own root.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from urllib.parse import unquote

import lance

from phalanx.errors import InvalidManifest, UntrustedLocation
from phalanx.model.stored_json import TEXT, read_object

# The key of the record in the metadata of a leaf.
OWNER = "phalanx.namespace"
_FILE = "file://"
_MANIFEST = "__manifest"


@dataclass(frozen=True, slots=True)
class Owner:
    """A namespace: its id, which is empty if another writer created it, and its root."""

    id: str
    root: str

    @classmethod
    def of(cls, dataset: lance.LanceDataset) -> Owner | None:
        """Return the namespace recorded in a leaf; None if there is no record."""
        text = dataset.metadata.get(OWNER)
        if not text:
            return None
        try:
            said = read_object(text, OWNER, {"id": TEXT, "root": TEXT})
        except InvalidManifest:
            # An owner that this version does not know.
            return cls(text, "an unknown root")
        return cls(said["id"], said["root"])

    def to_metadata(self) -> dict[str, str]:
        """Return the record as metadata of a leaf."""
        return {OWNER: json.dumps({"id": self.id or self.root, "root": self.root})}

    def is_same_namespace(self, table: Owner) -> bool:
        """Whether this record names the same namespace, at any root."""
        return self.id == (table.id or self.root)

    def is_same_table(self, table: Owner) -> bool:
        """Whether this record names the same namespace at the same root."""
        return self.is_same_namespace(table) and _is_same_location(self.root, table.root)


def is_same_store(root: str, uri: str) -> bool:
    """Whether a leaf is accessed through the same protocol and host as its table.

    Reading the record of a leaf on another host would send the table's credentials to that host.
    """
    return _endpoint_of(root) == _endpoint_of(uri)


def _endpoint_of(uri: str) -> str:
    if to_local_path(uri) is not None:
        return "file"
    scheme, _, rest = uri.partition("://")
    store = rest.partition("/")[0]
    # S3 and Google have one endpoint for all buckets; Azure has one for each account.
    return scheme if scheme in ("s3", "gs") else f"{scheme}://{store.rpartition('@')[2]}"


def explain_unreadable(table: Owner, uri: str, record: Owner | None) -> str | None:
    """Return why a leaf must not be read unless locations are trusted; None if it may be."""
    if _path_inside(table.root, uri) is not None:
        return None
    return _explain_not_recorded(table, record)


def explain_not_owned(table: Owner, uri: str, record: Owner | None) -> str | None:
    """Return why a leaf must not be written or deleted; None if it may be."""
    inside = _path_inside(table.root, uri)
    if inside is None or has_links(uri):
        return _explain_not_recorded(table, record)
    if record is not None and not record.is_same_namespace(table):
        return f"it belongs to the table at {record.root}"
    if (other := _find_enclosing_table(table.root, inside)) is not None:
        return f"it is inside another table, {other}"
    return None


def canonicalize_path(uri: str) -> str:
    """Return a local path or file URI as an absolute path without links; others as they are.

    >>> canonicalize_path("file:///tables/old/../events")
    '/tables/events'
    """
    path = uri.removeprefix(_FILE)
    return os.path.realpath(path) if path.startswith("/") else uri


def _is_same_location(one: str, other: str) -> bool:
    return canonicalize_path(one).rstrip("/") == canonicalize_path(other).rstrip("/")


def to_local_path(uri: str) -> str | None:
    """Return the path of a location on a file system; None in an object store."""
    if uri.startswith(_FILE):
        return unquote(uri.removeprefix(_FILE))
    return uri if uri.startswith("/") else None


def _explain_not_recorded(table: Owner, record: Owner | None) -> str | None:
    outside = "it is outside the table's folder"
    if record is None:
        return f"{outside}, and has no record of belonging to the table"
    if record.is_same_table(table):
        return None
    return f"{outside}, and belongs to the table at {record.root}"


def _path_inside(root: str, uri: str) -> str | None:
    """Return the path of a leaf below the root; None if it is outside or behind a link."""
    folder, path = to_local_path(root), to_local_path(uri)
    if folder is None or path is None:
        start = f"{root.rstrip('/')}/"
        return uri.removeprefix(start) if uri.startswith(start) else None
    start = folder.rstrip("/") + "/"
    if not path.startswith(start):
        start = os.path.realpath(folder) + "/"
        path = os.path.realpath(path)
    if not path.startswith(start):
        return None
    inside = path.removeprefix(start)
    steps = inside.split("/")
    linked = (os.path.islink(start + "/".join(steps[:depth])) for depth in range(1, len(steps) + 1))
    return None if any(linked) else inside


def check_no_links(uri: str, table: str) -> None:
    """Refuse to write to a folder of the table that is a symbolic link or contains one."""
    path = to_local_path(uri)
    if path is not None and (os.path.islink(path) or has_links(uri)):
        raise UntrustedLocation(
            f"Cannot write to {table}: {path} is a symbolic link or contains one, and the target "
            "may belong to another table. Put the files themselves there, or open the table at "
            "the link's target."
        )


def has_links(uri: str) -> bool:
    """Whether a folder directly contains a symbolic link."""
    path = to_local_path(uri)
    if path is None:
        return False
    try:
        with os.scandir(path) as entries:
            return any(entry.is_symlink() for entry in entries)
    except OSError:
        return False


def _find_enclosing_table(root: str, inside: str) -> str | None:
    """Return another local table whose folder contains a leaf; None if there is none."""
    folder = to_local_path(root)
    if folder is None:
        return None
    steps = inside.split("/")
    for depth in range(1, len(steps)):
        between = "/".join([folder.rstrip("/"), *steps[:depth]])
        if os.path.exists(f"{between}/{_MANIFEST}"):
            return between
    return None
