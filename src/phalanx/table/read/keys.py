"""Partitions by the values that a user names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import PhalanxError
from phalanx.model.specs.partition_key import PartitionKey, key_columns, keys_of
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.scan_plan import LOCATION, OBJECT_ID, READ_VERSION
from phalanx.storage.lance.location import Location
from phalanx.storage.state.table_state import LeafListing


def leaf_with(manifest: LeafListing, values: Mapping[str, Any]) -> tuple[Location, int | None]:
    """The one leaf with these partition values, the newest spec's first."""
    specs = manifest.properties.specs
    for number in sorted(specs, reverse=True):
        spec = specs[number]
        if {field.field_id for field in spec.fields} != set(values):
            continue
        found = manifest.of_partitions(_one_key(spec, values), number)
        if found.num_rows:
            return _only_one(manifest, found, values)
    shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
    fields = "; ".join(
        f"v{number}: {', '.join(field.field_id for field in spec.fields)}"
        for number, spec in sorted(specs.items())
    )
    raise PhalanxError(
        f"No partition has {shown or 'no values'}: expected a value for every field of a spec "
        f"({fields}) that some rows have. See partitions()."
    )


def _only_one(
    manifest: LeafListing, leaves: pa.Table, values: Mapping[str, Any]
) -> tuple[Location, int | None]:
    """Of the leaves of one partition that which has all its rows; the first if there are none."""
    places = [
        (manifest.root.child(row[LOCATION]), row[READ_VERSION])
        for row in leaves.select([LOCATION, READ_VERSION]).to_pylist()
    ]
    if len(places) == 1:
        return places[0]
    filled = [each for each in places if each[0].open_leaf(each[1]).count_rows()]
    if len(filled) > 1:
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise PhalanxError(
            f"The partition {shown} has {len(filled)} leaves with rows, which are no one Lance "
            f"table: {' and '.join(str(location) for location, _ in filled)}. Another writer has "
            "listed them. Unite them with rewrite(), or read all of them with scan()."
        )
    return (filled or places)[0]


def keys_named(manifest: LeafListing, object_ids: Iterable[str]) -> list[PartitionKey]:
    """The partition keys of the leaves with these object ids."""
    wanted = pa.array(object_ids, pa.string())
    found: list[PartitionKey] = []
    for number, leaves in sorted(manifest.leaves().items()):
        chosen = leaves.filter(pc.is_in(leaves.column(OBJECT_ID), wanted))
        found += keys_of(manifest.keys_of_leaves(number, chosen))
    return found


def _one_key(spec: PartitionSpec, values: Mapping[str, Any]) -> pa.Table:
    columns = []
    for field in spec.fields:
        value = values[field.field_id]
        try:
            column = pa.array([value], field.result_type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError):
            raise PhalanxError(
                f"Partition field {field.field_id!r} has values of type {field.result_type}, "
                f"not {value!r}."
            ) from None
        columns.append(column)
    return key_columns(
        spec.id, pa.table(columns, names=[field.field_id for field in spec.fields]), 1
    )


def named_key(values: Mapping[str, Any], spec: PartitionSpec) -> pa.Table:
    """The partition key of a spec that the values name, all of them and no others."""
    expected = [field.field_id for field in spec.fields]
    if set(values) != set(expected):
        raise PhalanxError(
            f"Cannot take {', '.join(values)} as partition values: expected exactly "
            f"{', '.join(expected) or 'none'}, the fields of spec v{spec.id}."
        )
    return _one_key(spec, values)
