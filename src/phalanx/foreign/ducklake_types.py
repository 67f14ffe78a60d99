"""DuckLake's column types in Arrow, and how DuckDB casts their texts to them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from phalanx.model.transforms.ducklake import MOST_DIGITS_OF_A_LONG


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type: in Arrow, and as DuckDB names the one that its Arrow form has."""

    arrow: pa.DataType
    sql: str


_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
# 128-bit integers beyond 38 digits have no type in Arrow; files hold them as doubles anyway.
_PLAIN = {
    "boolean": ColumnType(pa.bool_(), "BOOLEAN"),
    "int8": ColumnType(pa.int8(), "TINYINT"),
    "int16": ColumnType(pa.int16(), "SMALLINT"),
    "int32": ColumnType(pa.int32(), "INTEGER"),
    "int64": ColumnType(pa.int64(), "BIGINT"),
    "int128": ColumnType(pa.decimal128(38, 0), "DECIMAL(38,0)"),
    "uint8": ColumnType(pa.uint8(), "UTINYINT"),
    "uint16": ColumnType(pa.uint16(), "USMALLINT"),
    "uint32": ColumnType(pa.uint32(), "UINTEGER"),
    "uint64": ColumnType(pa.uint64(), "UBIGINT"),
    "uint128": ColumnType(pa.decimal128(38, 0), "DECIMAL(38,0)"),
    "float32": ColumnType(pa.float32(), "FLOAT"),
    "float64": ColumnType(pa.float64(), "DOUBLE"),
    "time": ColumnType(pa.time64("us"), "TIME"),
    "date": ColumnType(pa.date32(), "DATE"),
    "timestamp": ColumnType(pa.timestamp("us"), "TIMESTAMP"),
    "timestamp_us": ColumnType(pa.timestamp("us"), "TIMESTAMP"),
    "timestamp_ms": ColumnType(pa.timestamp("ms"), "TIMESTAMP_MS"),
    "timestamp_ns": ColumnType(pa.timestamp("ns"), "TIMESTAMP_NS"),
    "timestamp_s": ColumnType(pa.timestamp("s"), "TIMESTAMP_S"),
    "timestamptz": ColumnType(pa.timestamp("us", "UTC"), "TIMESTAMPTZ"),
    "varchar": ColumnType(pa.string(), "VARCHAR"),
    "json": ColumnType(pa.string(), "VARCHAR"),
    "uuid": ColumnType(pa.string(), "VARCHAR"),
    "blob": ColumnType(pa.binary(), "BLOB"),
}
NESTED = ("struct", "list", "map")
TIME_PART_SOURCES = (
    "date",
    "timestamp",
    "timestamp_us",
    "timestamptz",
    "timestamp_s",
    "timestamp_ms",
    "timestamp_ns",
)
_SIGNED = ("int8", "int16", "int32", "int64")
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")


def column_type(text: str) -> ColumnType | None:
    """A type that is not nested; None for one that Arrow, or Phalanx, has no form of."""
    found = _DECIMAL.fullmatch(text)
    if found is None:
        return _PLAIN.get(text)
    precision, scale = int(found[1]), int(found[2])
    if not 1 <= precision <= 38 or scale > precision:
        return None
    return ColumnType(pa.decimal128(precision, scale), f"DECIMAL({precision},{scale})")


def keeps_texts(types: set[str]) -> bool:
    """Whether a text written under any of these types means the same value under each of them.

    A float's shortest text is another number as a double, and moments get a zone in the session's.
    """
    return (
        len(types) == 1
        or types <= {*_SIGNED, *_UNSIGNED}
        or all(map(_DECIMAL.fullmatch, types))
        or types <= {"date", "timestamp", "timestamp_us"}
    )


def keeps_hashes(types: set[str]) -> bool:
    """Whether equal values have equal hashes under each of these types."""
    if len(types) == 1 or types <= set(_SIGNED) or types <= set(_UNSIGNED):
        return True
    if types <= {"float32", "float64"} or types <= {"timestamp", "timestamp_us", "timestamptz"}:
        return True
    decimals = [_DECIMAL.fullmatch(text) for text in types]
    longs = [found[2] for found in decimals if found and int(found[1]) <= MOST_DIGITS_OF_A_LONG]
    return len(longs) == len(types) and len(set(longs)) == 1
