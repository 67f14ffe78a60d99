"""`year month day hour`: calendar parts in UTC."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSpec
from phalanx.model.predicate import Compare, NotNull
from phalanx.model.syntax import Column
from phalanx.model.transform import Projection, Transform


class CalendarPart(Transform):
    """A calendar part in UTC, as `date_part` counts it: never an offset from 1970."""

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        (source,) = sources
        if not self.takes(source):
            raise InvalidSpec(
                f"Cannot take the {self.name} of a column of type {source}: "
                f"{self.name} takes {self.accepted}."
            )
        return pa.int32()

    accepted: ClassVar[str] = "dates and timestamps"

    def takes(self, source: pa.DataType) -> bool:
        """Whether the source has this part."""
        return bool(pt.is_date(source) or pt.is_timestamp(source))

    def apply(self, *columns: pa.Array) -> pa.Array:
        (column,) = columns
        if pt.is_time(column.type):
            return pc.hour(column).cast(pa.int32())
        if pt.is_timestamp(column.type) and column.type.tz is not None:
            column = column.cast(pa.int64()).cast(pa.timestamp(column.type.unit))
        if _is_in_common_era(column):
            return getattr(pc, self.name)(column).cast(pa.int32())
        present = column.is_valid().to_numpy(zero_copy_only=False)
        moments = column.fill_null(column.drop_null()[0]).to_numpy(zero_copy_only=False)
        return pa.array(self._far(moments), mask=~present).cast(pa.int32())

    @abstractmethod
    def _far(self, moments: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The part for any moment at all; slower than Arrow's, which wraps past year 32767."""

    def sql(self, *sources: pa.DataType) -> str:
        return f"date_part('{self.name}', col0)"

    def _project_range(self, leaf: Compare, source: pa.DataType, target: Column) -> Projection:
        if self.keeps_order(source):
            return super()._project_range(leaf, source, target)
        return Projection(
            NotNull(target), False, f"{self.name} is cyclic: a range needs the coarser parts too"
        )


def _is_in_common_era(column: pa.Array) -> bool:
    """Whether all moments lie in the years −9999 to 9999, or all are NULL."""
    unit = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[getattr(column.type, "unit", "ms")]
    per_second = 1 / 86_400 if pt.is_date32(column.type) else unit
    storage = pa.int32() if pt.is_date32(column.type) else pa.int64()
    extremes = pc.min_max(column.cast(storage))
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    return low is None or (
        low >= -377_705_116_800 * per_second and high < 253_402_300_800 * per_second
    )


def _whole(moments: np.ndarray[Any, Any], unit: str) -> np.ndarray[Any, Any]:
    whole: np.ndarray[Any, Any] = moments.astype(f"datetime64[{unit}]").astype(np.int64)
    return whole


@dataclass(frozen=True, slots=True)
class Year(CalendarPart):
    """The calendar year: the one part that keeps order."""

    name: ClassVar[str] = "year"

    def keeps_order(self, source: pa.DataType) -> bool:
        return True

    def _far(self, moments: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return _whole(moments, "Y") + 1970


@dataclass(frozen=True, slots=True)
class Month(CalendarPart):
    """The month of the year, 1 to 12."""

    name: ClassVar[str] = "month"

    def _far(self, moments: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return _whole(moments, "M") % 12 + 1


@dataclass(frozen=True, slots=True)
class Day(CalendarPart):
    """The day of the month, 1 to 31."""

    name: ClassVar[str] = "day"

    def _far(self, moments: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        first = moments.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        days: np.ndarray[Any, Any] = _whole(moments, "D") - first + 1
        return days


@dataclass(frozen=True, slots=True)
class Hour(CalendarPart):
    """The hour of the day, 0 to 23; of a time of day it keeps order."""

    name: ClassVar[str] = "hour"
    accepted: ClassVar[str] = "timestamps and times"

    def takes(self, source: pa.DataType) -> bool:
        return bool(pt.is_timestamp(source) or pt.is_time(source))

    def keeps_order(self, source: pa.DataType) -> bool:
        return bool(pt.is_time(source))

    def _far(self, moments: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return _whole(moments, "h") % 24


DATE_CHAIN: tuple[CalendarPart, ...] = (Year(), Month(), Day(), Hour())
