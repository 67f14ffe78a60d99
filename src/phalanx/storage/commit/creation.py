"""A new manifest: the columns that the format names, and those of the first spec."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import lance
import pyarrow as pa

from phalanx.errors import PhalanxError, StorageFailure
from phalanx.storage.commit.head import Head, head_row
from phalanx.storage.lance.failures import plain_reason
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.location import Location, new_cache
from phalanx.storage.manifest.changes import PRIMARY_KEY, column_of, pin_columns, plain_rows
from phalanx.storage.manifest.manifest import DIRECTORY, FIRST_VERSION, Manifest
from phalanx.storage.state.naming import spec_namespace
from phalanx.storage.state.properties import WRITER_FLAG, Properties

_PRIMARY_KEY = {PRIMARY_KEY.encode(): b"0"}
_FIXED_COLUMNS = [
    pa.field("object_id", pa.string(), nullable=False, metadata=_PRIMARY_KEY),
    pa.field("object_type", pa.string(), nullable=False),
    pa.field("location", pa.string()),
    pa.field("metadata", pa.string()),
    pa.field("base_objects", pa.list_(pa.field("object_id", pa.string()))),
]


def create(root: Location, properties: Properties, *, with_head: bool = False) -> Manifest:
    """A new namespace without partitions: all of it appears at once, or nothing does.

    With a head it is ready for its first snapshot.
    """
    put_in_place(root, staged_manifest(root, properties, with_head=with_head))
    return Manifest.open(root)


@contextmanager
def being_created(
    root: Location, properties: Properties, *, with_head: bool = False
) -> Iterator[Manifest]:
    """The manifest of a new namespace, to be changed where nobody sees it.

    At the end of the block it comes to its place as it is then, with all partitions and rows, in
    every kind of store; nothing does if the block raises.
    """
    if _opened(root.own(DIRECTORY)) is not None:
        raise _taken(root)
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        place = Location(folder).own(DIRECTORY)
        staged = staged_manifest(root, properties, with_head=with_head)
        staged.deep_clone(place.uri, staged.version)
        manifest = Manifest.open(root, place=place)
        yield manifest
        made = manifest.latest().dataset
        # As one version with the number that every new manifest has.
        put_in_place(root, _staged(root, made.to_table(), made.metadata))


def staged_manifest(
    root: Location, properties: Properties, *, with_head: bool = False
) -> lance.LanceDataset:
    """A manifest without partitions, in memory."""
    fields = [field for spec in properties.specs.values() for field in spec.fields]
    schema = pa.schema([*_FIXED_COLUMNS, *pin_columns(properties), *map(column_of, fields)])
    rows = plain_rows([(spec_namespace(number), "namespace", None) for number in properties.specs])
    if with_head:
        start = head_row(Head.before_all(properties.epoch))
        rows = pa.concat_tables([rows, start], promote_options="default")
    table = pa.Table.from_arrays(
        [
            rows.column(name) if name in rows.column_names else pa.nulls(len(rows), kind)
            for name, kind in zip(schema.names, schema.types, strict=True)
        ],
        schema=schema,
    )
    return _staged(root, table, {**WRITER_FLAG, **properties.to_metadata()})


def _staged(root: Location, rows: pa.Table, metadata: Mapping[str, str]) -> lance.LanceDataset:
    try:
        staged = lance.write_dataset(rows, f"memory://{uuid.uuid4().hex}")
        staged.update_metadata({**metadata})
    except (OSError, ValueError) as error:
        raise PhalanxError(
            f"Cannot create {root}: Lance refuses its manifest: {plain_reason(error)}"
        ) from None
    assert staged.version == FIRST_VERSION
    return staged


def put_in_place(root: Location, staged: lance.LanceDataset) -> None:
    """Make a staged manifest that of a root which has none."""
    where = root.own(DIRECTORY)
    try:
        staged.deep_clone(where.uri, staged.version, storage_options=root.storage_options)
    except OSError as error:
        there = _opened(where)
        if there is not None and not _is_copy(there, staged):
            raise _taken(root) from None
        if there is not None:
            # The store has done it, though it could not tell.
            return
        raise StorageFailure(f"Cannot create {root}: {plain_reason(error)}") from None
    reach(Step.MANIFEST_CREATED)


def _taken(root: Location) -> PhalanxError:
    return PhalanxError(
        f"Cannot create {root}: a namespace exists there. Open it with phalanx.open, or choose "
        "another path."
    )


def _opened(where: Location) -> lance.LanceDataset | None:
    try:
        return where.open(cache=new_cache())
    except (OSError, ValueError):
        return None


def _is_copy(there: lance.LanceDataset, staged: lance.LanceDataset) -> bool:
    """Whether a manifest is this one, just put in its place: no other namespace has its id."""
    return bool(
        there.version == staged.version
        and there.metadata == staged.metadata
        and there.to_table().equals(staged.to_table())
    )
