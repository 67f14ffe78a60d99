"""What a table's writing methods do, whether their commits are seen at once or staged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from phalanx.errors import InvalidPredicate
from phalanx.model.predicates.binding import bind
from phalanx.model.predicates.predicate import TRUE, Predicate, all_of, among
from phalanx.model.schema.rows import reader_of
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.planning.pruning.fields import bound_fields
from phalanx.planning.pruning.prune import prune
from phalanx.planning.pruning.scan_plan import OBJECT_ID, READ_VERSION
from phalanx.storage.commit.writing import (
    LeafWrite,
    Reading,
    deleting,
    deleting_keys,
    leaf_writes,
    merged,
    named,
)
from phalanx.storage.lance.parallel import THREADS, in_parallel
from phalanx.storage.leaf.path_values import path_values
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import LeafListing, Leaves
from phalanx.storage.streams.shuffle import Shuffled
from phalanx.table.read.scan import plan_of
from phalanx.table.write.incoming_rows import Arriving, LocalRows, Statement, Target, shuffled

# How to finish what reached only some partitions.
REPEAT = "Call it again with the same arguments: that gives the same table as one whole call."
_APPEND_THE_REST = (
    "Append the rows of the partitions not written; where these partitions held no other rows, "
    "overwrite_partitions with the same data does it too."
)
_ROWS_MAY_BE_TWICE = (
    "Rows that moved from one partition to another may be in both, or in neither. Look at these "
    "partitions before you run it again, or use strong mode, where all of it is done or nothing."
)


# What a snapshot is called that adds rows which were computed from others of the table.
INSERT = "insert"

# Runs a statement, more than once where another writer's commit makes it look again.
Run = Callable[[Statement], int]


def append(manifest: LeafListing, run: Run, data: Any) -> int:
    """Add rows, each to its partition under the newest spec; returns how many."""
    with _local(manifest, data) as rows:
        return add(run, LocalRows(rows))


def overwrite(manifest: LeafListing, run: Run, data: Any, where: str) -> int:
    """Replace the rows that match `where` by rows that match it too; returns how many came."""
    predicate = bind(where, manifest.properties.schema)
    with _local(manifest, data, predicate, where) as rows:
        return replace_matching(run, LocalRows(rows), predicate)


def overwrite_partitions(manifest: LeafListing, run: Run, data: Any) -> int:
    """Replace the partitions (under the newest spec) that the data touches; how many rows came."""
    with _local(manifest, data) as rows:
        return replace_partitions(run, LocalRows(rows))


def add(run: Run, rows: Arriving, read: Sequence[Reading] = ()) -> int:
    """Add rows that are on their way; how many.

    Rows that were computed from others of the table are inserted, not just appended.
    """

    def statement(target: Target) -> int:
        note(target, read)
        operation = INSERT if read else "append"
        return target.commit(rows.arrive(target), operation, _APPEND_THE_REST)

    if rows.rows:
        run(statement)
    return rows.rows


def note(target: Target, read: Sequence[Reading]) -> None:
    """Tell a target all that a statement has read."""
    for each in read:
        target.has_read(each)


def replace_matching(
    run: Run, rows: Arriving, predicate: Predicate, read: Sequence[Reading] = ()
) -> int:
    """Replace the rows that match a predicate by others; how many came."""
    return _replace(run, rows, lambda now: deletions(now, predicate), "overwrite", read)


def replace_partitions(run: Run, rows: Arriving, read: Sequence[Reading] = ()) -> int:
    """Replace the partitions that the rows belong to, wherever they are stored; how many came."""
    if not rows.rows:
        return 0
    return _replace(run, rows, lambda now: _replaced(now, rows.keys), "overwrite_partitions", read)


def replace_files(run: Run, rows: Arriving, removed: Sequence[LeafWrite]) -> int:
    """Add rows, and remove the files that they were in; how many came."""

    def statement(target: Target) -> int:
        deletions = {write.location.uri: write for write in removed}
        return target.commit(merged(rows.arrive(target), deletions), "rewrite", REPEAT)

    run(statement)
    return rows.rows


def change_rows(
    run: Run,
    rows: Arriving,
    removed: Sequence[LeafWrite],
    operation: str,
    read: Sequence[Reading] = (),
) -> int:
    """Remove rows that were found before, and add others; how many came."""

    def statement(target: Target) -> int:
        note(target, read)
        gone = {write.location.uri: replace(write) for write in removed}
        writes = merged(rows.arrive(target), gone)
        for write in writes:
            write.gives = write.deletion is not None
            if write.deletion is None:
                # Others give some of these rows up: they are here before they are gone there.
                write.moved, write.fragments = write.fragments, ()
        return target.commit(writes, operation, _ROWS_MAY_BE_TWICE)

    run(statement)
    return rows.rows


def _replace(
    run: Run,
    rows: Arriving,
    removed: Callable[[LeafListing], Iterable[LeafWrite]],
    operation: str,
    read: Sequence[Reading] = (),
) -> int:
    def statement(target: Target) -> int:
        note(target, read)
        target.depend_on(functools.partial(_footprint, removed), replaced=True)
        writes = rows.arrive(target)
        deletions = {write.location.uri: write for write in removed(target.manifest)}
        return target.commit(merged(writes, deletions), operation, REPEAT)

    run(statement)
    return rows.rows


def delete(manifest: LeafListing, run: Run, where: str, *, in_turn: bool = False) -> int:
    """Remove the rows that match; returns how many.

    With `in_turn` it is as if no other statement had run meanwhile: it starts over if one has
    changed where it looked for the rows.
    """
    predicate = bind(where, manifest.properties.schema)

    def statement(target: Target) -> int:
        removed = functools.partial(deletions, predicate=predicate)
        footprint = functools.partial(_footprint, removed)
        target.depend_on(footprint, replaced=False)
        if in_turn and isinstance(target.manifest, Manifest):
            target.has_read(Reading(footprint, target.manifest.version))
        return target.commit(list(removed(target.manifest)), "delete", REPEAT)

    return run(statement)


def drop_partitions(manifest: LeafListing, run: Run, where: str) -> int:
    """Take the partitions all of whose rows match out of the table; returns how many.

    By the values that partitions have, and no data: one that may match in part is refused, unless
    it has no rows.
    """
    predicate = bind(where, manifest.properties.schema)

    def statement(target: Target) -> int:
        chosen = whole_partitions(target.manifest, predicate)
        if (some := _first_with_rows(target.manifest, chosen.partial)) is not None:
            raise InvalidPredicate(
                f"Cannot drop partitions where {where!r}: partition {named([some])} may match "
                "in part, and it is dropped as a whole or not at all. Choose a predicate that its "
                "values decide, or remove rows with delete()."
            )
        looked_at = functools.partial(_dropped_versions, predicate=predicate)
        target.depend_on(looked_at, replaced=False)
        return target.drop(chosen.whole, REPEAT)

    return run(statement)


def _dropped_versions(manifest: LeafListing, predicate: Predicate) -> dict[str, int | None]:
    return versions_of(whole_partitions(manifest, predicate).whole)


def versions_of(leaves: Mapping[int, pa.Table]) -> dict[str, int | None]:
    """The versions of some leaves, by object id."""
    return {
        name: version
        for some in leaves.values()
        for name, version in zip(
            some.column(OBJECT_ID).to_pylist(), some.column(READ_VERSION).to_pylist(), strict=True
        )
    }


@dataclass(frozen=True, slots=True)
class ChosenPartitions:
    """The leaves all of whose rows match, by their values, and those that may have some."""

    whole: Leaves
    partial: Leaves


def whole_partitions(manifest: LeafListing, predicate: Predicate) -> ChosenPartitions:
    """The leaves that a predicate chooses, by spec."""
    plan = plan_of(manifest, predicate)
    chosen = ChosenPartitions({}, {})
    for number, leaves in plan.leaves.items():
        residuals = plan.residuals[number]
        is_whole = np.array([each == TRUE for each in residuals.predicates], dtype=bool)
        matches_all = is_whole[residuals.places]
        chosen.whole[number] = leaves.filter(pa.array(matches_all))
        chosen.partial[number] = leaves.filter(pa.array(~matches_all))
    return chosen


def _first_with_rows(manifest: LeafListing, leaves: Leaves) -> PartitionKey | None:
    """The first of some leaves that has rows; no more are opened than that takes."""
    for number, some in leaves.items():
        for start in range(0, some.num_rows, THREADS):
            few = some.slice(start, THREADS)
            writes = list(leaf_writes(manifest, number, few, [None] * few.num_rows))
            counts = in_parallel(
                lambda write: write.location.open_leaf(write.version).count_rows(), writes
            )
            for write, count in zip(writes, counts, strict=True):
                if count:
                    return write.key
    return None


def _footprint(
    removed: Callable[[LeafListing], Iterable[LeafWrite]], manifest: LeafListing
) -> dict[str, int | None]:
    return {write.object_id: write.version for write in removed(manifest)}


def _local(
    manifest: LeafListing, data: Any, predicate: Predicate = TRUE, where: str = "true"
) -> Shuffled:
    in_memory = isinstance(data, pa.Table | pa.RecordBatch)
    return shuffled(manifest, reader_of(data), predicate, where, in_memory=in_memory)


def deletions(manifest: LeafListing, predicate: Predicate) -> Iterator[LeafWrite]:
    """The removal of the matching rows from every leaf that may have some."""
    plan = plan_of(manifest, predicate)
    schema = manifest.properties.schema
    for number, leaves in plan.leaves.items():
        residuals = plan.residuals[number]
        paths = path_values(leaves, manifest.path_columns)
        removals = [
            deleting(residuals.predicates[place], schema, path)
            for place, path in zip(residuals.places.tolist(), paths, strict=True)
        ]
        yield from leaf_writes(manifest, number, leaves, removals)


def _replaced(manifest: LeafListing, touched: pa.Table) -> Iterator[LeafWrite]:
    """The removal of the rows in these partitions of the newest spec, wherever they are."""
    properties = manifest.properties
    spec, schema = properties.spec, properties.schema
    newest = manifest.of_partitions(touched)
    everything = [deleting(TRUE, schema)] * newest.num_rows
    yield from leaf_writes(manifest, spec.id, newest, everything)
    older = {number: other for number, other in properties.specs.items() if number != spec.id}
    known = [
        among(field.term, touched.column(field.field.field_id).combine_chunks())
        for field in bound_fields(spec, schema)
        if field.term is not None
    ]
    pruning = prune(all_of(known), older, schema)
    leaves = manifest.leaves(pruning) if older else {}
    for number in older:
        removals = [deleting_keys(touched, spec, schema)] * leaves[number].num_rows
        yield from leaf_writes(manifest, number, leaves[number], removals)
