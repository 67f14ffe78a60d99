"""The manifest rows of new partitions: their namespaces and their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from phalanx.model.specs.spec import PartitionSpec
from phalanx.storage.manifest.changes import build_object_rows
from phalanx.storage.manifest.columns import cast_column
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.naming import (
    SEPARATOR,
    partition_name,
    spec_namespace,
    table_id,
)


def build_partition_rows(
    manifest: Manifest, keys: pa.Table, directory: Callable[[str], str]
) -> pa.Table:
    """Build the manifest rows of the partitions with these keys: namespaces and tables.

    `directory` returns the location of the leaf with an object id.
    """
    spec = manifest.properties.spec
    rows: dict[str, tuple[str, str | None, tuple[pa.Scalar, ...]]] = {
        spec_namespace(spec.id): ("namespace", None, ())
    }
    named = _read_namespace_ids(manifest, spec)
    columns = [keys.column(field.field_id) for field in spec.fields]
    for index in range(keys.num_rows):
        parent = spec_namespace(spec.id)
        values: tuple[pa.Scalar, ...] = ()
        for field, column in zip(spec.fields, columns, strict=True):
            value = column[index]
            values = (*values, value)
            parent = named.get((parent, value)) or SEPARATOR.join(
                (parent, partition_name(manifest.properties.salt, parent, field.field_id, value))
            )
            rows[parent] = ("namespace", None, values)
        leaf = table_id(parent)
        rows[leaf] = ("table", directory(leaf), values)
    return _build_rows(rows, spec)


def build_spec_namespace_row(manifest: Manifest) -> pa.Table:
    """Build the manifest row of the newest spec's namespace."""
    return _build_rows(
        {spec_namespace(manifest.properties.spec.id): ("namespace", None, ())},
        manifest.properties.spec,
    )


def _read_namespace_ids(
    manifest: Manifest, spec: PartitionSpec
) -> dict[tuple[str, pa.Scalar], str]:
    """Return the ids of partition namespaces by parent and value: other writers choose ids too."""
    if not spec.fields:
        return {}
    rows = manifest.select_rows(
        "namespace",
        ["object_id", *(field.column for field in spec.fields)],
        prefix=f"{spec_namespace(spec.id)}{SEPARATOR}",
    ).sort_by("object_id")
    named: dict[tuple[str, pa.Scalar], str] = {}
    columns = {
        field.column: cast_column(
            rows.column(field.column), field.result_type, field.column, manifest.root
        )
        for field in spec.fields
    }
    for index, object_id in enumerate(rows.column("object_id").to_pylist()):
        parent, _, _ = object_id.rpartition(SEPARATOR)
        level = object_id.count(SEPARATOR) - 1
        if level < len(spec.fields):
            # If several have the same value, always use the first.
            named.setdefault((parent, columns[spec.fields[level].column][index]), object_id)
    return named


def _build_rows(
    rows: Mapping[str, tuple[str, str | None, tuple[pa.Scalar, ...]]], spec: PartitionSpec
) -> pa.Table:
    table = build_object_rows([(name, kind, where) for name, (kind, where, _) in rows.items()])
    for level, field in enumerate(spec.fields):
        values = [values[level] if level < len(values) else None for _, _, values in rows.values()]
        table = table.append_column(field.column, _to_array(values, field.result_type))
    return table


def _to_array(values: list[pa.Scalar | None], kind: pa.DataType) -> pa.Array:
    none = pa.nulls(1, kind)
    parts = [none if value is None else pa.array([value], kind) for value in values]
    return pa.concat_arrays(parts)
