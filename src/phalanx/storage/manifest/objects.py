"""Namespaces and tables in the manifest, found by id or listed level by level and page by page.

Each call is one filter on the manifest. Nothing is cached between calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from lance.dataset import ColumnOrdering

from phalanx.model.specs.partition_key import format_partition_value
from phalanx.model.stored_json import read_object
from phalanx.storage.manifest.columns import READ_VERSION
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.naming import SEPARATOR, spec_namespace
from phalanx.storage.state.properties import spec_key

NAMESPACE = "namespace"
TABLE = "table"
# The character after the separator: every id below a parent sorts before parent + this.
_AFTER_SEPARATOR = chr(ord(SEPARATOR) + 1)


@dataclass(frozen=True, slots=True)
class NamespaceObject:
    """A namespace or table in the manifest; a table has the location and version to read."""

    object_id: str
    location: str | None
    read_version: int | None
    stored_properties: dict[str, str]
    row: pa.Table

    def value(self, column: str) -> pa.Scalar:
        """Return the value of a column; NULL if the manifest has no such column."""
        if column not in self.row.column_names:
            return pa.scalar(None)
        return self.row.column(column)[0]


def find_object(manifest: Manifest, object_id: str, kind: str) -> NamespaceObject | None:
    """Return the namespace or table with this id, if it exists."""
    where = f"object_id = {_quote(object_id)} AND object_type = {_quote(kind)}"
    rows = manifest.read_rows(where)
    if not rows.num_rows:
        return None
    first = rows.slice(0, 1)
    if kind == TABLE:
        first, _ = manifest.resolve_pins(first)
    text = first.column("metadata")[0].as_py() if "metadata" in first.column_names else None
    stored = read_object(text or "{}", f"the manifest row {object_id}", {})
    return NamespaceObject(
        object_id,
        first.column("location")[0].as_py(),
        first.column(READ_VERSION)[0].as_py() if kind == TABLE else None,
        {key: text for key, text in stored.items() if isinstance(text, str)},
        first,
    )


def list_child_names(
    manifest: Manifest, parent: str, kind: str, after: str | None = None, limit: int | None = None
) -> list[str]:
    """Return the sorted names of the children of a namespace (the root is ""), after a name."""
    prefix = f"{parent}{SEPARATOR}" if parent else ""
    conditions = [
        f"strpos(substr(object_id, {len(prefix) + 1}), {_quote(SEPARATOR)}) = 0",
        *_build_descendant_filter(parent),
    ]
    if after is not None:
        conditions.append(f"object_id > {_quote(prefix + after)}")
    return [object_id[len(prefix) :] for object_id in _list_ids(manifest, kind, conditions, limit)]


def list_descendant_ids(
    manifest: Manifest, parent: str, kind: str, after: str | None = None, limit: int | None = None
) -> list[str]:
    """Return the sorted ids of all objects below a namespace, after an id."""
    conditions = _build_descendant_filter(parent)
    if after is not None:
        conditions.append(f"object_id > {_quote(after)}")
    return _list_ids(manifest, kind, conditions, limit)


def derive_properties(manifest: Manifest, found: NamespaceObject) -> dict[str, str]:
    """Return the properties that the format derives: the spec, or the partition value.

    A partition namespace has the value of its own level only, and none if that is NULL.
    """
    version, *below = found.object_id.split(SEPARATOR)
    specs = manifest.properties.specs
    spec = next((spec for spec in specs.values() if spec_namespace(spec.id) == version), None)
    if spec is None or len(below) > len(spec.fields):
        return {}
    if not below:
        return {"partition_spec": manifest.dataset.metadata[spec_key(spec.id)]}
    field = spec.fields[len(below) - 1]
    text = format_partition_value(found.value(field.column))
    return {} if text is None else {f"partition.{field.field_id}": text}


def _build_descendant_filter(parent: str) -> list[str]:
    if not parent:
        return []
    # A range, because names may contain the wildcards of LIKE.
    first, last = _quote(parent + SEPARATOR), _quote(parent + _AFTER_SEPARATOR)
    return [f"object_id > {first}", f"object_id < {last}"]


def _list_ids(
    manifest: Manifest, kind: str, conditions: Sequence[str], limit: int | None
) -> list[str]:
    rows = manifest.scan_rows(
        columns=["object_id"],
        filter=" AND ".join([f"object_type = {_quote(kind)}", *conditions]),
        order_by=[ColumnOrdering("object_id")],
        limit=limit,
    )
    found: list[str] = rows.column("object_id").to_pylist()
    return found


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
