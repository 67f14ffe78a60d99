"""Iceberg's schemas and partition specs as Phalanx has them."""

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
# What the values of a field become that nobody understands.
_TEXT = pa.string()
_FIELD_NAME = re.compile(r"[^.`\x00-\x1f]+")


def schema_of(iceberg: IcebergSchema, last_column_id: int) -> Schema:
    """The schema with Iceberg's own field ids.

    What is inside a map gets ids of ours, past Iceberg's: the two number maps in different ways.
    """
    columns = [_field(field, numbered=True) for field in iceberg.fields]
    if not columns:
        raise InvalidSchema("The Iceberg table has no columns: add one.")
    return Schema.of(pa.schema(columns, metadata={LAST_FIELD_ID: str(last_column_id)}))


def _field(field: types.NestedField, numbered: bool) -> pa.Field:
    kind = _arrow(field.field_type, field.name, numbered)
    metadata = {FIELD_ID: str(field.field_id)} if numbered else None
    return pa.field(field.name, kind, nullable=not field.required, metadata=metadata)


def _arrow(kind: types.IcebergType, name: str, numbered: bool) -> pa.DataType:
    match kind:
        case types.StructType():
            return pa.struct([_field(field, numbered) for field in kind.fields])
        case types.ListType():
            return pa.list_(_field(kind.element_field, numbered))
        case types.MapType():
            key, value = kind.key_field, kind.value_field
            return pa.map_(_field(key, numbered=False), _field(value, numbered=False))
        case types.PrimitiveType():
            return arrow_type(kind, name)
    raise _unknown(kind, name)


def arrow_type(kind: types.IcebergType, name: str) -> pa.DataType:
    """The Arrow type of single values; `InvalidSchema` for a type that has none."""
    match kind:
        case types.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case types.FixedType():
            return pa.binary(len(kind))
    if (found := _PLAIN_TYPES.get(type(kind))) is None:
        raise _unknown(kind, name)
    return found


def _unknown(kind: object, name: str) -> InvalidSchema:
    return InvalidSchema(
        f"Cannot read the Iceberg column {name!r} of type {kind}: Phalanx does not know the type. "
        "Drop the column, or open an earlier snapshot."
    )


def specs_of(metadata: TableMetadata, schema: IcebergSchema) -> dict[int, PartitionSpec]:
    """All partition specs of the table, by Iceberg's ids."""
    sources = _Sources([*metadata.schemas, schema], schema)
    return {
        spec.spec_id: PartitionSpec(spec.spec_id, tuple(_fields(spec, sources)))
        for spec in metadata.partition_specs
    }


def _fields(spec: partitioning.PartitionSpec, sources: _Sources) -> Iterator[PartitionField]:
    used: set[str] = set()
    for field in spec.fields:
        plain = _FIELD_NAME.fullmatch(field.name) is not None and field.name not in used
        name = field.name if plain else f"field_{field.field_id}"
        used.add(name)
        derivation = _derivation(field, sources)
        kind = sources.types.get(field.source_id, pa.null())
        yield PartitionField(name, (field.source_id,), derivation, derivation.result_type(kind))


class _Sources:
    """The types that columns have, or had before they were dropped."""

    def __init__(self, schemas: Iterable[IcebergSchema], current: IcebergSchema) -> None:
        self.types: dict[int, pa.DataType] = {}
        self.changed: dict[int, str] = {}
        for schema in [*schemas, current]:
            for field in _primitives(schema):
                self._add(field)

    def _add(self, field: types.NestedField) -> None:
        try:
            kind = arrow_type(field.field_type, field.name)
        except InvalidSchema:
            return
        known = self.types.setdefault(field.field_id, kind)
        if _widened(known, kind):
            self.types[field.field_id] = kind
        elif known != kind and not _widened(kind, known):
            self.changed[field.field_id] = f"its source was {known} and {kind}"


def _primitives(schema: IcebergSchema) -> Iterator[types.NestedField]:
    fields = (schema.find_field(number) for number in schema.field_ids)
    return (field for field in fields if field.field_type.is_primitive)


def _widened(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether Iceberg promotes the one type to the other, with the same partition values."""
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale == old.scale and new.precision > old.precision)
    return (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def _derivation(field: partitioning.PartitionField, sources: _Sources) -> Transform:
    number, text = field.field_id, transform_text(field.transform)
    if isinstance(field.transform, transforms.VoidTransform):
        return Void(number)
    found = _transform(field.transform)
    if found is None:
        return Unevaluable(number, text, "Phalanx does not know the transform", _TEXT)
    if (kind := sources.types.get(field.source_id)) is None:
        return Unevaluable(number, text, "no schema of the table has its source", _TEXT)
    try:
        result = found.result_type(kind)
    except InvalidSpec as error:
        return Unevaluable(number, text, str(error).rstrip("."), _TEXT)
    if (why := sources.changed.get(field.source_id)) is not None:
        return Unevaluable(number, text, why, result)
    return found


def transform_text(transform: transforms.Transform[Any, Any]) -> str:
    """The transform as the metadata have it: pyiceberg shows no unknown one."""
    return str(getattr(transform, "_transform", transform))


def _transform(transform: transforms.Transform[Any, Any]) -> Transform | None:
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
