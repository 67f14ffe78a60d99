"""Lance schemas that carry the namespace's field ids, and the ids that a leaf has.

Lance numbers the fields of a new table by itself. A schema with other ids can only be had by
editing the messages it is pickled as; `tests/integration/test_lance_facts.py` watches over this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import lance
import pyarrow as pa
from lance.schema import LanceSchema

from phalanx.model.schema.arrow_json import field_from_json
from phalanx.model.schema.field_ids import FIELD_ID, columns_of, walk
from phalanx.model.schema.rows import plain_schema, without_ids
from phalanx.model.schema.schema import Schema

# The numbers of `id` and `parent_id` in the message Field, as varints.
_ID, _PARENT_ID = b"\x18", b"\x20"


def lance_schema(schema: Schema, leaf: lance.LanceDataset | None = None) -> LanceSchema:
    """The schema as Lance has it, with the namespace's ids.

    Fields that a leaf has keep what Arrow cannot say of them: the dictionaries of their files.
    """
    known = (
        {} if leaf is None else dict(zip(ids_of(leaf), _messages(leaf.lance_schema), strict=True))
    )
    plain = LanceSchema.from_pyarrow(plain_schema(schema))
    parents = [-1 if above < 0 else schema.ids[above] for above in _parents(plain.fields())]
    pickled: Any = plain.__reduce__()
    build, (metadata, *_) = pickled
    numbered = [
        # The last of equal values in a message counts.
        known.get(field_id, b"") + message + _ID + _varint(field_id) + _PARENT_ID + _varint(parent)
        for message, field_id, parent in zip(_messages(plain), schema.ids, parents, strict=True)
    ]
    found: LanceSchema = build(metadata, *numbered)
    return found


def _messages(schema: LanceSchema) -> list[bytes]:
    """The fields as the messages they are pickled as, in Lance's order."""
    pickled: Any = schema.__reduce__()
    _, (_, *messages) = pickled
    return list(messages)


def ids_of(dataset: lance.LanceDataset) -> tuple[int, ...]:
    """The ids of all fields of a Lance table, in Lance's order."""
    return tuple(all_ids(dataset.lance_schema.fields()))


def schema_of(dataset: lance.LanceDataset) -> Schema:
    """The schema of a Lance table, with the ids it has there."""
    columns = columns_of(without_ids(dataset.schema))
    numbered = [node.field for node in walk(columns) if node.numbered]
    for field, field_id in zip(numbered, ids_of(dataset), strict=True):
        field.setdefault("metadata", {})[FIELD_ID] = str(field_id)
    return Schema.of(pa.schema(map(field_from_json, columns)))


def is_aligned(dataset: lance.LanceDataset, schema: Schema) -> bool:
    """Whether the leaf has exactly the namespace's fields: ids, names, types, order."""
    return ids_of(dataset) == schema.ids and dataset.schema.equals(plain_schema(schema))


def _parents(fields: Iterable[Any]) -> list[int]:
    """For each field, in Lance's order, the place of the one it is inside of; −1 for columns."""
    parents: list[int] = []

    def visit(fields: Iterable[Any], above: int) -> None:
        for field in fields:
            parents.append(above)
            visit(field.children(), len(parents) - 1)

    visit(fields, -1)
    return parents


def all_ids(fields: Iterable[Any]) -> Iterator[int]:
    """The ids of Lance's fields, and of all inside them."""
    for field in fields:
        yield field.id()
        yield from all_ids(field.children())


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])
