"""Looking after a table."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from phalanx.errors import PhalanxError
from phalanx.model.search.indexes import IndexSpec
from phalanx.planning.rewrite import RewritePlan
from phalanx.planning.rewrites.options import rewrite_options
from phalanx.storage.hive.root import HiveRoot
from phalanx.storage.lance.failures import tells
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table import checksumming, hive_upgrade
from phalanx.table.findings import Health
from phalanx.table.handle import HeldTable
from phalanx.table.health_limits import health_limits
from phalanx.table.hive_upgrade import UpgradePlan
from phalanx.table.maintenance import erase as erasing
from phalanx.table.maintenance import indexes as indexing
from phalanx.table.maintenance.erase import Erased
from phalanx.table.maintenance.health import health
from phalanx.table.maintenance.indexes import Indexed
from phalanx.table.maintenance.move import Move, plan_move
from phalanx.table.maintenance.rewrite import (
    MOST_COMMITS,
    Compaction,
    Progress,
    Rewritten,
    commits_of,
)
from phalanx.table.maintenance.upgrade import Upgrade, upgrade
from phalanx.table.maintenance.vacuum import Vacuumed, vacuum
from phalanx.table.maintenance.verify import Progress as VerifyProgress
from phalanx.table.maintenance.verify import Verified, verify
from phalanx.table.read.rewrite_planning import planned
from phalanx.table.uniting import unite

# What a rewrite takes beside its options: where rows go, and how they are committed.
_OF_THE_RUN = ("target_spec", "partial_progress", "max_commits")


class Upkeep(HeldTable):
    """What changes no row: files, indexes, the format, and what nothing needs any more."""

    @tells("judge the health of")
    def health(self, **limits: int) -> Health:
        """What should be done about the table, each finding with the command that fixes it.

        Found are partitions, and files of them, that storage does not have any more; those that
        want compaction or hold many deleted rows; skewed, tiny and huge
        partitions; older specs that still hold data, or none any more; and bytes that a vacuum
        would remove. From where on something is told is up to the limits, which are those of
        `phalanx.table.health_limits.HealthLimits`. Nothing is changed.
        """
        return health(self._namespace(), health_limits(limits))

    @tells("verify")
    def verify(self, deep: bool = False, *, progress: VerifyProgress | None = None) -> Verified:
        """What is not as it was written; nothing where all is well.

        Every file of every version that a retained snapshot reads (in weak mode the newest one)
        must be there, have the recorded size, and open. With `deep` all rows are read: their
        number, and whether they belong to the partition they are in; and the indexes are opened.
        Where the table has checksums, each file is compared with its own before Lance opens it.
        Nothing is changed. `progress` is called with how many partitions are done, of how many.
        """
        return verify(self._refreshed(), deep, progress)

    @tells("set the checksums of")
    def set_checksums(self, enabled: bool = True) -> int:
        """Write down from now on what each file holds, for `verify`; returns how many were missing.

        A checksum is a small file beside each data, deletion, index and version file. Those of all
        files that snapshots read are written at once. Every later write reads back what it has
        written, and hashes it with SHA-256. Measured on a local disk that was about 4 ms for each
        megabyte, a quarter to a half of the processor time of a large append, and 3 ms for each
        partition of a small one; in an object store it is two or three more requests for each
        file. Reads cost nothing more. With False what was written stays, and nothing is added.
        """
        if isinstance(self._manifest, HiveRoot):
            raise PhalanxError(
                f"Cannot set the checksums of {self.uri}: the hive layout has none. Make it a "
                "table of the newest format with upgrade() first."
            )
        return checksumming.set_checksums(self._writable, enabled)

    @tells("plan a rewrite of")
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

    @tells("rewrite")
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

        Where another writer has given a partition several leaves, their rows go to the first of
        them before, in one transaction.

        With `target_spec`, which must be the newest, rows of older specs are moved to their
        partitions under it instead, in one transaction. The same rows are there at every moment.
        A table in weak mode is in strong mode meanwhile, and stays there if the process dies: the
        same call again does what is left, and takes it back to weak mode. Writes that are under
        way when the mode changes fail, and say so.

        On the executors of a Spark session if one is given, else in threads. In strong mode all
        becomes one snapshot, or up to `max_commits` with `partial_progress`; in weak mode each
        partition is committed for itself. Writers that add rows meanwhile disturb nothing; where
        one removes rows of the same files, these files are planned again, and at last left as they
        are. Then the rows that the declared indexes do not cover are indexed. For the options see
        `plan_rewrite`.
        """
        chosen = rewrite_options(where, options, _OF_THE_RUN)
        commits = commits_of(partial_progress, max_commits)
        united = 0
        if isinstance(self._refreshed(), Manifest):
            united = unite(self._unpinned, chosen)
        if target_spec is not None:
            done = Move(self._unpinned, chosen, target_spec, spark, progress).run()
        else:
            done = Compaction(self._written, chosen, spark, commits, progress).run()
        done = replace(done, united=united)
        if self.indexes:
            optimized_where = None if target_spec is not None else chosen.partition_filter
            return replace(done, indexed=self.optimize_indexes(optimized_where, spark=spark))
        return done

    @property
    def indexes(self) -> tuple[IndexSpec, ...]:
        """The indexes that every partition should have."""
        found = self._refreshed()
        return indexing.living(found) if isinstance(found, Manifest) else ()

    @tells("index")
    def create_index(
        self,
        column: str,
        kind: str,
        *,
        min_rows: int | None = None,
        spark: Any = None,
        **options: Any,
    ) -> Indexed:
        """Index a column in every partition, now and, by `rewrite`, those made later.

        `kind` is one of Lance's: IVF_FLAT, IVF_PQ, IVF_SQ, IVF_RQ, IVF_HNSW_FLAT, IVF_HNSW_PQ or
        IVF_HNSW_SQ for vectors, INVERTED for words, BTREE, BITMAP, LABEL_LIST, NGRAM, ZONEMAP or
        BLOOMFILTER for `where`; the options are Lance's too, such as `metric` and `num_partitions`.
        Partitions with fewer rows than `min_rows` are left without, which the outcome says. It is
        built in threads, or on the executors of a Spark session; in strong mode all becomes one
        snapshot, in weak mode each partition is committed for itself. The same call again indexes
        what was added since, as `optimize_indexes` does for all indexes.
        """
        return indexing.create_index(self._unpinned, column, kind, min_rows, spark, options)

    @tells("index")
    def optimize_indexes(self, where: str | None = None, *, spark: Any = None) -> Indexed:
        """Index the rows that the declared indexes do not cover yet, as `rewrite` does too."""
        return indexing.optimize_indexes(self._unpinned, where, spark)

    @tells("drop an index of")
    def drop_index(self, name: str) -> int:
        """Take an index back, in every partition; returns how many had it."""
        return indexing.drop_index(self._unpinned, name)

    @tells("upgrade")
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

    @tells("vacuum")
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

    @tells("erase from")
    def erase(self, where: str, force: bool = False, *, progress: Progress | None = None) -> Erased:
        """Remove the rows that match from every file of the table, for good; tells what it did.

        Rows that were deleted before, and are still stored, are removed too: in data files, in
        older versions, in indexes. Partitions that match as a whole go, with their values in the
        manifest. Snapshots that read such rows expire, with all before them; a transaction that is
        running cannot commit any more, and a single statement starts over by itself. Then every
        file that nothing needs is removed at once, and what is left is read again to verify it.
        Adopted partitions are included. If it is cut off, call it again.

        A table in weak mode is in strong mode meanwhile: writes that are under way fail. Indexes
        that held such rows are made anew. It is refused where branches of a partition read its
        files, and for tags of a partition that keep such rows, unless with `force`: then the tags
        are deleted.
        """
        done = erasing.erase(self._unpinned, where, force, progress)
        if done.removed.num_rows and self._properties.indexes:
            indexing.optimize_indexes(self._unpinned, where, None)
        return done
