"""Imports: what a source becomes here, and what is left to bring of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from phalanx.errors import InvalidSchema, InvalidSpec, NotPartitioned, PhalanxError, SchemaMismatch
from phalanx.model.schema.rows import check_fits, plain_schema, without_ids
from phalanx.model.schema.schema import Schema
from phalanx.model.schema.storable_types import storable_field
from phalanx.model.specs.evolution import next_spec
from phalanx.model.specs.partition_by import PartitionBy, PartitionTerm, partition_terms
from phalanx.planning.import_mapping import mapped_specs
from phalanx.planning.import_plan import Amount, ColumnMapping, ImportPlan, ImportUnit
from phalanx.planning.pruning.scan_plan import counted
from phalanx.storage.hive.root import HiveRoot
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import canonical
from phalanx.storage.leaf.leaf import check_storable
from phalanx.storage.state.properties import EXPRESSIONS, NAMESPACE
from phalanx.table.import_sources import ImportSource, phalanx_source
from phalanx.table.import_upgrades import plan_upgrade
from phalanx.table.imports.chunks import (
    Chunk,
    chunks_of,
    digest_of,
    marker_prefix,
    markers_of,
)
from phalanx.table.imports.sources import opened_source
from phalanx.table.opening import create, open
from phalanx.table.table import Table
from phalanx.table.wanted_specs import wanted_spec

_PARQUET_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class UnitPart:
    """A unit as a part of a chunk."""

    unit: ImportUnit

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.unit.bytes

    @property
    def digest(self) -> str:
        """What tells it from others, and from what it is when rows of it are deleted."""
        return digest_of(self.unit.id, str(self.unit.rows))


@dataclass(frozen=True, slots=True)
class Import:
    """An import that is planned: from what, and into which table, if it is there already."""

    source: ImportSource
    root: Location
    table: Table | None
    stored: pa.Schema
    prefix: str
    chunk_bytes: int
    plan: ImportPlan

    @classmethod
    def prepared(
        cls,
        source: ImportSource,
        root: Location,
        partition_by: PartitionBy | None,
        id: str | None,
        transaction: str | None,
        chunk_bytes: int,
    ) -> Import:
        """What would be imported; what is refused for good is in the plan, and raised later."""
        table = _table_at(root)
        columns, stored = stored_columns(source.schema, table)
        prefix = marker_prefix("import", f"{canonical(source.place)}\n{id or ''}")
        done = {} if table is None else markers_of(table, prefix)
        if table is not None and id is not None and table.mode != "strong":
            raise PhalanxError(
                f"Cannot import {source.place} once only, as {id!r}: {table.uri} is in weak mode. "
                "Leave the id out, or change the table with set_mode('strong')."
            )
        _check_unchanged(source, root, done, prefix)
        left = _left(source.units, done, prefix)
        mode = transaction or "strong" if table is None else table.mode
        chunks = _chunks(left, prefix, chunk_bytes, is_once=mode == "strong")
        numbered = Schema.of(stored)
        specs, terms = mapped_specs(
            source.specs,
            source.newest,
            source.schema,
            numbered,
            drafted=source.system == EXPRESSIONS,
        )
        chosen_by = "source"
        if table is not None:
            _check_same_spec(table, partition_by)
            chosen_by, label = "table", table.spec.label(Schema.of(table.schema))
        else:
            if partition_by is not None:
                chosen_by, terms = "user", partition_terms(partition_by)
            elif not source.specs:
                raise InvalidSpec(
                    f"Cannot import {source.place} into {root}: it is not partitioned, and there "
                    "is no table yet. Say how with partition_by, such as 'year(ts), bucket(16, "
                    "id)', which may be empty for a table of one partition."
                )
            label = _label(terms, numbered)
        plan = ImportPlan(
            source.system,
            source.place,
            source.state,
            root.uri,
            table is None,
            terms,
            label,
            chosen_by,
            specs,
            columns,
            Amount.of(source.units),
            Amount.of([part.unit for part in left]),
            len(chunks),
            notes=source.notes,
        )
        return cls(source, root, table, stored, prefix, chunk_bytes, plan)

    def target(self, transaction: str | None) -> Table:
        """The table to import into, made if it is missing."""
        if self.table is not None:
            if transaction not in (None, self.table.mode):
                raise PhalanxError(
                    f"Cannot import into {self.table.uri} with transaction={transaction!r}: it is "
                    f"in {self.table.mode} mode. Leave it out, or change the table with set_mode."
                )
            return self.table
        return create(
            self.root.uri,
            self.stored,
            self.plan.partition_by,
            transaction=transaction or "strong",
            storage_options=self.root.storage_options,
        )

    def check(self) -> None:
        """Refuse what the plan says cannot be done."""
        if self.plan.refused:
            raise SchemaMismatch(
                f"Cannot import {self.source.place}: {'; '.join(self.plan.refused)}. Say how to "
                "partition with partition_by, and leave out of the source what cannot be stored."
            )

    def left(self, table: Table | None) -> list[UnitPart]:
        """The units that the table has not."""
        done = {} if table is None else markers_of(table, self.prefix)
        return _left(self.source.units, done, self.prefix)

    def chunks(self, table: Table, parts: Sequence[UnitPart]) -> list[Chunk[UnitPart]]:
        """The units in chunks that are each committed once."""
        return _chunks(parts, self.prefix, self.chunk_bytes, is_once=table.mode == "strong")

    def check_counts(self, table: Table) -> None:
        """Refuse to call an import done whose snapshots brought other rows than the source has."""
        marked = set(markers_of(table, self.prefix).values())
        snapshots = table.snapshots()
        added = dict(
            zip(snapshots["id"].to_pylist(), snapshots["rows_added"].to_pylist(), strict=True)
        )
        if not marked or not marked.issubset(added):
            # Weak mode has no snapshots, and vacuum may have removed some.
            return
        came, expected = sum(added[each] for each in marked), self.plan.total.rows
        if came != expected:
            raise PhalanxError(
                f"The import of {self.source.place} into {table.uri} brought "
                f"{counted(came, 'row')}, but the source has {expected:,}. Compare the two, roll "
                f"the table back to before snapshot {min(marked)}, and import with another id."
            )


def prepare_import(
    source: Any,
    root: Location,
    partition_by: PartitionBy | None = None,
    *,
    format: str | None = None,
    table: str | None = None,
    options: Mapping[str, object] | None = None,
    id: str | None = None,
    transaction: str | None = None,
    chunk_bytes: int,
) -> Import:
    """What would be imported of a table; nothing is written."""
    found = _upgraded_before(source, format, root)
    if found is None:
        found = opened_source(source, format, table, options or {}, root.storage_options)
    if canonical(found.place) == canonical(root.uri):
        if found.draft is None or partition_by is not None:
            raise PhalanxError(
                f"Cannot import {found.place} into itself. Name another place; only a table of an "
                "earlier draft is upgraded where it is, as it is partitioned."
            )
        stored = without_ids(found.draft.schema)
        plan = plan_upgrade(found, found.draft)
        return Import(found, root, found.draft, stored, "", chunk_bytes, plan)
    return Import.prepared(found, root, partition_by, id, transaction, chunk_bytes)


def _upgraded_before(source: Any, format: str | None, root: Location) -> ImportSource | None:
    """The draft that was here and was upgraded; a second upgrade does what is left to do."""
    if format not in (EXPRESSIONS, HiveRoot.layout) or not isinstance(source, str | os.PathLike):
        return None
    place = Location.of(source).uri
    table = _table_at(root) if canonical(place) == canonical(root.uri) else None
    if table is None or table.layout != NAMESPACE:
        return None
    return replace(phalanx_source(table), draft=table)


def stored_columns(
    schema: Schema, table: Table | None
) -> tuple[tuple[ColumnMapping, ...], pa.Schema]:
    """What each column of a source is stored as; and the columns of the rows on their way."""
    mappings: list[ColumnMapping] = []
    fields: list[pa.Field] = []
    for given in plain_schema(schema):
        found = storable_field(_without_parquet_ids(given))
        try:
            check_storable(Schema.of(pa.schema([found])))
        except InvalidSchema as error:
            why = str(error).rstrip(".")
            mappings.append(ColumnMapping(given.name, str(given.type), None, why))
            continue
        fields.append(found)
        kind = found.type
        if table is not None and found.name in table.schema.names:
            kind = table.schema.field(found.name).type
        mappings.append(ColumnMapping(given.name, str(given.type), str(kind)))
    if not fields:
        raise SchemaMismatch(f"Cannot import {schema.names}: no column can be stored.")
    plain = without_ids(pa.schema(fields))
    if table is not None and len(fields) == len(mappings):
        check_fits(plain, table.schema)
    return tuple(mappings), plain


def _without_parquet_ids(field: pa.Field) -> pa.Field:
    kept = {key: text for key, text in (field.metadata or {}).items() if key != _PARQUET_ID}
    return field.with_metadata(kept or None)


def _label(terms: Sequence[PartitionTerm], schema: Schema) -> str:
    return next_spec(terms, schema, {}).label(schema)


def _table_at(root: Location) -> Table | None:
    try:
        return open(root.uri, storage_options=root.storage_options)
    except NotPartitioned:
        return None


def _check_same_spec(table: Table, partition_by: PartitionBy | None) -> None:
    if partition_by is None:
        return
    known = Schema.of(table.schema)
    wanted = wanted_spec(table, partition_by)
    if wanted.fields != table.spec.fields:
        raise InvalidSpec(
            f"Cannot import into {table.uri} by {wanted.label(known) or 'nothing'}: it is "
            f"partitioned by {table.spec.label(known) or 'nothing'}. Leave partition_by out, or "
            "evolve the table first."
        )


def _check_unchanged(
    source: ImportSource, root: Location, done: dict[str, int], prefix: str
) -> None:
    """Refuse a source that has lost units which were imported: their rows may be in others now."""
    known = {prefix + UnitPart(unit).digest for unit in source.units}
    gone = [marker for marker in done if marker not in known]
    if gone:
        raise PhalanxError(
            f"Cannot go on with the import of {source.place} into {root}: "
            f"{counted(len(gone), 'file')} of {len(done):,} that were imported are no longer in "
            "the source as they were, because rows were deleted there, or files written anew. "
            "Import it into another table; or give another id, which adds all rows again."
        )


def _left(units: Sequence[ImportUnit], done: dict[str, int], prefix: str) -> list[UnitPart]:
    parts = map(UnitPart, units)
    return [part for part in parts if prefix + part.digest not in done]


def _chunks(
    parts: Sequence[UnitPart], prefix: str, chunk_bytes: int, *, is_once: bool
) -> list[Chunk[UnitPart]]:
    if is_once:
        return chunks_of(parts, prefix, chunk_bytes)
    return [Chunk(tuple(parts), ())] if parts else []
