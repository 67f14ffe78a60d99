"""New spec versions from old ones (format: Partition Evolution, Field ID Reuse)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from phalanx.errors import InvalidSchema, InvalidSpec
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.expression_draft import check_drafted, hashed_by_md5
from phalanx.model.specs.partition_by import (
    CustomExpression,
    PartitionBy,
    PartitionTerm,
    partition_terms,
)
from phalanx.model.specs.spec import PartitionField, PartitionSpec, check_source_count
from phalanx.model.transforms.expression import Expression, checked
from phalanx.model.transforms.hive import HiveHash
from phalanx.model.transforms.transform import COLUMN, IDENTITY, Transform


def next_spec(
    partition_by: PartitionBy,
    schema: Schema,
    earlier: Mapping[int, PartitionSpec],
    *,
    drafted: bool = False,
) -> PartitionSpec:
    """The spec version that follows the earlier ones, its field ids reused as the format demands.

    A field that means the same as an earlier one gets its id; an id never means anything else.
    With `drafted` it is a spec of the expression draft, which has buckets of its own.
    """
    by_meaning: dict[object, PartitionField] = {}
    by_id: dict[str, PartitionField] = {}
    for _, spec in sorted(earlier.items()):
        for field in spec.fields:
            by_meaning.setdefault(field.meaning, field)
            by_id.setdefault(field.field_id, field)
    fields: list[PartitionField] = []
    for term in partition_terms(partition_by):
        field = _field(term, schema, by_id, drafted)
        if (same := by_meaning.get(field.meaning)) is not None:
            field = _reused(field, term, same)
        elif any(
            other.field_id == field.field_id and other.meaning != field.meaning for other in fields
        ):
            raise InvalidSpec(
                f"Cannot use the field id {field.field_id!r} for both "
                f"{by_id[field.field_id].label(schema)} and {field.label(schema)}. "
                "Give one of them another."
            )
        elif by_id.get(field.field_id, field).meaning != field.meaning:
            raise InvalidSpec(
                f"Cannot use the field id {field.field_id!r} for {field.label(schema)}: it means "
                f"{by_id[field.field_id].label(schema)}, and an id keeps its meaning for ever. "
                "Choose another."
            )
        by_id.setdefault(field.field_id, field)
        fields.append(field)
    return PartitionSpec(max(earlier, default=0) + 1, tuple(fields))


def check_specs(specs: Mapping[int, PartitionSpec]) -> None:
    """Refuse specs stored under another id than their own, and field ids with two meanings."""
    by_id: dict[str, PartitionField] = {}
    for number, spec in sorted(specs.items()):
        if spec.id != number:
            raise InvalidSpec(
                f"partition_spec_v{number} holds the spec {spec.id}: the two must be equal."
            )
        for field in spec.fields:
            first = by_id.setdefault(field.field_id, field)
            if first.meaning != field.meaning:
                raise InvalidSpec(
                    f"The field id {field.field_id!r} has one meaning in an earlier spec and "
                    f"another in spec {number}. An id must keep its meaning."
                )


def _field(
    term: PartitionTerm, schema: Schema, taken: Mapping[str, PartitionField], drafted: bool
) -> PartitionField:
    try:
        source_ids = tuple(schema.id_of(column) for column in term.columns)
    except InvalidSchema as error:
        hint = " For a transform write year('ts'), or all of partition_by as one text."
        called = any("(" in column for column in term.columns)
        raise InvalidSpec(
            f"Cannot partition by {', '.join(term.columns)}: {error}{hint if called else ''}"
        ) from None
    types = [schema.type_of(source) for source in source_ids]
    names = [".".join(schema.path_of(source) or ()) for source in source_ids]
    derivation, result_type = derived(term, names, types)
    if isinstance(derivation, HiveHash):
        raise InvalidSpec(
            f"Cannot partition by hash of {names[0]!r}: only the hive layout has it. Use "
            "bucket, or create the table with layout='hive'."
        )
    if drafted:
        derivation, result_type = derived(hashed_by_md5(term), names, types)
    field_id = "unnamed" if term.field_id is None else term.field_id
    field = PartitionField(field_id, source_ids, derivation, result_type)
    if drafted:
        check_drafted(field)
    if term.field_id is None:
        field = replace(field, field_id=_default_id(field, term, names, taken))
    return field


def derived(
    term: PartitionTerm, names: list[str], types: list[pa.DataType]
) -> tuple[Transform, pa.DataType]:
    """What the term derives, and its type; a misfit is told with the name of the column."""
    try:
        match term.derivation:
            case CustomExpression(sql=sql, result_type=declared):
                if not types:
                    raise InvalidSpec(f"The expression {sql!r} needs at least one source column.")
                return checked(sql, types, declared), declared
            case Transform() as derivation:
                check_source_count(derivation, len(types))
                return derivation, derivation.result_type(*types)
    except InvalidSpec as error:
        message = str(error)
        for name, kind in zip(names, types, strict=True):
            message = message.replace(f"a column of type {kind}:", f"column {name!r} ({kind}):")
            message = message.replace(COLUMN, name)
        raise InvalidSpec(message) from None


def _default_id(
    field: PartitionField,
    term: PartitionTerm,
    names: list[str],
    taken: Mapping[str, PartitionField],
) -> str:
    for other in taken.values():
        if other.meaning == field.meaning:
            return other.field_id
    # The draft's buckets are expressions, but they are called as what was asked for.
    called = term.derivation if isinstance(term.derivation, Transform) else field.derivation
    if isinstance(called, Expression) or any("." in name for name in names):
        raise InvalidSpec(
            f"Cannot name the partition field {field.derivation.label(*names)}: expressions and "
            "nested columns have no default field id. Give one with field_id=…, or AS … in text"
        )
    return next(name for name in _candidates(called, names) if name not in taken)


def _candidates(derivation: Transform, names: list[str]) -> Iterator[str]:
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


def _reused(field: PartitionField, term: PartitionTerm, same: PartitionField) -> PartitionField:
    if term.field_id not in (None, same.field_id):
        raise InvalidSpec(
            f"Cannot use the field id {term.field_id!r}: an earlier spec has the same field as "
            f"{same.field_id!r}, and the format demands that id again."
        )
    if field.result_type != same.result_type:
        raise InvalidSpec(
            f"Cannot give the partition field {same.field_id!r} the result type "
            f"{field.result_type}: its manifest column holds {same.result_type}."
        )
    return same
