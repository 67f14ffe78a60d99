"""What a table's writing methods do, whether their commits are seen at once or staged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from phalanx.model.binding import bind
from phalanx.model.predicate import TRUE, Predicate, all_of, among
from phalanx.model.rows import reader_of
from phalanx.planning.fields import bound_fields
from phalanx.planning.pruning import prune
from phalanx.storage.leaf_listing import LeafListing
from phalanx.storage.path_values import path_values
from phalanx.storage.shuffle import Shuffled
from phalanx.storage.writing import LeafWrite, deleting, deleting_keys, leaf_writes, merged
from phalanx.table.arrivals import Arriving, LocalRows, Statement, Target, shuffled
from phalanx.table.scan import plan_of

# How to finish what reached only some partitions.
_REPEAT = "Call it again with the same arguments: that gives the same table as one whole call."
_APPEND_THE_REST = (
    "Append the rows of the partitions not written; where these partitions held no other rows, "
    "overwrite_partitions with the same data does it too."
)
_ROWS_MAY_BE_TWICE = (
    "Rows that moved from one partition to another may be in both, or in neither. Look at these "
    "partitions before you run it again, or use strong mode, where all of it is done or nothing."
)


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


def add(run: Run, rows: Arriving) -> int:
    """Add rows that are on their way; how many."""

    def statement(target: Target) -> int:
        return target.commit(rows.arrive(target), "append", _APPEND_THE_REST)

    if rows.rows:
        run(statement)
    return rows.rows


def replace_matching(run: Run, rows: Arriving, predicate: Predicate) -> int:
    """Replace the rows that match a predicate by others; how many came."""
    return _replace(run, rows, lambda now: _deletions(now, predicate), "overwrite")


def replace_partitions(run: Run, rows: Arriving) -> int:
    """Replace the partitions that the rows belong to, wherever they are stored; how many came."""
    if not rows.rows:
        return 0
    return _replace(run, rows, lambda now: _replaced(now, rows.keys), "overwrite_partitions")


def replace_files(run: Run, rows: Arriving, removed: Sequence[LeafWrite]) -> int:
    """Add rows, and remove the files that they were in; how many came."""

    def statement(target: Target) -> int:
        deletions = {write.location.uri: write for write in removed}
        return target.commit(merged(rows.arrive(target), deletions), "rewrite", _REPEAT)

    run(statement)
    return rows.rows


def change_rows(
    run: Run,
    rows: Arriving,
    removed: Sequence[LeafWrite],
    operation: str,
    looked: Predicate | None = None,
) -> int:
    """Remove rows that were found before, and add others; how many came.

    Where `looked` says which partitions they were looked for in, rows that another change has
    brought there are a conflict: they might have been found too.
    """

    def statement(target: Target) -> int:
        if looked is not None:
            target.depend_on(lambda now: plan_of(now, looked).versions, replaced=True)
        deletions = {write.location.uri: write for write in removed}
        return target.commit(merged(rows.arrive(target), deletions), operation, _ROWS_MAY_BE_TWICE)

    run(statement)
    return rows.rows


def _replace(
    run: Run, rows: Arriving, removed: Callable[[LeafListing], Iterable[LeafWrite]], operation: str
) -> int:
    def statement(target: Target) -> int:
        target.depend_on(functools.partial(_footprint, removed), replaced=True)
        writes = rows.arrive(target)
        deletions = {write.location.uri: write for write in removed(target.manifest)}
        return target.commit(merged(writes, deletions), operation, _REPEAT)

    run(statement)
    return rows.rows


def delete(manifest: LeafListing, run: Run, where: str) -> int:
    """Remove the rows that match; returns how many."""
    predicate = bind(where, manifest.properties.schema)

    def statement(target: Target) -> int:
        removed = functools.partial(_deletions, predicate=predicate)
        target.depend_on(functools.partial(_footprint, removed), replaced=False)
        return target.commit(list(removed(target.manifest)), "delete", _REPEAT)

    return run(statement)


def _footprint(
    removed: Callable[[LeafListing], Iterable[LeafWrite]], manifest: LeafListing
) -> dict[str, int | None]:
    return {write.object_id: write.version for write in removed(manifest)}


def _local(
    manifest: LeafListing, data: Any, predicate: Predicate = TRUE, where: str = "true"
) -> Shuffled:
    in_memory = isinstance(data, pa.Table | pa.RecordBatch)
    return shuffled(manifest, reader_of(data), predicate, where, in_memory=in_memory)


def _deletions(manifest: LeafListing, predicate: Predicate) -> Iterator[LeafWrite]:
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
    places = manifest.places(touched)
    newest = manifest.leaves()[spec.id].take(pa.array(places[places >= 0]))
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
