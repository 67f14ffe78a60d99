"""An Iceberg table at one snapshot: its schema, its specs and the entries of its manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from phalanx.errors import InvalidCatalog, PhalanxError, StorageFailure
from phalanx.foreign.iceberg.manifests import (
    SEQUENCE,
    ManifestEntries,
    ManifestSelection,
    entries_schema,
    read_entries,
    select_manifests,
)
from phalanx.foreign.iceberg.rows import ReadContext
from phalanx.foreign.iceberg.schema import schema_of, specs_of
from phalanx.foreign.iceberg.trust import GuardedIO, check_settings, folder_of
from phalanx.model.predicates.predicate import Predicate
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.rewrites.entries import FILE_PATH

_NEWEST_VERSION = 3


@dataclass(frozen=True, slots=True)
class LoadedEntries:
    """The entries read from a snapshot, and the manifests selected."""

    entries: ManifestEntries
    selection: ManifestSelection


class IcebergState:
    """A snapshot of an Iceberg table, isolated from later commits."""

    def __init__(
        self, table: Table, snapshot: int | str | None = None, *, trust_locations: bool = False
    ) -> None:
        self.iceberg = table
        self.metadata = table.metadata
        self.name = ".".join(table.name())
        check_settings(self.metadata.properties, self.name, trust_locations=trust_locations)
        self.trusts_locations = trust_locations
        self.folder = folder_of(table)
        self.io = table.io if trust_locations else GuardedIO(table.io, self.folder, self.name)
        if self.metadata.format_version > _NEWEST_VERSION:
            raise InvalidCatalog(
                f"Cannot open the Iceberg table {self.name}: it has format version "
                f"{self.metadata.format_version}, but Phalanx supports versions up to "
                f"{_NEWEST_VERSION}."
            )
        self.snapshot = _find_snapshot(self.metadata, self.name, snapshot)
        self.iceberg_schema = _find_schema(
            self.metadata, None if snapshot is None else self.snapshot
        )
        self.schema = schema_of(self.iceberg_schema, self.metadata.last_column_id)
        self.specs: Mapping[int, PartitionSpec] = specs_of(self.metadata, self.iceberg_schema)

    @property
    def snapshot_id(self) -> int | None:
        """The id of the snapshot; None for a table without snapshots."""
        return None if self.snapshot is None else self.snapshot.snapshot_id

    @property
    def spec_id(self) -> int:
        """The id of the spec for new files."""
        return self.metadata.default_spec_id

    def reload(self) -> IcebergState:
        """Internal: load the newest snapshot of the table from its catalog."""
        try:
            return IcebergState(
                self.iceberg.catalog.load_table(self.iceberg.name()),
                trust_locations=self.trusts_locations,
            )
        except PhalanxError:
            raise
        except Exception as error:
            raise StorageFailure(
                f"Cannot load the Iceberg table {self.name} from its catalog again: "
                f"{str(error).rstrip('.')}."
            ) from error

    def read_context(self) -> ReadContext:
        """Internal: return what is needed to read the files."""
        current = {field.field_id for field in self.iceberg_schema.fields}
        dropped = {
            field.field_id: field
            for schema in self.metadata.schemas
            for field in schema.fields
            if field.field_id not in current and field.field_type.is_primitive
        }
        return ReadContext(
            properties=self.iceberg.io.properties,
            location=self.metadata.location,
            name=self.name,
            folder=None if self.trusts_locations else self.folder,
            schema=self.schema,
            iceberg_schema=self.iceberg_schema,
            dropped=tuple(dropped.values()),
            specs=self.metadata.specs(),
            name_mapping=self.metadata.name_mapping(),
            format_version=self.metadata.format_version,
        )

    def load_entries(
        self,
        filters: Mapping[int, Predicate],
        delete_filters: Mapping[int, Predicate] | None = None,
    ) -> LoadedEntries:
        """Internal: read the entries of manifests whose partitions may satisfy a spec's filter.

        The result has every spec with data files, even if none of its manifests was read.
        """
        by_content = {
            ManifestContent.DATA: filters,
            ManifestContent.DELETES: filters if delete_filters is None else delete_filters,
        }
        choice = select_manifests(self._manifests, self.specs, by_content)
        entries = read_entries(self.io, choice.selected, self.specs)
        data = dict(entries.data)
        for spec_id in choice.skipped_files:
            if spec_id not in data:
                data[spec_id] = entries_schema(self.specs[spec_id], False).empty_table()
        ordered = {spec_id: _sort_by_age(data[spec_id]) for spec_id in sorted(data)}
        return LoadedEntries(ManifestEntries(ordered, entries.deletes), choice)

    @cached_property
    def _manifests(self) -> tuple[ManifestFile, ...]:
        if self.snapshot is None:
            return ()
        try:
            return tuple(self.snapshot.manifests(self.io))
        except PhalanxError:
            raise
        except Exception as error:
            reason = "it is gone" if isinstance(error, FileNotFoundError) else str(error)
            raise StorageFailure(
                f"Cannot read the manifest list {self.snapshot.manifest_list} of snapshot "
                f"{self.snapshot_id} of the Iceberg table {self.name}: {reason}. The metadata is "
                "damaged, or the snapshot has expired: open another one."
            ) from error


def _sort_by_age(files: pa.Table) -> pa.Table:
    columns = pa.table(
        [files.column(SEQUENCE), files.column(FILE_PATH)], names=["sequence", "path"]
    )
    keys = [("sequence", "ascending"), ("path", "ascending")]
    return files.take(pc.sort_indices(columns, sort_keys=keys))


def _find_snapshot(metadata: TableMetadata, name: str, wanted: int | str | None) -> Snapshot | None:
    """Return the snapshot with this id, or of this branch or tag."""
    if wanted is None:
        return metadata.current_snapshot()
    if isinstance(wanted, str):
        found = metadata.snapshot_by_name(wanted)
    else:
        found = metadata.snapshot_by_id(wanted)
    if found is None:
        known = ", ".join(str(each.snapshot_id) for each in metadata.snapshots[-10:])
        names = ", ".join(metadata.refs)
        raise InvalidCatalog(
            f"The Iceberg table {name} has no snapshot {wanted!r}. Its newest snapshots are "
            f"{known or 'none'}, its branches and tags {names or 'none'}."
        )
    return found


def _find_schema(metadata: TableMetadata, snapshot: Snapshot | None) -> IcebergSchema:
    """Return the current schema, or the one that a chosen snapshot was written with."""
    wanted = metadata.current_schema_id
    if snapshot is not None and snapshot.schema_id is not None:
        wanted = snapshot.schema_id
    for schema in metadata.schemas:
        if schema.schema_id == wanted:
            return schema
    raise StorageFailure(f"The metadata has no schema {wanted}: it is damaged.")
