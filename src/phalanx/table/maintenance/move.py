"""Moves: rows that are stored under an older spec go to their partitions under the newest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lance
import pyarrow as pa

from phalanx.errors import InvalidSpec
from phalanx.model.schema.rows import plain_schema
from phalanx.planning.rewrite import RewriteGroup, RewriteOptions, RewritePlan
from phalanx.storage.commit.writing import LeafWrite
from phalanx.storage.lance.failures import told
from phalanx.storage.leaf.leaf import Change
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import MOVE, WriteJob
from phalanx.table.maintenance.rewrite import Progress, Rewritten, run_tasks, until_settled
from phalanx.table.overtaken import Overtaken
from phalanx.table.read.inspection import bytes_of
from phalanx.table.read.rewrite_planning import FileLeaf, PlannedFiles, planned
from phalanx.table.transactions import strong_mode as strong


def plan_move(manifest: Manifest, options: RewriteOptions, target: int) -> PlannedFiles:
    """All files of other specs than the target, whatever their size, in groups for one task."""
    properties = manifest.properties
    if target not in properties.specs:
        known = ", ".join(map(str, sorted(properties.specs)))
        raise InvalidSpec(
            f"Cannot move rows to spec {target!r}: there is none. Expected one of {known}."
        )
    if target != properties.spec.id:
        raise InvalidSpec(
            f"Cannot move rows to spec {target}: rows are written under the newest, which is "
            f"{properties.spec.id}. Evolve the table back to what spec {target} says first."
        )
    size = min(options.max_file_group_size_bytes, options.target_file_size_bytes)
    everything = replace(options, rewrite_all=True, max_file_group_size_bytes=size)
    return planned(
        manifest, everything, [number for number in properties.specs if number != target]
    )


@dataclass(frozen=True, slots=True)
class MoveTask:
    """Some fragments of one leaf, whose rows are written to their partitions."""

    group: int
    bytes: int
    job: WriteJob
    scan: LeafScan

    def run(self) -> TaskFiles:
        """The new files, which nobody sees yet."""
        with told(f"move rows of {self.scan.location}"):
            schema = plain_schema(self.scan.schema)
            return self.job.write(pa.RecordBatchReader.from_batches(schema, self.scan.batches()))


@dataclass(frozen=True, slots=True)
class Move:
    """A rewrite that takes rows to another spec, in one transaction.

    A table in weak mode is in strong mode meanwhile. One that was cut off stays there, with every
    row in one place, until the same move is run again.
    """

    manifest: Callable[[], Manifest]
    options: RewriteOptions
    target: int
    spark: Any = None
    progress: Progress | None = None

    def run(self) -> Rewritten:
        """Plan it and run it; files that others change meanwhile are tried again, then left."""
        manifest = self.manifest()
        if manifest.properties.mode == "weak":
            files = plan_move(manifest, self.options, self.target)
            if not files.plan.groups:
                return Rewritten(files.plan)
            strong.set_mode(manifest, "strong", returns=True)
        elif not manifest.properties.returns:
            return until_settled(self._once)
        try:
            return replace(until_settled(self._once), snapshots=())
        finally:
            manifest = self.manifest()
            if manifest.properties.returns:
                strong.set_mode(manifest, "weak")

    def _once(self) -> Rewritten:
        manifest = self.manifest()
        job = WriteJob.begin(manifest, MOVE)
        files = plan_move(manifest.at_version(job.version), self.options, self.target)
        groups = files.plan.groups
        ran = self._ran(job, files, groups)
        left = list(groups)
        while left:
            removed = [_removal(leaf, files, mine) for leaf, mine in files.by_leaf(left)]
            try:
                done = job.commit([ran[group.id] for group in left], removed)
            except Overtaken:
                kept = _undisturbed(self.manifest(), files, left)
                if len(kept) == len(left):
                    raise
                left = kept
                continue
            return _outcome(files.plan, left, [ran[group.id] for group in left], done.snapshot)
        return Rewritten(files.plan, dropped=groups)

    def _ran(
        self, job: WriteJob, files: PlannedFiles, groups: Sequence[RewriteGroup]
    ) -> dict[int, TaskFiles]:
        schema = job.manifest.properties.schema
        tasks = []
        for group in groups:
            leaf = files.leaf(group)
            scan = LeafScan(
                leaf.location,
                leaf.version,
                schema,
                schema.names,
                fragments=files.fragments(group),
            )
            tasks.append(MoveTask(group.id, group.bytes, job, scan))

        def finished(count: int) -> None:
            if self.progress is not None:
                self.progress(count, len(groups))

        return run_tasks(tasks, self.spark, finished)


def _removal(leaf: FileLeaf, files: PlannedFiles, groups: Sequence[RewriteGroup]) -> LeafWrite:
    """The files of the groups taken out of their leaf."""
    gone = {number for group in groups for number in files.fragments(group)}
    rows = sum(each.num_rows for each in leaf.fragments if each.id in gone)
    change = Change(removed=tuple(sorted(gone)), rows_removed=rows)

    def removed(_: lance.LanceDataset) -> Change:
        return change

    return LeafWrite(leaf.key, leaf.object_id, leaf.location, leaf.version, (), removed)


def _undisturbed(
    manifest: Manifest, files: PlannedFiles, groups: Sequence[RewriteGroup]
) -> list[RewriteGroup]:
    """The groups whose files are as they were when they were planned."""
    kept = []
    leaves = files.by_leaf(groups)
    versions = manifest.versions([leaf.object_id for leaf, _ in leaves])
    for leaf, mine in leaves:
        now = leaf.location.open_leaf(versions[leaf.object_id]).get_fragments()
        same = {each.fragment_id: each.metadata for each in now}
        before = {each.id: each for each in leaf.fragments}
        kept += [
            group
            for group in mine
            if all(same.get(number) == before[number] for number in files.fragments(group))
        ]
    return kept


def _outcome(
    plan: RewritePlan,
    groups: Sequence[RewriteGroup],
    written: Sequence[TaskFiles],
    snapshot: int | None,
) -> Rewritten:
    new = [each for task in written for files in task.files for each in files.fragments]
    moved = {group.id for group in groups}
    return Rewritten(
        plan,
        len(groups),
        tuple(group for group in plan.groups if group.id not in moved),
        sum(len(group.files) for group in groups),
        len(new),
        sum(group.bytes for group in groups),
        sum(map(bytes_of, new)),
        sum(each.num_rows for each in new),
        () if snapshot is None else (snapshot,),
    )
