"""Planning of imports: how a source is mapped to a table, and which units remain."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from phalanx.arguments import Mode
from phalanx.errors import InvalidSchema, InvalidSpec, NotPartitioned, PhalanxError, SchemaMismatch
from phalanx.model.schema.rows import check_schema_fits, remove_ids, to_row_schema
from phalanx.model.schema.schema import Schema
from phalanx.model.schema.storable_types import to_storable_field
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.hive_properties import HiveProperties
from phalanx.model.specs.partition_by import PartitionBy, PartitionTerm, parse_partition_by
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.formatting import format_count
from phalanx.planning.import_mapping import map_specs
from phalanx.planning.import_plan import (
    EXACT,
    REFUSED,
    ColumnMapping,
    FieldMapping,
    ImportPlan,
    ImportSize,
    ImportUnit,
    SpecMapping,
)
from phalanx.storage.hive.root import HiveRoot
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import canonicalize_path
from phalanx.storage.leaf.leaf import check_storable
from phalanx.storage.state.properties import EXPRESSIONS_LAYOUT, NAMESPACE_LAYOUT
from phalanx.table.imports.chunks import (
    Chunk,
    digest_of,
    find_markers,
    make_marker_prefix,
    split_chunks,
)
from phalanx.table.imports.sources import ImportSource, make_phalanx_source, open_source
from phalanx.table.maintenance.upgrade import UpgradePlan
from phalanx.table.opening import create, open
from phalanx.table.table import Table

_LOGGER = logging.getLogger("phalanx.table")
_PARQUET_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class UnitPart:
    """A unit as a part of a chunk."""

    unit: ImportUnit

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self.unit.bytes

    @property
    def digest(self) -> str:
        """A digest that changes if rows of the unit are deleted."""
        return digest_of(self.unit.id, str(self.unit.rows))


@dataclass(frozen=True, slots=True)
class PreparedImport:
    """A planned import: its source, and the table to import into, if that exists."""

    source: ImportSource
    root: Location
    table: Table | None
    stored: pa.Schema
    prefix: str
    chunk_bytes: int
    plan: ImportPlan

    @classmethod
    def prepare(
        cls,
        source: ImportSource,
        root: Location,
        partition_by: PartitionBy | None,
        id: str | None,
        transaction: str | None,
        chunk_bytes: int,
    ) -> PreparedImport:
        """Plan an import; the plan records what is refused, and `check_refused` raises it."""
        table = _open_existing(root)
        columns, stored = map_columns(source.schema, table)
        prefix = make_marker_prefix("import", f"{canonicalize_path(source.location)}\n{id or ''}")
        done = {} if table is None else find_markers(table, prefix)
        if table is not None and id is not None and table.mode != "strong":
            raise PhalanxError(
                f"Cannot import {source.location} with the id {id!r}: {table.uri} is in weak mode, "
                "which has no markers. Leave the id out, or change the table with "
                "set_mode('strong')."
            )
        _check_unchanged(source, root, done, prefix)
        left = _find_remaining(source.units, done, prefix)
        mode = transaction or "strong" if table is None else table.mode
        chunks = _split_remaining(left, prefix, chunk_bytes, is_once=mode == "strong")
        numbered = Schema.of(stored)
        specs, terms = map_specs(
            source.specs,
            source.newest,
            source.schema,
            numbered,
            is_draft=source.system == EXPRESSIONS_LAYOUT,
        )
        chosen_by = "source"
        if table is not None:
            _check_same_spec(table, partition_by)
            chosen_by, label = "table", table.spec.label(Schema.of(table.schema))
        else:
            if partition_by is not None:
                chosen_by, terms = "user", parse_partition_by(partition_by)
            elif not source.specs:
                raise InvalidSpec(
                    f"Cannot import {source.location} into {root}: the source is not partitioned, "
                    "and the table does not exist. Pass partition_by, such as 'year(ts), "
                    "bucket(16, id)'; it may be empty for a table of one partition."
                )
            label = _label_of(terms, numbered)
        plan = ImportPlan(
            source.system,
            source.location,
            source.state,
            root.uri,
            table is None,
            terms,
            label,
            chosen_by,
            specs,
            columns,
            ImportSize.of(source.units),
            ImportSize.of([part.unit for part in left]),
            len(chunks),
            notes=source.notes,
        )
        _LOGGER.debug(
            "Planned an import of %s into %s: %s in %s left",
            *(source.location, root, format_count(plan.remaining.files, "file")),
            format_count(len(chunks), "chunk"),
        )
        return cls(source, root, table, stored, prefix, chunk_bytes, plan)

    def open_target(self, transaction: Mode | None) -> Table:
        """Open the table to import into; creates it if it is missing."""
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

    def check_refused(self) -> None:
        """Refuse an import that the plan says cannot be done."""
        if self.plan.refusals:
            raise SchemaMismatch(
                f"Cannot import {self.source.location}: {'; '.join(self.plan.refusals)}. Pass "
                "partition_by, and remove from the source what cannot be stored."
            )

    def find_remaining(self, table: Table | None) -> list[UnitPart]:
        """Return the units that the table does not have."""
        done = {} if table is None else find_markers(table, self.prefix)
        return _find_remaining(self.source.units, done, self.prefix)

    def split_remaining(self, table: Table, parts: Sequence[UnitPart]) -> list[Chunk[UnitPart]]:
        """Split the units into chunks that are each committed once."""
        return _split_remaining(
            parts, self.prefix, self.chunk_bytes, is_once=table.mode == "strong"
        )

    def check_counts(self, table: Table) -> None:
        """Refuse an import whose snapshots added another number of rows than the source has."""
        marked = set(find_markers(table, self.prefix).values())
        snapshots = table.snapshots()
        added = dict(
            zip(snapshots["id"].to_pylist(), snapshots["rows_added"].to_pylist(), strict=True)
        )
        if not marked or not marked.issubset(added):
            # Weak mode has no snapshots, and vacuum may have removed some.
            return
        imported, expected = sum(added[each] for each in marked), self.plan.total.rows
        if imported != expected:
            raise PhalanxError(
                f"The import of {self.source.location} into {table.uri} added "
                f"{format_count(imported, 'row')}, but the source has {expected:,}. Compare the "
                f"two, roll the table back to before snapshot {min(marked)}, and import with "
                "another id."
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
) -> PreparedImport:
    """Plan the import of a table; nothing is written."""
    found = _find_upgraded(source, format, root)
    if found is None:
        found = open_source(source, format, table, options or {}, root.storage_options)
    if canonicalize_path(found.location) == canonicalize_path(root.uri):
        if found.draft is None or partition_by is not None:
            raise PhalanxError(
                f"Cannot import {found.location} into itself. Choose another location; only a "
                "table of an earlier draft is upgraded in place, with its own partitioning."
            )
        stored = remove_ids(found.draft.schema)
        plan = _plan_upgrade(found, found.draft)
        return PreparedImport(found, root, found.draft, stored, "", chunk_bytes, plan)
    return PreparedImport.prepare(found, root, partition_by, id, transaction, chunk_bytes)


def _find_upgraded(source: Any, format: str | None, root: Location) -> ImportSource | None:
    """Return the source of a draft that was already upgraded in place, to finish its upgrade."""
    if format not in (EXPRESSIONS_LAYOUT, HiveRoot.layout) or not isinstance(
        source, str | os.PathLike
    ):
        return None
    place = Location.of(source).uri
    table = (
        _open_existing(root) if canonicalize_path(place) == canonicalize_path(root.uri) else None
    )
    if table is None or table.layout != NAMESPACE_LAYOUT:
        return None
    return replace(make_phalanx_source(table), draft=table)


def map_columns(schema: Schema, table: Table | None) -> tuple[tuple[ColumnMapping, ...], pa.Schema]:
    """Map the columns of a source to stored types, and return the schema of the stored rows."""
    mappings: list[ColumnMapping] = []
    fields: list[pa.Field] = []
    for given in to_row_schema(schema):
        found = to_storable_field(_without_parquet_ids(given))
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
    plain = remove_ids(pa.schema(fields))
    if table is not None and len(fields) == len(mappings):
        check_schema_fits(plain, table.schema)
    return tuple(mappings), plain


def _without_parquet_ids(field: pa.Field) -> pa.Field:
    kept = {key: text for key, text in (field.metadata or {}).items() if key != _PARQUET_ID}
    return field.with_metadata(kept or None)


def _label_of(terms: Sequence[PartitionTerm], schema: Schema) -> str:
    return build_next_spec(terms, schema, {}).label(schema)


def _open_existing(root: Location) -> Table | None:
    try:
        return open(root.uri, storage_options=root.storage_options)
    except NotPartitioned:
        return None


def _check_same_spec(table: Table, partition_by: PartitionBy | None) -> None:
    if partition_by is None:
        return
    known = Schema.of(table.schema)
    requested = resolve_spec(table, partition_by)
    if requested.fields != table.spec.fields:
        raise InvalidSpec(
            f"Cannot import into {table.uri} by {requested.label(known) or 'nothing'}: it is "
            f"partitioned by {table.spec.label(known) or 'nothing'}. Leave partition_by out, or "
            "evolve the table first."
        )


def _check_unchanged(
    source: ImportSource, root: Location, done: dict[str, int], prefix: str
) -> None:
    """Refuse a source that lost imported units: their rows may now be in other units."""
    known = {prefix + UnitPart(unit).digest for unit in source.units}
    lost = [marker for marker in done if marker not in known]
    if lost:
        raise PhalanxError(
            f"Cannot continue the import of {source.location} into {root}: "
            f"{format_count(len(lost), 'file')} of {len(done):,} that were imported are no longer "
            "in the source, or changed, because rows were deleted there or files were rewritten. "
            "Import it into another table; or pass another id, which adds all rows again."
        )


def _find_remaining(
    units: Sequence[ImportUnit], done: dict[str, int], prefix: str
) -> list[UnitPart]:
    parts = map(UnitPart, units)
    return [part for part in parts if prefix + part.digest not in done]


def _split_remaining(
    parts: Sequence[UnitPart], prefix: str, chunk_bytes: int, *, is_once: bool
) -> list[Chunk[UnitPart]]:
    if is_once:
        return split_chunks(parts, prefix, chunk_bytes)
    return [Chunk(tuple(parts), ())] if parts else []


def _plan_upgrade(source: ImportSource, table: Table) -> ImportPlan:
    """Plan the in-place upgrade of an earlier draft, as an import that copies nothing."""
    found = table.upgrade(dry_run=True)
    schema, spec = Schema.of(table.schema), table.spec
    if isinstance(found, UpgradePlan):
        fields = [FieldMapping(old, new, EXACT) for old, new in found.fields]
        label = found.spec.label(schema)
        gets = ", ".join(found.added_columns)
        notes = [f"each partition gets the columns of its path: {gets}"] if gets else []
    else:
        labels = [field.label(schema) for field in spec.fields]
        fields = [FieldMapping(each, each, EXACT) for each in labels]
        fields += [FieldMapping("the upgrade", None, REFUSED, why) for why in found.refused]
        label = spec.label(schema)
        notes = list(found.changes or ["it already has the newest format"])
    nothing = ImportSize(0, 0, 0)
    return ImportPlan(
        source.system,
        source.location,
        source.state,
        table.uri,
        False,
        (),
        label,
        "source",
        (SpecMapping(spec.id, spec.label(schema), True, tuple(fields)),),
        tuple(ColumnMapping(each.name, str(each.type), str(each.type)) for each in table.schema),
        ImportSize.of(source.units),
        nothing,
        0,
        is_upgrade=True,
        notes=("no data is rewritten", *notes),
    )


def resolve_spec(table: Table, partition_by: PartitionBy) -> PartitionSpec:
    """Resolve `partition_by` against an existing table; buckets of drafts differ from ours."""
    if table.layout == "hive":
        return HiveProperties.of(table.schema, partition_by).spec
    known = Schema.of(table.schema)
    return build_next_spec(
        partition_by, known, table.specs, is_draft=table.layout == EXPRESSIONS_LAYOUT
    )
