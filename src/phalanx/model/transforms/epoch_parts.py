"""Years, months, days and hours since 1970, as in Iceberg and newer DuckLake catalogs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidSpec, SchemaMismatch
from phalanx.model.transforms.calendar_parts import DATE_CHAIN, split_days_and_hours
from phalanx.model.transforms.foreign import ClosestTransforms, ForeignTransform

_Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class EpochPart(ForeignTransform):
    """The number of whole parts since 1970 in UTC, negative before. Every part preserves order.

    `result` is the type in which the other system stores the value.
    """

    result: pa.DataType
    accepted_types: ClassVar[str] = "dates and timestamps"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        (source,) = sources
        if not self.can_transform(source):
            raise InvalidSpec(
                f"Cannot take the {self._part_name} of a column of type {source}: "
                f"expected {self.accepted_types}."
            )
        return self.result

    def can_transform(self, source: pa.DataType) -> bool:
        """Return whether the source type has this part."""
        return bool(pt.is_date(source) or pt.is_timestamp(source))

    def label(self, *names: str) -> str:
        return f"{self._part_name}({', '.join(names)})"

    @property
    def _part_name(self) -> str:
        return self.name.removeprefix("epoch_")

    def preserves_order(self, source: pa.DataType) -> bool:
        return True

    def apply(self, *columns: pa.Array) -> pa.Array:
        (column,) = columns
        if pt.is_timestamp(column.type) and column.type.tz is not None:
            column = column.cast(pa.int64()).cast(pa.timestamp(column.type.unit))
        present = column.is_valid().to_numpy(zero_copy_only=False)
        parts = pa.array(self._count_since_1970(*split_days_and_hours(column)), mask=~present)
        try:
            if pt.is_date32(self.result):
                parts = parts.cast(pa.int32())
            return parts.cast(self.result)
        except pa.ArrowInvalid as error:
            raise SchemaMismatch(
                f"Cannot take the {self._part_name} of a {column.type}: {error}. "
                "Dates outside this range cannot be partitioned; correct them."
            ) from None

    @abstractmethod
    def _count_since_1970(self, days: _Numbers, hours: _Numbers) -> _Numbers:
        """Count the parts since 1970, from the days since 1970 and the hour of the day."""

    def ducklake_name(self, source: pa.DataType) -> str:
        return self.name

    def find_closest(self, source: pa.DataType) -> ClosestTransforms:
        names = [part.name for part in DATE_CHAIN]
        chain = DATE_CHAIN[: names.index(self._part_name) + 1]
        note = "the same partitions, named by calendar parts instead of a number since 1970"
        return ClosestTransforms(chain, True, note)


@dataclass(frozen=True, slots=True)
class EpochYear(EpochPart):
    """Years since 1970."""

    name: ClassVar[str] = "epoch_year"

    def _count_since_1970(self, days: _Numbers, hours: _Numbers) -> _Numbers:
        return days.view("datetime64[D]").astype("datetime64[Y]").astype(np.int64)


@dataclass(frozen=True, slots=True)
class EpochMonth(EpochPart):
    """Months since January 1970."""

    name: ClassVar[str] = "epoch_month"

    def _count_since_1970(self, days: _Numbers, hours: _Numbers) -> _Numbers:
        return days.view("datetime64[D]").astype("datetime64[M]").astype(np.int64)


@dataclass(frozen=True, slots=True)
class EpochDay(EpochPart):
    """Days since 1970-01-01."""

    name: ClassVar[str] = "epoch_day"

    def _count_since_1970(self, days: _Numbers, hours: _Numbers) -> _Numbers:
        return days


@dataclass(frozen=True, slots=True)
class EpochHour(EpochPart):
    """Hours since 1970-01-01 00:00."""

    name: ClassVar[str] = "epoch_hour"
    accepted_types: ClassVar[str] = "timestamps"

    def can_transform(self, source: pa.DataType) -> bool:
        return bool(pt.is_timestamp(source))

    def _count_since_1970(self, days: _Numbers, hours: _Numbers) -> _Numbers:
        return days * 24 + hours
