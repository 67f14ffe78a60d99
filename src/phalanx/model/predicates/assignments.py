"""Assignments of an update: SQL expressions over the columns of a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidArgument, InvalidSchema, SchemaMismatch, format_value
from phalanx.model.schema.rows import (
    combine_batches,
    fit_array,
    is_same_family,
    make_readable,
    to_row_schema,
)
from phalanx.model.schema.schema import Schema
from phalanx.model.sql import engine
from phalanx.model.sql.literals import NotExpressible
from phalanx.model.sql.syntax import Cast, Constant, Node, find_columns


@dataclass(frozen=True, slots=True)
class Assignment:
    """A column and the expression of its new value."""

    field: pa.Field
    text: str
    node: Node

    @property
    def column(self) -> str:
        """The column's name."""
        return str(self.field.name)

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """Compute the new value of every row."""
        read = {path[0] for path in find_columns(self.node)}
        given = {name: rows.column(name) for name in rows.schema.names if name in read}
        try:
            found = engine.evaluate(self.node, given, rows.num_rows)
        except engine.BadExpression as error:
            raise _assignment_error(self.column, self.text, str(error)) from None
        if not self.field.nullable and found.null_count:
            raise _assignment_error(
                self.column,
                self.text,
                "it is NULL for some rows, and the column is not nullable. Exclude these rows by "
                "the predicate, or use coalesce",
            )
        try:
            return fit_array(found, self.field, self.column, 0)
        except SchemaMismatch as error:
            raise _assignment_error(self.column, self.text, str(error)) from None


@dataclass(frozen=True, slots=True)
class Assignments:
    """The assignments of an update; all are computed from the old row."""

    items: tuple[Assignment, ...]
    schema: Schema

    @property
    def columns(self) -> frozenset[str]:
        """The names of the assigned columns."""
        return frozenset(item.column for item in self.items)

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows, with all their columns, after the update."""
        new = {item.column: item.evaluate(rows) for item in self.items}
        arrays = [
            new.get(name, column)
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        return make_readable(pa.RecordBatch.from_arrays(arrays, schema=to_row_schema(self.schema)))


def bind_assignments(given: Mapping[str, str], schema: Schema) -> Assignments:
    """Type-check the expressions against the schema; raise `SchemaMismatch` if one does not fit.

    A value is cast to its column's type as in an SQL assignment: numbers to other numbers, but no
    fraction to an integer; a constant text to the value that it spells.
    """
    if not isinstance(given, Mapping) or not given:
        raise InvalidArgument(
            f"Cannot update by {format_value(given)}: expected at least one column with its new "
            "value in SQL, such as {'status': \"'done'\"}."
        )
    found: dict[str, Assignment] = {}
    for name, text in given.items():
        column = _resolve_column(name, schema)
        if column in found:
            raise InvalidArgument(f"Cannot set column {column!r} twice. Name it once.")
        found[column] = _bind_assignment(column, text, schema)
    return Assignments(tuple(found.values()), schema)


def _resolve_column(name: object, schema: Schema) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"Cannot set the column {name!r}: expected a name.")
    try:
        path = schema.resolve(name)
    except InvalidSchema as error:
        raise SchemaMismatch(f"Cannot set the column {name!r}: {error}") from None
    if len(path) > 1:
        raise SchemaMismatch(
            f"Cannot set {name!r}: it is inside the column {path[0]!r}. Set the whole column, "
            "with named_struct or another function that returns a new value."
        )
    return path[0]


def _bind_assignment(column: str, text: object, schema: Schema) -> Assignment:
    field = to_row_schema(schema).field(column)
    if not isinstance(text, str):
        raise InvalidArgument(
            f"Cannot set column {column!r} to {format_value(text)}: expected SQL text, such as '1' "
            "for a number and \"'a'\" for a text."
        )
    try:
        bound = engine.bind_expression(text, schema.arrow)
        node, kind = bound.node, field.type
        if pt.is_null(bound.type) and not field.nullable:
            raise engine.BadExpression("the column is not nullable. Set it to a value")
        if bound.type != kind and not _can_assign(bound, kind):
            raise engine.BadExpression(
                f"it gives {bound.type}, and the column is {kind}. Cast it in the expression"
            )
        if bound.type != kind and not (pt.is_nested(kind) or pt.is_dictionary(kind)):
            node = engine.bind_node(Cast(node, kind), schema.arrow).node
        found = Assignment(field, text, node)
        # DataFusion cannot run all that it can parse.
        found.evaluate(combine_batches([], to_row_schema(schema)))
    except NotExpressible as error:
        raise _assignment_error(column, text, f"{error} is not supported") from None
    except engine.BadExpression as error:
        raise _assignment_error(column, text, str(error)) from None
    return found


def _can_assign(bound: engine.BoundExpression, kind: pa.DataType) -> bool:
    """Return whether values of an expression may be cast implicitly to a column's type."""
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
    if not isinstance(bound.node, Constant):
        return False
    # As in a predicate, a constant time without a zone is in the column's zone, and text is parsed.
    is_moment = pt.is_date(inner) or pt.is_time(inner) or pt.is_timestamp(inner)
    is_text = pt.is_string(given) or pt.is_large_string(given) or pt.is_string_view(given)
    if is_text and (is_moment or pt.is_decimal(inner) or pt.is_floating(inner)):
        return True
    return bool(pt.is_timestamp(given) and pt.is_timestamp(inner))


def _assignment_error(column: str, text: str, why: str) -> SchemaMismatch:
    end = "" if why.endswith((".", "?")) else "."
    return SchemaMismatch(f"Cannot set column {column!r} to {format_value(text)}: {why}{end}")
