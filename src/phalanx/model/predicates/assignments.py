"""What an update sets: SQL expressions over the columns of a row, each in its column's type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidSchema, SchemaMismatch, shown
from phalanx.model.schema.rows import fitted, is_same_family, one_batch, plain_schema, readable
from phalanx.model.schema.schema import Schema
from phalanx.model.sql import engine
from phalanx.model.sql.literals import NotExpressible
from phalanx.model.sql.syntax import Cast, Literal, Node, columns


@dataclass(frozen=True, slots=True)
class Assignment:
    """A column, and the expression that gives its new value."""

    field: pa.Field
    text: str
    node: Node

    @property
    def column(self) -> str:
        """The column's name."""
        return str(self.field.name)

    def value(self, rows: pa.RecordBatch) -> pa.Array:
        """The new value of every row."""
        read = {path[0] for path in columns(self.node)}
        given = {name: rows.column(name) for name in rows.schema.names if name in read}
        try:
            found = engine.evaluate(self.node, given, rows.num_rows)
        except engine.BadExpression as error:
            raise _refused(self.column, self.text, str(error)) from None
        if not self.field.nullable and found.null_count:
            raise _refused(
                self.column,
                self.text,
                "it is NULL for some rows, and the column is not nullable. Leave these rows out "
                "by the predicate, or use coalesce",
            )
        try:
            return fitted(found, self.field, self.column, 0)
        except SchemaMismatch as error:
            raise _refused(self.column, self.text, str(error)) from None


@dataclass(frozen=True, slots=True)
class Assignments:
    """The new values of some columns; all are computed from the row as it was."""

    items: tuple[Assignment, ...]
    schema: Schema

    @property
    def columns(self) -> frozenset[str]:
        """The columns that are set."""
        return frozenset(item.column for item in self.items)

    def applied(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, all their columns, with the new values."""
        new = {item.column: item.value(rows) for item in self.items}
        arrays = [
            new.get(name, column)
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        return readable(pa.RecordBatch.from_arrays(arrays, schema=plain_schema(self.schema)))


def bind_assignments(given: Mapping[str, str], schema: Schema) -> Assignments:
    """The expressions, type-checked against the schema; `SchemaMismatch` tells what does not fit.

    A value is cast to its column's type as SQL does when it stores one: numbers to other numbers,
    but no fraction to a whole number; a constant text to what it spells.
    """
    if not isinstance(given, Mapping) or not given:
        raise SchemaMismatch(
            f"Cannot update by {shown(given)}: expected at least one column with its new value in "
            "SQL, such as {'status': \"'done'\"}."
        )
    found: dict[str, Assignment] = {}
    for name, text in given.items():
        column = _column(name, schema)
        if column in found:
            raise SchemaMismatch(f"Cannot set column {column!r} twice. Name it once.")
        found[column] = _bound(column, text, schema)
    return Assignments(tuple(found.values()), schema)


def _column(name: object, schema: Schema) -> str:
    if not isinstance(name, str):
        raise SchemaMismatch(f"Cannot set the column {name!r}: expected a name.")
    try:
        path = schema.resolve(name)
    except InvalidSchema as error:
        raise SchemaMismatch(f"Cannot set the column {name!r}: {error}") from None
    if len(path) > 1:
        raise SchemaMismatch(
            f"Cannot set {name!r}: it is inside the column {path[0]!r}. Set the whole column, "
            "with named_struct or another function that makes a new value."
        )
    return path[0]


def _bound(column: str, text: object, schema: Schema) -> Assignment:
    field = plain_schema(schema).field(column)
    if not isinstance(text, str):
        raise SchemaMismatch(
            f"Cannot set column {column!r} to {shown(text)}: expected SQL text, such as '1' for a "
            "number and \"'a'\" for a text."
        )
    try:
        bound = engine.bind(text, schema.arrow)
        node, kind = bound.node, field.type
        if pt.is_null(bound.type) and not field.nullable:
            raise engine.BadExpression("the column is not nullable. Set it to a value")
        if bound.type != kind and not _is_storable(bound, kind):
            raise engine.BadExpression(
                f"it gives {bound.type}, and the column is {kind}. Cast it in the expression"
            )
        if bound.type != kind and not (pt.is_nested(kind) or pt.is_dictionary(kind)):
            node = engine.bind_node(Cast(node, kind), schema.arrow).node
        found = Assignment(field, text, node)
        # What DataFusion reads is not always what it can do.
        found.value(one_batch([], plain_schema(schema)))
    except NotExpressible as error:
        raise _refused(column, text, f"{error} is not supported") from None
    except engine.BadExpression as error:
        raise _refused(column, text, str(error)) from None
    return found


def _is_storable(bound: engine.Bound, kind: pa.DataType) -> bool:
    """Whether values of an expression may be cast to a column's type without being asked to."""
    given = bound.type
    inner = kind.value_type if pt.is_dictionary(kind) else kind
    if is_same_family(given, inner):
        return True
    if pt.is_floating(given) and (pt.is_decimal(inner) or pt.is_floating(inner)):
        return True
    if pt.is_decimal(given) and (pt.is_decimal(inner) or pt.is_floating(inner)):
        return True
    if pt.is_date(given) and pt.is_timestamp(inner):
        return True
    if not isinstance(bound.node, Literal):
        return False
    # As in a predicate, a constant moment without a zone is in the column's, and a text is read.
    is_moment = pt.is_date(inner) or pt.is_time(inner) or pt.is_timestamp(inner)
    is_text = pt.is_string(given) or pt.is_large_string(given) or pt.is_string_view(given)
    if is_text and (is_moment or pt.is_decimal(inner) or pt.is_floating(inner)):
        return True
    return bool(pt.is_timestamp(given) and pt.is_timestamp(inner))


def _refused(column: str, text: str, why: str) -> SchemaMismatch:
    end = "" if why.endswith((".", "?")) else "."
    return SchemaMismatch(f"Cannot set column {column!r} to {shown(text)}: {why}{end}")
