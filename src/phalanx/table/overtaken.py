"""What a transaction is told if another one, or a vacuum, was first."""

from __future__ import annotations

from datetime import datetime

from phalanx.errors import CommitConflict
from phalanx.storage.commit.head import Head
from phalanx.storage.commit.history_rows import entries_of
from phalanx.storage.commit.writing import named
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.read.keys import keys_named


class Overtaken(CommitConflict):
    """Another snapshot changed the same rows: the same statements may succeed on top of it."""


def changed_since(latest: Manifest, names: set[str], head: Head, why: str) -> Overtaken:
    """Another snapshot has changed these leaves since the head of the transaction's."""
    entries = entries_of(latest, min(names), head.sequence)
    other = entries[-1].snapshot if entries else "another"
    return Overtaken(
        f"Cannot commit to {latest.root}: snapshot {other} changed partition "
        f"{named(keys_named(latest, names))} since snapshot {head.sequence}, {why}. Start the "
        "transaction again."
    )


def vacuumed(latest: Manifest, began: datetime, found: Head) -> Overtaken:
    """A vacuum may have removed files of a transaction that began before its horizon."""
    return Overtaken(
        f"Cannot commit to {latest.root}: the transaction began at {began.isoformat()}, and a "
        f"vacuum has removed files from before {found.horizon}, perhaps its own. Start it again."
    )
