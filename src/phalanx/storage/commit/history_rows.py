"""Manifest rows of a table's history: snapshots, leaf versions and exactly-once markers.

Stock readers ignore these rows. `docs/FORMAT.md` defines their contents (section 3).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import InvalidManifest
from phalanx.model.stored_json import (
    COUNT,
    INT,
    LANCE_VERSION,
    TEXT,
    ZONED_TIME,
    read_object,
    text_rule,
)
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.naming import SEPARATOR, is_snapshot_number

TABLE_VERSION_TYPE = "table_version"
PHALANX_TYPE = "phalanx"
SNAPSHOT_ROW = "__phalanx_snapshot"
MARKER_ROW = "__phalanx_marker"
# The key of a snapshot's row that names its file of updates.
UPDATES_KEY = "updates"

# The metadata of the `table_version` row of a dropped leaf, which names no version.
_DROP = "drop_partitions"
DROP_METADATA = json.dumps({"operation": _DROP})

# A leaf got the schema of the table. If its main branch was taken over at the same time, from weak
# mode or from another writer, rows may have been added.
_ALIGNED = "change"
# Operations that only move, rewrite, remove or restore rows of an earlier snapshot.
_ADD_NO_ROWS = frozenset({"create", "delete", "drop_partitions", "rollback", "rewrite", "index"})
# The metadata of each kind of row.
_SNAPSHOT_FIELDS = {
    "id": COUNT,
    "time": ZONED_TIME,
    "operation": TEXT,
    "manifest_version": LANCE_VERSION,
}
_OPTIONAL_SNAPSHOT_FIELDS = {
    "partitions": COUNT,
    "rows_added": COUNT.or_null,
    "rows_removed": COUNT.or_null,
    "token": TEXT,
    # Validated, because it is used in a file path.
    UPDATES_KEY: text_rule("[0-9a-f]{32}", "32 hexadecimal digits"),
}
_VERSION_FIELDS = {"operation": TEXT, "main": LANCE_VERSION.or_null}
_MARKER_FIELDS = {"time": ZONED_TIME, "marker": TEXT, "query": TEXT, "batch": INT}
# Operations that leave every row as it was, though perhaps in another file.
_CHANGE_NO_ROWS = frozenset({"create", "rewrite", "index"})
# The operations of the first snapshot of a history.
_BEGINNINGS = frozenset({"create", "set_mode"})
# With more ids, reading all rows is cheaper than a filter.
_MAX_IDS_IN_FILTER = 1000


@dataclass(frozen=True, slots=True)
class LeafVersionRow:
    """A `table_version` row: the version that a snapshot gave to a leaf, and its operation.

    `version` is None if the snapshot dropped the leaf.
    """

    snapshot: int
    version: int | None
    operation: str
    main: int | None

    @property
    def may_add_rows(self) -> bool:
        """Whether the snapshot may have added rows to the leaf; an unknown operation may."""
        if self.operation == _ALIGNED:
            return self.main is not None
        return not _ADD_NO_ROWS.issuperset(self.operation.split("+"))

    @property
    def may_change_rows(self) -> bool:
        """Whether the snapshot may have added or removed rows; an unknown operation may."""
        if self.operation == _ALIGNED:
            return self.main is not None
        return not _CHANGE_NO_ROWS.issuperset(self.operation.split("+"))


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch of a streaming query. Batches arrive in order, and only the last has a marker row."""

    query: str
    number: int


@dataclass(frozen=True, slots=True)
class MarkerSet:
    """Several markers of one commit, which is skipped if any of them was committed before."""

    markers: tuple[str, ...]


# Identifies a transaction that must be committed at most once.
Marker = str | StreamBatch | MarkerSet


@dataclass(frozen=True, slots=True)
class LeafChange:
    """A snapshot's change of a leaf, and the version before it (None: the leaf did not exist)."""

    object_id: str
    before: int | None
    version_row: LeafVersionRow


def read_snapshot(row: str, text: object) -> dict[str, Any]:
    """Parse the metadata of a snapshot row."""
    what = f"the manifest row {row}"
    found = read_object(text, what, _SNAPSHOT_FIELDS, _OPTIONAL_SNAPSHOT_FIELDS)
    if row != snapshot_row_id(found["id"]):
        raise InvalidManifest(
            f"Cannot read {what}: its id is {found['id']}, expected that of the row. Restore it."
        )
    return found


def read_marker(text: object) -> dict[str, Any]:
    """Parse the metadata of a marker row."""
    return read_object(text, "a marker in the manifest", {"snapshot": COUNT}, _MARKER_FIELDS)


def _read_version_row(snapshot: int, version: int | None, text: str | None) -> LeafVersionRow:
    what = f"the row of a leaf's version in snapshot {snapshot}"
    facts = read_object(text or "{}", what, {}, _VERSION_FIELDS)
    return LeafVersionRow(snapshot, version, facts.get("operation", ""), facts.get("main"))


def build_history_rows(metadata: Mapping[str, str], kind: str) -> pa.Table:
    """Build rows of one object type from their metadata by row id."""
    return pa.table(
        {
            "object_id": pa.array(metadata, pa.string()),
            "object_type": pa.array([kind] * len(metadata), pa.string()),
            "metadata": pa.array(metadata.values(), pa.string()),
        }
    )


def snapshot_row_id(number: int) -> str:
    """Return the id of the row of a snapshot."""
    return f"{SNAPSHOT_ROW}{SEPARATOR}{number}"


def marker_row_id(marker: str | StreamBatch) -> str:
    """Return the id of the row of a marker."""
    text = f"stream {marker.query}" if isinstance(marker, StreamBatch) else marker
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return f"{MARKER_ROW}{SEPARATOR}{digest}"


def build_marker_rows(marker: Marker, snapshot: int, time: str) -> dict[str, str]:
    """Build the metadata of the rows of a marker, by row id."""
    facts: dict[str, Any] = {"snapshot": snapshot, "time": time}
    if isinstance(marker, StreamBatch):
        facts = {"query": marker.query, "batch": marker.number, **facts}
        return {marker_row_id(marker): json.dumps(facts)}
    return {
        marker_row_id(each): json.dumps({"marker": each, **facts}) for each in _texts_of(marker)
    }


def _texts_of(marker: str | MarkerSet) -> tuple[str, ...]:
    return (marker,) if isinstance(marker, str) else marker.markers


def marker_texts_of(marker: Marker | None) -> tuple[str, ...]:
    """Return the texts that users gave for a marker; none for a batch of a stream."""
    return () if marker is None or isinstance(marker, StreamBatch) else _texts_of(marker)


def read_leaf_versions(manifest: Manifest, object_id: str, after: int = 0) -> list[LeafVersionRow]:
    """Return the `table_version` rows of a leaf after a snapshot, oldest first."""
    rows = manifest.select_rows(
        TABLE_VERSION_TYPE,
        ["object_id", "read_version", "metadata"],
        prefix=f"{object_id}{SEPARATOR}",
    )
    found = []
    for name, version, metadata in zip(*(each.to_pylist() for each in rows.columns), strict=True):
        _, _, number = name.rpartition(SEPARATOR)
        if is_snapshot_number(number) and int(number) > after:
            found.append(_read_version_row(int(number), version, metadata))
    return sorted(found, key=lambda entry: entry.snapshot)


def list_changed_leaves(manifest: Manifest, snapshots: range) -> list[str]:
    """Return the object ids of the leaves that these snapshots changed."""
    if not snapshots:
        return []
    if len(snapshots) > _MAX_IDS_IN_FILTER or manifest.is_small:
        rows = manifest.select_rows(TABLE_VERSION_TYPE, ["object_id"])
    else:
        ends = " OR ".join(f"object_id LIKE '%{SEPARATOR}{number}'" for number in snapshots)
        rows = manifest.read_rows(
            f"object_type = '{TABLE_VERSION_TYPE}' AND ({ends})", ["object_id"]
        )
    parts = (name.rpartition(SEPARATOR) for name in rows.column("object_id").to_pylist())
    return list(
        dict.fromkeys(
            leaf
            for leaf, _, number in parts
            if is_snapshot_number(number) and int(number) in snapshots
        )
    )


def read_leaf_changes(manifest: Manifest, after: int, until: int) -> list[LeafChange]:
    """Return the changes of leaves by the snapshots after one, up to another, oldest first."""
    rows = _read_version_rows(manifest)
    numbers = rows.column("snapshot").to_numpy()
    inside = pa.array((numbers > after) & (numbers <= until))
    changed = pc.unique(rows.filter(inside).column("object_id"))
    rows = rows.filter(pa.array(numbers <= until))
    rows = rows.filter(pc.is_in(rows.column("object_id"), changed))
    found: list[LeafChange] = []
    waiting: dict[str, int | None] = {}
    for name, number, version, metadata in _sort_by_snapshot(rows):
        if number > after:
            entry = _read_version_row(number, version, metadata)
            found.append(LeafChange(name, waiting.get(name), entry))
        waiting[name] = version
    return found


def read_versions_at(manifest: Manifest, snapshot: int) -> dict[str, int]:
    """Return the version of each leaf in a snapshot."""
    rows = _read_version_rows(manifest)
    rows = rows.filter(pc.less_equal(rows.column("snapshot"), snapshot))
    found = {name: version for name, _, version, _ in _sort_by_snapshot(rows)}
    return {name: version for name, version in found.items() if version is not None}


def _read_version_rows(manifest: Manifest) -> pa.Table:
    """Return the `table_version` rows with their leaf, snapshot, version and metadata."""
    rows = manifest.select_rows(TABLE_VERSION_TYPE, ["object_id", "read_version", "metadata"])
    may_drop = pc.match_substring(rows.column("metadata"), _DROP).fill_null(False)
    rows = rows.filter(pc.or_(rows.column("read_version").is_valid(), may_drop))
    rows = rows.filter(pc.or_(rows.column("read_version").is_valid(), _find_drops(rows)))
    pattern = rf"^(?s:(?P<leaf>.*))\{SEPARATOR}(?P<number>[0-9]{{1,18}})$"
    parts = pc.extract_regex(rows.column("object_id"), pattern)
    known = parts.is_valid()
    rows, parts = rows.filter(known), parts.filter(known)
    return pa.table(
        {
            "object_id": pc.struct_field(parts, "leaf"),
            "snapshot": pc.struct_field(parts, "number").cast(pa.int64()),
            "read_version": rows.column("read_version"),
            "metadata": rows.column("metadata"),
        }
    )


def _find_drops(rows: pa.Table) -> pa.ChunkedArray:
    """Return whether each row without a version says that its leaf was dropped."""
    metadata = rows.column("metadata")
    without_version = metadata.filter(rows.column("read_version").is_null())
    drops = [
        text
        for text in pc.unique(without_version).to_pylist()
        if read_object(text, "the row of a dropped leaf", {}).get("operation") == _DROP
    ]
    return pc.is_in(metadata, pa.array(drops, pa.string()))


def _sort_by_snapshot(rows: pa.Table) -> Iterable[tuple[str, int, int | None, str | None]]:
    ordered = rows.sort_by([("snapshot", "ascending"), ("object_id", "ascending")])
    return zip(*(column.to_pylist() for column in ordered.columns), strict=True)


def find_committed_marker(manifest: Manifest, marker: Marker) -> int | None:
    """Return the snapshot that was committed with a marker, if any.

    For a batch with a later batch of its query, return the snapshot of the last one; for a marker
    set, the snapshot of any of its markers.
    """
    parts = (marker,) if isinstance(marker, StreamBatch) else _texts_of(marker)
    rows = manifest.read_rows_by_id(map(marker_row_id, parts))
    if not rows.num_rows:
        return None
    facts = read_marker(rows.column("metadata")[0].as_py())
    if isinstance(marker, StreamBatch) and facts.get("batch", marker.number) < marker.number:
        return None
    number: int = facts["snapshot"]
    return number


def list_committed_markers(manifest: Manifest, prefix: str) -> dict[str, int]:
    """Return the committed markers that begin with a prefix, each with its snapshot."""
    rows = manifest.select_rows(PHALANX_TYPE, ["metadata"], prefix=f"{MARKER_ROW}{SEPARATOR}")
    found = [read_marker(text) for text in rows.column("metadata").to_pylist()]
    return {
        each["marker"]: each["snapshot"]
        for each in found
        if each.get("marker", "").startswith(prefix)
    }


def list_snapshots(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the metadata of all snapshots, oldest first."""
    rows = manifest.select_rows(
        PHALANX_TYPE, ["object_id", "metadata"], prefix=f"{SNAPSHOT_ROW}{SEPARATOR}"
    )
    columns = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    found = [read_snapshot(name, text) for name, text in columns]
    return sorted(found, key=lambda snapshot: int(snapshot["id"]))


def read_snapshot_range(manifest: Manifest, first: int, last: int) -> dict[int, dict[str, Any]]:
    """Return the metadata of these snapshots by id, leaving out expired ones."""
    if last - first >= _MAX_IDS_IN_FILTER:
        found = list_snapshots(manifest)
    else:
        rows = manifest.read_rows_by_id(
            snapshot_row_id(number) for number in range(first, last + 1)
        )
        columns = (rows.column(name).to_pylist() for name in ("object_id", "metadata"))
        found = [read_snapshot(name, text) for name, text in zip(*columns, strict=True)]
    return {each["id"]: each for each in found if first <= each["id"] <= last}


def begins_history(snapshot: Mapping[str, Any]) -> bool:
    """Whether a snapshot is the first of its history."""
    return snapshot["operation"] in _BEGINNINGS
