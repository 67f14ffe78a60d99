"""The columns of a DuckLake table: as they are at a snapshot, and all that they ever were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from phalanx.errors import InvalidCatalog
from phalanx.foreign.ducklake.connection import CatalogReading
from phalanx.foreign.ducklake_types import NESTED, column_type
from phalanx.model.schema.field_ids import FIELD_ID
from phalanx.model.schema.schema import LAST_FIELD_ID, Schema


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a part of a nested one, as it is from one snapshot on."""

    id: int
    name: str
    type: str
    parent: int | None
    nullable: bool
    initial_default: str | None
    begin: int
    end: int | None

    def is_at(self, snapshot: int) -> bool:
        """Whether it is what the column is at a snapshot."""
        return self.begin <= snapshot and (self.end is None or self.end > snapshot)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table at a snapshot.

    `unreadable` columns are of types that Arrow has no form of: they are left out of the schema.
    """

    snapshot: int
    history: tuple[Column, ...]
    current: Mapping[int, Column]
    schema: Schema
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def types_of(self, column_id: int) -> set[str]:
        """All types that the column had up to the snapshot; empty if there never was one."""
        return {
            each.type
            for each in self.history
            if each.id == column_id and each.begin <= self.snapshot
        }

    def last(self, column_id: int) -> Column | None:
        """The column as it is, or as it was when it was dropped."""
        known = [each for each in self.history if each.id == column_id]
        return max(known, key=lambda each: each.begin, default=None)

    def parts(self, parent: int | None, snapshot: int) -> list[Column]:
        """The columns, or the parts of one, as they were at a snapshot, in their order."""
        return [each for each in self.history if each.parent == parent and each.is_at(snapshot)]


def read_columns(reading: CatalogReading, table_id: int, snapshot: int, place: str) -> Columns:
    """The columns of a table; `InvalidCatalog` says where the catalog contradicts itself."""
    rows = reading.rows(
        "SELECT column_id, column_name, column_type, parent_column, nulls_allowed, "
        "initial_default, begin_snapshot, end_snapshot "
        f"FROM {reading.table('ducklake_column')} WHERE table_id = {table_id} "
        "ORDER BY column_order, begin_snapshot"
    )
    history = tuple(_column(*row) for row in rows)
    current = {each.id: each for each in history if each.is_at(snapshot)}
    if not current:
        raise InvalidCatalog(
            f"{place} has no columns at snapshot {snapshot} in ducklake_column: the catalog is "
            "damaged."
        )
    fields, unreadable = fields_at(history, snapshot, place)
    if not fields:
        raise InvalidCatalog(
            f"{place} has only columns of types that Arrow has no form of: "
            f"{', '.join(f'{name} ({kind})' for name, kind in unreadable.items())}."
        )
    highest = max(each.id for each in history)
    # Ids inside maps are given anew: the format wants one between that of a map and of its key.
    schema = Schema.of(pa.schema(fields, metadata={LAST_FIELD_ID: str(highest)}))
    return Columns(snapshot, history, current, schema, unreadable)


def fields_at(
    history: Iterable[Column], snapshot: int, place: str
) -> tuple[list[pa.Field], dict[str, str]]:
    """The columns at a snapshot in Arrow, with their ids, and those that have no form there."""
    current = {each.id: each for each in history if each.is_at(snapshot)}
    children: dict[int | None, list[Column]] = {None: []}
    for each in current.values():
        if each.parent is not None and each.parent not in current:
            raise InvalidCatalog(
                f"{place}: column {each.id} ({each.name!r}) in ducklake_column has the parent "
                f"{each.parent}, which is not there. The catalog is damaged."
            )
        children.setdefault(each.parent, []).append(each)
    unreadable: dict[str, str] = {}
    fields: list[pa.Field] = []
    for each in children[None]:
        found = _field(each, children, place)
        if found is None:
            unreadable[each.name] = each.type
        else:
            fields.append(found.with_nullable(each.nullable))
    return fields, unreadable


def _column(
    column_id: object,
    name: object,
    kind: object,
    parent: object,
    nullable: object,
    default: object,
    begin: object,
    end: object,
) -> Column:
    return Column(
        int(str(column_id)),
        str(name),
        str(kind).lower(),
        None if parent is None else int(str(parent)),
        str(nullable).lower() not in ("false", "0"),
        None if default is None else str(default),
        int(str(begin)),
        None if end is None else int(str(end)),
    )


def _field(
    column: Column,
    children: Mapping[int | None, list[Column]],
    place: str,
    numbered: bool = True,
) -> pa.Field | None:
    """The column in Arrow, its parts numbered as DuckLake does; None if it has no form there."""
    metadata = {FIELD_ID: str(column.id)} if numbered else None
    if column.type not in NESTED:
        found = column_type(column.type)
        return None if found is None else pa.field(column.name, found.arrow, metadata=metadata)
    parts = [
        _field(each, children, place, numbered and column.type != "map")
        for each in children.get(column.id, [])
    ]
    expected = {"struct": None, "list": 1, "map": 2}[column.type]
    if not parts or expected not in (None, len(parts)):
        raise InvalidCatalog(
            f"{place}: column {column.id} ({column.name!r}) is a {column.type} with "
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
