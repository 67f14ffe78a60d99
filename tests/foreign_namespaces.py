"""Partitioned namespaces of another writer, built with plain pylance and without Phalanx.

A namespace is one of the published text: specs are objects, and rows of tables may say by
`read_version`, `read_branch` and `read_tag` what is read of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

TYPES = {
    "object_id": pa.string(),
    "object_type": pa.string(),
    "location": pa.string(),
    "metadata": pa.string(),
    "read_version": pa.uint64(),
    "read_branch": pa.string(),
    "read_tag": pa.string(),
}
OPTIONAL = ("metadata", "read_version", "read_branch", "read_tag")
BY_K = {1: [("k", 0, {"type": "identity"}, "utf8")]}
ARROW = {"utf8": pa.string(), "int64": pa.int64(), "int32": pa.int32()}


def write_leaf(path: str | Path, data: pa.Table, ids: Sequence[int]) -> lance.LanceDataset:
    """Write a Lance table whose columns have these field ids, which must be in order.

    Lance numbers columns by their places. Other columns fill the gaps, and are dropped afterwards.
    """
    columns = dict(zip(ids, data.column_names, strict=True))
    if list(ids) == list(range(len(ids))):
        return lance.write_dataset(data, path)
    filled = pa.table(
        {
            columns.get(number, f"filler {number}"): (
                data.column(columns[number])
                if number in columns
                else pa.nulls(data.num_rows, pa.int8())
            )
            for number in range(max(ids) + 1)
        }
    )
    dataset = lance.write_dataset(filled, path)
    dataset.drop_columns([name for name in filled.column_names if name.startswith("filler ")])
    return lance.dataset(path)


def schema_json(fields: Sequence[tuple[str, str]], ids: Sequence[int]) -> str:
    return json.dumps(
        {
            "fields": [
                {
                    "name": name,
                    "nullable": True,
                    "type": {"type": kind},
                    "metadata": {"lance:field_id": str(number)},
                }
                for (name, kind), number in zip(fields, ids, strict=True)
            ]
        }
    )


def spec_json(number: int, fields: Sequence[tuple[str, int, Mapping[str, Any], str]]) -> str:
    return json.dumps(
        {
            "id": number,
            "fields": [
                {
                    "field_id": name,
                    "source_ids": [source],
                    "transform": transform,
                    "result_type": {"type": kind},
                }
                for name, source, transform, kind in fields
            ],
        }
    )


@dataclass
class ForeignManifest:
    """The rows and properties of a manifest, until it is written."""

    root: Path
    fields: Sequence[tuple[str, str]] = (("k", "utf8"), ("n", "int64"))
    ids: Sequence[int] = (0, 1)
    specs: Mapping[int, Sequence[tuple[str, int, Mapping[str, Any], str]]] = field(
        default_factory=lambda: dict(BY_K)
    )
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, object_id: str, kind: str, **values: Any) -> None:
        """Add a row; partition values are given by the ids of their fields."""
        known = {name: value for name, value in values.items() if name in TYPES}
        parts = {
            f"partition_field_{name}": value for name, value in values.items() if name not in TYPES
        }
        row = {"object_id": object_id, "object_type": kind, "metadata": "{}", **known, **parts}
        self.rows.append(row)

    def add_partition(self, name: str, location: str, spec: int = 1, **values: Any) -> None:
        """Add a partition of a spec with one field: its namespace and its table."""
        pins = {key: value for key, value in values.items() if key.startswith("read_")}
        keys = {key: value for key, value in values.items() if key not in pins}
        self.add(f"v{spec}${name}", "namespace", **keys)
        self.add(f"v{spec}${name}$dataset", "table", location=location, **keys, **pins)

    def write(
        self,
        types: Mapping[str, pa.DataType] | None = None,
        without: Sequence[str] = (),
        more: Mapping[str, pa.Array] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Write the manifest; return the root. `types` change column types, `more` adds columns."""
        partition = {
            f"partition_field_{name}": ARROW[kind]
            for fields in self.specs.values()
            for name, _, _, kind in fields
        }
        columns = {
            name: (types or {}).get(name, kind)
            for name, kind in {**TYPES, **partition}.items()
            if name not in without
        }
        plain = pa.schema([(name, _plain(kind)) for name, kind in columns.items()])
        table = pa.Table.from_pylist(
            [{name: row.get(name) for name in columns} for row in self.rows], plain
        )
        table = pa.table(
            [table.column(name).cast(kind) for name, kind in columns.items()],
            schema=pa.schema(list(columns.items())),
        )
        for name, column in (more or {}).items():
            table = table.append_column(name, column)
        dataset = lance.write_dataset(table, self.root / "__manifest")
        dataset.update_metadata(
            {
                "schema": schema_json(self.fields, self.ids),
                **{
                    f"partition_spec_v{number}": spec_json(number, fields)
                    for number, fields in self.specs.items()
                },
                **(metadata or {}),
            }
        )
        return str(self.root)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def read_by_the_format(root: str | Path, columns: Sequence[str] = ("k", "n")) -> list[Any]:
    """Return the rows that a reader finds by the format alone, in order."""
    found: list[Any] = []
    tables = lance.dataset(f"{root}/__manifest").to_table(filter="object_type = 'table'")
    for row in tables.to_pylist():
        dataset = lance.dataset(f"{root}/{row['location']}")
        pins = tuple(row.get(name) for name in ("read_version", "read_branch", "read_tag"))
        match pins:
            case None, None, None:
                pass
            case int(version), None, None:
                dataset = dataset.checkout_version(version)
            case int(version), str(branch), None:
                dataset = dataset.checkout_version((branch, version))
            case None, None, str(tag):
                dataset = dataset.checkout_version(tag)
            case other:
                raise AssertionError(other)
        table = dataset.to_table(columns=list(columns))
        found += zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    return sorted(found, key=str)
