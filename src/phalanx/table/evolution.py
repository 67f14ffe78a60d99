"""Evolution of a table's partition specs and schema.

The manifest's metadata is authoritative and changes in one commit. The columns of the manifest and
the schemas of the leaves may be updated later; readers stay correct.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

import pyarrow as pa

from phalanx.errors import CommitConflict, InvalidArgument, SchemaMismatch
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.transform import Identity
from phalanx.model.transforms.truncate import Truncate
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.lance.schema import read_lance_schema
from phalanx.storage.leaf.fields import is_numbered_by_position
from phalanx.storage.leaf.leaf import check_storable
from phalanx.storage.leaf.reconcile import align_leaf
from phalanx.storage.manifest.changes import (
    add_columns,
    change_properties,
    insert_rows,
    widen_columns,
    write_properties,
)
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.partition_rows import build_spec_namespace_row
from phalanx.storage.state.properties import Properties
from phalanx.table.transactions.strong_mode import check_leaves_alignable, complete_change

_LOGGER = logging.getLogger("phalanx.table")
SchemaChange = Callable[[Properties], Properties]


def evolve(manifest: Manifest, partition_by: PartitionBy) -> tuple[Manifest, PartitionSpec]:
    """Add a spec version. Of two concurrent calls one raises `CommitConflict`."""
    start = manifest.properties
    spec = build_next_spec(
        partition_by, start.schema, start.specs, is_draft=start.has_expression_specs
    )
    if spec.fields == start.spec.fields:
        return manifest, start.spec
    manifest = _change_columns(manifest, lambda latest: add_columns(latest, spec.fields))
    specs = {**manifest.properties.specs, spec.id: spec}
    manifest = change_properties(manifest, dataclasses.replace(manifest.properties, specs=specs))
    if manifest.properties.mode == "strong":
        return complete_change(manifest), spec
    _insert_spec_namespace(manifest)
    _LOGGER.info("Evolved %s to spec %d by %s", manifest.root, spec.id, spec.label(start.schema))
    return manifest.load_latest(), spec


def add_column(manifest: Manifest, field: pa.Field) -> Manifest:
    """Add a nullable column."""
    if not isinstance(field, pa.Field):
        raise InvalidArgument(f"Cannot add {field!r}: expected pa.field(name, type).")
    arguments = {"name": field.name, "type": str(field.type)}
    return change_schema(
        manifest, "add_column", arguments, lambda properties: with_added_column(properties, field)
    )


def drop_column(manifest: Manifest, name: str) -> Manifest:
    """Drop a column that the newest spec does not use."""
    return change_schema(
        manifest,
        "drop_column",
        {"name": name},
        lambda properties: with_dropped_column(properties, name),
    )


def rename_column(manifest: Manifest, old: str, new: str) -> Manifest:
    """Give a column another name."""
    arguments = {"name": old, "new": new}
    return change_schema(
        manifest,
        "rename_column",
        arguments,
        lambda properties: with_renamed_column(properties, old, new),
    )


def promote_column(manifest: Manifest, name: str, type: pa.DataType) -> Manifest:
    """Give a column a wider type."""
    arguments = {"name": str(name), "type": str(type)}
    return change_schema(
        manifest,
        "promote_column",
        arguments,
        lambda properties: with_promoted_column(properties, name, type),
    )


def with_added_column(properties: Properties, field: pa.Field) -> Properties:
    """Return the properties with another column."""
    schema = properties.schema.add(field)
    check_storable(schema)
    return dataclasses.replace(properties, schema=schema)


def with_renamed_column(properties: Properties, old: str, new: str) -> Properties:
    """Return the properties with another name for a column."""
    schema = properties.schema.rename(old, new)
    check_storable(schema)
    return dataclasses.replace(properties, schema=schema)


def with_dropped_column(properties: Properties, name: str) -> Properties:
    """Return the properties without a column, which the newest spec must not use."""
    schema = properties.schema
    smaller = schema.drop(name)
    gone = set(schema.ids) - set(smaller.ids)
    for field in properties.spec.fields:
        if gone & set(field.source_ids):
            raise SchemaMismatch(
                f"Cannot drop column {name!r}: the table is partitioned by {field.label(schema)}. "
                "Evolve to a spec without it first."
            )
    return dataclasses.replace(properties, schema=smaller)


def with_promoted_column(properties: Properties, name: str, type: pa.DataType) -> Properties:
    """Return the properties with a wider column, and wider fields of its identity or truncate."""
    schema = properties.schema.promote(name, type)
    check_storable(schema)

    def widen(field: PartitionField) -> PartitionField:
        if not isinstance(field.derivation, Identity | Truncate):
            return field
        (source,) = field.source_ids
        if schema.path_of(source) is None:
            return field
        kind = field.derivation.result_type(schema.type_of(source))
        return dataclasses.replace(field, result_type=kind)

    specs = {
        number: dataclasses.replace(spec, fields=tuple(map(widen, spec.fields)))
        for number, spec in properties.specs.items()
    }
    return dataclasses.replace(properties, schema=schema, specs=specs)


def change_schema(
    manifest: Manifest, name: str, arguments: Mapping[str, str], change: SchemaChange
) -> Manifest:
    """Change the schema, then every leaf; finish an interrupted change first.

    After a crash, the same call again finishes the change.
    """
    wanted = {"change": name, **arguments}
    pending = json.dumps(wanted, sort_keys=True)
    if manifest.properties.pending is not None:
        is_repeated = manifest.properties.pending_change == wanted
        manifest = finish_change(manifest)
        if is_repeated:
            return manifest
    # Refuse an impossible change before anything is written.
    change(manifest.properties)
    check_leaves_alignable(manifest)
    manifest = _number_leaves(manifest)
    changed = change(manifest.properties)
    if changed.specs != manifest.properties.specs:
        wider = [field for spec in changed.specs.values() for field in spec.fields]
        manifest = _change_columns(manifest, lambda latest: widen_columns(latest, wider))
        # Other writers may have changed properties without raising the epoch.
        changed = change(manifest.properties)
    manifest = change_properties(manifest, dataclasses.replace(changed, pending=pending))
    if manifest.properties.mode == "weak":
        # In strong mode the change is a snapshot, which is logged.
        _LOGGER.info(
            "Changed the schema of %s: %s",
            *(manifest.root, ", ".join([name, *(f"{key} {arguments[key]}" for key in arguments)])),
        )
    return finish_change(manifest)


def finish_change(manifest: Manifest) -> Manifest:
    """Align every leaf with the namespace's schema."""
    if manifest.properties.mode == "strong":
        return _clear_pending(complete_change(manifest), manifest.properties.pending)
    # A writer that changed the schema since aligns the leaves itself.
    with suppress(CommitConflict):
        _align_leaves(manifest, _list_locations(manifest))
        return _clear_pending(manifest.load_latest(), manifest.properties.pending)
    return manifest.load_latest()


def _number_leaves(manifest: Manifest) -> Manifest:
    """Give the namespace's field ids to leaves whose columns are still matched by name.

    After a rename or a drop, only ids identify the columns.
    """
    if manifest.properties.mode == "strong":
        return complete_change(manifest)
    schema = manifest.properties.schema
    _align_leaves(
        manifest,
        [
            location
            for location in _list_locations(manifest)
            if is_numbered_by_position(read_lance_schema(location.open_leaf()), schema)
        ],
    )
    return manifest


def _list_locations(manifest: Manifest) -> list[Location]:
    return [
        manifest.root.leaf(location)
        for leaves in manifest.list_leaves().values()
        for location in leaves.column(LEAF_LOCATION).to_pylist()
    ]


def _align_leaves(manifest: Manifest, locations: list[Location]) -> None:
    schema, mark = manifest.properties.schema, manifest.shape.mark
    map_parallel(lambda each: align_leaf(each, schema, manifest.check_current, mark), locations)


def _clear_pending(manifest: Manifest, done: str | None) -> Manifest:
    """Record that a change has reached every leaf, unless another change began since."""
    with suppress(CommitConflict):
        if manifest.properties.pending == done:
            write_properties(manifest, dataclasses.replace(manifest.properties, pending=None))
    return manifest.load_latest()


def _change_columns(manifest: Manifest, prepare: Callable[[Manifest], None]) -> Manifest:
    """Change columns of the manifest, and return the result; refuse if its properties changed."""
    epoch = manifest.properties.epoch

    def check_epoch(latest: Manifest) -> Manifest:
        if latest.properties.epoch != epoch:
            raise CommitConflict(
                f"Cannot change {manifest.root}: another writer changed its schema or its specs "
                "at the same time. Look at the table as it is now, and try again."
            )
        return latest

    def attempt() -> Manifest:
        latest = check_epoch(manifest.load_latest())
        prepare(latest)
        # New columns do not conflict with new properties, which may have been committed in between.
        return check_epoch(latest.load_latest())

    return retry_conflicts(attempt)


def _insert_spec_namespace(manifest: Manifest) -> None:
    def attempt() -> None:
        latest = manifest.load_latest()
        insert_rows(latest, build_spec_namespace_row(latest))

    retry_conflicts(attempt)
