"""Creation of a namespace: its manifest is built in memory and installed in one step."""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import lance
import pyarrow as pa

from phalanx.errors import PhalanxError, StorageFailure
from phalanx.storage.commit.head import Head, build_head_row
from phalanx.storage.lance.failures import summarize_error
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.location import Location, create_session
from phalanx.storage.manifest.changes import (
    PRIMARY_KEY,
    build_object_rows,
    column_of,
    pin_columns_of,
)
from phalanx.storage.manifest.manifest import FIRST_VERSION, MANIFEST_DIRECTORY, Manifest
from phalanx.storage.state.naming import spec_namespace
from phalanx.storage.state.properties import WRITER_FLAG, Properties

_PRIMARY_KEY = {PRIMARY_KEY.encode(): b"0"}
_LOGGER = logging.getLogger("phalanx.storage")
_FIXED_COLUMNS = [
    pa.field("object_id", pa.string(), nullable=False, metadata=_PRIMARY_KEY),
    pa.field("object_type", pa.string(), nullable=False),
    pa.field("location", pa.string()),
    pa.field("metadata", pa.string()),
    pa.field("base_objects", pa.list_(pa.field("object_id", pa.string()))),
]


def create_namespace(
    root: Location, properties: Properties, *, with_head: bool = False
) -> Manifest:
    """Create a namespace without partitions; it appears complete or not at all.

    `with_head` prepares it for its first snapshot.
    """
    install_manifest(root, build_manifest(root, properties, with_head=with_head))
    _log_creation(root, properties)
    return Manifest.open(root)


@contextmanager
def stage_namespace(
    root: Location, properties: Properties, *, with_head: bool = False
) -> Iterator[Manifest]:
    """Yield the manifest of a new namespace in a temporary folder, to be changed there.

    At the end of the block, install it with all its partitions and rows, in any kind of store.
    If the block raises, install nothing.
    """
    if _try_open(root.subfolder(MANIFEST_DIRECTORY)) is not None:
        raise _already_exists(root)
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        location = Location(folder).subfolder(MANIFEST_DIRECTORY)
        staged = build_manifest(root, properties, with_head=with_head)
        staged.deep_clone(location.uri, staged.version)
        manifest = Manifest.open(root, location=location)
        yield manifest
        made = manifest.load_latest().dataset
        # As one version, with the number that every new manifest has.
        install_manifest(root, _write_in_memory(root, made.to_table(), made.metadata))
    _log_creation(root, properties)


def _log_creation(root: Location, properties: Properties) -> None:
    """Log the creation in weak mode; in strong mode the first snapshot is logged."""
    if properties.mode == "weak":
        _LOGGER.info("Created %s", root)


def build_manifest(
    root: Location, properties: Properties, *, with_head: bool = False
) -> lance.LanceDataset:
    """Build a manifest without partitions in memory."""
    fields = [field for spec in properties.specs.values() for field in spec.fields]
    schema = pa.schema([*_FIXED_COLUMNS, *pin_columns_of(properties), *map(column_of, fields)])
    rows = build_object_rows(
        [(spec_namespace(number), "namespace", None) for number in properties.specs]
    )
    if with_head:
        start = build_head_row(Head.initial(properties.epoch))
        rows = pa.concat_tables([rows, start], promote_options="default")
    table = pa.Table.from_arrays(
        [
            rows.column(name) if name in rows.column_names else pa.nulls(len(rows), kind)
            for name, kind in zip(schema.names, schema.types, strict=True)
        ],
        schema=schema,
    )
    return _write_in_memory(root, table, {**WRITER_FLAG, **properties.to_metadata()})


def _write_in_memory(
    root: Location, rows: pa.Table, metadata: Mapping[str, str]
) -> lance.LanceDataset:
    try:
        staged = lance.write_dataset(rows, f"memory://{uuid.uuid4().hex}")
        staged.update_metadata({**metadata})
    except (OSError, ValueError) as error:
        raise PhalanxError(
            f"Cannot create {root}: Lance refuses its manifest: {summarize_error(error)}"
        ) from None
    assert staged.version == FIRST_VERSION
    return staged


def install_manifest(root: Location, staged: lance.LanceDataset) -> None:
    """Put a staged manifest in place, in a root that has none."""
    where = root.subfolder(MANIFEST_DIRECTORY)
    try:
        staged.deep_clone(where.uri, staged.version, storage_options=root.storage_options)
    except OSError as error:
        there = _try_open(where)
        if there is not None and not _is_copy(there, staged):
            raise _already_exists(root) from None
        if there is not None:
            # The store did it, but its answer was lost.
            return
        raise StorageFailure(f"Cannot create {root}: {summarize_error(error)}") from None
    fault_point(FaultPoint.MANIFEST_CREATED)


def _already_exists(root: Location) -> PhalanxError:
    return PhalanxError(
        f"Cannot create {root}: a namespace exists there. Open it with phalanx.open, or choose "
        "another path."
    )


def _try_open(where: Location) -> lance.LanceDataset | None:
    try:
        return where.open(session=create_session())
    except (OSError, ValueError):
        return None


def _is_copy(there: lance.LanceDataset, staged: lance.LanceDataset) -> bool:
    """Whether a manifest equals the staged one; no other namespace has its id."""
    return bool(
        there.version == staged.version
        and there.metadata == staged.metadata
        and there.to_table().equals(staged.to_table())
    )
