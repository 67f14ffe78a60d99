"""Move rows between leaves: to the newest spec, or to one leaf of a duplicate partition."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lance
import pyarrow as pa

from phalanx.arguments import ProgressCallback
from phalanx.errors import InvalidSpec
from phalanx.model.schema.rows import to_row_schema
from phalanx.planning.formatting import format_count
from phalanx.planning.rewrite import (
    MultiSpecPartitionFilter,
    RewriteGroup,
    RewriteOptions,
    RewritePlan,
)
from phalanx.storage.commit.writing import LeafWrite, plan_emptying
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import WRITE_THREADS, map_parallel
from phalanx.storage.leaf.leaf import FragmentChange, write_files
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import DuplicatePartition, Leaves, TableState
from phalanx.storage.streams.shuffle import resize_for_writing
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import REWRITE, WriteJob
from phalanx.table.maintenance.group_tasks import retry_dropped, run_tasks
from phalanx.table.maintenance.rewrite import Rewritten, log_plan
from phalanx.table.read.inspection import bytes_of
from phalanx.table.read.rewrite_planning import (
    PlannedFiles,
    PlannedLeaf,
    open_leaves,
    plan_rewrite_files,
)
from phalanx.table.transactions import strong_mode as strong
from phalanx.table.transactions.strong_target import RetryableConflict
from phalanx.table.write.incoming_rows import Target
from phalanx.table.write.operations import REPEAT_CALL
from phalanx.table.write.transaction import run_in_transaction

_LOGGER = logging.getLogger("phalanx.table")


def plan_move(manifest: Manifest, options: RewriteOptions, target: int) -> PlannedFiles:
    """Plan a move of all files of other specs, regardless of their size, in groups for one task."""
    properties = manifest.properties
    if target not in properties.specs:
        known = ", ".join(map(str, sorted(properties.specs)))
        raise InvalidSpec(
            f"Cannot move rows to spec {target!r}: there is none. Expected one of {known}."
        )
    if target != properties.spec.id:
        raise InvalidSpec(
            f"Cannot move rows to spec {target}: rows are only written under the newest spec, "
            f"{properties.spec.id}. Evolve the table back to the fields of spec {target} first."
        )
    size = min(options.max_file_group_size_bytes, options.target_file_size_bytes)
    everything = replace(options, rewrite_all=True, max_file_group_size_bytes=size)
    return plan_rewrite_files(
        manifest, everything, [number for number in properties.specs if number != target]
    )


@dataclass(frozen=True, slots=True)
class MoveTask:
    """A task that writes the rows of some fragments of a leaf to their new partitions."""

    group: int
    bytes: int
    job: WriteJob
    scan: LeafScan

    def run(self) -> TaskFiles:
        """Write the new files, which become visible with the commit."""
        with translate_errors(f"move rows of {self.scan.location}"):
            schema = to_row_schema(self.scan.schema)
            return self.job.write(
                pa.RecordBatchReader.from_batches(schema, self.scan.read_batches())
            )


@dataclass(frozen=True, slots=True)
class Move:
    """A rewrite that moves rows to another spec, in one transaction.

    A table in weak mode is in strong mode during the move. If the move is interrupted, the table
    stays in strong mode, with every row stored once, until the same move is run again.
    """

    load_manifest: Callable[[], Manifest]
    options: RewriteOptions
    target: int
    spark: Any = None
    progress: ProgressCallback | None = None

    def run(self) -> Rewritten:
        """Plan and run the move.

        Files that other writers change during the call are retried, and finally skipped.
        """
        manifest = self.load_manifest()
        if manifest.properties.mode == "weak":
            files = plan_move(manifest, self.options, self.target)
            if not files.plan.groups:
                return Rewritten(files.plan)
            strong.set_mode(manifest, "strong", returns=True)
        elif not manifest.properties.returns_to_weak:
            return self._run_attempts(manifest.root)
        try:
            return replace(self._run_attempts(manifest.root), snapshots=())
        finally:
            manifest = self.load_manifest()
            if manifest.properties.returns_to_weak:
                strong.set_mode(manifest, "weak")

    def _run_attempts(self, root: Location) -> Rewritten:
        done = retry_dropped(self._run_once, "move", "group")
        if done.files_before:
            _LOGGER.info(
                "Moved %s of %s to spec %d: %s, %s",
                *(format_count(done.files_before, "file"), root, self.target),
                *(format_count(done.files_after, "new file"), format_count(done.rows, "row")),
            )
        return done

    def _run_once(self) -> Rewritten:
        manifest = self.load_manifest()
        job = WriteJob.begin(manifest, REWRITE)
        files = plan_move(manifest.at_version(job.version), self.options, self.target)
        groups = files.plan.groups
        log_plan(f"a move to spec {self.target}", manifest, files.plan)
        written = self._run_groups(job, files, groups)
        remaining = list(groups)
        while remaining:
            removed = [
                _plan_removal(leaf, files, own_groups)
                for leaf, own_groups in files.group_by_leaf(remaining)
            ]
            try:
                result = job.commit([written[group.id] for group in remaining], removed)
            except RetryableConflict:
                undisturbed = _select_undisturbed(self.load_manifest(), files, remaining)
                if len(undisturbed) == len(remaining):
                    raise
                _LOGGER.debug(
                    "Other writers changed %s during the move; committing the others",
                    format_count(len(remaining) - len(undisturbed), "group"),
                )
                remaining = undisturbed
                continue
            return _summarize(
                files.plan, remaining, [written[group.id] for group in remaining], result.snapshot
            )
        return Rewritten(files.plan, dropped=groups)

    def _run_groups(
        self, job: WriteJob, files: PlannedFiles, groups: Sequence[RewriteGroup]
    ) -> dict[int, TaskFiles]:
        schema = job.state.properties.schema
        tasks = []
        for group in groups:
            leaf = files.leaf_of(group)
            scan = LeafScan(
                leaf.location,
                leaf.version,
                schema,
                schema.names,
                fragments=files.fragment_ids(group),
            )
            tasks.append(MoveTask(group.id, group.bytes, job, scan))

        def report(count: int) -> None:
            if self.progress is not None:
                self.progress(count, len(groups))

        return run_tasks(tasks, self.spark, report)


def _plan_removal(
    leaf: PlannedLeaf, files: PlannedFiles, groups: Sequence[RewriteGroup]
) -> LeafWrite:
    """Return the write that removes the files of the groups from their leaf."""
    removed_ids = {number for group in groups for number in files.fragment_ids(group)}
    rows = sum(each.num_rows for each in leaf.fragments if each.id in removed_ids)
    change = FragmentChange(removed=tuple(sorted(removed_ids)), rows_removed=rows)

    def build_change(_: lance.LanceDataset) -> FragmentChange:
        return change

    return LeafWrite(leaf.key, leaf.object_id, leaf.location, leaf.version, (), build_change)


def _select_undisturbed(
    manifest: Manifest, files: PlannedFiles, groups: Sequence[RewriteGroup]
) -> list[RewriteGroup]:
    """Return the groups whose files have not changed since they were planned."""
    kept = []
    leaves = files.group_by_leaf(groups)
    versions = manifest.leaf_versions([leaf.object_id for leaf, _ in leaves])
    for leaf, own_groups in leaves:
        fragments = leaf.location.open_leaf(versions[leaf.object_id]).get_fragments()
        current = {each.fragment_id: each.metadata for each in fragments}
        planned = {each.id: each for each in leaf.fragments}
        kept += [
            group
            for group in own_groups
            if all(current.get(number) == planned[number] for number in files.fragment_ids(group))
        ]
    return kept


def _summarize(
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


@dataclass(frozen=True, slots=True)
class _DuplicateLeaves:
    """A partition with several leaves: the first, and the others with and without rows.

    `filled_rows` and `empty_rows` are the leaf rows of the others.
    """

    spec_id: int
    first: PlannedLeaf
    filled: tuple[PlannedLeaf, ...]
    empty_rows: pa.Table
    filled_rows: pa.Table

    @classmethod
    def of(cls, state: TableState, partition: DuplicatePartition) -> _DuplicateLeaves:
        first, *others = open_leaves(state, partition.spec_id, partition.leaves)
        has_rows = [any(each.num_rows for each in leaf.fragments) for leaf in others]
        rest = partition.leaves.slice(1)
        mask = pa.array(has_rows, pa.bool_())
        return cls(
            partition.spec_id,
            first,
            tuple(leaf for leaf, filled in zip(others, has_rows, strict=True) if filled),
            rest.filter(pa.array([not filled for filled in has_rows], pa.bool_())),
            rest.filter(mask),
        )


def unite_leaves(load_manifest: Callable[[], Manifest], options: RewriteOptions) -> int:
    """Move all rows of each partition to its first leaf; return how many had several.

    Runs in one transaction, so a table in weak mode is in strong mode until it ends, as in `Move`.
    In strong mode the emptied leaves are then dropped; in weak mode they stay, because a writer may
    be about to write to them.
    """
    current = load_manifest()
    if not any(each.filled for each in _select_duplicates(current, options)):
        return 0
    if current.properties.mode == "weak":
        strong.set_mode(current, "strong", returns=True)
    try:
        count = run_in_transaction(load_manifest(), lambda target: _unite_rows(target, options))
        if not load_manifest().properties.returns_to_weak:
            run_in_transaction(load_manifest(), lambda target: _drop_empty_leaves(target, options))
        if count:
            _LOGGER.info(
                "United the leaves of %s of %s", format_count(count, "partition"), current.root
            )
        return count
    finally:
        current = load_manifest()
        if current.properties.returns_to_weak:
            strong.set_mode(current, "weak")


def _select_duplicates(state: TableState, options: RewriteOptions) -> Iterator[_DuplicateLeaves]:
    """Yield the partitions with several leaves that match the filter."""
    properties = state.properties
    filter = None
    for each in state.find_duplicate_partitions():
        if options.partition_filter is not None:
            filter = filter or MultiSpecPartitionFilter(
                options.partition_filter,
                properties.specs,
                properties.schema,
                case_sensitive=options.case_sensitive,
            )
            keys = state.leaf_keys(each.spec_id, each.leaves.slice(0, 1))
            if not filter.decide(each.spec_id, keys, 1).kept[0]:
                continue
        yield _DuplicateLeaves.of(state, each)


def _unite_rows(target: Target, options: RewriteOptions) -> int:
    state = target.state
    schema = state.properties.schema
    found = [each for each in _select_duplicates(state, options) if each.filled]

    def write(each: _DuplicateLeaves) -> LeafWrite:
        first = each.first
        dataset = target.open_leaf(first.location, first.version)
        names = tuple(dataset.schema.names)
        plain = to_row_schema(schema)
        batches = (
            batch
            for other in each.filled
            for batch in LeafScan(other.location, other.version, schema, names).read_batches()
        )
        reader = pa.RecordBatchReader.from_batches(
            pa.schema([plain.field(name) for name in names]), resize_for_writing(batches)
        )
        fragments = write_files(dataset, first.location, reader)
        return LeafWrite(first.key, first.object_id, first.location, first.version, fragments)

    writes = map_parallel(write, found, WRITE_THREADS)
    emptied = plan_emptying(
        state, _concat_leaves((each.spec_id, each.filled_rows) for each in found)
    )
    target.apply([*writes, *emptied], "rewrite", REPEAT_CALL)
    return len(found)


def _drop_empty_leaves(target: Target, options: RewriteOptions) -> int:
    """Drop the leaves without rows of partitions that have other leaves."""
    chosen = _select_duplicates(target.state, options)
    return target.drop(
        _concat_leaves((each.spec_id, each.empty_rows) for each in chosen), REPEAT_CALL
    )


def _concat_leaves(leaves: Iterator[tuple[int, pa.Table]]) -> Leaves:
    found: Leaves = {}
    for spec_id, rows in leaves:
        before = found.get(spec_id)
        found[spec_id] = rows if before is None else pa.concat_tables([before, rows])
    return found
