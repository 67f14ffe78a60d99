"""Adoption: an existing Lance table becomes a leaf with the namespace's owner and field ids.

No data file is written. Lance refuses to give a field an id that another field had, so the
renumbered table is built from detached commits and restored to the main branch as a whole.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Collection

import lance
import pyarrow as pa
from lance import LanceDataset, LanceOperation
from lance.fragment import FragmentMetadata

from phalanx.errors import CommitConflict, PhalanxError, SchemaMismatch
from phalanx.model.schema.field_ids import to_json_columns, walk_fields
from phalanx.model.schema.grouping import group_rows
from phalanx.model.schema.rows import check_column_names, remove_ids, to_row_schema
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import group_by_partition, read_keys
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.fields import list_source_columns
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import OWNER, Owner
from phalanx.storage.lance.retries import is_commit_conflict
from phalanx.storage.lance.scanning import scan_batches
from phalanx.storage.lance.schema import field_ids_of, is_aligned, to_lance_schema
from phalanx.storage.lance.versions import check_detachable, restore_as_next

_LEAF_DIRECTORY = re.compile(r"[0-9a-f]{8}_v[0-9]+\$([^/]*\$)?dataset")
# The id of a column that a file contains but the table no longer has.
_DROPPED_FIELD = -2


def open_for_adoption(location: Location) -> lance.LanceDataset:
    """Open the table to adopt; refuse a file format whose fields cannot be renumbered."""
    try:
        dataset = location.open()
    except (OSError, ValueError) as error:
        raise PhalanxError(
            f"Cannot adopt {location}: it is not a Lance table ({str(error).splitlines()[0]}). "
            "Check the path."
        ) from None
    if dataset.data_storage_version in ("0.1", "legacy"):
        raise PhalanxError(
            f"Cannot adopt {location}: its files have Lance's legacy format, expected 2.0 or "
            "newer. Append its rows instead."
        )
    return dataset


def check_adopted_schema(
    dataset: lance.LanceDataset,
    schema: Schema,
    location: Location,
    may_lack: Collection[str] = (),
) -> None:
    """Refuse a table whose columns differ from the namespace's: name, type, nullability, metadata.

    Columns in `may_lack` can be missing, and are NULL in all rows.
    """
    given, wanted = dataset.schema, to_row_schema(schema)
    lacking = {name for name in may_lack if name not in given.names}
    wanted = pa.schema([field for field in wanted if field.name not in lacking])
    try:
        check_column_names(given, wanted)
    except SchemaMismatch as error:
        raise SchemaMismatch(f"Cannot adopt {location}. {error}") from None
    for field in wanted:
        found = given.field(field.name)
        # Metadata of a field can define the encoding of its bytes.
        if not found.equals(field, check_metadata=True):
            raise SchemaMismatch(
                f"Cannot adopt {location}: its column {field.name!r} is {_format_field(found)}, "
                f"expected {_format_field(field)} as in the namespace. Alter that table first, or "
                "append its rows."
            )


def find_partition_key(
    dataset: lance.LanceDataset, spec: PartitionSpec, schema: Schema, location: Location
) -> pa.Table | None:
    """Return the one partition key that all rows have; None if there are no rows."""
    columns = list_source_columns(spec, schema)
    found: pa.Table | None = None
    for batch in scan_batches(dataset, columns=columns):
        keys = group_by_partition(spec, batch, schema).keys
        both = keys if found is None else pa.concat_tables([found, keys])
        found = group_rows(both, both.num_rows).keys
        if found.num_rows > 1:
            first, second, *_ = (key.values for key in read_keys(found))
            raise PhalanxError(
                f"Cannot adopt {location}: its rows belong to several partitions, such as {first} "
                f"and {second}; expected one partition by {spec.label(schema)}. "
                "Append its rows instead."
            )
    return found if found is not None and found.num_rows else None


def check_renumbering(dataset: lance.LanceDataset, schema: Schema, location: Location) -> None:
    """Refuse a table whose field ids must change but cannot.

    Lance refers to the columns of an index by field id. Renumbering also needs detached versions.
    """
    if is_aligned(dataset, schema):
        return
    check_detachable(dataset, location, f"adopt {location}, whose field ids must change")
    if indexes := [index.name for index in dataset.describe_indices()]:
        raise PhalanxError(
            f"Cannot adopt {location}: its field ids differ from the namespace's, and the "
            f"indexes {', '.join(indexes)} refer to them. Drop the indexes, adopt the table, and "
            "create them again."
        )


def record_owner(
    dataset: lance.LanceDataset, owner: Owner, location: Location, *, is_listed: bool = False
) -> lance.LanceDataset:
    """Record the owner in the table; refuse a table of another namespace.

    A table that the namespace lists belongs to it regardless of its directory's name, unless its
    record says otherwise.
    """
    parent, _, directory = location.uri.rpartition("/")
    is_leaf = _LEAF_DIRECTORY.fullmatch(directory) is not None
    elsewhere = is_leaf and not is_listed and parent != owner.root
    record = Owner.of(dataset)
    if record is not None and record.is_same_table(owner):
        return dataset
    if (record is not None and not record.is_same_namespace(owner)) or (
        record is None and elsewhere
    ):
        raise PhalanxError(
            f"Cannot adopt {location}: it is a partition of the namespace at "
            f"{parent if record is None else record.root}, "
            "which needs its field ids. Append its rows instead. If that namespace no longer "
            f"exists, copy the rows to a new table, or remove {OWNER!r} from the metadata."
        )
    dataset.update_metadata(dict[str, str | None](owner.to_metadata()))
    return location.open()


def renumber_fields(
    dataset: lance.LanceDataset, schema: Schema, location: Location, mark: str | None = None
) -> lance.LanceDataset:
    """Give the table the namespace's field ids and column order; deletions are kept.

    If another client commits at the same time, nothing changes and `CommitConflict` is raised.
    """
    if is_aligned(dataset, schema):
        return dataset
    staged = stage_renumbered(dataset, schema, location)
    try:
        restore_as_next(location, dataset, staged.version, mark)
    except OSError as error:
        if not is_commit_conflict(error):
            raise
        raise CommitConflict(
            f"Cannot adopt {location}: another client wrote to it at the same time. Nothing was "
            "changed. Adopt the table again while no client writes to it."
        ) from None
    return location.open()


def stage_renumbered(
    dataset: lance.LanceDataset, schema: Schema, location: Location
) -> lance.LanceDataset:
    """Create a detached version with the namespace's field ids and column order."""
    new_ids = _new_ids(dataset, schema)
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    steps: list[LanceOperation.BaseOperation] = [LanceOperation.Project(to_lance_schema(schema))]
    if fragments:
        # Lance checks files against the schema at every step, so files have no fields in between.
        steps = [
            _renumbering_operation(fragments, {}),
            *steps,
            _renumbering_operation(fragments, new_ids),
        ]
    staged, options = dataset, location.write_options
    for step in steps:
        staged = LanceDataset.commit(
            staged, step, read_version=staged.version, detached=True, **options
        )
    return staged


def _new_ids(dataset: lance.LanceDataset, schema: Schema) -> dict[int, int]:
    """Map each field id in the table to the same field's id in the namespace."""
    old = dict(zip(_field_paths(dataset.schema), field_ids_of(dataset), strict=True))
    new = dict(zip(_field_paths(to_row_schema(schema)), schema.ids, strict=True))
    return {old[path]: new[path] for path in new if path in old}


def _field_paths(schema: pa.Schema) -> list[tuple[str, ...]]:
    return [node.path for node in walk_fields(to_json_columns(remove_ids(schema))) if node.has_id]


def _renumbering_operation(
    fragments: list[FragmentMetadata], new_ids: dict[int, int]
) -> LanceOperation.BaseOperation:
    """Return the operation that renumbers the fields in all files; others are dropped."""
    updated = []
    for fragment in fragments:
        files = list(map(copy.copy, fragment.files))
        for file in files:
            file.fields = [new_ids.get(field_id, _DROPPED_FIELD) for field_id in file.fields]
        updated.append(dataclasses.replace(fragment, files=files))
    return LanceOperation.Update(
        removed_fragment_ids=[], updated_fragments=updated, new_fragments=[]
    )


def _format_field(field: pa.Field) -> str:
    metadata = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
    nullable = "" if field.nullable else " not null"
    return f"{field.type}{nullable}" + (f" with {metadata}" if metadata else "")
