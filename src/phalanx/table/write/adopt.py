"""Adoption: an existing Lance table becomes a partition in place, without a copy."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset, LanceOperation

from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.locations import SCHEME
from phalanx.model.schema.grouping import find_positions
from phalanx.model.specs.partition_key import SPEC_ID_COLUMN, PartitionKey, read_keys
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.fields import list_source_columns
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION, LEAF_OBJECT_ID
from phalanx.storage.commit import head
from phalanx.storage.commit.head import LeafVersion
from phalanx.storage.commit.publishing import check_main, locations_of, publish
from phalanx.storage.lance.checksums import record_missing
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import Owner
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.lance.schema import is_aligned, read_lance_schema
from phalanx.storage.leaf.adoption import (
    check_adopted_schema,
    check_renumbering,
    find_partition_key,
    open_for_adoption,
    record_owner,
    renumber_fields,
)
from phalanx.storage.leaf.fields import is_numbered_by_position
from phalanx.storage.leaf.reconcile import check_alignable
from phalanx.storage.manifest.changes import insert_rows
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.partition_rows import build_partition_rows
from phalanx.table.transactions.strong_mode import check_unpinned, load_head

_FILE = "file://"
_LOGGER = logging.getLogger("phalanx.table")


def adopt(
    manifest: Manifest,
    uri: str | os.PathLike[str],
    make_key: Callable[[PartitionSpec], pa.Table] | None,
) -> PartitionKey:
    """Make the table at `uri` a partition of the newest spec, and return its key.

    `make_key` returns the key that the caller names; it must be the key of the rows.
    """
    location = Location.of(os.fspath(uri).removeprefix(_FILE), manifest.root.storage_options)
    place = _location_in_manifest(manifest.root, location)
    if (listed := _find_listed(manifest, location, place)) is not None:
        return _take_over(manifest, listed)

    def attempt() -> PartitionKey:
        current = manifest.load_latest()
        properties = current.properties
        _check_weak(current, location)
        if _find_listed(current, location, place) is not None:
            raise _already_adopted_error(current, location)
        dataset = open_for_adoption(location)
        check_adopted_schema(dataset, properties.schema, location)
        derived = find_partition_key(dataset, properties.spec, properties.schema, location)
        named = make_key(properties.spec) if make_key else None
        key = _reconcile_keys(derived, named, properties.spec, location)
        _check_free(current, key, location)
        check_renumbering(dataset, properties.schema, location)
        owner = Owner(properties.salt, current.root.uri)
        renumber_fields(record_owner(dataset, owner, location), properties.schema, location)
        if current.root.checksums:
            adopted = current.root.leaf(place)
            record_missing(adopted, adopted.open_leaf())
        insert_rows(current, build_partition_rows(current, key, lambda _: place))
        [found] = read_keys(key)
        return found

    adopted_key = retry_conflicts(attempt)
    _log_adoption(manifest, location, adopted_key)
    return adopted_key


def _log_adoption(manifest: Manifest, location: Location, key: PartitionKey) -> None:
    _LOGGER.info("Adopted %s as partition %s of %s", location, key.values, manifest.root)


def _location_in_manifest(root: Location, location: Location) -> str:
    """Return the location for the manifest: relative inside the root, absolute elsewhere.

    Never `../`: stock clients ignore it, and would open another table of that name.
    """
    if SCHEME.match(location.uri) or SCHEME.match(root.uri):
        inside = location.uri.removeprefix(f"{root.uri}/")
        return inside
    absolute = os.path.abspath(location.uri)
    inside = os.path.relpath(os.path.realpath(absolute), os.path.realpath(root.uri))
    return absolute if inside.split(os.sep)[0] in ("..", ".") else inside


def _take_over(manifest: Manifest, object_id: str) -> PartitionKey:
    """Take ownership of a partition that is already listed, and return its key.

    Another writer may have listed it with other field ids, or the namespace was moved after the
    adoption. The caller vouches for its column names.
    """
    location = locations_of(manifest, [object_id])[object_id]
    trusted = dataclasses.replace(location, trust_locations=True)
    is_ours = location.explain_not_owned() is None
    is_numbered = not _has_other_field_ids(open_for_adoption(trusted), manifest, trusted)
    if is_ours and is_numbered:
        raise _already_adopted_error(manifest, location)
    if not is_ours:
        _claim_listed(manifest, object_id, trusted)
    if not is_numbered:
        retry_conflicts(lambda: _renumber_listed(manifest.load_latest(), object_id, trusted))
    [key] = manifest.find_keys({object_id})
    _log_adoption(manifest, location, key)
    return key


def _claim_listed(manifest: Manifest, object_id: str, location: Location) -> None:
    """Record the table as the owner of a partition, as partitions outside its root require."""
    owner = Owner(manifest.properties.salt, manifest.root.uri)
    if manifest.properties.mode == "weak":
        record_owner(location.open(), owner, location, is_listed=True)
    else:
        head.retry_commit(lambda: _claim_in_snapshot(manifest, object_id, owner), manifest)
        publish(manifest, [object_id])


def _has_other_field_ids(
    dataset: lance.LanceDataset, manifest: Manifest, location: Location
) -> bool:
    schema = manifest.properties.schema
    if is_aligned(dataset, schema):
        return False
    if is_numbered_by_position(read_lance_schema(dataset), schema):
        return True
    try:
        check_alignable(location, dataset, schema)
    except SchemaMismatch:
        return True
    return False


def _renumber_listed(manifest: Manifest, object_id: str, location: Location) -> None:
    """Assign the namespace's field ids to a listed table, by column name."""
    properties = manifest.properties
    _check_weak(manifest, location)
    check_unpinned(manifest)
    dataset = open_for_adoption(location)
    for number, leaves in manifest.list_leaves().items():
        own = leaves.filter(pc.equal(leaves.column(LEAF_OBJECT_ID), object_id))
        if not own.num_rows:
            continue
        spec = properties.specs[number]
        # Columns may have been added since it was written.
        needed = set(list_source_columns(spec, properties.schema))
        may_lack = {each.name for each in properties.schema.arrow if each.nullable} - needed
        check_adopted_schema(dataset, properties.schema, location, may_lack)
        derived = find_partition_key(dataset, spec, properties.schema, location)
        if derived is not None:
            _reconcile_keys(derived, manifest.leaf_keys(number, own), spec, location)
        check_renumbering(dataset, properties.schema, location)
        owner = Owner(properties.salt, manifest.root.uri)
        dataset = record_owner(dataset, owner, location, is_listed=True)
        renumber_fields(dataset, properties.schema, location)
        return
    raise AssertionError(f"{object_id} is not a leaf")


def _check_weak(manifest: Manifest, location: Location) -> None:
    if manifest.properties.mode != "weak":
        raise PhalanxError(
            f"Cannot adopt {location} into a table in {manifest.properties.mode} mode: expected "
            "weak mode. Change it with set_mode('weak') first."
        )


def _claim_in_snapshot(manifest: Manifest, object_id: str, owner: Owner) -> None:
    """Record the owner in a snapshot: on the version that is read and on the main branch."""
    base, newest = load_head(manifest)
    location = dataclasses.replace(locations_of(base, [object_id])[object_id], trust_locations=True)
    version = base.leaf_versions([object_id])[object_id]
    assert version is not None
    check_main(base, object_id, location, version)
    main = record_owner(location.open(), owner, location, is_listed=True)
    said = LanceOperation.UpdateMap(dict[str, str | None](owner.to_metadata()))
    staged = LanceDataset.commit(
        location.open_leaf(version),
        LanceOperation.UpdateConfig(table_metadata_updates=said),
        read_version=version,
        detached=True,
        **location.write_options,
    )
    # "rewrite": it changes no row.
    leaf = LeafVersion(object_id, int(staged.version), "rewrite", main=int(main.version))
    head.commit(base, newest, [leaf], "adopt")


def _find_listed(manifest: Manifest, location: Location, place: str) -> str | None:
    """Return the object id of the table if it is already listed as any partition."""
    spellings = {place, location.uri, f"{_FILE}{location.uri}", manifest.root.leaf(place).uri}
    if not SCHEME.match(location.uri):
        spellings.add(os.path.realpath(location.uri))
    listed = ", ".join("'" + text.replace("'", "''") + "'" for text in sorted(spellings))
    where = f"object_type = 'table' AND location IN ({listed})"
    found = manifest.read_rows(where, ["object_id"], limit=1)
    return str(found.column("object_id")[0].as_py()) if found.num_rows else None


def _already_adopted_error(manifest: Manifest, location: Location) -> PhalanxError:
    return PhalanxError(
        f"Cannot adopt {location}: it is already a partition of {manifest.root} and owned by it. "
        "There is nothing to do."
    )


def _reconcile_keys(
    derived: pa.Table | None, named: pa.Table | None, spec: PartitionSpec, location: Location
) -> pa.Table:
    fields = ", ".join(field.field_id for field in spec.fields)
    if derived is None:
        if named is None and spec.fields:
            raise PhalanxError(
                f"Cannot adopt {location} without partition values: it has no rows to derive them "
                f"from. Pass them: expected {fields}."
            )
        derived = named
    if derived is None:
        return pa.table({SPEC_ID_COLUMN: pa.array([spec.id], pa.int32())})
    if named is not None and find_positions(named, derived)[0] < 0:
        [named], [real] = read_keys(named), read_keys(derived)
        raise PhalanxError(
            f"Cannot adopt {location} as {named.values}: its rows have {real.values} ({fields}). "
            "Correct the values, or leave them out."
        )
    return derived


def _check_free(manifest: Manifest, key: pa.Table, location: Location) -> None:
    """Refuse an existing partition, even an empty one: other writers may be writing to it."""
    place = int(manifest.find_leaf_rows(key)[0])
    if place < 0:
        return
    existing = (
        manifest.list_leaves()[manifest.properties.spec.id].column(LEAF_LOCATION)[place].as_py()
    )
    [shown] = read_keys(key)
    raise PhalanxError(
        f"Cannot adopt {location}: the partition {shown.values} exists at "
        f"{manifest.root.leaf(existing)}. Append its rows instead."
    )
