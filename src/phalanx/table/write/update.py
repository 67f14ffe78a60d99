"""Updates: rows that match get new values, and go where they belong then."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import lance

from phalanx.model.predicates.assignments import Assignments, bind_assignments
from phalanx.model.predicates.binding import bind
from phalanx.model.predicates.predicate import Predicate
from phalanx.model.schema.rows import plain_schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.storage.commit.leaf_edits import Edited, Editor, LeafEdit
from phalanx.storage.commit.writing import leaf_writes
from phalanx.storage.leaf.path_values import PathValues, path_values
from phalanx.storage.leaf.reading import addressed
from phalanx.storage.state.table_state import LeafListing
from phalanx.storage.streams.spill_buffer import Shelf
from phalanx.table.read.scan import plan_of
from phalanx.table.write.incoming_rows import Target
from phalanx.table.write.operations import Run
from phalanx.table.write.row_edits import changing_fields, committed, edited, moves

_CHOOSE_THE_REST = (
    "Rows that were updated may match again: call it again with a `where` that chooses only "
    "partitions that were not written."
)


def update(manifest: LeafListing, run: Run, where: str, assignments: Mapping[str, str]) -> int:
    """Give the rows that match new values; returns how many.

    A row stays in its leaf while its partition values, under the spec of that leaf, are the same;
    else it goes to its partition under the newest spec.
    """
    schema = manifest.properties.schema
    predicate = bind(where, schema)
    new = bind_assignments(assignments, schema)

    def statement(target: Target) -> int:
        target.depend_on(functools.partial(_footprint, predicate), replaced=False)
        with Shelf() as shelf:
            done = edited(target, list(_edits(target.manifest, predicate, new)), shelf)
            with done.moved:
                return committed(target, done, None, "update", _CHOOSE_THE_REST)

    return run(statement)


def _footprint(predicate: Predicate, manifest: LeafListing) -> dict[str, int | None]:
    plan = plan_of(manifest, predicate)
    return {
        write.object_id: write.version
        for number, leaves in plan.leaves.items()
        for write in leaf_writes(manifest, number, leaves, [None] * leaves.num_rows)
    }


def _edits(manifest: LeafListing, predicate: Predicate, new: Assignments) -> Iterator[LeafEdit]:
    """The update of every leaf that may have matching rows."""
    plan = plan_of(manifest, predicate)
    properties = manifest.properties
    number = 0
    for spec_id, leaves in plan.leaves.items():
        residuals = plan.residuals[spec_id]
        writes = leaf_writes(manifest, spec_id, leaves, [None] * leaves.num_rows)
        paths = path_values(leaves, manifest.path_columns)
        for write, place, path in zip(writes, residuals.places.tolist(), paths, strict=True):
            residual = residuals.predicates[place]
            editor = _editor(residual, new, properties.specs[spec_id], path)
            yield LeafEdit(number, write, editor, plain_schema(properties.schema))
            number += 1


def _editor(
    predicate: Predicate, new: Assignments, spec: PartitionSpec, path: PathValues | None
) -> Editor:
    schema = new.schema
    fields = changing_fields(spec, schema, new.columns)

    def edit(
        dataset: lance.LanceDataset, fragments: list[lance.LanceFragment] | None
    ) -> Iterator[Edited]:
        found = addressed(dataset, predicate, schema, schema.names, path, fragments)
        for addresses, rows in found:
            updated = new.applied(rows)
            yield Edited(addresses, updated, moves(fields, schema, rows, updated))

    return edit
