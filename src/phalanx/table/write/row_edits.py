"""Rows that other rows replace, wherever they are: what updates and merges have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.model.schema.grouping import group
from phalanx.model.schema.rows import plain_schema
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import keyed
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.planning.pruning.fields import bound_fields
from phalanx.storage.commit.leaf_edits import ADDRESS, LEAF, EditedLeaf, LeafEdit, moved_schema
from phalanx.storage.commit.writing import LeafWrite, Replacement
from phalanx.storage.lance.parallel import WRITE_THREADS, in_parallel
from phalanx.storage.streams.shuffle import Shuffled, shuffle
from phalanx.storage.streams.spill_buffer import Shelf
from phalanx.table.write.incoming_rows import Arriving, LocalRows, Target


@dataclass(frozen=True, slots=True)
class EditedRows:
    """What became of all leaves, and the rows that move, by their partition."""

    leaves: tuple[EditedLeaf, ...]
    moved: Shuffled

    @property
    def rows(self) -> int:
        """How many rows are gone."""
        return sum(each.rows for each in self.leaves)


def edited(target: Target, edits: Sequence[LeafEdit], shelf: Shelf) -> EditedRows:
    """Find the rows, and write those that stay where they are; nothing is committed."""

    def run(edit: LeafEdit) -> EditedLeaf:
        write = edit.write
        return edit.run(target.open_leaf(write.location, write.version), shelf)

    done = tuple(in_parallel(run, edits, WRITE_THREADS))
    properties = target.manifest.properties
    schema, spec = properties.schema, properties.spec
    moved = shuffle(
        (batch for each in done if each.moved is not None for batch in each.moved.batches()),
        moved_schema(plain_schema(schema)),
        lambda rows: keyed(spec, rows, schema),
        in_memory=False,
    )
    return EditedRows(done, moved)


def committed(
    target: Target, done: EditedRows, inserted: Arriving | None, operation: str, repair: str
) -> int:
    """Commit what was edited, moved and inserted; the number of rows that are gone."""
    brought = _moved_in(target, done)
    by_uri: dict[str, LeafWrite] = {write.location.uri: write for write in brought}
    if inserted is not None and inserted.rows:
        for write in inserted.arrive(target):
            known = by_uri.setdefault(write.location.uri, write)
            by_uri[write.location.uri] = replace(known, fragments=write.fragments)
    for each in done.leaves:
        if not each.rows:
            continue
        uri = each.edit.write.location.uri
        other = by_uri.get(uri)
        moved = () if other is None else other.moved
        write = each.write({file.path for fragment in moved for file in fragment.files})
        if other is not None:
            write = replace(
                write,
                fragments=other.fragments,
                moved=moved,
                replacements=(*write.replacements, *other.replacements),
            )
        by_uri[uri] = write
    return target.commit(list(by_uri.values()), operation, repair)


def _moved_in(target: Target, done: EditedRows) -> list[LeafWrite]:
    """The rows that move, in files of the leaves that they belong to."""
    if not done.moved.rows:
        return []
    names = tuple(each.edit.write.object_id for each in done.leaves)
    found = []
    for place, write in enumerate(LocalRows(done.moved).arrive(target)):
        old = done.moved.reader(place, (LEAF, ADDRESS)).read_all()
        old = old.rename_columns(["leaf", "address"])
        replacement = Replacement(write.fragments, names, old)
        found.append(
            replace(write, fragments=(), moved=write.fragments, replacements=(replacement,))
        )
    return found


def changing_fields(
    spec: PartitionSpec, schema: Schema, columns: frozenset[str]
) -> tuple[PartitionField, ...]:
    """The fields of a spec whose values may change if these columns do."""
    return tuple(
        bound.field
        for bound in bound_fields(spec, schema)
        if any(path is not None and path[0] in columns for path in bound.sources)
    )


def moves(
    fields: Sequence[PartitionField], schema: Schema, old: pa.RecordBatch, new: pa.RecordBatch
) -> npt.NDArray[np.bool_] | None:
    """Which rows are of another partition than before, by fields of the spec that they are under.

    None where none are.
    """
    if not fields:
        return None
    changed = np.zeros(old.num_rows, dtype=bool)
    for field in fields:
        values = [field.apply(rows, schema) for rows in (old, new)]
        both = group(pa.table({"value": pa.chunked_array(values)}), 2 * old.num_rows)
        changed |= both.codes[: old.num_rows] != both.codes[old.num_rows :]
    return changed if changed.any() else None
