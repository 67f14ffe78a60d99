"""Specs of the expression draft: a JSON array of fields, each of them an expression.

The draft has no structured transforms. Those that its Appendix D spells as the newest format does
are the same transforms here; its buckets go by `md5_int` instead of murmur3, and stay expressions,
so that no bucket of the one is ever taken for one of the other.
"""

from __future__ import annotations

import json

import pyarrow as pa

from phalanx.errors import InvalidSpec, shown
from phalanx.model.schema.arrow_json import type_to_json
from phalanx.model.specs.partition_by import CustomExpression, PartitionTerm
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.sql.syntax import Call, Column, Literal, walk
from phalanx.model.stored_json import parse
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.expression import Expression
from phalanx.model.transforms.foreign import Nearest

HASH = "md5_int"
BUCKET_TYPE = pa.int64()


def to_array(spec: PartitionSpec) -> str:
    """The value of the draft's `partition_spec_v<N>`: compact, keys as in its Appendix A."""
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


def from_array(number: int, text: str) -> PartitionSpec:
    """The spec in the draft's `partition_spec_v<N>`; `InvalidSpec` says what is wrong with it."""
    fields = parse(text, "the partition spec", InvalidSpec)
    if not isinstance(fields, list):
        raise InvalidSpec(
            f"Cannot read the partition spec {shown(text)}: expected an array of fields."
        )
    for field in fields:
        if isinstance(field, dict) and field.get("expression") is None:
            raise InvalidSpec(
                f"Cannot read the partition field {field.get('field_id')!r}: expected an "
                "expression, as every field of the expression draft has one."
            )
    return PartitionSpec(number, tuple(map(PartitionField.from_json, fields)))


def is_array(text: str) -> bool:
    """Whether a stored spec is the draft's."""
    return text.lstrip().startswith("[")


def expression_of(field: PartitionField) -> str:
    """The field as the draft has it (Appendix D)."""
    # Truncate, the only one to which the type matters, gives what it takes.
    return field.derivation.sql(*[field.result_type] * len(field.source_ids))


def hashed_by_md5(term: PartitionTerm) -> PartitionTerm:
    """What a term of `partition_by` means in the draft: its buckets are expressions."""
    match term.derivation:
        case MultiBucket(num_buckets=count):
            names = ", ".join(f"col{place}" for place in range(len(term.columns)))
            sql = f"abs({HASH}(concat({names}))) % {count}"
        case Bucket(num_buckets=count):
            sql = f"abs({HASH}(col0)) % {count}"
        case _:
            return term
    return PartitionTerm(CustomExpression(sql, BUCKET_TYPE), term.columns, term.field_id)


def check_drafted(field: PartitionField) -> None:
    """Refuse a new field that only the newest format can have: one that goes by murmur3."""
    if isinstance(field.derivation, Bucket) or calls(field, "murmur3", "murmur3_multi"):
        raise InvalidSpec(
            f"Cannot use {expression_of(field)!r} for the partition field {field.field_id!r}: the "
            f"expression draft hashes by {HASH}. Use bucket(…), or create the table with "
            "layout='namespace'."
        )


def nearest_bucket(field: PartitionField) -> Nearest | None:
    """What stands for a bucket of the draft in the newest format; None for any other field."""
    if not isinstance(field.derivation, Expression):
        return None
    match field.derivation.node:
        case Call("%", (Call("abs", (Call(name, (hashed,)),)), Literal(value=count))) if (
            name == HASH
        ):
            several = isinstance(hashed, Call) and hashed.name == "concat"
            if not several and not isinstance(hashed, Column):
                return None
            kind = MultiBucket if several else Bucket
            note = f"rows are spread anew: the draft hashes by {HASH}, the format by murmur3"
            return Nearest((kind(count.as_py()),), False, note)
    return None


def calls(field: PartitionField, *names: str) -> bool:
    """Whether the field is an expression with one of these functions in it."""
    derivation = field.derivation
    return isinstance(derivation, Expression) and any(
        isinstance(part, Call) and part.name in names for part in walk(derivation.node)
    )
