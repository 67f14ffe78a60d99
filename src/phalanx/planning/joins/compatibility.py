"""Which partition fields let two namespaces be joined without a shuffle (format: Storage
Partitioned Join, Transform Compatibility).

A pair of fields is usable if both can be brought to one common value: rows with equal join keys
then always meet in the same group, so each group is joined on its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidSchema, InvalidSpec
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.buckets import Bucket
from phalanx.model.transforms.calendar_parts import CalendarPart
from phalanx.model.transforms.transform import IDENTITY, Transform
from phalanx.planning.joins.keys import is_finer_than_compared


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One side of a join: a spec of it, and the schema that names its columns."""

    spec: PartitionSpec
    schema: Schema


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A pair of partition fields, and what brings each one's values to a common value."""

    left: PartitionField
    right: PartitionField
    left_reduction: Transform
    right_reduction: Transform


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The pairs of fields that group a join; without any, `reason` says why."""

    keys: tuple[GroupKey, ...]
    reason: str = ""

    @property
    def compatible(self) -> bool:
        """Whether the join can be grouped at all."""
        return bool(self.keys)


def compatibility(left: JoinSide, right: JoinSide, on: Sequence[tuple[str, str]]) -> Compatibility:
    """How partitions of two specs can be paired for a join on pairs of equal columns."""
    joined = {(_source_id(left, one), _source_id(right, other)) for one, other in on}
    keys: list[GroupKey] = []
    reasons: list[str] = []
    for one in left.spec.fields:
        for other in right.spec.fields:
            if not _are_joined(one, other, joined):
                continue
            key = _pair(one, other, left, right)
            if isinstance(key, GroupKey):
                keys.append(key)
            else:
                reasons.append(key)
    if not keys and not reasons:
        columns = ", ".join(a if a == b else f"{a} = {b}" for a, b in on)
        reasons.append(f"no pair of partition fields comes from the join columns ({columns})")
    return Compatibility(tuple(keys), "" if keys else "; ".join(reasons))


def _are_joined(
    one: PartitionField, other: PartitionField, joined: Collection[tuple[int, int]]
) -> bool:
    """Whether every source of a field is joined with the other field's source in its place."""
    if len(one.source_ids) != len(other.source_ids):
        return False
    return all(pair in joined for pair in zip(one.source_ids, other.source_ids, strict=True))


def _source_id(side: JoinSide, column: str) -> int:
    try:
        return side.schema.id_of(column)
    except InvalidSchema as error:
        raise InvalidSpec(f"Cannot join on {column!r}: {error}") from None


def _pair(
    one: PartitionField, other: PartitionField, left: JoinSide, right: JoinSide
) -> GroupKey | str:
    shown = f"{one.label(left.schema)} and {other.label(right.schema)}"
    kinds = [
        (left.schema.type_of(source), right.schema.type_of(target))
        for source, target in zip(one.source_ids, other.source_ids, strict=True)
    ]
    for mine, theirs in kinds:
        if not _hold_equal_values_alike(mine, theirs):
            return f"{shown} have sources of types {mine} and {theirs}"
    mine, theirs = kinds[0]
    if any(is_finer_than_compared(kind) for pair in kinds for kind in pair) and not any(
        isinstance(field.derivation, Bucket | CalendarPart) for field in (one, other)
    ):
        return f"{shown} tell nanoseconds apart, which a join compares as microseconds"
    if (reduction := one.derivation.reduction(other.derivation, mine)) is not None:
        return GroupKey(one, other, reduction, IDENTITY)
    if (reduction := other.derivation.reduction(one.derivation, theirs)) is not None:
        return GroupKey(one, other, IDENTITY, reduction)
    return f"{shown} are not compatible"


def _hold_equal_values_alike(mine: pa.DataType, theirs: pa.DataType) -> bool:
    """Whether values that a join finds equal have equal partition values."""
    mine, theirs = (k.value_type if pt.is_dictionary(k) else k for k in (mine, theirs))
    if mine == theirs:
        return True
    families = (
        pt.is_integer,
        lambda kind: kind in (pa.float32(), pa.float64()),
        lambda kind: pt.is_string(kind) or pt.is_large_string(kind),
        lambda kind: pt.is_binary(kind) or pt.is_large_binary(kind),
        pt.is_date,
        lambda kind: pt.is_timestamp(kind) and kind.tz is None,
        lambda kind: pt.is_timestamp(kind) and kind.tz is not None,
    )
    if pt.is_decimal(mine) and pt.is_decimal(theirs):
        return bool(mine.scale == theirs.scale)
    return any(family(mine) and family(theirs) for family in families)
