"""The buckets of Iceberg and DuckLake, which use the low 31 bits of the hash instead of `abs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from phalanx.errors import InvalidSpec
from phalanx.model.murmur3 import is_hashable, murmur3
from phalanx.model.transforms.buckets import Bucket, Remainder
from phalanx.model.transforms.foreign import ClosestTransforms, ForeignTransform
from phalanx.model.transforms.transform import IDENTITY, Transform, check_positive

_LOW_BITS = np.int32(2**31 - 1)


@dataclass(frozen=True, slots=True)
class MaskedBucket(ForeignTransform):
    """`(murmur3(value) & INT_MAX) % num_buckets`.

    A system with its own hash has its own subclass. Buckets of two classes are never equal.
    """

    num_buckets: int
    name: ClassVar[str] = "masked_bucket"

    def __post_init__(self) -> None:
        check_positive("bucket", "num_buckets", self.num_buckets)

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"num_buckets": self.num_buckets}

    def label(self, *names: str) -> str:
        return f"bucket({', '.join([str(self.num_buckets), *names])})"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        for source in sources:
            if not is_hashable(source) or source == pa.null():
                raise InvalidSpec(
                    f"Cannot bucket a column of type {source}: expected numbers, booleans, "
                    "strings, binary, dates, times or decimals."
                )
        return pa.int32()

    def apply(self, *columns: pa.Array) -> pa.Array:
        hashes = self._hash(columns[0])
        present = hashes.is_valid().to_numpy(zero_copy_only=False)
        numbers = hashes.fill_null(0).to_numpy(zero_copy_only=False)
        return pa.array((numbers & _LOW_BITS) % np.int32(self.num_buckets), mask=~present)

    def _hash(self, column: pa.Array) -> pa.Int32Array:
        """Return the hash of each value, NULL for NULL."""
        return murmur3(column)

    def find_reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        if self == coarser:
            return IDENTITY
        if type(coarser) is type(self) and self.num_buckets % coarser.num_buckets == 0:
            return Remainder(coarser.num_buckets)
        return None

    def find_closest(self, source: pa.DataType) -> ClosestTransforms:
        note = (
            "rows are repartitioned: the other system takes the low 31 bits of the hash, the "
            "format takes its absolute value"
        )
        return ClosestTransforms((Bucket(self.num_buckets),), False, note)
