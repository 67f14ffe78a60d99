"""`bucket`, `hash` and `truncate` of the Hive-style layout, which are not the newest format's.

Its bucket is the hash modulo the number of buckets, as mathematics has it: never negative. The
newest format takes the absolute value first, so that half of all values fall in other buckets.
The two are different transforms, which nothing joins or takes for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSpec
from phalanx.model.murmur3 import hashed_bytes, is_hashable, murmur3
from phalanx.model.predicates.predicate import FALSE, Compare, In, Leaf, NotNull, any_of
from phalanx.model.sql.literals import distinct
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.buckets import Bucket, Remainder
from phalanx.model.transforms.expression import checked
from phalanx.model.transforms.foreign import Nearest
from phalanx.model.transforms.transform import (
    IDENTITY,
    Projection,
    Transform,
    check_positive,
    inclusive_bound,
)
from phalanx.model.transforms.truncate import Truncate

_HEX_DIGITS = 8


@dataclass(frozen=True, slots=True)
class HiveBucket(Transform):
    """The floor modulo of murmur3 by the number of buckets: 0 to `num_buckets` − 1."""

    num_buckets: int
    name: ClassVar[str] = "hive_bucket"

    def __post_init__(self) -> None:
        check_positive("bucket", "num_buckets", self.num_buckets)

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"num_buckets": self.num_buckets}

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        (source,) = sources
        if not is_hashable(source) or source == pa.null():
            raise InvalidSpec(
                f"Cannot bucket a column of type {source}: bucket hashes numbers, booleans, "
                "strings, binary, dates, times and decimals. Use hash instead."
            )
        return pa.int32()

    def apply(self, *columns: pa.Array) -> pa.Array:
        hashes = murmur3(columns[0])
        present = hashes.is_valid().to_numpy(zero_copy_only=False)
        numbers = hashes.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        # NumPy's remainder has the sign of the divisor.
        return pa.array((numbers % self.num_buckets).astype(np.int32), mask=~present)

    def sql(self, *sources: pa.DataType) -> str:
        count = self.num_buckets
        return f"((murmur3(col0) % {count}) + {count}) % {count}"

    def nearest(self, source: pa.DataType) -> Nearest:
        """What an import into the newest format partitions by instead."""
        note = (
            "rows are spread anew: the draft takes the hash itself, the format its absolute value"
        )
        return Nearest((Bucket(self.num_buckets),), False, note)

    def reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        if self == coarser:
            return IDENTITY
        if isinstance(coarser, HiveBucket) and self.num_buckets % coarser.num_buckets == 0:
            return Remainder(coarser.num_buckets)
        return None


@dataclass(frozen=True, slots=True)
class HiveTruncate(Truncate):
    """Signed integers, cut to a multiple of `width`: toward zero, or down, as their writer does.

    The draft says `value - (value mod width)`, and `mod` is not the same everywhere: −3 by 10 is in
    0 or in −10. Values are derived toward zero, and a predicate keeps the partitions of both.
    """

    # Which of the two a stored value is, nobody recorded.
    is_repeatable: ClassVar[bool] = False

    def keeps_order(self, source: pa.DataType) -> bool:
        return False

    def project(self, leaf: Leaf, source: pa.DataType, target: Column) -> Projection:
        if not isinstance(leaf, In | Compare):
            return Transform.project(self, leaf, source, target)
        reason = "numbers below zero have two places"
        if isinstance(leaf, In):
            both = [*self.apply(leaf.values), *self._downward(leaf.values)]
            found = distinct(pa.array([each.as_py() for each in both], source))
            return Projection(In(target, found), False, reason)
        bound = inclusive_bound(leaf)
        if bound is None:
            return Projection(FALSE, True)
        edge = pa.array([bound.value.as_py()], source)
        [lower], [upper] = self._downward(edge), self.apply(edge)
        if not bound.is_upper:
            # Below the least number of the type the multiple wraps around.
            if lower.as_py() > bound.value.as_py():
                return Projection(NotNull(target), False, reason)
            return Projection(Compare(target, ">=", lower), False, reason)
        greatest = pa.scalar(2 ** (source.bit_width - 1) - 1 - self.width, pa.int64())
        if greatest.as_py() < 0:
            return Projection(NotNull(target), False, reason)
        wrapped = Compare(target, ">", greatest.cast(source))
        return Projection(any_of((Compare(target, "<=", upper), wrapped)), False, reason)

    def _downward(self, numbers: pa.Array) -> pa.Array:
        values = numbers.to_numpy(zero_copy_only=False)
        wide = values.astype(np.int64)
        with np.errstate(over="ignore"):
            multiples = wide - np.mod(wide, np.int64(self.width))
        return pa.array(multiples.astype(values.dtype), numbers.type)

    def nearest(self, source: pa.DataType) -> Nearest:
        """What an import into the newest format partitions by instead."""
        note = "numbers below zero go toward zero, wherever the draft's writer has put them"
        return Nearest((Truncate(self.width),), False, note)

    def reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        return None


@dataclass(frozen=True, slots=True)
class HiveHash(Transform):
    """murmur3 in eight hexadecimal digits, of any type; NULL for NULL.

    Of single values the bytes are those of `murmur3`. A list is its items in order, a struct its
    fields, a map its keys and values as structs: each of them as the length of its bytes (four
    bytes, little-endian) and these, or as the length −1 if it is NULL.
    """

    name: ClassVar[str] = "hive_hash"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        (source,) = sources
        _check_hashable(source, source)
        return pa.string()

    def apply(self, *columns: pa.Array) -> pa.Array:
        (column,) = columns
        hashes = murmur3(column if is_hashable(column.type) else _nested_bytes(column))
        octets = hashes.cast(pa.int64()).to_numpy(zero_copy_only=False)
        present = hashes.is_valid().to_numpy(zero_copy_only=False)
        big_endian = np.where(present, octets, 0).astype(">i4").view(np.uint8).reshape(-1, 4)
        nibbles = np.stack([big_endian >> 4, big_endian & 15], axis=-1).reshape(-1, _HEX_DIGITS)
        digits = np.frombuffer(b"0123456789abcdef", np.uint8)[nibbles]
        texts = pa.Array.from_buffers(
            pa.binary(_HEX_DIGITS), len(hashes), [None, pa.py_buffer(digits.tobytes())]
        )
        return pc.if_else(hashes.is_valid(), texts, None).cast(pa.binary()).cast(pa.string())

    def sql(self, *sources: pa.DataType) -> str:
        return (
            "lpad(to_hex(((CAST(murmur3(col0) AS BIGINT) % 4294967296) + 4294967296) "
            f"% 4294967296), {_HEX_DIGITS}, '0')"
        )

    def nearest(self, source: pa.DataType) -> Nearest:
        """What an import into the newest format partitions by instead: an expression."""
        if not is_hashable(source):
            raise InvalidSpec(f"the newest format hashes single values only, not {source}")
        found = checked(self.sql(source), [source], self.result_type(source))
        return Nearest((found,), True, "the same hash, as an expression")


def _check_hashable(kind: pa.DataType, whole: pa.DataType) -> None:
    if is_hashable(kind):
        return
    is_nested = pt.is_nested(kind) and not pt.is_union(kind) and kind.num_fields
    if not is_nested:
        raise InvalidSpec(
            f"Cannot hash a column of type {whole}: hash takes numbers, booleans, strings, "
            f"binary, dates, times and decimals, and lists and structs of them, not {kind}."
        )
    for place in range(kind.num_fields):
        _check_hashable(kind.field(place).type, whole)


def _nested_bytes(array: pa.Array) -> pa.LargeBinaryArray:
    """The bytes of each value, NULL for NULL."""
    kind = array.type
    if is_hashable(kind):
        return hashed_bytes(array)
    if pt.is_map(kind):
        pair = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return _nested_bytes(array.cast(pa.list_(pair)))
    if pt.is_struct(kind):
        # Parts that a NULL struct has are left out with it.
        parts = [_with_length(_nested_bytes(part)) for part in array.flatten()]
        found = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    else:
        items = _with_length(_nested_bytes(array.flatten()))
        counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        starts = np.frombuffer(items.buffers()[1], np.int64)[items.offset :]
        found = pa.Array.from_buffers(
            pa.large_binary(), len(array), [None, pa.py_buffer(starts[ends]), items.buffers()[2]]
        )
    return pc.if_else(array.is_valid(), found, pa.scalar(None, pa.large_binary()))


def _with_length(values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Each value behind its length; NULL is a length of −1 alone."""
    lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
    heads = pa.Array.from_buffers(
        pa.binary(4), len(values), [None, pa.py_buffer(lengths.astype("<i4").tobytes())]
    ).cast(pa.large_binary())
    nothing = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(heads, pc.fill_null(values, nothing), nothing)
