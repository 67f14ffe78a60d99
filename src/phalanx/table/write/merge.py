"""Merge (upsert): rows with a matching key are changed, others are inserted."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.errors import InvalidArgument
from phalanx.model.predicates.predicate import TRUE
from phalanx.model.schema.rows import to_row_schema
from phalanx.model.specs.partition_key import group_by_partition
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.fields import list_source_columns
from phalanx.planning.pruning.key_routing import list_identity_columns, route_keys
from phalanx.storage.commit.leaf_edits import EditedBatch, Editor, LeafEdit
from phalanx.storage.commit.writing import LeafWrite, plan_leaf_writes
from phalanx.storage.leaf.path_values import PathValues, list_path_values
from phalanx.storage.leaf.reading import read_with_addresses
from phalanx.storage.manifest.rows import RowAddresses
from phalanx.storage.state.table_state import TableState
from phalanx.storage.streams.shuffle import ShuffledRows, shuffle
from phalanx.storage.streams.spill_buffer import SpillBudget
from phalanx.table.write.incoming_rows import LocalRows, Target
from phalanx.table.write.merge_source import MergeSource, RowIndices, read_merge_source
from phalanx.table.write.operations import REPEAT_CALL, Run
from phalanx.table.write.row_edits import apply_edits, edit_leaves, find_affected_fields, find_moved

_MATCHED_ACTIONS = ("update", "ignore", "delete")
_UNMATCHED_ACTIONS = ("insert", "ignore")
# How many rows of a leaf are looked up at once, and how many new rows are made at once.
_LOOKUP_ROWS = 1 << 20
_OUTPUT_ROWS = 1 << 16
_NOT_REPEATABLE = (
    "Some partitions are done, and the same call would not give the same result again: check the "
    "table, and merge only what is missing."
)


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """The result of a merge.

    Attributes:
        inserted: The number of rows inserted.
        updated: The number of rows updated.
        deleted: The number of rows deleted.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def __str__(self) -> str:
        return f"{self.inserted:,} inserted, {self.updated:,} updated, {self.deleted:,} deleted"


def merge_rows(
    state: TableState,
    run: Run,
    data: Any,
    on: str | Sequence[str],
    when_matched: str,
    when_not_matched: str,
) -> MergeCounts:
    """Change the rows whose key is in the data, and insert the other rows of the data.

    Opens only leaves that can hold one of the keys, and reads their key columns first.
    """
    check_actions(when_matched, when_not_matched)
    with SpillBudget() as budget:
        source = read_merge_source(data, on, state.properties.schema, budget)
        inserted = 0

        def statement(target: Target) -> int:
            nonlocal inserted
            inserts = when_not_matched == "insert"
            footprint = functools.partial(_find_versions, source)
            target.depend_on(footprint, replaced=inserts)
            met = np.zeros(source.rows, dtype=bool)
            with SpillBudget() as moving:
                edits = list(_plan_edits(target.state, source, when_matched, met))
                done = edit_leaves(target, edits, moving)
                with done.moved, _shuffle_unmatched(target.state, source, met, inserts) as new:
                    inserted = new.rows
                    # Repeating it is not idempotent if rows moved, or were deleted and inserted.
                    again = not done.moved.rows and not (when_matched == "delete" and inserts)
                    advice = REPEAT_CALL if again else _NOT_REPEATABLE
                    return apply_edits(target, done, LocalRows(new), "merge", advice)

        changed = 0
        if source.rows and (when_matched, when_not_matched) != ("ignore", "ignore"):
            changed = run(statement)
    if when_matched == "delete":
        return MergeCounts(inserted, 0, changed)
    return MergeCounts(inserted, changed, 0)


def check_actions(when_matched: str, when_not_matched: str) -> None:
    """Refuse unknown actions."""
    _check_action("when_matched", when_matched, _MATCHED_ACTIONS)
    _check_action("when_not_matched", when_not_matched, _UNMATCHED_ACTIONS)


def _check_action(name: str, given: str, choices: Sequence[str]) -> None:
    if given not in choices:
        expected = " or ".join(map(repr, choices))
        raise InvalidArgument(f"Cannot merge with {name}={given!r}: expected {expected}.")


def _find_versions(source: MergeSource, state: TableState) -> dict[str, int | None]:
    return {write.object_id: write.version for write, *_ in _route_keys(state, source)}


def _route_keys(
    state: TableState, source: MergeSource
) -> Iterator[tuple[LeafWrite, PartitionSpec, PathValues | None, RowIndices]]:
    """Return each leaf that may hold some of the keys, with the indices of these keys."""
    properties = state.properties
    keys = source.take_keys()
    for spec_id, leaves in state.list_leaves().items():
        spec = properties.specs[spec_id]
        routes = route_keys(keys, source.keyed, spec, properties.schema, leaves)
        kept = np.flatnonzero(routes.has_keys)
        chosen = leaves.take(pa.array(kept))
        writes = plan_leaf_writes(state, spec_id, chosen, [None] * len(kept))
        paths = list_path_values(chosen, state.path_columns)
        for place, write, path in zip(kept.tolist(), writes, paths, strict=True):
            yield write, spec, path, routes.keys_of(place)


def _plan_edits(
    state: TableState, source: MergeSource, when_matched: str, is_matched: npt.NDArray[np.bool_]
) -> Iterator[LeafEdit]:
    schema = state.properties.schema
    for number, (write, spec, path, keys) in enumerate(_route_keys(state, source)):
        merge_leaf = _LeafMerge(state, source, when_matched, is_matched, spec, path, keys)
        yield LeafEdit(number, write, merge_leaf.make_editor(), to_row_schema(schema))


@dataclass(frozen=True, slots=True)
class _LeafMerge:
    """The merge of some keys into one leaf; sets `is_matched` for keys that it finds."""

    state: TableState
    source: MergeSource
    when_matched: str
    is_matched: npt.NDArray[np.bool_]
    spec: PartitionSpec
    path: PathValues | None
    keys: RowIndices

    def make_editor(self) -> Editor:
        """Return the function that edits the leaf's rows."""
        schema = self.state.properties.schema
        others = frozenset(schema.names) - frozenset(self.source.on)
        fields = find_affected_fields(self.spec, schema, others)
        # Columns that the partition values determine need not be read.
        known = list_identity_columns(self.spec, schema)
        on = [name for name in self.source.on if name not in known] or [self.source.on[0]]
        columns = list(on)
        if fields and self.when_matched == "update":
            columns += [n for n in list_source_columns(self.spec, schema) if n not in columns]

        def edit(
            dataset: lance.LanceDataset, fragments: list[lance.LanceFragment] | None
        ) -> Iterator[EditedBatch]:
            found = read_with_addresses(dataset, TRUE, schema, columns, self.path, fragments)
            for addresses, rows in _combine_batches(found):
                places = self.source.find_matches(rows, self.keys, on)
                matched = np.flatnonzero(places >= 0)
                self.is_matched[places[matched]] = True
                if self.when_matched == "ignore" or not len(matched):
                    continue
                if self.when_matched == "delete":
                    yield EditedBatch(addresses[matched])
                    continue
                for start in range(0, len(matched), _OUTPUT_ROWS):
                    some = matched[start : start + _OUTPUT_ROWS]
                    new = self.source.take(places[some])
                    old = rows.take(pa.array(some)) if fields else rows
                    yield EditedBatch(addresses[some], new, find_moved(fields, schema, old, new))

        return edit


def _combine_batches(
    batches: Iterator[tuple[RowAddresses, pa.RecordBatch]],
) -> Iterator[tuple[RowAddresses, pa.RecordBatch]]:
    """Combine small batches into larger ones."""
    held: list[tuple[RowAddresses, pa.RecordBatch]] = []
    rows = 0
    for piece in batches:
        held.append(piece)
        rows += len(piece[0])
        if rows >= _LOOKUP_ROWS:
            yield _concatenate(held)
            held, rows = [], 0
    if held:
        yield _concatenate(held)


def _concatenate(
    held: Sequence[tuple[RowAddresses, pa.RecordBatch]],
) -> tuple[RowAddresses, pa.RecordBatch]:
    addresses = np.concatenate([piece[0] for piece in held])
    return addresses, pa.concat_batches([piece[1] for piece in held])


def _shuffle_unmatched(
    state: TableState, source: MergeSource, is_matched: npt.NDArray[np.bool_], inserts: bool
) -> ShuffledRows:
    """Split the unmatched rows of the data by partition."""
    properties = state.properties
    schema, spec = properties.schema, properties.spec
    places = np.flatnonzero(~is_matched) if inserts else np.empty(0, np.int64)
    return shuffle(
        (
            source.take(places[start : start + _OUTPUT_ROWS])
            for start in range(0, len(places), _OUTPUT_ROWS)
        ),
        to_row_schema(schema),
        lambda rows: group_by_partition(spec, rows, schema),
        in_memory=False,
    )
