"""DuckLake's transforms with its own meaning: what the running system stores, and what it hides.

It hashes numbers by how it keeps them: timestamps in their own unit, decimals of up to 18 digits
unscaled as a long, and by their text whatever else does not fit in 64 signed bits.
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
from phalanx.model.predicates.predicate import IsNull, Leaf, NotNull
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.calendar_parts import CalendarPart, check_ducklake_source
from phalanx.model.transforms.foreign import ForeignTransform, Nearest, nearest
from phalanx.model.transforms.masked_buckets import MaskedBucket
from phalanx.model.transforms.transform import Projection, Transform

# Decimals with more digits are kept in 128 bits, and hashed as text.
MOST_DIGITS_OF_A_LONG = 18


@dataclass(frozen=True, slots=True)
class DuckLakeBucket(MaskedBucket):
    """`(murmur3_32(value) & INT_MAX) % N` with DuckLake's hash; any type may be its source."""

    name: ClassVar[str] = "ducklake_bucket"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        return pa.int32()

    def _hashes(self, column: pa.Array) -> pa.Int32Array:
        return ducklake_hash(column)

    def ducklake_name(self, source: pa.DataType) -> str:
        return f"bucket({self.num_buckets})"


def ducklake_hash(column: pa.Array) -> pa.Int32Array:
    """DuckLake's `murmur3_32` of each value; `InvalidSpec` where the hash cannot be known.

    A NaN has many bit patterns, of which DuckLake makes different hashes.
    """
    kind = column.type
    if pt.is_dictionary(kind):
        return ducklake_hash(column.cast(kind.value_type))
    if pt.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        raise InvalidSpec("Cannot know the bucket of NaN: DuckLake hashes its bits, which vary.")
    if pt.is_timestamp(kind) or pt.is_time64(kind):
        return murmur3(column.cast(pa.int64()))
    if pt.is_unsigned_integer(kind):
        return murmur3(column.cast(pa.string()))
    if pt.is_decimal128(kind):
        if kind.precision <= MOST_DIGITS_OF_A_LONG:
            return murmur3(_unscaled(column))
        return murmur3(_decimal_text(column))
    if pt.is_nested(kind):
        raise InvalidSpec(f"Cannot know the bucket of a {kind}: DuckLake hashes its text.")
    return murmur3(column)


def _unscaled(column: pa.Array) -> pa.Array:
    """The unscaled values of decimals that fit in 64 bits."""
    words = np.frombuffer(column.buffers()[1], np.int64)[2 * column.offset :][: 2 * len(column)]
    absent = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(words[::2], mask=absent)


def _decimal_text(column: pa.Array) -> pa.Array:
    """Decimals as DuckDB writes them: all digits of the scale, and no zero alone before them."""
    kind = column.type
    whole = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(column), column.buffers(), column.null_count, column.offset
    )
    digits = whole.cast(pa.string())
    if not kind.scale:
        return digits
    negative = pc.starts_with(digits, "-")
    # Where all digits are behind the point, DuckDB has none before it.
    least = kind.scale + (0 if kind.precision == kind.scale else 1)
    digits = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), least, "0")
    before = pc.utf8_slice_codeunits(digits, 0, -kind.scale)
    behind = pc.utf8_slice_codeunits(digits, -kind.scale)
    sign = pc.if_else(negative, "-", "")
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, before, ""), behind, ".")


@dataclass(frozen=True, slots=True)
class LongPart(ForeignTransform):
    """A calendar part that is stored as int64, as catalogs up to today's have it."""

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

    def keeps_order(self, source: pa.DataType) -> bool:
        return self.part.keeps_order(source)

    def nearest(self, source: pa.DataType) -> Nearest:
        return Nearest((self.part,), True, "the same calendar part, stored as int32")


@dataclass(frozen=True, slots=True)
class Unrepeatable(ForeignTransform):
    """A transform whose stored values cannot be computed again from the rows, and why.

    It tells NULL from other values, and prunes by nothing else.
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

    def project(self, leaf: Leaf, source: pa.DataType, target: Column) -> Projection:
        if isinstance(leaf, IsNull):
            return Projection(IsNull(target), True)
        return Projection(NotNull(target), isinstance(leaf, NotNull), self.why)

    def ducklake_name(self, source: pa.DataType) -> str:
        return self.inner.ducklake_name(source)

    def reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        return None

    def nearest(self, source: pa.DataType) -> Nearest:
        found = nearest(self.inner, source)
        return Nearest(found.transforms, False, f"rows are placed anew: {self.why}")
