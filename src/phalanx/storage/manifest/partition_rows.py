"""The manifest rows that partitions need: their namespaces and their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from phalanx.model.specs.spec import PartitionSpec
from phalanx.storage.manifest.changes import plain_rows
from phalanx.storage.manifest.columns import converted
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.naming import (
    SEPARATOR,
    partition_name,
    spec_namespace,
    table_id,
)


def new_partitions(manifest: Manifest, keys: pa.Table, directory: Callable[[str], str]) -> pa.Table:
    """The manifest rows that the partitions need: their namespaces and their tables.

    `directory` says where the leaf with an object id is, or will be.
    """
    spec = manifest.properties.spec
    rows: dict[str, tuple[str, str | None, tuple[pa.Scalar, ...]]] = {
        spec_namespace(spec.id): ("namespace", None, ())
    }
    named = _named_namespaces(manifest, spec)
    columns = [keys.column(field.field_id) for field in spec.fields]
    for place in range(keys.num_rows):
        parent = spec_namespace(spec.id)
        values: tuple[pa.Scalar, ...] = ()
        for field, column in zip(spec.fields, columns, strict=True):
            value = column[place]
            values = (*values, value)
            parent = named.get((parent, value)) or SEPARATOR.join(
                (parent, partition_name(manifest.properties.salt, parent, field.field_id, value))
            )
            rows[parent] = ("namespace", None, values)
        leaf = table_id(parent)
        rows[leaf] = ("table", directory(leaf), values)
    return _manifest_rows(rows, spec)


def spec_namespace_row(manifest: Manifest) -> pa.Table:
    """The manifest row of the newest spec's namespace."""
    return _manifest_rows(
        {spec_namespace(manifest.properties.spec.id): ("namespace", None, ())},
        manifest.properties.spec,
    )


def _named_namespaces(manifest: Manifest, spec: PartitionSpec) -> dict[tuple[str, pa.Scalar], str]:
    """The partition namespaces by parent and value: another writer may have named them."""
    if not spec.fields:
        return {}
    rows = manifest.table(
        f"object_type = 'namespace' AND object_id LIKE '{spec_namespace(spec.id)}$%'",
        ["object_id", *(field.column for field in spec.fields)],
    ).sort_by("object_id")
    named: dict[tuple[str, pa.Scalar], str] = {}
    columns = {
        field.column: converted(
            rows.column(field.column), field.result_type, field.column, manifest.root
        )
        for field in spec.fields
    }
    for place, object_id in enumerate(rows.column("object_id").to_pylist()):
        parent, _, _ = object_id.rpartition(SEPARATOR)
        level = object_id.count(SEPARATOR) - 1
        if level < len(spec.fields):
            # Of several with the same value it is always the same one.
            named.setdefault((parent, columns[spec.fields[level].column][place]), object_id)
    return named


def _manifest_rows(
    rows: Mapping[str, tuple[str, str | None, tuple[pa.Scalar, ...]]], spec: PartitionSpec
) -> pa.Table:
    table = plain_rows([(name, kind, where) for name, (kind, where, _) in rows.items()])
    for level, field in enumerate(spec.fields):
        values = [values[level] if level < len(values) else None for _, _, values in rows.values()]
        table = table.append_column(field.column, _array(values, field.result_type))
    return table


def _array(values: list[pa.Scalar | None], kind: pa.DataType) -> pa.Array:
    none = pa.nulls(1, kind)
    parts = [none if value is None else pa.array([value], kind) for value in values]
    return pa.concat_arrays(parts)
