"""What is left to filter in each partition, given the values it has.

A condition is settled in a partition where no row can satisfy it, and where none can fail to:
both are questions to the inclusive projection, one of them about the condition's complement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.model.predicates.evaluation import holds
from phalanx.model.predicates.predicate import (
    FALSE,
    TRUE,
    And,
    Leaf,
    Opaque,
    Or,
    Predicate,
    all_of,
    any_of,
    complement,
    leaves,
)
from phalanx.model.schema.grouping import group
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.projection import SpecProjection, inclusive

# More conditions than these are not worth looking at one by one.
_MOST_LEAVES = 16
_UNKNOWN, _NEVER, _ALWAYS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Residuals:
    """The distinct residuals of a spec's partitions, and which of them each partition has."""

    predicates: tuple[Predicate, ...]
    places: npt.NDArray[np.int64]


def residuals(
    residual: Predicate, spec: PartitionSpec, schema: Schema, values: pa.Table, partitions: int
) -> Residuals:
    """The residual of a spec, made smaller for each partition by the values it has.

    A residual that is FALSE says that no row of the partition matches.
    """
    unsettled = [leaf for leaf in leaves(residual) if not isinstance(leaf, Opaque)]
    if not partitions or not unsettled or len(unsettled) > _MOST_LEAVES:
        return Residuals((residual,), np.zeros(partitions, dtype=np.int64))
    status = [_status(leaf, spec, schema, values, partitions) for leaf in unsettled]
    cases = group(pa.table(status, names=list(map(str, range(len(status))))), partitions)
    known = [
        dict(zip(map(id, unsettled), case, strict=True))
        for case in zip(*(column.to_pylist() for column in cases.keys.columns), strict=True)
    ]
    return Residuals(tuple(_simplified(residual, case) for case in known), cases.codes)


def settled(
    leaves: pa.Table, projection: SpecProjection, spec: PartitionSpec, schema: Schema
) -> tuple[pa.Table, Residuals]:
    """The leaves of a spec that may have matching rows, and the residual of each of them."""
    found = residuals(projection.residual, spec, schema, leaves, leaves.num_rows)
    keeps = np.array([predicate != FALSE for predicate in found.predicates])
    if keeps.all():
        return leaves, found
    kept = keeps[found.places]
    return leaves.filter(pa.array(kept)), Residuals(found.predicates, found.places[kept])


def _status(
    leaf: Leaf, spec: PartitionSpec, schema: Schema, values: pa.Table, partitions: int
) -> pa.Array:
    """For each partition whether all, none or an unknown part of its rows satisfy the leaf."""
    satisfied = may_hold(inclusive(leaf, spec, schema), spec, values, partitions)
    failed = may_hold(inclusive(complement(leaf), spec, schema), spec, values, partitions)
    status = np.where(~satisfied, _NEVER, np.where(~failed, _ALWAYS, _UNKNOWN))
    return pa.array(status.astype(np.int8))


def may_hold(
    projected: Predicate, spec: PartitionSpec, values: pa.Table, partitions: int
) -> npt.NDArray[np.bool_]:
    """For each partition whether it can hold a row, by what is projected on the spec."""
    if projected in (TRUE, FALSE):
        return np.full(partitions, projected == TRUE)
    held = holds(projected, columns_of(values, spec), partitions)
    found: npt.NDArray[np.bool_] = held.to_numpy(zero_copy_only=False)
    return found


def columns_of(values: pa.Table, spec: PartitionSpec) -> Mapping[str, pa.Array]:
    """Partition values under the names of their manifest columns."""
    return {field.column: values.column(field.field_id).combine_chunks() for field in spec.fields}


def _simplified(predicate: Predicate, status: Mapping[int, int]) -> Predicate:
    match predicate:
        case And(parts=parts):
            return all_of(_parts(parts, status))
        case Or(parts=parts):
            return any_of(_parts(parts, status))
    settled = status.get(id(predicate), _UNKNOWN)
    return predicate if settled == _UNKNOWN else TRUE if settled == _ALWAYS else FALSE


def _parts(parts: Sequence[Predicate], status: Mapping[int, int]) -> list[Predicate]:
    return [_simplified(part, status) for part in parts]
