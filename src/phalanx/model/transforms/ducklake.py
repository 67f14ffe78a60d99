"""DuckLake's transforms as DuckLake itself evaluates them.

DuckLake hashes numbers in their physical form: timestamps in their own unit and decimals of up to
18 digits as an unscaled int64. It hashes the text of all other numbers that do not fit in int64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSpec
from phalanx.model.murmur3 import murmur3
from phalanx.model.predicates.predicate import AtomicPredicate, IsNull, NotNull
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.calendar_parts import CalendarPart, check_ducklake_source
from phalanx.model.transforms.foreign import (
    ClosestTransforms,
    ForeignTransform,
    find_closest_transforms,
)
from phalanx.model.transforms.masked_buckets import MaskedBucket
from phalanx.model.transforms.transform import Projection, Transform

# DuckLake stores decimals with more digits in 128 bits and hashes their text.
MAX_INT64_DIGITS = 18


@dataclass(frozen=True, slots=True)
class DuckLakeBucket(MaskedBucket):
    """`(murmur3_32(value) & INT_MAX) % N` with DuckLake's hash, for any source type."""

    name: ClassVar[str] = "ducklake_bucket"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        return pa.int32()

    def _hash(self, column: pa.Array) -> pa.Int32Array:
        return hash_like_ducklake(column)

    def ducklake_name(self, source: pa.DataType) -> str:
        return f"bucket({self.num_buckets})"


def hash_like_ducklake(column: pa.Array) -> pa.Int32Array:
    """Return DuckLake's `murmur3_32` of each value; raise `InvalidSpec` if it is unknown.

    The hash of a NaN is unknown, because DuckLake hashes its bit pattern and there are many.
    """
    kind = column.type
    if pt.is_dictionary(kind):
        return hash_like_ducklake(column.cast(kind.value_type))
    if pt.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        raise InvalidSpec("Cannot compute the bucket of NaN: DuckLake hashes its bits, which vary.")
    if pt.is_timestamp(kind) or pt.is_time64(kind):
        return murmur3(column.cast(pa.int64()))
    if pt.is_unsigned_integer(kind):
        return murmur3(column.cast(pa.string()))
    if pt.is_decimal128(kind):
        if kind.precision <= MAX_INT64_DIGITS:
            return murmur3(_to_unscaled(column))
        return murmur3(_format_decimals(column))
    if pt.is_nested(kind):
        raise InvalidSpec(f"Cannot compute the bucket of a {kind}: DuckLake hashes its text.")
    return murmur3(column)


def _to_unscaled(column: pa.Array) -> pa.Array:
    """Return the unscaled values of decimals that fit in 64 bits."""
    words = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset :][: 2 * len(column)]
    absent = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(words[::2], mask=absent)


def _format_decimals(column: pa.Array) -> pa.Array:
    """Format decimals as DuckDB does, with all digits of the scale."""
    kind = column.type
    whole = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(column), column.buffers(), column.null_count, column.offset
    )
    digits = whole.cast(pa.string())
    if not kind.scale:
        return digits
    negative = pc.starts_with(digits, "-")
    # If the scale equals the precision, DuckDB writes no digit before the point.
    least = kind.scale + (0 if kind.precision == kind.scale else 1)
    digits = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), least, "0")
    before = pc.utf8_slice_codeunits(digits, 0, -kind.scale)
    behind = pc.utf8_slice_codeunits(digits, -kind.scale)
    sign = pc.if_else(negative, "-", "")
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, before, ""), behind, ".")


@dataclass(frozen=True, slots=True)
class Int64CalendarPart(ForeignTransform):
    """A calendar part stored as int64, as in the current DuckLake catalogs."""

    part: CalendarPart
    name: ClassVar[str] = "calendar_part"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        check_ducklake_source(self.part.name, *sources)
        return pa.int64()

    def ducklake_name(self, source: pa.DataType) -> str:
        return self.part.name

    @property
    def calendar_part(self) -> Transform:
        return self.part

    def apply(self, *columns: pa.Array) -> pa.Array:
        return self.part.apply(*columns).cast(pa.int64())

    def sql(self, *sources: pa.DataType) -> str:
        return self.part.sql(*sources)

    def has_gaps_in_sql(self, source: pa.DataType) -> bool:
        return self.part.has_gaps_in_sql(source)

    def label(self, *names: str) -> str:
        return self.part.label(*names)

    def preserves_order(self, source: pa.DataType) -> bool:
        return self.part.preserves_order(source)

    def find_closest(self, source: pa.DataType) -> ClosestTransforms:
        return ClosestTransforms((self.part,), True, "the same calendar part, stored as int32")


@dataclass(frozen=True, slots=True)
class Unrepeatable(ForeignTransform):
    """A transform whose stored values cannot be reproduced from the rows, with the reason.

    Only conditions on NULL prune its partitions.
    """

    inner: Transform
    why: str
    name: ClassVar[str] = "unrepeatable"
    is_repeatable: ClassVar[bool] = False

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        return self.inner.result_type(*sources)

    def apply(self, *columns: pa.Array) -> pa.Array:
        return self.inner.apply(*columns)

    def label(self, *names: str) -> str:
        return self.inner.label(*names)

    def project(self, atom: AtomicPredicate, source: pa.DataType, target: Column) -> Projection:
        if isinstance(atom, IsNull):
            return Projection(IsNull(target), True)
        return Projection(NotNull(target), isinstance(atom, NotNull), self.why)

    def ducklake_name(self, source: pa.DataType) -> str:
        return self.inner.ducklake_name(source)

    def find_reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        return None

    def find_closest(self, source: pa.DataType) -> ClosestTransforms:
        closest = find_closest_transforms(self.inner, source)
        return ClosestTransforms(closest.transforms, False, f"rows are repartitioned: {self.why}")
