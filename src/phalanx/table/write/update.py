"""Update: assign new values to matching rows, and move them to their new partitions."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import lance

from phalanx.model.predicates.assignments import Assignments, bind_assignments
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import Predicate
from phalanx.model.schema.rows import to_row_schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.storage.commit.leaf_edits import EditedBatch, Editor, LeafEdit
from phalanx.storage.commit.writing import plan_leaf_writes
from phalanx.storage.leaf.path_values import PathValues, list_path_values
from phalanx.storage.leaf.reading import read_with_addresses
from phalanx.storage.state.table_state import TableState
from phalanx.storage.streams.spill_buffer import SpillBudget
from phalanx.table.read.scan import plan_scan
from phalanx.table.write.incoming_rows import Target
from phalanx.table.write.operations import Run
from phalanx.table.write.row_edits import apply_edits, edit_leaves, find_affected_fields, find_moved

_UPDATE_THE_REST = (
    "Rows that were updated may match again: call it again with a `where` that selects only "
    "partitions that were not written."
)


def update(state: TableState, run: Run, where: str, assignments: Mapping[str, str]) -> int:
    """Assign new values to the rows that match, and return how many.

    A row stays in its leaf if its partition values under the spec of that leaf stay the same;
    otherwise it moves to its partition under the newest spec.
    """
    schema = state.properties.schema
    predicate = bind_predicate(where, schema)
    new = bind_assignments(assignments, schema)

    def statement(target: Target) -> int:
        target.depend_on(functools.partial(_find_versions, predicate), replaced=False)
        with SpillBudget() as budget:
            done = edit_leaves(target, list(_plan_edits(target.state, predicate, new)), budget)
            with done.moved:
                return apply_edits(target, done, None, "update", _UPDATE_THE_REST)

    return run(statement)


def _find_versions(predicate: Predicate, state: TableState) -> dict[str, int | None]:
    plan = plan_scan(state, predicate)
    return {
        write.object_id: write.version
        for number, leaves in plan.leaves.items()
        for write in plan_leaf_writes(state, number, leaves, [None] * leaves.num_rows)
    }


def _plan_edits(state: TableState, predicate: Predicate, new: Assignments) -> Iterator[LeafEdit]:
    """Plan the update of each leaf that may have matching rows."""
    plan = plan_scan(state, predicate)
    properties = state.properties
    number = 0
    for spec_id, leaves in plan.leaves.items():
        residuals = plan.residuals[spec_id]
        writes = plan_leaf_writes(state, spec_id, leaves, [None] * leaves.num_rows)
        paths = list_path_values(leaves, state.path_columns)
        for write, place, path in zip(writes, residuals.indices.tolist(), paths, strict=True):
            residual = residuals.predicates[place]
            editor = _make_editor(residual, new, properties.specs[spec_id], path)
            yield LeafEdit(number, write, editor, to_row_schema(properties.schema))
            number += 1


def _make_editor(
    predicate: Predicate, new: Assignments, spec: PartitionSpec, path: PathValues | None
) -> Editor:
    schema = new.schema
    fields = find_affected_fields(spec, schema, new.columns)

    def edit(
        dataset: lance.LanceDataset, fragments: list[lance.LanceFragment] | None
    ) -> Iterator[EditedBatch]:
        found = read_with_addresses(dataset, predicate, schema, schema.names, path, fragments)
        for addresses, rows in found:
            updated = new.apply(rows)
            yield EditedBatch(addresses, updated, find_moved(fields, schema, rows, updated))

    return edit
