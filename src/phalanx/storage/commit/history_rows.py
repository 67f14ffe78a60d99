"""What rows of the manifest tell of history: snapshots, leaf versions and exactly-once markers.

Stock readers ignore these rows.
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
from phalanx.model.stored_json import COUNT, INT, MOMENT, TEXT, VERSION, matching, read_object
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.naming import SEPARATOR, is_number

TABLE_VERSION = "table_version"
PHALANX = "phalanx"
SNAPSHOT = "__phalanx_snapshot"
MARKER = "__phalanx_marker"
# What a snapshot's row calls the file that says which rows became which.
UPDATES = "updates"

# What the row of a leaf that a snapshot dropped says; it names no version.
DROP = json.dumps({"operation": "drop_partitions"})

# A leaf got the schema of the table. Where its main branch was taken over at that, from weak mode
# or from another writer, its rows came with it.
_ALIGNED = "change"
# What only moves, rewrites, removes or restores rows that were in an earlier snapshot.
_BRING_NO_ROWS = frozenset({"create", "delete", "drop_partitions", "rollback", "rewrite", "index"})
# What rows of each kind say.
_SNAPSHOT_FACTS = {"id": COUNT, "time": MOMENT, "operation": TEXT, "manifest_version": VERSION}
_MORE_SNAPSHOT_FACTS = {
    "partitions": COUNT,
    "rows_added": COUNT.or_null,
    "rows_removed": COUNT.or_null,
    "token": TEXT,
    # It becomes part of a path.
    UPDATES: matching("[0-9a-f]{32}", "32 hexadecimal digits"),
}
_VERSION_FACTS = {"operation": TEXT, "main": VERSION.or_null}
_MARKER_FACTS = {"time": MOMENT, "marker": TEXT, "query": TEXT, "batch": INT}
# What leaves every row as it was, wherever it is stored since.
_CHANGE_NO_ROWS = frozenset({"create", "rewrite", "index"})
# How a history begins: nothing came before, as far as any snapshot tells.
_BEGINNINGS = frozenset({"create", "set_mode"})
# More rows than these are not looked for by their ids.
_MOST_NAMED = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """A `table_version` row: which snapshot gave a leaf which version, and by what.

    No version: the snapshot dropped the leaf.
    """

    snapshot: int
    version: int | None
    operation: str
    main: int | None

    @property
    def brings_rows(self) -> bool:
        """Whether the snapshot may have brought rows to the leaf; an unknown operation may."""
        if self.operation == _ALIGNED:
            return self.main is not None
        return not _BRING_NO_ROWS.issuperset(self.operation.split("+"))

    @property
    def changes_rows(self) -> bool:
        """Whether rows may have come to the leaf, or gone; an unknown operation may do both."""
        if self.operation == _ALIGNED:
            return self.main is not None
        return not _CHANGE_NO_ROWS.issuperset(self.operation.split("+"))


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a stream, by the query's id: they come in order, and only the last is remembered.

    A query that writes for years leaves one row.
    """

    query: str
    number: int


@dataclass(frozen=True, slots=True)
class Several:
    """Markers of one commit, which is not made if one of them was committed before."""

    markers: tuple[str, ...]


# What is committed once.
Marker = str | Batch | Several


@dataclass(frozen=True, slots=True)
class LeafChange:
    """A snapshot that changed a leaf, and the version that the leaf had before; None: no leaf."""

    object_id: str
    before: int | None
    entry: Entry


def snapshot_facts(row: str, text: object) -> dict[str, Any]:
    """What the row of a snapshot says."""
    what = f"the manifest row {row}"
    found = read_object(text, what, _SNAPSHOT_FACTS, _MORE_SNAPSHOT_FACTS)
    if row != snapshot_id(found["id"]):
        raise InvalidManifest(
            f"Cannot read {what}: its id is {found['id']}, expected that of the row. Restore it."
        )
    return found


def marker_facts(text: object) -> dict[str, Any]:
    """What the row of a marker says."""
    return read_object(text, "a marker in the manifest", {"snapshot": COUNT}, _MARKER_FACTS)


def _entry(snapshot: int, version: int | None, text: str | None) -> Entry:
    what = f"the row of a leaf's version in snapshot {snapshot}"
    facts = read_object(text or "{}", what, {}, _VERSION_FACTS)
    return Entry(snapshot, version, facts.get("operation", ""), facts.get("main"))


def history_rows(metadata: Mapping[str, str], kind: str) -> pa.Table:
    """Rows of one type by their ids, with what they say."""
    return pa.table(
        {
            "object_id": pa.array(metadata, pa.string()),
            "object_type": pa.array([kind] * len(metadata), pa.string()),
            "metadata": pa.array(metadata.values(), pa.string()),
        }
    )


def snapshot_id(number: int) -> str:
    """The id of the row that tells of a snapshot."""
    return f"{SNAPSHOT}{SEPARATOR}{number}"


def marker_id(marker: str | Batch) -> str:
    """The id of the row that says that a marker was committed."""
    text = f"stream {marker.query}" if isinstance(marker, Batch) else marker
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return f"{MARKER}{SEPARATOR}{digest}"


def marker_rows(marker: Marker, snapshot: int, time: str) -> dict[str, str]:
    """What the rows of a marker say, by their ids."""
    facts: dict[str, Any] = {"snapshot": snapshot, "time": time}
    if isinstance(marker, Batch):
        facts = {"query": marker.query, "batch": marker.number, **facts}
        return {marker_id(marker): json.dumps(facts)}
    return {marker_id(each): json.dumps({"marker": each, **facts}) for each in _each(marker)}


def _each(marker: str | Several) -> tuple[str, ...]:
    return (marker,) if isinstance(marker, str) else marker.markers


def entries_of(manifest: Manifest, object_id: str, after: int = 0) -> list[Entry]:
    """The versions that snapshots after a given one gave to a leaf, the oldest first."""
    prefix = object_id.replace("'", "''") + SEPARATOR
    # A range, because names may hold what LIKE takes for wildcards.
    beyond = prefix[:-1] + chr(ord(SEPARATOR) + 1)
    rows = manifest.table(
        columns=["object_id", "read_version", "metadata"],
        condition=f"object_type = '{TABLE_VERSION}' AND object_id > '{prefix}' "
        f"AND object_id < '{beyond}'",
    )
    found = []
    for name, version, metadata in zip(*(each.to_pylist() for each in rows.columns), strict=True):
        _, _, number = name.rpartition(SEPARATOR)
        if is_number(number) and int(number) > after:
            found.append(_entry(int(number), version, metadata))
    return sorted(found, key=lambda entry: entry.snapshot)


def leaves_changed(manifest: Manifest, snapshots: range) -> list[str]:
    """The object ids of the leaves that got a version by one of these snapshots."""
    if len(snapshots) > _MOST_NAMED:
        rows = _version_rows(manifest)
        numbers = rows.column("snapshot").to_numpy()
        inside = pa.array((numbers >= snapshots[0]) & (numbers <= snapshots[-1]))
        changed: list[str] = pc.unique(rows.filter(inside).column("object_id")).to_pylist()
        return changed
    ends = " OR ".join(f"object_id LIKE '%{SEPARATOR}{number}'" for number in snapshots)
    if not ends:
        return []
    rows = manifest.table(
        columns=["object_id"], condition=f"object_type = '{TABLE_VERSION}' AND ({ends})"
    )
    names = (name.rpartition(SEPARATOR)[0] for name in rows.column("object_id").to_pylist())
    return list(dict.fromkeys(names))


def changes_between(manifest: Manifest, after: int, until: int) -> list[LeafChange]:
    """What the snapshots after one, up to another, did to leaves, the oldest first."""
    rows = _version_rows(manifest)
    numbers = rows.column("snapshot").to_numpy()
    inside = pa.array((numbers > after) & (numbers <= until))
    changed = pc.unique(rows.filter(inside).column("object_id"))
    rows = rows.filter(pa.array(numbers <= until))
    rows = rows.filter(pc.is_in(rows.column("object_id"), changed))
    found: list[LeafChange] = []
    waiting: dict[str, int | None] = {}
    for name, number, version, metadata in _in_time_order(rows):
        if number > after:
            entry = _entry(number, version, metadata)
            found.append(LeafChange(name, waiting.get(name), entry))
        waiting[name] = version
    return found


def versions_at(manifest: Manifest, snapshot: int) -> dict[str, int]:
    """The version of each leaf that there was in a snapshot."""
    rows = _version_rows(manifest)
    rows = rows.filter(pc.less_equal(rows.column("snapshot"), snapshot))
    found = {name: version for name, _, version, _ in _in_time_order(rows)}
    return {name: version for name, version in found.items() if version is not None}


def _version_rows(manifest: Manifest) -> pa.Table:
    """The `table_version` rows of versions and drops: their leaf and snapshot, what they say."""
    rows = manifest.table(
        columns=["object_id", "read_version", "metadata"],
        condition=f"object_type = '{TABLE_VERSION}' AND "
        f"(read_version IS NOT NULL OR metadata = '{DROP}')",
    )
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


def _in_time_order(rows: pa.Table) -> Iterable[tuple[str, int, int | None, str | None]]:
    ordered = rows.sort_by([("snapshot", "ascending"), ("object_id", "ascending")])
    return zip(*(column.to_pylist() for column in ordered.columns), strict=True)


def committed_marker(manifest: Manifest, marker: Marker) -> int | None:
    """The snapshot that was committed with a marker, if one was.

    For a batch that a later one of its query has followed, the snapshot of the last one; for
    several markers that of any.
    """
    parts = (marker,) if isinstance(marker, Batch) else _each(marker)
    rows = manifest.rows_of(map(marker_id, parts))
    if not rows.num_rows:
        return None
    facts = marker_facts(rows.column("metadata")[0].as_py())
    if isinstance(marker, Batch) and facts.get("batch", marker.number) < marker.number:
        return None
    number: int = facts["snapshot"]
    return number


def committed_markers(manifest: Manifest, prefix: str) -> dict[str, int]:
    """The markers that begin with a text and were committed, each with its snapshot."""
    rows = manifest.table(columns=["object_id", "metadata"], condition=f"object_type = '{PHALANX}'")
    said = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    found = [marker_facts(text) for name, text in said if name.startswith(f"{MARKER}{SEPARATOR}")]
    return {
        each["marker"]: each["snapshot"]
        for each in found
        if each.get("marker", "").startswith(prefix)
    }


def snapshots_in(manifest: Manifest) -> list[dict[str, Any]]:
    """What the snapshot rows say, the oldest first."""
    rows = manifest.table(columns=["object_id", "metadata"], condition=f"object_type = '{PHALANX}'")
    said = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    found = [
        snapshot_facts(name, text)
        for name, text in said
        if name.startswith(f"{SNAPSHOT}{SEPARATOR}")
    ]
    return sorted(found, key=lambda snapshot: int(snapshot["id"]))


def snapshots_from(manifest: Manifest, first: int, last: int) -> dict[int, dict[str, Any]]:
    """What the rows of these snapshots say, of those that are still listed, by their ids."""
    if last - first >= _MOST_NAMED:
        found = snapshots_in(manifest)
    else:
        rows = manifest.rows_of(snapshot_id(number) for number in range(first, last + 1))
        said = (rows.column(name).to_pylist() for name in ("object_id", "metadata"))
        found = [snapshot_facts(name, text) for name, text in zip(*said, strict=True)]
    return {each["id"]: each for each in found if first <= each["id"] <= last}


def begins_history(snapshot: Mapping[str, Any]) -> bool:
    """Whether there was no snapshot before this one."""
    return snapshot["operation"] in _BEGINNINGS
