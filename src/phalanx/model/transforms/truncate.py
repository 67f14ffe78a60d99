"""`truncate`: partition text by its first characters and numbers by multiples of a width."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSpec
from phalanx.model.predicates.predicate import (
    AtomicPredicate,
    Compare,
    In,
    Like,
    NotIn,
    NotNull,
    any_of,
)
from phalanx.model.sql.literals import normalize_values
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.transform import IDENTITY, Projection, Transform, check_positive


@dataclass(frozen=True, slots=True)
class Truncate(Transform):
    """The first `width` code points of text; numbers cut toward zero to a multiple of `width`."""

    width: int
    name: ClassVar[str] = "truncate"

    def __post_init__(self) -> None:
        check_positive(self.name, "width", self.width)

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"width": self.width}

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        (source,) = sources
        if pt.is_dictionary(source):
            return self.result_type(source.value_type)
        if source in (pa.float16(), pa.float32()):
            raise InvalidSpec(
                f"Cannot truncate a column of type {source}: its rounding would change the "
                "partition of a value when the column is promoted. Store it as float64."
            )
        if not (is_string_type(source) or _is_number(source)) or getattr(source, "scale", 0) < 0:
            raise InvalidSpec(
                f"Cannot truncate a column of type {source}: truncate takes strings, integers, "
                "decimals of scale 0 and up, and float64. Use an expression field instead."
            )
        return source

    def apply(self, *columns: pa.Array) -> pa.Array:
        column = normalize_values(columns[0])
        data_type = column.type
        if is_string_type(data_type):
            return pc.utf8_slice_codeunits(column, 0, self.width)
        if pt.is_decimal(data_type):
            return self._truncate_decimals(column)
        if pt.is_floating(data_type):
            wide: Any = np.float64
        else:
            wide = np.uint64 if pt.is_unsigned_integer(data_type) else np.int64
        present = column.is_valid().to_numpy(zero_copy_only=False)
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False).astype(wide)
        with np.errstate(invalid="ignore"):
            multiples = numbers - np.fmod(numbers, wide(self.width))
        return normalize_values(pa.array(multiples, mask=~present).cast(data_type))

    def _truncate_decimals(self, column: pa.Array) -> pa.Array:
        data_type = column.type
        # Arrow does not round narrower decimals.
        wide = pa.decimal128 if data_type.bit_width <= 128 else pa.decimal256
        wider = column.cast(wide(data_type.precision, data_type.scale))
        if self.width >= 10 ** (data_type.precision - data_type.scale):
            zero, none = pa.scalar(Decimal(0), wider.type), pa.scalar(None, wider.type)
            return pc.if_else(column.is_valid(), zero, none).cast(data_type)
        multiple = pa.scalar(Decimal(self.width), wider.type)
        rounded = pc.round_to_multiple(wider, multiple, round_mode="towards_zero")
        return rounded.cast(data_type)

    def sql(self, *sources: pa.DataType) -> str:
        if sources and is_string_type(_decode_type(sources[0])):
            return f"left(col0, {self.width})"
        return f"col0 - (col0 % {self.width})"

    def preserves_order(self, source: pa.DataType) -> bool:
        return True

    def project(self, atom: AtomicPredicate, source: pa.DataType, target: Column) -> Projection:
        if is_string_type(_decode_type(source)):
            match atom:
                case In(values=values) if self._are_shorter_than_width(values):
                    return Projection(In(target, values), True)
                case NotIn():
                    return self._project_not_in(atom, target)
                case Compare():
                    return self._project_text_range(atom, target)
                case Like(case_sensitive=True):
                    return self._project_prefix(atom, target)
        if pt.is_floating(source) and isinstance(atom, Compare):
            return self._project_float_range(atom, source, target)
        return Transform.project(self, atom, source, target)

    def _are_shorter_than_width(self, texts: pa.Array) -> bool:
        """Return whether each text is the only value of its partition."""
        longest = pc.max(pc.utf8_length(texts)).as_py()
        return longest is not None and longest < self.width

    def _project_not_in(self, atom: NotIn, target: Column) -> Projection:
        short = atom.values.filter(pc.less(pc.utf8_length(atom.values), self.width))
        exact = len(short) == len(atom.values)
        found: AtomicPredicate = NotIn(target, short) if len(short) else NotNull(target)
        reason = "" if exact else "a partition of truncate holds many values"
        return Projection(found, exact, reason)

    def _project_text_range(self, atom: Compare, target: Column) -> Projection:
        """Project a range of text. The smallest text of a partition is its partition value."""
        text = atom.value.as_py()
        fits = len(text) < self.width
        exact = fits or (len(text) == self.width and atom.operator in ("<", ">="))
        reason = "" if exact else "the range ends inside a prefix"
        if fits or atom.operator in ("<", "<="):
            return Projection(Compare(target, atom.operator, atom.value), exact, reason)
        start = pa.scalar(text[: self.width], atom.value.type)
        return Projection(Compare(target, ">=", start), exact, reason)

    def _project_prefix(self, atom: Like, target: Column) -> Projection:
        prefix = atom.prefix
        if len(prefix) > self.width:
            if atom.negated:
                return Projection(NotNull(target), False, "the prefix is longer than the width")
            start = pa.array([prefix[: self.width]])
            return Projection(In(target, start), False, "the prefix is longer than the width")
        if atom.is_prefix_test:
            return Projection(Like(target, atom.pattern, atom.negated), True)
        if atom.negated or not prefix:
            return Projection(NotNull(target), False, "the pattern is more than a prefix")
        return Projection(
            Like(target, _to_prefix_pattern(prefix)), False, "the pattern is more than a prefix"
        )

    def _project_float_range(
        self, atom: Compare, source: pa.DataType, target: Column
    ) -> Projection:
        """Include the partition of NaN, which also holds both infinities."""
        if not math.isfinite(atom.value.as_py()):
            return Projection(NotNull(target), False, "infinite values share a partition")
        inner = self._project_range(atom, source, target).predicate
        nan = In(target, pa.array([math.nan]))
        return Projection(any_of((inner, nan)), False, "infinite values share a partition")

    def find_reduction(self, coarser: Transform, source: pa.DataType) -> Transform | None:
        if self == coarser:
            return IDENTITY
        # Large floats are rounded, so truncating twice may round twice.
        if not isinstance(coarser, Truncate) or pt.is_floating(source):
            return None
        if not coarser.is_repeatable:
            return None
        if is_string_type(_decode_type(source)):
            return coarser if coarser.width <= self.width else None
        return coarser if coarser.width % self.width == 0 else None


def _to_prefix_pattern(prefix: str) -> str:
    escaped = "".join("\\" + char if char in "\\%_" else char for char in prefix)
    return escaped + "%"


def _decode_type(source: pa.DataType) -> pa.DataType:
    return source.value_type if pt.is_dictionary(source) else source


def is_string_type(source: pa.DataType) -> bool:
    """Return whether truncate counts code points."""
    return bool(pt.is_string(source) or pt.is_large_string(source))


def _is_number(source: pa.DataType) -> bool:
    return bool(pt.is_integer(source) or pt.is_decimal(source) or source == pa.float64())
