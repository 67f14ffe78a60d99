"""Rewrites: files of a partition become fewer and larger ones, and lose their deleted rows."""

from __future__ import annotations

import functools
import itertools
import math
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from phalanx.errors import CommitConflict, PhalanxError
from phalanx.planning.pruning.scan_plan import counted, readable
from phalanx.planning.rewrite import RewriteGroup, RewriteOptions, RewritePlan
from phalanx.planning.splits import packed, split_size
from phalanx.storage.commit.late_commits import went_strong
from phalanx.storage.commit.publishing import publish
from phalanx.storage.commit.writing import named
from phalanx.storage.lance.failures import told
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import WRITE_THREADS, in_parallel
from phalanx.storage.leaf import compaction as compacting
from phalanx.storage.leaf.compaction import Compacted
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.jobs.work import collected
from phalanx.table.overtaken import Overtaken
from phalanx.table.read.inspection import bytes_of
from phalanx.table.read.rewrite_planning import FileLeaf, PlannedFiles, planned
from phalanx.table.staged_leaf import LeafRewrite
from phalanx.table.transactions.strong_mode import Start, complete
from phalanx.table.transactions.strong_target import StagedChanges

# Iceberg's number of commits, where progress is kept.
MOST_COMMITS = 10
MOST_ATTEMPTS = 3

Progress = Callable[[int, int], None]
"""Told how many groups are done, of how many."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rewrite has done: files and bytes before and after, and what it left alone.

    `dropped` are groups whose files other writers changed meanwhile. The snapshots are those of
    strong mode.
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
    # What was then done for the table's indexes, if it has any.
    indexed: Any = None
    # How many partitions had several leaves before, all of whose rows are in one now.
    united: int = 0

    def and_then(self, later: Rewritten) -> Rewritten:
        """Both, of which the second did what the first had left."""
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
        """The outcome as JSON has it."""
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
        return self._rewritten() + done

    def _rewritten(self) -> str:
        united = f"united the leaves of {counted(self.united, 'partition')}" if self.united else ""
        if not self.groups and not self.dropped:
            return united or "nothing to rewrite"
        text = (f"{united}; " if united else "") + (
            f"rewrote {counted(self.files_before, 'file')} ({readable(self.bytes_before)}) as "
            f"{self.files_after:,} ({readable(self.bytes_after)}), {counted(self.rows, 'row')}, "
            f"in {counted(self.groups, 'group')}"
        )
        if self.snapshots:
            text += f", snapshot {', '.join(map(str, self.snapshots))}"
        if self.dropped:
            keys = named([group.key for group in self.dropped])
            text += (
                f"; left {counted(len(self.dropped), 'group')} alone, whose files other writers "
                f"changed meanwhile: {keys}"
            )
        return text


# ── on the executors, or in threads ──────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Some fragments of one leaf, to be written anew."""

    group: int
    bytes: int
    location: Location
    version: int
    fragments: tuple[int, ...]
    rows_per_file: int

    def run(self) -> Compacted:
        """The new files, which nobody sees yet."""
        with told(f"rewrite files of {self.location}"):
            return compacting.compact(
                self.location, self.version, self.fragments, self.rows_per_file
            )


class GroupTask(Protocol):
    """The work of one group."""

    @property
    def group(self) -> int:
        """Which group."""

    @property
    def bytes(self) -> int:
        """How much there is to do."""

    def run(self) -> Any:
        """What was done; it must be picklable."""


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The work of groups in tasks for Spark, small ones put together."""

    tasks: tuple[tuple[GroupTask, ...], ...]
    schema: pa.Schema = field(
        default=pa.schema([("group", pa.int64()), ("done", pa.binary())]), init=False
    )

    def reading(self, names: Sequence[str]) -> GroupWork:
        """The same work: nothing of what it gives is read."""
        return self

    def without_tasks(self) -> GroupWork:
        """The same work, as one task sees it."""
        return GroupWork(())

    def batches(self, task: tuple[GroupTask, ...]) -> Iterator[pa.RecordBatch]:
        """What a task has done, a row for each group."""
        for each in task:
            row = {"group": each.group, "done": pickle.dumps(each.run())}
            yield pa.RecordBatch.from_pylist([row], self.schema)


def run_tasks(
    tasks: Sequence[GroupTask], spark: Any, finished: Callable[[int], None]
) -> dict[int, Any]:
    """What became of each group, on the executors of a Spark session or in threads.

    `finished` is told how many groups are done. On Spark these are at least so many: tasks end in
    any order, each with its groups.
    """
    if spark is not None and tasks:
        size = split_size(sum(task.bytes for task in tasks), None)
        work = GroupWork(tuple(packed(tasks, lambda task: task.bytes, size)))
        surely = [0, *itertools.accumulate(sorted(map(len, work.tasks)))]
        rows = collected(spark, work, lambda done: finished(surely[min(done, len(work.tasks))]))
        return {row["group"]: pickle.loads(row["done"]) for row in rows}
    count, lock = 0, threading.Lock()

    def run(task: GroupTask) -> Any:
        nonlocal count
        result = task.run()
        with lock:
            count += 1
            finished(count)
        return result

    done = in_parallel(run, tasks, WRITE_THREADS)
    return {task.group: result for task, result in zip(tasks, done, strict=True)}


# ── on the driver ────────────────────────────────────────────────────────────────────────────


def commits_of(partial_progress: object, max_commits: object) -> int:
    """In how many commits a rewrite becomes visible."""
    if not isinstance(partial_progress, bool):
        raise PhalanxError(
            f"Cannot rewrite with partial_progress={partial_progress!r}: expected True or False."
        )
    if not isinstance(max_commits, int) or isinstance(max_commits, bool) or max_commits < 1:
        raise PhalanxError(
            f"Cannot rewrite with max_commits={max_commits!r}: expected a whole number from 1 on."
        )
    return max_commits if partial_progress else 1


def until_settled(attempt: Callable[[], Rewritten]) -> Rewritten:
    """What all attempts did together: the next one does what others disturbed in the last."""
    done = attempt()
    for _ in range(MOST_ATTEMPTS - 1):
        if not done.dropped:
            break
        done = done.and_then(attempt())
    return done


@dataclass(frozen=True, slots=True)
class Compaction:
    """A rewrite that leaves every row in its partition: how it is planned, run and committed."""

    manifest: Callable[[], LeafListing]
    options: RewriteOptions
    spark: Any = None
    commits: int = 1
    progress: Progress | None = None

    def run(self) -> Rewritten:
        """Plan it and run it; files that others change meanwhile are tried again, then left."""
        return until_settled(self._once)

    def _once(self) -> Rewritten:
        manifest = self.manifest()
        start = None
        if isinstance(manifest, Manifest) and manifest.properties.mode == "strong":
            start = Start.now(manifest)
            manifest = start.base
        files = planned(manifest, self.options)
        groups = files.plan.groups
        done: dict[int, Compacted] = {}
        snapshots: list[int] = []
        for first in range(0, len(groups), size := math.ceil(len(groups) / self.commits) or 1):
            batch = groups[first : first + size]
            ran = self._ran(
                manifest, files, batch, functools.partial(self._tell, first, len(groups))
            )
            if start is None:
                done |= _commit_leaves(manifest, files, batch, ran)
            else:
                committed, snapshot = _commit_snapshot(start, files, batch, ran)
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

    def _tell(self, before: int, total: int, count: int) -> None:
        if self.progress is not None:
            self.progress(before + count, total)

    def _ran(
        self,
        manifest: LeafListing,
        files: PlannedFiles,
        groups: Sequence[RewriteGroup],
        finished: Callable[[int], None],
    ) -> dict[int, Compacted]:
        tasks = [self._task(files, group) for group in groups]
        if manifest.properties.mode == "weak":
            aligned = in_parallel(
                lambda each: _aligned(manifest, files, *each),
                list(zip(groups, tasks, strict=True)),
            )
            tasks = [task for task in aligned if task is not None]
        return run_tasks(tasks, self.spark, finished)

    def _task(self, files: PlannedFiles, group: RewriteGroup) -> CompactTask:
        leaf = files.leaf(group)
        count = max(1, round(group.bytes / self.options.target_file_size_bytes))
        return CompactTask(
            group.id,
            group.bytes,
            leaf.location,
            leaf.version,
            files.fragments(group),
            math.ceil(max(1, group.rows) / count),
        )


def _aligned(
    manifest: LeafListing, files: PlannedFiles, group: RewriteGroup, task: CompactTask
) -> CompactTask | None:
    """In weak mode a leaf may be behind the schema: its files are written as it should be.

    None where another writer has taken one of the files away since they were planned.
    """
    dataset = manifest.shape.opened(task.location)
    there = {fragment.fragment_id for fragment in dataset.get_fragments()}
    if not there.issuperset(task.fragments):
        return None
    return replace(task, version=int(dataset.version))


def _commit_snapshot(
    start: Start,
    files: PlannedFiles,
    groups: Sequence[RewriteGroup],
    ran: Mapping[int, Compacted],
) -> tuple[dict[int, Compacted], int | None]:
    """All groups in one snapshot; those that were committed, and its id."""
    changes = StagedChanges(start)
    leaves = files.by_leaf(groups)
    rewrites = [
        LeafRewrite(
            leaf.key,
            leaf.object_id,
            leaf.location,
            leaf.version,
            tuple(ran[group.id] for group in mine),
        )
        for leaf, mine in leaves
    ]
    try:
        with changes.unless_vacuumed():
            changes.rewrite(rewrites)
        snapshot = changes.commit_snapshot(None)
    except Overtaken:
        return {}, None
    kept = changes.rewritten
    committed: dict[int, Compacted] = {}
    for leaf, mine in leaves:
        committed |= _kept(mine, ran, kept[leaf.object_id])
    return committed, snapshot


def _commit_leaves(
    manifest: LeafListing,
    files: PlannedFiles,
    groups: Sequence[RewriteGroup],
    ran: Mapping[int, Compacted],
) -> dict[int, Compacted]:
    """Each leaf for itself; the groups that were committed."""

    def check() -> None:
        manifest.check_current()
        if manifest.latest().properties.mode != "weak":
            raise CommitConflict(
                f"Cannot rewrite {manifest.root}: it went to strong mode meanwhile. Rewrite again."
            )

    mark = manifest.shape.mark

    def commit(each: tuple[FileLeaf, list[RewriteGroup]]) -> dict[int, Compacted]:
        leaf, mine = each
        results = [ran[group.id] for group in mine if group.id in ran]
        left, version = compacting.commit(leaf.location, results, check, mark)
        if version is not None:
            made[leaf.object_id] = version
        return _kept(mine, ran, left)

    made: dict[str, int] = {}
    done: dict[int, Compacted] = {}
    for each in in_parallel(commit, files.by_leaf(groups)):
        done |= each
    now = manifest.latest()
    if isinstance(manifest, Manifest) and isinstance(now, Manifest) and went_strong(manifest, now):
        # What came too late for the first snapshot must not be taken for a stranger's.
        now = complete(now)
        if now.properties.mode == "strong":
            publish(now, made, made)
    return done


def _kept(
    groups: Sequence[RewriteGroup], ran: Mapping[int, Compacted], kept: Sequence[object]
) -> dict[int, Compacted]:
    ids = set(map(id, kept))
    return {
        group.id: ran[group.id] for group in groups if group.id in ran and id(ran[group.id]) in ids
    }
