"""A leaf whose schema is older or newer than the namespace's, read and brought in line.

Ids decide: a field the leaf lacks is NULL, one the namespace lacks is left out, one with
another name is renamed, one with a narrower type is cast.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import lance
import pyarrow as pa
import pyarrow.types as pt
from lance import LanceDataset, LanceOperation
from lance.fragment import FragmentMetadata, LanceFragment, write_fragments

from phalanx.errors import CommitConflict
from phalanx.model.schema.field_ids import FIELD_ID
from phalanx.model.schema.rows import copied, plain_schema
from phalanx.model.schema.schema import Schema
from phalanx.storage import commits
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import until_won
from phalanx.storage.lance.scanning import batches_of
from phalanx.storage.lance.schema import is_aligned, lance_schema, schema_of
from phalanx.storage.leaf.adoption import check_renumbering, renumber, renumbered
from phalanx.storage.leaf.fields import check_writable, fields_of, is_numbered_by_place

_FIELD_ID = FIELD_ID.encode()
# What Lance writes in place of the id of a column that another file replaces.
_REPLACED = -2


def reconciled(batch: pa.RecordBatch, leaf: Schema, schema: Schema) -> pa.RecordBatch:
    """The rows of a leaf, all its columns, as the namespace has them.

    `leaf` is the leaf's schema, with the ids of the namespace's fields that its own are.
    """
    by_id = {_id(field): batch.column(field.name) for field in leaf.arrow}
    fields = {_id(field): field for field in leaf.arrow}
    arrays = [
        _reshaped(by_id[_id(field)], fields[_id(field)], field)
        if _id(field) in by_id
        else pa.nulls(batch.num_rows, field.type)
        for field in schema.arrow
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=plain_schema(schema))


def align(
    location: Location,
    schema: Schema,
    check_current: Callable[[], None],
    mark: str | None = None,
) -> lance.LanceDataset:
    """Give the leaf the namespace's schema, if it has another: in one commit, rarely in two.

    A leaf that another writer has just aligned with a newer schema must not be taken back:
    `check_current` raises if the schema is not the namespace's any more.
    """

    def attempt() -> lance.LanceDataset:
        dataset = location.open_leaf()
        if is_aligned(dataset, schema):
            return dataset
        # After the leaf was opened: a change that comes later conflicts with the commit.
        check_current()
        check_alignable(location, dataset, schema)
        if is_numbered_by_place(schema_of(dataset), schema):
            return renumber(dataset, schema, location, mark)
        return _toward(location, dataset, schema, max_retries=0, commit_message=mark)

    return until_won(attempt)


@dataclasses.dataclass(frozen=True, slots=True)
class AlignedLeaves:
    """Leaves that have exactly the namespace's fields: ids, names, types, order."""

    schema: Schema
    check_current: Callable[[], None]
    mark: str | None = None

    def opened(self, location: Location) -> lance.LanceDataset:
        """The newest version of a leaf, after it was aligned where it had to be."""
        return align(location, self.schema, self.check_current, self.mark)

    def check(
        self, dataset: lance.LanceDataset, files: Sequence[FragmentMetadata], location: Location
    ) -> None:
        """Refuse files written under a schema that the leaf no longer has."""
        check_ids(dataset, self.schema, location)


def check_ids(dataset: lance.LanceDataset, schema: Schema, location: Location) -> None:
    """Refuse files written under a schema that the leaf no longer has."""
    if not is_aligned(dataset, schema):
        raise CommitConflict(
            f"Cannot write to {location}: the table's schema was changed meanwhile. "
            "Open the table anew, and write again."
        )


def aligned(
    location: Location, dataset: lance.LanceDataset, schema: Schema, *, is_ours: bool = False
) -> lance.LanceDataset:
    """A version of the leaf with the namespace's schema, detached if it had to be made.

    A version that `is_ours` is of a snapshot: its ids were the namespace's when it was made,
    whatever columns have been called since.
    """
    if is_aligned(dataset, schema):
        return dataset
    if not is_ours:
        check_alignable(location, dataset, schema)
        if is_numbered_by_place(schema_of(dataset), schema):
            return renumbered(dataset, schema, location)
    made = _toward(location, dataset, schema, detached=True)
    reach(Step.LEAF_ALIGNED)
    return made


def check_alignable(location: Location, dataset: lance.LanceDataset, schema: Schema) -> None:
    """Refuse a leaf that cannot be given the namespace's schema, before anything is changed."""
    if is_aligned(dataset, schema):
        return
    if is_numbered_by_place(schema_of(dataset), schema):
        check_renumbering(dataset, schema, location)
    else:
        check_writable(fields_of(dataset, schema, location), schema, location)


def _toward(
    location: Location, dataset: lance.LanceDataset, schema: Schema, **how: Any
) -> lance.LanceDataset:
    """The leaf after the commits that give it the namespace's schema.

    Between two of them it has the namespace's fields, of which readers know the ids.
    """
    apart = _with_names_apart(schema, schema_of(dataset))
    for goal in (schema,) if apart is schema else (apart, schema):
        dataset = commits.commit(location, dataset, _alignment(dataset, goal), **how)
    return dataset


def _with_names_apart(schema: Schema, leaf: Schema) -> Schema:
    """The schema with a passing name for each field whose name another field has in the leaf.

    Lance lets no name pass from one field to another in a single commit.
    """
    taken = {path: number for number in leaf.ids if (path := leaf.path_of(number)) is not None}
    used = {name for each in (leaf, schema) for name in _all_names(each)}
    for number in schema.ids:
        path = schema.path_of(number)
        if path is not None and taken.get(path, number) != number:
            passing = f"{path[-1]}_{number}"
            while passing in used:
                passing += "_"
            schema = schema.rename(path, passing)
    return schema


def _all_names(schema: Schema) -> Iterator[str]:
    for number in schema.ids:
        yield from schema.path_of(number) or ()


def _alignment(dataset: lance.LanceDataset, schema: Schema) -> LanceOperation.BaseOperation:
    """What gives a leaf the namespace's schema."""
    leaf = schema_of(dataset)
    promoted = [name for name in schema.names if _is_promoted(name, leaf, schema)]
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    if promoted:
        fragments = list(_promoted(dataset, leaf, schema, promoted))
    return LanceOperation.Merge(fragments, lance_schema(schema, dataset))


def _id(field: pa.Field) -> int:
    return int(field.metadata[_FIELD_ID])


def _reshaped(array: pa.Array, leaf: pa.Field, field: pa.Field) -> pa.Array:
    kind = field.type
    if not pt.is_nested(kind):
        return array.cast(kind) if array.type != kind else array
    if array.offset:
        # Arrow builds no nested array with NULLs from a slice.
        array = copied(array)
    mask = array.is_null() if array.null_count else None
    if pt.is_struct(kind):
        children = {_id(child): (place, child) for place, child in enumerate(leaf.type)}
        parts = []
        for child in kind:
            if _id(child) in children:
                place, old = children[_id(child)]
                parts.append(_reshaped(array.field(place), old, child))
            else:
                parts.append(pa.nulls(len(array), child.type))
        # Given as they are: a child that is not nullable may have no value under a NULL struct.
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if (pt.is_list(kind) or pt.is_large_list(kind)) and pt.is_nested(kind.value_type):
        values = _reshaped(array.values, leaf.type.value_field, kind.value_field)
        build = pa.LargeListArray if pt.is_large_list(kind) else pa.ListArray
        return build.from_arrays(array.offsets, values, type=kind, mask=mask)
    return array.cast(kind) if array.type != kind else array


def _is_promoted(name: str, leaf: Schema, schema: Schema) -> bool:
    """Whether a field in this column is stored in a narrower type."""
    column = schema.arrow.field(name)
    return any(
        leaf_type is not None and not pt.is_nested(kind) and leaf_type != kind
        for kind, leaf_type in (
            (kind, _type_in(leaf, field_id)) for field_id, kind in _types(column)
        )
    )


def _types(field: pa.Field) -> Iterator[tuple[int, pa.DataType]]:
    if field.metadata and _FIELD_ID in field.metadata:
        yield _id(field), field.type
    kind = field.type
    for place in range(kind.num_fields):
        yield from _types(kind.field(place))


def _type_in(leaf: Schema, field_id: int) -> pa.DataType | None:
    return leaf.type_of(field_id) if field_id in leaf.ids else None


def _promoted(
    dataset: lance.LanceDataset, leaf: Schema, schema: Schema, names: list[str]
) -> Iterator[FragmentMetadata]:
    """The fragments, each with one more file that holds the columns in their wider types."""
    # A detached version lends its ids to the files that are written against it. It has these
    # columns only: Lance would ask for every other one that is not nullable.
    widened = Schema.of(pa.schema([schema.arrow.field(name) for name in names]))
    staged = LanceDataset.commit(
        dataset,
        LanceOperation.Project(lance_schema(widened, dataset)),
        read_version=dataset.version,
        detached=True,
    )
    wider = pa.schema([plain_schema(schema).field(name) for name in names])
    sources = [leaf.path_of(schema.id_of((name,))) for name in names]
    stored = [path[0] for path in sources if path is not None]
    for fragment in dataset.get_fragments():
        rows = _rows_of(dataset, fragment, stored)
        batches = (
            pa.RecordBatch.from_arrays(
                [
                    _reshaped(batch.column(old), leaf.arrow.field(old), schema.arrow.field(new))
                    for old, new in zip(stored, names, strict=True)
                ],
                schema=wider,
            )
            for batch in rows
        )
        (new,) = write_fragments(
            pa.RecordBatchReader.from_batches(wider, batches),
            staged,
            max_rows_per_file=1 << 31,
            max_bytes_per_file=1 << 62,
        )
        reach(Step.FILES_WRITTEN)
        yield _with_replaced(fragment.metadata, new)


def _rows_of(
    dataset: lance.LanceDataset, fragment: LanceFragment, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """All rows of a fragment, deleted ones too: files of one fragment have equal lengths."""
    yield from batches_of(
        dataset,
        fragments=[fragment],
        columns=columns,
        with_row_id=True,
        include_deleted_rows=True,
        scan_in_order=True,
    )


def _with_replaced(old: FragmentMetadata, new: FragmentMetadata) -> FragmentMetadata:
    assert new.physical_rows == old.physical_rows
    replaced = {field_id for file in new.files for field_id in file.fields}
    kept = []
    for file in map(copy.copy, old.files):
        file.fields = [_REPLACED if number in replaced else number for number in file.fields]
        if any(number >= 0 for number in file.fields):
            kept.append(file)
    return dataclasses.replace(old, files=[*kept, *new.files])
