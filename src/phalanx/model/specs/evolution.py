"""Build new spec versions (format: Partition Evolution, Field ID Reuse)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from phalanx.errors import InvalidSchema, InvalidSpec
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.expression_draft import check_draft_field, use_draft_buckets
from phalanx.model.specs.partition_by import (
    CustomExpression,
    PartitionBy,
    PartitionTerm,
    parse_partition_by,
)
from phalanx.model.specs.spec import PartitionField, PartitionSpec, check_source_count
from phalanx.model.transforms.expression import Expression, build_expression
from phalanx.model.transforms.hive import HiveHash
from phalanx.model.transforms.transform import COLUMN_PLACEHOLDER, IDENTITY, Transform


def build_next_spec(
    partition_by: PartitionBy,
    schema: Schema,
    earlier: Mapping[int, PartitionSpec],
    *,
    is_draft: bool = False,
) -> PartitionSpec:
    """Build the spec version that follows the earlier ones, reusing field ids.

    A field with the meaning of an earlier field gets its id, and an id never changes its meaning.
    `is_draft` builds a spec of the expression draft, which has its own buckets.
    """
    by_meaning: dict[object, PartitionField] = {}
    by_id: dict[str, PartitionField] = {}
    for _, spec in sorted(earlier.items()):
        for field in spec.fields:
            by_meaning.setdefault(field.meaning, field)
            by_id.setdefault(field.field_id, field)
    fields: list[PartitionField] = []
    for term in parse_partition_by(partition_by):
        field = _build_field(term, schema, by_id, is_draft)
        if (same := by_meaning.get(field.meaning)) is not None:
            field = _reuse_field(field, term, same)
        elif any(
            other.field_id == field.field_id and other.meaning != field.meaning for other in fields
        ):
            raise InvalidSpec(
                f"Cannot use the field id {field.field_id!r} for both "
                f"{by_id[field.field_id].label(schema)} and {field.label(schema)}. "
                "Give one of them another field id."
            )
        elif by_id.get(field.field_id, field).meaning != field.meaning:
            raise InvalidSpec(
                f"Cannot use the field id {field.field_id!r} for {field.label(schema)}: it means "
                f"{by_id[field.field_id].label(schema)}, and a field id never changes its meaning. "
                "Choose another."
            )
        by_id.setdefault(field.field_id, field)
        fields.append(field)
    return PartitionSpec(max(earlier, default=0) + 1, tuple(fields))


def check_specs(specs: Mapping[int, PartitionSpec]) -> None:
    """Raise `InvalidSpec` for specs stored under another id, or field ids with two meanings."""
    by_id: dict[str, PartitionField] = {}
    for number, spec in sorted(specs.items()):
        if spec.id != number:
            raise InvalidSpec(
                f"partition_spec_v{number} holds spec {spec.id}: the two numbers must be equal."
            )
        for field in spec.fields:
            first = by_id.setdefault(field.field_id, field)
            if first.meaning != field.meaning:
                raise InvalidSpec(
                    f"The field id {field.field_id!r} has one meaning in an earlier spec and "
                    f"another in spec {number}. A field id must not change its meaning."
                )


def _build_field(
    term: PartitionTerm, schema: Schema, taken: Mapping[str, PartitionField], is_draft: bool
) -> PartitionField:
    try:
        source_ids = tuple(schema.id_of(column) for column in term.columns)
    except InvalidSchema as error:
        hint = " Write a transform as year('ts'), or all of partition_by as one string."
        is_call = any("(" in column for column in term.columns)
        raise InvalidSpec(
            f"Cannot partition by {', '.join(term.columns)}: {error}{hint if is_call else ''}"
        ) from None
    types = [schema.type_of(source) for source in source_ids]
    names = [".".join(schema.path_of(source) or ()) for source in source_ids]
    derivation, result_type = resolve_derivation(term, names, types)
    if isinstance(derivation, HiveHash):
        raise InvalidSpec(
            f"Cannot partition by hash of {names[0]!r}: only the hive layout supports it. Use "
            "bucket, or create the table with layout='hive'."
        )
    if is_draft:
        derivation, result_type = resolve_derivation(use_draft_buckets(term), names, types)
    field_id = "unnamed" if term.field_id is None else term.field_id
    field = PartitionField(field_id, source_ids, derivation, result_type)
    if is_draft:
        check_draft_field(field)
    if term.field_id is None:
        field = replace(field, field_id=_choose_default_id(field, term, names, taken))
    return field


def resolve_derivation(
    term: PartitionTerm, names: list[str], types: list[pa.DataType]
) -> tuple[Transform, pa.DataType]:
    """Return the term's transform and result type; errors name the column."""
    try:
        match term.derivation:
            case CustomExpression(sql=sql, result_type=declared):
                if not types:
                    raise InvalidSpec(f"The expression {sql!r} needs at least one source column.")
                return build_expression(sql, types, declared), declared
            case Transform() as derivation:
                check_source_count(derivation, len(types))
                return derivation, derivation.result_type(*types)
    except InvalidSpec as error:
        message = str(error)
        for name, kind in zip(names, types, strict=True):
            message = message.replace(f"a column of type {kind}:", f"column {name!r} ({kind}):")
            message = message.replace(COLUMN_PLACEHOLDER, name)
        raise InvalidSpec(message) from None


def _choose_default_id(
    field: PartitionField,
    term: PartitionTerm,
    names: list[str],
    taken: Mapping[str, PartitionField],
) -> str:
    for other in taken.values():
        if other.meaning == field.meaning:
            return other.field_id
    # The draft's buckets are expressions, but their default id is that of a bucket.
    named = term.derivation if isinstance(term.derivation, Transform) else field.derivation
    if isinstance(named, Expression) or any("." in name for name in names):
        raise InvalidSpec(
            f"Cannot name the partition field {field.derivation.label(*names)}: expressions and "
            "nested columns have no default field id. Give one with field_id=…, or AS … in text."
        )
    return next(name for name in _list_candidate_ids(named, names) if name not in taken)


def _list_candidate_ids(derivation: Transform, names: list[str]) -> Iterator[str]:
    stem = names[0] if derivation == IDENTITY else "_".join([*names, derivation.name])
    yield stem
    parameters = "_".join(map(str, derivation.parameters.values()))
    if parameters:
        stem = f"{stem}_{parameters}"
        yield stem
    number = 2
    while True:
        yield f"{stem}_{number}"
        number += 1


def _reuse_field(
    field: PartitionField, term: PartitionTerm, same: PartitionField
) -> PartitionField:
    if term.field_id not in (None, same.field_id):
        raise InvalidSpec(
            f"Cannot use the field id {term.field_id!r}: an earlier spec has the same field as "
            f"{same.field_id!r}, and the format requires that id."
        )
    if field.result_type != same.result_type:
        raise InvalidSpec(
            f"Cannot give the partition field {same.field_id!r} the result type "
            f"{field.result_type}: its manifest column holds {same.result_type}."
        )
    return same
