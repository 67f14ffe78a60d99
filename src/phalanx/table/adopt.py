"""Adoption: a Lance table that exists becomes a partition, where it is, without a copy."""

from __future__ import annotations

import os
from collections.abc import Callable

import lance
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import PhalanxError
from phalanx.model.grouping import positions
from phalanx.model.locations import SCHEME
from phalanx.model.partition_key import SPEC_ID, PartitionKey, keys_of
from phalanx.model.spec import PartitionSpec
from phalanx.planning.scan import LOCATION, OBJECT_ID
from phalanx.storage.adoption import (
    check_renumbering,
    check_schema,
    claim,
    key_of_rows,
    open_table,
    renumber,
)
from phalanx.storage.lance_schema import is_aligned
from phalanx.storage.location import Location
from phalanx.storage.manifest import Manifest
from phalanx.storage.manifest_changes import insert
from phalanx.storage.partition_rows import new_partitions
from phalanx.storage.races import until_won
from phalanx.table.pinned import check_unpinned

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

    def attempt() -> PartitionKey:
        current = manifest.latest()
        properties = current.properties
        if properties.mode != "weak":
            raise PhalanxError(
                f"Cannot adopt {location} into a table in {properties.mode} mode: expected weak "
                "mode. Change it with set_mode('weak') first."
            )
        dataset = open_table(location)
        if (listed := _listed_as(current, location, place)) is not None:
            return _renumbered(current, listed, dataset, location)
        check_schema(dataset, properties.schema, location)
        derived = key_of_rows(dataset, properties.spec, properties.schema, location)
        named = wanted(properties.spec) if wanted else None
        key = _agreed(derived, named, properties.spec, location)
        _check_free(current, key, location)
        check_renumbering(dataset, properties.schema, location)
        # Who made the namespace with something else than Phalanx gave it no name of its own.
        owner = properties.salt or current.root.uri
        renumber(claim(dataset, owner, current.root, location), properties.schema, location)
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


def _listed_as(manifest: Manifest, location: Location, place: str) -> str | None:
    """The object id that a table is listed under, whatever its partition is; None if it is not."""
    spellings = {place, location.uri, f"{_FILE}{location.uri}", manifest.root.child(place).uri}
    if not SCHEME.match(location.uri):
        spellings.add(os.path.realpath(location.uri))
    listed = ", ".join("'" + text.replace("'", "''") + "'" for text in sorted(spellings))
    where = f"object_type = 'table' AND location IN ({listed})"
    found = manifest.table(where, ["object_id"], limit=1)
    return str(found.column("object_id")[0].as_py()) if found.num_rows else None


def _renumbered(
    manifest: Manifest, name: str, dataset: lance.LanceDataset, location: Location
) -> PartitionKey:
    """Give a table that is a partition already the namespace's field ids, by its names; its key.

    Another writer has listed it, and numbered its columns otherwise. Who adopts it says that its
    names are right.
    """
    properties = manifest.properties
    if is_aligned(dataset, properties.schema):
        raise PhalanxError(
            f"Cannot adopt {location}: it is a partition of {manifest.root} already ({name}). "
            "There is nothing to do."
        )
    check_unpinned(manifest)
    check_schema(dataset, properties.schema, location)
    for number, leaves in manifest.leaves().items():
        own = leaves.filter(pc.equal(leaves.column(OBJECT_ID), name))
        if not own.num_rows:
            continue
        key = manifest.keys_of_leaves(number, own)
        spec = properties.specs[number]
        derived = key_of_rows(dataset, spec, properties.schema, location)
        if derived is not None:
            _agreed(derived, key, spec, location)
        check_renumbering(dataset, properties.schema, location)
        owner = properties.salt or manifest.root.uri
        dataset = claim(dataset, owner, manifest.root, location, is_listed=True)
        renumber(dataset, properties.schema, location)
        [found] = keys_of(key)
        return found
    raise AssertionError(f"{name} is no leaf")


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
