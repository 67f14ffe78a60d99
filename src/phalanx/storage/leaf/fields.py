"""Which field of the namespace each field of a leaf is, where their schemas are not the same.

Field ids decide (format: Schema), because names change: a leaf may be behind by a rename, a new
column, a dropped one, a promotion. What no such change explains is refused. A name that has one id
in the leaf and another in the namespace, though that field was never called so, means that one of
the two is wrong, and whoever guessed would read one column as another, or as NULL.

One case is certain: a leaf that was written without any regard to the namespace's ids. Lance has
numbered its columns by their places, none of these numbers is an id of the namespace, and all
names and types are the namespace's. It is read by its names. Names only tell this for the schema
that the leaf was written for, so a change of the schema gives such leaves the namespace's ids first
(`reconcile.align`), and a name that another field once had is not enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import lance
import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import SchemaMismatch
from phalanx.model.schema.arrow_json import field_from_json
from phalanx.model.schema.field_ids import FIELD_ID, columns_of, given_id, walk
from phalanx.model.schema.rows import plain_schema
from phalanx.model.schema.schema import Schema, widens
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.schema import schema_of

# Of these the insides are compared for themselves.
_WITH_INSIDES = ("struct", "list", "large_list", "map")


@dataclass(frozen=True, slots=True)
class _Field:
    """A field with an id: where it is, what it is, and the id of what it is inside of (or −1)."""

    id: int
    place: tuple[str, ...]
    parent: int
    kind: str
    type: pa.DataType
    nullable: bool

    @property
    def name(self) -> str:
        return ".".join(self.place)


def fields_of(dataset: lance.LanceDataset, schema: Schema, location: Location) -> Schema:
    """The schema of a leaf, whose fields have the ids that they have in the namespace.

    Refuses a leaf whose columns cannot be told.
    """
    leaf = schema_of(dataset)
    if is_numbered_by_place(leaf, schema):
        return _named(leaf, schema)
    _check(leaf, schema, location)
    return leaf


def check_writable(leaf: Schema, schema: Schema, location: Location) -> None:
    """Refuse a leaf that has what the namespace never had: a write would take it away."""
    theirs = _fields(schema)
    for field in _fields(leaf).values():
        if field.id not in theirs and field.id > schema.last_field_id:
            raise SchemaMismatch(
                f"Cannot write to the partition at {location}: its column {field.name!r} (field "
                f"id {field.id}) is none of the table's, and would be lost. Drop it there with "
                "Lance's drop_columns, or write its rows to another table."
            )
        wanted = theirs.get(field.id)
        if wanted is not None and widens(wanted.type, field.type):
            raise SchemaMismatch(
                f"Cannot write to the partition at {location}: its column {field.name!r} is "
                f"{field.type}, expected {wanted.type} as in the table's schema. Widen the table's "
                f"with promote_column({wanted.name!r}, …)."
            )


def is_numbered_by_place(leaf: Schema, schema: Schema) -> bool:
    """Whether no id of a leaf means anything, and all its names and types are the namespace's.

    A name that another field had before is not certain: the leaf may mean that field.
    """
    ours, theirs = _fields(leaf), _fields(schema)
    if set(ours) & _known_ids(schema) or tuple(leaf.ids) != tuple(range(len(leaf.ids))):
        return False
    by_place = {field.place: field for field in theirs.values()}
    return (
        set(by_place) == {field.place for field in ours.values()}
        and all(_is_same(field, by_place[field.place]) for field in ours.values())
        and not any(_had_another(field, schema) for field in theirs.values())
    )


def _had_another(field: _Field, schema: Schema) -> bool:
    """Whether the name of a column or struct child was another field's before."""
    return schema.path_of(field.id) is not None and any(
        name == field.place[-1] and number != field.id for number, name in schema.former_names
    )


def check_nulls(rows: pa.RecordBatch, schema: Schema, location: Location) -> None:
    """Refuse NULLs in columns that have none by the namespace's schema."""
    for field, column in zip(plain_schema(schema), rows.columns, strict=True):
        if not field.nullable and column.null_count:
            raise SchemaMismatch(
                f"Cannot read the partition at {location}: its column {field.name!r} has NULLs, "
                "and in the table's schema it is not nullable. Fill them there with Lance's "
                "update, or write this leaf anew."
            )


def _check(leaf: Schema, schema: Schema, location: Location) -> None:
    ours, theirs = _fields(leaf), _fields(schema)
    if not set(ours) & _known_ids(schema):
        raise SchemaMismatch(
            f"Cannot read the partition at {location}: none of its columns "
            f"({', '.join(leaf.names)}) has the field id of one of the table's "
            f"({', '.join(schema.names)}). {_repair(location)}"
        )
    by_name = {(field.parent, field.place[-1]): field for field in theirs.values()}
    for field in ours.values():
        named = by_name.get((field.parent, field.place[-1]))
        same = theirs.get(field.id)
        is_another = named is not None and named.id != field.id
        was_called_so = (field.id, field.place[-1]) in schema.former_names
        if (is_another and not was_called_so) or (same is not None and same.parent != field.parent):
            meant = "" if same is None else f", where {field.id} is {same.name!r}"
            expected = "another place" if named is None else f"the field id {named.id}"
            raise SchemaMismatch(
                f"Cannot read the partition at {location}: its column {field.name!r} has the field "
                f"id {field.id}, and {expected} in the table's schema{meant}. Either its names or "
                f"its ids are wrong. {_repair(location)}"
            )
        if same is not None and not _is_readable(field, same):
            raise SchemaMismatch(
                f"Cannot read the partition at {location}: its column {field.name!r} is "
                f"{field.type}, expected {same.type} as {same.name!r} is in the table's schema. "
                "Write this leaf anew with that type; or take its row out of the manifest, and "
                "append its rows to the table."
            )
    for field in theirs.values():
        is_gone = field.id not in ours and (field.parent < 0 or field.parent in ours)
        if is_gone and not field.nullable:
            raise SchemaMismatch(
                f"Cannot read the partition at {location}: it has no column {field.name!r} (field "
                f"id {field.id}), which is not nullable in the table's schema. Write this leaf "
                "anew with that column."
            )


def _known_ids(schema: Schema) -> set[int]:
    """The ids that fields have or had, as far as that is known."""
    return {*schema.ids, *(number for number, _ in schema.former_names)}


def _repair(location: Location) -> str:
    return (
        "If each name is right, which is so after a plain write by Lance, give the leaf the "
        f"table's ids with adopt({location.uri!r}) in weak mode; else write this leaf anew."
    )


def _named(leaf: Schema, schema: Schema) -> Schema:
    """The schema of a leaf with the ids that the same names have in the namespace."""
    by_place = {field.place: field.id for field in _fields(schema).values()}
    columns = columns_of(leaf.arrow)
    for node in walk(columns):
        if node.numbered:
            node.field["metadata"][FIELD_ID] = str(by_place[node.place])
    return Schema.of(pa.schema(map(field_from_json, columns)))


def _fields(schema: Schema) -> dict[int, _Field]:
    return {field.id: field for field in _walked(schema)}


def _walked(schema: Schema) -> Iterator[_Field]:
    ids: dict[tuple[str, ...], int] = {}
    for node in walk(columns_of(schema.arrow)):
        number = given_id(node.field)
        if not node.numbered or number is None:
            continue
        ids[node.place] = number
        found = field_from_json(node.field)
        yield _Field(
            number,
            node.place,
            ids.get(node.place[:-1], -1),
            node.field["type"]["type"].lower(),
            found.type,
            found.nullable,
        )


def _is_same(ours: _Field, theirs: _Field) -> bool:
    if ours.kind != theirs.kind or (ours.nullable and not theirs.nullable):
        return False
    return ours.kind in _WITH_INSIDES or ours.type == theirs.type


def _is_readable(ours: _Field, theirs: _Field) -> bool:
    """Whether the values of one are values of the other, as far as types tell."""
    if pt.is_nested(ours.type) or pt.is_nested(theirs.type):
        if ours.kind in _WITH_INSIDES:
            return ours.kind == theirs.kind
        return bool(ours.type == theirs.type)
    # The leaf may have been promoted since the namespace was looked at.
    return (
        ours.type == theirs.type or widens(ours.type, theirs.type) or widens(theirs.type, ours.type)
    )
