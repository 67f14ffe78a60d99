"""Field ids: which fields have one, in what order they are given, and where they are written.

Ids are given in Lance's order: depth first, parents before children. Items of a fixed-size
list have ids only if they are structs, and the insides of a dictionary have none.

Arrow keeps no metadata on the entries of a map. Their id is by rule the one before the key's,
which is also how Lance numbers them; the JSON spells it out.

Fields are numbered in their JSON form, which is plain data and loses nothing.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from phalanx.errors import InvalidSchema
from phalanx.model.schema import arrow_json
from phalanx.model.schema.arrow_json import Json, Path

FIELD_ID = "lance:field_id"
_ID = re.compile("[0-9]{1,10}")
_LAST_ID = 2**31 - 1


class FieldNode(NamedTuple):
    """A field and its place among the others."""

    field: Json
    place: Path
    addressable: bool  # only struct children lead to it
    numbered: bool  # Lance gives it an id


def columns_of(arrow: pa.Schema) -> list[Json]:
    """The JSON of the columns, in which the entries of maps have the id of the rule."""
    columns: list[Json] = arrow_json.schema_to_json(arrow)["fields"]
    for entries, entries_id in entries_of_maps(columns):
        if entries_id is not None:
            entries["metadata"] = {FIELD_ID: entries_id}
    return columns


def walk(
    fields: list[Json], parent: Path = (), addressable: bool = True, numbered: bool = True
) -> Iterator[FieldNode]:
    """Every field, in Lance's order."""
    for field in fields:
        place = (*parent, field["name"])
        yield FieldNode(field, place, addressable, numbered)
        struct, ids_inside = _type_name(field) == "struct", not _is_atom(field)
        yield from walk(inside(field), place, addressable and struct, numbered and ids_inside)


def _is_atom(field: Json) -> bool:
    """Whether Lance stores what is inside the field without ids of its own."""
    name = _type_name(field)
    vector = name == "fixed_size_list" and _type_name(inside(field)[0]) != "struct"
    return vector or name.startswith("dictionary")


def number(columns: list[Json], last: int, keep: bool) -> None:
    """Gives ids past `last` to all fields, or only to those that have none to keep."""
    nodes = list(walk(columns))
    kept = [given_id(node.field) for node in nodes if node.numbered] if keep else []
    fresh = itertools.count(1 + max([last, *(number for number in kept if number is not None)]))
    for node in nodes:
        metadata = node.field.setdefault("metadata", {})
        if not node.numbered:
            metadata.pop(FIELD_ID, None)
        elif not keep or FIELD_ID not in metadata:
            metadata[FIELD_ID] = str(_checked(next(fresh), node))


def _checked(fresh: int, node: FieldNode) -> int:
    if fresh > _LAST_ID:
        raise InvalidSchema(
            f"Cannot give column {'.'.join(node.place)!r} an id: Lance's ids end at {_LAST_ID}, "
            "and those of dropped columns are not given again. Copy the rows to a new table."
        )
    return fresh


def entries_of_maps(fields: list[Json]) -> Iterator[tuple[Json, str | None]]:
    """The entries field of every map, and the id that it has by rule."""
    for node in walk(fields):
        if _type_name(node.field).startswith("map"):
            (entries,) = inside(node.field)
            key_id = metadata_of(inside(entries)[0]).get(FIELD_ID, "")
            yield entries, str(int(key_id) - 1) if _ID.fullmatch(key_id) else None


def _type_name(field: Json) -> str:
    name: str = field["type"]["type"]
    return name.lower()


def inside(field: Json) -> list[Json]:
    return field["type"].get("fields") or []


def metadata_of(field: Json) -> dict[str, str]:
    return field.get("metadata") or {}


def given_id(field: Json) -> int | None:
    text = metadata_of(field).get(FIELD_ID)
    return None if text is None else parse_id(text, f"Field {field['name']!r} has {FIELD_ID}")


def parse_id(text: str, found: str) -> int:
    if not _ID.fullmatch(text) or int(text) > _LAST_ID:
        raise InvalidSchema(
            f"{found} {text!r}: expected an integer from 0 to {_LAST_ID}. "
            "Correct it, or remove all ids to have them given anew."
        )
    return int(text)
