"""Which leaves can hold which keys: the transforms of a spec over the keys themselves.

A leaf is kept if its partition values are those of some key, in every field whose sources are all
among the key's columns. Fields with other sources say nothing, and neither do NULL keys, which
match no row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.errors import PhalanxError
from phalanx.model.schema.grouping import group, positions
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.transform import IDENTITY
from phalanx.planning.pruning.fields import bound_fields

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyRoutes:
    """For the leaves of a spec the keys that each may hold; None stands for all keys."""

    # The place of each leaf's keys among the starts, −1 where there are none.
    groups: Places | None
    order: Places
    starts: Places
    count: int

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """Which leaves may hold any."""
        if self.groups is None:
            return np.full(self.count, len(self.order) > 0)
        return self.groups >= 0

    def keys_of(self, leaf: int) -> Places:
        """The keys that a leaf may hold, by their places, in their order."""
        if self.groups is None:
            return self.order
        place = self.groups[leaf]
        return self.order[self.starts[place] : self.starts[place + 1]]


def covered_fields(
    spec: PartitionSpec, schema: Schema, columns: frozenset[str]
) -> tuple[PartitionField, ...]:
    """The fields whose values the columns of a key decide."""
    return tuple(
        bound.field
        for bound in bound_fields(spec, schema)
        if bound.derivation.is_repeatable
        and bound.sources
        and all(path is not None and path[0] in columns for path in bound.sources)
    )


def identity_columns(spec: PartitionSpec, schema: Schema) -> frozenset[str]:
    """The columns that have one value in all rows of a partition: its own."""
    return frozenset(
        bound.source[0]
        for bound in bound_fields(spec, schema)
        if bound.derivation == IDENTITY and bound.source is not None and len(bound.source) == 1
    )


def route(
    keys: pa.RecordBatch, places: Places, spec: PartitionSpec, schema: Schema, leaves: pa.Table
) -> KeyRoutes:
    """Which of the keys, whose places are given, each leaf of a spec may hold."""
    everywhere = KeyRoutes(None, places, places[:0], leaves.num_rows)
    values = []
    names = []
    for field in covered_fields(spec, schema, frozenset(keys.schema.names)):
        try:
            values.append(field.apply(keys, schema))
        except (PhalanxError, pa.ArrowException):
            # An expression that cannot take a value says nothing of any leaf.
            continue
        names.append(field.field_id)
    if not names or not leaves.num_rows:
        return everywhere
    found = group(pa.table(values, names=names), keys.num_rows)
    stored = leaves.select(names)
    stored = stored.cast(found.keys.schema) if stored.schema != found.keys.schema else stored
    counts = np.bincount(found.codes, minlength=found.count)
    order = np.argsort(found.codes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])
    return KeyRoutes(positions(stored, found.keys), places[order], starts, leaves.num_rows)
