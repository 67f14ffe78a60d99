"""Partitions as a predicate on rows: the `where` that chooses them, and as few others as can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from phalanx.errors import PhalanxError
from phalanx.model.predicates.predicate import TRUE, In, IsNull, Predicate, all_of, any_of
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql.syntax import Column
from phalanx.planning.pruning.fields import BoundField, bound_fields


def where_of(
    keys: Iterable[PartitionKey], specs: Mapping[int, PartitionSpec], schema: Schema
) -> str | None:
    """What every row of these partitions satisfies, in SQL; None where nothing can be said."""
    rows = any_of(_rows_of(key, specs[key.spec_id], schema) for key in keys)
    return None if rows == TRUE else to_datafusion(rows)


def _rows_of(key: PartitionKey, spec: PartitionSpec, schema: Schema) -> Predicate:
    fields = zip(bound_fields(spec, schema), key.values, strict=True)
    return all_of(part for field, value in fields if (part := _condition(field, value)) is not None)


def _condition(field: BoundField, value: Any) -> Predicate | None:
    """What the value says about the field's sources; None where SQL has no words for it."""
    if value is None and field.source is not None:
        return IsNull(Column(field.source))
    if field.term is None:
        return None
    if value is None:
        return IsNull(field.term)
    try:
        condition = In(field.term, pa.array([value], field.field.result_type))
        to_datafusion(condition)
    except (PhalanxError, pa.ArrowException, TypeError, ValueError):
        # Moments beyond the calendar are numbers in a key, and some types have no constants.
        return None
    return condition
