"""Leaf tables: made with the namespace's field ids, and changed by one commit each."""

from __future__ import annotations

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
from phalanx.model.schema.dictionaries import has_dictionaries, with_own_values
from phalanx.model.schema.field_ids import columns_of, walk
from phalanx.model.schema.rows import plain_schema
from phalanx.model.schema.schema import Schema
from phalanx.storage import commits
from phalanx.storage.lance.checksums import data_files, record
from phalanx.storage.lance.failures import plain_reason
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.forks import use_lance
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import Owner
from phalanx.storage.lance.retries import until_won
from phalanx.storage.lance.schema import ids_of, lance_schema
from phalanx.storage.leaf.path_values import PathValues
from phalanx.storage.leaf.reading import addressed
from phalanx.storage.state.table_state import LeafShape

ROWS_PER_FILE = 1 << 20
_AUTO_CLEANUP = "lance.auto_cleanup."
OFFSET_BITS = np.uint64(32)
OFFSET_MASK = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Change:
    """What one commit does to a leaf: fragments that come, change and go."""

    new: tuple[FragmentMetadata, ...] = ()
    updated: tuple[FragmentMetadata, ...] = ()
    removed: tuple[int, ...] = ()
    rows_removed: int = field(default=0, compare=False)

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.new or self.updated or self.removed)

    def operation(self) -> LanceOperation.BaseOperation:
        """The change as Lance's transaction."""
        if not (self.updated or self.removed):
            return LanceOperation.Append(list(self.new))
        if not self.new:
            return LanceOperation.Delete(list(self.updated), list(self.removed), "phalanx")
        return LanceOperation.Update(
            removed_fragment_ids=list(self.removed),
            updated_fragments=list(self.updated),
            new_fragments=list(self.new),
        )


Deletion = Callable[[lance.LanceDataset], Change]


def create(location: Location, schema: Schema) -> int:
    """A leaf without rows, where no other table is or was; its version.

    It is there at once, with the namespace's field ids and the record of its owner. A clone is
    also the only exclusive way: of several that make the same leaf all but one get an `OSError`.
    """
    owner = location.table if location.table is not None and location.table.id else None
    unused = _templates(schema, owner)
    try:
        template = unused.pop()
    except IndexError:
        template = _template(schema, owner)
    try:
        options = location.storage_options
        template.deep_clone(location.uri, template.version, storage_options=options)
    finally:
        unused.append(template)
    reach(Step.LEAF_CREATED)
    return int(template.version)


@lru_cache(maxsize=16)
def _templates(schema: Schema, owner: Owner | None) -> list[lance.LanceDataset]:
    """Templates that no thread is using: Lance clones each for one thread at a time."""
    return []


def _template(schema: Schema, owner: Owner | None) -> lance.LanceDataset:
    """A leaf without rows in memory."""
    rows = plain_schema(schema).empty_table()
    dataset = lance.write_dataset(rows, f"memory://{uuid.uuid4().hex}")
    if ids_of(dataset) != schema.ids:
        projection = LanceOperation.Project(lance_schema(schema))
        dataset = LanceDataset.commit(dataset, projection, read_version=dataset.version)
    if owner is not None:
        dataset.update_metadata(dict[str, str | None](owner.to_metadata()))
    return dataset


def keep_versions(location: Location) -> lance.LanceDataset:
    """The newest version of the main branch, on which Lance removes no old versions by itself.

    It knows nothing of versions that are not on the main branch, and removes their files.
    """
    main = location.open_leaf()
    if keys := [key for key in main.config() if key.startswith(_AUTO_CLEANUP)]:
        main.delete_config_keys(keys)
        main = location.open_leaf()
    return main


@lru_cache(maxsize=64)
def check_storable(schema: Schema) -> None:
    """Refuse a schema that Lance cannot store, or can store and not read."""
    for name in schema.names:
        if "`" in name or name == "*":
            raise InvalidSchema(
                f"Column {name!r} has a name that Lance cannot read back: expected one without "
                "backticks, and not '*'. Rename it."
            )
    for node in walk(columns_of(schema.arrow)):
        kind = arrow_json.field_from_json(node.field).type
        if pt.is_struct(kind) and not kind.num_fields:
            raise InvalidSchema(
                f"Column {'.'.join(node.place)!r} is a struct without fields: expected at least "
                "one. Give it a field, or drop it."
            )
        if pt.is_fixed_size_list(kind) and not pt.is_primitive(kind.value_type):
            nested_vector = pt.is_fixed_size_list(kind.value_type)
            if not nested_vector:
                raise InvalidSchema(
                    f"Column {'.'.join(node.place)!r} is {kind}: Lance stores vectors of numbers "
                    "only. Use a list instead."
                )
    rows = plain_schema(schema).empty_table()
    use_lance()
    try:
        stored = lance.write_dataset(rows, f"memory://{uuid.uuid4().hex}").schema
    except (OSError, ValueError) as error:
        raise InvalidSchema(
            f"Lance cannot store this schema: {plain_reason(error)} "
            "Use another type or name for the column."
        ) from None
    for given, kept in zip(rows.schema, stored, strict=True):
        if given.type != kept.type:
            raise InvalidSchema(
                f"Lance would store column {given.name!r} ({given.type}) as {kept.type}: expected "
                "a type that it keeps. Use another one, and no special encoding such as blob."
            )


def write(
    dataset: lance.LanceDataset,
    location: Location,
    rows: pa.RecordBatchReader,
    rows_per_file: int = ROWS_PER_FILE,
) -> tuple[FragmentMetadata, ...]:
    """Write the rows into files of the leaf that no version lists yet."""
    if any(has_dictionaries(field.type) for field in rows.schema):
        rows = pa.RecordBatchReader.from_batches(rows.schema, map(with_own_values, rows))
    written = write_fragments(
        rows, dataset, max_rows_per_file=rows_per_file, **location.write_options
    )
    record(location, data_files(written))
    reach(Step.FILES_WRITTEN)
    return tuple(written)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A version of a leaf, and the rows to remove from it."""

    dataset: lance.LanceDataset
    found: Change


@dataclass(frozen=True, slots=True)
class Done:
    """What a change did to a leaf: how many rows went, and the versions of main that it made."""

    removed: int
    versions: tuple[int, ...] = ()


def prepare(location: Location, shape: LeafShape, deletion: Deletion | None) -> Prepared:
    """Find the rows to remove from the newest version; nothing is committed."""
    dataset = shape.opened(location)
    return Prepared(dataset, Change() if deletion is None else deletion(dataset))


def commit(
    location: Location,
    fragments: Iterable[FragmentMetadata],
    shape: LeafShape,
    deletion: Deletion | None,
    prepared: Prepared,
    *,
    replaces: bool = True,
) -> Done:
    """Add written files and remove rows on the leaf's main branch, in one commit.

    Rows to remove are found anew when another writer was first. With `replaces` the files stand
    for all that matches, also for what came to the leaf meanwhile.
    """
    new = tuple(fragments)
    overtaken = False
    versions: list[int] = []
    ready: Prepared | None = prepared

    def attempt() -> int:
        nonlocal overtaken, ready
        versions.clear()
        if ready is None and not new:
            ready = prepare(location, shape, deletion)
        if ready is None:
            # Files that are written fit the leaf as it was: it must not be changed for them.
            dataset = location.open_leaf()
            shape.check(dataset, new, location)
            ready = Prepared(dataset, Change() if deletion is None else deletion(dataset))
        dataset, found, ready = ready.dataset, ready.found, None
        if new:
            shape.check(dataset, new, location)
        change = Change((*new, *found.new), found.updated, found.removed)
        if not change.is_nothing:
            committed = commits.commit(
                location, dataset, change.operation(), commit_message=shape.mark
            )
            overtaken = committed.version > dataset.version + 1
            versions.append(int(committed.version))
        return found.rows_removed

    removed = until_won(attempt)
    if replaces and overtaken and new and deletion is not None:
        others = _remove_others(location, new, deletion, shape.mark)
        return Done(removed + others.removed, (*versions, *others.versions))
    return Done(removed, tuple(versions))


def take_back(location: Location, fragments: Iterable[FragmentMetadata], mark: str | None) -> None:
    """Remove files that were just added to the leaf's main branch, with all their rows."""
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
                Change(removed=tuple(ours)).operation(),
                read_version=dataset.version,
                commit_message=mark,
                **location.write_options,
            )

    until_won(attempt)


def _remove_others(
    location: Location,
    ours: tuple[FragmentMetadata, ...],
    deletion: Deletion,
    mark: str | None,
) -> Done:
    """Remove what another writer added between the reading of a leaf and its replacement.

    Where there was nothing to remove, Lance sees no conflict between two replacements. What came
    after ours stays: the last of several replacements counts.
    """
    paths = {file.path for fragment in ours for file in fragment.files}

    def attempt() -> Done:
        dataset = location.open_leaf()
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        own = [each.id for each in fragments if any(file.path in paths for file in each.files)]
        if not own:
            return Done(0)
        # Lance numbers fragments in the order of their commits.
        kept = {each.id for each in fragments if each.id >= min(own)}
        found = deletion(dataset)
        change = Change(
            updated=tuple(each for each in found.updated if each.id not in kept),
            removed=tuple(number for number in found.removed if number not in kept),
        )
        if change.is_nothing:
            return Done(0)
        committed = commits.commit(location, dataset, change.operation(), commit_message=mark)
        gone = {each.id: each.num_rows for each in change.updated}
        before = {each.id: each.num_rows for each in fragments}
        removed = sum(before[number] - gone.get(number, 0) for number in {*gone, *change.removed})
        return Done(removed, (int(committed.version),))

    return until_won(attempt)


def deletion(
    dataset: lance.LanceDataset,
    predicate: Predicate,
    schema: Schema,
    path: PathValues | None = None,
) -> Change:
    """What removes the rows that match; deletion files are written, nothing is committed."""
    fragments = dataset.get_fragments()
    if predicate == TRUE:
        removed = tuple(fragment.fragment_id for fragment in fragments)
        return Change(removed=removed, rows_removed=dataset.count_rows())
    addresses = _addresses(dataset, predicate, schema, path)
    return deletion_by_address(dataset, addresses)


def deletion_by_address(dataset: lance.LanceDataset, addresses: np.ndarray) -> Change:
    """What removes the rows at these addresses, each of which is there once."""
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
    return Change((), tuple(updated), tuple(removed), len(addresses))


def _addresses(
    dataset: lance.LanceDataset, predicate: Predicate, schema: Schema, path: PathValues | None
) -> np.ndarray:
    """The addresses of the rows that match."""
    found = [places for places, _ in addressed(dataset, predicate, schema, (), path)]
    return np.concatenate([np.empty(0, np.uint64), *found])
