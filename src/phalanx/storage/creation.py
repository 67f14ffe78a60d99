"""A new manifest: the columns that the format names, and those of the first spec."""

from __future__ import annotations

import uuid

import lance
import pyarrow as pa

from phalanx.errors import PhalanxError, StorageFailure
from phalanx.storage.failures import plain_reason
from phalanx.storage.head import Head, head_row
from phalanx.storage.location import Location, new_cache
from phalanx.storage.manifest import DIRECTORY, Manifest
from phalanx.storage.manifest_changes import PRIMARY_KEY, column_of, pin_columns, plain_rows
from phalanx.storage.naming import spec_namespace
from phalanx.storage.properties import WRITER_FLAG, Properties
from phalanx.storage.steps import Step, reach

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
    try:
        staged = lance.write_dataset(table, f"memory://{uuid.uuid4().hex}")
        staged.update_metadata({**WRITER_FLAG, **properties.to_metadata()})
    except (OSError, ValueError) as error:
        raise PhalanxError(
            f"Cannot create {root}: Lance refuses its manifest: {plain_reason(error)}"
        ) from None
    return staged


def put_in_place(root: Location, staged: lance.LanceDataset) -> None:
    """Make a staged manifest that of a root which has none."""
    where = root.own(DIRECTORY)
    try:
        staged.deep_clone(where.uri, staged.version, storage_options=root.storage_options)
    except OSError as error:
        if _exists(where):
            raise PhalanxError(
                f"Cannot create {root}: a namespace exists there. Open it with phalanx.open, "
                "or choose another path."
            ) from None
        raise StorageFailure(f"Cannot create {root}: {plain_reason(error)}") from None
    reach(Step.MANIFEST_CREATED)


def _exists(where: Location) -> bool:
    try:
        where.open(cache=new_cache())
    except (OSError, ValueError):
        return False
    return True
