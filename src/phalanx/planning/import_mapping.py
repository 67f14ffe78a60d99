"""Map the specs of an import source to the format: exact, changed or refused fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.errors import InvalidSpec
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.expression_draft import find_closest_bucket
from phalanx.model.specs.partition_by import CustomExpression, PartitionTerm
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.expression import Expression
from phalanx.model.transforms.foreign import ClosestTransforms, ForeignTransform
from phalanx.model.transforms.hive import HiveBucket, HiveHash, HiveTruncate
from phalanx.model.transforms.transform import Transform
from phalanx.planning.import_plan import CHANGED, EXACT, REFUSED, FieldMapping, SpecMapping


@dataclass(frozen=True, slots=True)
class MappedField:
    """A field of the source with its equivalent terms; none if the field is refused."""

    mapping: FieldMapping
    terms: tuple[PartitionTerm, ...] = ()


def map_specs(
    specs: Mapping[int, PartitionSpec],
    newest: int | None,
    schema: Schema,
    stored: Schema,
    *,
    is_draft: bool = False,
) -> tuple[tuple[SpecMapping, ...], tuple[PartitionTerm, ...]]:
    """Map each spec of a source, and return the newest one as `partition_by` terms.

    `schema` is the source's schema, `stored` has the same columns with their stored types. A field
    that repeats an earlier one of its spec is left out. `is_draft` is True for specs of the
    expression draft, whose buckets differ from the format's.
    """
    mappings: list[SpecMapping] = []
    terms: list[PartitionTerm] = []
    for number, spec in sorted(specs.items()):
        fields = [map_field(field, schema, stored, is_draft) for field in spec.fields]
        mapping = tuple(each.mapping for each in fields)
        mappings.append(SpecMapping(number, spec.label(schema), number == newest, mapping))
        if number == newest:
            terms = [term for each in fields for term in each.terms]
    return tuple(mappings), _drop_repeats(terms)


def map_field(
    field: PartitionField, schema: Schema, stored: Schema, is_draft: bool = False
) -> MappedField:
    """Map one field."""
    label = field.label(schema)
    paths = [schema.path_of(source) for source in field.source_ids]
    if any(path is None for path in paths):
        return _refuse_field(label, "one of its source columns was dropped")
    columns = tuple(".".join(path) for path in paths if path is not None)
    kind, why = EXACT, ""
    transforms: tuple[Transform, ...] = (field.derivation,)
    try:
        found = _find_closest(field, schema, is_draft)
        if found is not None:
            kind, why = EXACT if found.exact else CHANGED, found.note
            transforms = found.transforms
        terms = tuple(
            PartitionTerm(
                _to_user_derivation(each),
                columns,
                _choose_field_id(field, each, transforms, columns),
            )
            for each in transforms
        )
        becomes = build_next_spec(terms, stored, {}).label(stored) or "nothing"
    except InvalidSpec as error:
        return _refuse_field(label, str(error))
    return MappedField(FieldMapping(label, becomes, kind, why), terms)


def _choose_field_id(
    field: PartitionField, one: Transform, several: tuple[Transform, ...], columns: tuple[str, ...]
) -> str | None:
    """Return the source's field id, or None for the default id if several fields replace one.

    Other systems allow field names that the format does not, such as `id_bucket(4)`.
    """
    if several == (field.derivation,) or (len(several) == 1 and field.field_id.isidentifier()):
        return field.field_id
    is_nested = any("." in name for name in columns)
    stem = field.field_id if field.field_id.isidentifier() else "_".join(columns).replace(".", "_")
    return f"{stem}_{one.name}" if is_nested or one.name == "expression" else None


def _find_closest(
    field: PartitionField, schema: Schema, is_draft: bool
) -> ClosestTransforms | None:
    """Return the closest transforms for a field; None if the format has the field itself."""
    if isinstance(field.derivation, ForeignTransform | HiveBucket | HiveHash | HiveTruncate):
        return field.derivation.find_closest(schema.type_of(field.source_ids[0]))
    return find_closest_bucket(field) if is_draft else None


def _to_user_derivation(transform: Transform) -> Transform | CustomExpression:
    """Return the transform as users write it."""
    if isinstance(transform, Expression):
        return CustomExpression(transform.text, transform.result)
    return transform


def _drop_repeats(terms: list[PartitionTerm]) -> tuple[PartitionTerm, ...]:
    """Drop repeated terms: years and days of one column both map to a year field."""
    return tuple({(term.derivation, term.columns): term for term in reversed(terms)}.values())[::-1]


def _refuse_field(label: str, why: str) -> MappedField:
    return MappedField(FieldMapping(label, None, REFUSED, why.rstrip(".")))
