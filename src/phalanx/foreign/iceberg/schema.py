"""Convert schemas and partition specs of Iceberg to those of Phalanx."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg import partitioning, transforms, types
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata

from phalanx.errors import InvalidSchema, InvalidSpec
from phalanx.model.schema.field_ids import FIELD_ID
from phalanx.model.schema.schema import LAST_FIELD_ID, Schema
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.epoch_parts import EpochDay, EpochHour, EpochMonth, EpochYear
from phalanx.model.transforms.iceberg import IcebergTruncate, Unevaluable, Void
from phalanx.model.transforms.masked_buckets import MaskedBucket
from phalanx.model.transforms.transform import IDENTITY, Transform

_PLAIN_TYPES: Mapping[type[types.IcebergType], pa.DataType] = {
    types.BooleanType: pa.bool_(),
    types.IntegerType: pa.int32(),
    types.LongType: pa.int64(),
    types.FloatType: pa.float32(),
    types.DoubleType: pa.float64(),
    types.DateType: pa.date32(),
    types.TimeType: pa.time64("us"),
    types.TimestampType: pa.timestamp("us"),
    types.TimestamptzType: pa.timestamp("us", "UTC"),
    types.TimestampNanoType: pa.timestamp("ns"),
    types.TimestamptzNanoType: pa.timestamp("ns", "UTC"),
    types.StringType: pa.string(),
    types.UUIDType: pa.binary(16),
    types.BinaryType: pa.binary(),
}
# The type of partition values of an unknown transform.
_UNKNOWN_VALUE_TYPE = pa.string()
_FIELD_NAME = re.compile(r"[^.`\x00-\x1f]+")


def schema_of(iceberg: IcebergSchema, last_column_id: int) -> Schema:
    """Return the schema with Iceberg's field ids.

    Fields inside maps get new ids after Iceberg's, because the formats number maps differently.
    """
    columns = [_to_arrow_field(field, numbered=True) for field in iceberg.fields]
    if not columns:
        raise InvalidSchema("The Iceberg table has no columns: add one.")
    return Schema.of(pa.schema(columns, metadata={LAST_FIELD_ID: str(last_column_id)}))


def _to_arrow_field(field: types.NestedField, numbered: bool) -> pa.Field:
    kind = _nested_to_arrow(field.field_type, field.name, numbered)
    metadata = {FIELD_ID: str(field.field_id)} if numbered else None
    return pa.field(field.name, kind, nullable=not field.required, metadata=metadata)


def _nested_to_arrow(kind: types.IcebergType, name: str, numbered: bool) -> pa.DataType:
    match kind:
        case types.StructType():
            return pa.struct([_to_arrow_field(field, numbered) for field in kind.fields])
        case types.ListType():
            return pa.list_(_to_arrow_field(kind.element_field, numbered))
        case types.MapType():
            key, value = kind.key_field, kind.value_field
            return pa.map_(
                _to_arrow_field(key, numbered=False), _to_arrow_field(value, numbered=False)
            )
        case types.PrimitiveType():
            return to_arrow_type(kind, name)
    raise _unknown_type_error(kind, name)


def to_arrow_type(kind: types.IcebergType, name: str) -> pa.DataType:
    """Return the Arrow type of a primitive type; raise `InvalidSchema` if there is none."""
    match kind:
        case types.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case types.FixedType():
            return pa.binary(len(kind))
    if (found := _PLAIN_TYPES.get(type(kind))) is None:
        raise _unknown_type_error(kind, name)
    return found


def _unknown_type_error(kind: object, name: str) -> InvalidSchema:
    return InvalidSchema(
        f"Cannot read the Iceberg column {name!r} of type {kind}: the type is not supported. "
        "Drop the column, or open an earlier snapshot."
    )


def specs_of(metadata: TableMetadata, schema: IcebergSchema) -> dict[int, PartitionSpec]:
    """Return all partition specs of the table by Iceberg's ids."""
    sources = _SourceTypes([*metadata.schemas, schema], schema)
    return {
        spec.spec_id: PartitionSpec(spec.spec_id, tuple(_partition_fields(spec, sources)))
        for spec in metadata.partition_specs
    }


def _partition_fields(
    spec: partitioning.PartitionSpec, sources: _SourceTypes
) -> Iterator[PartitionField]:
    used: set[str] = set()
    for field in spec.fields:
        plain = _FIELD_NAME.fullmatch(field.name) is not None and field.name not in used
        name = field.name if plain else f"field_{field.field_id}"
        used.add(name)
        derivation = _to_derivation(field, sources)
        kind = sources.types.get(field.source_id, pa.null())
        yield PartitionField(name, (field.source_id,), derivation, derivation.result_type(kind))


class _SourceTypes:
    """The types of source columns, including dropped ones."""

    def __init__(self, schemas: Iterable[IcebergSchema], current: IcebergSchema) -> None:
        self.types: dict[int, pa.DataType] = {}
        self.changed: dict[int, str] = {}
        for schema in [*schemas, current]:
            for field in _primitives(schema):
                self._add(field)

    def _add(self, field: types.NestedField) -> None:
        try:
            kind = to_arrow_type(field.field_type, field.name)
        except InvalidSchema:
            return
        known = self.types.setdefault(field.field_id, kind)
        if _is_promotion(known, kind):
            self.types[field.field_id] = kind
        elif known != kind and not _is_promotion(kind, known):
            self.changed[field.field_id] = f"its source was {known} and {kind}"


def _primitives(schema: IcebergSchema) -> Iterator[types.NestedField]:
    fields = (schema.find_field(number) for number in schema.field_ids)
    return (field for field in fields if field.field_type.is_primitive)


def _is_promotion(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether Iceberg promotes `old` to `new` without changing partition values."""
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale == old.scale and new.precision > old.precision)
    return (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def _to_derivation(field: partitioning.PartitionField, sources: _SourceTypes) -> Transform:
    number, text = field.field_id, transform_text(field.transform)
    if isinstance(field.transform, transforms.VoidTransform):
        return Void(number)
    found = _to_transform(field.transform)
    if found is None:
        return Unevaluable(number, text, "Phalanx does not know the transform", _UNKNOWN_VALUE_TYPE)
    if (kind := sources.types.get(field.source_id)) is None:
        return Unevaluable(
            number, text, "no schema of the table has its source", _UNKNOWN_VALUE_TYPE
        )
    try:
        result = found.result_type(kind)
    except InvalidSpec as error:
        return Unevaluable(number, text, str(error).rstrip("."), _UNKNOWN_VALUE_TYPE)
    if (why := sources.changed.get(field.source_id)) is not None:
        return Unevaluable(number, text, why, result)
    return found


def transform_text(transform: transforms.Transform[Any, Any]) -> str:
    """Return the transform as in the metadata; pyiceberg does not show unknown ones."""
    return str(getattr(transform, "_transform", transform))


def _to_transform(transform: transforms.Transform[Any, Any]) -> Transform | None:
    match transform:
        case transforms.IdentityTransform():
            return IDENTITY
        case transforms.BucketTransform():
            return MaskedBucket(transform.num_buckets)
        case transforms.TruncateTransform():
            return IcebergTruncate(transform.width)
        case transforms.YearTransform():
            return EpochYear(pa.int32())
        case transforms.MonthTransform():
            return EpochMonth(pa.int32())
        case transforms.DayTransform():
            return EpochDay(pa.date32())
        case transforms.HourTransform():
            return EpochHour(pa.int32())
    return None
