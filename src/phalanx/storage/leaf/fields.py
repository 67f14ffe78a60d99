"""The mapping from a leaf's fields to the namespace's, where their schemas differ.

Field ids decide (format: Schema), because names change: a leaf may lack a rename, a new column, a
drop or a promotion. Differences that no such change explains are refused. If a name has one id in
the leaf and another in the namespace, and that field never had the name, one of the two is wrong:
a guess could read one column as another, or as NULL.

One case is certain: a leaf that was written without the namespace's ids. Lance has numbered its
columns by position, none of these numbers is an id of the namespace, and all names and types are
the namespace's. Such a leaf is read by its names. Names are reliable only for the schema that the
leaf was written for. So a schema change first gives such leaves the namespace's ids
(`reconcile.align_leaf`), and a name that another field once had is not enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import lance
import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import SchemaMismatch
from phalanx.model.schema.arrow_json import field_from_json
from phalanx.model.schema.field_ids import FIELD_ID, read_field_id, to_json_columns, walk_fields
from phalanx.model.schema.rows import to_row_schema
from phalanx.model.schema.schema import Schema, can_promote
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.schema import read_lance_schema

# The children of these are compared separately.
_NESTED_KINDS = ("struct", "list", "large_list", "map")


@dataclass(frozen=True, slots=True)
class _Field:
    """A field with an id: its path, its type, and the id of its parent, or −1."""

    id: int
    path: tuple[str, ...]
    parent: int
    kind: str
    type: pa.DataType
    nullable: bool

    @property
    def name(self) -> str:
        return ".".join(self.path)


def resolve_fields(dataset: lance.LanceDataset, schema: Schema, location: Location) -> Schema:
    """Return the schema of a leaf with the field ids of the namespace.

    Refuses a leaf whose fields cannot be mapped.
    """
    leaf = read_lance_schema(dataset)
    if is_numbered_by_position(leaf, schema):
        return _with_ids_by_name(leaf, schema)
    _check_fields(leaf, schema, location)
    return leaf


def check_leaf_writable(leaf: Schema, schema: Schema, location: Location) -> None:
    """Refuse a leaf with fields that the namespace never had: a write would drop them."""
    theirs = _fields_by_id(schema)
    for field in _fields_by_id(leaf).values():
        if field.id not in theirs and field.id > schema.last_field_id:
            raise SchemaMismatch(
                f"Cannot write to the partition at {location}: its column {field.name!r} (field "
                f"id {field.id}) does not exist in the table, and would be lost. Drop it in the "
                "leaf with Lance's drop_columns, or write its rows to another table."
            )
        wanted = theirs.get(field.id)
        if wanted is not None and can_promote(wanted.type, field.type):
            raise SchemaMismatch(
                f"Cannot write to the partition at {location}: its column {field.name!r} is "
                f"{field.type}, expected {wanted.type} as in the table's schema. Widen the table's "
                f"column with promote_column({wanted.name!r}, …)."
            )


def is_numbered_by_position(leaf: Schema, schema: Schema) -> bool:
    """Whether the ids of a leaf are positions only, and all names and types are the namespace's.

    A name that another field had before is ambiguous: the leaf may mean that field.
    """
    ours, theirs = _fields_by_id(leaf), _fields_by_id(schema)
    if set(ours) & _all_ids(schema) or tuple(leaf.ids) != tuple(range(len(leaf.ids))):
        return False
    by_place = {field.path: field for field in theirs.values()}
    return (
        set(by_place) == {field.path for field in ours.values()}
        and all(_is_same_type(field, by_place[field.path]) for field in ours.values())
        and not any(_is_reused_name(field, schema) for field in theirs.values())
    )


def _is_reused_name(field: _Field, schema: Schema) -> bool:
    """Whether the name of a column or struct child belonged to another field before."""
    return schema.path_of(field.id) is not None and any(
        name == field.path[-1] and number != field.id for number, name in schema.former_names
    )


def check_nulls(rows: pa.RecordBatch, schema: Schema, location: Location) -> None:
    """Refuse NULLs in columns that are not nullable in the namespace's schema."""
    for field, column in zip(to_row_schema(schema), rows.columns, strict=True):
        if not field.nullable and column.null_count:
            raise SchemaMismatch(
                f"Cannot read the partition at {location}: its column {field.name!r} has NULLs, "
                "but in the table's schema it is not nullable. Fill them in the leaf with Lance's "
                "update, or rewrite this leaf."
            )


def _check_fields(leaf: Schema, schema: Schema, location: Location) -> None:
    ours, theirs = _fields_by_id(leaf), _fields_by_id(schema)
    if not set(ours) & _all_ids(schema):
        raise SchemaMismatch(
            f"Cannot read the partition at {location}: none of its columns "
            f"({', '.join(leaf.names)}) has the field id of one of the table's "
            f"({', '.join(schema.names)}). {_repair_hint(location)}"
        )
    by_name = {(field.parent, field.path[-1]): field for field in theirs.values()}
    for field in ours.values():
        named = by_name.get((field.parent, field.path[-1]))
        same = theirs.get(field.id)
        is_another = named is not None and named.id != field.id
        was_called_so = (field.id, field.path[-1]) in schema.former_names
        if (is_another and not was_called_so) or (same is not None and same.parent != field.parent):
            meant = "" if same is None else f", where {field.id} is {same.name!r}"
            expected = "another parent" if named is None else f"the field id {named.id}"
            raise SchemaMismatch(
                f"Cannot read the partition at {location}: its column {field.name!r} has the field "
                f"id {field.id}, but {expected} in the table's schema{meant}. Either its names or "
                f"its ids are wrong. {_repair_hint(location)}"
            )
        if same is not None and not _is_convertible(field, same):
            raise SchemaMismatch(
                f"Cannot read the partition at {location}: its column {field.name!r} is "
                f"{field.type}, expected {same.type} as {same.name!r} is in the table's schema. "
                "Rewrite this leaf with that type; or remove its row from the manifest, and append "
                "its rows to the table."
            )
    for field in theirs.values():
        is_gone = field.id not in ours and (field.parent < 0 or field.parent in ours)
        if is_gone and not field.nullable:
            raise SchemaMismatch(
                f"Cannot read the partition at {location}: it has no column {field.name!r} (field "
                f"id {field.id}), which is not nullable in the table's schema. Rewrite this "
                "leaf with that column."
            )


def _all_ids(schema: Schema) -> set[int]:
    """Return the ids of all current fields and of all renamed or dropped ones."""
    return {*schema.ids, *(number for number, _ in schema.former_names)}


def _repair_hint(location: Location) -> str:
    return (
        "If the names are right, as after a plain write by Lance, give the leaf the table's ids "
        f"with adopt({location.uri!r}) in weak mode; otherwise rewrite this leaf."
    )


def _with_ids_by_name(leaf: Schema, schema: Schema) -> Schema:
    """Return the schema of a leaf with the ids of the namespace's fields of the same name."""
    by_place = {field.path: field.id for field in _fields_by_id(schema).values()}
    columns = to_json_columns(leaf.arrow)
    for node in walk_fields(columns):
        if node.has_id:
            node.field["metadata"][FIELD_ID] = str(by_place[node.path])
    return Schema.of(pa.schema(map(field_from_json, columns)))


def _fields_by_id(schema: Schema) -> dict[int, _Field]:
    return {field.id: field for field in _walk_fields(schema)}


def _walk_fields(schema: Schema) -> Iterator[_Field]:
    ids: dict[tuple[str, ...], int] = {}
    for node in walk_fields(to_json_columns(schema.arrow)):
        number = read_field_id(node.field)
        if not node.has_id or number is None:
            continue
        ids[node.path] = number
        found = field_from_json(node.field)
        yield _Field(
            number,
            node.path,
            ids.get(node.path[:-1], -1),
            node.field["type"]["type"].lower(),
            found.type,
            found.nullable,
        )


def _is_same_type(ours: _Field, theirs: _Field) -> bool:
    if ours.kind != theirs.kind or (ours.nullable and not theirs.nullable):
        return False
    return ours.kind in _NESTED_KINDS or ours.type == theirs.type


def _is_convertible(ours: _Field, theirs: _Field) -> bool:
    """Whether the values of one type can be read as the other type."""
    if pt.is_nested(ours.type) or pt.is_nested(theirs.type):
        if ours.kind in _NESTED_KINDS:
            return ours.kind == theirs.kind
        return bool(ours.type == theirs.type)
    # The leaf may have been promoted after the namespace was read.
    return (
        ours.type == theirs.type
        or can_promote(ours.type, theirs.type)
        or can_promote(theirs.type, ours.type)
    )
