"""Descriptions of catalog tables and metadata tables, for Spark to load them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.model.predicates.predicate import TRUE
from phalanx.model.schema.schema import Schema
from phalanx.spark.pushdown.partitioning import is_plain_type, to_texts
from phalanx.spark.runtime.options import READ_OPTIONS, Options
from phalanx.spark.runtime.read_sets import pack_read_set
from phalanx.spark.runtime.types import spark_schema
from phalanx.spark.source.change_source import change_feed_schema
from phalanx.spark.source.reading import METADATA_TABLES, read_schema
from phalanx.spark.sql.catalog_partitioning import (
    clustering_fields,
    describe_fields,
    ordering_fields,
    pruning_fields,
)
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import TableState
from phalanx.table.handle import handle_of
from phalanx.table.history import snapshots as history
from phalanx.table.table import Table

_CHANGES = "changes"
# Metadata tables of `lake.events`, such as `lake.events.files`.
METADATA_NAMES = (*METADATA_TABLES, _CHANGES)
_NOT_KEYS = {"spec_id", "location", "read_version", "rows", "bytes"}
# A managed location keeps LOCATION out of SHOW CREATE TABLE: it follows from the name.
_OURS = {"provider": "phalanx", "is_managed_location": "true"}


def describe_table(table: Table, snapshot: int | datetime | None) -> dict[str, Any]:
    """Describe a table at a snapshot, or at its newest state."""
    viewed = table if snapshot is None else table.at(snapshot)
    schema, spec = Schema.of(viewed.schema), viewed.spec
    state = handle_of(table).refresh()
    # Taken from the same version: later snapshots count as concurrent changes.
    newest = history.find_newest(state) if isinstance(state, Manifest) else None
    return {
        "path": table.uri,
        "schema": spark_schema(viewed.schema).json(),
        # Rows have ids only in tables with a manifest.
        "row_level": isinstance(state, Manifest),
        "pruning": pruning_fields(state),
        # Pins the snapshot, so that a query that reads the table twice reads the same rows.
        "options": _snapshot_option(newest if snapshot is None else snapshot),
        "read_only": snapshot is not None,
        "streams": snapshot is None,
        "partitioning": describe_fields(spec, schema),
        "clusters": clustering_fields(spec, schema),
        "orders": ordering_fields(spec, schema),
        "properties": {**_OURS, "location": table.uri, "transaction": viewed.mode},
        "version": None if snapshot is not None else _version(state),
        # The read set of a statement whose scans are unknown.
        "full_read_set": pack_read_set(state, TRUE),
    }


def describe_metadata_table(
    table: Table, kind: str, snapshot: int | datetime | None
) -> dict[str, Any]:
    """Describe a metadata table, or the change feed of a table."""
    if kind == _CHANGES:
        given = {"changes": "true", **_snapshot_option(snapshot, "to_snapshot")}
        options = Options.of({"path": table.uri, **given}, READ_OPTIONS, "read")
        schema = change_feed_schema(options, table)
    else:
        given = {"metadata_table": kind, **_snapshot_option(snapshot)}
        options = Options.of({"path": table.uri, "metadata_table": kind}, READ_OPTIONS, "read")
        schema = read_schema(options, table if snapshot is None else table.at(snapshot))
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


def _version(state: TableState) -> str | None:
    """Return the version of the manifest; None for a layout without one."""
    return str(state.version) if isinstance(state, Manifest) else None


def _snapshot_option(snapshot: int | datetime | None, name: str = "snapshot") -> dict[str, str]:
    match snapshot:
        case None:
            return {}
        case datetime():
            return {name: snapshot.isoformat()}
    return {name: str(snapshot)}


def list_partition_values(table: Table) -> dict[str, Any]:
    """List the values of non-empty partitions, with the fields of all specs."""
    found = table.partitions()
    filled = found.filter(pc.greater(found.column("rows"), 0))
    names = [name for name in filled.column_names if name not in _NOT_KEYS]
    keys = pa.table([_to_showable(filled.column(name).combine_chunks()) for name in names], names)
    columns = [
        to_texts(keys.column(name).combine_chunks(), keys.schema.field(name)) for name in names
    ]
    rows = list(dict.fromkeys(zip(*columns, strict=True)))
    return {"schema": spark_schema(keys.schema).json(), "rows": rows}


def _to_showable(values: pa.Array) -> pa.Array:
    """Convert values that Java cannot parse from text to strings."""
    return values if is_plain_type(values.type) else values.cast(pa.string())
