"""Commits to the manifest: rows that come and go, properties, and the columns of partition fields.

A manifest is one version: none of these moves it. A lost race raises, and changes nothing. What
Lance refuses of two commits, and what not, `tests/integration/test_lance_facts.py` shows.
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
from phalanx.storage.lance.checksums import complete
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.location import new_cache
from phalanx.storage.lance.ownership import check_in_place
from phalanx.storage.lance.retries import is_lost_race
from phalanx.storage.manifest.columns import METADATA, OBJECT_ID, PIN_COLUMNS, TYPES, converted
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.rows import Addresses, change_rows, is_piled_up
from phalanx.storage.state.properties import EPOCH, Properties

# By this Lance knows the key of a table, which it does not enforce but looks at in a race.
PRIMARY_KEY = "lance-schema:unenforced-primary-key:position"
_KEY_PREFIX = b"lance-schema:unenforced-primary-key"


def insert(manifest: Manifest, rows: pa.Table) -> None:
    """Add the rows that are not there, in one commit; a lost race if one is there by now."""
    ids = rows.column("object_id")
    assert len(pc.unique(ids)) == len(ids), "duplicate keys would both be inserted"
    rows = completed(manifest, rows)
    merge = _writable(manifest).merge_insert("object_id").when_not_matched_insert_all()
    merge.use_index(False).conflict_retries(0).execute(rows)
    _record(manifest)
    _tidy(manifest)


def _writable(manifest: Manifest) -> lance.LanceDataset:
    """This version once more: what writes to a table moves it to the version that it made."""
    check_in_place(manifest.place.uri, manifest.root.uri)
    return manifest.opened_again()


def _tidy(manifest: Manifest) -> None:
    """Write small fragments anew as one; whoever comes in between does it the next time."""
    latest = manifest.latest()
    if is_piled_up(latest.dataset):
        with suppress(OSError):
            change(latest, latest.dataset.schema.empty_table(), np.empty(0, np.uint64))


def upsert(manifest: Manifest, rows: pa.Table) -> None:
    """Put rows in place, new or not, in one commit; a lost race if one came meanwhile.

    Columns that the rows do not have become NULL: those that are there come whole.
    """
    merge = _writable(manifest).merge_insert("object_id").when_matched_update_all()
    merge = merge.when_not_matched_insert_all().use_index(False).conflict_retries(0)
    merge.execute(completed(manifest, rows))
    _record(manifest)


def _record(manifest: Manifest) -> None:
    """Write the checksums of what Lance itself has committed, where the table wants them."""
    place = manifest.place
    if place.checksums:
        complete(place, place.open(cache=new_cache()))


def change(
    manifest: Manifest, added: pa.Table, removed: Addresses, *, everything: bool = False
) -> None:
    """Add rows, and remove those at some addresses of this version, in one commit.

    With `everything` all rows are written anew.

    A lost race if others removed rows of the same fragments meanwhile.
    """
    rows = completed(manifest, added)
    place = manifest.place
    check_in_place(place.uri, manifest.root.uri)
    change_rows(manifest.dataset, place, rows, removed, everything=everything)


def completed(manifest: Manifest, rows: pa.Table) -> pa.Table:
    """The rows with all columns of the manifest, NULL where they have none."""
    ids = rows.column("object_id")
    assert len(pc.unique(ids)) == len(ids), "duplicate keys would both be inserted"
    schema = manifest.dataset.schema
    # Others have chosen other types; and a promotion that was cut off has made a column wider than
    # its field is yet.
    columns = [
        converted(rows.column(field.name), field.type, field.name, manifest.root)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def change_properties(manifest: Manifest, properties: Properties) -> Manifest:
    """Put other properties in place; `CommitConflict` if someone else changed them first.

    They must have been made from those of this manifest, which Lance compares by its version.
    """
    assert properties.epoch == manifest.properties.epoch, "made from another manifest's properties"
    return put_properties(manifest, replace(properties, epoch=manifest.properties.epoch + 1))


def put_properties(manifest: Manifest, properties: Properties) -> Manifest:
    """The same, for a change that nobody needs to be told of."""
    try:
        _writable(manifest).update_metadata({**properties.to_metadata()})
    except OSError as error:
        if not is_lost_race(error):
            raise
        raise CommitConflict(
            f"Cannot change {manifest.root}: another writer changed its schema or its specs at "
            f"the same time ({EPOCH} {manifest.properties.epoch} is over). Look at the table as "
            "it is now, and try again."
        ) from None
    _record(manifest)
    reach(Step.PROPERTIES_CHANGED)
    return manifest.latest()


def add_columns(manifest: Manifest, fields: Iterable[PartitionField]) -> None:
    """Give each partition field its column, where it has none."""
    present = {column.name: column.type for column in manifest.dataset.schema}
    # The column of a field that an earlier spec has too may be wider, never gone.
    used = {field.column for spec in manifest.properties.specs.values() for field in spec.fields}
    new = [
        field
        for field in fields
        if field.column not in used and present.get(field.column) != field.result_type
    ]
    dataset = _writable(manifest)
    # An evolution that lost its race may have left a column of another type behind.
    if stale := [field.column for field in new if field.column in present]:
        dataset.drop_columns(stale)
        reach(Step.COLUMNS_CHANGED)
    if new:
        dataset.add_columns([column_of(field) for field in new])
        reach(Step.COLUMNS_CHANGED)


def pin_columns(properties: Properties) -> tuple[pa.Field, ...]:
    """The manifest's columns that say what is to be read of a leaf."""
    return PIN_COLUMNS if properties.is_drafted else PIN_COLUMNS[:1]


def fit_columns(manifest: Manifest) -> None:
    """Give the manifest the columns that a write needs, and another writer has left out or made
    too narrow.
    """
    stored = {column.name: column.type for column in manifest.dataset.schema}
    unfit = _unfit_columns(manifest)
    dataset = _writable(manifest)
    if missing := [each for each in unfit if each.name not in stored]:
        dataset.add_columns(missing)
        reach(Step.COLUMNS_CHANGED)
    for field in unfit:
        if field.name in stored:
            change: Any = {"path": field.name, "data_type": field.type}
            dataset.alter_columns(change)
            reach(Step.COLUMNS_CHANGED)
    if not _has_key(manifest):
        # Lance does one of the two at a time, and takes no column with NULLs for a key.
        if stored[OBJECT_ID] != TYPES[OBJECT_ID]:
            change = {"path": OBJECT_ID, "data_type": TYPES[OBJECT_ID]}
            dataset.alter_columns(change)
        change = {"path": OBJECT_ID, "nullable": False}
        dataset.alter_columns(change)
        dataset.update_field_metadata({OBJECT_ID: {PRIMARY_KEY: "0"}})
        reach(Step.COLUMNS_CHANGED)


def has_fit_columns(manifest: Manifest) -> bool:
    """Whether a write can go on with the columns that are there."""
    return _has_key(manifest) and not _unfit_columns(manifest)


def _has_key(manifest: Manifest) -> bool:
    """Whether Lance refuses one of two commits that insert the same id: else both stand."""
    field = manifest.dataset.schema.field(OBJECT_ID)
    is_key = any(key.startswith(_KEY_PREFIX) for key in field.metadata or {})
    return is_key and not field.nullable and field.type == TYPES[OBJECT_ID]


def _unfit_columns(manifest: Manifest) -> list[pa.Field]:
    """The columns that are not there, or cannot hold all numbers that they may have to."""
    properties = manifest.properties
    fields = [field for spec in properties.specs.values() for field in spec.fields]
    wanted = {field.column: column_of(field) for field in fields}
    if properties.mode == "strong":
        strong = [*pin_columns(properties), pa.field(METADATA, TYPES[METADATA])]
        wanted |= {field.name: field for field in strong}
    stored = {column.name: column.type for column in manifest.dataset.schema}
    return [
        field
        for name, field in wanted.items()
        if name not in stored or not _holds(stored[name], field.type)
    ]


def _holds(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of integers has room for those of another type.

    A promotion that was cut off has made a column wider than its field is yet: it stays so.
    """
    if not (pt.is_integer(stored) and pt.is_integer(wanted)):
        return True
    if pt.is_signed_integer(stored) == pt.is_signed_integer(wanted):
        return bool(stored.bit_width >= wanted.bit_width)
    return bool(pt.is_signed_integer(stored) and stored.bit_width > wanted.bit_width)


def drop_columns(manifest: Manifest, names: list[str]) -> None:
    """Remove columns that nobody reads."""
    _writable(manifest).drop_columns(names)
    reach(Step.COLUMNS_CHANGED)


def widen_columns(manifest: Manifest, fields: Iterable[PartitionField]) -> None:
    """Give the column of each partition field the type the field now has."""
    dataset = _writable(manifest)
    for field in fields:
        if dataset.schema.field(field.column).type != field.result_type:
            change: Any = {"path": field.column, "data_type": field.result_type}
            dataset.alter_columns(change)
            reach(Step.COLUMNS_CHANGED)


def column_of(field: PartitionField) -> pa.Field:
    """The manifest's column of a partition field."""
    return pa.field(field.column, field.result_type)


def plain_rows(rows: list[tuple[str, str, str | None]]) -> pa.Table:
    """Manifest rows of namespaces and tables: id, type and location."""
    object_ids, kinds, locations = zip(*rows, strict=True)
    return pa.table(
        {
            "object_id": pa.array(object_ids, pa.string()),
            "object_type": pa.array(kinds, pa.string()),
            "location": pa.array(locations, pa.string()),
            "metadata": pa.repeat(pa.scalar("{}"), len(rows)),
        }
    )
