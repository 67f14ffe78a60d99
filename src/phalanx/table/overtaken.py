"""How a transaction begins, and what it is told if another one was first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from phalanx.errors import CommitConflict
from phalanx.storage.head import Head
from phalanx.storage.history_rows import entries_of
from phalanx.storage.manifest import Manifest
from phalanx.storage.writing import named
from phalanx.table.keys import keys_named
from phalanx.table.strong import begin


class Overtaken(CommitConflict):
    """Another snapshot changed the same rows: the same statements may succeed on top of it."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a transaction begins with: a moment, a manifest of that time or later, and its head."""

    # Before anything is read or written: a vacuum compares it with its own time.
    began: datetime
    base: Manifest
    head: Head

    @classmethod
    def now(cls, manifest: Manifest) -> Start:
        """The newest snapshot."""
        began = datetime.now(UTC)
        return cls(began, *begin(manifest))


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
