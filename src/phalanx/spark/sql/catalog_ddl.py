"""Tables made and changed by statements of Spark SQL: columns, partitioning, properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.spark.pushdown.partitioning import check_partitioning
from phalanx.spark.runtime.types import check_no_lengths, parsed, stored_schema
from phalanx.spark.sql.catalog_partitioning import terms_of
from phalanx.storage.lance.location import Location
from phalanx.table import evolution as table_changes
from phalanx.table.opening import NewTable, create, create_for_rows
from phalanx.table.table import Table

# What Spark adds to the properties itself.
_OF_SPARK = {"owner", "provider", "is_managed_location", "external"}
_PROVIDER = "phalanx"
_TRANSACTION, _PARTITION_BY = "transaction", "partition_by"


def made(location: Location, question: Mapping[str, Any]) -> Table:
    """A new table with the columns, the partitioning and the properties of a statement."""
    columns, by, mode = _wanted(location, question)
    return create(
        location.uri,
        columns,
        by,
        transaction=mode,
        storage_options=location.storage_options,
    )


def made_for_rows(location: Location, question: Mapping[str, Any]) -> Table:
    """The same, whose first snapshot is that of the rows that are written next."""
    return create_for_rows(location, *_wanted(location, question))


def to_be_made(location: Location, question: Mapping[str, Any]) -> NewTable:
    """The same, which is there when its first rows are."""
    return NewTable.of(location, *_wanted(location, question))


def _wanted(location: Location, question: Mapping[str, Any]) -> tuple[pa.Schema, PartitionBy, str]:
    """The columns, the partitioning and the mode of a new table."""
    schema = parsed(question["schema"])
    assert isinstance(schema, StructType)
    check_no_lengths(schema)
    columns = stored_schema(schema)
    properties = _properties(question["properties"])
    by: PartitionBy = terms_of(question["partitioning"])
    if _PARTITION_BY in properties:
        if by:
            raise PhalanxError(
                f"Cannot create {location} with both PARTITIONED BY and the property "
                f"partition_by={properties[_PARTITION_BY]!r}: they say the same. Leave out one."
            )
        by = properties[_PARTITION_BY]
    check_partitioning(columns, by)
    return columns, by, properties.get(_TRANSACTION, "weak")


def check_columns(question: Mapping[str, Any]) -> None:
    """Refuse columns with more than a name and a type; a query may bring such along unasked."""
    schema = parsed(question["schema"])
    assert isinstance(schema, StructType)
    _check_comments(schema, "")


def _check_comments(kind: DataType, path: str) -> None:
    match kind:
        case StructType():
            for field in kind:
                place = f"{path}{field.name}"
                if "comment" in field.metadata:
                    raise PhalanxError(
                        f"Cannot create column {place!r} with COMMENT "
                        f"{field.metadata['comment']!r}: a table keeps no comments. Leave it out."
                    )
                _check_comments(field.dataType, f"{place}.")
        case ArrayType():
            _check_comments(kind.elementType, path)
        case MapType():
            _check_comments(kind.keyType, path)
            _check_comments(kind.valueType, path)


def _properties(given: Mapping[str, str]) -> dict[str, str]:
    provider = given.get("provider", _PROVIDER)
    if provider.lower() != _PROVIDER:
        raise PhalanxError(
            f"Cannot create a table USING {provider}: this catalog has tables of Phalanx only. "
            "Write USING phalanx or nothing, and format('phalanx') before saveAsTable and toTable."
        )
    if "location" in given and given.get("is_managed_location") != "true":
        raise PhalanxError(
            f"Cannot create a table with LOCATION {given['location']!r}: its name says where it "
            "is, below the root of the catalog. Leave out LOCATION."
        )
    kept = {key: text for key, text in given.items() if key not in {*_OF_SPARK, "location"}}
    for key in kept:
        _check_property(key)
    return kept


def _check_property(key: str) -> None:
    if key not in (_TRANSACTION, _PARTITION_BY):
        raise PhalanxError(
            f"Cannot set the property {key!r}: expected transaction ('weak' or 'strong') or "
            "partition_by, as 'year(ts), bucket(16, id), country'."
        )


# ── ALTER TABLE ──────────────────────────────────────────────────────────────────────────────


def alter(table: Table, changes: Sequence[Mapping[str, Any]]) -> None:
    """Change a table; all changes of a statement are looked at before the first is made."""
    properties = table._refreshed().properties
    for change in changes:
        match change["change"]:
            case "add":
                properties = table_changes.added(properties, _added(change))
            case "drop":
                if _is_there(properties.schema, change):
                    properties = table_changes.dropped(properties, _dotted(change))
            case "rename":
                properties = table_changes.renamed(properties, _dotted(change), change["new"])
            case "promote":
                properties = table_changes.promoted(properties, _dotted(change), _type(change))
            case "set":
                _check_property(change["key"])
                _check_mode(change)
                if change["key"] == _PARTITION_BY:
                    check_partitioning(properties.schema.arrow, change["value"])
            case kind:
                raise PhalanxError(
                    f"Cannot change {table.uri} by {change.get('text', kind)}: expected ADD, DROP "
                    "or RENAME COLUMN, ALTER COLUMN … TYPE with a wider type, or SET TBLPROPERTIES "
                    "(transaction=…)."
                )
    for change in changes:
        _change(table, change)


def _change(table: Table, change: Mapping[str, Any]) -> None:
    match change["change"]:
        case "add":
            table.add_column(_added(change))
        case "drop":
            if _is_there(Schema.of(table.schema), change):
                table.drop_column(_dotted(change))
        case "rename":
            table.rename_column(_dotted(change), change["new"])
        case "promote":
            table.promote_column(_dotted(change), _type(change))
        case "set" if change["key"] == _TRANSACTION:
            table.set_mode(change["value"])
        case "set":
            table.evolve(change["value"])


def _check_mode(change: Mapping[str, Any]) -> None:
    if change["key"] == _TRANSACTION and change["value"] not in ("weak", "strong"):
        raise PhalanxError(
            f"Cannot set transaction={change['value']!r}: expected 'weak' or 'strong'."
        )


def _dotted(change: Mapping[str, Any]) -> str:
    return ".".join(change["path"])


def _is_there(schema: Schema, change: Mapping[str, Any]) -> bool:
    """Whether there is a column to drop; with IF EXISTS none is an error."""
    return not change["if_exists"] or change["path"][0] in schema.names


def _added(change: Mapping[str, Any]) -> pa.Field:
    if len(change["path"]) > 1:
        raise PhalanxError(
            f"Cannot add column {_dotted(change)!r}: structs get no columns later. Add a column of "
            "its own."
        )
    for what in ("position", "comment", "default"):
        if change[what] is not None:
            raise PhalanxError(
                f"Cannot add column {_dotted(change)!r} with the {what} {change[what]!r}: a new "
                "column is the last one, without comment, and NULL in the rows there are. Leave "
                f"out the {what}."
            )
    field = StructField(
        change["path"][0], parsed(change["type"], _dotted(change)), change["nullable"]
    )
    _check_comments(StructType([field]), "")
    return stored_schema(StructType([field])).field(0)


def _type(change: Mapping[str, Any]) -> pa.DataType:
    """The new type of a column, which has to say all that the type of Spark does."""
    kind = parsed(change["type"], _dotted(change))
    field = stored_schema(StructType([StructField(change["path"][-1], kind)])).field(0)
    if field.metadata:
        raise SchemaMismatch(
            f"Cannot change column {_dotted(change)!r} to {kind.simpleString()}: allowed are wider "
            "numbers only. Add a column of the new type instead."
        )
    return field.type
