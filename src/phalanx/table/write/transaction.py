"""Transactions: many statements on many partitions, one commit (format: Transaction, strong)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, get_args

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from phalanx.arguments import ArrowStreamExportable, Isolation, WhenMatched, WhenNotMatched
from phalanx.errors import InvalidArgument, PhalanxError
from phalanx.model.predicates.predicate import Predicate
from phalanx.planning.pruning.scan_plan import ScanPlan
from phalanx.storage.lance.failures import ErrorTranslator, translate_errors
from phalanx.storage.lance.forks import check_fork
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.read.scan import Scan, bind_where, make_scan, plan_scan
from phalanx.table.transactions.strong_mode import TransactionStart
from phalanx.table.transactions.strong_target import RetryableConflict, StrongTarget
from phalanx.table.write import merge, operations, update
from phalanx.table.write.incoming_rows import Statement
from phalanx.table.write.merge import MergeCounts

_ISOLATIONS: tuple[Isolation, ...] = get_args(Isolation)
_LOGGER = logging.getLogger("phalanx.table")
_MAX_ATTEMPTS = 20


class Transaction(ErrorTranslator):
    """A block of statements on one snapshot, which become visible together when it ends.

    `with table.transaction() as txn:` commits on leaving the block, and discards everything on an
    exception. Its statements see the snapshot that it began with, and each other. Methods have the
    arguments, results and errors of those of `Table`. After the block they raise `PhalanxError`.

    Attributes:
        snapshot: The id of the committed snapshot; None before the commit, and if nothing changed.
    """

    def __init__(self, manifest: Manifest, isolation: Isolation, marker: str | None) -> None:
        if isolation not in _ISOLATIONS:
            raise InvalidArgument(
                f"Cannot isolate a transaction as {isolation!r}: expected "
                f"{' or '.join(map(repr, _ISOLATIONS))}."
            )
        check_marker(marker)
        self._changes = StrongTarget(TransactionStart.begin(manifest), isolation)
        self._marker = marker
        self._has_ended = False
        # Each statement builds on the one before it, whichever thread runs it.
        self._lock = threading.RLock()
        self.snapshot: int | None = None

    def _error_location(self) -> Location:
        return self._changes.base.root

    def __enter__(self) -> Transaction:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise PhalanxError(
            f"Cannot pickle a transaction on {self._changes.base.root}: only the process that "
            "began it can commit it. To write from many processes use begin_write()."
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            if error is not None:
                self._changes.discard()
                return
            try:
                with translate_errors(f"commit to {self._changes.base.root}"):
                    self.snapshot = self._changes.commit_snapshot(self._marker)
            except BaseException:
                self._changes.discard()
                raise

    def plan(self, where: str | None = None) -> ScanPlan:
        """Plan a scan, without reading rows.

        Args:
            where: The predicate; None: all rows.

        Returns:
            The partitions that the scan reads, and why.

        Raises:
            InvalidPredicate: `where` does not parse, or does not fit the schema.
        """
        with self._lock:
            return plan_scan(*self._plan_read(where))

    def scan(
        self,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Scan:
        """Scan the matching rows of the snapshot and of the transaction's own writes.

        Args:
            where: The predicate; None: all rows.
            columns: The names of the columns to read, nested fields as "a.b"; None: all.
            limit: The most rows to read; None: all.

        Returns:
            A `Scan`, which reads nothing until its `to_arrow`, `to_batches` or `count_rows` is
            called.

        Raises:
            InvalidPredicate: `where` does not parse, or does not fit the schema.
            SchemaMismatch: The table has no such column.
            InvalidArgument: `columns` is not a list of different names, or `limit` is not a
                number of rows.
        """
        with self._lock:
            manifest, _ = self._plan_read(where)
            return make_scan(manifest, where, columns, limit)

    def append(self, data: ArrowStreamExportable) -> int:
        """Add rows, each to its partition under the newest spec.

        Args:
            data: The rows. Columns match by name, in any order; all are required.

        Returns:
            The number of rows added.

        Raises:
            SchemaMismatch: A column or a value of the data does not fit the schema.
        """
        with self._lock:
            return operations.append(self._manifest, self._run, data)

    def overwrite(self, data: ArrowStreamExportable, where: str = "true") -> int:
        """Replace the rows that match `where`; by default all.

        Args:
            data: The new rows, each of which must match `where`.
            where: The rows to replace.

        Returns:
            The number of rows written.

        Raises:
            InvalidPredicate: `where` does not parse or fit the schema, or a data row does not
                match it.
            SchemaMismatch: The data does not fit the schema.
        """
        with self._lock:
            return operations.overwrite(self._manifest, self._run, data, where)

    def overwrite_partitions(self, data: ArrowStreamExportable) -> int:
        """Replace the partitions under the newest spec that the data has rows for.

        Args:
            data: The new rows.

        Returns:
            The number of rows written.

        Raises:
            SchemaMismatch: The data does not fit the schema.
        """
        with self._lock:
            return operations.overwrite_partitions(self._manifest, self._run, data)

    def delete(self, where: str) -> int:
        """Delete the rows that match.

        Args:
            where: The rows to delete. A row for which it is NULL stays.

        Returns:
            The number of rows deleted.

        Raises:
            InvalidPredicate: `where` does not parse, or does not fit the schema.
        """
        with self._lock:
            return operations.delete(self._manifest, self._run, where)

    def update(self, where: str, assignments: Mapping[str, str]) -> int:
        """Give the rows that match new values.

        Args:
            where: The rows to update.
            assignments: For each column to set a SQL expression over the old row.

        Returns:
            The number of rows updated.

        Raises:
            InvalidPredicate: `where` or an expression does not parse, or does not fit the schema.
            SchemaMismatch: There is no such column, or a new value does not fit it.
            InvalidArgument: `assignments` is empty, names a column twice, or has no SQL text.
        """
        with self._lock:
            return update.update(self._manifest, self._run, where, assignments)

    def merge(
        self,
        data: ArrowStreamExportable,
        on: str | Sequence[str],
        *,
        when_matched: WhenMatched = "update",
        when_not_matched: WhenNotMatched = "insert",
    ) -> MergeCounts:
        """Update the rows that have the key of a data row, and insert the other data rows.

        Args:
            data: The rows. A key must not occur twice.
            on: The column, or columns, of the key.
            when_matched: "update" replaces the whole row, "delete" removes it, "ignore" keeps it.
            when_not_matched: "insert" adds the data row, "ignore" leaves it out.

        Returns:
            The number of rows inserted, updated and deleted.

        Raises:
            SchemaMismatch: The data does not fit the schema or has a key twice, or there is no
                such key column.
            InvalidArgument: `when_matched`, `when_not_matched` or `on` is none of the above.
        """
        with self._lock:
            return merge.merge_rows(
                self._manifest, self._run, data, on, when_matched, when_not_matched
            )

    def drop_partitions(self, where: str) -> int:
        """Drop each partition whose rows all match. Decides by partition values; reads no data.

        Args:
            where: The partitions to drop.

        Returns:
            The number of partitions dropped.

        Raises:
            InvalidPredicate: `where` does not parse or fit the schema, or a partition may match
                in part.
        """
        with self._lock:
            return operations.drop_partitions(self._manifest, self._run, where)

    def _plan_read(self, where: str | None) -> tuple[Manifest, Predicate]:
        manifest = self._manifest
        predicate = bind_where(where, manifest.properties.schema)
        self._changes.depend_on(
            lambda now: operations.versions_of(plan_scan(now, predicate).leaves), replaced=False
        )
        return manifest, predicate

    @property
    def _manifest(self) -> Manifest:
        check_fork()
        if self._has_ended:
            raise PhalanxError("This transaction is over. Begin another with table.transaction().")
        return self._changes.state

    def _run(self, statement: Statement) -> int:
        with translate_errors(f"write to {self._changes.base.root}"), self._changes.detect_vacuum():
            return statement(self._changes)


def run_in_transaction(manifest: Manifest, statement: Statement) -> int:
    """Run one statement in its own transaction, and retry it after conflicts."""
    began: dict[str, datetime] = {}

    def attempt() -> int:
        changes = StrongTarget(TransactionStart.begin(manifest))
        # Files of an earlier attempt are as old as that attempt.
        changes.began = began.setdefault(changes.horizon, changes.began)
        try:
            manifest.check_current(changes.base)
            with changes.detect_vacuum():
                result = statement(changes)
            changes.commit_snapshot(None)
        except BaseException:
            changes.discard()
            raise
        return result

    retrying = Retrying(
        retry=retry_if_exception_type(RetryableConflict),
        wait=wait_random_exponential(multiplier=0.01, max=1),
        stop=stop_after_attempt(_MAX_ATTEMPTS),
        before_sleep=_log_retry,
        reraise=True,
    )
    return retrying(attempt)


def _log_retry(state: RetryCallState) -> None:
    wait = 0.0 if state.next_action is None else state.next_action.sleep
    _LOGGER.debug(
        "Another writer changed what attempt %d has read; retrying in %.3f s",
        *(state.attempt_number, wait),
    )


def check_marker(marker: object) -> None:
    """Refuse an invalid marker."""
    if marker is None:
        return
    if not isinstance(marker, str) or not marker.isprintable():
        raise InvalidArgument(
            f"Cannot mark a transaction as {marker!r}: expected text without line breaks and other "
            "invisible characters."
        )
