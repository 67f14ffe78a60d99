"""The table that a user holds: one logical table, made of many Lance tables."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

import lance
import pyarrow as pa

from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.partition_by import PartitionBy
from phalanx.model.partition_key import PartitionKey
from phalanx.model.spec import PartitionSpec
from phalanx.planning.rewrite import RewritePlan
from phalanx.planning.rewrite_options import rewrite_options
from phalanx.planning.scan import ScanPlan
from phalanx.storage.failures import told
from phalanx.storage.history_rows import committed_markers
from phalanx.storage.hive_creation import main_branches
from phalanx.storage.hive_root import HiveRoot
from phalanx.storage.leaf_listing import LeafListing
from phalanx.storage.manifest import Manifest
from phalanx.storage.properties import Properties
from phalanx.table import (
    changes,
    foreign_writes,
    history,
    hive_upgrade,
    inspection,
    merging,
    operations,
    retention,
    strong,
    updating,
)
from phalanx.table.adopt import adopt
from phalanx.table.arrivals import Statement
from phalanx.table.findings import Health
from phalanx.table.health import health
from phalanx.table.health_limits import health_limits
from phalanx.table.hive_upgrade import UpgradePlan
from phalanx.table.jobs import WriteJob
from phalanx.table.keys import leaf_with, named_key
from phalanx.table.merging import MergeCounts
from phalanx.table.moving import Move, plan_move
from phalanx.table.pinned import check_unpinned
from phalanx.table.retention import Retained
from phalanx.table.rewrite_files import planned
from phalanx.table.rewriting import MOST_COMMITS, Compaction, Progress, Rewritten, commits_of
from phalanx.table.scan import Scan, bound, plan_of, scan_of
from phalanx.table.transaction import Transaction, run_alone
from phalanx.table.upgrading import Upgrade, upgrade
from phalanx.table.vacuum import Vacuumed, vacuum

# What a rewrite takes beside its options: where rows go, and how they are committed.
_OF_THE_RUN = ("target_spec", "partial_progress", "max_commits")
Method = TypeVar("Method", bound=Callable[..., Any])


def _tells(what: str) -> Callable[[Method], Method]:
    """Errors of the store below become one message that says what could not be done."""

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Table, *arguments: Any, **options: Any) -> Any:
            with told(f"{what} {self.uri}"):
                return method(self, *arguments, **options)

        return cast(Method, call)

    return wrap


class Table:
    """A partitioned namespace, as one table. Every call sees what is stored at its time."""

    def __init__(self, manifest: LeafListing, snapshot: int | datetime | None = None) -> None:
        self._manifest = manifest
        # What the table is held at, and not written; None where it follows what is stored.
        self._snapshot = snapshot

    def __repr__(self) -> str:
        label = self.spec.label(self._properties.schema)
        return f"<phalanx.Table {self.uri} by {label or 'nothing'}>"

    # ── what it is ───────────────────────────────────────────────────────────────────────────

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self._manifest.root.uri

    @property
    def schema(self) -> pa.Schema:
        """The columns, each with its `lance:field_id`."""
        return self._properties.schema.arrow

    @property
    def spec(self) -> PartitionSpec:
        """The newest spec, under which rows are written."""
        return self._properties.spec

    @property
    def specs(self) -> Mapping[int, PartitionSpec]:
        """All spec versions by their ids."""
        return dict(self._properties.specs)

    @property
    def mode(self) -> str:
        """Whether writes are atomic for each partition (weak) or for all (strong)."""
        return self._properties.mode

    @property
    def layout(self) -> str:
        """How it is stored: "namespace", the newest format; "expressions" or "hive", drafts."""
        return self._refreshed().layout

    @property
    def _properties(self) -> Properties:
        return self._refreshed().properties

    def _refreshed(self) -> LeafListing:
        if self._snapshot is not None:
            return self._manifest
        self._manifest = self._manifest.latest()
        return self._manifest

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    @_tells("plan a scan of")
    def plan(self, where: str | None = None) -> ScanPlan:
        """Which partitions a predicate needs, and why."""
        manifest = self._refreshed()
        return plan_of(manifest, bound(where, manifest.properties.schema))

    def scan(
        self,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Scan:
        """The rows that match, in the order of spec, partition values (NULL last) and leaf."""
        return scan_of(self._refreshed(), where, columns, limit)

    @_tells("open a partition of")
    def partition(self, **values: Any) -> lance.LanceDataset:
        """One leaf as an ordinary Lance table, by the values of all its partition fields."""
        manifest = self._refreshed()
        location, version = leaf_with(manifest, values)
        return location.open_leaf(version)

    @_tells("list the partitions of")
    def partitions(self) -> pa.Table:
        """Every partition with its values, its location, rows and bytes."""
        return inspection.partitions(self._refreshed())

    @_tells("list the files of")
    def files(self) -> pa.Table:
        """Every fragment of every partition with its files, rows, deleted rows and bytes."""
        return inspection.files(self._refreshed())

    @_tells("judge the health of")
    def health(self, **limits: int) -> Health:
        """What should be done about the table, each finding with the command that fixes it.

        Found are partitions that want compaction or hold many deleted rows; skewed, tiny and huge
        partitions; older specs that still hold data, or none any more; and bytes that a vacuum
        would remove. From where on something is told is up to the limits, which are those of
        `phalanx.table.health_limits.HealthLimits`. Nothing is changed.
        """
        return health(self._namespace(), health_limits(limits))

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    @_tells("append to")
    def append(self, data: Any) -> int:
        """Add rows, each to its partition under the newest spec; returns how many."""
        return operations.append(*self._statements(), data)

    @_tells("overwrite")
    def overwrite(self, data: Any, where: str = "true") -> int:
        """Replace the rows that match `where` by rows that match it too; returns how many came."""
        return operations.overwrite(*self._statements(), data, where)

    @_tells("overwrite partitions of")
    def overwrite_partitions(self, data: Any) -> int:
        """Replace the partitions (under the newest spec) that the data touches, and nothing else.

        Rows of these partitions are replaced wherever they are stored, older specs included.
        Returns how many rows came.
        """
        return operations.overwrite_partitions(*self._statements(), data)

    @_tells("delete from")
    def delete(self, where: str) -> int:
        """Remove the rows that match; returns how many."""
        return operations.delete(*self._statements(), where)

    @_tells("update")
    def update(self, where: str, assignments: Mapping[str, str]) -> int:
        """Give the rows that match new values, {column: SQL over the old row}; returns how many.

        A row whose partition values change moves to its partition under the newest spec; others
        stay in their leaf, whichever spec it is of. In weak mode each leaf is updated for itself:
        rows that move are added to their new leaves before they are removed from their old ones,
        so that a process that dies in between leaves them there twice, and none is ever lost.
        """
        return updating.update(*self._statements(), where, assignments)

    @_tells("merge into")
    def merge(
        self,
        data: Any,
        on: str | Sequence[str],
        *,
        when_matched: str = "update",
        when_not_matched: str = "insert",
    ) -> MergeCounts:
        """Replace the rows that have the key of a row of the data, and add the others; how many.

        `on` is the column, or the columns, of the key. `when_matched` is "update" (the whole row
        becomes that of the data), "delete" or "ignore", `when_not_matched` "insert" or "ignore".
        A key that the data has twice is an error. All rows with a key are changed, in whichever
        partition; NULL matches nothing, and NaN matches NaN. In weak mode each leaf is changed for
        itself, as `update` does it, and two merges at the same time may both add a key.
        """
        return merging.merge(*self._statements(), data, on, when_matched, when_not_matched)

    @_tells("drop partitions of")
    def drop_partitions(self, where: str) -> int:
        """Take the partitions all of whose rows match out of the table; returns how many.

        No data is read: their values must decide it, and one that may match in part is refused.
        In strong mode it is one commit, however many they are; they are not listed any more, and
        a rollback brings them back until a vacuum has removed them. In weak mode, and in drafts of
        the format, each becomes empty by a commit of its own, and stays listed with no rows.
        """
        return operations.drop_partitions(*self._statements(), where)

    @_tells("retain partitions of")
    def retain(self, keep: str, *, rows: bool = False, dry_run: bool = False) -> Retained:
        """Drop the partitions in which `keep` is false for every row; tells which.

        `keep` is a predicate in which `now` and `today` may stand, plus or minus spans of time, as
        in "event_date >= now - 90 days". No data is read: a partition that may have rows to keep
        stays whole, unless with `rows` its other rows are deleted. Rows for which it is NULL stay.
        With `dry_run` nothing changes, and the same is told. It is committed as `drop_partitions`
        and `delete` are, in strong mode together.
        """
        if dry_run:
            return retention.retain(self._refreshed(), None, keep, rows)
        return retention.retain(*self._statements(), keep, rows)

    @_tells("begin a write to")
    def begin_write(
        self, operation: str = "append", where: str = "true", marker: str | None = None
    ) -> WriteJob:
        """A write by many processes: they `write` rows of it, then one may `commit` it all.

        `operation` is "append", "overwrite" (of the rows that match `where`) or
        "overwrite_partitions". Of all jobs with the same marker one is committed; a text of
        several lines is several markers, of which none may be committed before.
        """
        return WriteJob.begin(self._written(), operation, where, marker)

    @_tells("adopt into")
    def adopt(self, uri: str | os.PathLike[str], /, **values: Any) -> PartitionKey:
        """Make an existing Lance table a partition, where it is and without a copy; its key.

        Its columns must be the table's (in any order), and all its rows of one partition of the
        newest spec that does not exist yet. `values` are that partition's, by field id: needed
        only for a table without rows. Its field ids become the namespace's: nobody else should
        write to it meanwhile, and indexes must be dropped first where ids change.

        Stock clients list it like every other partition. They can open it only if it is inside
        the root: they take every location for a path below it.
        """
        wanted = functools.partial(named_key, values) if values else None
        return adopt(self._writable(), uri, wanted)

    def _namespace(self) -> Manifest:
        """The manifest, for what needs one."""
        found = self._refreshed()
        if isinstance(found, Manifest):
            return found
        raise PhalanxError(
            f"{self.uri} has the {found.layout} layout: weak mode only, one spec and one schema, "
            "and no snapshots. Make it a table of the newest format with upgrade(), which "
            "rewrites no data."
        )

    def _written(self) -> LeafListing:
        """What a write begins with, in any layout."""
        found = self._refreshed()
        return self._unpinned() if isinstance(found, Manifest) else found

    def _writable(self) -> Manifest:
        if self._snapshot is not None:
            raise PhalanxError(
                f"Cannot change {self.uri} as of {self._snapshot}: it is read-only. Change the "
                "table itself, or make this its state with rollback()."
            )
        manifest = strong.settled(self._namespace())
        self._manifest = manifest
        return manifest

    def _unpinned(self) -> Manifest:
        """The manifest for a change of rows; refuses one that readers would not see."""
        manifest = self._writable()
        check_unpinned(manifest)
        return manifest

    def _statements(self) -> tuple[LeafListing, Callable[[Statement], int]]:
        """What a statement is made for, and how it is run there: other threads may move on."""
        manifest = self._written()
        if isinstance(manifest, Manifest) and manifest.properties.mode == "strong":
            return manifest, functools.partial(run_alone, manifest)
        return manifest, lambda statement: statement(main_branches(manifest))

    @_tells("plan a rewrite of")
    def plan_rewrite(
        self,
        where: str | None = None,
        *,
        target_spec: int | None = None,
        partial_progress: bool = False,
        max_commits: int = MOST_COMMITS,
        **options: Any,
    ) -> RewritePlan:
        """Which files should be written anew, together with which others, and why not the rest.

        `where` chooses the partitions that may hold a matching row. With `target_spec` these are
        all files of other specs. The options are those of
        `phalanx.planning.rewrite.RewriteOptions`; how the rewrite is committed changes no plan.
        """
        commits_of(partial_progress, max_commits)
        chosen = rewrite_options(where, options, _OF_THE_RUN)
        if target_spec is not None:
            return plan_move(self._namespace(), chosen, target_spec).plan
        return planned(self._refreshed(), chosen).plan

    @_tells("rewrite")
    def rewrite(
        self,
        where: str | None = None,
        *,
        spark: Any = None,
        target_spec: int | None = None,
        partial_progress: bool = False,
        max_commits: int = MOST_COMMITS,
        progress: Progress | None = None,
        **options: Any,
    ) -> Rewritten:
        """Write small files anew as larger ones, without their deleted rows; says what it did.

        With `target_spec`, which must be the newest, rows of older specs are moved to their
        partitions under it instead, in one transaction. The same rows are there at every moment.
        A table in weak mode is in strong mode meanwhile, and stays there if the process dies: the
        same call again does what is left, and takes it back to weak mode. Writes that are under
        way when the mode changes fail, and say so.

        On the executors of a Spark session if one is given, else in threads. In strong mode all
        becomes one snapshot, or up to `max_commits` with `partial_progress`; in weak mode each
        partition is committed for itself. Writers that add rows meanwhile disturb nothing; where
        one removes rows of the same files, these files are planned again, and at last left as they
        are. For the options see `plan_rewrite`.
        """
        chosen = rewrite_options(where, options, _OF_THE_RUN)
        commits = commits_of(partial_progress, max_commits)
        if target_spec is not None:
            return Move(self._unpinned, chosen, target_spec, spark, progress).run()
        return Compaction(self._written, chosen, spark, commits, progress).run()

    # ── transactions and snapshots ───────────────────────────────────────────────────────────

    @_tells("begin a transaction on")
    def transaction(self, isolation: str = "snapshot", marker: str | None = None) -> Transaction:
        """Several statements as one commit, in a `with` block; only in strong mode.

        With `isolation="serializable"` it also fails if what it has read was changed meanwhile.
        Of all transactions with the same marker one is committed: repeat it as often as needed.
        """
        return Transaction(self._strong(self._writable()), isolation, marker)

    @_tells("list the snapshots of")
    def snapshots(self) -> pa.Table:
        """Every snapshot: id, time, operation, partitions, rows added and removed."""
        found = self._refreshed()
        return history.snapshots(found if isinstance(found, Manifest) else None)

    @property
    def newest_snapshot(self) -> int | None:
        """The id of the newest snapshot; None in weak mode."""
        found = self._refreshed()
        return history.newest(found) if isinstance(found, Manifest) else None

    @_tells("list the markers of")
    def markers(self, prefix: str = "") -> dict[str, int]:
        """The markers of transactions and jobs that begin with a text, each with its snapshot."""
        return committed_markers(self._namespace(), prefix)

    @_tells("look into the past of")
    def at(self, snapshot: int | datetime) -> Table:
        """The table as of a snapshot or a time (UTC where it names no zone), read-only."""
        return Table(history.at(self._strong(self._namespace()), snapshot), snapshot)

    @_tells("roll back")
    def rollback(self, snapshot: int | datetime) -> int:
        """Make the rows of a snapshot the newest ones, as a new snapshot; returns its id."""
        return history.rollback(self._strong(self._writable()), snapshot)

    @_tells("compare snapshots of")
    def diff(self, a: int | datetime, b: int | datetime) -> pa.Table:
        """The partitions that differ between two snapshots, with rows added and removed."""
        return history.diff(self._strong(self._namespace()), a, b)

    @_tells("change the mode of")
    def set_mode(self, mode: str) -> None:
        """Commit from now on each partition for itself ("weak"), or all as one ("strong")."""
        self._manifest = strong.set_mode(self._writable(), mode)

    @_tells("keep foreign writes in")
    def keep_foreign_writes(self) -> list[str]:
        """Make what someone wrote to leaves past Phalanx a snapshot; returns these leaves."""
        return foreign_writes.keep(self._strong(self._writable()))

    @_tells("discard foreign writes in")
    def discard_foreign_writes(self) -> list[str]:
        """Take back what someone wrote to leaves past Phalanx; returns these leaves."""
        return foreign_writes.discard(self._strong(self._writable()))

    def _strong(self, manifest: Manifest) -> Manifest:
        if manifest.properties.mode != "strong":
            raise PhalanxError(
                f"{self.uri} is in weak mode: transactions and snapshots need strong mode. "
                "Change it with set_mode('strong')."
            )
        return manifest

    @_tells("upgrade")
    def upgrade(self, dry_run: bool = False) -> Upgrade | UpgradePlan:
        """Make a table of an earlier draft one of the newest format, in place; says what changes.

        Of the layout "expressions" specs become structured transforms, and tags that rows read
        become versions. No data is written anew, every row stays in its partition, and every plan
        stays the same. It is refused, before anything changes, where the newest format would mean
        something else, with the field or the table named: buckets by `md5_int` (import the table
        instead), leaves that are read from a branch, or pinned in weak mode.

        The rows change first, which means the same in both formats; then all specs in one commit.
        A call that is cut off leaves a table of either format, and the next one completes it. With
        `dry_run` nothing changes, and what is refused is told instead of raised.

        Of the layout "hive" leaves stay where they are and get the columns that their paths hold.
        """
        found = self._refreshed()
        if isinstance(found, HiveRoot):
            plan = hive_upgrade.plan_upgrade(found)
            if not dry_run:
                self._manifest = hive_upgrade.upgrade(found, plan)
            return plan
        if not dry_run:
            hive_upgrade.finish_upgrade(self._writable())
        return upgrade(self._writable(), dry_run)

    @_tells("vacuum")
    def vacuum(self, older_than: timedelta = timedelta(days=7), dry_run: bool = False) -> Vacuumed:
        """Remove old snapshots, and every file that nothing needs; returns what.

        The newest snapshot stays, and each that was the newest at any moment within `older_than`;
        so do tagged versions of leaves, and tables with branches of their own. Markers of
        transactions stay for a week at least. A transaction that began before that time, or up to
        two minutes after it, cannot commit any more: a single statement starts over by itself.
        Whatever stands on a leaf's main branch past Phalanx must be kept or discarded first.

        In weak mode old versions of the leaves go. Nothing tells a running write there that its
        files are gone, so that `older_than` must be an hour at least, and longer than any write.
        With `dry_run` nothing changes, and the same is returned.
        """
        return vacuum(self._writable(), older_than, dry_run)

    # ── changing ─────────────────────────────────────────────────────────────────────────────

    @_tells("evolve")
    def evolve(self, partition_by: PartitionBy) -> PartitionSpec:
        """Write under another spec from now on; what is stored stays as it is."""
        self._manifest, spec = changes.evolve(self._writable(), partition_by)
        return spec

    def add_column(self, field: pa.Field) -> None:
        """Add a nullable column, NULL in every row there is."""
        if not isinstance(field, pa.Field):
            raise SchemaMismatch(f"Cannot add {field!r}: expected pa.field(name, type).")
        self._change(
            "add_column",
            {"name": field.name, "type": str(field.type)},
            lambda properties: changes.added(properties, field),
        )

    def drop_column(self, name: str) -> None:
        """Remove a column, which the newest spec must not need."""
        self._change(
            "drop_column", {"name": name}, lambda properties: changes.dropped(properties, name)
        )

    def rename_column(self, old: str, new: str) -> None:
        """Give a column another name; partitions do not change."""
        self._change(
            "rename_column",
            {"name": old, "new": new},
            lambda properties: changes.renamed(properties, old, new),
        )

    def promote_column(self, name: str, type: pa.DataType) -> None:
        """Give a column a wider type; partitions do not change."""
        self._change(
            "promote_column",
            {"name": str(name), "type": str(type)},
            lambda properties: changes.promoted(properties, name, type),
        )

    @_tells("change the schema of")
    def _change(
        self, name: str, arguments: Mapping[str, str], change: changes.SchemaChange
    ) -> None:
        self._manifest = changes.change_schema(self._writable(), name, arguments, change)
