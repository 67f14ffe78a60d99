"""Indexes of a table: declared once, then built in every partition that lacks them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.errors import CommitConflict, PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.search.indexes import IndexSpec, declare_index
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.planning.formatting import format_count
from phalanx.planning.rewrite import RewriteOptions
from phalanx.storage.commit.writing import format_partitions
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.leaf import indexes as leaf_indexes
from phalanx.storage.leaf.indexes import BuiltIndex, IndexPlan
from phalanx.storage.manifest.changes import write_properties
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.maintenance.group_tasks import MAX_ATTEMPTS, retry_dropped, run_tasks
from phalanx.table.read.inspection import bytes_of
from phalanx.table.read.rewrite_planning import PlannedLeaf, plan_rewrite_files
from phalanx.table.transactions.strong_mode import TransactionStart
from phalanx.table.transactions.strong_target import LeafRewrite, RetryableConflict, StrongTarget

_LOGGER = logging.getLogger("phalanx.table")


@dataclass(frozen=True, slots=True)
class Indexed:
    """The result of building the indexes of a table.

    Attributes:
        indexes: The indexes that were built where they were missing.
        partitions: The number of partitions that changed.
        rows: The number of rows that were indexed.
        left_flat: The partitions without an index, each with the reason: it has too few rows, and a
            search reads all of them.
        dropped: The partitions that were given up, because other writers changed them.
        snapshots: The ids of the snapshots committed. In weak mode there are none.
    """

    indexes: tuple[IndexSpec, ...]
    partitions: int = 0
    rows: int = 0
    left_flat: tuple[tuple[PartitionKey, str], ...] = ()
    dropped: tuple[PartitionKey, ...] = ()
    snapshots: tuple[int, ...] = ()

    def combine(self, later: Indexed) -> Indexed:
        """Return the sum of this attempt and a later one for what this one gave up."""
        return replace(
            later,
            partitions=self.partitions + later.partitions,
            rows=self.rows + later.rows,
            snapshots=self.snapshots + later.snapshots,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "indexes": [each.to_dict() for each in self.indexes],
            "partitions": self.partitions,
            "rows": self.rows,
            "left_flat": [
                {"spec_id": key.spec_id, "values": [str(value) for value in key.values], "why": why}
                for key, why in self.left_flat
            ],
            "dropped": len(self.dropped),
            "snapshots": list(self.snapshots),
        }

    def __str__(self) -> str:
        names = ", ".join(each.name for each in self.indexes) or "no index"
        text = f"{names}: indexed {format_count(self.rows, 'row')} in "
        text += format_count(self.partitions, "partition")
        if self.snapshots:
            text += f", snapshot {', '.join(map(str, self.snapshots))}"
        if self.left_flat:
            keys = format_partitions([key for key, _ in self.left_flat])
            text += (
                f"; left {format_count(len(self.left_flat), 'partition')} without, which have too "
                f"few rows: {keys}"
            )
        if self.dropped:
            text += (
                f"; left {format_count(len(self.dropped), 'partition')} alone, which other writers "
                f"changed meanwhile: {format_partitions(list(self.dropped))}"
            )
        return text


@dataclass(frozen=True, slots=True)
class IndexTask:
    """A task that builds the indexes of one leaf, one after the other."""

    group: int
    bytes: int
    location: Location
    version: int
    plans: tuple[IndexPlan, ...]
    schema: Schema

    def run(self) -> tuple[BuiltIndex, ...]:
        """Build the new index segments, which become visible with the commit."""
        with translate_errors(f"index {self.location}"):
            return tuple(
                leaf_indexes.build_index(self.location, self.version, each, self.schema)
                for each in self.plans
            )


def create_index(
    load_manifest: Callable[[], Manifest],
    column: str,
    kind: str,
    min_rows: int | None,
    spark: Any,
    options: dict[str, Any],
) -> Indexed:
    """Declare an index and build it in every partition; repeated, build what is missing."""
    spec, rebuild = _declare(
        load_manifest,
        lambda schema, indexes: declare_index(column, kind, options, min_rows, schema, indexes),
    )
    return _build_missing(load_manifest, (spec,), None, spark, rebuild)


def optimize_indexes(
    load_manifest: Callable[[], Manifest], where: str | None, spark: Any
) -> Indexed:
    """Index the rows that no declared index covers, in partitions that may match `where`."""
    return _build_missing(
        load_manifest, list_live_indexes(load_manifest()), where, spark, rebuild=False
    )


def list_live_indexes(manifest: Manifest) -> tuple[IndexSpec, ...]:
    """Return the declared indexes whose columns still exist."""
    schema = manifest.properties.schema
    found = manifest.properties.indexes
    return tuple(each for each in found if schema.path_of(each.field_id) is not None)


def count_unindexed_rows(manifest: Manifest, leaves: Sequence[PlannedLeaf]) -> dict[str, int]:
    """Count, by object id of the leaf, the rows that a declared index should cover and does not."""
    specs = list_live_indexes(manifest)

    def count_rows(leaf: PlannedLeaf) -> int:
        dataset = leaf.location.open_leaf(leaf.version)
        found = [(each, leaf_indexes.plan_index(each, dataset, False)) for each in specs]
        return max(
            (
                sum(each.num_rows for each in leaf_indexes.list_uncovered_fragments(spec, dataset))
                for spec, plan in found
                if plan is not None and plan.rows >= spec.min_rows
            ),
            default=0,
        )

    if not specs:
        return {}
    rows = map_parallel(count_rows, leaves)
    return {leaf.object_id: count for leaf, count in zip(leaves, rows, strict=True) if count}


def drop_index(load_manifest: Callable[[], Manifest], name: str) -> int:
    """Remove an index and its declaration; return how many partitions had it."""
    manifest = load_manifest()
    spec = next((each for each in manifest.properties.indexes if each.name == name), None)
    if spec is None:
        known = ", ".join(each.name for each in manifest.properties.indexes) or "none"
        raise PhalanxError(
            f"Cannot drop the index {name!r} of {manifest.root}: it has no such index. Its indexes "
            f"are: {known}."
        )
    rest = tuple(each for each in manifest.properties.indexes if each.name != name)
    write_properties(manifest, replace(manifest.properties, indexes=rest))
    done = retry_dropped(
        lambda: _run_once(load_manifest(), (spec,), None, None, False, drop=True),
        "removal of an index",
        "partition",
    )
    _LOGGER.info(
        "Dropped the index %s of %s, in %s",
        *(name, manifest.root, format_count(done.partitions, "partition")),
    )
    return done.partitions


def _declare(
    load_manifest: Callable[[], Manifest],
    declaration: Callable[[Schema, Sequence[IndexSpec]], IndexSpec],
) -> tuple[IndexSpec, bool]:
    """Declare an index; return it, and whether it replaces another one of the same name."""
    for _ in range(MAX_ATTEMPTS):
        manifest = load_manifest()
        properties = manifest.properties
        spec = declaration(properties.schema, properties.indexes)
        before = next((each for each in properties.indexes if each.name == spec.name), None)
        if before == spec:
            return spec, False
        rest = tuple(each for each in properties.indexes if each.name != spec.name)
        try:
            write_properties(manifest, replace(properties, indexes=(*rest, spec)))
        except CommitConflict:
            _LOGGER.debug(
                "Another writer changed the properties of %s; declaring the index %s again",
                *(manifest.root, spec.name),
            )
            continue
        return spec, before is not None and replace(before, min_rows=spec.min_rows) != spec
    raise CommitConflict(
        f"Cannot declare an index of {manifest.root}: other writers kept changing its properties. "
        "Try again."
    )


def _build_missing(
    load_manifest: Callable[[], Manifest],
    specs: tuple[IndexSpec, ...],
    where: str | None,
    spark: Any,
    rebuild: bool,
) -> Indexed:
    if not specs:
        return Indexed(())
    return retry_dropped(
        lambda: _run_once(load_manifest(), specs, where, spark, rebuild), "indexing", "partition"
    )


@dataclass(frozen=True, slots=True)
class _LeafPlan:
    """A leaf, the indexes to build on it, and the reasons why it is too small for others."""

    leaf: PlannedLeaf
    plans: tuple[IndexPlan, ...]
    too_small_reasons: tuple[str, ...]


def _run_once(
    manifest: Manifest,
    specs: tuple[IndexSpec, ...],
    where: str | None,
    spark: Any,
    rebuild: bool,
    drop: bool = False,
) -> Indexed:
    start = None
    if manifest.properties.mode == "strong":
        start = TransactionStart.begin(manifest)
        manifest = start.base
    leaves = plan_rewrite_files(manifest, RewriteOptions(partition_filter=where)).leaves
    plan = functools.partial(_plan_drop if drop else _plan_build, manifest, specs, rebuild)
    found = map_parallel(plan, leaves)
    small = [(each.leaf.key, why) for each in found for why in each.too_small_reasons]
    work = [each for each in found if each.plans]
    tasks = [
        IndexTask(
            number,
            sum(bytes_of(each) for each_plan in leaf_plan.plans for each in each_plan.fragments),
            leaf_plan.leaf.location,
            leaf_plan.leaf.version,
            leaf_plan.plans,
            manifest.properties.schema,
        )
        for number, leaf_plan in enumerate(work)
    ]
    if drop:
        results_by_task = {
            task.group: tuple(
                BuiltIndex(each_plan.spec.name, (), 0, None, each_plan.removed)
                for each_plan in task.plans
            )
            for task in tasks
        }
    else:
        results_by_task = run_tasks(tasks, spark, lambda count: None)
    built: list[tuple[PlannedLeaf, tuple[BuiltIndex, ...]]] = []
    for number, leaf_plan in enumerate(work):
        results = results_by_task[number]
        small += [
            (leaf_plan.leaf.key, each.why_not) for each in results if each.why_not is not None
        ]
        if changes := tuple(each for each in results if each.is_change):
            built.append((leaf_plan.leaf, changes))
    committed, snapshot = _apply(manifest, start, built)
    rows = sum(each.rows for results in committed.values() for each in results)
    if committed and not drop:
        _LOGGER.info(
            "Indexed %s in %s of %s: %s",
            *(format_count(rows, "row"), format_count(len(committed), "partition"), manifest.root),
            ", ".join(each.name for each in specs),
        )
    return Indexed(
        specs,
        len(committed),
        rows,
        tuple(small),
        tuple(leaf.key for leaf, _ in built if leaf.object_id not in committed),
        () if snapshot is None else (snapshot,),
    )


def _plan_build(
    manifest: Manifest, specs: tuple[IndexSpec, ...], rebuild: bool, leaf: PlannedLeaf
) -> _LeafPlan:
    """Plan the missing indexes of a leaf; in weak mode, first bring it up to the schema."""
    if manifest.properties.mode == "weak":
        dataset = manifest.shape.open_newest(leaf.location)
        leaf = replace(leaf, version=int(dataset.version))
    else:
        dataset = leaf.location.open_leaf(leaf.version)
    plans, reasons = [], []
    for spec in specs:
        plan = leaf_indexes.plan_index(spec, dataset, rebuild)
        if plan is None:
            continue
        if plan.rows < spec.min_rows:
            rows = dataset.count_rows()
            if rows < spec.min_rows:
                reasons.append(f"{format_count(rows, 'row')}, {spec.name} needs {spec.min_rows:,}")
            continue
        plans.append(plan)
    return _LeafPlan(leaf, tuple(plans), tuple(reasons))


def _plan_drop(
    manifest: Manifest, specs: tuple[IndexSpec, ...], rebuild: bool, leaf: PlannedLeaf
) -> _LeafPlan:
    version = None if manifest.properties.mode == "weak" else leaf.version
    dataset = leaf.location.open_leaf(version)
    segments = [(each, leaf_indexes.list_segments([each.name], dataset)) for each in specs]
    return _LeafPlan(
        leaf, tuple(IndexPlan(spec, (), parts) for spec, parts in segments if parts), ()
    )


def _apply(
    manifest: Manifest,
    start: TransactionStart | None,
    built: Sequence[tuple[PlannedLeaf, tuple[BuiltIndex, ...]]],
) -> tuple[dict[str, tuple[BuiltIndex, ...]], int | None]:
    """Apply the indexes in one snapshot, in weak mode leaf by leaf; return those applied."""
    if not built:
        return {}, None
    if start is None:

        def check() -> None:
            manifest.check_current()
            if manifest.load_latest().properties.mode != "weak":
                raise CommitConflict(
                    f"Cannot index {manifest.root}: it changed to strong mode in the meantime. "
                    "Index it again."
                )

        mark = manifest.shape.mark
        done = map_parallel(
            lambda each: leaf_indexes.apply_indexes(each[0].location, each[1], check, mark), built
        )
        return {
            leaf.object_id: tuple(kept) for (leaf, _), kept in zip(built, done, strict=True) if kept
        }, None
    target = StrongTarget(start)
    rewrites = [
        LeafRewrite(leaf.key, leaf.object_id, leaf.location, leaf.version, results)
        for leaf, results in built
    ]
    try:
        with target.detect_vacuum():
            target.rewrite(rewrites, "index")
        snapshot = target.commit_snapshot(None)
    except RetryableConflict:
        return {}, None
    kept = {
        name: tuple(each for each in results if isinstance(each, BuiltIndex))
        for name, results in target.committed_replacements.items()
    }
    return {name: results for name, results in kept.items() if results}, snapshot
