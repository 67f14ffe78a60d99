"""`bucket` and `multi_bucket`: partition rows by the hash of their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from phalanx.errors import InvalidSpec
from phalanx.model.murmur3 import is_hashable, murmur3, murmur3_multi
from phalanx.model.transforms.transform import (
    COLUMN_PLACEHOLDER,
    IDENTITY,
    Transform,
    check_positive,
)


@dataclass(frozen=True, slots=True)
class Remainder(Transform):
    """Map a bucket number to a coarser bucketing. Used by joins, never stored in a spec."""

    num_buckets: int
    name: ClassVar[str] = "remainder"

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"num_buckets": self.num_buckets}

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        return pa.int32()

    def apply(self, *columns: pa.Array) -> pa.Array:
        (column,) = columns
        present = column.is_valid().to_numpy(zero_copy_only=False)
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        return pa.array(_abs_modulo(numbers, self.num_buckets), mask=~present)

    def sql(self, *sources: pa.DataType) -> str:
        return f"abs(col0) % {self.num_buckets}"


def _abs_modulo(numbers: np.ndarray[Any, Any], divisor: int) -> np.ndarray[Any, Any]:
    """Return `abs(number) % divisor`, in 64 bits so that `abs` of the smallest int32 fits."""
    remainders: np.ndarray[Any, Any] = (np.abs(numbers.astype(np.int64)) % divisor).astype(np.int32)
    return remainders


@dataclass(frozen=True, slots=True)
class Bucket(Transform):
    """`abs(murmur3(value)) % num_buckets`."""

    num_buckets: int
    name: ClassVar[str] = "bucket"

    def __post_init__(self) -> None:
        check_positive(self.name, "num_buckets", self.num_buckets)

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"num_buckets": self.num_buckets}

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        for source in sources:
            if not is_hashable(source) or source == pa.null():
                raise InvalidSpec(
                    f"Cannot {self.name} a column of type {source}: {self.name} hashes numbers, "
                    "booleans, strings, binary, dates, times and decimals. "
                    "Use an expression field instead."
                )
        return pa.int32()

    def apply(self, *columns: pa.Array) -> pa.Array:
        return Remainder(self.num_buckets).apply(murmur3(columns[0]))

    def sql(self, *sources: pa.DataType) -> str:
        return f"abs(murmur3(col0)) % {self.num_buckets}"

    def ducklake_name(self, source: pa.DataType) -> str:
        raise InvalidSpec(
            f"Cannot write {self.label(COLUMN_PLACEHOLDER)} to a DuckLake catalog: DuckLake's "
            "bucket(N) takes the low 31 bits of the hash, the format takes its absolute value, so "
            "the bucket numbers differ. Rewrite the rows with DuckLake."
        )

    def find_reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        if self == coarser:
            return IDENTITY
        if type(coarser) is type(self) and self.num_buckets % coarser.num_buckets == 0:
            return Remainder(coarser.num_buckets)
        return None


@dataclass(frozen=True, slots=True)
class MultiBucket(Bucket):
    """`abs(murmur3_multi(values…)) % num_buckets`: NULL only if all values are NULL."""

    name: ClassVar[str] = "multi_bucket"

    def apply(self, *columns: pa.Array) -> pa.Array:
        return Remainder(self.num_buckets).apply(murmur3_multi(*columns))

    def sql(self, *sources: pa.DataType) -> str:
        names = ", ".join(f"col{position}" for position in range(len(sources)))
        return f"abs(murmur3_multi({names})) % {self.num_buckets}"
