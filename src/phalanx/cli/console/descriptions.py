"""Descriptions of a table, its specs and its partitions, as JSON values and printed tables."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.filesize import decimal

from phalanx.cli.console import json_text
from phalanx.cli.console.messages import note
from phalanx.cli.console.results import TableColumn, format_cell, make_column, print_columns
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.table.read.inspection import column_name
from phalanx.table.table import Table

_MODES = {"weak": "weak: each partition commits separately", "strong": "strong: all or nothing"}


def spec_to_dict(spec: PartitionSpec, schema: pa.Schema) -> dict[str, Any]:
    """Return a spec as JSON values: its label, and its fields as in the manifest."""
    return {"partition_by": spec.label(Schema.of(schema)), **json.loads(spec.to_json())}


def table_to_dict(table: Table) -> dict[str, Any]:
    """Return a table as JSON values, with its size in total and for each spec."""
    schema = table.schema
    partitions = table.partitions()
    specs = []
    for number, spec in sorted(table.specs.items()):
        own = partitions.filter(pc.equal(partitions.column("spec_id"), number))
        specs.append({**spec_to_dict(spec, schema), **_sum_sizes(own)})
    return {
        "uri": table.uri,
        "layout": table.layout,
        "mode": table.mode,
        **_sum_sizes(partitions),
        "schema": json.loads(Schema.of(schema).to_json()),
        "specs": specs,
    }


def print_table(found: dict[str, Any], schema: pa.Schema) -> None:
    """Print the result of `table_to_dict`."""
    facts = {
        "uri": found["uri"],
        "layout": found["layout"],
        "mode": _MODES[found["mode"]],
        "partitions": f"{found['partitions']:,}",
        "rows": f"{found['rows']:,}",
        "size": decimal(found["bytes"]),
    }
    for name, value in facts.items():
        typer.echo(f"{name:<12}{value}")
    typer.echo()
    print_columns(
        [
            make_column("column", schema.names),
            make_column("type", [str(field.type) for field in schema]),
            make_column("nullable", ["yes" if field.nullable else "no" for field in schema]),
        ]
    )
    typer.echo()
    specs = found["specs"]
    print_columns(
        [
            make_column("spec", [f"v{spec['id']}" for spec in specs]),
            make_column("partition by", [spec["partition_by"] or "nothing" for spec in specs]),
            *_size_columns(specs, "partitions"),
        ]
    )


def partitions_to_list(table: Table) -> list[dict[str, Any]]:
    """Return every partition as JSON values: its values by field id, its location and size."""
    specs = table.specs
    return [
        {
            "spec_id": row["spec_id"],
            "values": {
                field.field_id: row[column_name(field)] for field in specs[row["spec_id"]].fields
            },
            "location": row["location"],
            # Versions have 64 bits, which numbers in JSON often do not.
            "read_version": None if row["read_version"] is None else str(row["read_version"]),
            "rows": row["rows"],
            "bytes": row["bytes"],
        }
        for row in json_text.iter_rows(table.partitions())
    ]


def print_partitions(found: list[dict[str, Any]], root: str, limit: int | None) -> None:
    """Print partitions with a column for each field, and how many the limit hides."""
    shown = found[:limit]
    names = dict.fromkeys(name for partition in shown for name in partition["values"])
    fields = [
        TableColumn(
            name,
            [
                format_cell(partition["values"][name]) if name in partition["values"] else ""
                for partition in shown
            ],
            all(isinstance(partition["values"].get(name, 0), int) for partition in shown),
        )
        for name in names
    ]
    inside = [partition["location"].removeprefix(f"{root}/") for partition in shown]
    hidden_columns = print_columns(
        [
            make_column("spec", [f"v{partition['spec_id']}" for partition in shown]),
            *fields,
            *_size_columns(shown),
            make_column("location", inside),
        ]
    )
    if hidden_columns:
        note("Locations do not fit the terminal: use --output json to see them.")
    if len(found) > len(shown):
        note(f"{len(found) - len(shown):,} more partitions: show them with --all or --limit.")


def _sum_sizes(partitions: pa.Table) -> dict[str, int]:
    return {
        "partitions": partitions.num_rows,
        "rows": pc.sum(partitions.column("rows"), min_count=0).as_py(),
        "bytes": pc.sum(partitions.column("bytes"), min_count=0).as_py(),
    }


def _size_columns(found: list[dict[str, Any]], *counts: str) -> list[TableColumn]:
    counted = [
        TableColumn(name, [f"{each[name]:,}" for each in found], is_number=True)
        for name in (*counts, "rows")
    ]
    return [
        *counted,
        TableColumn("size", [decimal(each["bytes"]) for each in found], is_number=True),
    ]
