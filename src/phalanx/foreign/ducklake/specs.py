"""The partitionings of a DuckLake table, with DuckLake's own semantics.

The id of a spec is its `partition_id`. Files without one belong to spec 0, which has no fields. A
partitioning that was reset has no fields either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from phalanx.errors import InvalidCatalog, InvalidSpec
from phalanx.foreign.ducklake.columns import (
    TIME_PART_SOURCES,
    LakeColumns,
    has_stable_hashes,
    has_stable_texts,
    parse_type,
)
from phalanx.foreign.ducklake.connection import CatalogReader
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.ducklake import DuckLakeBucket, Int64CalendarPart, Unrepeatable
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
_TEXT_REASON = "the catalog stores its value only as text"
_ZONE_REASON = "it depends on the time zone of the writer, which the catalog does not record"
_TYPE_REASON = "the column had another type before, for which the value differs"
_HASH_REASON = "DuckLake hashes the text of such values"


@dataclass(frozen=True, slots=True)
class Partitionings:
    """All partitionings by id, the id of the newest, and the DuckDB types of their values."""

    specs: Mapping[int, PartitionSpec]
    newest: int
    casts: Mapping[int, tuple[str, ...]]


def read_partitionings(
    reader: CatalogReader, table_id: int, columns: LakeColumns, time_parts: str, label: str
) -> Partitionings:
    """Return the partitionings that files up to the snapshot may have.

    Raises `InvalidCatalog` for a dangling id and `InvalidSpec` for an unknown transform.
    """
    infos = reader.fetch_rows(
        "SELECT partition_id, begin_snapshot, end_snapshot "
        f"FROM {reader.qualify('ducklake_partition_info')} WHERE table_id = {table_id} "
        f"AND begin_snapshot <= {columns.snapshot} ORDER BY partition_id"
    )
    rows = reader.fetch_rows(
        "SELECT partition_id, partition_key_index, column_id, transform "
        f"FROM {reader.qualify('ducklake_partition_column')} WHERE table_id = {table_id} "
        "ORDER BY partition_id, partition_key_index"
    )
    specs = {UNPARTITIONED: PartitionSpec(UNPARTITIONED, ())}
    casts: dict[int, tuple[str, ...]] = {UNPARTITIONED: ()}
    newest = UNPARTITIONED
    names = _FieldNames()
    for each in infos:
        partition_id, begin, end = int(each[0]), int(each[1]), each[2]
        own = [row[1:] for row in rows if int(row[0]) == partition_id]
        if [int(row[0]) for row in own] != list(range(len(own))):
            raise InvalidCatalog(
                f"{label}: the keys of partitioning {partition_id} in ducklake_partition_column "
                f"have the indexes {[int(row[0]) for row in own]}: expected 0, 1, 2, …"
            )
        where = f"{label}, partitioning {partition_id}"
        fields = [
            _read_field(int(column), str(transform), columns, time_parts, names, where)
            for _, column, transform in own
        ]
        try:
            specs[partition_id] = PartitionSpec(partition_id, tuple(field for field, _ in fields))
        except InvalidSpec as error:
            raise InvalidSpec(f"{label}: {error}") from None
        casts[partition_id] = tuple(cast for _, cast in fields)
        if begin <= columns.snapshot and (end is None or int(end) > columns.snapshot):
            newest = partition_id
    known = {int(row[0]) for row in infos}
    later = {int(row[0]) for row in rows} - known
    if later:
        _check_dangling(reader, table_id, later, label)
    return Partitionings(specs, newest, casts)


def _check_dangling(reader: CatalogReader, table_id: int, ids: set[int], label: str) -> None:
    rows = reader.fetch_rows(
        f"SELECT partition_id FROM {reader.qualify('ducklake_partition_info')} "
        f"WHERE table_id = {table_id}"
    )
    dangling = sorted(ids - {int(row[0]) for row in rows})
    if dangling:
        raise InvalidCatalog(
            f"{label}: ducklake_partition_column has keys of partitioning {dangling[0]}, which "
            "ducklake_partition_info does not list. The catalog is damaged."
        )


class _FieldNames:
    """Partition field ids: one for each source and transform, in all partitionings of a table."""

    def __init__(self) -> None:
        self._meanings: dict[str, tuple[int, Transform]] = {}

    def name_for(self, column: str, source: int, transform: Transform, text: str) -> str:
        """Return the id of a field: the first candidate that no other field uses."""
        stem = re.sub(r"[.`\x00-\x1f]", "_", column) or "column"
        short = text.partition("(")[0]
        parameter = text.partition("(")[2].rstrip(")")
        candidates = [stem if short == "identity" else f"{stem}_{short}"]
        if parameter:
            candidates.append(f"{candidates[0]}_{parameter}")
        candidates += [f"{candidates[-1]}_{number}" for number in range(2, 1000)]
        meaning = (source, transform)
        return next(name for name in candidates if self._is_free_for(name, meaning))

    def _is_free_for(self, name: str, meaning: tuple[int, Transform]) -> bool:
        return self._meanings.setdefault(name, meaning) == meaning


def _read_field(
    source: int, text: str, columns: LakeColumns, time_parts: str, names: _FieldNames, where: str
) -> tuple[PartitionField, str]:
    """Return the partition field, and the DuckDB type to cast its stored text to."""
    column = columns.find_last(source)
    if column is None or column.parent is not None:
        raise InvalidCatalog(
            f"{where} is by column {source}, which ducklake_column does not have for this table. "
            "The catalog is damaged."
        )
    transform, result, cast = _derive(text, source, columns, time_parts, f"{where}: {text}")
    name = names.name_for(column.name, source, transform, text)
    return PartitionField(name, (source,), transform, result), cast


def _derive(
    text: str, source: int, columns: LakeColumns, time_parts: str, where: str
) -> tuple[Transform, pa.DataType, str]:
    column = columns.find_last(source)
    assert column is not None
    types = columns.types_of(source)
    if text == "identity":
        known = parse_type(column.type)
        if known is None:
            return Unrepeatable(IDENTITY, _TEXT_REASON), pa.string(), "VARCHAR"
        if not has_stable_texts(types):
            return Unrepeatable(IDENTITY, _TYPE_REASON), pa.string(), "VARCHAR"
        return IDENTITY, known.arrow, known.sql
    if found := _BUCKET.fullmatch(text):
        try:
            bucket = DuckLakeBucket(int(found[1]))
        except InvalidSpec as error:
            raise InvalidSpec(f"{where}: {error}") from None
        if parse_type(column.type) is None:
            return Unrepeatable(bucket, _HASH_REASON), pa.int32(), "INTEGER"
        if not has_stable_hashes(types):
            return Unrepeatable(bucket, _TYPE_REASON), pa.int32(), "INTEGER"
        return bucket, pa.int32(), "INTEGER"
    part = text.removeprefix("epoch_")
    if part not in _CALENDAR:
        raise InvalidSpec(
            f"{where}: unknown DuckLake transform. Expected identity, bucket(N), year, month, day, "
            "hour, or one of the time parts as epoch_…. The catalog is newer, or damaged."
        )
    allowed = [kind for kind in TIME_PART_SOURCES if part != "hour" or kind != "date"]
    if column.type not in allowed:
        raise InvalidSpec(
            f"{where} of column {column.name!r} ({column.type}): expected one of "
            f"{', '.join(allowed)}, as DuckLake specifies."
        )
    if text != part or time_parts == "epoch":
        return _EPOCH[part](pa.int64()), pa.int64(), "BIGINT"
    transform: Transform = Int64CalendarPart(_CALENDAR[part])
    if "timestamptz" in types:
        transform = Unrepeatable(transform, _ZONE_REASON)
    return transform, pa.int64(), "BIGINT"
