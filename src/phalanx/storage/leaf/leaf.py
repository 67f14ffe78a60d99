"""Leaf tables: created with the namespace's field ids, and changed by one commit each."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import lance
import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from lance import LanceDataset, LanceOperation
from lance.fragment import FragmentMetadata, write_fragments

from phalanx.errors import InvalidSchema
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema import arrow_json
from phalanx.model.schema.dictionaries import drop_unused_values, has_dictionaries
from phalanx.model.schema.field_ids import to_json_columns, walk_fields
from phalanx.model.schema.rows import to_row_schema
from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.checksums import data_file_paths, record_checksums
from phalanx.storage.lance.failures import summarize_error
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.forks import mark_lance_used
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import Owner
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.lance.schema import field_ids_of, to_lance_schema
from phalanx.storage.lance.versions import apply_operation
from phalanx.storage.leaf.path_values import PathValues
from phalanx.storage.leaf.reading import read_with_addresses
from phalanx.storage.state.naming import leaf_directory
from phalanx.storage.state.table_state import LeafShape

ROWS_PER_FILE = 1 << 20
_AUTO_CLEANUP = "lance.auto_cleanup."
OFFSET_BITS = np.uint64(32)
OFFSET_MASK = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class FragmentChange:
    """A change of a leaf: the fragments to add, update and remove."""

    new: tuple[FragmentMetadata, ...] = ()
    updated: tuple[FragmentMetadata, ...] = ()
    removed: tuple[int, ...] = ()
    rows_removed: int = field(default=0, compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not (self.new or self.updated or self.removed)

    def to_operation(self) -> LanceOperation.BaseOperation:
        """Return the change as an operation of Lance."""
        if not (self.updated or self.removed):
            return LanceOperation.Append(list(self.new))
        if not self.new:
            return LanceOperation.Delete(list(self.updated), list(self.removed), "phalanx")
        return LanceOperation.Update(
            removed_fragment_ids=list(self.removed),
            updated_fragments=list(self.updated),
            new_fragments=list(self.new),
        )


Deletion = Callable[[lance.LanceDataset], FragmentChange]


def create_leaf(location: Location, schema: Schema) -> int:
    """Create a leaf without rows where no other table is or was. Return its version.

    It appears at once, with the namespace's field ids and the record of its owner. The leaf is a
    clone of a template: only cloning fails, with an `OSError`, for all but one of several creators.
    """
    owner = location.table if location.table is not None and location.table.id else None
    unused = _unused_templates(schema, owner)
    try:
        template = unused.pop()
    except IndexError:
        template = _create_template(schema, owner)
    try:
        options = location.storage_options
        template.deep_clone(location.uri, template.version, storage_options=options)
    finally:
        unused.append(template)
    fault_point(FaultPoint.LEAF_CREATED)
    return int(template.version)


@lru_cache(maxsize=16)
def _unused_templates(schema: Schema, owner: Owner | None) -> list[lance.LanceDataset]:
    """Return templates that no thread is using: Lance clones each in one thread at a time."""
    return []


def _create_template(schema: Schema, owner: Owner | None) -> lance.LanceDataset:
    """Create an empty leaf in memory."""
    rows = to_row_schema(schema).empty_table()
    dataset = lance.write_dataset(rows, f"memory://{uuid.uuid4().hex}")
    if field_ids_of(dataset) != schema.ids:
        projection = LanceOperation.Project(to_lance_schema(schema))
        dataset = LanceDataset.commit(dataset, projection, read_version=dataset.version)
    if owner is not None:
        dataset.update_metadata(dict[str, str | None](owner.to_metadata()))
    return dataset


@dataclass(frozen=True, slots=True)
class LeafCreator:
    """Creates leaves for a single writer, or for the tasks of a job, which share them."""

    job: str | None = None

    def choose_directory(self, object_id: str) -> str:
        """Return a new leaf's directory: unique, and the same for all tasks of a job."""
        if self.job is None:
            return leaf_directory(object_id)
        digest = hashlib.blake2b(f"{self.job}/{object_id}".encode(), digest_size=4)
        return leaf_directory(object_id, digest.hexdigest())

    def create(self, location: Location, schema: Schema) -> int:
        """Create the leaf, unless another task of the job has. Return its version."""
        return (
            create_leaf(location, schema)
            if self.job is None
            else create_leaf_once(location, schema)
        )


def create_leaf_once(location: Location, schema: Schema) -> int:
    """Create a leaf, or return the version of the one that a concurrent task has created."""
    if (found := _find_version(location)) is not None:
        return found
    try:
        return create_leaf(location, schema)
    except OSError:
        if (found := _find_version(location)) is None:
            raise
        return found


def _find_version(location: Location) -> int | None:
    try:
        return int(location.open().version)
    except (OSError, ValueError) as error:
        if "not found" not in str(error).lower():
            raise
        return None


def disable_auto_cleanup(location: Location) -> lance.LanceDataset:
    """Return the newest version of the main branch, with Lance's automatic cleanup disabled.

    The cleanup does not know versions outside the main branch and would remove their files.
    """
    main = location.open_leaf()
    if keys := [key for key in main.config() if key.startswith(_AUTO_CLEANUP)]:
        main.delete_config_keys(keys)
        main = location.open_leaf()
    return main


@lru_cache(maxsize=64)
def check_storable(schema: Schema) -> None:
    """Refuse a schema that Lance cannot store, or can store but not read back."""
    for name in schema.names:
        if "`" in name or name == "*":
            raise InvalidSchema(
                f"Column {name!r} has a name that Lance cannot read back: expected one without "
                "backticks that is not '*'. Rename it."
            )
    for node in walk_fields(to_json_columns(schema.arrow)):
        kind = arrow_json.field_from_json(node.field).type
        if pt.is_struct(kind) and not kind.num_fields:
            raise InvalidSchema(
                f"Column {'.'.join(node.path)!r} is a struct without fields: expected at least "
                "one. Give it a field, or drop it."
            )
        if pt.is_fixed_size_list(kind) and not pt.is_primitive(kind.value_type):
            nested_vector = pt.is_fixed_size_list(kind.value_type)
            if not nested_vector:
                raise InvalidSchema(
                    f"Column {'.'.join(node.path)!r} is {kind}: Lance stores vectors of numbers "
                    "only. Use a list instead."
                )
    rows = to_row_schema(schema).empty_table()
    mark_lance_used()
    try:
        stored = lance.write_dataset(rows, f"memory://{uuid.uuid4().hex}").schema
    except (OSError, ValueError) as error:
        raise InvalidSchema(
            f"Lance cannot store this schema: {summarize_error(error)} "
            "Use another type or name for the column."
        ) from None
    for given, kept in zip(rows.schema, stored, strict=True):
        if given.type != kept.type:
            raise InvalidSchema(
                f"Lance would store column {given.name!r} ({given.type}) as {kept.type}: expected "
                "a type that it preserves. Use another type, without an encoding such as blob."
            )


def write_files(
    dataset: lance.LanceDataset,
    location: Location,
    rows: pa.RecordBatchReader,
    rows_per_file: int = ROWS_PER_FILE,
) -> tuple[FragmentMetadata, ...]:
    """Write the rows into files of the leaf that no version lists yet."""
    if any(has_dictionaries(field.type) for field in rows.schema):
        rows = pa.RecordBatchReader.from_batches(rows.schema, map(drop_unused_values, rows))
    written = write_fragments(
        rows, dataset, max_rows_per_file=rows_per_file, **location.write_options
    )
    record_checksums(location, data_file_paths(written))
    fault_point(FaultPoint.FILES_WRITTEN)
    return tuple(written)


@dataclass(frozen=True, slots=True)
class PreparedChange:
    """A version of a leaf, and the rows to remove from it."""

    dataset: lance.LanceDataset
    change: FragmentChange


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """The number of rows removed, and the versions of main created."""

    removed: int
    versions: tuple[int, ...] = ()


def prepare_change(
    location: Location, shape: LeafShape, deletion: Deletion | None
) -> PreparedChange:
    """Find the rows to remove from the newest version, without committing."""
    dataset = shape.open_newest(location)
    return PreparedChange(dataset, FragmentChange() if deletion is None else deletion(dataset))


def apply_change(
    location: Location,
    fragments: Iterable[FragmentMetadata],
    shape: LeafShape,
    deletion: Deletion | None,
    prepared: PreparedChange,
    *,
    replaces_matching: bool = True,
) -> AppliedChange:
    """Add written files and remove rows on the leaf's main branch, in one commit.

    After a conflict with another writer, the rows to remove are searched again. With
    `replaces_matching` the files replace all matching rows, including those added concurrently.
    """
    new = tuple(fragments)
    overtaken = False
    versions: list[int] = []
    ready: PreparedChange | None = prepared

    def attempt() -> int:
        nonlocal overtaken, ready
        versions.clear()
        if ready is None and not new:
            ready = prepare_change(location, shape, deletion)
        if ready is None:
            # The files were written for the leaf's old schema: do not align it now.
            dataset = location.open_leaf()
            shape.check(dataset, new, location)
            ready = PreparedChange(
                dataset, FragmentChange() if deletion is None else deletion(dataset)
            )
        dataset, found, ready = ready.dataset, ready.change, None
        if new:
            shape.check(dataset, new, location)
        change = FragmentChange((*new, *found.new), found.updated, found.removed)
        if not change.is_empty:
            committed = apply_operation(
                location, dataset, change.to_operation(), commit_message=shape.mark
            )
            overtaken = committed.version > dataset.version + 1
            versions.append(int(committed.version))
        return found.rows_removed

    removed = retry_conflicts(attempt)
    if replaces_matching and overtaken and new and deletion is not None:
        others = _remove_concurrent_rows(location, new, deletion, shape.mark)
        return AppliedChange(removed + others.removed, (*versions, *others.versions))
    return AppliedChange(removed, tuple(versions))


def revert_fragments(
    location: Location, fragments: Iterable[FragmentMetadata], mark: str | None
) -> None:
    """Remove fragments that were just added to the leaf's main branch. Deletes no file."""
    paths = {file.path for fragment in fragments for file in fragment.files}

    def attempt() -> None:
        dataset = location.open_leaf()
        ours = [
            each.fragment_id
            for each in dataset.get_fragments()
            if any(file.path in paths for file in each.metadata.files)
        ]
        if ours:
            LanceDataset.commit(
                dataset,
                FragmentChange(removed=tuple(ours)).to_operation(),
                read_version=dataset.version,
                commit_message=mark,
                **location.write_options,
            )

    retry_conflicts(attempt)


def _remove_concurrent_rows(
    location: Location,
    ours: tuple[FragmentMetadata, ...],
    deletion: Deletion,
    mark: str | None,
) -> AppliedChange:
    """Remove rows that another writer added between reading the leaf and replacing its rows.

    If there was nothing to remove, Lance sees no conflict between two replacements. Rows added
    after ours stay: the last of several replacements wins.
    """
    paths = {file.path for fragment in ours for file in fragment.files}

    def attempt() -> AppliedChange:
        dataset = location.open_leaf()
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        own = [each.id for each in fragments if any(file.path in paths for file in each.files)]
        if not own:
            return AppliedChange(0)
        # Lance numbers fragments in the order of their commits.
        kept = {each.id for each in fragments if each.id >= min(own)}
        found = deletion(dataset)
        change = FragmentChange(
            updated=tuple(each for each in found.updated if each.id not in kept),
            removed=tuple(number for number in found.removed if number not in kept),
        )
        if change.is_empty:
            return AppliedChange(0)
        committed = apply_operation(location, dataset, change.to_operation(), commit_message=mark)
        left = {each.id: each.num_rows for each in change.updated}
        before = {each.id: each.num_rows for each in fragments}
        removed = sum(before[number] - left.get(number, 0) for number in {*left, *change.removed})
        return AppliedChange(removed, (int(committed.version),))

    return retry_conflicts(attempt)


def write_deletions(
    dataset: lance.LanceDataset,
    predicate: Predicate,
    schema: Schema,
    path: PathValues | None = None,
) -> FragmentChange:
    """Write deletion files for the matching rows, and return the change to apply."""
    fragments = dataset.get_fragments()
    if predicate == TRUE:
        removed = tuple(fragment.fragment_id for fragment in fragments)
        return FragmentChange(removed=removed, rows_removed=dataset.count_rows())
    addresses = _find_addresses(dataset, predicate, schema, path)
    return write_deletions_at(dataset, addresses)


def write_deletions_at(dataset: lance.LanceDataset, addresses: np.ndarray) -> FragmentChange:
    """Write deletion files for the rows at these distinct addresses; return the change."""
    addresses = np.sort(addresses)
    numbers = addresses >> OFFSET_BITS
    updated, removed = [], []
    for fragment in dataset.get_fragments():
        number = np.uint64(fragment.fragment_id)
        start, end = np.searchsorted(numbers, number), np.searchsorted(numbers, number, "right")
        offsets = addresses[start:end] & OFFSET_MASK
        if not len(offsets):
            continue
        if len(offsets) == fragment.count_rows():
            removed.append(fragment.fragment_id)
            continue
        changed = fragment.delete_rows(offsets.tolist())
        if changed is None:
            removed.append(fragment.fragment_id)
        else:
            updated.append(changed)
    return FragmentChange((), tuple(updated), tuple(removed), len(addresses))


def _find_addresses(
    dataset: lance.LanceDataset, predicate: Predicate, schema: Schema, path: PathValues | None
) -> np.ndarray:
    """Return the addresses of the matching rows."""
    found = [
        addresses for addresses, _ in read_with_addresses(dataset, predicate, schema, (), path)
    ]
    return np.concatenate([np.empty(0, np.uint64), *found])
