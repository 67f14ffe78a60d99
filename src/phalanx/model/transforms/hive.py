"""`bucket`, `hash` and `truncate` of the Hive-style layout, which differ from the newest format.

The layout's bucket is the floor modulo of the hash and never negative. The newest format takes the
absolute value first, so half of all values have another bucket number. The two are different
transforms and are never compared or joined with each other.
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
from phalanx.model.murmur3 import encode_for_hash, is_hashable, murmur3
from phalanx.model.predicates.predicate import FALSE, AtomicPredicate, Compare, In, NotNull, any_of
from phalanx.model.sql.literals import drop_duplicates
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.buckets import Bucket, Remainder
from phalanx.model.transforms.expression import build_expression
from phalanx.model.transforms.foreign import ClosestTransforms
from phalanx.model.transforms.transform import (
    IDENTITY,
    Projection,
    Transform,
    check_positive,
    to_inclusive_bound,
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

    def find_closest(self, source: pa.DataType) -> ClosestTransforms:
        """Return the transform that an import into the newest format uses instead."""
        note = (
            "rows are repartitioned: the draft takes the hash itself, the format takes its "
            "absolute value"
        )
        return ClosestTransforms((Bucket(self.num_buckets),), False, note)

    def find_reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        if self == coarser:
            return IDENTITY
        if isinstance(coarser, HiveBucket) and self.num_buckets % coarser.num_buckets == 0:
            return Remainder(coarser.num_buckets)
        return None


@dataclass(frozen=True, slots=True)
class HiveTruncate(Truncate):
    """Signed integers, rounded to a multiple of `width`: toward zero or down, as the writer does.

    The draft says `value - (value mod width)`, and writers differ in `mod`: −3 by 10 is in 0 or in
    −10. Phalanx writes toward zero, and a predicate keeps the partitions of both
    interpretations.
    """

    # The layout does not record which of the two a writer used.
    is_repeatable: ClassVar[bool] = False

    def preserves_order(self, source: pa.DataType) -> bool:
        return False

    def project(self, atom: AtomicPredicate, source: pa.DataType, target: Column) -> Projection:
        if not isinstance(atom, In | Compare):
            return Transform.project(self, atom, source, target)
        reason = "a negative number can be in either of two partitions"
        if isinstance(atom, In):
            both = [*self.apply(atom.values), *self._floor_to_multiple(atom.values)]
            found = drop_duplicates(pa.array([each.as_py() for each in both], source))
            return Projection(In(target, found), False, reason)
        bound = to_inclusive_bound(atom)
        if bound is None:
            return Projection(FALSE, True)
        edge = pa.array([bound.value.as_py()], source)
        [lower], [upper] = self._floor_to_multiple(edge), self.apply(edge)
        if not bound.is_upper:
            # Below the smallest number of the type the multiple wraps around.
            if lower.as_py() > bound.value.as_py():
                return Projection(NotNull(target), False, reason)
            return Projection(Compare(target, ">=", lower), False, reason)
        greatest = pa.scalar(2 ** (source.bit_width - 1) - 1 - self.width, pa.int64())
        if greatest.as_py() < 0:
            return Projection(NotNull(target), False, reason)
        wrapped = Compare(target, ">", greatest.cast(source))
        return Projection(any_of((Compare(target, "<=", upper), wrapped)), False, reason)

    def _floor_to_multiple(self, numbers: pa.Array) -> pa.Array:
        values = numbers.to_numpy(zero_copy_only=False)
        wide = values.astype(np.int64)
        with np.errstate(over="ignore"):
            multiples = wide - np.mod(wide, np.int64(self.width))
        return pa.array(multiples.astype(values.dtype), numbers.type)

    def find_closest(self, source: pa.DataType) -> ClosestTransforms:
        """Return the transform that an import into the newest format uses instead."""
        note = "the format truncates negative numbers toward zero, writers of the draft may not"
        return ClosestTransforms((Truncate(self.width),), False, note)

    def find_reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        return None


@dataclass(frozen=True, slots=True)
class HiveHash(Transform):
    """murmur3 of any type as eight hexadecimal digits; NULL for NULL.

    Single values have the bytes of `murmur3`. A list is encoded as its items in order, a struct as
    its fields, a map as structs of key and value. Each part is the length of its bytes (four
    bytes, little-endian) followed by the bytes, or the length −1 if it is NULL.
    """

    name: ClassVar[str] = "hive_hash"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        (source,) = sources
        _check_hashable(source, source)
        return pa.string()

    def apply(self, *columns: pa.Array) -> pa.Array:
        (column,) = columns
        hashes = murmur3(column if is_hashable(column.type) else _encode_nested(column))
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

    def find_closest(self, source: pa.DataType) -> ClosestTransforms:
        """Return the expression that an import into the newest format uses instead."""
        if not is_hashable(source):
            raise InvalidSpec(f"the newest format hashes single values only, not {source}")
        found = build_expression(self.sql(source), [source], self.result_type(source))
        return ClosestTransforms((found,), True, "the same hash, as an expression")


def _check_hashable(kind: pa.DataType, whole: pa.DataType) -> None:
    if is_hashable(kind):
        return
    is_nested = pt.is_nested(kind) and not pt.is_union(kind) and kind.num_fields
    if not is_nested:
        raise InvalidSpec(
            f"Cannot hash a column of type {whole}: hash takes numbers, booleans, strings, "
            f"binary, dates, times and decimals, and lists and structs of them, not {kind}."
        )
    for position in range(kind.num_fields):
        _check_hashable(kind.field(position).type, whole)


def _encode_nested(array: pa.Array) -> pa.LargeBinaryArray:
    """Return the bytes of each value, NULL for NULL."""
    kind = array.type
    if is_hashable(kind):
        return encode_for_hash(array)
    if pt.is_map(kind):
        pair = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return _encode_nested(array.cast(pa.list_(pair)))
    if pt.is_struct(kind):
        # `flatten` also masks the fields of NULL structs.
        parts = [_prepend_length(_encode_nested(part)) for part in array.flatten()]
        found = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    else:
        items = _prepend_length(_encode_nested(array.flatten()))
        counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        starts = np.frombuffer(items.buffers()[1], np.int64)[items.offset :]
        found = pa.Array.from_buffers(
            pa.large_binary(), len(array), [None, pa.py_buffer(starts[ends]), items.buffers()[2]]
        )
    return pc.if_else(array.is_valid(), found, pa.scalar(None, pa.large_binary()))


def _prepend_length(values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Prepend the length to each value; NULL becomes the length −1."""
    lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
    heads = pa.Array.from_buffers(
        pa.binary(4), len(values), [None, pa.py_buffer(lengths.astype("<i4").tobytes())]
    ).cast(pa.large_binary())
    nothing = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(heads, pc.fill_null(values, nothing), nothing)
