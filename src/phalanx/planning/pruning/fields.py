"""The fields of a spec as they stand over a schema: where their sources are, and how to ask."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidSpec
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.sql import engine
from phalanx.model.sql.literals import has_utc_meaning
from phalanx.model.sql.syntax import Column, Node, transform
from phalanx.model.transforms.transform import Transform

Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BoundField:
    """A partition field over a schema."""

    field: PartitionField
    sources: tuple[Path | None, ...]
    types: tuple[pa.DataType, ...]
    term: Node | None

    @property
    def target(self) -> Column:
        """The manifest column of the partition value."""
        return Column((self.field.column,))

    @property
    def derivation(self) -> Transform:
        """What computes the partition value."""
        return self.field.derivation

    @property
    def source(self) -> Path | None:
        """The one source column; None where there are several, or it is gone."""
        return self.sources[0] if len(self.sources) == 1 else None


@lru_cache(maxsize=256)
def bound_fields(spec: PartitionSpec, schema: Schema) -> tuple[BoundField, ...]:
    """The fields of the spec over the schema."""
    return tuple(_bound(field, schema) for field in spec.fields)


def source_columns(spec: PartitionSpec, schema: Schema) -> list[str]:
    """The columns that the spec needs of a row; never none, so that rows can be counted."""
    sources = {path[0] for field in bound_fields(spec, schema) for path in field.sources if path}
    return [name for name in schema.names if name in sources] or [schema.names[0]]


def _bound(field: PartitionField, schema: Schema) -> BoundField:
    sources = tuple(schema.path_of(source) for source in field.source_ids)
    types = tuple(
        pa.null() if path is None else _decoded(schema.type_of(source))
        for source, path in zip(field.source_ids, sources, strict=True)
    )
    return BoundField(field, sources, types, _term(field, sources, types, schema))


def _decoded(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if pt.is_dictionary(data_type) else data_type


def _term(
    field: PartitionField,
    sources: tuple[Path | None, ...],
    types: tuple[pa.DataType, ...],
    schema: Schema,
) -> Node | None:
    """The field's own expression over the columns, as a query that uses it would be simplified.

    None where the two would not mean the same: SQL takes calendar parts in the column's zone,
    and tells apart floats that share a partition. Transforms of other systems have no SQL, and
    nobody may know which values are stored.
    """
    if not field.derivation.is_repeatable:
        return None
    if None in sources or not all(has_utc_meaning(kind) for kind in types):
        return None
    if any(pt.is_floating(kind) for kind in types):
        return None
    by_name = {f"col{place}": path for place, path in enumerate(sources)}

    def named(part: Node) -> Node:
        if isinstance(part, Column) and (path := by_name.get(part.path[0])) is not None:
            return Column(path)
        return part

    placeholders = pa.schema([(name, pa.null()) for name in by_name])
    try:
        parsed = engine.parse(field.derivation.sql(*types), placeholders)
        return engine.bind_node(transform(parsed, named), schema.arrow).node
    except (engine.BadExpression, InvalidSpec):
        return None
