"""The manifest's objects by their ids: what is where, level by level, page by page.

Each question is one filter on the manifest. Nothing is kept between questions, so that they
cost the same however many partitions were listed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from lance.dataset import ColumnOrdering

from phalanx.model.specs.partition_key import text_of
from phalanx.model.stored_json import read_object
from phalanx.storage.manifest.columns import READ_VERSION
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.naming import SEPARATOR, spec_namespace
from phalanx.storage.state.properties import spec_key

NAMESPACE = "namespace"
TABLE = "table"
# The character after the separator: no id below a parent is as great as parent + this.
_AFTER_SEPARATOR = chr(ord(SEPARATOR) + 1)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the manifest; of a table with the location and the version that are read."""

    object_id: str
    location: str | None
    read_version: int | None
    stored_properties: dict[str, str]
    row: pa.Table

    def value(self, column: str) -> pa.Scalar:
        """What the row has in a column; NULL where the manifest has no such column."""
        if column not in self.row.column_names:
            return pa.scalar(None)
        return self.row.column(column)[0]


def find(manifest: Manifest, object_id: str, kind: str) -> Entry | None:
    """The namespace or table with this id."""
    where = f"object_id = {_quoted(object_id)} AND object_type = {_quoted(kind)}"
    rows = manifest.table(where)
    if not rows.num_rows:
        return None
    first = rows.slice(0, 1)
    if kind == TABLE:
        first, _ = manifest.read_of(first)
    said = first.column("metadata")[0].as_py() if "metadata" in first.column_names else None
    stored = read_object(said or "{}", f"the manifest row {object_id}", {})
    return Entry(
        object_id,
        first.column("location")[0].as_py(),
        first.column(READ_VERSION)[0].as_py() if kind == TABLE else None,
        {key: text for key, text in stored.items() if isinstance(text, str)},
        first,
    )


def children(
    manifest: Manifest, parent: str, kind: str, after: str | None = None, limit: int | None = None
) -> list[str]:
    """The names of what is directly in a namespace (the root is ""), in order, after a name."""
    prefix = f"{parent}{SEPARATOR}" if parent else ""
    conditions = [
        f"strpos(substr(object_id, {len(prefix) + 1}), {_quoted(SEPARATOR)}) = 0",
        *_below(parent),
    ]
    if after is not None:
        conditions.append(f"object_id > {_quoted(prefix + after)}")
    return [object_id[len(prefix) :] for object_id in _ids(manifest, kind, conditions, limit)]


def descendants(
    manifest: Manifest, parent: str, kind: str, after: str | None = None, limit: int | None = None
) -> list[str]:
    """The ids of what is in a namespace at any depth, in order, after an id."""
    conditions = _below(parent)
    if after is not None:
        conditions.append(f"object_id > {_quoted(after)}")
    return _ids(manifest, kind, conditions, limit)


def runtime_properties(manifest: Manifest, entry: Entry) -> dict[str, str]:
    """What the format derives: the spec of a spec version, the value of a partition.

    Only the value of the namespace's own level; a NULL has no text, and no property.
    """
    version, *below = entry.object_id.split(SEPARATOR)
    specs = manifest.properties.specs
    spec = next((spec for spec in specs.values() if spec_namespace(spec.id) == version), None)
    if spec is None or len(below) > len(spec.fields):
        return {}
    if not below:
        return {"partition_spec": manifest.dataset.metadata[spec_key(spec.id)]}
    field = spec.fields[len(below) - 1]
    text = text_of(entry.value(field.column))
    return {} if text is None else {f"partition.{field.field_id}": text}


def _below(parent: str) -> list[str]:
    if not parent:
        return []
    # A range, because names may hold what LIKE takes for wildcards.
    first, last = _quoted(parent + SEPARATOR), _quoted(parent + _AFTER_SEPARATOR)
    return [f"object_id > {first}", f"object_id < {last}"]


def _ids(manifest: Manifest, kind: str, conditions: Sequence[str], limit: int | None) -> list[str]:
    rows = manifest.read(
        columns=["object_id"],
        filter=" AND ".join([f"object_type = {_quoted(kind)}", *conditions]),
        order_by=[ColumnOrdering("object_id")],
        limit=limit,
    )
    found: list[str] = rows.column("object_id").to_pylist()
    return found


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
