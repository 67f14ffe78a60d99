"""`Table`: one logical table, made of many Lance tables."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Self, Unpack, cast

import lance
import pyarrow as pa

from phalanx.arguments import (
    ArrowStreamExportable,
    HealthArguments,
    IndexArguments,
    IndexKind,
    Isolation,
    Layout,
    Metric,
    Mode,
    ProgressCallback,
    RewriteArguments,
    WhenMatched,
    WhenNotMatched,
    WordOperator,
    WriteOperation,
)
from phalanx.errors import PhalanxError
from phalanx.model.search.indexes import IndexSpec
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.scan_plan import ScanPlan
from phalanx.planning.rewrite import RewritePlan
from phalanx.planning.rewrites.options import build_rewrite_options
from phalanx.planning.search_options import DEFAULT_RRF, SearchOptions
from phalanx.storage.commit.history_rows import list_committed_markers
from phalanx.storage.hive.root import HiveRoot, open_table_state
from phalanx.storage.lance.failures import ErrorTranslator, describe_as
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import TableState
from phalanx.table import evolution
from phalanx.table.handle import TableHandle
from phalanx.table.history import snapshots
from phalanx.table.history.change_feed import ChangeFeed, plan_changes
from phalanx.table.jobs.write_job import WriteJob
from phalanx.table.maintenance import erase, indexes, upgrade
from phalanx.table.maintenance.erase import Erased
from phalanx.table.maintenance.health import Health, check_health, parse_limits
from phalanx.table.maintenance.indexes import Indexed
from phalanx.table.maintenance.move import Move, plan_move, unite_leaves
from phalanx.table.maintenance.rewrite import (
    DEFAULT_MAX_COMMITS,
    Compaction,
    Rewritten,
    count_commits,
)
from phalanx.table.maintenance.upgrade import Upgrade, UpgradePlan
from phalanx.table.maintenance.vacuum import Vacuumed, vacuum
from phalanx.table.maintenance.verify import Verified, set_checksums, verify
from phalanx.table.read import inspection
from phalanx.table.read.keys import find_leaf, key_from_values
from phalanx.table.read.rewrite_planning import plan_rewrite_files
from phalanx.table.read.scan import Scan, bind_where, make_scan, plan_scan
from phalanx.table.read.search import search_leaves
from phalanx.table.transactions import foreign_writes, strong_mode
from phalanx.table.write import adopt, merge, operations, retention, update
from phalanx.table.write.merge import MergeCounts
from phalanx.table.write.retention import Retained
from phalanx.table.write.transaction import Transaction

# The arguments of a rewrite that are not options of the plan.
_RUN_ARGUMENTS = ("target_spec", "partial_progress", "max_commits")


class Table(ErrorTranslator):
    """A partitioned namespace: one logical table, made of many Lance tables.

    `phalanx.create` and `phalanx.open` return one. A table holds no rows and no lock: each call
    sees what is stored when it runs, except on a table as of a snapshot (`at`). Threads can share
    a table, and it can be pickled.

    A `where` is a SQL predicate in DataFusion's dialect over the names of the columns. `data` is
    anything that exports an Arrow stream (pyarrow, polars, DuckDB) or a pandas DataFrame.

    Errors of every method:
        - `StorageFailure`: The store failed, or a file is damaged or missing.
        - `NotPartitioned`: The table is gone.
        - `InvalidManifest`: The manifest breaks the format.
        - `UntrustedLocation`: A partition is outside of the table's folder, and was not adopted.

    Errors of every method that writes:
        - `CommitConflict`: Another writer changed the same rows, the schema, the specs or the mode
          first. Nothing was changed.
        - `UnknownOutcome`: The store failed during a commit in strong mode, and it is unknown
          whether the commit succeeded.
        - `ForeignWrite`: In strong mode something else wrote to a partition outside Phalanx. Call
          `keep_foreign_writes` or `discard_foreign_writes`. If the error has a `snapshot`, the
          change was committed nevertheless; else write again.
        - `PartialWrite`: In weak mode some partitions have the change, and others do not.
        - `PhalanxError`: The table is as of a snapshot; or it is in weak mode, and its manifest
          names the version to read of a partition, so that readers would not see the change.

    Each method lists its other errors. All of them are `PhalanxError`.

    Example:
        >>> events = phalanx.create(uri, schema, ["country"], transaction="strong")
        >>> events.append(rows)
        2
        >>> events.scan("country = 'IT'").to_arrow()["id"].to_pylist()
        [5]
    """

    # ── identity ─────────────────────────────────────────────────────────────────────────────

    def __init__(self, state: TableState, snapshot: int | datetime | None = None) -> None:
        """Make the table of a state; use `phalanx.open` and `phalanx.create` instead."""
        self._handle = TableHandle(state, snapshot)

    def __repr__(self) -> str:
        properties = self._handle.properties
        label = properties.spec.label(properties.schema)
        return f"<phalanx.Table {self.uri} by {label or 'nothing'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the location of the table, or its state as of a snapshot."""
        state, snapshot = self._handle.state, self._handle.snapshot
        if snapshot is not None:
            return type(self), (state, snapshot)
        return _reopen, (type(self), state.root, state.overrides)

    def _error_location(self) -> str:
        return self._handle.root.uri

    @property
    def uri(self) -> str:
        """The path or URI of the table.

        Example:
            >>> events.uri == str(uri)
            True
        """
        return self._handle.root.uri

    @property
    def schema(self) -> pa.Schema:
        """The columns, each with its `lance:field_id` in the metadata.

        Example:
            >>> events.schema.names
            ['id', 'country', 'amount', 'note', 'vector']
        """
        return self._handle.properties.schema.arrow

    @property
    def spec(self) -> PartitionSpec:
        """The newest partition spec; rows are written under it.

        Example:
            >>> [field.field_id for field in events.spec.fields]
            ['country']
        """
        return self._handle.properties.spec

    @property
    def specs(self) -> Mapping[int, PartitionSpec]:
        """All partition specs by their ids.

        Example:
            >>> list(events.specs)
            [1]
        """
        return dict(self._handle.properties.specs)

    @property
    def mode(self) -> Mode:
        """Whether a write commits each partition by itself ("weak") or all as one ("strong").

        Example:
            >>> events.mode
            'strong'
        """
        return cast(Mode, self._handle.properties.mode)

    @property
    def layout(self) -> Layout:
        """How the table is stored: "namespace", or an earlier draft: "expressions" or "hive".

        Example:
            >>> events.layout
            'namespace'
        """
        return cast(Layout, self._handle.refresh().layout)

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    @describe_as("scan")
    def scan(
        self,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Scan:
        """Scan the rows that match.

        Args:
            where: The predicate; None: all rows.
            columns: The names of the columns to read, nested fields as "a.b"; None: all.
            limit: The most rows to read; None: all.

        Returns:
            A `Scan`, which reads nothing until its `to_arrow`, `to_batches` or `count_rows` is
            called. Rows are in the order of spec, partition values (NULL last) and leaf.

        Raises:
            InvalidPredicate: `where` does not parse, or does not fit the schema.
            SchemaMismatch: The table has no such column.
            InvalidArgument: `columns` is not a list of different names, or `limit` is not a
                number of rows.

        Example:
            >>> events.scan("amount > 15", columns=["id"], limit=1).to_arrow().to_pylist()
            [{'id': 2}]
        """
        return make_scan(self._handle.refresh(), where, columns, limit)

    @describe_as("plan a scan of")
    def plan(self, where: str | None = None) -> ScanPlan:
        """Plan a scan, without reading rows.

        Args:
            where: The predicate; None: all rows.

        Returns:
            A `ScanPlan`: the partitions that may hold a matching row, what remains to be filtered
            in each, and why. `str(plan)` explains it.

        Raises:
            InvalidPredicate: `where` does not parse, or does not fit the schema.

        Example:
            >>> plan = events.plan("country = 'DE' AND amount > 15")
            >>> len(plan.partitions), plan.total_partitions, plan.partitions[0].residual
            (1, 2, 'amount > 15.0')
        """
        state = self._handle.refresh()
        return plan_scan(state, bind_where(where, state.properties.schema))

    @describe_as("open a partition of")
    def partition(self, **values: Any) -> lance.LanceDataset:
        """Open one partition as an ordinary Lance dataset.

        Args:
            **values: A value for each partition field, by field id.

        Returns:
            The dataset, at the version that the table reads.

        Raises:
            PhalanxError: There is no such partition, or another writer listed it twice.
            InvalidArgument: A value does not have the type of its field.

        Example:
            >>> events.partition(country="DE").count_rows()
            2
        """
        location, version = find_leaf(self._handle.refresh(), values)
        return location.open_leaf(version)

    @describe_as("list the partitions of")
    def partitions(self) -> pa.Table:
        """List the partitions.

        Returns:
            A row for each partition: `spec_id`, each partition field by its id, `location`,
            `read_version`, `rows`, `bytes`.

        Raises:
            PhalanxError: A partition is missing in storage.

        Example:
            >>> events.partitions().select(["country", "rows"]).to_pylist()
            [{'country': 'DE', 'rows': 2}, {'country': 'FR', 'rows': 1}]
        """
        return inspection.list_partitions(self._handle.refresh())

    @describe_as("list the files of")
    def files(self) -> pa.Table:
        """List the files.

        Returns:
            A row for each Lance fragment of each partition, with the partition's values, and the
            fragment's files, rows, deleted rows and bytes.

        Raises:
            PhalanxError: A partition is missing in storage.

        Example:
            >>> events.files()["rows"].to_pylist()
            [2, 1]
        """
        return inspection.list_files(self._handle.refresh())

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    @describe_as("append to")
    def append(self, data: ArrowStreamExportable) -> int:
        """Add rows, each to its partition under the newest spec.

        Args:
            data: The rows. Columns match by name, in any order; all are required.

        Returns:
            The number of rows added.

        Raises:
            SchemaMismatch: A column or a value of the data does not fit the schema.

        Example:
            >>> events.append(rows)
            2
        """
        return operations.append(*self._handle.for_statement(), data)

    @describe_as("overwrite")
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

        Example:
            >>> events.overwrite(rows.slice(0, 1), "country = 'FR'")
            1
        """
        return operations.overwrite(*self._handle.for_statement(), data, where)

    @describe_as("overwrite partitions of")
    def overwrite_partitions(self, data: ArrowStreamExportable) -> int:
        """Replace the partitions under the newest spec that the data has rows for.

        Rows of these partitions are replaced wherever they are stored, under older specs too. A
        repeated call gives the same table.

        Args:
            data: The new rows.

        Returns:
            The number of rows written.

        Raises:
            SchemaMismatch: The data does not fit the schema.

        Example:
            >>> events.overwrite_partitions(rows)
            2
            >>> sorted(events.scan().to_arrow()["id"].to_pylist())
            [1, 2, 4, 5]
        """
        return operations.overwrite_partitions(*self._handle.for_statement(), data)

    @describe_as("delete from")
    def delete(self, where: str) -> int:
        """Delete the rows that match.

        Args:
            where: The rows to delete. A row for which it is NULL stays.

        Returns:
            The number of rows deleted.

        Raises:
            InvalidPredicate: `where` does not parse, or does not fit the schema.

        Example:
            >>> events.delete("amount < 15")
            1
        """
        return operations.delete(*self._handle.for_statement(), where)

    @describe_as("update")
    def update(self, where: str, assignments: Mapping[str, str]) -> int:
        """Give the rows that match new values.

        A row whose partition values change moves to its partition under the newest spec; the
        others stay in their leaf. In weak mode each leaf is updated by itself, and moved rows are
        added to their new leaves first: if the process dies in between, they are there twice, and
        none is lost.

        Args:
            where: The rows to update.
            assignments: For each column to set a SQL expression over the old row.

        Returns:
            The number of rows updated.

        Raises:
            InvalidPredicate: `where` or an expression does not parse, or does not fit the schema.
            SchemaMismatch: There is no such column, or a new value does not fit it.
            InvalidArgument: `assignments` is empty, names a column twice, or has no SQL text.

        Example:
            >>> events.update("id = 3", {"amount": "amount * 2"})
            1
        """
        return update.update(*self._handle.for_statement(), where, assignments)

    @describe_as("merge into")
    def merge(
        self,
        data: ArrowStreamExportable,
        on: str | Sequence[str],
        *,
        when_matched: WhenMatched = "update",
        when_not_matched: WhenNotMatched = "insert",
    ) -> MergeCounts:
        """Update the rows that have the key of a data row, and insert the other data rows.

        All rows with a key are changed, in whichever partition they are. NULL matches nothing, and
        NaN matches NaN. In weak mode each leaf is changed by itself, as by `update`, and two
        merges at the same time may both insert a key.

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

        Example:
            >>> events.merge(rows, on="id")
            MergeCounts(inserted=2, updated=0, deleted=0)
        """
        return merge.merge_rows(
            *self._handle.for_statement(), data, on, when_matched, when_not_matched
        )

    @describe_as("drop partitions of")
    def drop_partitions(self, where: str) -> int:
        """Drop each partition whose rows all match. Decides by partition values; reads no data.

        In strong mode it is one commit. The partitions are no longer listed; a rollback restores
        them until a vacuum removes their files. In weak mode, and in earlier drafts of the format,
        each partition is emptied by a commit of its own, and stays listed with no rows.

        Args:
            where: The partitions to drop.

        Returns:
            The number of partitions dropped.

        Raises:
            InvalidPredicate: `where` does not parse or fit the schema, or a partition may match
                in part.

        Example:
            >>> events.drop_partitions("country = 'FR'")
            1
        """
        return operations.drop_partitions(*self._handle.for_statement(), where)

    @describe_as("retain partitions of")
    def retain(self, keep: str, *, rows: bool = False, dry_run: bool = False) -> Retained:
        """Drop the partitions in which no row matches `keep`.

        It commits as `drop_partitions` and `delete` do; in strong mode both in one snapshot.

        Args:
            keep: The rows to keep. `now` and `today`, plus or minus spans of time, are allowed, as
                in "event_date >= now - 90 days". A row for which it is NULL stays.
            rows: Also delete the other rows of partitions that match in part; by default such
                partitions stay as they are, and no data is read.
            dry_run: Change nothing.

        Returns:
            The partitions dropped, those that match in part, and the number of rows deleted.

        Raises:
            InvalidPredicate: `keep` does not parse or fit the schema; or, without `rows`, it uses
                no column that the table is partitioned by.

        Example:
            >>> events.retain("country = 'DE'").dropped[0].key.values
            ('FR',)
        """
        if dry_run:
            return retention.retain(self._handle.refresh(), None, keep, rows)
        return retention.retain(*self._handle.for_statement(), keep, rows)

    @describe_as("begin a write to")
    def begin_write(
        self,
        operation: WriteOperation = "append",
        where: str = "true",
        marker: str | None = None,
    ) -> WriteJob:
        """Begin a write by many processes: each writes some rows, then one commits all.

        Args:
            operation: "append", "overwrite" (of the rows that match `where`) or
                "overwrite_partitions".
            where: The rows that "overwrite" replaces.
            marker: Of all jobs and transactions with the same marker only one is committed; only
                in strong mode. A text of several lines is several markers, none of which may be
                committed before.

        Returns:
            A `WriteJob`, which can be pickled. Its `write` returns what `commit` needs.

        Raises:
            InvalidPredicate: `where` does not parse, or does not fit the schema.
            InvalidArgument: `operation` is none of the above, or `marker` is not text.
            PhalanxError: A marker is given in weak mode, or its job was committed before.

        Example:
            >>> job = events.begin_write()
            >>> done = job.commit([job.write(rows.to_reader())])
            >>> done.rows
            2
        """
        return WriteJob.begin(self._handle.for_write("rows"), operation, where, marker)

    @describe_as("adopt into")
    def adopt(self, uri: str | os.PathLike[str], /, **values: Any) -> PartitionKey:
        """Make an existing Lance dataset a partition, in place and without a copy.

        The table must be in weak mode. The columns of the dataset must be those of the table, in
        any order. All its rows must belong to one partition of the newest spec, which does not
        exist yet. The dataset gets the table's field ids. If its ids change, drop its indexes
        first. Nothing else should write to it during this call.

        Afterwards the dataset belongs to the table. A vacuum removes its old versions, and removes
        all of it once the partition was dropped.

        An adopted dataset outside of the table's folder has a record of its table. The record is
        out of date after the table was moved. Adopt the dataset again to renew it. This changes
        nothing else, and works in both modes.

        Other Lance clients list the dataset like every partition. They can open it only inside the
        table's folder, because they take every location for a path below that folder.

        Args:
            uri: The path or URI of the Lance dataset.
            **values: Its partition values, by field id; needed only for a dataset without rows.

        Returns:
            The key of the new partition.

        Raises:
            SchemaMismatch: Its columns are not the table's.
            InvalidArgument: `values` are not values of the fields of the newest spec.
            PhalanxError: The table is in strong mode or has the hive layout, the rows are of
                several partitions or of none, or the partition exists.

        Example:
            >>> events.set_mode("weak")
            >>> _ = lance.write_dataset(rows.slice(1, 1), str(uri / "italy"))
            >>> events.adopt(uri / "italy")
            PartitionKey(spec_id=1, values=('IT',))
        """
        wanted = functools.partial(key_from_values, values) if values else None
        return adopt.adopt(self._handle.for_write("manifest"), uri, wanted)

    # ── transactions and history ─────────────────────────────────────────────────────────────

    @describe_as("begin a transaction on")
    def transaction(
        self, isolation: Isolation = "snapshot", marker: str | None = None
    ) -> Transaction:
        """Begin a transaction: several statements as one commit, in a `with` block.

        It commits on leaving the block, and discards everything on an exception. Only in strong
        mode.

        Args:
            isolation: "snapshot", or "serializable": then it also fails if another writer changed
                what it has read.
            marker: Of all transactions with the same marker only one is committed, so that it can
                be repeated safely.

        Returns:
            A `Transaction`, with `scan` and the methods that write.

        Raises:
            PhalanxError: The table is in weak mode.
            InvalidArgument: `isolation` is none of the above, or `marker` no text.
            CommitConflict: On leaving the block: another writer changed the same rows first.
            UnknownOutcome: On leaving the block: the store failed, and it is unknown whether the
                commit succeeded.

        Example:
            >>> with events.transaction() as txn:
            ...     deleted, added = txn.delete("country = 'FR'"), txn.append(rows)
            >>> txn.snapshot == events.newest_snapshot
            True
        """
        return Transaction(self._handle.for_write("snapshots"), isolation, marker)

    @describe_as("change the mode of")
    def set_mode(self, mode: Mode) -> None:
        """Change how later writes commit. The rows stay as they are.

        A change that was cut off is completed by the next write, or by the same call. In strong
        mode the history begins with a first snapshot of all rows. In weak mode there is no history:
        the snapshots are removed.

        Args:
            mode: "weak" (each partition is committed by itself) or "strong" (one snapshot).

        Raises:
            InvalidArgument: `mode` is none of the above.
            SchemaMismatch: A partition does not have the table's columns.
            ForeignWrite: The mode would become weak, and something else wrote to a partition
                outside Phalanx.
            PhalanxError: The table has the hive layout, which is weak only. Or the mode would
                become strong, and a partition has v1 manifest paths. Or it would become weak, and
                a partition is read from a branch.

        Example:
            >>> events.set_mode("weak")
            >>> events.mode
            'weak'
        """
        self._handle.state = strong_mode.set_mode(self._handle.for_write("manifest"), mode)

    @describe_as("list the snapshots of")
    def snapshots(self) -> pa.Table:
        """List the snapshots, the oldest first; none in weak mode.

        Returns:
            A row for each: `id`, `time`, `operation`, `partitions`, `rows_added`, `rows_removed`.

        Raises:
            InvalidManifest: The record of a snapshot is damaged.

        Example:
            >>> events.snapshots()["operation"].to_pylist()
            ['create', 'append']
        """
        state = self._handle.refresh()
        return snapshots.tabulate_snapshots(state if isinstance(state, Manifest) else None)

    @property
    def newest_snapshot(self) -> int | None:
        """The id of the newest snapshot; None in weak mode.

        Example:
            >>> events.newest_snapshot
            2
        """
        state = self._handle.refresh()
        return snapshots.find_newest(state) if isinstance(state, Manifest) else None

    @describe_as("list the markers of")
    def markers(self, prefix: str = "") -> dict[str, int]:
        """List the markers of committed transactions and jobs, with their snapshots.

        Args:
            prefix: Only markers that begin with it.

        Returns:
            The id of the snapshot by marker.

        Raises:
            PhalanxError: The table has the hive layout, which has none.

        Example:
            >>> with events.transaction(marker="load 7") as txn:
            ...     _ = txn.append(rows)
            >>> events.markers("load")
            {'load 7': 3}
        """
        return list_committed_markers(self._handle.load_manifest(), prefix)

    @describe_as("read an earlier snapshot of")
    def at(self, snapshot: int | datetime) -> Self:
        """Return the table as of a snapshot, read-only.

        Args:
            snapshot: The id, or a time: the newest snapshot then. A time without zone is UTC.

        Returns:
            The table as it was. It stays the same while others write, and cannot be changed.

        Raises:
            PhalanxError: The table is in weak mode, or has no such snapshot.
            InvalidArgument: `snapshot` is neither an id nor a datetime.

        Example:
            >>> events.at(1).scan().count_rows()
            0
        """
        return type(self)(
            snapshots.open_snapshot(self._handle.load_strong_manifest(), snapshot), snapshot
        )

    @describe_as("roll back")
    def rollback(self, snapshot: int | datetime) -> int:
        """Restore the rows of a snapshot, as a new snapshot; schema and specs stay.

        Args:
            snapshot: The id, or a time.

        Returns:
            The id of the new snapshot.

        Raises:
            PhalanxError: The table is in weak mode, or has no such snapshot.
            InvalidArgument: `snapshot` is neither an id nor a datetime.

        Example:
            >>> events.rollback(1)
            3
            >>> events.scan().count_rows()
            0
        """
        return snapshots.rollback(self._handle.for_write("snapshots"), snapshot)

    @describe_as("compare snapshots of")
    def diff(self, a: int | datetime, b: int | datetime) -> pa.Table:
        """Compare two snapshots by partition.

        Args:
            a: The first snapshot, by id or time.
            b: The second.

        Returns:
            A row for each partition that differs, with its values and the rows added and removed
            from `a` to `b`.

        Raises:
            PhalanxError: The table is in weak mode, or has no such snapshot.
            InvalidArgument: A snapshot is neither an id nor a datetime.

        Example:
            >>> events.diff(1, 2).select(["country", "rows_added"]).to_pylist()
            [{'country': 'DE', 'rows_added': 2}, {'country': 'FR', 'rows_added': 1}]
        """
        return snapshots.diff(self._handle.load_strong_manifest(), a, b)

    @describe_as("read the changes of")
    def changes(
        self,
        from_snapshot: int | datetime,
        to_snapshot: int | datetime | None = None,
        where: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> ChangeFeed:
        """Read the change data feed: the rows inserted, deleted and updated between snapshots.

        Changes are in the order of the snapshots; in each one deleted rows and old versions of
        updated rows come first. Replayed in this order, the feed turns the rows of the one snapshot
        into those of the other. Rows have the columns as of `to_snapshot`, and `_change` ("insert",
        "delete", "update_before" or "update_after"), `_snapshot`, and `_update`, a number that the
        two rows of an update share.

        Args:
            from_snapshot: Changes after this snapshot, an id or a time; 0: all.
            to_snapshot: Up to this one; None: the newest.
            where: Prunes partitions, and is applied to each row, old or new, by itself.
            columns: The names of the columns to read; None: all.

        Returns:
            A `ChangeFeed`, which reads nothing before its `to_arrow` or `to_batches` is called.

        Raises:
            PhalanxError: The table is in weak mode, has no such snapshot, or the first is later
                than the second.
            InvalidPredicate: `where` does not parse, or does not fit the schema.

        Example:
            >>> events.delete("id = 3")
            1
            >>> events.changes(2).to_arrow().select(["id", "_change", "_snapshot"]).to_pylist()
            [{'id': 3, '_change': 'delete', '_snapshot': 3}]
        """
        manifest = self._handle.load_strong_manifest()
        return plan_changes(manifest, from_snapshot, to_snapshot, where, columns)

    @describe_as("keep foreign writes in")
    def keep_foreign_writes(self) -> list[str]:
        """Make what others wrote to leaves outside Phalanx part of the table, as a snapshot.

        Returns:
            The leaves with such writes.

        Raises:
            PhalanxError: The table is in weak mode, where such writes are read at once; or a
                snapshot changed the same leaf too, or the rows are of another partition.
            SchemaMismatch: A leaf has other columns than the table.

        Example:
            >>> events.keep_foreign_writes()
            []
        """
        return foreign_writes.keep(self._handle.for_write("snapshots"))

    @describe_as("discard foreign writes in")
    def discard_foreign_writes(self) -> list[str]:
        """Put leaves that others wrote to outside Phalanx back to the newest snapshot.

        Returns:
            The leaves with such writes.

        Raises:
            PhalanxError: The table is in weak mode, where such writes are read at once.

        Example:
            >>> events.discard_foreign_writes()
            []
        """
        return foreign_writes.discard(self._handle.for_write("snapshots"))

    # ── evolution ────────────────────────────────────────────────────────────────────────────

    @describe_as("evolve")
    def evolve(self, partition_by: PartitionBy) -> PartitionSpec:
        """Write later rows under another partition spec; stored rows stay as they are.

        Args:
            partition_by: A list of column names and transforms, or text, as for `phalanx.create`.

        Returns:
            The newest spec. Field ids of equal fields in earlier specs are used again.

        Raises:
            InvalidSpec: A field cannot be made of the columns, or its id means something else.
            PhalanxError: The table has the hive layout, which has one spec.

        Example:
            >>> spec = events.evolve(["country", phalanx.bucket("id", 4)])
            >>> spec.id, [field.field_id for field in spec.fields]
            (2, ['country', 'id_bucket'])
        """
        self._handle.state, spec = evolution.evolve(
            self._handle.for_write("manifest"), partition_by
        )
        return spec

    @describe_as("change the schema of")
    def add_column(self, field: pa.Field) -> None:
        """Add a nullable column, which is NULL in all existing rows.

        It becomes the last column, with a new field id.

        Args:
            field: The name and type, as `pa.field(name, type)`.

        Raises:
            SchemaMismatch: The column exists, or is not nullable.
            InvalidSchema: The name or the type cannot be stored.
            InvalidArgument: `field` is not an Arrow field.
            PhalanxError: The table has the hive layout, which has one schema.

        Example:
            >>> events.add_column(pa.field("source", pa.string()))
            >>> events.schema.names[-1]
            'source'
        """
        self._handle.state = evolution.add_column(self._handle.for_write("leaves"), field)

    @describe_as("change the schema of")
    def drop_column(self, name: str) -> None:
        """Drop a column that the newest spec does not use.

        Its values are no longer read, and its field id is not used again.

        Args:
            name: The column, or a field of one as "a.b".

        Raises:
            SchemaMismatch: The newest spec uses it, or it is the last one.
            InvalidSchema: There is no such column.
            PhalanxError: The table has the hive layout, which has one schema.

        Example:
            >>> events.drop_column("note")
            >>> "note" in events.schema.names
            False
        """
        self._handle.state = evolution.drop_column(self._handle.for_write("leaves"), name)

    @describe_as("change the schema of")
    def rename_column(self, old: str, new: str) -> None:
        """Rename a column; its field id and the partitions stay.

        Queries use the new name. The old one can be given to another column.

        Args:
            old: The column, or a field of one as "a.b".
            new: The new name, without the names above it.

        Raises:
            SchemaMismatch: The new name is taken.
            InvalidSchema: There is no such column, or the new name cannot be stored.
            PhalanxError: The table has the hive layout, which has one schema.

        Example:
            >>> events.rename_column("amount", "price")
            >>> events.scan("price > 15").count_rows()
            2
        """
        self._handle.state = evolution.rename_column(self._handle.for_write("leaves"), old, new)

    @describe_as("change the schema of")
    def promote_column(self, name: str, type: pa.DataType) -> None:
        """Give a column a wider type; the partitions stay.

        All rows have the new type.

        Args:
            name: The column, or a field of one as "a.b".
            type: An integer or float of more bits, or a decimal of more digits.

        Raises:
            SchemaMismatch: The type is not wider.
            InvalidSchema: There is no such column.
            InvalidArgument: `type` is not an Arrow type.
            PhalanxError: The table has the hive layout, which has one schema.

        Example:
            >>> events.add_column(pa.field("count", pa.int32()))
            >>> events.promote_column("count", pa.int64())
        """
        self._handle.state = evolution.promote_column(self._handle.for_write("leaves"), name, type)

    # ── search and indexes ───────────────────────────────────────────────────────────────────

    @describe_as("search")
    def search(
        self,
        column: str,
        query: Any,
        k: int = 10,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        *,
        metric: Metric | None = None,
        use_index: bool = True,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        ef: int | None = None,
        operator: WordOperator = "or",
        hybrid: tuple[str, str] | None = None,
        rrf: int = DEFAULT_RRF,
    ) -> pa.Table:
        """Find the k best rows of all partitions that `where` plans, by a vector or by words.

        Partitions without an index are searched exactly. Equal rows are in the order of a scan.

        Args:
            column: A column of vectors, or of text.
            query: A vector of the column's size, or the words to look for.
            k: The number of rows.
            where: Only rows that match count.
            columns: The names of the columns to read; None: all. Partition sources are added.
            metric: "l2", "cosine" or "dot" for vectors of floats, "hamming" for uint8; None: that
                of the column's index.
            use_index: False: compare with every vector, which is exact.
            nprobes: The number of partitions of an IVF index to search, in each leaf.
            refine_factor: How many times k candidates of a quantized index are compared exactly.
            ef: The number of candidates that an HNSW index keeps.
            operator: Rows with any of the words ("or") or with all ("and").
            hybrid: A column of text and words to look for there. The rankings by vector and by
                words are fused by reciprocal rank.
            rrf: The constant of the fusion: a rank counts 1 / (rrf + rank).

        Returns:
            At most k rows, the best first, with `_distance` for vectors, `_score` for words (BM25
            over all these partitions) or `_relevance_score` for a hybrid search.

        Raises:
            InvalidPredicate: `where` does not parse, or does not fit the schema.
            SchemaMismatch: The table has no such column.
            InvalidArgument: The query does not fit the column, or an option is wrong.

        Example:
            >>> events.search("vector", [2.0, 0.0], k=1)["id"].to_pylist()
            [2]
            >>> events.search("note", "red shoes", k=1)["id"].to_pylist()
            [3]
        """
        options = SearchOptions(
            metric=metric,
            use_index=use_index,
            nprobes=nprobes,
            refine_factor=refine_factor,
            ef=ef,
            operator=operator,
            hybrid=hybrid,
            rrf=rrf,
        )
        return search_leaves(self._handle.refresh(), column, query, k, where, columns, options)

    @property
    def indexes(self) -> tuple[IndexSpec, ...]:
        """The declared indexes, which every partition should have.

        Example:
            >>> events.indexes
            ()
        """
        state = self._handle.refresh()
        return indexes.list_live_indexes(state) if isinstance(state, Manifest) else ()

    @describe_as("index")
    def create_index(
        self,
        column: str,
        kind: IndexKind,
        *,
        min_rows: int | None = None,
        spark: Any = None,
        **options: Unpack[IndexArguments],
    ) -> Indexed:
        """Declare an index of a column, and build it in every partition.

        `rewrite` and `optimize_indexes` build it for rows and partitions that come later, as the
        same call again does. In strong mode it is one snapshot; in weak mode each partition is
        committed by itself.

        Args:
            column: The column, or a field of one as "a.b".
            kind: IVF_FLAT, IVF_PQ, IVF_SQ, IVF_RQ, IVF_HNSW_FLAT, IVF_HNSW_PQ or IVF_HNSW_SQ for
                vectors, INVERTED for words, BTREE, BITMAP, LABEL_LIST, NGRAM, ZONEMAP or
                BLOOMFILTER for `where`.
            min_rows: Partitions with fewer rows get none; None: 256 for vectors, else 1.
            spark: A Spark session, to build it on its executors; None: in threads.
            **options: Lance's options of that kind, such as `metric`; see `IndexArguments`.

        Returns:
            What was indexed, and the partitions that were not, with the reason.

        Raises:
            SchemaMismatch: The table has no such column.
            InvalidArgument: The kind does not fit the column, or an option is wrong.
            PhalanxError: The table has the hive layout.

        Example:
            >>> events.create_index("id", "BTREE").partitions
            2
        """
        return indexes.create_index(
            self._handle.for_leaves, column, kind, min_rows, spark, dict(options)
        )

    @describe_as("index")
    def optimize_indexes(self, where: str | None = None, *, spark: Any = None) -> Indexed:
        """Index the rows that the declared indexes do not cover yet; `rewrite` does it too.

        Args:
            where: Only partitions that may hold a matching row; None: all.
            spark: A Spark session, to run on its executors; None: in threads.

        Returns:
            What was indexed, and the partitions that were not, with the reason.

        Raises:
            InvalidPredicate: `where` does not parse, or does not fit the schema.
            PhalanxError: The table has the hive layout.

        Example:
            >>> events.optimize_indexes().rows
            0
        """
        return indexes.optimize_indexes(self._handle.for_leaves, where, spark)

    @describe_as("drop an index of")
    def drop_index(self, name: str) -> int:
        """Drop a declared index, in every partition.

        Args:
            name: The name in `indexes`.

        Returns:
            The number of partitions that had it.

        Raises:
            PhalanxError: There is no such index, or the table has the hive layout.

        Example:
            >>> index = events.create_index("id", "BTREE").indexes[0]
            >>> events.drop_index(index.name)
            2
        """
        return indexes.drop_index(self._handle.for_leaves, name)

    # ── maintenance ──────────────────────────────────────────────────────────────────────────

    @describe_as("check the health of")
    def health(self, **limits: Unpack[HealthArguments]) -> Health:
        """Find out what should be done about the table; changes nothing.

        It finds partitions and files that are missing in storage, partitions that need compaction
        or hold many deleted rows, skewed, tiny and huge partitions, older specs with or without
        data, and bytes that a vacuum would remove.

        Args:
            **limits: Thresholds of the findings; see `HealthLimits`.

        Returns:
            The findings, each with the command that fixes it.

        Raises:
            InvalidArgument: There is no such limit, or it is not a positive integer.
            PhalanxError: The table has the hive layout.

        Example:
            >>> [finding.kind for finding in events.health()]
            []
        """
        return check_health(self._handle.load_manifest(), parse_limits(limits))

    @describe_as("verify")
    def verify(self, deep: bool = False, *, progress: ProgressCallback | None = None) -> Verified:
        """Find files that differ from what was written; changes nothing.

        Every file of every version that a retained snapshot reads (in weak mode the newest one)
        must exist, have the recorded size, and open. A file with a checksum is compared with it
        before Lance opens the file.

        Args:
            deep: Also read all rows, check their number and that they belong to their partition,
                and open the indexes.
            progress: Called with the number of finished partitions, and of all.

        Returns:
            The findings, empty if all is well, and how much was checked.

        Raises:
            StorageFailure: The manifest cannot be read. Damage of other files is a finding.

        Example:
            >>> list(events.verify(deep=True))
            []
        """
        return verify(self._handle.refresh(), deep, progress)

    @describe_as("set the checksums of")
    def set_checksums(self, enabled: bool = True) -> int:
        """Record a checksum of each file, for `verify`.

        A checksum is a small file beside each data, deletion, index and version file. Those of all
        files that snapshots read are written at once. Every later write reads back what it wrote,
        and hashes it with SHA-256: on a local disk about 4 ms for each megabyte, a quarter to a
        half of the processor time of a large append, and 3 ms for each partition of a small one;
        in an object store two or three more requests for each file. Reads cost nothing more.

        Args:
            enabled: False: add no more checksums. Those that exist stay.

        Returns:
            The number of checksums that were missing, and are written.

        Raises:
            PhalanxError: The table has the hive layout, which has no checksums.

        Example:
            >>> events.set_checksums() > 0
            True
        """
        if isinstance(self._handle.state, HiveRoot):
            raise PhalanxError(
                f"Cannot set the checksums of {self.uri}: the hive layout has none. Make it a "
                "table of the newest format with upgrade() first."
            )
        return set_checksums(lambda: self._handle.for_write("manifest"), enabled)

    @describe_as("plan a rewrite of")
    def plan_rewrite(
        self,
        where: str | None = None,
        *,
        target_spec: int | None = None,
        partial_progress: bool = False,
        max_commits: int = DEFAULT_MAX_COMMITS,
        **options: Unpack[RewriteArguments],
    ) -> RewritePlan:
        """Plan which files to rewrite, together with which others; changes nothing.

        Args:
            where: Only partitions that may hold a matching row; None: all.
            target_spec: Plan all files of other specs, to be moved to this one.
            partial_progress: As for `rewrite`; changes no plan.
            max_commits: As for `rewrite`; changes no plan.
            **options: Sizes and thresholds with Iceberg's names; see `RewriteOptions`.

        Returns:
            The groups of files to rewrite, and why the others are left out.

        Raises:
            InvalidPredicate: `where` does not parse, or does not fit the schema.
            InvalidArgument: There is no such option, or its value is wrong.
            InvalidSpec: `target_spec` is not the newest spec.
            PhalanxError: `target_spec` is given, and the table has the hive layout.

        Example:
            >>> len(events.plan_rewrite(rewrite_all=True).groups)
            2
        """
        count_commits(partial_progress, max_commits)
        chosen = build_rewrite_options(where, options, _RUN_ARGUMENTS)
        if target_spec is not None:
            return plan_move(self._handle.load_manifest(), chosen, target_spec).plan
        return plan_rewrite_files(self._handle.refresh(), chosen).plan

    @describe_as("rewrite")
    def rewrite(
        self,
        where: str | None = None,
        *,
        spark: Any = None,
        target_spec: int | None = None,
        partial_progress: bool = False,
        max_commits: int = DEFAULT_MAX_COMMITS,
        progress: ProgressCallback | None = None,
        **options: Unpack[RewriteArguments],
    ) -> Rewritten:
        """Compact: write small files as larger ones, without their deleted rows.

        In strong mode the result is one snapshot, or up to `max_commits` of them with
        `partial_progress`. In weak mode each partition is committed by itself. Writers that add
        rows during this call do not conflict. If a writer removes rows of the same files, these
        files are planned again, and skipped if it happens repeatedly. If another writer gave a
        partition several leaves, their rows are first moved to the first leaf. At the end the
        declared indexes are completed.

        With `target_spec` rows of older specs move to their partitions under that spec, in one
        transaction; every reader sees the same rows at all times. A table in weak mode is in
        strong mode during this call, and stays there if the process dies: the same call again
        completes the move, and returns the table to weak mode. Writes that run when the mode
        changes fail.

        Args:
            where: Only partitions that may hold a matching row; None: all.
            spark: A Spark session, to run on its executors; None: in threads.
            target_spec: The newest spec, to move the rows of older specs to it.
            partial_progress: Commit several snapshots, as groups are finished.
            max_commits: The most snapshots with `partial_progress`.
            progress: Called with the number of finished groups, and of all.
            **options: Sizes and thresholds with Iceberg's names; see `RewriteOptions`.

        Returns:
            Files and bytes before and after, the snapshots, and what was left as it is.

        Raises:
            InvalidPredicate: `where` does not parse, or does not fit the schema.
            InvalidArgument: There is no such option, or its value is wrong.
            InvalidSpec: `target_spec` is not the newest spec.
            PhalanxError: `target_spec` is given, and the table has the hive layout.

        Example:
            >>> events.append(rows.slice(0, 1))
            1
            >>> done = events.rewrite("country = 'FR'", rewrite_all=True)
            >>> done.files_before, done.files_after
            (2, 1)
        """
        handle = self._handle
        chosen = build_rewrite_options(where, options, _RUN_ARGUMENTS)
        commits = count_commits(partial_progress, max_commits)
        united = 0
        if isinstance(handle.refresh(), Manifest):
            united = unite_leaves(handle.for_leaves, chosen)
        if target_spec is not None:
            done = Move(handle.for_leaves, chosen, target_spec, spark, progress).run()
        else:
            done = Compaction(
                lambda: handle.for_write("rows"), chosen, spark, commits, progress
            ).run()
        done = replace(done, united=united)
        if self.indexes:
            optimized_where = None if target_spec is not None else chosen.partition_filter
            return replace(done, indexed=self.optimize_indexes(optimized_where, spark=spark))
        return done

    @describe_as("vacuum")
    def vacuum(self, older_than: timedelta = timedelta(days=7), dry_run: bool = False) -> Vacuumed:
        """Expire old snapshots, and remove every file that nothing needs.

        The newest snapshot stays, and each that was the newest at any moment within `older_than`;
        so do tagged versions of leaves, and leaves with branches of their own. Markers stay for a
        week at least. A transaction that began before that time, or up to two minutes after it,
        can no longer commit; a single statement starts over by itself. Foreign writes must be kept
        or discarded first.

        In weak mode old versions of the leaves are removed. A running write does not notice that
        its files are removed, so `older_than` must be at least an hour, and longer than any write.

        Args:
            older_than: The age of what may be removed.
            dry_run: Change nothing.

        Returns:
            The snapshots and files removed, and the leaves left alone, with the reason.

        Raises:
            InvalidArgument: `older_than` is not a `timedelta`, or too short in weak mode.
            PhalanxError: The table has the hive layout.

        Example:
            >>> events.vacuum(dry_run=True).snapshots
            ()
        """
        return vacuum(self._handle.for_write("manifest"), older_than, dry_run)

    @describe_as("erase from")
    def erase(
        self, where: str, force: bool = False, *, progress: ProgressCallback | None = None
    ) -> Erased:
        """Remove the rows that match from every file of the table, permanently.

        Deleted rows that are still stored are removed too: in data files, older versions and
        indexes. Partitions whose rows all match are removed, with their values in the manifest.
        Snapshots that read such rows expire, and all before them; a running transaction can no
        longer commit, and a single statement starts over by itself. Then every file that nothing
        needs is removed at once, and the rest is read again to verify it. Adopted partitions are
        included, and indexes that held such rows are built again. If it is interrupted, call it
        again.

        A table in weak mode is in strong mode while this runs, and running writes fail.

        Args:
            where: The rows to erase.
            force: Delete tags of partitions that keep such rows; by default they are an error.
            progress: Called with the number of finished tasks, and of all.

        Returns:
            The rows and files removed, the snapshots expired, and what was verified.

        Raises:
            InvalidPredicate: `where` does not parse, or does not fit the schema.
            UntrustedLocation: A partition with such rows is outside of the table's folder, and was
                not adopted.
            PhalanxError: A tag or a branch of a partition reads such rows, or the table has the
                hive layout.

        Example:
            >>> events.erase("id = 3").rows
            1
        """
        done = erase.erase(self._handle.for_leaves, where, force, progress)
        if done.removed.num_rows and self._handle.properties.indexes:
            indexes.optimize_indexes(self._handle.for_leaves, where, None)
        return done

    @describe_as("upgrade")
    def upgrade(self, dry_run: bool = False) -> Upgrade | UpgradePlan:
        """Upgrade a table of an earlier draft to the newest format, in place.

        No data is rewritten, and every row stays in its partition. In the layout "expressions"
        specs become structured transforms, and tags that manifest rows name become versions: first
        the rows change, which mean the same in both formats, then all specs in one commit. In the
        layout "hive" leaves stay where they are, and get the columns that their paths hold. If a
        call is cut off, the table has one of the two formats, and the next call completes it.

        Args:
            dry_run: Change nothing, and return what would be refused instead of raising it.

        Returns:
            What changes: an `UpgradePlan` for the layout "hive", else an `Upgrade`.

        Raises:
            PhalanxError: The newest format would mean something else: buckets by `md5_int` (import
                the table instead), leaves that are read from a branch, or pinned in weak mode.
                Nothing was changed.

        Example:
            >>> events.upgrade().changes
            ()
        """
        state = self._handle.refresh()
        if isinstance(state, HiveRoot):
            plan = upgrade.plan_hive_upgrade(state)
            if not dry_run:
                self._handle.state = upgrade.upgrade_hive(state, plan)
            return plan
        if not dry_run:
            upgrade.finish_hive_upgrade(self._handle.for_write("manifest"))
        return upgrade.upgrade(self._handle.for_write("manifest"), dry_run)

    # ── the same methods, grouped ────────────────────────────────────────────────────────────

    @property
    def inspect(self) -> TableInspection:
        """The methods that show what the table holds, grouped.

        Example:
            >>> events.inspect.partitions().num_rows
            2
        """
        return TableInspection(self)

    @property
    def maintenance(self) -> TableMaintenance:
        """The methods that keep the table small, fast and sound, grouped.

        Example:
            >>> events.maintenance.vacuum(dry_run=True).snapshots
            ()
        """
        return TableMaintenance(self)


class TableInspection:
    """What a table holds: `table.inspect.partitions()` is `table.partitions()`, and so on.

    `Table.inspect` returns one. Its methods are those of `Table`, with the same arguments and
    results.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def plan(self, where: str | None = None) -> ScanPlan:
        """Plan a scan, without reading rows. See `Table.plan`."""
        return self._table.plan(where)

    def partitions(self) -> pa.Table:
        """List the partitions. See `Table.partitions`."""
        return self._table.partitions()

    def files(self) -> pa.Table:
        """List the files. See `Table.files`."""
        return self._table.files()

    def snapshots(self) -> pa.Table:
        """List the snapshots. See `Table.snapshots`."""
        return self._table.snapshots()

    def markers(self, prefix: str = "") -> dict[str, int]:
        """List the markers of committed transactions and jobs. See `Table.markers`."""
        return self._table.markers(prefix)

    def diff(self, a: int | datetime, b: int | datetime) -> pa.Table:
        """Compare two snapshots by partition. See `Table.diff`."""
        return self._table.diff(a, b)

    def changes(
        self,
        from_snapshot: int | datetime,
        to_snapshot: int | datetime | None = None,
        where: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> ChangeFeed:
        """Read the rows inserted, deleted and updated between snapshots. See `Table.changes`."""
        return self._table.changes(from_snapshot, to_snapshot, where, columns)

    def health(self, **limits: Unpack[HealthArguments]) -> Health:
        """Find out what should be done about the table. See `Table.health`."""
        return self._table.health(**limits)

    def verify(self, deep: bool = False, *, progress: ProgressCallback | None = None) -> Verified:
        """Find files that differ from what was written. See `Table.verify`."""
        return self._table.verify(deep, progress=progress)


class TableMaintenance:
    """Upkeep of a table: `table.maintenance.vacuum()` is `table.vacuum()`, and so on.

    `Table.maintenance` returns one. Its methods are those of `Table`, with the same arguments and
    results.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def plan_rewrite(
        self,
        where: str | None = None,
        *,
        target_spec: int | None = None,
        partial_progress: bool = False,
        max_commits: int = DEFAULT_MAX_COMMITS,
        **options: Unpack[RewriteArguments],
    ) -> RewritePlan:
        """Plan which files to rewrite together. See `Table.plan_rewrite`."""
        return self._table.plan_rewrite(
            where,
            target_spec=target_spec,
            partial_progress=partial_progress,
            max_commits=max_commits,
            **options,
        )

    def rewrite(
        self,
        where: str | None = None,
        *,
        spark: Any = None,
        target_spec: int | None = None,
        partial_progress: bool = False,
        max_commits: int = DEFAULT_MAX_COMMITS,
        progress: ProgressCallback | None = None,
        **options: Unpack[RewriteArguments],
    ) -> Rewritten:
        """Compact small files, or move rows to the newest spec. See `Table.rewrite`."""
        return self._table.rewrite(
            where,
            spark=spark,
            target_spec=target_spec,
            partial_progress=partial_progress,
            max_commits=max_commits,
            progress=progress,
            **options,
        )

    def retain(self, keep: str, *, rows: bool = False, dry_run: bool = False) -> Retained:
        """Drop the partitions in which no row matches. See `Table.retain`."""
        return self._table.retain(keep, rows=rows, dry_run=dry_run)

    def vacuum(self, older_than: timedelta = timedelta(days=7), dry_run: bool = False) -> Vacuumed:
        """Expire old snapshots, and remove every file that nothing needs. See `Table.vacuum`."""
        return self._table.vacuum(older_than, dry_run)

    def erase(
        self, where: str, force: bool = False, *, progress: ProgressCallback | None = None
    ) -> Erased:
        """Remove matching rows from every file, permanently. See `Table.erase`."""
        return self._table.erase(where, force, progress=progress)

    def create_index(
        self,
        column: str,
        kind: IndexKind,
        *,
        min_rows: int | None = None,
        spark: Any = None,
        **options: Unpack[IndexArguments],
    ) -> Indexed:
        """Declare an index of a column, and build it. See `Table.create_index`."""
        return self._table.create_index(column, kind, min_rows=min_rows, spark=spark, **options)

    def optimize_indexes(self, where: str | None = None, *, spark: Any = None) -> Indexed:
        """Index the rows that no declared index covers yet. See `Table.optimize_indexes`."""
        return self._table.optimize_indexes(where, spark=spark)

    def drop_index(self, name: str) -> int:
        """Drop a declared index. See `Table.drop_index`."""
        return self._table.drop_index(name)

    def set_checksums(self, enabled: bool = True) -> int:
        """Record a checksum of each file. See `Table.set_checksums`."""
        return self._table.set_checksums(enabled)

    def keep_foreign_writes(self) -> list[str]:
        """Keep what others wrote outside Phalanx. See `Table.keep_foreign_writes`."""
        return self._table.keep_foreign_writes()

    def discard_foreign_writes(self) -> list[str]:
        """Discard what others wrote outside Phalanx. See `Table.discard_foreign_writes`."""
        return self._table.discard_foreign_writes()

    def upgrade(self, dry_run: bool = False) -> Upgrade | UpgradePlan:
        """Upgrade a table of an earlier draft to the newest format. See `Table.upgrade`."""
        return self._table.upgrade(dry_run)


def _reopen(kind: type[Table], root: Location, overrides: Mapping[str, str] | None) -> Table:
    """Open a table that was pickled, perhaps in another process."""
    location = Location(root.uri, root.storage_options, trust_locations=root.trust_locations)
    return kind(open_table_state(location, overrides))
