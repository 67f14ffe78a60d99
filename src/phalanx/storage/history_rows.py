"""What rows of the manifest tell of history: snapshots, leaf versions and exactly-once markers.

Stock readers ignore these rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from phalanx.storage.manifest import Manifest
from phalanx.storage.naming import SEPARATOR

TABLE_VERSION = "table_version"
PHALANX = "phalanx"
SNAPSHOT = "__phalanx_snapshot"
MARKER = "__phalanx_marker"


@dataclass(frozen=True, slots=True)
class Entry:
    """A `table_version` row: which snapshot gave a leaf which version, and by what."""

    snapshot: int
    version: int
    operation: str
    main: int | None


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


def marker_id(marker: str) -> str:
    """The id of the row that says that a marker was committed."""
    digest = hashlib.blake2b(marker.encode(), digest_size=16).hexdigest()
    return f"{MARKER}{SEPARATOR}{digest}"


def entries_of(manifest: Manifest, object_id: str, after: int = 0) -> list[Entry]:
    """The versions that snapshots after a given one gave to a leaf, the oldest first."""
    prefix = object_id.replace("'", "''") + SEPARATOR
    # A range, because names may hold what LIKE takes for wildcards.
    beyond = prefix[:-1] + chr(ord(SEPARATOR) + 1)
    rows = manifest.dataset.to_table(
        columns=["object_id", "read_version", "metadata"],
        filter=f"object_type = '{TABLE_VERSION}' AND object_id > '{prefix}' "
        f"AND object_id < '{beyond}'",
    )
    found = []
    for name, version, metadata in zip(*(each.to_pylist() for each in rows.columns), strict=True):
        _, _, number = name.rpartition(SEPARATOR)
        facts = json.loads(metadata or "{}")
        if number.isdecimal() and int(number) > after:
            found.append(Entry(int(number), version, facts.get("operation", ""), facts.get("main")))
    return sorted(found, key=lambda entry: entry.snapshot)


def leaves_changed(manifest: Manifest, snapshots: range) -> list[str]:
    """The object ids of the leaves that got a version by one of these snapshots."""
    ends = " OR ".join(f"object_id LIKE '%{SEPARATOR}{number}'" for number in snapshots)
    if not ends:
        return []
    rows = manifest.dataset.to_table(
        columns=["object_id"], filter=f"object_type = '{TABLE_VERSION}' AND ({ends})"
    )
    names = (name.rpartition(SEPARATOR)[0] for name in rows.column("object_id").to_pylist())
    return list(dict.fromkeys(names))


def committed_marker(manifest: Manifest, marker: str) -> int | None:
    """The snapshot that was committed with a marker, if one was."""
    rows = manifest.rows_of([marker_id(marker)])
    if not rows.num_rows:
        return None
    number: int = json.loads(rows.column("metadata")[0].as_py())["snapshot"]
    return number


def committed_markers(manifest: Manifest, prefix: str) -> dict[str, int]:
    """The markers that begin with a text and were committed, each with its snapshot."""
    rows = manifest.dataset.to_table(
        columns=["object_id", "metadata"], filter=f"object_type = '{PHALANX}'"
    )
    said = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    found = [json.loads(text) for name, text in said if name.startswith(f"{MARKER}{SEPARATOR}")]
    return {
        each["marker"]: each["snapshot"]
        for each in found
        if each.get("marker", "").startswith(prefix)
    }


def snapshots_in(manifest: Manifest) -> list[dict[str, Any]]:
    """What the snapshot rows say, the oldest first."""
    rows = manifest.dataset.to_table(
        columns=["object_id", "metadata"], filter=f"object_type = '{PHALANX}'"
    )
    said = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    found = [json.loads(text) for name, text in said if name.startswith(f"{SNAPSHOT}{SEPARATOR}")]
    return sorted(found, key=lambda snapshot: int(snapshot["id"]))
