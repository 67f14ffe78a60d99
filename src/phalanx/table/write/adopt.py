"""Adoption: a Lance table that exists becomes a partition, where it is, without a copy."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset, LanceOperation

from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.locations import SCHEME
from phalanx.model.schema.grouping import positions
from phalanx.model.specs.partition_key import SPEC_ID, PartitionKey, keys_of
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.fields import source_columns
from phalanx.planning.pruning.scan_plan import LOCATION, OBJECT_ID
from phalanx.storage.commit import head
from phalanx.storage.commit.head import LeafVersion
from phalanx.storage.commit.publishing import check_main, locations_of, publish
from phalanx.storage.lance.checksums import complete
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import Owner
from phalanx.storage.lance.retries import until_won
from phalanx.storage.lance.schema import is_aligned, schema_of
from phalanx.storage.leaf.adoption import (
    check_renumbering,
    check_schema,
    claim,
    key_of_rows,
    open_table,
    renumber,
)
from phalanx.storage.leaf.fields import is_numbered_by_place
from phalanx.storage.leaf.reconcile import check_alignable
from phalanx.storage.manifest.changes import insert
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.partition_rows import new_partitions
from phalanx.table.pinned import check_unpinned
from phalanx.table.read.keys import keys_named
from phalanx.table.transactions.strong_mode import begin

_FILE = "file://"


def adopt(
    manifest: Manifest,
    uri: str | os.PathLike[str],
    wanted: Callable[[PartitionSpec], pa.Table] | None,
) -> PartitionKey:
    """Make the table at `uri` a partition of the newest spec; the key of that partition.

    `wanted` gives the partition that the caller names; it must be that of the rows.
    """
    location = Location.of(os.fspath(uri).removeprefix(_FILE), manifest.root.storage_options)
    place = _place(manifest.root, location)
    if (listed := _listed(manifest, location, place)) is not None:
        return _take_over(manifest, listed)

    def attempt() -> PartitionKey:
        current = manifest.latest()
        properties = current.properties
        _check_weak(current, location)
        if _listed(current, location, place) is not None:
            raise _already(current, location)
        dataset = open_table(location)
        check_schema(dataset, properties.schema, location)
        derived = key_of_rows(dataset, properties.spec, properties.schema, location)
        named = wanted(properties.spec) if wanted else None
        key = _agreed(derived, named, properties.spec, location)
        _check_free(current, key, location)
        check_renumbering(dataset, properties.schema, location)
        owner = Owner(properties.salt, current.root.uri)
        renumber(claim(dataset, owner, location), properties.schema, location)
        if current.root.checksums:
            adopted = current.root.child(place)
            complete(adopted, adopted.open_leaf())
        insert(current, new_partitions(current, key, lambda _: place))
        [found] = keys_of(key)
        return found

    return until_won(attempt)


def _place(root: Location, location: Location) -> str:
    """The location for the manifest: relative inside the root, absolute elsewhere.

    Never `../`: stock clients leave it out, and would open another table of that name.
    """
    if SCHEME.match(location.uri) or SCHEME.match(root.uri):
        inside = location.uri.removeprefix(f"{root.uri}/")
        return inside
    absolute = os.path.abspath(location.uri)
    inside = os.path.relpath(os.path.realpath(absolute), os.path.realpath(root.uri))
    return absolute if inside.split(os.sep)[0] in ("..", ".") else inside


def _take_over(manifest: Manifest, object_id: str) -> PartitionKey:
    """Make a partition that is listed already the table's own; its key.

    Another writer may have listed it and numbered its columns otherwise, or the table has another
    place since it was adopted. Who adopts it says that its names are right.
    """
    location = locations_of(manifest, [object_id])[object_id]
    trusted = dataclasses.replace(location, trusts=True)
    is_ours = location.why_not_ours() is None
    is_numbered = not _is_numbered_otherwise(open_table(trusted), manifest, trusted)
    if is_ours and is_numbered:
        raise _already(manifest, location)
    if not is_ours:
        _claim_listed(manifest, object_id, trusted)
    if not is_numbered:
        until_won(lambda: _renumber_listed(manifest.latest(), object_id, trusted))
    [key] = keys_named(manifest, {object_id})
    return key


def _claim_listed(manifest: Manifest, object_id: str, location: Location) -> None:
    """Write down that a partition is the table's: one outside of its folder needs that."""
    owner = Owner(manifest.properties.salt, manifest.root.uri)
    if manifest.properties.mode == "weak":
        claim(location.open(), owner, location, is_listed=True)
    else:
        head.until_committed(lambda: _claim_strongly(manifest, object_id, owner), manifest)
        publish(manifest, [object_id])


def _is_numbered_otherwise(
    dataset: lance.LanceDataset, manifest: Manifest, location: Location
) -> bool:
    schema = manifest.properties.schema
    if is_aligned(dataset, schema):
        return False
    if is_numbered_by_place(schema_of(dataset), schema):
        return True
    try:
        check_alignable(location, dataset, schema)
    except SchemaMismatch:
        return True
    return False


def _renumber_listed(manifest: Manifest, object_id: str, location: Location) -> None:
    """Give a listed table the namespace's field ids, by its names."""
    properties = manifest.properties
    _check_weak(manifest, location)
    check_unpinned(manifest)
    dataset = open_table(location)
    for number, leaves in manifest.leaves().items():
        own = leaves.filter(pc.equal(leaves.column(OBJECT_ID), object_id))
        if not own.num_rows:
            continue
        spec = properties.specs[number]
        # Columns may have been added since it was written.
        needed = set(source_columns(spec, properties.schema))
        may_lack = {each.name for each in properties.schema.arrow if each.nullable} - needed
        check_schema(dataset, properties.schema, location, may_lack)
        derived = key_of_rows(dataset, spec, properties.schema, location)
        if derived is not None:
            _agreed(derived, manifest.keys_of_leaves(number, own), spec, location)
        check_renumbering(dataset, properties.schema, location)
        owner = Owner(properties.salt, manifest.root.uri)
        dataset = claim(dataset, owner, location, is_listed=True)
        renumber(dataset, properties.schema, location)
        return
    raise AssertionError(f"{object_id} is no leaf")


def _check_weak(manifest: Manifest, location: Location) -> None:
    if manifest.properties.mode != "weak":
        raise PhalanxError(
            f"Cannot adopt {location} into a table in {manifest.properties.mode} mode: expected "
            "weak mode. Change it with set_mode('weak') first."
        )


def _claim_strongly(manifest: Manifest, object_id: str, owner: Owner) -> None:
    """The same, as a snapshot: the version that is read has the record, and main."""
    base, newest = begin(manifest)
    location = dataclasses.replace(locations_of(base, [object_id])[object_id], trusts=True)
    version = base.versions([object_id])[object_id]
    assert version is not None
    check_main(base, object_id, location, version)
    main = claim(location.open(), owner, location, is_listed=True)
    said = LanceOperation.UpdateMap(dict[str, str | None](owner.to_metadata()))
    staged = LanceDataset.commit(
        location.open_leaf(version),
        LanceOperation.UpdateConfig(table_metadata_updates=said),
        read_version=version,
        detached=True,
        **location.write_options,
    )
    # It leaves every row as it was.
    leaf = LeafVersion(object_id, int(staged.version), "rewrite", main=int(main.version))
    head.commit(base, newest, [leaf], "adopt")


def _listed(manifest: Manifest, location: Location, place: str) -> str | None:
    """The object id of a table that is a partition already, whatever its partition is."""
    spellings = {place, location.uri, f"{_FILE}{location.uri}", manifest.root.child(place).uri}
    if not SCHEME.match(location.uri):
        spellings.add(os.path.realpath(location.uri))
    listed = ", ".join("'" + text.replace("'", "''") + "'" for text in sorted(spellings))
    where = f"object_type = 'table' AND location IN ({listed})"
    found = manifest.table(where, ["object_id"], limit=1)
    return str(found.column("object_id")[0].as_py()) if found.num_rows else None


def _already(manifest: Manifest, location: Location) -> PhalanxError:
    return PhalanxError(
        f"Cannot adopt {location}: it is a partition of {manifest.root} already, and belongs to "
        "it. There is nothing to do."
    )


def _agreed(
    derived: pa.Table | None, wanted: pa.Table | None, spec: PartitionSpec, location: Location
) -> pa.Table:
    fields = ", ".join(field.field_id for field in spec.fields)
    if derived is None:
        if wanted is None and spec.fields:
            raise PhalanxError(
                f"Cannot adopt {location} without partition values: it has no rows to take them "
                f"from. Name them: expected {fields}."
            )
        derived = wanted
    if derived is None:
        return pa.table({SPEC_ID: pa.array([spec.id], pa.int32())})
    if wanted is not None and positions(wanted, derived)[0] < 0:
        [named], [real] = keys_of(wanted), keys_of(derived)
        raise PhalanxError(
            f"Cannot adopt {location} as {named.values}: its rows have {real.values} ({fields}). "
            "Correct the values, or leave them out."
        )
    return derived


def _check_free(manifest: Manifest, key: pa.Table, location: Location) -> None:
    """Refuse a partition that exists, even an empty one: writers may be about to fill it."""
    place = int(manifest.places(key)[0])
    if place < 0:
        return
    existing = manifest.leaves()[manifest.properties.spec.id].column(LOCATION)[place].as_py()
    [shown] = keys_of(key)
    raise PhalanxError(
        f"Cannot adopt {location}: the partition {shown.values} exists at "
        f"{manifest.root.child(existing)}. Append its rows instead."
    )
