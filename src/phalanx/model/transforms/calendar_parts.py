"""`year`, `month`, `day` and `hour`: calendar parts in UTC."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSpec, SchemaMismatch
from phalanx.model.predicates.predicate import Compare, NotNull
from phalanx.model.sql.literals import storage_type_of
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.transform import Projection, Transform

_Dates: TypeAlias = np.ndarray[Any, np.dtype[np.datetime64]]
_Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class CalendarPart(Transform):
    """A calendar part in UTC, as `date_part` returns it, not an offset from 1970.

    Beyond the years ±262,000 DataFusion's `date_part` returns NULL, while partition values are
    still correct. Therefore `date_part(…) IS NULL` prunes nothing.
    """

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        (source,) = sources
        if not self.can_transform(source):
            raise InvalidSpec(
                f"Cannot take the {self.name} of a column of type {source}: "
                f"{self.name} takes {self.accepted_types}."
            )
        return pa.int32()

    accepted_types: ClassVar[str] = "dates and timestamps"

    def can_transform(self, source: pa.DataType) -> bool:
        """Return whether the source type has this part."""
        return bool(pt.is_date(source) or pt.is_timestamp(source))

    def has_gaps_in_sql(self, source: pa.DataType) -> bool:
        # Nanosecond timestamps end in the year 2262.
        return not pt.is_time(source) and getattr(source, "unit", "") != "ns"

    def apply(self, *columns: pa.Array) -> pa.Array:
        (column,) = columns
        if pt.is_time(column.type):
            return pc.hour(column).cast(pa.int32())
        if pt.is_timestamp(column.type) and column.type.tz is not None:
            column = column.cast(pa.int64()).cast(pa.timestamp(column.type.unit))
        if _has_only_common_years(column):
            return getattr(pc, self.name)(column).cast(pa.int32())
        return self._apply_to_any_year(column)

    def _apply_to_any_year(self, column: pa.Array) -> pa.Array:
        """Handle years beyond ±32767, where Arrow's own functions wrap around."""
        days, hours = split_days_and_hours(column)
        present = column.is_valid().to_numpy(zero_copy_only=False)
        parts = pa.array(self._compute_part(days.view("datetime64[D]"), hours), mask=~present)
        try:
            return parts.cast(pa.int32())
        except pa.ArrowInvalid as error:
            raise SchemaMismatch(
                f"Cannot take the {self.name} of a {column.type}: {error}. "
                "Dates outside this range cannot be partitioned; correct them."
            ) from None

    @abstractmethod
    def _compute_part(self, days: _Dates, hours: _Numbers) -> _Numbers:
        """Compute the part from the day and the hour of the day."""

    def sql(self, *sources: pa.DataType) -> str:
        return f"date_part('{self.name}', col0)"

    def ducklake_name(self, source: pa.DataType) -> str:
        check_ducklake_source(self.name, source)
        if pt.is_timestamp(source) and source.tz is not None:
            raise InvalidSpec(
                f"Cannot exchange the {self.name} of a column of type {source} with DuckLake: "
                "DuckLake uses the time zone of the writer, the format uses UTC. Use a column "
                "without a time zone."
            )
        return self.name

    def _project_range(self, atom: Compare, source: pa.DataType, target: Column) -> Projection:
        if self.preserves_order(source):
            return super()._project_range(atom, source, target)
        return Projection(
            NotNull(target), False, f"{self.name} is cyclic: a range also needs the coarser parts"
        )


def check_ducklake_source(part: str, source: pa.DataType) -> None:
    """Raise `InvalidSpec` for a source type that DuckLake does not specify for this part."""
    if not (pt.is_timestamp(source) or (pt.is_date(source) and part != "hour")):
        expected = "timestamps" if part == "hour" else "dates and timestamps"
        raise InvalidSpec(
            f"Cannot take the {part} of a column of type {source} in DuckLake: it takes {expected}."
        )


def split_days_and_hours(column: pa.Array) -> tuple[_Numbers, _Numbers]:
    """Return the days since 1970 and the hour of the day of each value in UTC; 0 for NULL."""
    per_day = 1 if pt.is_date32(column.type) else 86_400 * _ticks_per_second(column.type)
    ticks = column.cast(storage_type_of(column.type)).fill_null(0).to_numpy().astype(np.int64)
    days = ticks // per_day
    return days, (ticks - days * per_day) * 24 // per_day


def _ticks_per_second(data_type: pa.DataType) -> int:
    return {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[getattr(data_type, "unit", "ms")]


def _has_only_common_years(column: pa.Array) -> bool:
    """Return whether all values are in the years −9999 to 9999, or NULL."""
    per_second = 1 / 86_400 if pt.is_date32(column.type) else _ticks_per_second(column.type)
    extremes = pc.min_max(column.cast(storage_type_of(column.type)))
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    return low is None or (
        low >= -377_705_116_800 * per_second and high < 253_402_300_800 * per_second
    )


@dataclass(frozen=True, slots=True)
class Year(CalendarPart):
    """The calendar year, the only part that preserves order."""

    name: ClassVar[str] = "year"

    def preserves_order(self, source: pa.DataType) -> bool:
        return True

    def _compute_part(self, days: _Dates, hours: _Numbers) -> _Numbers:
        return days.astype("datetime64[Y]").astype(np.int64) + 1970


@dataclass(frozen=True, slots=True)
class Month(CalendarPart):
    """The month of the year, 1 to 12."""

    name: ClassVar[str] = "month"

    def _compute_part(self, days: _Dates, hours: _Numbers) -> _Numbers:
        return days.astype("datetime64[M]").astype(np.int64) % 12 + 1


@dataclass(frozen=True, slots=True)
class Day(CalendarPart):
    """The day of the month, 1 to 31."""

    name: ClassVar[str] = "day"

    def _compute_part(self, days: _Dates, hours: _Numbers) -> _Numbers:
        firsts = days.astype("datetime64[M]").astype("datetime64[D]")
        return days.astype(np.int64) - firsts.astype(np.int64) + 1


@dataclass(frozen=True, slots=True)
class Hour(CalendarPart):
    """The hour of the day, 0 to 23. It preserves order for times of day only."""

    name: ClassVar[str] = "hour"
    accepted_types: ClassVar[str] = "timestamps and times"

    def can_transform(self, source: pa.DataType) -> bool:
        return bool(pt.is_timestamp(source) or pt.is_time(source))

    def preserves_order(self, source: pa.DataType) -> bool:
        return bool(pt.is_time(source))

    def _compute_part(self, days: _Dates, hours: _Numbers) -> _Numbers:
        return hours


DATE_CHAIN: tuple[CalendarPart, ...] = (Year(), Month(), Day(), Hour())
