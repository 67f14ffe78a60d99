"""The partitionings of a DuckLake table, with DuckLake's own meaning.

A spec's id is its `partition_id`. Files without one are under spec 0, which has no fields; a
partitioning that was reset has none either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from phalanx.errors import InvalidCatalog, InvalidSpec
from phalanx.foreign.ducklake.columns import Columns
from phalanx.foreign.ducklake.connection import CatalogReading
from phalanx.foreign.ducklake_types import (
    TIME_PART_SOURCES,
    column_type,
    keeps_hashes,
    keeps_texts,
)
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.ducklake import DuckLakeBucket, LongPart, Unrepeatable
from phalanx.model.transforms.epoch_parts import (
    EpochDay,
    EpochHour,
    EpochMonth,
    EpochPart,
    EpochYear,
)
from phalanx.model.transforms.transform import IDENTITY, Transform

UNPARTITIONED = 0
_BUCKET = re.compile(r"bucket\((\d+)\)")
_CALENDAR = {part.name: part for part in DATE_CHAIN}
_EPOCH: dict[str, type[EpochPart]] = {
    "year": EpochYear,
    "month": EpochMonth,
    "day": EpochDay,
    "hour": EpochHour,
}
_TEXT_ONLY = "the catalog has its value only as text"
_OWN_ZONE = "it was taken in the time zone of whoever wrote, which the catalog does not record"
_OTHER_TYPE = "the column had another type before, under which the value was another"
_NO_HASH = "DuckLake hashes the text of such values"


@dataclass(frozen=True, slots=True)
class Partitionings:
    """All partitionings by id, which of them is the newest, and how DuckDB casts their values."""

    specs: Mapping[int, PartitionSpec]
    newest: int
    casts: Mapping[int, tuple[str, ...]]


def read_partitionings(
    reading: CatalogReading, table_id: int, columns: Columns, time_parts: str, place: str
) -> Partitionings:
    """The partitionings that files up to the snapshot may be under.

    `InvalidCatalog` for a dangling id, `InvalidSpec` for what the document does not know.
    """
    infos = reading.rows(
        "SELECT partition_id, begin_snapshot, end_snapshot "
        f"FROM {reading.table('ducklake_partition_info')} WHERE table_id = {table_id} "
        f"AND begin_snapshot <= {columns.snapshot} ORDER BY partition_id"
    )
    rows = reading.rows(
        "SELECT partition_id, partition_key_index, column_id, transform "
        f"FROM {reading.table('ducklake_partition_column')} WHERE table_id = {table_id} "
        "ORDER BY partition_id, partition_key_index"
    )
    specs = {UNPARTITIONED: PartitionSpec(UNPARTITIONED, ())}
    casts: dict[int, tuple[str, ...]] = {UNPARTITIONED: ()}
    newest = UNPARTITIONED
    names = _Names()
    for each in infos:
        partition_id, begin, end = int(each[0]), int(each[1]), each[2]
        own = [row[1:] for row in rows if int(row[0]) == partition_id]
        if [int(row[0]) for row in own] != list(range(len(own))):
            raise InvalidCatalog(
                f"{place}: the keys of partitioning {partition_id} in ducklake_partition_column "
                f"have the indexes {[int(row[0]) for row in own]}: expected 0, 1, 2, …"
            )
        where = f"{place}, partitioning {partition_id}"
        fields = [
            _field(int(column), str(transform), columns, time_parts, names, where)
            for _, column, transform in own
        ]
        try:
            specs[partition_id] = PartitionSpec(partition_id, tuple(field for field, _ in fields))
        except InvalidSpec as error:
            raise InvalidSpec(f"{place}: {error}") from None
        casts[partition_id] = tuple(cast for _, cast in fields)
        if begin <= columns.snapshot and (end is None or int(end) > columns.snapshot):
            newest = partition_id
    known = {int(row[0]) for row in infos}
    later = {int(row[0]) for row in rows} - known
    if later:
        _check_dangling(reading, table_id, later, place)
    return Partitionings(specs, newest, casts)


def _check_dangling(reading: CatalogReading, table_id: int, ids: set[int], place: str) -> None:
    rows = reading.rows(
        f"SELECT partition_id FROM {reading.table('ducklake_partition_info')} "
        f"WHERE table_id = {table_id}"
    )
    dangling = sorted(ids - {int(row[0]) for row in rows})
    if dangling:
        raise InvalidCatalog(
            f"{place}: ducklake_partition_column has keys of partitioning {dangling[0]}, which "
            "ducklake_partition_info does not list. The catalog is damaged."
        )


class _Names:
    """Field ids: one for each meaning, in all partitionings of a table."""

    def __init__(self) -> None:
        self._meanings: dict[str, tuple[int, Transform]] = {}

    def of(self, column: str, source: int, transform: Transform, text: str) -> str:
        stem = re.sub(r"[.`\x00-\x1f]", "_", column) or "column"
        short = text.partition("(")[0]
        parameter = text.partition("(")[2].rstrip(")")
        candidates = [stem if short == "identity" else f"{stem}_{short}"]
        if parameter:
            candidates.append(f"{candidates[0]}_{parameter}")
        candidates += [f"{candidates[-1]}_{number}" for number in range(2, 1000)]
        meaning = (source, transform)
        return next(name for name in candidates if self._means(name, meaning))

    def _means(self, name: str, meaning: tuple[int, Transform]) -> bool:
        return self._meanings.setdefault(name, meaning) == meaning


def _field(
    source: int, text: str, columns: Columns, time_parts: str, names: _Names, where: str
) -> tuple[PartitionField, str]:
    """The partition field, and the type to which DuckDB casts its stored text."""
    column = columns.last(source)
    if column is None or column.parent is not None:
        raise InvalidCatalog(
            f"{where} is by column {source}, which ducklake_column does not have for this table. "
            "The catalog is damaged."
        )
    transform, result, cast = _derived(text, source, columns, time_parts, f"{where}: {text}")
    name = names.of(column.name, source, transform, text)
    return PartitionField(name, (source,), transform, result), cast


def _derived(
    text: str, source: int, columns: Columns, time_parts: str, where: str
) -> tuple[Transform, pa.DataType, str]:
    column = columns.last(source)
    assert column is not None
    types = columns.types_of(source)
    if text == "identity":
        known = column_type(column.type)
        if known is None:
            return Unrepeatable(IDENTITY, _TEXT_ONLY), pa.string(), "VARCHAR"
        if not keeps_texts(types):
            return Unrepeatable(IDENTITY, _OTHER_TYPE), pa.string(), "VARCHAR"
        return IDENTITY, known.arrow, known.sql
    if found := _BUCKET.fullmatch(text):
        try:
            bucket = DuckLakeBucket(int(found[1]))
        except InvalidSpec as error:
            raise InvalidSpec(f"{where}: {error}") from None
        if column_type(column.type) is None:
            return Unrepeatable(bucket, _NO_HASH), pa.int32(), "INTEGER"
        if not keeps_hashes(types):
            return Unrepeatable(bucket, _OTHER_TYPE), pa.int32(), "INTEGER"
        return bucket, pa.int32(), "INTEGER"
    part = text.removeprefix("epoch_")
    if part not in _CALENDAR:
        raise InvalidSpec(
            f"{where}: DuckLake has no such transform that Phalanx knows. Expected identity, "
            "bucket(N), year, month, day, hour, or one of these as epoch_…. The catalog is newer, "
            "or damaged."
        )
    allowed = [kind for kind in TIME_PART_SOURCES if part != "hour" or kind != "date"]
    if column.type not in allowed:
        raise InvalidSpec(
            f"{where} of column {column.name!r} ({column.type}): expected one of "
            f"{', '.join(allowed)}, as DuckLake's document says."
        )
    if text != part or time_parts == "epoch":
        return _EPOCH[part](pa.int64()), pa.int64(), "BIGINT"
    transform: Transform = LongPart(_CALENDAR[part])
    if "timestamptz" in types:
        transform = Unrepeatable(transform, _OWN_ZONE)
    return transform, pa.int64(), "BIGINT"
