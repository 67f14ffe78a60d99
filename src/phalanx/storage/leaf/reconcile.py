"""Leaves whose schema is older or newer than the namespace's: how they are read and aligned.

Field ids decide. A field that the leaf lacks is NULL, one that the namespace lacks is omitted, one
with another name is renamed, and one with a narrower type is cast.
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
from phalanx.model.schema.rows import copy_array, to_row_schema
from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.lance.scanning import scan_batches
from phalanx.storage.lance.schema import is_aligned, read_lance_schema, to_lance_schema
from phalanx.storage.lance.versions import apply_operation
from phalanx.storage.leaf.adoption import check_renumbering, renumber_fields, stage_renumbered
from phalanx.storage.leaf.fields import check_leaf_writable, is_numbered_by_position, resolve_fields

_FIELD_ID = FIELD_ID.encode()
# The id that Lance writes for a column that another file replaces.
_REPLACED = -2


def reconcile_batch(batch: pa.RecordBatch, leaf: Schema, schema: Schema) -> pa.RecordBatch:
    """Return all columns of a leaf's rows under the namespace's schema.

    `leaf` is the leaf's schema with the field ids of the namespace, from `fields.resolve_fields`.
    """
    by_id = {_field_id(field): batch.column(field.name) for field in leaf.arrow}
    fields = {_field_id(field): field for field in leaf.arrow}
    arrays = [
        _reconcile_array(by_id[_field_id(field)], fields[_field_id(field)], field)
        if _field_id(field) in by_id
        else pa.nulls(batch.num_rows, field.type)
        for field in schema.arrow
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=to_row_schema(schema))


def align_leaf(
    location: Location,
    schema: Schema,
    check_current: Callable[[], None],
    mark: str | None = None,
) -> lance.LanceDataset:
    """Give the leaf the namespace's schema, if it has another, in one or rarely two commits.

    A leaf that another writer has just aligned with a newer schema must not be reverted:
    `check_current` raises if the schema is no longer the namespace's.
    """

    def attempt() -> lance.LanceDataset:
        dataset = location.open_leaf()
        if is_aligned(dataset, schema):
            return dataset
        # Only now that the leaf is open: a later schema change conflicts with the commit.
        check_current()
        check_alignable(location, dataset, schema)
        if is_numbered_by_position(read_lance_schema(dataset), schema):
            return renumber_fields(dataset, schema, location, mark)
        return _apply_alignment(location, dataset, schema, max_retries=0, commit_message=mark)

    return retry_conflicts(attempt)


@dataclasses.dataclass(frozen=True, slots=True)
class AlignedLeaves:
    """Leaves that must have exactly the namespace's fields: ids, names, types, order."""

    schema: Schema
    check_current: Callable[[], None]
    mark: str | None = None

    def open_newest(self, location: Location) -> lance.LanceDataset:
        """Open the newest version of a leaf, after aligning it if needed."""
        return align_leaf(location, self.schema, self.check_current, self.mark)

    def check(
        self, dataset: lance.LanceDataset, files: Sequence[FragmentMetadata], location: Location
    ) -> None:
        """Refuse files written under a schema that the leaf no longer has."""
        check_aligned(dataset, self.schema, location)


def check_aligned(dataset: lance.LanceDataset, schema: Schema, location: Location) -> None:
    """Refuse files written under a schema that the leaf no longer has."""
    if not is_aligned(dataset, schema):
        raise CommitConflict(
            f"Cannot write to {location}: another writer changed its schema meanwhile. Look at the "
            "table as it is now, and write again."
        )


def stage_aligned(
    location: Location, dataset: lance.LanceDataset, schema: Schema, *, is_ours: bool = False
) -> lance.LanceDataset:
    """Return a version of the leaf with the namespace's schema, detached if it is a new one.

    A version that `is_ours` belongs to a snapshot: its field ids were the namespace's when it was
    created, regardless of later renames of columns.
    """
    if is_aligned(dataset, schema):
        return dataset
    if not is_ours:
        check_alignable(location, dataset, schema)
        if is_numbered_by_position(read_lance_schema(dataset), schema):
            return stage_renumbered(dataset, schema, location)
    made = _apply_alignment(location, dataset, schema, detached=True)
    fault_point(FaultPoint.LEAF_ALIGNED)
    return made


def check_alignable(location: Location, dataset: lance.LanceDataset, schema: Schema) -> None:
    """Refuse a leaf that cannot get the namespace's schema, before anything changes."""
    if is_aligned(dataset, schema):
        return
    if is_numbered_by_position(read_lance_schema(dataset), schema):
        check_renumbering(dataset, schema, location)
    else:
        check_leaf_writable(resolve_fields(dataset, schema, location), schema, location)


def _apply_alignment(
    location: Location, dataset: lance.LanceDataset, schema: Schema, **options: Any
) -> lance.LanceDataset:
    """Commit what gives the leaf the namespace's schema, and return the new version.

    Between two commits the leaf has the namespace's fields under other names; readers go by ids.
    """
    distinct = _with_distinct_names(schema, read_lance_schema(dataset))
    for goal in (schema,) if distinct is schema else (distinct, schema):
        dataset = apply_operation(location, dataset, _alignment_operation(dataset, goal), **options)
    return dataset


def _with_distinct_names(schema: Schema, leaf: Schema) -> Schema:
    """Return the schema with temporary names for fields whose name another field has in the leaf.

    Lance cannot pass a name from one field to another in a single commit.
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


def _alignment_operation(
    dataset: lance.LanceDataset, schema: Schema
) -> LanceOperation.BaseOperation:
    """Return the operation that gives a leaf the namespace's schema."""
    leaf = read_lance_schema(dataset)
    promoted = [name for name in schema.names if _is_promoted(name, leaf, schema)]
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    if promoted:
        fragments = list(_promote_fragments(dataset, leaf, schema, promoted))
    return LanceOperation.Merge(fragments, to_lance_schema(schema, dataset))


def _field_id(field: pa.Field) -> int:
    return int(field.metadata[_FIELD_ID])


def _reconcile_array(array: pa.Array, leaf: pa.Field, field: pa.Field) -> pa.Array:
    kind = field.type
    if not pt.is_nested(kind):
        return array.cast(kind) if array.type != kind else array
    if array.offset:
        # Arrow cannot build a nested array with NULLs from a slice.
        array = copy_array(array)
    mask = array.is_null() if array.null_count else None
    if pt.is_struct(kind):
        children = {_field_id(child): (position, child) for position, child in enumerate(leaf.type)}
        parts = []
        for child in kind:
            if _field_id(child) in children:
                position, old = children[_field_id(child)]
                parts.append(_reconcile_array(array.field(position), old, child))
            else:
                parts.append(pa.nulls(len(array), child.type))
        # Use the fields unchanged: a non-nullable child may have no value in a NULL struct.
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if (pt.is_list(kind) or pt.is_large_list(kind)) and pt.is_nested(kind.value_type):
        values = _reconcile_array(array.values, leaf.type.value_field, kind.value_field)
        build = pa.LargeListArray if pt.is_large_list(kind) else pa.ListArray
        return build.from_arrays(array.offsets, values, type=kind, mask=mask)
    return array.cast(kind) if array.type != kind else array


def _is_promoted(name: str, leaf: Schema, schema: Schema) -> bool:
    """Whether the leaf stores a field of this column in a narrower type."""
    column = schema.arrow.field(name)
    return any(
        leaf_type is not None and not pt.is_nested(kind) and leaf_type != kind
        for kind, leaf_type in (
            (kind, _type_of(leaf, field_id)) for field_id, kind in _field_types(column)
        )
    )


def _field_types(field: pa.Field) -> Iterator[tuple[int, pa.DataType]]:
    if field.metadata and _FIELD_ID in field.metadata:
        yield _field_id(field), field.type
    kind = field.type
    for position in range(kind.num_fields):
        yield from _field_types(kind.field(position))


def _type_of(leaf: Schema, field_id: int) -> pa.DataType | None:
    return leaf.type_of(field_id) if field_id in leaf.ids else None


def _promote_fragments(
    dataset: lance.LanceDataset, leaf: Schema, schema: Schema, names: list[str]
) -> Iterator[FragmentMetadata]:
    """Yield the fragments, each with a new file that holds the columns in wider types."""
    # Files get the field ids of the version that they are written against. This one has only these
    # columns, because Lance requires every column that is not nullable.
    widened = Schema.of(pa.schema([schema.arrow.field(name) for name in names]))
    staged = LanceDataset.commit(
        dataset,
        LanceOperation.Project(to_lance_schema(widened, dataset)),
        read_version=dataset.version,
        detached=True,
    )
    wider = pa.schema([to_row_schema(schema).field(name) for name in names])
    sources = [leaf.path_of(schema.id_of((name,))) for name in names]
    stored = [path[0] for path in sources if path is not None]
    for fragment in dataset.get_fragments():
        rows = _scan_fragment(dataset, fragment, stored)
        batches = (
            pa.RecordBatch.from_arrays(
                [
                    _reconcile_array(
                        batch.column(old), leaf.arrow.field(old), schema.arrow.field(new)
                    )
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
        fault_point(FaultPoint.FILES_WRITTEN)
        yield _replace_columns(fragment.metadata, new)


def _scan_fragment(
    dataset: lance.LanceDataset, fragment: LanceFragment, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a fragment, including deleted ones.

    All files of a fragment have the same length.
    """
    yield from scan_batches(
        dataset,
        fragments=[fragment],
        columns=columns,
        with_row_id=True,
        include_deleted_rows=True,
        scan_in_order=True,
    )


def _replace_columns(old: FragmentMetadata, new: FragmentMetadata) -> FragmentMetadata:
    assert new.physical_rows == old.physical_rows
    replaced = {field_id for file in new.files for field_id in file.fields}
    kept = []
    for file in map(copy.copy, old.files):
        file.fields = [_REPLACED if number in replaced else number for number in file.fields]
        if any(number >= 0 for number in file.fields):
            kept.append(file)
    return dataclasses.replace(old, files=[*kept, *new.files])
