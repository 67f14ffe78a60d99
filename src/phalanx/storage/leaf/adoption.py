"""A Lance table that exists, made fit to be a leaf: its schema, its owner, its field ids.

No data file is written. Lance refuses to give a field an id that another had, so the renumbered
table is built of detached commits, and put on the main branch as a whole.
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

from phalanx.errors import CommitConflict, ForeignWrite, PhalanxError, SchemaMismatch
from phalanx.model.schema.field_ids import columns_of, walk
from phalanx.model.schema.grouping import group
from phalanx.model.schema.rows import check_columns, plain_schema, without_ids
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import keyed, keys_of
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.fields import source_columns
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import OWNER, Owner
from phalanx.storage.lance.scanning import batches_of
from phalanx.storage.lance.schema import ids_of, is_aligned, lance_schema
from phalanx.storage.lance.versions import check_detachable

_LEAF_DIRECTORY = re.compile(r"[0-9a-f]{8}_v[0-9]+\$([^/]*\$)?dataset")
# What stands in place of the id of a column that a file still holds, and the table no longer has.
_GONE = -2


def open_table(location: Location) -> lance.LanceDataset:
    """The table to be adopted, in a file format that Phalanx can number."""
    try:
        dataset = location.open()
    except (OSError, ValueError) as error:
        raise PhalanxError(
            f"Cannot adopt {location}: there is no Lance table ({str(error).splitlines()[0]}). "
            "Check the path."
        ) from None
    if dataset.data_storage_version in ("0.1", "legacy"):
        raise PhalanxError(
            f"Cannot adopt {location}: its files are of Lance's first format, expected 2.0 or "
            "newer. Append its rows instead."
        )
    return dataset


def check_schema(
    dataset: lance.LanceDataset,
    schema: Schema,
    location: Location,
    may_lack: Collection[str] = (),
) -> None:
    """Refuse a table whose columns are not the namespace's: names, types, nullability, metadata.

    Columns that it `may_lack` can be missing, and are NULL in all its rows.
    """
    given, wanted = dataset.schema, plain_schema(schema)
    lacking = {name for name in may_lack if name not in given.names}
    wanted = pa.schema([field for field in wanted if field.name not in lacking])
    try:
        check_columns(given, wanted)
    except SchemaMismatch as error:
        raise SchemaMismatch(f"Cannot adopt {location}. {error}") from None
    for field in wanted:
        found = given.field(field.name)
        # Metadata of a field can say how its bytes are to be read.
        if not found.equals(field, check_metadata=True):
            raise SchemaMismatch(
                f"Cannot adopt {location}: its column {field.name!r} is {_shown(found)}, expected "
                f"{_shown(field)} as in the namespace. Alter that table first, or append its rows."
            )


def key_of_rows(
    dataset: lance.LanceDataset, spec: PartitionSpec, schema: Schema, location: Location
) -> pa.Table | None:
    """The one partition key that all rows have; None if there are no rows."""
    columns = source_columns(spec, schema)
    found: pa.Table | None = None
    for batch in batches_of(dataset, columns=columns):
        keys = keyed(spec, batch, schema).keys
        both = keys if found is None else pa.concat_tables([found, keys])
        found = group(both, both.num_rows).keys
        if found.num_rows > 1:
            first, second, *_ = (key.values for key in keys_of(found))
            raise PhalanxError(
                f"Cannot adopt {location}: its rows are of several partitions, {first} and "
                f"{second} among them; expected one partition by {spec.label(schema)}. "
                "Append its rows instead."
            )
    return found if found is not None and found.num_rows else None


def check_renumbering(dataset: lance.LanceDataset, schema: Schema, location: Location) -> None:
    """Refuse a table whose field ids must change, and cannot: Lance finds columns of indexes by id.

    It takes versions beside the main branch, too.
    """
    if is_aligned(dataset, schema):
        return
    check_detachable(dataset, location, f"adopt {location}, whose field ids must change")
    if indexes := [index.name for index in dataset.describe_indices()]:
        raise PhalanxError(
            f"Cannot adopt {location}: its columns have other field ids than the namespace's, and "
            f"the indexes {', '.join(indexes)} know them by those. Drop the indexes, adopt the "
            "table, and index it again."
        )


def claim(
    dataset: lance.LanceDataset, owner: Owner, location: Location, *, is_listed: bool = False
) -> lance.LanceDataset:
    """Write down to which namespace the table belongs; refuse another namespace's table.

    One that the namespace lists is its own whatever its name is, unless a record says otherwise.
    """
    parent, _, directory = location.uri.rpartition("/")
    is_leaf = _LEAF_DIRECTORY.fullmatch(directory) is not None
    elsewhere = is_leaf and not is_listed and parent != owner.root
    record = Owner.of(dataset)
    if record is not None and record.is_at(owner):
        return dataset
    if (record is not None and not record.names(owner)) or (record is None and elsewhere):
        raise PhalanxError(
            f"Cannot adopt {location}: it is a partition of the namespace at "
            f"{parent if record is None else record.root}, "
            "which needs its field ids. Append its rows instead; or, if that namespace is gone, "
            f"copy its rows to a table of their own, or remove {OWNER!r} from its metadata."
        )
    dataset.update_metadata(dict[str, str | None](owner.to_metadata()))
    return location.open()


def renumber(
    dataset: lance.LanceDataset, schema: Schema, location: Location, mark: str | None = None
) -> lance.LanceDataset:
    """Give the table the namespace's field ids and column order; deletions stay.

    The last step cannot see a commit that another client makes at the same moment: if there was
    one, the table is put back as that client left it, and `CommitConflict` raised.
    """
    if is_aligned(dataset, schema):
        return dataset
    staged = renumbered(dataset, schema, location)
    restore = LanceOperation.Restore(staged.version)
    options = location.write_options
    done = LanceDataset.commit(
        dataset, restore, read_version=dataset.version, commit_message=mark, **options
    )
    if done.version != dataset.version + 1:
        _put_back(done, location)
    return done


def renumbered(
    dataset: lance.LanceDataset, schema: Schema, location: Location
) -> lance.LanceDataset:
    """A detached version of the table with the namespace's field ids and column order."""
    new_ids = _new_ids(dataset, schema)
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    steps: list[LanceOperation.BaseOperation] = [LanceOperation.Project(lance_schema(schema))]
    if fragments:
        # Lance checks files against the schema at every step: in between no file has a field.
        steps = [_renumbering(fragments, {}), *steps, _renumbering(fragments, new_ids)]
    staged, options = dataset, location.write_options
    for step in steps:
        staged = LanceDataset.commit(
            staged, step, read_version=staged.version, detached=True, **options
        )
    return staged


def _put_back(done: lance.LanceDataset, location: Location) -> None:
    """Undo the renumbering of a table to which someone else wrote at the same time."""
    theirs = done.version - 1
    if done.latest_version != done.version:
        raise ForeignWrite(
            f"{location} was written by someone else while it was adopted: version {theirs} has "
            "rows that its newest version may lack. Compare the two, append what is missing, and "
            "adopt the table again while nobody writes to it."
        )
    LanceDataset.commit(
        done,
        LanceOperation.Restore(theirs),
        read_version=done.version,
        **location.write_options,
    )
    raise CommitConflict(
        f"Cannot adopt {location}: someone else wrote to it at the same time. It is as they left "
        "it. Adopt it again while nobody writes to it."
    )


def _new_ids(dataset: lance.LanceDataset, schema: Schema) -> dict[int, int]:
    """For each id in the table the one that the same field has in the namespace."""
    old = dict(zip(_places(dataset.schema), ids_of(dataset), strict=True))
    new = dict(zip(_places(plain_schema(schema)), schema.ids, strict=True))
    return {old[place]: new[place] for place in new if place in old}


def _places(schema: pa.Schema) -> list[tuple[str, ...]]:
    return [node.place for node in walk(columns_of(without_ids(schema))) if node.numbered]


def _renumbering(
    fragments: list[FragmentMetadata], new_ids: dict[int, int]
) -> LanceOperation.BaseOperation:
    """What gives the fields in all files their new ids; one without a new id is gone."""
    updated = []
    for fragment in fragments:
        files = list(map(copy.copy, fragment.files))
        for file in files:
            file.fields = [new_ids.get(field_id, _GONE) for field_id in file.fields]
        updated.append(dataclasses.replace(fragment, files=files))
    return LanceOperation.Update(
        removed_fragment_ids=[], updated_fragments=updated, new_fragments=[]
    )


def _shown(field: pa.Field) -> str:
    metadata = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
    nullable = "" if field.nullable else " not null"
    return f"{field.type}{nullable}" + (f" with {metadata}" if metadata else "")
