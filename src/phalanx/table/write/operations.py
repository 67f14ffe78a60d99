"""The write operations of a table, on main branches (weak mode) or in a transaction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from phalanx.errors import InvalidPredicate
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import TRUE, Predicate, all_of, one_of
from phalanx.model.schema.rows import to_reader
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.planning.pruning.fields import bind_fields
from phalanx.planning.pruning.leaf_columns import LEAF_OBJECT_ID, LEAF_VERSION
from phalanx.planning.pruning.prune import prune
from phalanx.storage.commit.writing import (
    LeafWrite,
    ReadFootprint,
    build_deletion,
    build_key_deletion,
    format_partitions,
    merge_writes,
    plan_leaf_writes,
)
from phalanx.storage.lance.parallel import THREADS, map_parallel
from phalanx.storage.leaf.path_values import list_path_values
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import Leaves, TableState
from phalanx.storage.streams.shuffle import ShuffledRows
from phalanx.table.read.scan import plan_scan
from phalanx.table.write.incoming_rows import (
    IncomingRows,
    LocalRows,
    Statement,
    Target,
    shuffle_rows,
)

# How to finish a write that reached only some partitions.
REPEAT_CALL = "Call it again with the same arguments: that gives the same table as one whole call."
_APPEND_THE_REST = (
    "Append the rows of the partitions not written; if these partitions held no other rows, "
    "overwrite_partitions with the same data also does it."
)
_ROWS_MAY_BE_TWICE = (
    "Rows that moved from one partition to another may be in both, or in neither. Check these "
    "partitions before you run it again, or use strong mode, where a write is atomic."
)


# The operation of a snapshot whose new rows were computed from rows of the table.
INSERT_OPERATION = "insert"

# Runs a statement, and repeats it after a conflict with another writer.
Run = Callable[[Statement], int]


def append(state: TableState, run: Run, data: Any) -> int:
    """Add rows to their partitions under the newest spec, and return how many."""
    with _shuffle_data(state, data) as rows:
        return add_rows(run, LocalRows(rows))


def overwrite(state: TableState, run: Run, data: Any, where: str) -> int:
    """Replace the rows that match `where` by rows that match it too; return the rows added."""
    predicate = bind_predicate(where, state.properties.schema)
    with _shuffle_data(state, data, predicate, where) as rows:
        return replace_matching(run, LocalRows(rows), predicate)


def overwrite_partitions(state: TableState, run: Run, data: Any) -> int:
    """Replace the partitions (under the newest spec) of the data, and return the rows added."""
    with _shuffle_data(state, data) as rows:
        return replace_partitions(run, LocalRows(rows))


def add_rows(run: Run, rows: IncomingRows, read: Sequence[ReadFootprint] = ()) -> int:
    """Add incoming rows, and return how many.

    Rows computed from rows of the table (`read`) are inserted, not appended.
    """

    def statement(target: Target) -> int:
        record_reads(target, read)
        operation = INSERT_OPERATION if read else "append"
        return target.apply(rows.stage(target), operation, _APPEND_THE_REST)

    if rows.rows:
        run(statement)
    return rows.rows


def record_reads(target: Target, read: Sequence[ReadFootprint]) -> None:
    """Record all that a statement has read."""
    for each in read:
        target.record_read(each)


def replace_matching(
    run: Run, rows: IncomingRows, predicate: Predicate, read: Sequence[ReadFootprint] = ()
) -> int:
    """Replace the rows that match a predicate, and return the rows added."""
    return _replace_rows(run, rows, lambda now: plan_deletions(now, predicate), "overwrite", read)


def replace_partitions(run: Run, rows: IncomingRows, read: Sequence[ReadFootprint] = ()) -> int:
    """Replace the partitions of the rows, under any spec, and return the rows added."""
    if not rows.rows:
        return 0
    return _replace_rows(
        run, rows, lambda now: _plan_replaced(now, rows.keys), "overwrite_partitions", read
    )


def replace_row_files(run: Run, rows: IncomingRows, removed: Sequence[LeafWrite]) -> int:
    """Add rows, remove the files that held them, and return the rows added."""

    def statement(target: Target) -> int:
        deletions = {write.location.uri: write for write in removed}
        return target.apply(merge_writes(rows.stage(target), deletions), "rewrite", REPEAT_CALL)

    run(statement)
    return rows.rows


def change_rows(
    run: Run,
    rows: IncomingRows,
    removed: Sequence[LeafWrite],
    operation: str,
    read: Sequence[ReadFootprint] = (),
) -> int:
    """Remove rows that were found before, add others, and return the rows added."""

    def statement(target: Target) -> int:
        record_reads(target, read)
        removals = {write.location.uri: replace(write) for write in removed}
        writes = merge_writes(rows.stage(target), removals)
        for write in writes:
            write.moves_rows_out = write.deletion is not None
            if write.deletion is None:
                # Other leaves lose some of these rows: add them here before they are removed there.
                write.moved_in, write.fragments = write.fragments, ()
        return target.apply(writes, operation, _ROWS_MAY_BE_TWICE)

    run(statement)
    return rows.rows


def _replace_rows(
    run: Run,
    rows: IncomingRows,
    removed: Callable[[TableState], Iterable[LeafWrite]],
    operation: str,
    read: Sequence[ReadFootprint] = (),
) -> int:
    def statement(target: Target) -> int:
        record_reads(target, read)
        target.depend_on(functools.partial(_find_versions, removed), replaced=True)
        writes = rows.stage(target)
        deletions = {write.location.uri: write for write in removed(target.state)}
        return target.apply(merge_writes(writes, deletions), operation, REPEAT_CALL)

    run(statement)
    return rows.rows


def delete(state: TableState, run: Run, where: str, *, serializable: bool = False) -> int:
    """Remove the rows that match, and return how many.

    With `serializable` it starts over if another statement changed the leaves that it searched,
    so that the result is as if no other statement had run meanwhile.
    """
    predicate = bind_predicate(where, state.properties.schema)

    def statement(target: Target) -> int:
        removed = functools.partial(plan_deletions, predicate=predicate)
        footprint = functools.partial(_find_versions, removed)
        target.depend_on(footprint, replaced=False)
        if serializable and isinstance(target.state, Manifest):
            target.record_read(ReadFootprint(footprint, target.state.version))
        return target.apply(list(removed(target.state)), "delete", REPEAT_CALL)

    return run(statement)


def drop_partitions(state: TableState, run: Run, where: str) -> int:
    """Drop the partitions of which all rows match, and return how many.

    Decides by partition values, without reading data. Refuses a partition that may match in part,
    unless it has no rows.
    """
    predicate = bind_predicate(where, state.properties.schema)

    def statement(target: Target) -> int:
        chosen = choose_partitions(target.state, predicate)
        if (some := _find_first_with_rows(target.state, chosen.partial)) is not None:
            raise InvalidPredicate(
                f"Cannot drop partitions where {where!r}: partition {format_partitions([some])} "
                "may match in part, and partitions are only dropped whole. Choose a predicate that "
                "the partition values decide, or remove rows with delete()."
            )
        looked_at = functools.partial(_find_dropped_versions, predicate=predicate)
        target.depend_on(looked_at, replaced=False)
        return target.drop(chosen.whole, REPEAT_CALL)

    return run(statement)


def _find_dropped_versions(state: TableState, predicate: Predicate) -> dict[str, int | None]:
    return versions_of(choose_partitions(state, predicate).whole)


def versions_of(leaves: Mapping[int, pa.Table]) -> dict[str, int | None]:
    """Return the versions of some leaves, by object id."""
    return {
        name: version
        for some in leaves.values()
        for name, version in zip(
            some.column(LEAF_OBJECT_ID).to_pylist(),
            some.column(LEAF_VERSION).to_pylist(),
            strict=True,
        )
    }


@dataclass(frozen=True, slots=True)
class ChosenPartitions:
    """The leaves of which all rows match by their partition values, and those that may in part."""

    whole: Leaves
    partial: Leaves


def choose_partitions(state: TableState, predicate: Predicate) -> ChosenPartitions:
    """Split the leaves by whether a predicate matches all of their rows or perhaps some."""
    plan = plan_scan(state, predicate)
    chosen = ChosenPartitions({}, {})
    for number, leaves in plan.leaves.items():
        residuals = plan.residuals[number]
        is_whole = np.array([each == TRUE for each in residuals.predicates], dtype=bool)
        matches_all = is_whole[residuals.indices]
        chosen.whole[number] = leaves.filter(pa.array(matches_all))
        chosen.partial[number] = leaves.filter(pa.array(~matches_all))
    return chosen


def _find_first_with_rows(state: TableState, leaves: Leaves) -> PartitionKey | None:
    """Return the key of the first leaf that has rows; opens leaves only until then."""
    for number, some in leaves.items():
        for start in range(0, some.num_rows, THREADS):
            few = some.slice(start, THREADS)
            writes = list(plan_leaf_writes(state, number, few, [None] * few.num_rows))
            counts = map_parallel(
                lambda write: write.location.open_leaf(write.version).count_rows(), writes
            )
            for write, count in zip(writes, counts, strict=True):
                if count:
                    return write.key
    return None


def _find_versions(
    removed: Callable[[TableState], Iterable[LeafWrite]], state: TableState
) -> dict[str, int | None]:
    return {write.object_id: write.version for write in removed(state)}


def _shuffle_data(
    state: TableState, data: Any, predicate: Predicate = TRUE, where: str = "true"
) -> ShuffledRows:
    in_memory = isinstance(data, pa.Table | pa.RecordBatch)
    return shuffle_rows(state, to_reader(data), predicate, where, in_memory=in_memory)


def plan_deletions(state: TableState, predicate: Predicate) -> Iterator[LeafWrite]:
    """Plan the removal of the matching rows from each leaf that may have some."""
    plan = plan_scan(state, predicate)
    schema = state.properties.schema
    for number, leaves in plan.leaves.items():
        residuals = plan.residuals[number]
        paths = list_path_values(leaves, state.path_columns)
        removals = [
            build_deletion(residuals.predicates[place], schema, path)
            for place, path in zip(residuals.indices.tolist(), paths, strict=True)
        ]
        yield from plan_leaf_writes(state, number, leaves, removals)


def _plan_replaced(state: TableState, touched: pa.Table) -> Iterator[LeafWrite]:
    """Plan the removal of the rows in these partitions of the newest spec, under any spec."""
    properties = state.properties
    spec, schema = properties.spec, properties.schema
    newest = state.list_partition_leaves(touched)
    everything = [build_deletion(TRUE, schema)] * newest.num_rows
    yield from plan_leaf_writes(state, spec.id, newest, everything)
    older = {number: other for number, other in properties.specs.items() if number != spec.id}
    known = [
        one_of(field.term, touched.column(field.field.field_id).combine_chunks())
        for field in bind_fields(spec, schema)
        if field.term is not None
    ]
    pruning = prune(all_of(known), older, schema)
    leaves = state.list_leaves(pruning) if older else {}
    for number in older:
        removals = [build_key_deletion(touched, spec, schema)] * leaves[number].num_rows
        yield from plan_leaf_writes(state, number, leaves[number], removals)
