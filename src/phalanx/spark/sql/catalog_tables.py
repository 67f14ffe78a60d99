"""What Spark is told of a table of a catalog when it loads it, and of what belongs to the table."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.model.predicates.predicate import TRUE
from phalanx.model.schema.schema import Schema
from phalanx.spark.pushdown.partitioning import plain_type, texts
from phalanx.spark.runtime.options import READ, Options
from phalanx.spark.runtime.read_sets import looked
from phalanx.spark.runtime.types import spark_schema
from phalanx.spark.source.change_source import change_schema
from phalanx.spark.source.reading import METADATA_TABLES, schema_of
from phalanx.spark.sql.catalog_partitioning import clusters, described, orders, pruning
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.history import snapshots as history
from phalanx.table.table import Table

_CHANGES = "changes"
# What can be read of `lake.events` as `lake.events.files`.
TOLD_OF = (*METADATA_TABLES, _CHANGES)
_NOT_KEYS = {"spec_id", "location", "read_version", "rows", "bytes"}
# The location follows from the name: Spark shows no LOCATION in SHOW CREATE TABLE then.
_OURS = {"provider": "phalanx", "is_managed_location": "true"}


def loaded(table: Table, snapshot: int | datetime | None) -> dict[str, Any]:
    """The table as of a snapshot, or as it is."""
    held = table if snapshot is None else table.at(snapshot)
    schema, spec = Schema.of(held.schema), held.spec
    listing = table._refreshed()
    # Of the same version: what comes after it counts as a change by others.
    newest = history.newest(listing) if isinstance(listing, Manifest) else None
    return {
        "path": table.uri,
        "schema": spark_schema(held.schema).json(),
        # Rows have ids where a manifest lists the leaves.
        "row_level": isinstance(listing, Manifest),
        "pruning": pruning(listing),
        # A query that reads the table twice reads the same rows.
        "options": _snapshot_option(newest if snapshot is None else snapshot),
        "read_only": snapshot is not None,
        "streams": snapshot is None,
        "partitioning": described(spec, schema),
        "clusters": clusters(spec, schema),
        "orders": orders(spec, schema),
        "properties": {**_OURS, "location": table.uri, "transaction": held.mode},
        "version": None if snapshot is not None else _version(listing),
        # What a statement has read of which that is not known better.
        "everything": looked(listing, TRUE),
    }


def told_of(table: Table, kind: str, snapshot: int | datetime | None) -> dict[str, Any]:
    """What a table is made of, or what has changed in it, as a table to read."""
    if kind == _CHANGES:
        given = {"changes": "true", **_snapshot_option(snapshot, "to_snapshot")}
        options = Options.of({"path": table.uri, **given}, READ, "read")
        schema = change_schema(options, table)
    else:
        given = {"metadata_table": kind, **_snapshot_option(snapshot)}
        options = Options.of({"path": table.uri, "metadata_table": kind}, READ, "read")
        schema = schema_of(options, table if snapshot is None else table.at(snapshot))
    return {
        "path": table.uri,
        "schema": schema.json(),
        "options": given,
        "read_only": True,
        "streams": kind == _CHANGES,
        "partitioning": [],
        "properties": {**_OURS, "location": table.uri},
        "version": None,
    }


def _version(listing: LeafListing) -> str | None:
    """What tells one state of the table from another; a layout without a manifest has nothing."""
    return str(listing.version) if isinstance(listing, Manifest) else None


def _snapshot_option(snapshot: int | datetime | None, name: str = "snapshot") -> dict[str, str]:
    match snapshot:
        case None:
            return {}
        case datetime():
            return {name: snapshot.isoformat()}
    return {name: str(snapshot)}


def partitions(table: Table) -> dict[str, Any]:
    """The partitions that have rows, by the fields of all specs."""
    found = table.partitions()
    filled = found.filter(pc.greater(found.column("rows"), 0))
    names = [name for name in filled.column_names if name not in _NOT_KEYS]
    keys = pa.table([_shown(filled.column(name).combine_chunks()) for name in names], names)
    columns = [texts(keys.column(name).combine_chunks(), keys.schema.field(name)) for name in names]
    rows = list(dict.fromkeys(zip(*columns, strict=True)))
    return {"schema": spark_schema(keys.schema).json(), "rows": rows}


def _shown(values: pa.Array) -> pa.Array:
    """Values of a kind that the classes in Java make of a text, else the text."""
    return values if plain_type(values.type) else values.cast(pa.string())
