"""The partitions, files and specs of a table as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.planning.pruning.leaf_columns import LEAF_COLUMNS, list_leaf_versions
from phalanx.planning.pruning.scan_plan import ScanSizes
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.state.table_state import TableState

# Measuring more leaves takes longer than most scans.
_MAX_MEASURED = 10_000
_SPEC_ID = "spec_id"
_OWN_NAMES = {
    *(_SPEC_ID, "location", "read_version", "rows", "bytes"),
    *("fragment_id", "paths", "deleted_rows"),
}


def list_partitions(state: TableState) -> pa.Table:
    """Return a row for each leaf: its spec, partition values, location, rows and bytes."""
    leaves = list(_list_leaves(state))
    measured = map_parallel(lambda leaf: _read_fragments(*leaf[1:3]), leaves)
    return prepend_keys(
        state,
        [1] * len(leaves),
        {
            "location": pa.array([location.uri for _, location, _ in leaves], pa.string()),
            "read_version": pa.array([version for _, _, version in leaves], pa.uint64()),
            "rows": pa.array([sum(f.num_rows for f in each) for each in measured], pa.int64()),
            "bytes": pa.array([sum(map(bytes_of, each)) for each in measured], pa.int64()),
        },
    )


def list_files(state: TableState) -> pa.Table:
    """Return a row for each fragment of each leaf: its files, rows, deleted rows and bytes."""
    leaves = list(_list_leaves(state))
    measured = map_parallel(lambda leaf: _read_fragments(*leaf[1:3]), leaves)
    each = [
        (location.uri, fragment)
        for (_, location, _), fragments in zip(leaves, measured, strict=True)
        for fragment in fragments
    ]
    return prepend_keys(
        state,
        [len(fragments) for fragments in measured],
        {
            "location": pa.array([uri for uri, _ in each], pa.string()),
            "fragment_id": pa.array([fragment.id for _, fragment in each], pa.int64()),
            "paths": pa.array(
                [[file.path for file in fragment.files] for _, fragment in each],
                pa.list_(pa.string()),
            ),
            "rows": pa.array([fragment.num_rows for _, fragment in each], pa.int64()),
            "deleted_rows": pa.array([fragment.num_deletions for _, fragment in each], pa.int64()),
            "bytes": pa.array([bytes_of(fragment) for _, fragment in each], pa.int64()),
        },
    )


def list_specs(specs: Mapping[int, PartitionSpec], schema: Schema) -> pa.Table:
    """Return a row for each field of each spec: its position, id, source columns and type."""
    return pa.Table.from_pylist(
        [
            {
                "spec_id": number,
                "position": position,
                "field_id": field.field_id,
                "source_ids": list(field.source_ids),
                "partition_by": field.label(schema),
                "result_type": str(field.result_type),
            }
            for number, spec in sorted(specs.items())
            for position, field in enumerate(spec.fields)
        ],
        pa.schema(
            [
                (_SPEC_ID, pa.int32()),
                ("position", pa.int32()),
                ("field_id", pa.string()),
                ("source_ids", pa.list_(pa.int32())),
                ("partition_by", pa.string()),
                ("result_type", pa.string()),
            ]
        ),
    )


def measure_sizes(state: TableState, planned: dict[int, pa.Table]) -> ScanSizes:
    """Return the bytes of the planned leaves, and of all leaves unless there are too many."""
    root = state.root
    chosen = [leaf for leaves in planned.values() for leaf in list_leaf_versions(leaves)]

    def measure(leaf: tuple[str, int | None]) -> int:
        return sum(map(bytes_of, _read_fragments(root.leaf(leaf[0]), leaf[1])))

    counted = dict(zip(chosen, map_parallel(measure, chosen), strict=True))
    if state.total_partitions > _MAX_MEASURED:
        return ScanSizes(sum(counted.values()), None)
    everything = (
        leaf for leaves in state.list_leaves().values() for leaf in list_leaf_versions(leaves)
    )
    others = [leaf for leaf in everything if leaf not in counted]
    return ScanSizes(
        sum(counted.values()), sum(counted.values()) + sum(map_parallel(measure, others))
    )


def _list_leaves(state: TableState) -> Iterator[tuple[int, Location, int | None]]:
    for spec_id, leaves in sorted(state.list_leaves().items()):
        for location, version in list_leaf_versions(leaves):
            yield spec_id, state.root.leaf(location), version


def _read_fragments(location: Location, version: int | None) -> list[FragmentMetadata]:
    return [fragment.metadata for fragment in location.open_leaf(version).get_fragments()]


def bytes_of(fragment: FragmentMetadata) -> int:
    """Return the total size of a fragment's data files."""
    return sum(file.file_size_bytes or 0 for file in fragment.files)


def prepend_keys(state: TableState, repeats: list[int], columns: dict[str, pa.Array]) -> pa.Table:
    """Prepend the partition key of each leaf to the columns.

    `repeats` has the number of rows of each leaf, in the order of `state.leaves()`.
    """
    specs = state.properties.specs
    fields: dict[str, PartitionField] = {}
    for spec in specs.values():
        fields |= {field.field_id: field for field in spec.fields}
    spec_ids: list[int] = []
    values: dict[str, list[Any]] = {field_id: [] for field_id in fields}
    for spec_id, leaves in sorted(state.list_leaves().items()):
        spec_ids += [spec_id] * leaves.num_rows
        present = leaves.column_names[len(LEAF_COLUMNS) :]
        for field_id, field in fields.items():
            values[field_id].append(
                leaves.column(field_id).cast(field.result_type)
                if field_id in present
                else pa.chunked_array([pa.nulls(leaves.num_rows, field.result_type)])
            )
    rows = pa.array(
        [place for place, count in enumerate(repeats) for _ in range(count)], pa.int64()
    )
    arrays = [pa.array(spec_ids, pa.int32())]
    arrays += [
        pa.chunked_array(
            [chunk for part in parts for chunk in part.chunks], fields[name].result_type
        )
        for name, parts in values.items()
    ]
    names = [_SPEC_ID, *(column_name(field) for field in fields.values())]
    keys = pa.table(arrays, names=names).take(rows)
    return pa.table([*keys.columns, *columns.values()], names=[*names, *columns])


def column_name(field: PartitionField) -> str:
    """Return the column name of a partition field: its id, unless a fixed column has that name."""
    return field.column if field.field_id in _OWN_NAMES else field.field_id
