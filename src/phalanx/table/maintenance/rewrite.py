"""Rewrites: replace files of a partition by fewer, larger ones without deleted rows."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.arguments import ProgressCallback
from phalanx.errors import CommitConflict, InvalidArgument
from phalanx.planning.formatting import format_bytes, format_count
from phalanx.planning.rewrite import RewriteGroup, RewriteOptions, RewritePlan
from phalanx.storage.commit.late_commits import was_strong_since
from phalanx.storage.commit.publishing import publish
from phalanx.storage.commit.writing import format_partitions
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.leaf import compaction
from phalanx.storage.leaf.compaction import CompactedFiles
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import TableState
from phalanx.table.maintenance.group_tasks import retry_dropped, run_tasks
from phalanx.table.maintenance.indexes import Indexed
from phalanx.table.read.inspection import bytes_of
from phalanx.table.read.rewrite_planning import PlannedFiles, PlannedLeaf, plan_rewrite_files
from phalanx.table.transactions.strong_mode import TransactionStart, complete_change
from phalanx.table.transactions.strong_target import LeafRewrite, RetryableConflict, StrongTarget

# Iceberg's default of `partial-progress.max-commits`.
DEFAULT_MAX_COMMITS = 10
_LOGGER = logging.getLogger("phalanx.table")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of a rewrite: files and bytes before and after, and what it left alone.

    Attributes:
        plan: The plan. If files were planned again, the first one.
        groups: The number of groups of files that were rewritten.
        dropped: The groups that were given up, because other writers changed their files.
        files_before: The number of files that were replaced.
        files_after: The number of files that replace them.
        bytes_before: The size of the files that were replaced.
        bytes_after: The size of the files that replace them.
        rows: The number of rows in the new files.
        snapshots: The ids of the snapshots committed. In weak mode there are none.
        indexed: The result of indexing the new files; None if the table has no indexes.
        united: The number of partitions whose several leaves became one.
    """

    plan: RewritePlan
    groups: int = 0
    dropped: tuple[RewriteGroup, ...] = ()
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    snapshots: tuple[int, ...] = ()
    indexed: Indexed | None = None
    united: int = 0

    def combine(self, later: Rewritten) -> Rewritten:
        """Return the sum of this attempt and a later one for the groups that this one dropped."""
        return replace(
            later,
            plan=self.plan,
            groups=self.groups + later.groups,
            files_before=self.files_before + later.files_before,
            files_after=self.files_after + later.files_after,
            bytes_before=self.bytes_before + later.bytes_before,
            bytes_after=self.bytes_after + later.bytes_after,
            rows=self.rows + later.rows,
            snapshots=self.snapshots + later.snapshots,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "groups": self.groups,
            "dropped": [group.id for group in self.dropped],
            "files_before": self.files_before,
            "files_after": self.files_after,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "rows": self.rows,
            "snapshots": list(self.snapshots),
            "united": self.united,
        } | ({} if self.indexed is None else {"indexed": self.indexed.to_dict()})

    def __str__(self) -> str:
        indexed = self.indexed
        done = "" if indexed is None or not indexed.partitions else f"; {indexed}"
        return self._describe_files() + done

    def _describe_files(self) -> str:
        united = (
            f"united the leaves of {format_count(self.united, 'partition')}" if self.united else ""
        )
        if not self.groups and not self.dropped:
            return united or "nothing to rewrite"
        text = (f"{united}; " if united else "") + (
            f"rewrote {format_count(self.files_before, 'file')} "
            f"({format_bytes(self.bytes_before)}) as {self.files_after:,} "
            f"({format_bytes(self.bytes_after)}), {format_count(self.rows, 'row')}, "
            f"in {format_count(self.groups, 'group')}"
        )
        if self.snapshots:
            text += f", snapshot {', '.join(map(str, self.snapshots))}"
        if self.dropped:
            keys = format_partitions([group.key for group in self.dropped])
            text += (
                f"; left {format_count(len(self.dropped), 'group')} alone, whose files other "
                f"writers changed meanwhile: {keys}"
            )
        return text


# ── on Spark executors, or in threads ──────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class CompactTask:
    """A task that rewrites some fragments of a leaf."""

    group: int
    bytes: int
    location: Location
    version: int
    fragments: tuple[int, ...]
    rows_per_file: int

    def run(self) -> CompactedFiles:
        """Write the new files, which become visible with the commit."""
        with translate_errors(f"rewrite files of {self.location}"):
            return compaction.compact_fragments(
                self.location, self.version, self.fragments, self.rows_per_file
            )


# ── on the driver ────────────────────────────────────────────────────────────────────────────


def count_commits(partial_progress: object, max_commits: object) -> int:
    """Return the number of commits of a rewrite; raise if an option is invalid."""
    if not isinstance(partial_progress, bool):
        raise InvalidArgument(
            f"Cannot rewrite with partial_progress={partial_progress!r}: expected True or False."
        )
    if not isinstance(max_commits, int) or isinstance(max_commits, bool) or max_commits < 1:
        raise InvalidArgument(
            f"Cannot rewrite with max_commits={max_commits!r}: expected a positive integer."
        )
    return max_commits if partial_progress else 1


def log_plan(what: str, state: TableState, plan: RewritePlan) -> None:
    """Log a plan for debugging."""
    _LOGGER.debug(
        "Planned %s of %s: %d of %s in %s",
        *(what, state.root, plan.rewritten_files, format_count(plan.total_files, "file")),
        format_count(len(plan.ids), "group"),
    )


@dataclass(frozen=True, slots=True)
class Compaction:
    """A rewrite that leaves every row in its partition."""

    load_state: Callable[[], TableState]
    options: RewriteOptions
    spark: Any = None
    commits: int = 1
    progress: ProgressCallback | None = None

    def run(self) -> Rewritten:
        """Plan and run the rewrite.

        Files that other writers change during the call are retried, and finally skipped.
        """
        done = retry_dropped(self._run_once, "rewrite", "group")
        if done.files_before:
            _LOGGER.info(
                "Rewrote %s of %s into %d, %s",
                *(format_count(done.files_before, "file"), self.load_state().root),
                *(done.files_after, format_count(done.rows, "row")),
            )
        return done

    def _run_once(self) -> Rewritten:
        state = self.load_state()
        start = None
        if isinstance(state, Manifest) and state.properties.mode == "strong":
            start = TransactionStart.begin(state)
            state = start.base
        files = plan_rewrite_files(state, self.options)
        groups = files.plan.groups
        log_plan("a rewrite", state, files.plan)
        done: dict[int, CompactedFiles] = {}
        snapshots: list[int] = []
        for first in range(0, len(groups), size := math.ceil(len(groups) / self.commits) or 1):
            batch = groups[first : first + size]
            compacted = self._run_groups(
                state, files, batch, functools.partial(self._report_progress, first, len(groups))
            )
            if start is None:
                done |= _apply_to_leaves(state, files, batch, compacted)
            else:
                committed, snapshot = _commit_snapshot(start, files, batch, compacted)
                done |= committed
                snapshots += [] if snapshot is None else [snapshot]
        old = [each for result in done.values() for each in result.old]
        new = [each for result in done.values() for each in result.new]
        return Rewritten(
            files.plan,
            len(done),
            tuple(group for group in groups if group.id not in done),
            len(old),
            len(new),
            sum(map(bytes_of, old)),
            sum(map(bytes_of, new)),
            sum(each.num_rows for each in new),
            tuple(snapshots),
        )

    def _report_progress(self, before: int, total: int, count: int) -> None:
        if self.progress is not None:
            self.progress(before + count, total)

    def _run_groups(
        self,
        state: TableState,
        files: PlannedFiles,
        groups: Sequence[RewriteGroup],
        report: Callable[[int], None],
    ) -> dict[int, CompactedFiles]:
        tasks = [self._make_task(files, group) for group in groups]
        if state.properties.mode == "weak":
            aligned = map_parallel(
                lambda each: _align_task(state, files, *each),
                list(zip(groups, tasks, strict=True)),
            )
            tasks = [task for task in aligned if task is not None]
        return run_tasks(tasks, self.spark, report)

    def _make_task(self, files: PlannedFiles, group: RewriteGroup) -> CompactTask:
        leaf = files.leaf_of(group)
        count = max(1, round(group.bytes / self.options.target_file_size_bytes))
        return CompactTask(
            group.id,
            group.bytes,
            leaf.location,
            leaf.version,
            files.fragment_ids(group),
            math.ceil(max(1, group.rows) / count),
        )


def _align_task(
    state: TableState, files: PlannedFiles, group: RewriteGroup, task: CompactTask
) -> CompactTask | None:
    """Return the task on a version of the leaf that has the current schema.

    In weak mode a leaf may lag behind the schema. Returns None if another writer has removed one
    of the files since they were planned.
    """
    dataset = state.shape.open_newest(task.location)
    current_ids = {fragment.fragment_id for fragment in dataset.get_fragments()}
    if not current_ids.issuperset(task.fragments):
        return None
    return replace(task, version=int(dataset.version))


def _commit_snapshot(
    start: TransactionStart,
    files: PlannedFiles,
    groups: Sequence[RewriteGroup],
    compacted: Mapping[int, CompactedFiles],
) -> tuple[dict[int, CompactedFiles], int | None]:
    """Commit all groups in one snapshot; return those committed, and the id of the snapshot."""
    target = StrongTarget(start)
    leaves = files.group_by_leaf(groups)
    rewrites = [
        LeafRewrite(
            leaf.key,
            leaf.object_id,
            leaf.location,
            leaf.version,
            tuple(compacted[group.id] for group in own_groups),
        )
        for leaf, own_groups in leaves
    ]
    try:
        with target.detect_vacuum():
            target.rewrite(rewrites)
        snapshot = target.commit_snapshot(None)
    except RetryableConflict:
        return {}, None
    replacements = target.committed_replacements
    committed: dict[int, CompactedFiles] = {}
    for leaf, own_groups in leaves:
        committed |= _select_kept(own_groups, compacted, replacements[leaf.object_id])
    return committed, snapshot


def _apply_to_leaves(
    state: TableState,
    files: PlannedFiles,
    groups: Sequence[RewriteGroup],
    compacted: Mapping[int, CompactedFiles],
) -> dict[int, CompactedFiles]:
    """Apply the groups of each leaf separately; return the groups applied."""

    def check() -> None:
        state.check_current()
        if state.load_latest().properties.mode != "weak":
            raise CommitConflict(
                f"Cannot rewrite {state.root}: it changed to strong mode in the meantime. Rewrite "
                "it again."
            )

    mark = state.shape.mark

    def apply(each: tuple[PlannedLeaf, list[RewriteGroup]]) -> dict[int, CompactedFiles]:
        leaf, own_groups = each
        results = [compacted[group.id] for group in own_groups if group.id in compacted]
        kept, version = compaction.apply_compaction(leaf.location, results, check, mark)
        if version is not None:
            versions[leaf.object_id] = version
        return _select_kept(own_groups, compacted, kept)

    versions: dict[str, int] = {}
    applied: dict[int, CompactedFiles] = {}
    for each in map_parallel(apply, files.group_by_leaf(groups)):
        applied |= each
    latest = state.load_latest()
    if (
        isinstance(state, Manifest)
        and isinstance(latest, Manifest)
        and was_strong_since(state, latest)
    ):
        # Our writes that missed the first snapshot must not count as foreign writes.
        latest = complete_change(latest)
        if latest.properties.mode == "strong":
            publish(latest, versions, versions)
    return applied


def _select_kept(
    groups: Sequence[RewriteGroup], compacted: Mapping[int, CompactedFiles], kept: Sequence[object]
) -> dict[int, CompactedFiles]:
    ids = set(map(id, kept))
    return {
        group.id: compacted[group.id]
        for group in groups
        if group.id in compacted and id(compacted[group.id]) in ids
    }
