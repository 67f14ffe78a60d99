"""The snapshots of a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Self

import pyarrow as pa

from phalanx.storage.commit.history_rows import committed_markers
from phalanx.storage.lance.failures import tells
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.handle import HeldTable
from phalanx.table.history import snapshots as history
from phalanx.table.history.change_feed import ChangeFeed, feed_of
from phalanx.table.transactions import foreign_writes
from phalanx.table.transactions import strong_mode as strong
from phalanx.table.write.transaction import Transaction


class Past(HeldTable):
    """Transactions, and what they left behind."""

    @tells("begin a transaction on")
    def transaction(self, isolation: str = "snapshot", marker: str | None = None) -> Transaction:
        """Several statements as one commit, in a `with` block; only in strong mode.

        With `isolation="serializable"` it also fails if what it has read was changed meanwhile.
        Of all transactions with the same marker one is committed: repeat it as often as needed.
        """
        return Transaction(self._strong(self._writable()), isolation, marker)

    @tells("list the snapshots of")
    def snapshots(self) -> pa.Table:
        """Every snapshot: id, time, operation, partitions, rows added and removed."""
        found = self._refreshed()
        return history.snapshots(found if isinstance(found, Manifest) else None)

    @property
    def newest_snapshot(self) -> int | None:
        """The id of the newest snapshot; None in weak mode."""
        found = self._refreshed()
        return history.newest(found) if isinstance(found, Manifest) else None

    @tells("list the markers of")
    def markers(self, prefix: str = "") -> dict[str, int]:
        """The markers of transactions and jobs that begin with a text, each with its snapshot."""
        return committed_markers(self._namespace(), prefix)

    @tells("look into the past of")
    def at(self, snapshot: int | datetime) -> Self:
        """The table as of a snapshot or a time (UTC where it names no zone), read-only."""
        return type(self)(history.at(self._strong(self._namespace()), snapshot), snapshot)

    @tells("roll back")
    def rollback(self, snapshot: int | datetime) -> int:
        """Make the rows of a snapshot the newest ones, as a new snapshot; returns its id."""
        return history.rollback(self._strong(self._writable()), snapshot)

    @tells("compare snapshots of")
    def diff(self, a: int | datetime, b: int | datetime) -> pa.Table:
        """The partitions that differ between two snapshots, with rows added and removed."""
        return history.diff(self._strong(self._namespace()), a, b)

    @tells("tell the changes of")
    def changes(
        self,
        from_snapshot: int | datetime,
        to_snapshot: int | datetime | None = None,
        where: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> ChangeFeed:
        """The rows that came, went and became others after a snapshot, up to another (the newest).

        Told snapshot by snapshot, each row with `_change` ("insert", "delete", "update_before" or
        "update_after"), `_snapshot`, and `_update`, which the two rows of an update have in common.
        Of a snapshot the rows that went are first: replayed in order, the feed makes the rows of
        the one snapshot those of the other. Rows have the columns as of `to_snapshot`; `where`
        prunes partitions, and judges every row, before or after, for itself. Snapshot 0 is the
        table before its first one.
        """
        manifest = self._strong(self._namespace())
        return feed_of(manifest, from_snapshot, to_snapshot, where, columns)

    @tells("change the mode of")
    def set_mode(self, mode: str) -> None:
        """Commit from now on each partition for itself ("weak"), or all as one ("strong")."""
        self._manifest = strong.set_mode(self._writable(), mode)

    @tells("keep foreign writes in")
    def keep_foreign_writes(self) -> list[str]:
        """Make what someone wrote to leaves past Phalanx a snapshot; returns these leaves."""
        return foreign_writes.keep(self._strong(self._writable()))

    @tells("discard foreign writes in")
    def discard_foreign_writes(self) -> list[str]:
        """Take back what someone wrote to leaves past Phalanx; returns these leaves."""
        return foreign_writes.discard(self._strong(self._writable()))
