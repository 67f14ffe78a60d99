"""What a join is planned from: the leaves of both sides, and where leaves of two specs meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema.grouping import group, order_of
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey, plain_values
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.planning.joins.compatibility import Compatibility, GroupKey, JoinSide, compatibility
from phalanx.planning.joins.keys import JoinKey, common_type, comparable


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a leaf that can be read by itself."""

    id: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class JoinLeaf:
    """A leaf with rows: in which version it is read, what is filtered, and how large it is."""

    key: PartitionKey
    location: str
    version: int | None
    fragments: tuple[Fragment, ...]
    residual: str | None = None
    predicate: Predicate = field(default=TRUE, compare=False, repr=False)

    @property
    def rows(self) -> int:
        """How many rows it has, before anything is filtered."""
        return sum(fragment.rows for fragment in self.fragments)

    @property
    def bytes(self) -> int:
        """How many bytes its data files have."""
        return sum(fragment.bytes for fragment in self.fragments)


@dataclass(frozen=True, slots=True)
class SpecLeaves:
    """The leaves of one spec version that have rows, with their partition values as columns."""

    spec: PartitionSpec
    leaves: tuple[JoinLeaf, ...]
    values: pa.Table

    def sorted(self) -> SpecLeaves:
        """In the order of the values, NULL last, whatever order they came in."""
        locations = pa.array([leaf.location for leaf in self.leaves], pa.string())
        names = list(map(str, range(self.values.num_columns + 1)))
        order = order_of(pa.table([*self.values.columns, locations], names=names))
        leaves = tuple(self.leaves[place] for place in order.to_pylist())
        return SpecLeaves(self.spec, leaves, self.values.take(order))


@dataclass(frozen=True)
class JoinedTable:
    """One side of a join: a table, and the leaves it has under each spec version."""

    uri: str
    schema: Schema
    specs: tuple[SpecLeaves, ...]

    @cached_property
    def leaves(self) -> tuple[JoinLeaf, ...]:
        """All leaves, spec by spec: a leaf goes by its place here."""
        return tuple(leaf for each in self.specs for leaf in each.leaves)

    def first_of(self, spec_id: int) -> int:
        """The place of the first leaf of a spec."""
        return sum(len(each.leaves) for each in self.specs if each.spec.id < spec_id)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Leaves of two specs with the same common values: rows with equal keys are in one of them."""

    values: tuple[Any, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VersionPair:
    """A spec version of each side: by which fields its leaves meet, or why they do not."""

    left: int
    right: int
    keys: tuple[GroupKey, ...]
    reason: str
    meetings: tuple[Meeting, ...]

    @property
    def compatible(self) -> bool:
        """Whether it can be joined leaf by leaf."""
        return bool(self.keys)

    def to_dict(self) -> dict[str, Any]:
        """The pair as JSON has it."""
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
            "common_values": len(self.meetings),
        }


def paired(left: JoinedTable, right: JoinedTable, keys: Sequence[JoinKey]) -> list[VersionPair]:
    """Every pair of spec versions, each planned on its own."""
    on = [key.columns for key in keys]
    return [_pair(left, right, mine, theirs, on) for mine in left.specs for theirs in right.specs]


def _pair(
    left: JoinedTable,
    right: JoinedTable,
    mine: SpecLeaves,
    theirs: SpecLeaves,
    on: Sequence[tuple[str, str]],
) -> VersionPair:
    found: Compatibility = compatibility(
        JoinSide(mine.spec, left.schema), JoinSide(theirs.spec, right.schema), on
    )
    if not found.compatible:
        return VersionPair(mine.spec.id, theirs.spec.id, (), found.reason, ())
    starts = left.first_of(mine.spec.id), right.first_of(theirs.spec.id)
    meetings = _meetings(mine, theirs, found.keys, starts)
    return VersionPair(mine.spec.id, theirs.spec.id, found.keys, "", meetings)


def _meetings(
    mine: SpecLeaves, theirs: SpecLeaves, keys: Sequence[GroupKey], starts: tuple[int, int]
) -> tuple[Meeting, ...]:
    """Where leaves have the same common values."""
    columns = []
    for key in keys:
        one = key.left_reduction.apply(_column(mine, key.left))
        other = key.right_reduction.apply(_column(theirs, key.right))
        kind = common_type(one.type, other.type)
        if kind is None:
            # Fewer columns put more leaves together, which is never wrong.
            continue
        columns.append(pa.chunked_array([comparable(one, kind), comparable(other, kind)], kind))
    names = list(map(str, range(len(columns))))
    groups = group(pa.table(columns, names=names), len(mine.leaves) + len(theirs.leaves))
    matching = np.concatenate(
        [
            _can_match(mine, [key.left for key in keys]),
            _can_match(theirs, [key.right for key in keys]),
        ]
    )
    codes = np.where(matching, groups.codes, -1).tolist()
    ours: dict[int, list[int]] = {}
    others: dict[int, list[int]] = {}
    for place, code in enumerate(codes[: len(mine.leaves)]):
        ours.setdefault(code, []).append(starts[0] + place)
    for place, code in enumerate(codes[len(mine.leaves) :]):
        others.setdefault(code, []).append(starts[1] + place)
    values = [plain_values(column) for column in groups.keys.columns]
    return tuple(
        Meeting(tuple(column[code] for column in values), tuple(places), tuple(others[code]))
        for code, places in ours.items()
        if code >= 0 and code in others
    )


def _column(side: SpecLeaves, field: PartitionField) -> pa.Array:
    return side.values.column(field.field_id).combine_chunks()


def _can_match(side: SpecLeaves, fields: Sequence[PartitionField]) -> np.ndarray[Any, Any]:
    """Whether some row of each leaf may have a partner: NULL in a transform tells of NULL keys."""
    can = np.ones(len(side.leaves), dtype=bool)
    for each in fields:
        # An expression may be NULL for keys that are not.
        if each.transform is not None:
            can &= _column(side, each).is_valid().to_numpy(zero_copy_only=False)
    return can
