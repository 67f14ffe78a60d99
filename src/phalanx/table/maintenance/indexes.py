"""Indexes of a table: declared once, then made in every partition that lacks them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.errors import CommitConflict, PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.search.indexes import IndexSpec, declared
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.planning.pruning.scan_plan import counted
from phalanx.planning.rewrite import RewriteOptions
from phalanx.storage.commit.writing import named
from phalanx.storage.lance.failures import told
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.leaf import indexes as indexing
from phalanx.storage.leaf.indexes import BuiltIndex, Wanted
from phalanx.storage.manifest.changes import put_properties
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.maintenance.rewrite import MOST_ATTEMPTS, run_tasks
from phalanx.table.overtaken import Overtaken
from phalanx.table.read.inspection import bytes_of
from phalanx.table.read.rewrite_planning import FileLeaf, planned
from phalanx.table.staged_leaf import LeafRewrite
from phalanx.table.transactions.strong_mode import Start
from phalanx.table.transactions.strong_target import StagedChanges


@dataclass(frozen=True, slots=True)
class Indexed:
    """What was done for the indexes of a table.

    `left_flat` are partitions that an index was not made for, and why: they have too few rows, and
    are searched one by one. `dropped` are those whose rows other writers changed meanwhile.
    """

    indexes: tuple[IndexSpec, ...]
    partitions: int = 0
    rows: int = 0
    left_flat: tuple[tuple[PartitionKey, str], ...] = ()
    dropped: tuple[PartitionKey, ...] = ()
    snapshots: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The outcome as JSON has it."""
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
        text = f"{names}: indexed {counted(self.rows, 'row')} in "
        text += counted(self.partitions, "partition")
        if self.snapshots:
            text += f", snapshot {', '.join(map(str, self.snapshots))}"
        if self.left_flat:
            keys = named([key for key, _ in self.left_flat])
            text += (
                f"; left {counted(len(self.left_flat), 'partition')} without, which have too few "
                f"rows: {keys}"
            )
        if self.dropped:
            text += (
                f"; left {counted(len(self.dropped), 'partition')} alone, which other writers "
                f"changed meanwhile: {named(list(self.dropped))}"
            )
        return text


@dataclass(frozen=True, slots=True)
class IndexTask:
    """The indexes of one leaf that are to be made; several are made one after the other."""

    group: int
    bytes: int
    location: Location
    version: int
    wanted: tuple[Wanted, ...]
    schema: Schema

    def run(self) -> tuple[BuiltIndex, ...]:
        """The new parts of indexes, which nobody sees yet."""
        with told(f"index {self.location}"):
            return tuple(
                indexing.build(self.location, self.version, each, self.schema)
                for each in self.wanted
            )


def create_index(
    manifest: Callable[[], Manifest],
    column: str,
    kind: str,
    min_rows: int | None,
    spark: Any,
    options: dict[str, Any],
) -> Indexed:
    """Declare an index, and make it in every partition; the same again makes what is missing."""
    made, anew = _declare(
        manifest,
        lambda schema, indexes: declared(column, kind, options, min_rows, schema, indexes),
    )
    return _until_settled(manifest, (made,), None, spark, anew)


def optimize_indexes(manifest: Callable[[], Manifest], where: str | None, spark: Any) -> Indexed:
    """Make what the declared indexes lack, in the partitions that may hold a matching row."""
    return _until_settled(manifest, living(manifest()), where, spark, anew=False)


def living(manifest: Manifest) -> tuple[IndexSpec, ...]:
    """The declared indexes whose columns are still there."""
    schema = manifest.properties.schema
    found = manifest.properties.indexes
    return tuple(each for each in found if schema.path_of(each.field_id) is not None)


def unindexed(manifest: Manifest, leaves: Sequence[FileLeaf]) -> dict[str, int]:
    """For each leaf, by object id, the rows that some declared index should cover and does not."""
    specs = living(manifest)

    def lacking(leaf: FileLeaf) -> int:
        dataset = leaf.location.open_leaf(leaf.version)
        found = [(each, indexing.wanted(each, dataset, False)) for each in specs]
        return max(
            (
                sum(each.num_rows for each in indexing.uncovered(spec, dataset))
                for spec, want in found
                if want is not None and want.rows >= spec.min_rows
            ),
            default=0,
        )

    if not specs:
        return {}
    rows = in_parallel(lacking, leaves)
    return {leaf.object_id: count for leaf, count in zip(leaves, rows, strict=True) if count}


def drop_index(manifest: Callable[[], Manifest], name: str) -> int:
    """Take an index back: it is no longer declared; returns how many partitions had it."""
    now = manifest()
    spec = next((each for each in now.properties.indexes if each.name == name), None)
    if spec is None:
        known = ", ".join(each.name for each in now.properties.indexes) or "none"
        raise PhalanxError(
            f"Cannot drop the index {name!r} of {now.root}: it has no such index. Its indexes are: "
            f"{known}."
        )
    rest = tuple(each for each in now.properties.indexes if each.name != name)
    put_properties(now, replace(now.properties, indexes=rest))
    done = _settled(manifest, lambda start: _run(start, (spec,), None, None, False, drop=True))
    return done.partitions


def _declare(
    manifest: Callable[[], Manifest],
    declaration: Callable[[Schema, Sequence[IndexSpec]], IndexSpec],
) -> tuple[IndexSpec, bool]:
    """Write an index down; whether it is another than the one that is known by its name."""
    for _ in range(MOST_ATTEMPTS):
        now = manifest()
        properties = now.properties
        made = declaration(properties.schema, properties.indexes)
        before = next((each for each in properties.indexes if each.name == made.name), None)
        if before == made:
            return made, False
        rest = tuple(each for each in properties.indexes if each.name != made.name)
        try:
            put_properties(now, replace(properties, indexes=(*rest, made)))
        except CommitConflict:
            continue
        return made, before is not None and replace(before, min_rows=made.min_rows) != made
    raise CommitConflict(
        f"Cannot declare an index of {now.root}: other writers change its properties all the time. "
        "Try again."
    )


def _until_settled(
    manifest: Callable[[], Manifest],
    specs: tuple[IndexSpec, ...],
    where: str | None,
    spark: Any,
    anew: bool,
) -> Indexed:
    if not specs:
        return Indexed(())
    return _settled(manifest, lambda start: _run(start, specs, where, spark, anew))


def _settled(manifest: Callable[[], Manifest], attempt: Callable[[Manifest], Indexed]) -> Indexed:
    """What all attempts did together: the next one does what others disturbed in the last."""
    done = attempt(manifest())
    for _ in range(MOST_ATTEMPTS - 1):
        if not done.dropped:
            break
        more = attempt(manifest())
        done = replace(
            more,
            partitions=done.partitions + more.partitions,
            rows=done.rows + more.rows,
            snapshots=done.snapshots + more.snapshots,
        )
    return done


@dataclass(frozen=True, slots=True)
class _Planned:
    """A leaf and what its indexes lack; the reason for each that it is too small for."""

    leaf: FileLeaf
    wanted: tuple[Wanted, ...]
    too_small: tuple[str, ...]


def _run(
    manifest: Manifest,
    specs: tuple[IndexSpec, ...],
    where: str | None,
    spark: Any,
    anew: bool,
    drop: bool = False,
) -> Indexed:
    start = None
    if manifest.properties.mode == "strong":
        start = Start.now(manifest)
        manifest = start.base
    leaves = planned(manifest, RewriteOptions(partition_filter=where)).leaves
    plan = functools.partial(_drop if drop else _plan, manifest, specs, anew)
    found = in_parallel(plan, leaves)
    small = [(each.leaf.key, why) for each in found for why in each.too_small]
    work = [each for each in found if each.wanted]
    tasks = [
        IndexTask(
            number,
            sum(bytes_of(each) for want in one.wanted for each in want.fragments),
            one.leaf.location,
            one.leaf.version,
            one.wanted,
            manifest.properties.schema,
        )
        for number, one in enumerate(work)
    ]
    if drop:
        ran = {
            task.group: tuple(
                BuiltIndex(want.spec.name, (), 0, None, want.removed) for want in task.wanted
            )
            for task in tasks
        }
    else:
        ran = run_tasks(tasks, spark, lambda count: None)
    built: list[tuple[FileLeaf, tuple[BuiltIndex, ...]]] = []
    for number, one in enumerate(work):
        results = ran[number]
        small += [(one.leaf.key, each.why_not) for each in results if each.why_not is not None]
        if changes := tuple(each for each in results if each.is_change):
            built.append((one.leaf, changes))
    committed, snapshot = _commit(manifest, start, built)
    return Indexed(
        specs,
        len(committed),
        sum(each.rows for results in committed.values() for each in results),
        tuple(small),
        tuple(leaf.key for leaf, _ in built if leaf.object_id not in committed),
        () if snapshot is None else (snapshot,),
    )


def _plan(manifest: Manifest, specs: tuple[IndexSpec, ...], anew: bool, leaf: FileLeaf) -> _Planned:
    """What the indexes of a leaf lack. One that is behind the schema, in weak mode, is aligned."""
    if manifest.properties.mode == "weak":
        dataset = manifest.shape.opened(leaf.location)
        leaf = replace(leaf, version=int(dataset.version))
    else:
        dataset = leaf.location.open_leaf(leaf.version)
    wanted, too_small = [], []
    for spec in specs:
        want = indexing.wanted(spec, dataset, anew)
        if want is None:
            continue
        if want.rows < spec.min_rows:
            rows = dataset.count_rows()
            if rows < spec.min_rows:
                too_small.append(f"{counted(rows, 'row')}, {spec.name} begins at {spec.min_rows:,}")
            continue
        wanted.append(want)
    return _Planned(leaf, tuple(wanted), tuple(too_small))


def _drop(manifest: Manifest, specs: tuple[IndexSpec, ...], anew: bool, leaf: FileLeaf) -> _Planned:
    version = None if manifest.properties.mode == "weak" else leaf.version
    dataset = leaf.location.open_leaf(version)
    gone = [(each, indexing.dropped([each.name], dataset)) for each in specs]
    return _Planned(leaf, tuple(Wanted(spec, (), parts) for spec, parts in gone if parts), ())


def _commit(
    manifest: Manifest,
    start: Start | None,
    built: Sequence[tuple[FileLeaf, tuple[BuiltIndex, ...]]],
) -> tuple[dict[str, tuple[BuiltIndex, ...]], int | None]:
    """All leaves in one snapshot, in weak mode each for itself; what was committed."""
    if not built:
        return {}, None
    if start is None:

        def check() -> None:
            manifest.check_current()
            if manifest.latest().properties.mode != "weak":
                raise CommitConflict(
                    f"Cannot index {manifest.root}: it went to strong mode meanwhile. Index it "
                    "again."
                )

        mark = manifest.shape.mark
        done = in_parallel(
            lambda each: indexing.commit(each[0].location, each[1], check, mark), built
        )
        return {
            leaf.object_id: tuple(kept) for (leaf, _), kept in zip(built, done, strict=True) if kept
        }, None
    changes = StagedChanges(start)
    rewrites = [
        LeafRewrite(leaf.key, leaf.object_id, leaf.location, leaf.version, results)
        for leaf, results in built
    ]
    try:
        with changes.unless_vacuumed():
            changes.rewrite(rewrites, "index")
        snapshot = changes.commit_snapshot(None)
    except Overtaken:
        return {}, None
    kept = {
        name: tuple(each for each in results if isinstance(each, BuiltIndex))
        for name, results in changes.rewritten.items()
    }
    return {name: results for name, results in kept.items() if results}, snapshot
