"""Specs of the expression draft: a JSON array of fields, each of them an expression.

The draft has no structured transforms. Expressions that its Appendix D spells like the newest
format are read as those transforms. Its buckets hash by `md5_int` instead of murmur3 and stay
expressions, so that the buckets of the two formats are never confused.
"""

from __future__ import annotations

import json

import pyarrow as pa

from phalanx.errors import InvalidSpec, format_value
from phalanx.model.schema.arrow_json import type_to_json
from phalanx.model.specs.partition_by import CustomExpression, PartitionTerm
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.sql.syntax import Call, Column, Constant, walk_nodes
from phalanx.model.stored_json import parse_json
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.expression import Expression
from phalanx.model.transforms.foreign import ClosestTransforms

DRAFT_HASH = "md5_int"
DRAFT_BUCKET_TYPE = pa.int64()


def spec_to_draft_json(spec: PartitionSpec) -> str:
    """Return the value of the draft's `partition_spec_v<N>`: compact, keys as in Appendix A."""
    fields = [
        {
            "field_id": field.field_id,
            "source_ids": list(field.source_ids),
            "expression": expression_of(field),
            "result_type": type_to_json(field.result_type),
        }
        for field in spec.fields
    ]
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def spec_from_draft_json(number: int, text: str) -> PartitionSpec:
    """Read the draft's `partition_spec_v<N>`; raise `InvalidSpec` if it is invalid."""
    fields = parse_json(text, "the partition spec", InvalidSpec)
    if not isinstance(fields, list):
        raise InvalidSpec(
            f"Cannot read the partition spec {format_value(text)}: expected an array of fields."
        )
    for field in fields:
        if isinstance(field, dict) and field.get("expression") is None:
            raise InvalidSpec(
                f"Cannot read the partition field {field.get('field_id')!r}: expected an "
                "expression, because every field of the expression draft has one."
            )
    return PartitionSpec(number, tuple(map(PartitionField.from_json, fields)))


def is_draft_json(text: str) -> bool:
    """Return whether a stored spec belongs to the expression draft."""
    return text.lstrip().startswith("[")


def expression_of(field: PartitionField) -> str:
    """Return the expression of the field in the draft (Appendix D)."""
    # Only truncate depends on the source type, which is also its result type.
    return field.derivation.sql(*[field.result_type] * len(field.source_ids))


def use_draft_buckets(term: PartitionTerm) -> PartitionTerm:
    """Replace a bucket with the draft's expression; return other terms unchanged."""
    match term.derivation:
        case MultiBucket(num_buckets=count):
            names = ", ".join(f"col{position}" for position in range(len(term.columns)))
            sql = f"abs({DRAFT_HASH}(concat({names}))) % {count}"
        case Bucket(num_buckets=count):
            sql = f"abs({DRAFT_HASH}(col0)) % {count}"
        case _:
            return term
    return PartitionTerm(CustomExpression(sql, DRAFT_BUCKET_TYPE), term.columns, term.field_id)


def check_draft_field(field: PartitionField) -> None:
    """Raise `InvalidSpec` for a new field that uses murmur3, which the draft does not have."""
    if isinstance(field.derivation, Bucket) or has_call(field, "murmur3", "murmur3_multi"):
        raise InvalidSpec(
            f"Cannot use {expression_of(field)!r} for the partition field {field.field_id!r}: the "
            f"expression draft hashes by {DRAFT_HASH}. Use bucket(…), or create the table with "
            "layout='namespace'."
        )


def find_closest_bucket(field: PartitionField) -> ClosestTransforms | None:
    """Return the newest format's bucket for a bucket of the draft; None for any other field."""
    if not isinstance(field.derivation, Expression):
        return None
    match field.derivation.node:
        case Call("%", (Call("abs", (Call(name, (hashed,)),)), Constant(value=count))) if (
            name == DRAFT_HASH
        ):
            several = isinstance(hashed, Call) and hashed.name == "concat"
            if not several and not isinstance(hashed, Column):
                return None
            kind = MultiBucket if several else Bucket
            note = (
                f"rows are repartitioned: the draft hashes by {DRAFT_HASH}, the format by murmur3"
            )
            return ClosestTransforms((kind(count.as_py()),), False, note)
    return None


def has_call(field: PartitionField, *names: str) -> bool:
    """Return whether the field is an expression that calls one of these functions."""
    derivation = field.derivation
    return isinstance(derivation, Expression) and any(
        isinstance(part, Call) and part.name in names for part in walk_nodes(derivation.node)
    )
