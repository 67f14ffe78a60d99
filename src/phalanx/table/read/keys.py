"""Lookup of partitions by partition values or object ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from phalanx.errors import InvalidArgument, PhalanxError
from phalanx.model.specs.partition_key import to_key_columns
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION, LEAF_VERSION
from phalanx.storage.lance.location import Location
from phalanx.storage.state.table_state import TableState


def find_leaf(state: TableState, values: Mapping[str, Any]) -> tuple[Location, int | None]:
    """Return the leaf with these partition values; the newest spec wins."""
    specs = state.properties.specs
    for number in sorted(specs, reverse=True):
        spec = specs[number]
        if {field.field_id for field in spec.fields} != set(values):
            continue
        found = state.list_partition_leaves(_make_key(spec, values), number)
        if found.num_rows:
            return _choose_leaf(state, found, values)
    shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
    fields = "; ".join(
        f"v{number}: {', '.join(field.field_id for field in spec.fields)}"
        for number, spec in sorted(specs.items())
    )
    raise PhalanxError(
        f"No partition has {shown or 'no values'}: expected a value for every field of one spec "
        f"({fields}), and an existing partition. See partitions()."
    )


def _choose_leaf(
    state: TableState, leaves: pa.Table, values: Mapping[str, Any]
) -> tuple[Location, int | None]:
    """Return the only leaf of a partition that has rows, or the first if none has."""
    places = [
        (state.root.leaf(row[LEAF_LOCATION]), row[LEAF_VERSION])
        for row in leaves.select([LEAF_LOCATION, LEAF_VERSION]).to_pylist()
    ]
    if len(places) == 1:
        return places[0]
    filled = [each for each in places if each[0].open_leaf(each[1]).count_rows()]
    if len(filled) > 1:
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise PhalanxError(
            f"The partition {shown} has {len(filled)} leaves with rows, expected one: "
            f"{' and '.join(str(location) for location, _ in filled)}. Another writer listed "
            "them. Combine them with rewrite(), or read all of them with scan()."
        )
    return (filled or places)[0]


def _make_key(spec: PartitionSpec, values: Mapping[str, Any]) -> pa.Table:
    columns = []
    for field in spec.fields:
        value = values[field.field_id]
        try:
            column = pa.array([value], field.result_type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError):
            raise InvalidArgument(
                f"Partition field {field.field_id!r} has values of type {field.result_type}, "
                f"not {value!r}."
            ) from None
        columns.append(column)
    return to_key_columns(
        spec.id, pa.table(columns, names=[field.field_id for field in spec.fields]), 1
    )


def key_from_values(values: Mapping[str, Any], spec: PartitionSpec) -> pa.Table:
    """Return the partition key with these values, which must name exactly the spec's fields."""
    expected = [field.field_id for field in spec.fields]
    if set(values) != set(expected):
        raise InvalidArgument(
            f"Cannot take {', '.join(values)} as partition values: expected exactly "
            f"{', '.join(expected) or 'none'}, the fields of spec v{spec.id}."
        )
    return _make_key(spec, values)
