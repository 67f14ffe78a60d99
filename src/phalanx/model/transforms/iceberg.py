"""Iceberg's `truncate` and `void`, and fields with unknown transforms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSpec, PhalanxError
from phalanx.model.predicates.predicate import TRUE, AtomicPredicate, Compare, any_of
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.foreign import ClosestTransforms, ForeignTransform
from phalanx.model.transforms.transform import Projection, Transform, check_positive
from phalanx.model.transforms.truncate import Truncate, is_string_type

_INTEGERS = (pa.int32(), pa.int64())


@dataclass(frozen=True, slots=True)
class IcebergTruncate(ForeignTransform):
    """The first `width` code points of text or bytes of binary; numbers floored to a multiple.

    Integers are floored to a multiple of `width`, decimals by their unscaled value. Below the
    smallest integer the value wraps around, as in Iceberg's Java implementation.
    """

    width: int
    name: ClassVar[str] = "truncate"

    def __post_init__(self) -> None:
        check_positive(self.name, "width", self.width)

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"width": self.width}

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        (source,) = sources
        if source in _INTEGERS or is_string_type(source) or pt.is_binary(source):
            return source
        if pt.is_decimal128(source):
            # The multiple below the smallest value of a type may have one more digit.
            return pa.decimal128(38, source.scale)
        raise InvalidSpec(
            f"Cannot truncate a column of type {source}: Iceberg truncates int, long, decimal, "
            "string and binary."
        )

    def apply(self, *columns: pa.Array) -> pa.Array:
        (column,) = columns
        if is_string_type(column.type):
            return pc.utf8_slice_codeunits(column, 0, self.width)
        if pt.is_binary(column.type):
            return pc.binary_slice(column, 0, self.width)
        if pt.is_decimal(column.type):
            return self._floor_decimals(column)
        present = column.is_valid().to_numpy(zero_copy_only=False)
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        with np.errstate(over="ignore"):
            multiples = numbers - np.mod(numbers, np.int64(self.width))
        wrapped = multiples.astype(column.type.to_pandas_dtype())
        return pa.array(wrapped, column.type, mask=~present)

    def _floor_decimals(self, column: pa.Array) -> pa.Array:
        """Floor the unscaled value of decimals to a multiple of `width`."""
        kind = self.result_type(column.type)
        wide = column.cast(kind)
        unscaled = pa.Array.from_buffers(
            pa.decimal128(38, 0), len(wide), wide.buffers(), wide.null_count, wide.offset
        )
        multiple = pa.scalar(self.width, pa.int64()).cast(pa.decimal128(38, 0))
        floored = pc.round_to_multiple(unscaled, multiple, round_mode="down")
        return pa.Array.from_buffers(
            kind, len(floored), floored.buffers(), floored.null_count, floored.offset
        )

    def preserves_order(self, source: pa.DataType) -> bool:
        return True

    def project(self, atom: AtomicPredicate, source: pa.DataType, target: Column) -> Projection:
        if is_string_type(source):
            # Both systems truncate text in the same way.
            return Truncate(self.width).project(atom, source, target)
        if not isinstance(atom, Compare):
            return Transform.project(self, atom, source, target)
        if pt.is_binary(source):
            return self._project_bytes(atom, target)
        found = self._project_range(atom, source, target)
        if pt.is_decimal(source) or atom.operator in (">", ">="):
            return found
        greatest = pa.scalar(2 ** (source.bit_width - 1) - 1 - self.width, source)
        wrapped = Compare(target, ">", greatest)
        return Projection(
            any_of((found.predicate, wrapped)), False, "the smallest values wrap around"
        )

    def _project_bytes(self, atom: Compare, target: Column) -> Projection:
        start = pa.scalar(atom.value.as_py()[: self.width], atom.value.type)
        operator = "<=" if atom.operator in ("<", "<=") else ">="
        return Projection(Compare(target, operator, start), False, "the range ends inside a prefix")

    def find_closest(self, source: pa.DataType) -> ClosestTransforms:
        if is_string_type(source):
            return ClosestTransforms(
                (Truncate(self.width),), True, "both systems truncate text in the same way"
            )
        if source in _INTEGERS:
            note = "negative numbers change partitions: the format truncates toward zero"
            return ClosestTransforms((Truncate(self.width),), False, note)
        if pt.is_decimal(source) and self.width >= 10**source.scale:
            note = "the format truncates whole values toward zero, Iceberg floors unscaled ones"
            return ClosestTransforms((Truncate(self.width // 10**source.scale),), False, note)
        return ClosestTransforms(
            (), False, f"the format cannot truncate {source} like Iceberg: the field is left out"
        )


@dataclass(frozen=True, slots=True)
class Void(ForeignTransform):
    """NULL for every row: a field that was dropped from a spec.

    A spec may have several void fields over one column, so Iceberg's `field_id` identifies them.
    """

    field_id: int
    name: ClassVar[str] = "void"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        return pa.int32()

    def apply(self, *columns: pa.Array) -> pa.Array:
        return pa.nulls(len(columns[0]), pa.int32())

    def project(self, atom: AtomicPredicate, source: pa.DataType, target: Column) -> Projection:
        return Projection(TRUE, False, "void holds all values")

    def find_closest(self, source: pa.DataType) -> ClosestTransforms:
        return ClosestTransforms((), True, "void does not partition")


@dataclass(frozen=True, slots=True)
class Unevaluable(ForeignTransform):
    """A field whose transform is unknown, with the reason. Its values are kept but never prune.

    The values of an unknown transform are read as text.
    """

    field_id: int
    text: str
    why: str
    result: pa.DataType
    name: ClassVar[str] = "unevaluable"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        return self.result

    def apply(self, *columns: pa.Array) -> pa.Array:
        raise PhalanxError(f"Cannot evaluate {self.text}: {self.why}.")

    def label(self, *names: str) -> str:
        return f"{self.text}({', '.join(names)})"

    def project(self, atom: AtomicPredicate, source: pa.DataType, target: Column) -> Projection:
        return Projection(TRUE, False, f"{self.text} cannot be evaluated: {self.why}")

    def find_closest(self, source: pa.DataType) -> ClosestTransforms:
        return ClosestTransforms((), False, f"{self.text} is left out: {self.why}")
