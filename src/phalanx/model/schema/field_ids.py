"""Field ids: which fields have one, and how they are assigned and stored.

Ids are assigned in Lance's order: depth first, parents before children. Items of a fixed-size list
have ids only if they are structs; the parts of a dictionary have none.

Arrow keeps no metadata on the entries field of a map. Its id is the key's id minus one, as Lance
numbers it; the JSON states it explicitly.

Ids are assigned in the JSON form of fields, which is plain data without loss.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from phalanx.errors import InvalidSchema
from phalanx.model.schema import arrow_json
from phalanx.model.schema.arrow_json import Json
from phalanx.model.schema.names import FieldPath

FIELD_ID = "lance:field_id"
_ID = re.compile("[0-9]{1,10}")
_MAX_ID = 2**31 - 1


class FieldNode(NamedTuple):
    """A field, its path, and whether it has an id."""

    field: Json
    path: FieldPath
    is_addressable: bool  # all its parents are structs
    has_id: bool  # Lance assigns it an id


def to_json_columns(arrow: pa.Schema) -> list[Json]:
    """Return the JSON of the columns; the entries fields of maps have their derived ids."""
    columns: list[Json] = arrow_json.schema_to_json(arrow)["fields"]
    for entries, entries_id in find_map_entries(columns):
        if entries_id is not None:
            entries["metadata"] = {FIELD_ID: entries_id}
    return columns


def walk_fields(
    fields: list[Json], parent: FieldPath = (), is_addressable: bool = True, has_id: bool = True
) -> Iterator[FieldNode]:
    """Iterate over all fields in Lance's order."""
    for field in fields:
        place = (*parent, field["name"])
        yield FieldNode(field, place, is_addressable, has_id)
        struct, ids_inside = _type_name(field) == "struct", not _hides_ids(field)
        yield from walk_fields(
            list_child_fields(field), place, is_addressable and struct, has_id and ids_inside
        )


def _hides_ids(field: Json) -> bool:
    """Return whether Lance assigns no ids inside the field."""
    name = _type_name(field)
    vector = name == "fixed_size_list" and _type_name(list_child_fields(field)[0]) != "struct"
    return vector or name.startswith("dictionary")


def assign_ids(columns: list[Json], last: int, keep: bool) -> None:
    """Assign ids above `last` to all fields, or if `keep` only to those without one."""
    nodes = list(walk_fields(columns))
    kept = [read_field_id(node.field) for node in nodes if node.has_id] if keep else []
    fresh = itertools.count(1 + max([last, *(number for number in kept if number is not None)]))
    for node in nodes:
        metadata = node.field.setdefault("metadata", {})
        if not node.has_id:
            metadata.pop(FIELD_ID, None)
        elif not keep or FIELD_ID not in metadata:
            metadata[FIELD_ID] = str(_check_id_range(next(fresh), node))


def _check_id_range(fresh: int, node: FieldNode) -> int:
    if fresh > _MAX_ID:
        raise InvalidSchema(
            f"Cannot assign an id to column {'.'.join(node.path)!r}: Lance's ids end at {_MAX_ID}, "
            "and those of dropped columns are not reused. Copy the rows to a new table."
        )
    return fresh


def find_map_entries(fields: list[Json]) -> Iterator[tuple[Json, str | None]]:
    """Iterate over the entries fields of maps, each with its derived id."""
    for node in walk_fields(fields):
        if _type_name(node.field).startswith("map"):
            (entries,) = list_child_fields(node.field)
            key_id = metadata_of(list_child_fields(entries)[0]).get(FIELD_ID, "")
            yield entries, str(int(key_id) - 1) if _ID.fullmatch(key_id) else None


def _type_name(field: Json) -> str:
    name: str = field["type"]["type"]
    return name.lower()


def list_child_fields(field: Json) -> list[Json]:
    """Return the direct children of a field."""
    return field["type"].get("fields") or []


def metadata_of(field: Json) -> dict[str, str]:
    """Return the metadata of a field."""
    return field.get("metadata") or {}


def read_field_id(field: Json) -> int | None:
    """Return the id of a field; None if it has none."""
    text = metadata_of(field).get(FIELD_ID)
    return None if text is None else parse_id(text, f"Field {field['name']!r} has {FIELD_ID}")


def parse_id(text: str, found: str) -> int:
    """Parse a field id; `found` begins the error message."""
    if not _ID.fullmatch(text) or int(text) > _MAX_ID:
        raise InvalidSchema(
            f"{found} {text!r}: expected an integer from 0 to {_MAX_ID}. "
            "Correct it, or remove all ids to have new ones assigned."
        )
    return int(text)
