"""Specs of a source as they are here: what carries over, what changes its meaning, what cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.errors import InvalidSpec
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import next_spec
from phalanx.model.specs.expression_draft import nearest_bucket
from phalanx.model.specs.partition_by import CustomExpression, PartitionTerm
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.expression import Expression
from phalanx.model.transforms.foreign import ForeignTransform, Nearest
from phalanx.model.transforms.hive import HiveBucket, HiveHash, HiveTruncate
from phalanx.model.transforms.transform import Transform
from phalanx.planning.import_plan import CHANGED, EXACT, REFUSED, FieldMapping, SpecMapping


@dataclass(frozen=True, slots=True)
class Carried:
    """A field of the source, and what stands for it here; nothing where it is refused."""

    mapping: FieldMapping
    terms: tuple[PartitionTerm, ...] = ()


def mapped_specs(
    specs: Mapping[int, PartitionSpec],
    newest: int | None,
    schema: Schema,
    stored: Schema,
    *,
    drafted: bool = False,
) -> tuple[tuple[SpecMapping, ...], tuple[PartitionTerm, ...]]:
    """What each spec of a source becomes, and the newest as it is written here.

    `schema` is the source's, which the specs refer to; `stored` has the same columns as they are
    stored here. A field that says what an earlier one of its spec says is left out. `drafted` are
    specs of the expression draft, whose buckets are not those of the format.
    """
    mappings: list[SpecMapping] = []
    terms: list[PartitionTerm] = []
    for number, spec in sorted(specs.items()):
        fields = [carried(field, schema, stored, drafted) for field in spec.fields]
        mapping = tuple(each.mapping for each in fields)
        mappings.append(SpecMapping(number, spec.label(schema), number == newest, mapping))
        if number == newest:
            terms = [term for each in fields for term in each.terms]
    return tuple(mappings), _without_repeats(terms)


def carried(
    field: PartitionField, schema: Schema, stored: Schema, drafted: bool = False
) -> Carried:
    """What one field becomes."""
    label = field.label(schema)
    paths = [schema.path_of(source) for source in field.source_ids]
    if any(path is None for path in paths):
        return _refused(label, "a column that it is made of is gone")
    columns = tuple(".".join(path) for path in paths if path is not None)
    kind, why = EXACT, ""
    transforms: tuple[Transform, ...] = (field.derivation,)
    try:
        found = _nearest(field, schema, drafted)
        if found is not None:
            kind, why = EXACT if found.exact else CHANGED, found.note
            transforms = found.transforms
        terms = tuple(
            PartitionTerm(_derivation(each), columns, _field_id(field, each, transforms, columns))
            for each in transforms
        )
        becomes = next_spec(terms, stored, {}).label(stored) or "nothing"
    except InvalidSpec as error:
        return _refused(label, str(error))
    return Carried(FieldMapping(label, becomes, kind, why), terms)


def _field_id(
    field: PartitionField, one: Transform, several: tuple[Transform, ...], columns: tuple[str, ...]
) -> str | None:
    """The id that the source has; None for the usual one, where several fields stand for one.

    Other systems name fields as they like, such as `id_bucket(4)`.
    """
    if several == (field.derivation,) or (len(several) == 1 and field.field_id.isidentifier()):
        return field.field_id
    is_nested = any("." in name for name in columns)
    stem = field.field_id if field.field_id.isidentifier() else "_".join(columns).replace(".", "_")
    return f"{stem}_{one.name}" if is_nested or one.name == "expression" else None


def _nearest(field: PartitionField, schema: Schema, drafted: bool) -> Nearest | None:
    """What stands for a field that the format does not have; None for one that it has."""
    if isinstance(field.derivation, ForeignTransform | HiveBucket | HiveHash | HiveTruncate):
        return field.derivation.nearest(schema.type_of(field.source_ids[0]))
    return nearest_bucket(field) if drafted else None


def _derivation(transform: Transform) -> Transform | CustomExpression:
    """The transform as users write it."""
    if isinstance(transform, Expression):
        return CustomExpression(transform.text, transform.result)
    return transform


def _without_repeats(terms: list[PartitionTerm]) -> tuple[PartitionTerm, ...]:
    """Days of a column are its years, months and days: of both in one spec the years come once."""
    return tuple({(term.derivation, term.columns): term for term in reversed(terms)}.values())[::-1]


def _refused(label: str, why: str) -> Carried:
    return Carried(FieldMapping(label, None, REFUSED, why.rstrip(".")))
