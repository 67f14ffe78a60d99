"""Bind the fields of a spec to a schema: their source paths, types and SQL terms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidSpec
from phalanx.model.schema.names import FieldPath
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.sql import engine
from phalanx.model.sql.literals import has_utc_calendar
from phalanx.model.sql.syntax import Column, Node, map_nodes
from phalanx.model.transforms.transform import Transform


@dataclass(frozen=True, slots=True)
class BoundField:
    """A partition field bound to a schema."""

    field: PartitionField
    sources: tuple[FieldPath | None, ...]
    types: tuple[pa.DataType, ...]
    term: Node | None

    @property
    def target(self) -> Column:
        """The manifest column of the partition value."""
        return Column((self.field.column,))

    @property
    def derivation(self) -> Transform:
        """The transform that computes the partition value."""
        return self.field.derivation

    @property
    def source(self) -> FieldPath | None:
        """The only source column; None if there are several or it was dropped."""
        return self.sources[0] if len(self.sources) == 1 else None


@lru_cache(maxsize=256)
def bind_fields(spec: PartitionSpec, schema: Schema) -> tuple[BoundField, ...]:
    """Bind the fields of the spec to the schema."""
    return tuple(_bind_field(field, schema) for field in spec.fields)


def list_source_columns(spec: PartitionSpec, schema: Schema) -> list[str]:
    """Return the columns that the spec reads; at least one, so that rows can be counted."""
    sources = {path[0] for field in bind_fields(spec, schema) for path in field.sources if path}
    return [name for name in schema.names if name in sources] or [schema.names[0]]


def _bind_field(field: PartitionField, schema: Schema) -> BoundField:
    sources = tuple(schema.path_of(source) for source in field.source_ids)
    types = tuple(
        pa.null() if path is None else _decode_type(schema.type_of(source))
        for source, path in zip(field.source_ids, sources, strict=True)
    )
    return BoundField(field, sources, types, _build_term(field, sources, types, schema))


def _decode_type(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if pt.is_dictionary(data_type) else data_type


def _build_term(
    field: PartitionField,
    sources: tuple[FieldPath | None, ...],
    types: tuple[pa.DataType, ...],
    schema: Schema,
) -> Node | None:
    """Return the field's expression over the columns, in the form of a bound query.

    Return None if SQL and the transform differ: SQL takes calendar parts in the column's time
    zone and distinguishes floats that share a partition. Transforms of other systems have no SQL,
    and some cannot be reproduced.
    """
    if not field.derivation.is_repeatable:
        return None
    if None in sources or not all(has_utc_calendar(kind) for kind in types):
        return None
    if any(pt.is_floating(kind) for kind in types):
        return None
    by_name = {f"col{position}": path for position, path in enumerate(sources)}

    def rename_column(part: Node) -> Node:
        if isinstance(part, Column) and (path := by_name.get(part.path[0])) is not None:
            return Column(path)
        return part

    placeholders = pa.schema([(name, pa.null()) for name in by_name])
    try:
        parsed = engine.parse_expression(field.derivation.sql(*types), placeholders)
        return engine.bind_node(map_nodes(parsed, rename_column), schema.arrow).node
    except (engine.BadExpression, InvalidSpec):
        return None
