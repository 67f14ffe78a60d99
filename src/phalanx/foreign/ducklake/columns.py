"""The columns of a DuckLake table, at a snapshot and in earlier versions, and their types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from phalanx.errors import InvalidCatalog
from phalanx.foreign.ducklake.connection import CatalogReader
from phalanx.model.schema.field_ids import FIELD_ID
from phalanx.model.schema.schema import LAST_FIELD_ID, Schema
from phalanx.model.transforms.ducklake import MAX_INT64_DIGITS


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """One version of a column, or of a child of a nested one, valid for a range of snapshots."""

    id: int
    name: str
    type: str
    parent: int | None
    nullable: bool
    initial_default: str | None
    begin: int
    end: int | None

    def is_at(self, snapshot: int) -> bool:
        """Return whether this version is valid at a snapshot."""
        return self.begin <= snapshot and (self.end is None or self.end > snapshot)


@dataclass(frozen=True, slots=True)
class LakeColumns:
    """The columns of a table at a snapshot.

    `unreadable` columns have types that Arrow cannot represent; the schema omits them.
    """

    snapshot: int
    history: tuple[LakeColumn, ...]
    current: Mapping[int, LakeColumn]
    schema: Schema
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def types_of(self, column_id: int) -> set[str]:
        """Return all types that a column had up to the snapshot; empty if it never existed."""
        return {
            each.type
            for each in self.history
            if each.id == column_id and each.begin <= self.snapshot
        }

    def find_last(self, column_id: int) -> LakeColumn | None:
        """Return the last version of a column, also if it was dropped."""
        known = [each for each in self.history if each.id == column_id]
        return max(known, key=lambda each: each.begin, default=None)

    def children_at(self, parent: int | None, snapshot: int) -> list[LakeColumn]:
        """Return the columns, or the children of one, at a snapshot, in order."""
        return [each for each in self.history if each.parent == parent and each.is_at(snapshot)]


def read_columns(reader: CatalogReader, table_id: int, snapshot: int, label: str) -> LakeColumns:
    """Read the columns of a table; raise `InvalidCatalog` if the catalog is inconsistent."""
    rows = reader.fetch_rows(
        "SELECT column_id, column_name, column_type, parent_column, nulls_allowed, "
        "initial_default, begin_snapshot, end_snapshot "
        f"FROM {reader.qualify('ducklake_column')} WHERE table_id = {table_id} "
        "ORDER BY column_order, begin_snapshot"
    )
    history = tuple(_parse_column(*row) for row in rows)
    current = {each.id: each for each in history if each.is_at(snapshot)}
    if not current:
        raise InvalidCatalog(
            f"{label} has no columns at snapshot {snapshot} in ducklake_column: the catalog is "
            "damaged."
        )
    fields, unreadable = arrow_fields_at(history, snapshot, label)
    if not fields:
        raise InvalidCatalog(
            f"{label} has only columns of types that Arrow cannot represent: "
            f"{', '.join(f'{name} ({kind})' for name, kind in unreadable.items())}."
        )
    highest = max(each.id for each in history)
    # Ids inside maps are assigned again: our format needs one between a map and its key.
    schema = Schema.of(pa.schema(fields, metadata={LAST_FIELD_ID: str(highest)}))
    return LakeColumns(snapshot, history, current, schema, unreadable)


def arrow_fields_at(
    history: Iterable[LakeColumn], snapshot: int, label: str
) -> tuple[list[pa.Field], dict[str, str]]:
    """Return the Arrow fields at a snapshot, with ids, and the columns Arrow cannot represent."""
    current = {each.id: each for each in history if each.is_at(snapshot)}
    children: dict[int | None, list[LakeColumn]] = {None: []}
    for each in current.values():
        if each.parent is not None and each.parent not in current:
            raise InvalidCatalog(
                f"{label}: column {each.id} ({each.name!r}) in ducklake_column has the parent "
                f"{each.parent}, which does not exist. The catalog is damaged."
            )
        children.setdefault(each.parent, []).append(each)
    unreadable: dict[str, str] = {}
    fields: list[pa.Field] = []
    for each in children[None]:
        found = _arrow_field(each, children, label)
        if found is None:
            unreadable[each.name] = each.type
        else:
            fields.append(found.with_nullable(each.nullable))
    return fields, unreadable


def _parse_column(
    column_id: object,
    name: object,
    kind: object,
    parent: object,
    nullable: object,
    default: object,
    begin: object,
    end: object,
) -> LakeColumn:
    return LakeColumn(
        int(str(column_id)),
        str(name),
        str(kind).lower(),
        None if parent is None else int(str(parent)),
        str(nullable).lower() not in ("false", "0"),
        None if default is None else str(default),
        int(str(begin)),
        None if end is None else int(str(end)),
    )


def _arrow_field(
    column: LakeColumn,
    children: Mapping[int | None, list[LakeColumn]],
    label: str,
    numbered: bool = True,
) -> pa.Field | None:
    """Return the column as an Arrow field with DuckLake's ids; None if Arrow has no such type."""
    metadata = {FIELD_ID: str(column.id)} if numbered else None
    if column.type not in NESTED_TYPES:
        found = parse_type(column.type)
        return None if found is None else pa.field(column.name, found.arrow, metadata=metadata)
    parts = [
        _arrow_field(each, children, label, numbered and column.type != "map")
        for each in children.get(column.id, [])
    ]
    expected = {"struct": None, "list": 1, "map": 2}[column.type]
    if not parts or expected not in (None, len(parts)):
        raise InvalidCatalog(
            f"{label}: column {column.id} ({column.name!r}) is a {column.type} with "
            f"{len(parts)} parts in ducklake_column. The catalog is damaged."
        )
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    match column.type:
        case "struct":
            kind = pa.struct(known)
        case "list":
            kind = pa.list_(known[0])
        case _:
            kind = pa.map_(known[0].with_nullable(False), known[1])
    return pa.field(column.name, kind, metadata=metadata)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column type in Arrow, and the DuckDB type with the same Arrow type."""

    arrow: pa.DataType
    sql: str


_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
# Arrow has no integers of more than 38 digits; DuckLake writes those as doubles.
_SCALAR_TYPES = {
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
NESTED_TYPES = ("struct", "list", "map")
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


def parse_type(text: str) -> ColumnType | None:
    """Parse a scalar type; None if Arrow or Phalanx cannot represent it."""
    found = _DECIMAL.fullmatch(text)
    if found is None:
        return _SCALAR_TYPES.get(text)
    precision, scale = int(found[1]), int(found[2])
    if not 1 <= precision <= 38 or scale > precision:
        return None
    return ColumnType(pa.decimal128(precision, scale), f"DECIMAL({precision},{scale})")


def has_stable_texts(types: set[str]) -> bool:
    """Return whether a text written under any of these types is the same value under all of them.

    False for floats, because the shortest text of a float is a different number as a double, and
    for timestamps that get a zone, because it is the zone of the session.
    """
    return (
        len(types) == 1
        or types <= {*_SIGNED, *_UNSIGNED}
        or all(map(_DECIMAL.fullmatch, types))
        or types <= {"date", "timestamp", "timestamp_us"}
    )


def has_stable_hashes(types: set[str]) -> bool:
    """Return whether equal values have equal hashes under all of these types."""
    if len(types) == 1 or types <= set(_SIGNED) or types <= set(_UNSIGNED):
        return True
    if types <= {"float32", "float64"} or types <= {"timestamp", "timestamp_us", "timestamptz"}:
        return True
    decimals = [_DECIMAL.fullmatch(text) for text in types]
    longs = [found[2] for found in decimals if found and int(found[1]) <= MAX_INT64_DIGITS]
    return len(longs) == len(types) and len(set(longs)) == 1
