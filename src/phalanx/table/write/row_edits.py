"""Row replacement, shared by update and merge: edit leaves, and move rows between partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.model.schema.grouping import group_rows
from phalanx.model.schema.rows import to_row_schema
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import group_by_partition
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.planning.pruning.fields import bind_fields
from phalanx.storage.commit.leaf_edits import (
    ORIGIN_ADDRESS,
    ORIGIN_LEAF,
    EditedLeaf,
    LeafEdit,
    with_origin_columns,
)
from phalanx.storage.commit.writing import LeafWrite, RowReplacement
from phalanx.storage.lance.parallel import WRITE_THREADS, map_parallel
from phalanx.storage.streams.shuffle import ShuffledRows, shuffle
from phalanx.storage.streams.spill_buffer import SpillBudget
from phalanx.table.write.incoming_rows import IncomingRows, LocalRows, Target


@dataclass(frozen=True, slots=True)
class EditedRows:
    """The edited leaves, and the rows that move, by partition."""

    leaves: tuple[EditedLeaf, ...]
    moved: ShuffledRows

    @property
    def rows(self) -> int:
        """The number of rows removed."""
        return sum(each.rows_removed for each in self.leaves)


def edit_leaves(target: Target, edits: Sequence[LeafEdit], budget: SpillBudget) -> EditedRows:
    """Find the rows, and write those that stay in their leaf; nothing is applied yet."""

    def run(edit: LeafEdit) -> EditedLeaf:
        write = edit.write
        return edit.run(target.open_leaf(write.location, write.version), budget)

    done = tuple(map_parallel(run, edits, WRITE_THREADS))
    properties = target.state.properties
    schema, spec = properties.schema, properties.spec
    moved = shuffle(
        (
            batch
            for each in done
            if each.moved_rows is not None
            for batch in each.moved_rows.read_batches()
        ),
        with_origin_columns(to_row_schema(schema)),
        lambda rows: group_by_partition(spec, rows, schema),
        in_memory=False,
    )
    return EditedRows(done, moved)


def apply_edits(
    target: Target, done: EditedRows, inserted: IncomingRows | None, operation: str, advice: str
) -> int:
    """Apply the edited, moved and inserted rows, and return the number of rows removed."""
    moved_writes = _stage_moved(target, done)
    by_uri: dict[str, LeafWrite] = {write.location.uri: write for write in moved_writes}
    if inserted is not None and inserted.rows:
        for write in inserted.stage(target):
            known = by_uri.setdefault(write.location.uri, write)
            by_uri[write.location.uri] = replace(known, fragments=write.fragments)
    for each in done.leaves:
        if not each.rows_removed:
            continue
        uri = each.edit.write.location.uri
        other = by_uri.get(uri)
        moved = () if other is None else other.moved_in
        write = each.to_leaf_write({file.path for fragment in moved for file in fragment.files})
        if other is not None:
            write = replace(
                write,
                fragments=other.fragments,
                moved_in=moved,
                replacements=(*write.replacements, *other.replacements),
            )
        by_uri[uri] = write
    return target.apply(list(by_uri.values()), operation, advice)


def _stage_moved(target: Target, done: EditedRows) -> list[LeafWrite]:
    """Stage the rows that move as files of their new leaves."""
    if not done.moved.rows:
        return []
    names = tuple(each.edit.write.object_id for each in done.leaves)
    found = []
    for place, write in enumerate(LocalRows(done.moved).stage(target)):
        old = done.moved.read_partition(place, (ORIGIN_LEAF, ORIGIN_ADDRESS)).read_all()
        old = old.rename_columns(["leaf", "address"])
        replacement = RowReplacement(write.fragments, names, old)
        found.append(
            replace(write, fragments=(), moved_in=write.fragments, replacements=(replacement,))
        )
    return found


def find_affected_fields(
    spec: PartitionSpec, schema: Schema, columns: frozenset[str]
) -> tuple[PartitionField, ...]:
    """Return the fields of a spec whose values may change if these columns do."""
    return tuple(
        bound.field
        for bound in bind_fields(spec, schema)
        if any(path is not None and path[0] in columns for path in bound.sources)
    )


def find_moved(
    fields: Sequence[PartitionField], schema: Schema, old: pa.RecordBatch, new: pa.RecordBatch
) -> npt.NDArray[np.bool_] | None:
    """Return which rows belong to another partition than before, by these fields of their spec.

    Returns None if none does.
    """
    if not fields:
        return None
    changed = np.zeros(old.num_rows, dtype=bool)
    for field in fields:
        values = [field.apply(rows, schema) for rows in (old, new)]
        both = group_rows(pa.table({"value": pa.chunked_array(values)}), 2 * old.num_rows)
        changed |= both.codes[: old.num_rows] != both.codes[old.num_rows :]
    return changed if changed.any() else None
