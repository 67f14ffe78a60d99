"""The table's schema: Arrow fields with stable ids (format: Schema)."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable

import pyarrow as pa

from phalanx.errors import InvalidArgument, InvalidSchema, SchemaMismatch, format_value
from phalanx.model.schema import arrow_json
from phalanx.model.schema.arrow_json import Json
from phalanx.model.schema.field_ids import (
    FIELD_ID,
    FieldNode,
    assign_ids,
    find_map_entries,
    list_child_fields,
    metadata_of,
    parse_id,
    read_field_id,
    to_json_columns,
    walk_fields,
)
from phalanx.model.schema.names import FieldPath, resolve_path
from phalanx.model.stored_json import parse_json

LAST_FIELD_ID = "phalanx:last_field_id"
FORMER_NAMES = "phalanx:former_names"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """An Arrow schema whose fields all have an id, and the highest id ever assigned.

    `former_names` are the names of renamed and dropped fields, each with its field id: a leaf that
    has not been updated yet still uses them.
    """

    arrow: pa.Schema
    last_field_id: int
    former_names: frozenset[tuple[int, str]] = frozenset()
    _by_id: dict[int, FieldNode] = dataclasses.field(init=False, repr=False)
    _by_path: dict[FieldPath, int] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        nodes = list(walk_fields(to_json_columns(self.arrow)))
        _check_names(nodes)
        by_id: dict[int, FieldNode] = {}
        for node in nodes:
            field_id = read_field_id(node.field)
            if node.has_id and field_id is None:
                raise InvalidSchema(f"Column {_quote_path(node.path)} has no id. Use Schema.of.")
            if field_id in by_id:
                raise InvalidSchema(
                    f"Columns {_quote_path(by_id[field_id].path)} and {_quote_path(node.path)} "
                    f"have the same {FIELD_ID}, {field_id}: expected unique ids. Give one another "
                    "id."
                )
            if field_id is not None:
                by_id[field_id] = node
        by_path = {node.path: number for number, node in by_id.items() if node.is_addressable}
        object.__setattr__(self, "last_field_id", max(self.last_field_id, *by_id))
        object.__setattr__(self, "_by_id", by_id)
        object.__setattr__(self, "_by_path", by_path)

    @classmethod
    def of(cls, arrow: pa.Schema) -> "Schema":
        """Create a schema with the ids of the columns, or with ids from 0 if no column has one.

        Nested fields without an id get new ones; ids on only some of the columns are refused.
        """
        if not isinstance(arrow, pa.Schema):
            raise InvalidSchema(
                f"Cannot use {type(arrow).__name__} as a schema: expected pa.Schema."
            )
        columns = to_json_columns(arrow)
        metadata = dict(arrow.metadata or {})
        mark = metadata.pop(LAST_FIELD_ID.encode(), None)
        last = -1 if mark is None else parse_id(mark.decode(), f"The schema has {LAST_FIELD_ID}")
        former = _parse_former_names(metadata.pop(FORMER_NAMES.encode(), b"{}"))
        missing = [column["name"] for column in columns if read_field_id(column) is None]
        if 0 < len(missing) < len(columns):
            raise InvalidSchema(
                f"The columns {', '.join(map(repr, missing))} have no {FIELD_ID}, others have: "
                "expected ids on all columns or on none. Give them ids, or remove all ids."
            )
        assign_ids(columns, last, keep=not missing)
        fields = map(arrow_json.field_from_json, columns)
        return cls(pa.schema(fields, metadata=metadata or None), last, former)

    @classmethod
    def from_json(cls, text: str) -> "Schema":
        """Read the schema from a namespace's property `schema` (format: Appendix A)."""
        parsed = parse_json(text, "the schema", InvalidSchema)
        schema = cls.of(arrow_json.schema_from_json(parsed))
        for entries, expected in find_map_entries(parsed["fields"]):
            given = metadata_of(entries).get(FIELD_ID)
            if given not in (None, expected):
                raise InvalidSchema(
                    f"The entries of a map have {FIELD_ID} {given!r}: expected {expected!r}, one "
                    "less than the key's, as Lance numbers them. Renumber the map."
                )
        return schema

    def to_json(self) -> str:
        """Write the schema as compact JSON, with the last id only if its field was dropped."""
        written = {**arrow_json.schema_to_json(self.arrow), "fields": to_json_columns(self.arrow)}
        if self.last_field_id > max(self._by_id):
            written.setdefault("metadata", {})[LAST_FIELD_ID] = str(self.last_field_id)
        if self.former_names:
            names: dict[str, list[str]] = {}
            for field_id, name in sorted(self.former_names):
                names.setdefault(str(field_id), []).append(name)
            former = json.dumps(names, separators=(",", ":"), ensure_ascii=False)
            written.setdefault("metadata", {})[FORMER_NAMES] = former
        return json.dumps(written, separators=(",", ":"), ensure_ascii=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        same: bool = self.arrow.equals(other.arrow, check_metadata=True)
        return same and self.last_field_id == other.last_field_id

    def __hash__(self) -> int:
        return hash((self.names, self.last_field_id))

    def __reduce__(self) -> tuple[Callable[[str], "Schema"], tuple[str]]:
        # Arrow's pickle loses that the keys of a map are sorted.
        return Schema.from_json, (self.to_json(),)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(self.arrow.names)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of all fields in Lance's order, nested ones and the entries of maps included."""
        return tuple(self._by_id)

    def field(self, field_id: int) -> pa.Field:
        """Return the field with this id, at any depth; raise `InvalidSchema` if there is none."""
        if field_id not in self._by_id:
            raise InvalidSchema(
                f"No field has the id {field_id!r}: it was dropped or never assigned (the last id "
                f"is {self.last_field_id}). Look an id up with id_of."
            )
        return arrow_json.field_from_json(self._by_id[field_id].field)

    def type_of(self, field_id: int) -> pa.DataType:
        """Return the type of the field with this id; raise `InvalidSchema` if there is none."""
        return self.field(field_id).type

    def path_of(self, field_id: int) -> FieldPath | None:
        """Return the path of the field with this id; None if dropped, or inside a list or map."""
        node = self._by_id.get(field_id)
        return node.path if node is not None and node.is_addressable else None

    def id_of(self, path: FieldPath | str) -> int:
        """Return the id of the column or struct field that `resolve` finds."""
        return self._by_path[self.resolve(path)]

    def resolve(self, path: FieldPath | str) -> FieldPath:
        """Return the exact path of 'a.b' or ('a', 'b'): as spelled, else ignoring case."""
        names = (path,) if isinstance(path, str) else path
        if not isinstance(names, tuple | list) or not all(isinstance(n, str) for n in names):
            raise InvalidSchema(f"No column {path!r}: expected a name as text, as 'a' or 'a.b'.")
        dotted = ".".join(names)
        return resolve_path(dotted.split("."), self.arrow)

    def add(self, field: pa.Field) -> "Schema":
        """Return the schema with one more column, which must be nullable and gets new ids."""
        if field.name in self.names:
            raise SchemaMismatch(
                f"Cannot add column {field.name!r}: it exists. Choose another name, or drop it."
            )
        if not field.nullable:
            raise SchemaMismatch(
                f"Cannot add column {field.name!r} ({field.type} not null): expected a nullable "
                "one, because existing rows have no value for it. Make it nullable."
            )
        added = [arrow_json.field_to_json(field)]
        assign_ids(added, self.last_field_id, keep=False)
        return self._replace_columns(to_json_columns(self.arrow) + added)

    def drop(self, name: FieldPath | str) -> "Schema":
        """Return the schema without a column or struct field; its ids are never reused."""
        path = self.resolve(name)
        columns, siblings, dropped = self._locate(path)
        if len(siblings) == 1:
            raise SchemaMismatch(
                f"Cannot drop column {_quote_path(path)}: it is the last one there. "
                "Add another first, or drop what contains it."
            )
        siblings.remove(dropped)
        return self._replace_columns(columns)

    def rename(self, old: FieldPath | str, new: str) -> "Schema":
        """Return the schema with a renamed column or struct field, which keeps its id."""
        path = self.resolve(old)
        if not isinstance(new, str):
            raise InvalidArgument(
                f"Cannot rename column {_quote_path(path)} to {new!r}: expected a name as text."
            )
        columns, siblings, renamed = self._locate(path)
        if any(other["name"] == new for other in siblings if other is not renamed):
            raise SchemaMismatch(
                f"Cannot rename column {_quote_path(path)} to {new!r}: that name exists. "
                "Choose another name, or drop the other column first."
            )
        renamed["name"] = new
        return self._replace_columns(columns)

    def promote(self, name: FieldPath | str, type: pa.DataType) -> "Schema":
        """Return the schema with a wider type of a column or struct field, which keeps its id."""
        path = self.resolve(name)
        if not isinstance(type, pa.DataType):
            raise InvalidArgument(
                f"Cannot change column {_quote_path(path)} to {type!r}: expected a type of Arrow, "
                "such as pa.int64()."
            )
        old = self.type_of(self._by_path[path])
        if not can_promote(old, type):
            raise SchemaMismatch(
                f"Cannot change column {_quote_path(path)} from {old} to {type}: allowed are "
                "integers of the same sign with more bits, floats with more bits, and decimals of "
                "the same scale with more digits. Add a column of the new type instead."
            )
        columns, _, promoted = self._locate(path)
        promoted["type"] = arrow_json.type_to_json(type)
        return self._replace_columns(columns)

    def _locate(self, path: FieldPath) -> tuple[list[Json], list[Json], Json]:
        """Return a copy of the columns, and in it the siblings of the field at a path and it."""
        siblings = columns = to_json_columns(self.arrow)
        for step in path[:-1]:
            siblings = list_child_fields(next(field for field in siblings if field["name"] == step))
        return columns, siblings, next(field for field in siblings if field["name"] == path[-1])

    def _replace_columns(self, columns: list[Json]) -> "Schema":
        fields = map(arrow_json.field_from_json, columns)
        names = _names_by_id(columns)
        before = _names_by_id(to_json_columns(self.arrow))
        former = {each for each in before.items() if names.get(each[0]) != each[1]}
        return Schema(
            pa.schema(fields, metadata=self.arrow.metadata),
            self.last_field_id,
            self.former_names | former,
        )


def _names_by_id(columns: list[Json]) -> dict[int, str]:
    """Return the last name of each field by its id."""
    ids = ((read_field_id(node.field), node) for node in walk_fields(columns) if node.has_id)
    return {number: node.path[-1] for number, node in ids if number is not None}


def _parse_former_names(text: bytes) -> frozenset[tuple[int, str]]:
    try:
        found = dict(parse_json(text.decode(), FORMER_NAMES, InvalidSchema))
        return frozenset((int(number), str(name)) for number in found for name in found[number])
    except (ValueError, TypeError, InvalidSchema):
        raise InvalidSchema(
            f"The schema has {FORMER_NAMES} {format_value(text)}: expected an object with lists of "
            "names by field ids. Restore it, or remove it."
        ) from None


def _check_names(nodes: list[FieldNode]) -> None:
    """Refuse columns and struct fields that a dotted path cannot distinguish."""
    if not nodes:
        raise InvalidSchema("The schema has no columns: expected at least one. Add a column.")
    for place, count in Counter(node.path for node in nodes if node.is_addressable).items():
        if not place[-1] or "." in place[-1]:
            raise InvalidSchema(
                f"Column {_quote_path(place)} is named {place[-1]!r}: expected a name that is not "
                "empty and has no dot in it. Rename it, or make it a struct."
            )
        if count > 1:
            raise InvalidSchema(
                f"Column {_quote_path(place)} occurs {count} times: expected once. Rename one."
            )


def can_promote(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a column of one type may be promoted to the other."""
    kinds = (pa.types.is_signed_integer, pa.types.is_unsigned_integer, pa.types.is_floating)
    if any(is_kind(old) and is_kind(new) for is_kind in kinds):
        return bool(new.bit_width > old.bit_width)
    if not (pa.types.is_decimal(old) and pa.types.is_decimal(new)):
        return False
    wider = new.precision >= old.precision and new.bit_width >= old.bit_width
    return bool(wider and new.scale == old.scale and new != old)


def _quote_path(path: FieldPath) -> str:
    return repr(".".join(path))
