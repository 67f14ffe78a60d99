"""Changes of a namespace's properties: its specs and its schema.

The manifest's metadata is the truth and changes in one commit; what follows it — columns of the
manifest, schemas of the leaves — can lag behind without a reader noticing, and be finished later.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from contextlib import suppress

import pyarrow as pa

from phalanx.errors import CommitConflict, SchemaMismatch
from phalanx.model.specs.evolution import next_spec
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.transform import Identity
from phalanx.model.transforms.truncate import Truncate
from phalanx.planning.pruning.scan_plan import LOCATION
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.lance.retries import until_won
from phalanx.storage.lance.schema import schema_of
from phalanx.storage.leaf.fields import is_numbered_by_place
from phalanx.storage.leaf.leaf import check_storable
from phalanx.storage.leaf.reconcile import align
from phalanx.storage.manifest.changes import (
    add_columns,
    change_properties,
    insert,
    put_properties,
    widen_columns,
)
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.partition_rows import spec_namespace_row
from phalanx.storage.state.properties import Properties
from phalanx.table.transactions.strong_mode import check_leaves, complete

SchemaChange = Callable[[Properties], Properties]


def evolve(manifest: Manifest, partition_by: PartitionBy) -> tuple[Manifest, PartitionSpec]:
    """Add a spec version; of two at the same time one wins, and the other is told."""
    start = manifest.properties
    spec = next_spec(partition_by, start.schema, start.specs, drafted=start.is_drafted)
    if spec.fields == start.spec.fields:
        return manifest, start.spec
    manifest = _prepared(manifest, lambda latest: add_columns(latest, spec.fields))
    specs = {**manifest.properties.specs, spec.id: spec}
    manifest = change_properties(manifest, dataclasses.replace(manifest.properties, specs=specs))
    if manifest.properties.mode == "strong":
        return complete(manifest), spec
    _insert_spec_namespace(manifest)
    return manifest.latest(), spec


def added(properties: Properties, field: pa.Field) -> Properties:
    """With one more column."""
    schema = properties.schema.add(field)
    check_storable(schema)
    return dataclasses.replace(properties, schema=schema)


def renamed(properties: Properties, old: str, new: str) -> Properties:
    """With another name for a column."""
    schema = properties.schema.rename(old, new)
    check_storable(schema)
    return dataclasses.replace(properties, schema=schema)


def dropped(properties: Properties, name: str) -> Properties:
    """Without a column, which the newest spec must not need."""
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


def promoted(properties: Properties, name: str, type: pa.DataType) -> Properties:
    """With a wider column, and wider partition values where they are the column's own."""
    schema = properties.schema.promote(name, type)
    check_storable(schema)

    def widened(field: PartitionField) -> PartitionField:
        if not isinstance(field.derivation, Identity | Truncate):
            return field
        (source,) = field.source_ids
        if schema.path_of(source) is None:
            return field
        kind = field.derivation.result_type(schema.type_of(source))
        return dataclasses.replace(field, result_type=kind)

    specs = {
        number: dataclasses.replace(spec, fields=tuple(map(widened, spec.fields)))
        for number, spec in properties.specs.items()
    }
    return dataclasses.replace(properties, schema=schema, specs=specs)


def change_schema(
    manifest: Manifest, name: str, arguments: Mapping[str, str], change: SchemaChange
) -> Manifest:
    """Change the schema, then every leaf; a change that was cut off is finished first.

    The same call again, after a crash, finishes what it began.
    """
    wanted = json.dumps({"change": name, **arguments}, sort_keys=True)
    if manifest.properties.pending is not None:
        repeated = manifest.properties.pending == wanted
        manifest = finish(manifest)
        if repeated:
            return manifest
    # What cannot be done is refused before anything is written.
    change(manifest.properties)
    check_leaves(manifest)
    manifest = _numbered(manifest)
    changed = change(manifest.properties)
    if changed.specs != manifest.properties.specs:
        wider = [field for spec in changed.specs.values() for field in spec.fields]
        manifest = _prepared(manifest, lambda latest: widen_columns(latest, wider))
        # Others may have changed what leaves the epoch as it is.
        changed = change(manifest.properties)
    return finish(change_properties(manifest, dataclasses.replace(changed, pending=wanted)))


def finish(manifest: Manifest) -> Manifest:
    """Bring every leaf in line with the namespace's schema."""
    if manifest.properties.mode == "strong":
        return _without_pending(complete(manifest), manifest.properties.pending)
    # A writer that has changed the schema meanwhile does, or did, the same for its own.
    with suppress(CommitConflict):
        _align(manifest, _locations(manifest))
        return _without_pending(manifest.latest(), manifest.properties.pending)
    return manifest.latest()


def _numbered(manifest: Manifest) -> Manifest:
    """Give the namespace's ids to leaves that are read by their names, while these are its own.

    After the change only ids could tell what became of each column.
    """
    if manifest.properties.mode == "strong":
        return complete(manifest)
    schema = manifest.properties.schema
    _align(
        manifest,
        [
            location
            for location in _locations(manifest)
            if is_numbered_by_place(schema_of(location.open_leaf()), schema)
        ],
    )
    return manifest


def _locations(manifest: Manifest) -> list[Location]:
    return [
        manifest.root.child(location)
        for leaves in manifest.leaves().values()
        for location in leaves.column(LOCATION).to_pylist()
    ]


def _align(manifest: Manifest, locations: list[Location]) -> None:
    schema, mark = manifest.properties.schema, manifest.shape.mark
    in_parallel(lambda each: align(each, schema, manifest.check_current, mark), locations)


def _without_pending(manifest: Manifest, done: str | None) -> Manifest:
    """Note that a change has reached every leaf, unless another one has come since."""
    with suppress(CommitConflict):
        if manifest.properties.pending == done:
            put_properties(manifest, dataclasses.replace(manifest.properties, pending=None))
    return manifest.latest()


def _prepared(manifest: Manifest, prepare: Callable[[Manifest], None]) -> Manifest:
    """The manifest after a harmless change of its columns; refuses if its properties changed."""
    epoch = manifest.properties.epoch

    def checked(latest: Manifest) -> Manifest:
        if latest.properties.epoch != epoch:
            raise CommitConflict(
                f"Cannot change {manifest.root}: another writer changed its schema or its specs "
                "at the same time. Look at the table as it is now, and try again."
            )
        return latest

    def attempt() -> Manifest:
        latest = checked(manifest.latest())
        prepare(latest)
        # New columns do not conflict with new properties: these may have come in between.
        return checked(latest.latest())

    return until_won(attempt)


def _insert_spec_namespace(manifest: Manifest) -> None:
    def attempt() -> None:
        latest = manifest.latest()
        insert(latest, spec_namespace_row(latest))

    until_won(attempt)
