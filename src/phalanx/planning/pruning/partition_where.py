"""Build the `where` that selects given partitions and as few others as possible."""

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
from phalanx.planning.pruning.fields import BoundField, bind_fields


def build_partition_where(
    keys: Iterable[PartitionKey], specs: Mapping[int, PartitionSpec], schema: Schema
) -> str | None:
    """Return SQL that every row of these partitions satisfies; None if there is no condition."""
    rows = any_of(_build_key_condition(key, specs[key.spec_id], schema) for key in keys)
    return None if rows == TRUE else to_datafusion(rows)


def _build_key_condition(key: PartitionKey, spec: PartitionSpec, schema: Schema) -> Predicate:
    fields = zip(bind_fields(spec, schema), key.values, strict=True)
    return all_of(
        part
        for field, value in fields
        if (part := _build_field_condition(field, value)) is not None
    )


def _build_field_condition(field: BoundField, value: Any) -> Predicate | None:
    """Return the condition on the field's sources; None if SQL cannot express it."""
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
        # Dates outside the calendar are numbers in a key, and some types have no constants.
        return None
    return condition
