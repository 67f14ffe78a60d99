"""Simplify the residual filter for each partition by its partition values.

A condition is constant in a partition if no row or every row satisfies it. The inclusive projection
of the condition decides the first case, that of its complement the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.model.predicates.evaluation import match_arrays
from phalanx.model.predicates.predicate import (
    FALSE,
    TRUE,
    And,
    AtomicPredicate,
    Opaque,
    Or,
    Predicate,
    all_of,
    any_of,
    complement,
    walk_atomic_predicates,
)
from phalanx.model.schema.grouping import group_rows
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.projection import SpecProjection, project_inclusive

# Simplifying more conditions than these is not worth the cost.
_MAX_LEAVES = 16
_UNKNOWN, _NEVER, _ALWAYS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Residuals:
    """The distinct residuals of a spec's partitions, and the index of each partition's residual."""

    predicates: tuple[Predicate, ...]
    indices: npt.NDArray[np.int64]


def simplify_residual(
    residual: Predicate, spec: PartitionSpec, schema: Schema, values: pa.Table, partitions: int
) -> Residuals:
    """Simplify the residual of a spec for each partition.

    A residual of FALSE means that no row of the partition matches.
    """
    unsettled = [atom for atom in walk_atomic_predicates(residual) if not isinstance(atom, Opaque)]
    if not partitions or not unsettled or len(unsettled) > _MAX_LEAVES:
        return Residuals((residual,), np.zeros(partitions, dtype=np.int64))
    status = [_classify_partitions(atom, spec, schema, values, partitions) for atom in unsettled]
    cases = group_rows(pa.table(status, names=list(map(str, range(len(status))))), partitions)
    known = [
        dict(zip(map(id, unsettled), case, strict=True))
        for case in zip(*(column.to_pylist() for column in cases.keys.columns), strict=True)
    ]
    return Residuals(tuple(_simplify(residual, case) for case in known), cases.codes)


def refine_leaves(
    leaves: pa.Table, projection: SpecProjection, spec: PartitionSpec, schema: Schema
) -> tuple[pa.Table, Residuals]:
    """Return the leaves of a spec that may have matching rows, and their residuals."""
    found = simplify_residual(projection.residual, spec, schema, leaves, leaves.num_rows)
    keeps = np.array([predicate != FALSE for predicate in found.predicates])
    if keeps.all():
        return leaves, found
    kept = keeps[found.indices]
    return leaves.filter(pa.array(kept)), Residuals(found.predicates, found.indices[kept])


def _classify_partitions(
    atom: AtomicPredicate, spec: PartitionSpec, schema: Schema, values: pa.Table, partitions: int
) -> pa.Array:
    """Return for each partition whether all, none or some unknown rows satisfy the atom."""
    satisfied = find_possible_partitions(
        project_inclusive(atom, spec, schema), spec, values, partitions
    )
    failed = find_possible_partitions(
        project_inclusive(complement(atom), spec, schema), spec, values, partitions
    )
    status = np.where(~satisfied, _NEVER, np.where(~failed, _ALWAYS, _UNKNOWN))
    return pa.array(status.astype(np.int8))


def find_possible_partitions(
    projected: Predicate, spec: PartitionSpec, values: pa.Table, partitions: int
) -> npt.NDArray[np.bool_]:
    """Return for each partition whether it may hold a row, by the projected predicate."""
    if projected in (TRUE, FALSE):
        return np.full(partitions, projected == TRUE)
    matches = match_arrays(projected, to_manifest_columns(values, spec), partitions)
    found: npt.NDArray[np.bool_] = matches.to_numpy(zero_copy_only=False)
    return found


def to_manifest_columns(values: pa.Table, spec: PartitionSpec) -> Mapping[str, pa.Array]:
    """Return the partition values by the names of their manifest columns."""
    return {field.column: values.column(field.field_id).combine_chunks() for field in spec.fields}


def _simplify(predicate: Predicate, status: Mapping[int, int]) -> Predicate:
    match predicate:
        case And(parts=parts):
            return all_of(_simplify_parts(parts, status))
        case Or(parts=parts):
            return any_of(_simplify_parts(parts, status))
    outcome = status.get(id(predicate), _UNKNOWN)
    return predicate if outcome == _UNKNOWN else TRUE if outcome == _ALWAYS else FALSE


def _simplify_parts(parts: Sequence[Predicate], status: Mapping[int, int]) -> list[Predicate]:
    return [_simplify(part, status) for part in parts]
