"""Transactions: many statements on many partitions, one commit (format: Transaction, strong)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from phalanx.errors import PhalanxError
from phalanx.model.predicates.predicate import Predicate
from phalanx.planning.pruning.scan_plan import ScanPlan
from phalanx.storage.lance.failures import Guarded, told
from phalanx.storage.lance.forks import check_fork
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.overtaken import Overtaken
from phalanx.table.read.scan import Scan, bound, plan_of, scan_of
from phalanx.table.transactions.strong_mode import Start
from phalanx.table.transactions.strong_target import StagedChanges
from phalanx.table.write import merge as merging
from phalanx.table.write import operations
from phalanx.table.write import update as updating
from phalanx.table.write.incoming_rows import Statement
from phalanx.table.write.merge import MergeCounts

_ISOLATIONS = ("snapshot", "serializable")
_MOST_ATTEMPTS = 20


class Transaction(Guarded):
    """A block of statements on one snapshot, which all become visible when it ends, or none.

    `with table.transaction() as txn:` commits on leaving the block, and discards everything on an
    exception. Its statements see the snapshot that it began with, and each other.
    """

    def __init__(self, manifest: Manifest, isolation: str, marker: str | None) -> None:
        if isolation not in _ISOLATIONS:
            raise PhalanxError(
                f"Cannot isolate a transaction as {isolation!r}: expected "
                f"{' or '.join(map(repr, _ISOLATIONS))}."
            )
        check_marker(marker)
        self._changes = StagedChanges(Start.now(manifest), isolation)
        self._marker = marker
        self._is_over = False
        # Each statement stands on the one before it, whichever thread it comes from.
        self._lock = threading.RLock()
        self.snapshot: int | None = None
        """The snapshot that it was committed as; None before, and if there was nothing to do."""

    def _stored_at(self) -> Location:
        return self._changes.base.root

    def __enter__(self) -> Transaction:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise PhalanxError(
            f"Cannot pickle a transaction on {self._changes.base.root}: only the process that "
            "began it can commit it. For a write by many processes use begin_write()."
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            if error is not None:
                self._changes.discard()
                return
            try:
                with told(f"commit to {self._changes.base.root}"):
                    self.snapshot = self._changes.commit_snapshot(self._marker)
            except BaseException:
                self._changes.discard()
                raise

    def plan(self, where: str | None = None) -> ScanPlan:
        """Which partitions a predicate needs, and why."""
        with self._lock:
            return plan_of(*self._read(where))

    def scan(
        self,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Scan:
        """The rows that match, of the snapshot and of the transaction's own writes."""
        with self._lock:
            manifest, _ = self._read(where)
            return scan_of(manifest, where, columns, limit)

    def append(self, data: Any) -> int:
        """Add rows; returns how many."""
        with self._lock:
            return operations.append(self._manifest, self._run, data)

    def overwrite(self, data: Any, where: str = "true") -> int:
        """Replace the rows that match `where` by rows that match it too; returns how many came."""
        with self._lock:
            return operations.overwrite(self._manifest, self._run, data, where)

    def overwrite_partitions(self, data: Any) -> int:
        """Replace the partitions that the data touches; returns how many rows came."""
        with self._lock:
            return operations.overwrite_partitions(self._manifest, self._run, data)

    def delete(self, where: str) -> int:
        """Remove the rows that match; returns how many."""
        with self._lock:
            return operations.delete(self._manifest, self._run, where)

    def update(self, where: str, assignments: Mapping[str, str]) -> int:
        """Give the rows that match new values; returns how many."""
        with self._lock:
            return updating.update(self._manifest, self._run, where, assignments)

    def merge(
        self,
        data: Any,
        on: str | Sequence[str],
        *,
        when_matched: str = "update",
        when_not_matched: str = "insert",
    ) -> MergeCounts:
        """Replace the rows that have the key of a row of the data, and add the others; how many."""
        with self._lock:
            return merging.merge(
                self._manifest, self._run, data, on, when_matched, when_not_matched
            )

    def drop_partitions(self, where: str) -> int:
        """Take the partitions all of whose rows match out of the table; returns how many."""
        with self._lock:
            return operations.drop_partitions(self._manifest, self._run, where)

    def _read(self, where: str | None) -> tuple[Manifest, Predicate]:
        manifest = self._manifest
        predicate = bound(where, manifest.properties.schema)
        self._changes.depend_on(
            lambda now: operations.versions_of(plan_of(now, predicate).leaves), replaced=False
        )
        return manifest, predicate

    @property
    def _manifest(self) -> Manifest:
        check_fork()
        if self._is_over:
            raise PhalanxError("This transaction is over. Begin another with table.transaction().")
        return self._changes.manifest

    def _run(self, statement: Statement) -> int:
        with told(f"write to {self._changes.base.root}"), self._changes.unless_vacuumed():
            return statement(self._changes)


def run_alone(manifest: Manifest, statement: Statement) -> int:
    """One statement as a transaction of its own, tried again while others come in between."""
    began: dict[str, datetime] = {}

    def attempt() -> int:
        changes = StagedChanges(Start.now(manifest))
        # What an earlier attempt has written is as old as that attempt.
        changes.began = began.setdefault(changes.horizon, changes.began)
        try:
            manifest.check_current(changes.base)
            with changes.unless_vacuumed():
                result = statement(changes)
            changes.commit_snapshot(None)
        except BaseException:
            changes.discard()
            raise
        return result

    retrying = Retrying(
        retry=retry_if_exception_type(Overtaken),
        wait=wait_random_exponential(multiplier=0.01, max=1),
        stop=stop_after_attempt(_MOST_ATTEMPTS),
        reraise=True,
    )
    return retrying(attempt)


def check_marker(marker: object) -> None:
    """Refuse what cannot be a marker."""
    if marker is None:
        return
    if not isinstance(marker, str) or not marker.isprintable():
        raise PhalanxError(
            f"Cannot mark a transaction as {marker!r}: expected a text without line breaks and "
            "other invisible characters."
        )
