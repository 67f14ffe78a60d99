"""To which namespace a leaf belongs: what is written down in it, and what that allows.

A leaf inside the root is the table's unless its record names another namespace: tables are moved
and copied as a whole, and older ones have no records. Outside the root the record must name both
the namespace and its root: a crafted manifest can copy an id, but not move to another root.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from urllib.parse import unquote

import lance

from phalanx.errors import InvalidManifest, UntrustedLocation
from phalanx.model.stored_json import TEXT, read_object

# The key in the metadata of a leaf under which its namespace is written down.
OWNER = "phalanx.namespace"
_FILE = "file://"
_MANIFEST = "__manifest"


@dataclass(frozen=True, slots=True)
class Owner:
    """A namespace: its id, which is empty where another writer made it, and its root."""

    id: str
    root: str

    @classmethod
    def of(cls, dataset: lance.LanceDataset) -> Owner | None:
        """The namespace that a leaf is recorded to belong to; None if there is no record."""
        text = dataset.metadata.get(OWNER)
        if not text:
            return None
        try:
            said = read_object(text, OWNER, {"id": TEXT, "root": TEXT})
        except InvalidManifest:
            # Nobody's whom we know.
            return cls(text, "an unknown place")
        return cls(said["id"], said["root"])

    def to_metadata(self) -> dict[str, str]:
        """The record, as the metadata of a leaf has it."""
        return {OWNER: json.dumps({"id": self.id or self.root, "root": self.root})}

    def names(self, table: Owner) -> bool:
        """Whether this record is of the same namespace, wherever that is by now."""
        return self.id == (table.id or self.root)

    def is_at(self, table: Owner) -> bool:
        """Whether this record is of the same namespace at the same root."""
        return self.names(table) and _same(self.root, table.root)


def is_same_store(root: str, uri: str) -> bool:
    """Whether a leaf is reached the way its table is: by the same protocol, and the same host.

    To ask another one for the record of a leaf would send it the table's credentials.
    """
    return _host(root) == _host(uri)


def _host(place: str) -> str:
    if local_path(place) is not None:
        return "file"
    scheme, _, rest = place.partition("://")
    store = rest.partition("/")[0]
    # All buckets of S3 and Google are behind one endpoint; in Azure an account has its own.
    return scheme if scheme in ("s3", "gs") else f"{scheme}://{store.rpartition('@')[2]}"


def why_unreadable(table: Owner, uri: str, record: Owner | None) -> str | None:
    """Why a leaf must not be read unless its location is trusted; None if it may."""
    if _inside(table.root, uri) is not None:
        return None
    return _why_not_recorded(table, record)


def why_not_ours(table: Owner, uri: str, record: Owner | None) -> str | None:
    """Why a leaf must be neither written nor deleted; None if it may."""
    inside = _inside(table.root, uri)
    if inside is None or has_links(uri):
        return _why_not_recorded(table, record)
    if record is not None and not record.names(table):
        return f"it belongs to the table at {record.root}"
    if (other := _table_between(table.root, inside)) is not None:
        return f"it is inside of another table, {other}"
    return None


def canonical(place: str) -> str:
    """The one spelling of a local place: an absolute path without links; others stay as they are.

    >>> canonical("file:///tables/old/../events")
    '/tables/events'
    """
    path = place.removeprefix(_FILE)
    return os.path.realpath(path) if path.startswith("/") else place


def _same(one: str, other: str) -> bool:
    return canonical(one).rstrip("/") == canonical(other).rstrip("/")


def local_path(place: str) -> str | None:
    """The path of a place on a file system; None for one in an object store."""
    if place.startswith(_FILE):
        return unquote(place.removeprefix(_FILE))
    return place if place.startswith("/") else None


def _why_not_recorded(table: Owner, record: Owner | None) -> str | None:
    outside = "it is outside of the table's folder"
    if record is None:
        return f"{outside}, and has no record that it belongs to the table"
    if record.is_at(table):
        return None
    return f"{outside}, and belongs to the table at {record.root}"


def _inside(root: str, uri: str) -> str | None:
    """The path of a leaf below the root, with no symbolic link on the way; else None."""
    folder, path = local_path(root), local_path(uri)
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


def check_in_place(uri: str, table: str) -> None:
    """Refuse a folder of the table's own that is a symbolic link, or has one, to write to."""
    path = local_path(uri)
    if path is not None and (os.path.islink(path) or has_links(uri)):
        raise UntrustedLocation(
            f"Cannot write to {table}: {path} is a symbolic link, or holds one, and what it links "
            "to may be another table's. Put the files themselves there, or open the table where "
            "they are."
        )


def has_links(uri: str) -> bool:
    """Whether something directly in a folder is elsewhere in truth."""
    path = local_path(uri)
    if path is None:
        return False
    try:
        with os.scandir(path) as entries:
            return any(entry.is_symlink() for entry in entries)
    except OSError:
        return False


def _table_between(root: str, inside: str) -> str | None:
    """Another table, inside of whose folder a leaf is; an object store tells by its listing."""
    folder = local_path(root)
    if folder is None:
        return None
    steps = inside.split("/")
    for depth in range(1, len(steps)):
        between = "/".join([folder.rstrip("/"), *steps[:depth]])
        if os.path.exists(f"{between}/{_MANIFEST}"):
            return between
    return None
