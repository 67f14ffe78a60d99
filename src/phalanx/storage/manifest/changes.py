"""Changes of the manifest: its rows, its properties, and the columns of partition fields.

A `Manifest` is one version, and none of these functions moves it. A lost race raises and changes
nothing. `tests/integration/test_lance_facts.py` shows which concurrent commits Lance refuses.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import CommitConflict
from phalanx.model.specs.spec import PartitionField
from phalanx.storage.lance.checksums import record_missing
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.location import create_session
from phalanx.storage.lance.ownership import check_no_links
from phalanx.storage.lance.retries import is_commit_conflict
from phalanx.storage.manifest.columns import (
    COLUMN_TYPES,
    METADATA,
    OBJECT_ID,
    PIN_COLUMNS,
    cast_column,
)
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.rows import RowAddresses, commit_row_changes, has_fragments_to_fold
from phalanx.storage.state.properties import EPOCH, Properties

# Lance does not enforce this key, but uses it to detect conflicting inserts.
PRIMARY_KEY = "lance-schema:unenforced-primary-key:position"
_KEY_PREFIX = b"lance-schema:unenforced-primary-key"


def insert_rows(manifest: Manifest, rows: pa.Table) -> None:
    """Insert rows whose ids are new, in one commit; a concurrent insert of an id is a lost race."""
    ids = rows.column("object_id")
    assert len(pc.unique(ids)) == len(ids), "duplicate keys would both be inserted"
    rows = add_missing_columns(manifest, rows)
    merge = _open_for_write(manifest).merge_insert("object_id").when_not_matched_insert_all()
    merge.use_index(False).conflict_retries(0).execute(rows)
    _record_checksums(manifest)
    _fold_small_fragments(manifest)


def _open_for_write(manifest: Manifest) -> lance.LanceDataset:
    """Open this version again, because a write moves a Lance dataset to the version it created."""
    check_no_links(manifest.location.uri, manifest.root.uri)
    return manifest.reopen_dataset()


def _fold_small_fragments(manifest: Manifest) -> None:
    """Merge small fragments into one; if another writer is faster, the next write does it."""
    latest = manifest.load_latest()
    if has_fragments_to_fold(latest.dataset):
        with suppress(OSError):
            replace_rows(latest, latest.dataset.schema.empty_table(), np.empty(0, np.uint64))


def upsert_rows(manifest: Manifest, rows: pa.Table) -> None:
    """Insert or replace whole rows in one commit; a concurrent change of one is a lost race.

    Columns that `rows` lacks become NULL.
    """
    merge = _open_for_write(manifest).merge_insert("object_id").when_matched_update_all()
    merge = merge.when_not_matched_insert_all().use_index(False).conflict_retries(0)
    merge.execute(add_missing_columns(manifest, rows))
    _record_checksums(manifest)


def _record_checksums(manifest: Manifest) -> None:
    """Write checksums of the files of the newest version, if the table has checksums."""
    location = manifest.location
    if location.checksums:
        record_missing(location, location.open(session=create_session()))


def replace_rows(
    manifest: Manifest, added: pa.Table, removed: RowAddresses, *, rewrite_all: bool = False
) -> None:
    """Add rows and remove the rows at the given addresses of this version, in one commit.

    With `rewrite_all`, rewrite all other rows too. A concurrent removal of rows from the same
    fragments is a lost race.
    """
    rows = add_missing_columns(manifest, added)
    location = manifest.location
    check_no_links(location.uri, manifest.root.uri)
    committed = commit_row_changes(
        manifest.dataset, location, rows, removed, rewrite_all=rewrite_all
    )
    if committed is not None:
        manifest.remember_commit(committed, rows, removed)


def add_missing_columns(manifest: Manifest, rows: pa.Table) -> pa.Table:
    """Return the rows with all columns of the manifest; missing ones are NULL."""
    ids = rows.column("object_id")
    assert len(pc.unique(ids)) == len(ids), "duplicate keys would both be inserted"
    schema = manifest.dataset.schema
    # Other writers use other types, and an interrupted promotion leaves a column wider than its
    # field.
    columns = [
        cast_column(rows.column(field.name), field.type, field.name, manifest.root)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def change_properties(manifest: Manifest, properties: Properties) -> Manifest:
    """Replace the properties and raise the epoch; `CommitConflict` if another writer was first.

    `properties` must derive from those of this manifest, whose version Lance compares.
    """
    assert properties.epoch == manifest.properties.epoch, "made from another manifest's properties"
    return write_properties(manifest, replace(properties, epoch=manifest.properties.epoch + 1))


def write_properties(manifest: Manifest, properties: Properties) -> Manifest:
    """Like `change_properties`, without raising the epoch."""
    try:
        _open_for_write(manifest).update_metadata({**properties.to_metadata()})
    except OSError as error:
        if not is_commit_conflict(error):
            raise
        raise CommitConflict(
            f"Cannot change {manifest.root}: another writer changed its schema or its specs at "
            f"the same time ({EPOCH} is no longer {manifest.properties.epoch}). Look at the table "
            "as it is now, and try again."
        ) from None
    _record_checksums(manifest)
    fault_point(FaultPoint.PROPERTIES_CHANGED)
    return manifest.load_latest()


def add_columns(manifest: Manifest, fields: Iterable[PartitionField]) -> None:
    """Add the columns of partition fields that have none."""
    present = {column.name: column.type for column in manifest.dataset.schema}
    # The column of a field of an earlier spec exists, though it may be wider.
    used = {field.column for spec in manifest.properties.specs.values() for field in spec.fields}
    new = [
        field
        for field in fields
        if field.column not in used and present.get(field.column) != field.result_type
    ]
    dataset = _open_for_write(manifest)
    # An evolution that lost its race may have left a column of another type.
    if stale := [field.column for field in new if field.column in present]:
        dataset.drop_columns(stale)
        fault_point(FaultPoint.COLUMNS_CHANGED)
    if new:
        dataset.add_columns([column_of(field) for field in new])
        fault_point(FaultPoint.COLUMNS_CHANGED)


def pin_columns_of(properties: Properties) -> tuple[pa.Field, ...]:
    """Return the manifest's columns that pin the version, branch or tag to read of a leaf."""
    return PIN_COLUMNS if properties.has_expression_specs else PIN_COLUMNS[:1]


def upgrade_columns(manifest: Manifest) -> None:
    """Add the columns that a write needs and widen those that are too narrow.

    Manifests of other writers may lack them, and may lack the primary key.
    """
    stored = {column.name: column.type for column in manifest.dataset.schema}
    unfit = _find_outdated_columns(manifest)
    dataset = _open_for_write(manifest)
    if missing := [each for each in unfit if each.name not in stored]:
        dataset.add_columns(missing)
        fault_point(FaultPoint.COLUMNS_CHANGED)
    for field in unfit:
        if field.name in stored:
            change: Any = {"path": field.name, "data_type": field.type}
            dataset.alter_columns(change)
            fault_point(FaultPoint.COLUMNS_CHANGED)
    if not _has_key(manifest):
        # Lance changes one property at a time, and accepts no nullable column as a key.
        if stored[OBJECT_ID] != COLUMN_TYPES[OBJECT_ID]:
            change = {"path": OBJECT_ID, "data_type": COLUMN_TYPES[OBJECT_ID]}
            dataset.alter_columns(change)
        change = {"path": OBJECT_ID, "nullable": False}
        dataset.alter_columns(change)
        dataset.update_field_metadata({OBJECT_ID: {PRIMARY_KEY: "0"}})
        fault_point(FaultPoint.COLUMNS_CHANGED)


def has_required_columns(manifest: Manifest) -> bool:
    """Whether a write needs no `upgrade_columns` first."""
    return _has_key(manifest) and not _find_outdated_columns(manifest)


def _has_key(manifest: Manifest) -> bool:
    """Whether Lance refuses one of two concurrent commits that insert the same id."""
    field = manifest.dataset.schema.field(OBJECT_ID)
    is_key = any(key.startswith(_KEY_PREFIX) for key in field.metadata or {})
    return is_key and not field.nullable and field.type == COLUMN_TYPES[OBJECT_ID]


def _find_outdated_columns(manifest: Manifest) -> list[pa.Field]:
    """Return the columns that are missing, or whose integer type is too narrow."""
    properties = manifest.properties
    fields = [field for spec in properties.specs.values() for field in spec.fields]
    wanted = {field.column: column_of(field) for field in fields}
    if properties.mode == "strong":
        strong = [*pin_columns_of(properties), pa.field(METADATA, COLUMN_TYPES[METADATA])]
        wanted |= {field.name: field for field in strong}
    stored = {column.name: column.type for column in manifest.dataset.schema}
    return [
        field
        for name, field in wanted.items()
        if name not in stored or not _can_store(stored[name], field.type)
    ]


def _can_store(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether an integer column can hold every value of another integer type.

    An interrupted promotion leaves a column wider than its field, which is fine.
    """
    if not (pt.is_integer(stored) and pt.is_integer(wanted)):
        return True
    if pt.is_signed_integer(stored) == pt.is_signed_integer(wanted):
        return bool(stored.bit_width >= wanted.bit_width)
    return bool(pt.is_signed_integer(stored) and stored.bit_width > wanted.bit_width)


def drop_columns(manifest: Manifest, names: list[str]) -> None:
    """Remove columns."""
    _open_for_write(manifest).drop_columns(names)
    fault_point(FaultPoint.COLUMNS_CHANGED)


def widen_columns(manifest: Manifest, fields: Iterable[PartitionField]) -> None:
    """Change the column of each partition field to the type of the field."""
    dataset = _open_for_write(manifest)
    for field in fields:
        if dataset.schema.field(field.column).type != field.result_type:
            change: Any = {"path": field.column, "data_type": field.result_type}
            dataset.alter_columns(change)
            fault_point(FaultPoint.COLUMNS_CHANGED)


def column_of(field: PartitionField) -> pa.Field:
    """Return the manifest's column of a partition field."""
    return pa.field(field.column, field.result_type)


def build_object_rows(rows: list[tuple[str, str, str | None]]) -> pa.Table:
    """Build manifest rows of namespaces and tables from their id, type and location."""
    object_ids, kinds, locations = zip(*rows, strict=True)
    return pa.table(
        {
            "object_id": pa.array(object_ids, pa.string()),
            "object_type": pa.array(kinds, pa.string()),
            "location": pa.array(locations, pa.string()),
            "metadata": pa.repeat(pa.scalar("{}"), len(rows)),
        }
    )
