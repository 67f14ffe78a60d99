"""Lance schemas with the namespace's field ids, and the field ids of a Lance table.

Lance numbers the fields of a new table itself. The only way to a schema with other ids is to edit
its pickled messages; `tests/integration/test_lance_facts.py` checks that this still works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import lance
import pyarrow as pa
from lance.schema import LanceSchema

from phalanx.model.schema.arrow_json import field_from_json
from phalanx.model.schema.field_ids import FIELD_ID, to_json_columns, walk_fields
from phalanx.model.schema.rows import remove_ids, to_row_schema
from phalanx.model.schema.schema import Schema

# The tags of `id` and `parent_id` in the protobuf message Field, as varints.
_ID, _PARENT_ID = b"\x18", b"\x20"


def to_lance_schema(schema: Schema, leaf: lance.LanceDataset | None = None) -> LanceSchema:
    """Return the schema as a Lance schema with the namespace's field ids.

    Fields that `leaf` already has keep what Arrow cannot express: the dictionaries of their files.
    """
    known = (
        {}
        if leaf is None
        else dict(zip(field_ids_of(leaf), _field_messages(leaf.lance_schema), strict=True))
    )
    plain = LanceSchema.from_pyarrow(to_row_schema(schema))
    parents = [
        -1 if above < 0 else schema.ids[above] for above in _parent_positions(plain.fields())
    ]
    pickled: Any = plain.__reduce__()
    build, (metadata, *_) = pickled
    numbered = [
        # Of repeated values in a protobuf message the last one counts.
        known.get(field_id, b"")
        + message
        + _ID
        + encode_varint(field_id)
        + _PARENT_ID
        + encode_varint(parent)
        for message, field_id, parent in zip(
            _field_messages(plain), schema.ids, parents, strict=True
        )
    ]
    found: LanceSchema = build(metadata, *numbered)
    return found


def _field_messages(schema: LanceSchema) -> list[bytes]:
    """Return the pickled messages of the fields, in Lance's order."""
    pickled: Any = schema.__reduce__()
    _, (_, *messages) = pickled
    return list(messages)


def field_ids_of(dataset: lance.LanceDataset) -> tuple[int, ...]:
    """Return the ids of all fields of a Lance table, in Lance's order."""
    return tuple(list_field_ids(dataset.lance_schema.fields()))


def read_lance_schema(dataset: lance.LanceDataset) -> Schema:
    """Return the schema of a Lance table with the field ids it has there."""
    columns = to_json_columns(remove_ids(dataset.schema))
    numbered = [node.field for node in walk_fields(columns) if node.has_id]
    for field, field_id in zip(numbered, field_ids_of(dataset), strict=True):
        field.setdefault("metadata", {})[FIELD_ID] = str(field_id)
    return Schema.of(pa.schema(map(field_from_json, columns)))


def is_aligned(dataset: lance.LanceDataset, schema: Schema) -> bool:
    """Whether the leaf has exactly the namespace's fields: ids, names, types, order."""
    return field_ids_of(dataset) == schema.ids and dataset.schema.equals(to_row_schema(schema))


def _parent_positions(fields: Iterable[Any]) -> list[int]:
    """Return the position of each field's parent, in Lance's order; −1 for columns."""
    parents: list[int] = []

    def visit(fields: Iterable[Any], above: int) -> None:
        for field in fields:
            parents.append(above)
            visit(field.children(), len(parents) - 1)

    visit(fields, -1)
    return parents


def list_field_ids(fields: Iterable[Any]) -> Iterator[int]:
    """Yield the ids of Lance fields and of all fields nested in them."""
    for field in fields:
        yield field.id()
        yield from list_field_ids(field.children())


def encode_varint(number: int) -> bytes:
    """Encode an integer as protobuf does."""
    number &= (1 << 64) - 1
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])
