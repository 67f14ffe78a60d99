"""The input of a join plan: the leaves of both sides, and which leaves of two specs match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema.grouping import group_rows, sort_indices
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey, to_python_values
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.planning.joins.compatibility import (
    Compatibility,
    GroupKey,
    JoinSide,
    find_compatibility,
)
from phalanx.planning.joins.keys import JoinKey, find_common_type, to_comparable


@dataclass(frozen=True, slots=True)
class JoinFragment:
    """A fragment of a leaf, which can be read by itself.

    Attributes:
        id: The id of the Lance fragment.
        rows: The number of rows.
        bytes: The size of its files.
    """

    id: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class JoinLeaf:
    """A partition to join.

    Internal: `predicate`.

    Attributes:
        key: The spec and the partition values.
        location: The path or URI of the partition.
        version: The version to read; None: the newest.
        fragments: The fragments to read.
        residual: The filter that remains to be applied to the rows; None: all rows match.
    """

    key: PartitionKey
    location: str
    version: int | None
    fragments: tuple[JoinFragment, ...]
    residual: str | None = None
    predicate: Predicate = field(default=TRUE, compare=False, repr=False)

    @property
    def rows(self) -> int:
        """The number of rows, before filtering."""
        return sum(fragment.rows for fragment in self.fragments)

    @property
    def bytes(self) -> int:
        """The bytes of its data files."""
        return sum(fragment.bytes for fragment in self.fragments)


@dataclass(frozen=True, slots=True)
class SpecLeaves:
    """The partitions of one spec version that are not empty.

    Attributes:
        spec: The spec.
        leaves: The partitions.
        values: The partition values, a row for each partition.
    """

    spec: PartitionSpec
    leaves: tuple[JoinLeaf, ...]
    values: pa.Table

    def sort(self) -> SpecLeaves:
        """Return the leaves sorted by their values, NULL last."""
        locations = pa.array([leaf.location for leaf in self.leaves], pa.string())
        names = list(map(str, range(self.values.num_columns + 1)))
        order = sort_indices(pa.table([*self.values.columns, locations], names=names))
        leaves = tuple(self.leaves[position] for position in order.to_pylist())
        return SpecLeaves(self.spec, leaves, self.values.take(order))


@dataclass(frozen=True)
class JoinedTable:
    """One side of a join.

    Internal: `schema`.

    Attributes:
        uri: The path or URI of the table.
        specs: The partitions under each spec version.
    """

    uri: str
    schema: Schema
    specs: tuple[SpecLeaves, ...]

    @cached_property
    def leaves(self) -> tuple[JoinLeaf, ...]:
        """All leaves, spec by spec. Plans refer to a leaf by its position here."""
        return tuple(leaf for each in self.specs for leaf in each.leaves)

    def first_position(self, spec_id: int) -> int:
        """Return the position of the first leaf of a spec."""
        return sum(len(each.leaves) for each in self.specs if each.spec.id < spec_id)


@dataclass(frozen=True, slots=True)
class LeafMatch:
    """The partitions of two specs with the same common values.

    Attributes:
        values: The common values.
        left: The positions of the partitions among all those of the left table.
        right: The positions of the partitions among all those of the right table.
    """

    values: tuple[Any, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpecPair:
    """A spec version of each side: the fields that match its partitions, or why there are none.

    Attributes:
        left: The id of the left spec.
        right: The id of the right spec.
        keys: The pairs of fields.
        reason: Why there are no such fields; empty if there are.
        matches: The partitions that are joined with each other.
    """

    left: int
    right: int
    keys: tuple[GroupKey, ...]
    reason: str
    matches: tuple[LeafMatch, ...]

    @property
    def compatible(self) -> bool:
        """Whether the versions can be joined leaf by leaf."""
        return bool(self.keys)

    def to_dict(self) -> dict[str, Any]:
        """Return the pair for JSON."""
        return {
            "left_spec": self.left,
            "right_spec": self.right,
            "compatible": self.compatible,
            "reason": self.reason or None,
            "fields": [
                {
                    "left": key.left.field_id,
                    "right": key.right.field_id,
                    "left_reduction": key.left_reduction.label(key.left.field_id),
                    "right_reduction": key.right_reduction.label(key.right.field_id),
                }
                for key in self.keys
            ],
            "common_values": len(self.matches),
        }


def pair_all_specs(
    left: JoinedTable, right: JoinedTable, keys: Sequence[JoinKey]
) -> list[SpecPair]:
    """Return every pair of spec versions, each planned on its own."""
    on = [key.columns for key in keys]
    return [
        _pair_specs(left, right, left_spec, right_spec, on)
        for left_spec in left.specs
        for right_spec in right.specs
    ]


def _pair_specs(
    left: JoinedTable,
    right: JoinedTable,
    left_spec: SpecLeaves,
    right_spec: SpecLeaves,
    on: Sequence[tuple[str, str]],
) -> SpecPair:
    found: Compatibility = find_compatibility(
        JoinSide(left_spec.spec, left.schema), JoinSide(right_spec.spec, right.schema), on
    )
    if not found.compatible:
        return SpecPair(left_spec.spec.id, right_spec.spec.id, (), found.reason, ())
    starts = left.first_position(left_spec.spec.id), right.first_position(right_spec.spec.id)
    meetings = _match_leaves(left_spec, right_spec, found.keys, starts)
    return SpecPair(left_spec.spec.id, right_spec.spec.id, found.keys, "", meetings)


def _match_leaves(
    left_spec: SpecLeaves, right_spec: SpecLeaves, keys: Sequence[GroupKey], starts: tuple[int, int]
) -> tuple[LeafMatch, ...]:
    """Return the leaves with the same common values."""
    columns = []
    for key in keys:
        one = key.left_reduction.apply(_read_column(left_spec, key.left))
        other = key.right_reduction.apply(_read_column(right_spec, key.right))
        kind = find_common_type(one.type, other.type)
        if kind is None:
            # Fewer columns match more leaves, which is always correct.
            continue
        columns.append(
            pa.chunked_array([to_comparable(one, kind), to_comparable(other, kind)], kind)
        )
    names = list(map(str, range(len(columns))))
    groups = group_rows(
        pa.table(columns, names=names), len(left_spec.leaves) + len(right_spec.leaves)
    )
    matching = np.concatenate(
        [
            _find_matchable(left_spec, [key.left for key in keys]),
            _find_matchable(right_spec, [key.right for key in keys]),
        ]
    )
    codes = np.where(matching, groups.codes, -1).tolist()
    left_by_code: dict[int, list[int]] = {}
    right_by_code: dict[int, list[int]] = {}
    for position, code in enumerate(codes[: len(left_spec.leaves)]):
        left_by_code.setdefault(code, []).append(starts[0] + position)
    for position, code in enumerate(codes[len(left_spec.leaves) :]):
        right_by_code.setdefault(code, []).append(starts[1] + position)
    values = [to_python_values(column) for column in groups.keys.columns]
    return tuple(
        LeafMatch(
            tuple(column[code] for column in values), tuple(positions), tuple(right_by_code[code])
        )
        for code, positions in left_by_code.items()
        if code >= 0 and code in right_by_code
    )


def _read_column(side: SpecLeaves, field: PartitionField) -> pa.Array:
    return side.values.column(field.field_id).combine_chunks()


def _find_matchable(side: SpecLeaves, fields: Sequence[PartitionField]) -> np.ndarray[Any, Any]:
    """Return for each leaf whether a row may have a partner: NULL keys have none."""
    can = np.ones(len(side.leaves), dtype=bool)
    for each in fields:
        # An expression may be NULL for keys that are not NULL.
        if each.transform is not None:
            can &= _read_column(side, each).is_valid().to_numpy(zero_copy_only=False)
    return can
