"""Find the partition fields that join two tables without a shuffle (format: Storage Partitioned
Join, Transform Compatibility).

A pair of fields is usable if both can be reduced to a common value: rows with equal join keys are
then always in the same group, so each group is joined on its own.
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
from phalanx.planning.joins.keys import has_nanoseconds


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One spec of a joined table, with the table's schema."""

    spec: PartitionSpec
    schema: Schema


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A pair of partition fields whose values reduce to a common value.

    Attributes:
        left: The field of the left table.
        right: The field of the right table.
        left_reduction: The transform from values of the left field to common values.
        right_reduction: The transform from values of the right field to common values.
    """

    left: PartitionField
    right: PartitionField
    left_reduction: Transform
    right_reduction: Transform


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The pairs of fields that group a join. If there are none, `reason` says why."""

    keys: tuple[GroupKey, ...]
    reason: str = ""

    @property
    def compatible(self) -> bool:
        """Whether the join can be grouped."""
        return bool(self.keys)


def find_compatibility(
    left: JoinSide, right: JoinSide, on: Sequence[tuple[str, str]]
) -> Compatibility:
    """Find how to pair the partitions of two specs for a join on equal columns."""
    joined = {(_resolve_source(left, one), _resolve_source(right, other)) for one, other in on}
    keys: list[GroupKey] = []
    reasons: list[str] = []
    for one in left.spec.fields:
        for other in right.spec.fields:
            if not _are_joined(one, other, joined):
                continue
            key = _pair_fields(one, other, left, right)
            if isinstance(key, GroupKey):
                keys.append(key)
            else:
                reasons.append(key)
    if not keys and not reasons:
        columns = ", ".join(a if a == b else f"{a} = {b}" for a, b in on)
        reasons.append(f"no pair of partition fields is derived from the join columns ({columns})")
    return Compatibility(tuple(keys), "" if keys else "; ".join(reasons))


def _are_joined(
    one: PartitionField, other: PartitionField, joined: Collection[tuple[int, int]]
) -> bool:
    """Return whether the sources of two fields are joined with each other, in order."""
    if len(one.source_ids) != len(other.source_ids):
        return False
    return all(pair in joined for pair in zip(one.source_ids, other.source_ids, strict=True))


def _resolve_source(side: JoinSide, column: str) -> int:
    try:
        return side.schema.id_of(column)
    except InvalidSchema as error:
        raise InvalidSpec(f"Cannot join on {column!r}: {error}") from None


def _pair_fields(
    one: PartitionField, other: PartitionField, left: JoinSide, right: JoinSide
) -> GroupKey | str:
    shown = f"{one.label(left.schema)} and {other.label(right.schema)}"
    kinds = [
        (left.schema.type_of(source), right.schema.type_of(target))
        for source, target in zip(one.source_ids, other.source_ids, strict=True)
    ]
    for left_type, right_type in kinds:
        if not _have_equal_partition_values(left_type, right_type):
            return f"{shown} have sources of types {left_type} and {right_type}"
    left_type, right_type = kinds[0]
    if any(has_nanoseconds(kind) for pair in kinds for kind in pair) and not any(
        isinstance(field.derivation, Bucket | CalendarPart) for field in (one, other)
    ):
        return f"{shown} distinguish nanoseconds, but a join compares microseconds"
    if (reduction := one.derivation.find_reduction(other.derivation, left_type)) is not None:
        return GroupKey(one, other, reduction, IDENTITY)
    if (reduction := other.derivation.find_reduction(one.derivation, right_type)) is not None:
        return GroupKey(one, other, IDENTITY, reduction)
    return f"{shown} are not compatible"


def _have_equal_partition_values(left: pa.DataType, right: pa.DataType) -> bool:
    """Return whether values that are equal in a join have equal partition values."""
    left, right = (k.value_type if pt.is_dictionary(k) else k for k in (left, right))
    if left == right:
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
    if pt.is_decimal(left) and pt.is_decimal(right):
        return bool(left.scale == right.scale)
    return any(family(left) and family(right) for family in families)
