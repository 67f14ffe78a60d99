"""CREATE TABLE and ALTER TABLE of Spark SQL: columns, partitioning and properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from phalanx.arguments import Mode
from phalanx.errors import InvalidArgument, PhalanxError, SchemaMismatch
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.spark.pushdown.partitioning import check_partitioning
from phalanx.spark.runtime.types import check_no_lengths, parse_spark_type, stored_schema
from phalanx.spark.sql.catalog_partitioning import terms_of
from phalanx.storage.lance.location import Location
from phalanx.table import evolution
from phalanx.table.handle import handle_of
from phalanx.table.opening import NewTable, create, create_for_rows
from phalanx.table.table import Table

# Properties that Spark adds itself.
_SPARK_PROPERTIES = {"owner", "provider", "is_managed_location", "external"}
_PROVIDER = "phalanx"
_TRANSACTION, _PARTITION_BY = "transaction", "partition_by"


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """The columns, partitioning and properties of a CREATE TABLE statement, as Spark sends them."""

    schema: str
    partitioning: Sequence[Mapping[str, Any]]
    properties: Mapping[str, str] = field(repr=False)

    def check_comments(self) -> None:
        """Refuse columns with comments. CREATE TABLE AS SELECT may bring some along unasked."""
        _check_comments(self._spark_schema(), "")

    def create(self, location: Location) -> Table:
        """Create the table."""
        columns, by, mode = self._resolve(location)
        return create(
            location.uri,
            columns,
            by,
            transaction=mode,
            storage_options=location.storage_options,
        )

    def create_for_rows(self, location: Location) -> Table:
        """Create the table without a snapshot: the next write commits the first one."""
        return create_for_rows(location, *self._resolve(location))

    def plan(self, location: Location) -> NewTable:
        """Plan the table, for a write that creates it together with its first rows."""
        return NewTable.of(location, *self._resolve(location))

    def _resolve(self, location: Location) -> tuple[pa.Schema, PartitionBy, Mode]:
        """Return the Arrow schema, the partitioning and the mode."""
        schema = self._spark_schema()
        check_no_lengths(schema)
        columns = stored_schema(schema)
        properties = _check_properties(self.properties)
        by: PartitionBy = terms_of(self.partitioning)
        if _PARTITION_BY in properties:
            if by:
                raise PhalanxError(
                    f"Cannot create {location} with both PARTITIONED BY and the property "
                    f"partition_by={properties[_PARTITION_BY]!r}: expected one of them. Leave out "
                    "the other."
                )
            by = properties[_PARTITION_BY]
        check_partitioning(columns, by)
        return columns, by, cast(Mode, properties.get(_TRANSACTION, "weak"))

    def _spark_schema(self) -> StructType:
        schema = parse_spark_type(self.schema)
        assert isinstance(schema, StructType)
        return schema


def _check_comments(kind: DataType, path: str) -> None:
    """Refuse a comment on any field of a type."""
    match kind:
        case StructType():
            for field in kind:
                name = f"{path}{field.name}"
                if "comment" in field.metadata:
                    raise PhalanxError(
                        f"Cannot create column {name!r} with COMMENT "
                        f"{field.metadata['comment']!r}: tables have no comments. Leave it out."
                    )
                _check_comments(field.dataType, f"{name}.")
        case ArrayType():
            _check_comments(kind.elementType, path)
        case MapType():
            _check_comments(kind.keyType, path)
            _check_comments(kind.valueType, path)


def _check_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that Phalanx uses; refuse unknown ones."""
    provider = given.get("provider", _PROVIDER)
    if provider.lower() != _PROVIDER:
        raise PhalanxError(
            f"Cannot create a table USING {provider}: this catalog holds Phalanx tables only. "
            "Write USING phalanx or nothing, and format('phalanx') before saveAsTable and toTable."
        )
    if "location" in given and given.get("is_managed_location") != "true":
        raise PhalanxError(
            f"Cannot create a table with LOCATION {given['location']!r}: the name of a "
            "table is its path below the root of the catalog. Leave out LOCATION."
        )
    kept = {key: text for key, text in given.items() if key not in {*_SPARK_PROPERTIES, "location"}}
    for key in kept:
        _check_property(key)
    return kept


def _check_property(key: str) -> None:
    if key not in (_TRANSACTION, _PARTITION_BY):
        raise InvalidArgument(
            f"Cannot set the property {key!r}: expected transaction ('weak' or 'strong') or "
            "partition_by, as 'year(ts), bucket(16, id), country'."
        )


# ── ALTER TABLE ──────────────────────────────────────────────────────────────────────────────


def alter_table(table: Table, changes: Sequence[Mapping[str, Any]]) -> None:
    """Apply the changes of an ALTER TABLE statement, after validating all of them."""
    properties = handle_of(table).properties
    for change in changes:
        match change["change"]:
            case "add":
                properties = evolution.with_added_column(properties, _new_field(change))
            case "drop":
                if _has_column(properties.schema, change):
                    properties = evolution.with_dropped_column(properties, _path(change))
            case "rename":
                properties = evolution.with_renamed_column(properties, _path(change), change["new"])
            case "promote":
                properties = evolution.with_promoted_column(
                    properties, _path(change), _new_type(change)
                )
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
        _apply_change(table, change)


def _apply_change(table: Table, change: Mapping[str, Any]) -> None:
    match change["change"]:
        case "add":
            table.add_column(_new_field(change))
        case "drop":
            if _has_column(Schema.of(table.schema), change):
                table.drop_column(_path(change))
        case "rename":
            table.rename_column(_path(change), change["new"])
        case "promote":
            table.promote_column(_path(change), _new_type(change))
        case "set" if change["key"] == _TRANSACTION:
            table.set_mode(change["value"])
        case "set":
            table.evolve(change["value"])


def _check_mode(change: Mapping[str, Any]) -> None:
    if change["key"] == _TRANSACTION and change["value"] not in ("weak", "strong"):
        raise InvalidArgument(
            f"Cannot set transaction={change['value']!r}: expected 'weak' or 'strong'."
        )


def _path(change: Mapping[str, Any]) -> str:
    return ".".join(change["path"])


def _has_column(schema: Schema, change: Mapping[str, Any]) -> bool:
    """Return whether to drop the column. With IF EXISTS it may be missing."""
    return not change["if_exists"] or change["path"][0] in schema.names


def _new_field(change: Mapping[str, Any]) -> pa.Field:
    if len(change["path"]) > 1:
        raise PhalanxError(
            f"Cannot add column {_path(change)!r}: fields cannot be added to a struct. Add a "
            "top-level column instead."
        )
    for what in ("position", "comment", "default"):
        if change[what] is not None:
            raise PhalanxError(
                f"Cannot add column {_path(change)!r} with the {what} {change[what]!r}: a new "
                "column is the last one, has no comment, and is NULL in existing rows. Leave out "
                f"the {what}."
            )
    field = StructField(
        change["path"][0], parse_spark_type(change["type"], _path(change)), change["nullable"]
    )
    _check_comments(StructType([field]), "")
    return stored_schema(StructType([field])).field(0)


def _new_type(change: Mapping[str, Any]) -> pa.DataType:
    """Return the new Arrow type of a column; refuse Spark types that need a note."""
    kind = parse_spark_type(change["type"], _path(change))
    field = stored_schema(StructType([StructField(change["path"][-1], kind)])).field(0)
    if field.metadata:
        raise SchemaMismatch(
            f"Cannot change column {_path(change)!r} to {kind.simpleString()}: only widening of "
            "numbers is allowed. Add a column of the new type instead."
        )
    return field.type
