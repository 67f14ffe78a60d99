"""Rewrites: files of a partition become fewer and larger ones, and lose their deleted rows."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.errors import CommitConflict, PhalanxError
from phalanx.model.partition_key import PartitionKey, keys_of
from phalanx.planning.rewrite import (
    MultiSpecPartitionFilter,
    RewriteDataFilesPlanner,
    RewriteGroup,
    RewriteOptions,
    RewritePlan,
    file_entries,
)
from phalanx.planning.scan import OBJECT_ID, counted, located, readable
from phalanx.storage import compacting
from phalanx.storage.compacting import Compacted
from phalanx.storage.failures import told
from phalanx.storage.location import Location
from phalanx.storage.manifest import Manifest
from phalanx.storage.parallel import WRITE_THREADS, in_parallel
from phalanx.storage.reconcile import align
from phalanx.storage.writing import named
from phalanx.table.inspection import bytes_of
from phalanx.table.staged import LeafRewrite, Overtaken, StagedChanges, Start
from phalanx.table.work import on_spark

# Iceberg's number of commits, where progress is kept.
MOST_COMMITS = 10
_MOST_ATTEMPTS = 3
_RESULT = "result"

Progress = Callable[[int, int], None]
"""Told how many groups are done, of how many."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf of the plan, in the version that it was planned for."""

    key: PartitionKey
    object_id: str
    location: Location
    version: int
    fragments: tuple[FragmentMetadata, ...]


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """What one task writes anew: some fragments of one leaf."""

    group: int
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


@dataclass(frozen=True, slots=True)
class RewriteWork:
    """Tasks of a rewrite, for Spark."""

    tasks: tuple[RewriteTask, ...]

    @property
    def schema(self) -> pa.Schema:
        """One row for each task."""
        return pa.schema([("group", pa.int64()), (_RESULT, pa.binary())])

    def without_tasks(self) -> RewriteWork:
        """The same work, as one task sees it."""
        return replace(self, tasks=())

    def batches(self, task: RewriteTask) -> Iterator[pa.RecordBatch]:
        """What became of the files of a task."""
        row = {"group": task.group, _RESULT: pickle.dumps(task.run())}
        yield pa.RecordBatch.from_pylist([row], self.schema)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rewrite has done: files and bytes before and after, and what it left alone.

    `dropped` are groups whose files other writers changed meanwhile. The snapshots are those of
    strong mode.
    """

    plan: RewritePlan
    groups: int
    dropped: tuple[RewriteGroup, ...]
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows: int
    snapshots: tuple[int, ...]

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
        }

    def __str__(self) -> str:
        if not self.groups and not self.dropped:
            return "nothing to rewrite"
        text = (
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


def options_of(where: str | None, given: Mapping[str, Any]) -> RewriteOptions:
    """The options by their names, of which no others are known."""
    known = RewriteOptions.__dataclass_fields__
    for name in given:
        if name not in known:
            raise PhalanxError(
                f"Cannot rewrite with {name}={given[name]!r}: there is no such option. Expected "
                f"one of {', '.join(sorted(known))}."
            )
    if where is not None and given.get("partition_filter") is not None:
        raise PhalanxError("Cannot rewrite with both where and partition_filter: they are one.")
    return RewriteOptions(**{"partition_filter": where, **given})


def plan(manifest: Manifest, options: RewriteOptions) -> RewritePlan:
    """Which files of which partitions are rewritten together, and why others are not."""
    return _planned(manifest, options)[0]


def _planned(
    manifest: Manifest, options: RewriteOptions
) -> tuple[RewritePlan, dict[str, tuple[_Leaf, int]]]:
    """The plan, and for each file in it the leaf and the fragment that it is."""
    properties = manifest.properties
    filter = None
    if options.partition_filter is not None:
        filter = MultiSpecPartitionFilter(
            options.partition_filter,
            properties.specs,
            properties.schema,
            case_sensitive=options.case_sensitive,
        )
    entries: dict[int, pa.Table] = {}
    places: dict[str, tuple[_Leaf, int]] = {}
    for spec_id, leaves in sorted(manifest.leaves().items()):
        keys = manifest.keys_of_leaves(spec_id, leaves)
        if filter is not None:
            kept = pa.array(filter.decide(spec_id, keys, leaves.num_rows).kept)
            leaves = leaves.filter(kept)
            keys = manifest.keys_of_leaves(spec_id, leaves)
        found = _leaves(manifest, keys, leaves)
        entries[spec_id] = _entries(keys, found, manifest.root, places)
    planner = RewriteDataFilesPlanner(
        properties.schema, properties.specs, entries, options, filter=filter
    )
    return planner.plan(), places


def _leaves(manifest: Manifest, keys: pa.Table, leaves: pa.Table) -> list[_Leaf]:
    def opened(each: tuple[PartitionKey, str, tuple[str, int | None]]) -> _Leaf:
        key, name, (place, version) = each
        location = manifest.root.child(place)
        dataset = location.open_leaf(version)
        fragments = tuple(fragment.metadata for fragment in dataset.get_fragments())
        return _Leaf(key, name, location, int(dataset.version), fragments)

    names = leaves.column(OBJECT_ID).to_pylist()
    return in_parallel(opened, list(zip(keys_of(keys), names, located(leaves), strict=True)))


def _entries(
    keys: pa.Table,
    leaves: Sequence[_Leaf],
    root: Location,
    places: dict[str, tuple[_Leaf, int]],
) -> pa.Table:
    """The fragments as files; each goes by the path of its first file."""
    owners: list[int] = []
    paths: list[str] = []
    fragments: list[FragmentMetadata] = []
    for number, leaf in enumerate(leaves):
        inside = leaf.location.uri.removeprefix(f"{root.uri}/")
        for fragment in leaf.fragments:
            path = f"{inside}/data/{fragment.files[0].path}"
            owners.append(number)
            paths.append(path)
            fragments.append(fragment)
            places[path] = leaf, fragment.id
    return file_entries(
        keys.take(pa.array(owners, pa.int64())) if keys.num_columns else None,
        paths,
        bytes=[bytes_of(each) for each in fragments],
        rows=[each.physical_rows for each in fragments],
        positions=[each.id for each in fragments],
        deletes=[_deletes(path, each) for path, each in zip(paths, fragments, strict=True)],
    )


def _deletes(path: str, fragment: FragmentMetadata) -> list[dict[str, Any]]:
    if fragment.deletion_file is None:
        return []
    # Lance tells neither where it is nor how large; there is one for a fragment at most.
    return [{"path": f"{path}:deletions", "bytes": 0, "rows": fragment.num_deletions}]


def rewrite(
    manifest: Callable[[], Manifest],
    options: RewriteOptions,
    *,
    spark: Any = None,
    partial_progress: bool = False,
    max_commits: int = MOST_COMMITS,
    progress: Progress | None = None,
) -> Rewritten:
    """Plan a rewrite and run it; what other writers change meanwhile is tried again, then left."""
    if max_commits < 1:
        raise PhalanxError(f"Cannot rewrite with max_commits={max_commits}: expected 1 or more.")
    run = _Run(manifest, options, spark, max_commits if partial_progress else 1, progress)
    return run.outcome()


@dataclass(slots=True)
class _Run:
    manifest: Callable[[], Manifest]
    options: RewriteOptions
    spark: Any
    commits: int
    progress: Progress | None

    def outcome(self) -> Rewritten:
        done = self._once()
        for _ in range(_MOST_ATTEMPTS - 1):
            if not done.dropped:
                break
            again = self._once()
            done = replace(
                again,
                plan=done.plan,
                groups=done.groups + again.groups,
                files_before=done.files_before + again.files_before,
                files_after=done.files_after + again.files_after,
                bytes_before=done.bytes_before + again.bytes_before,
                bytes_after=done.bytes_after + again.bytes_after,
                rows=done.rows + again.rows,
                snapshots=done.snapshots + again.snapshots,
            )
        return done

    def _once(self) -> Rewritten:
        manifest = self.manifest()
        start = None
        if manifest.properties.mode == "strong":
            start = Start.now(manifest)
            manifest = start.base
        plan, places = _planned(manifest, self.options)
        groups = list(plan.groups)
        results: dict[int, Compacted] = {}
        snapshots: list[int] = []
        finished = 0
        for batch in _batches(groups, self.commits):
            ran = self._ran(manifest, batch, places)
            if start is not None:
                committed, snapshot = _commit_strong(start, batch, ran, places)
                snapshots += [] if snapshot is None else [snapshot]
            else:
                committed = _commit_weak(manifest, batch, ran, places)
            results |= committed
            finished += len(batch)
            if self.progress is not None:
                self.progress(finished, len(groups))
        old = [each for result in results.values() for each in result.old]
        new = [each for result in results.values() for each in result.new]
        return Rewritten(
            plan,
            len(results),
            tuple(group for group in groups if group.id not in results),
            len(old),
            len(new),
            sum(map(bytes_of, old)),
            sum(map(bytes_of, new)),
            sum(each.num_rows for each in new),
            tuple(snapshots),
        )

    def _ran(
        self,
        manifest: Manifest,
        groups: Sequence[RewriteGroup],
        places: Mapping[str, tuple[_Leaf, int]],
    ) -> dict[int, Compacted]:
        """The new files of each group, written by Spark's executors or by threads."""
        tasks = tuple(self._task(group, places) for group in groups)
        if manifest.properties.mode == "weak":
            tasks = tuple(in_parallel(lambda task: _aligned(manifest, task), tasks))
        if self.spark is None:
            done = in_parallel(RewriteTask.run, tasks, WRITE_THREADS)
            return {task.group: result for task, result in zip(tasks, done, strict=True)}
        if not tasks:
            return {}
        rows = on_spark(self.spark, RewriteWork(tasks)).collect()
        return {row["group"]: pickle.loads(row[_RESULT]) for row in rows}

    def _task(self, group: RewriteGroup, places: Mapping[str, tuple[_Leaf, int]]) -> RewriteTask:
        leaf = places[group.files[0].path][0]
        rows = max(1, group.rows)
        files = max(1, round(group.bytes / self.options.target_file_size_bytes))
        return RewriteTask(
            group.id,
            leaf.location,
            leaf.version,
            tuple(places[file.path][1] for file in group.files),
            math.ceil(rows / files),
        )


def _aligned(manifest: Manifest, task: RewriteTask) -> RewriteTask:
    """In weak mode a leaf may be behind the schema: its files are written as it should be."""
    dataset = align(task.location, manifest.properties.schema, manifest.check_current)
    return replace(task, version=int(dataset.version))


def _batches(groups: list[RewriteGroup], most: int) -> Iterator[list[RewriteGroup]]:
    """The groups in as many parts as there may be commits, those of a leaf not always in one."""
    size = max(1, math.ceil(len(groups) / most))
    for start in range(0, len(groups), size):
        yield groups[start : start + size]


def _by_leaf(
    groups: Sequence[RewriteGroup],
    results: Mapping[int, Compacted],
    places: Mapping[str, tuple[_Leaf, int]],
) -> list[tuple[_Leaf, dict[int, Compacted]]]:
    found: dict[str, tuple[_Leaf, dict[int, Compacted]]] = {}
    for group in groups:
        leaf = places[group.files[0].path][0]
        found.setdefault(leaf.object_id, (leaf, {}))[1][group.id] = results[group.id]
    return list(found.values())


def _commit_strong(
    start: Start,
    groups: Sequence[RewriteGroup],
    results: Mapping[int, Compacted],
    places: Mapping[str, tuple[_Leaf, int]],
) -> tuple[dict[int, Compacted], int | None]:
    """All groups in one snapshot; those that were committed, and its id."""
    if not groups:
        return {}, None
    changes = StagedChanges(start)
    leaves = _by_leaf(groups, results, places)
    rewrites = [
        LeafRewrite(leaf.key, leaf.object_id, leaf.location, leaf.version, tuple(each.values()))
        for leaf, each in leaves
    ]
    try:
        with changes.unless_vacuumed():
            changes.rewrite(rewrites)
        snapshot = changes.commit_snapshot(None)
    except Overtaken:
        return {}, None
    kept = changes.rewritten
    committed = {
        number: result
        for leaf, each in leaves
        for number, result in each.items()
        if any(result is other for other in kept[leaf.object_id])
    }
    return committed, snapshot


def _commit_weak(
    manifest: Manifest,
    groups: Sequence[RewriteGroup],
    results: Mapping[int, Compacted],
    places: Mapping[str, tuple[_Leaf, int]],
) -> dict[int, Compacted]:
    """Each leaf for itself; the groups that were committed."""

    def check() -> None:
        latest = manifest.latest()
        manifest.check_current(latest)
        if latest.properties.mode != "weak":
            raise CommitConflict(
                f"Cannot rewrite {manifest.root}: it went to strong mode meanwhile. Rewrite again."
            )

    def commit(each: tuple[_Leaf, dict[int, Compacted]]) -> dict[int, Compacted]:
        leaf, mine = each
        kept = compacting.commit(leaf.location, tuple(mine.values()), check)
        return {
            number: result
            for number, result in mine.items()
            if any(result is other for other in kept)
        }

    done = in_parallel(commit, _by_leaf(groups, results, places))
    return {number: result for each in done for number, result in each.items()}
