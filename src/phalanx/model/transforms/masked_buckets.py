"""Buckets of Iceberg and DuckLake: the low 31 bits of the hash, where the format takes `abs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from phalanx.errors import InvalidSpec
from phalanx.model.murmur3 import is_hashable, murmur3
from phalanx.model.transforms.buckets import Bucket, Remainder
from phalanx.model.transforms.foreign import ForeignTransform, Nearest
from phalanx.model.transforms.transform import IDENTITY, Transform, check_positive

_LOW_BITS = np.int32(2**31 - 1)


@dataclass(frozen=True, slots=True)
class MaskedBucket(ForeignTransform):
    """`(murmur3(value) & INT_MAX) % num_buckets`.

    A system that hashes some types in its own way has a class of its own for it, and buckets of
    two classes never compare as equal.
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
        hashes = self._hashes(columns[0])
        present = hashes.is_valid().to_numpy(zero_copy_only=False)
        numbers = hashes.fill_null(0).to_numpy(zero_copy_only=False)
        return pa.array((numbers & _LOW_BITS) % np.int32(self.num_buckets), mask=~present)

    def _hashes(self, column: pa.Array) -> pa.Int32Array:
        """The hash of each value, NULL for NULL."""
        return murmur3(column)

    def reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        if self == coarser:
            return IDENTITY
        if type(coarser) is type(self) and self.num_buckets % coarser.num_buckets == 0:
            return Remainder(coarser.num_buckets)
        return None

    def nearest(self, source: pa.DataType) -> Nearest:
        note = (
            "rows are spread anew: the other system takes the low 31 bits of the hash, the format "
            "its absolute value"
        )
        return Nearest((Bucket(self.num_buckets),), False, note)
