"""Find the leaves that may hold rows with given keys, by applying a spec's transforms to the keys.

A leaf may hold a key if their partition values are equal in every field whose sources are all among
the key's columns. Other fields do not restrict the leaves. NULL keys match no row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.errors import PhalanxError
from phalanx.model.schema.grouping import find_positions, group_rows
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.transform import IDENTITY
from phalanx.planning.pruning.fields import bind_fields

KeyPositions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyRoutes:
    """The keys that each leaf of a spec may hold. `groups` is None if every leaf may hold all."""

    # The index into `starts` of each leaf's keys, −1 if it has none.
    groups: KeyPositions | None
    order: KeyPositions
    starts: KeyPositions
    count: int

    @property
    def has_keys(self) -> npt.NDArray[np.bool_]:
        """Whether each leaf may hold a key."""
        if self.groups is None:
            return np.full(self.count, len(self.order) > 0)
        return self.groups >= 0

    def keys_of(self, leaf: int) -> KeyPositions:
        """Return the positions of the keys that a leaf may hold, in order."""
        if self.groups is None:
            return self.order
        group = self.groups[leaf]
        return self.order[self.starts[group] : self.starts[group + 1]]


def list_covered_fields(
    spec: PartitionSpec, schema: Schema, columns: frozenset[str]
) -> tuple[PartitionField, ...]:
    """Return the fields that can be computed from the key columns."""
    return tuple(
        bound.field
        for bound in bind_fields(spec, schema)
        if bound.derivation.is_repeatable
        and bound.sources
        and all(path is not None and path[0] in columns for path in bound.sources)
    )


def list_identity_columns(spec: PartitionSpec, schema: Schema) -> frozenset[str]:
    """Return the columns that have a single value in each partition."""
    return frozenset(
        bound.source[0]
        for bound in bind_fields(spec, schema)
        if bound.derivation == IDENTITY and bound.source is not None and len(bound.source) == 1
    )


def route_keys(
    keys: pa.RecordBatch,
    positions: KeyPositions,
    spec: PartitionSpec,
    schema: Schema,
    leaves: pa.Table,
) -> KeyRoutes:
    """Find which of the keys, given with their positions, each leaf of a spec may hold."""
    everywhere = KeyRoutes(None, positions, positions[:0], leaves.num_rows)
    values = []
    names = []
    for field in list_covered_fields(spec, schema, frozenset(keys.schema.names)):
        try:
            values.append(field.apply(keys, schema))
        except (PhalanxError, pa.ArrowException):
            # An expression that fails for a key does not restrict the leaves.
            continue
        names.append(field.field_id)
    if not names or not leaves.num_rows:
        return everywhere
    found = group_rows(pa.table(values, names=names), keys.num_rows)
    stored = leaves.select(names)
    stored = stored.cast(found.keys.schema) if stored.schema != found.keys.schema else stored
    counts = np.bincount(found.codes, minlength=found.count)
    order = np.argsort(found.codes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])
    return KeyRoutes(find_positions(stored, found.keys), positions[order], starts, leaves.num_rows)
