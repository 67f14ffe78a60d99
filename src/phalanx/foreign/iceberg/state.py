"""The state of an Iceberg table at one snapshot: schema, specs, and entries of its manifests."""

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

from phalanx.errors import PhalanxError, StorageFailure
from phalanx.foreign.iceberg.manifests import (
    SEQUENCE,
    Choice,
    Entries,
    chosen,
    entries_schema,
    read_entries,
)
from phalanx.foreign.iceberg.rows import ReadContext
from phalanx.foreign.iceberg.schema import schema_of, specs_of
from phalanx.foreign.iceberg.trust import GuardedIO, folder_of, refuse_settings
from phalanx.model.predicates.predicate import Predicate
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.rewrites.entries import PATH

_NEWEST_VERSION = 3


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read of a snapshot, and which of its manifests were."""

    entries: Entries
    choice: Choice


class IcebergState:
    """A snapshot of an Iceberg table: what others write after it was opened is not in it."""

    def __init__(
        self, table: Table, snapshot: int | str | None = None, *, trust_locations: bool = False
    ) -> None:
        self.iceberg = table
        self.metadata = table.metadata
        self.name = ".".join(table.name())
        refuse_settings(self.metadata.properties, self.name, trust_locations=trust_locations)
        self.trusts_locations = trust_locations
        self.folder = folder_of(table)
        self.io = table.io if trust_locations else GuardedIO(table.io, self.folder, self.name)
        if self.metadata.format_version > _NEWEST_VERSION:
            raise PhalanxError(
                f"Cannot open the Iceberg table {self.name}: it has format version "
                f"{self.metadata.format_version}, and Phalanx knows versions up to "
                f"{_NEWEST_VERSION}."
            )
        self.snapshot = _snapshot(self.metadata, self.name, snapshot)
        self.iceberg_schema = _schema(self.metadata, None if snapshot is None else self.snapshot)
        self.schema = schema_of(self.iceberg_schema, self.metadata.last_column_id)
        self.specs: Mapping[int, PartitionSpec] = specs_of(self.metadata, self.iceberg_schema)

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot it was opened at; None for a table without rows ever."""
        return None if self.snapshot is None else self.snapshot.snapshot_id

    @property
    def spec_id(self) -> int:
        """The spec under which new files are written."""
        return self.metadata.default_spec_id

    def newest(self) -> IcebergState:
        """The table as its catalog has it now."""
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
        """What it takes to read the files."""
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

    def load(
        self,
        filters: Mapping[int, Predicate],
        delete_filters: Mapping[int, Predicate] | None = None,
    ) -> Loaded:
        """The entries of the manifests whose partitions may satisfy the filter of their spec.

        Every spec that has data files is there, be it that none of them had to be read.
        """
        by_content = {
            ManifestContent.DATA: filters,
            ManifestContent.DELETES: filters if delete_filters is None else delete_filters,
        }
        choice = chosen(self._manifests, self.specs, by_content)
        entries = read_entries(self.io, choice.read, self.specs)
        data = dict(entries.data)
        for spec_id in choice.skipped_files:
            if spec_id not in data:
                data[spec_id] = entries_schema(self.specs[spec_id], False).empty_table()
        ordered = {spec_id: _by_age(data[spec_id]) for spec_id in sorted(data)}
        return Loaded(Entries(ordered, entries.deletes), choice)

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
                f"{self.snapshot_id} of the Iceberg table {self.name}: {reason}. The metadata are "
                "damaged, or the snapshot has expired: open another one."
            ) from error


def _by_age(files: pa.Table) -> pa.Table:
    columns = pa.table([files.column(SEQUENCE), files.column(PATH)], names=["sequence", "path"])
    keys = [("sequence", "ascending"), ("path", "ascending")]
    return files.take(pc.sort_indices(columns, sort_keys=keys))


def _snapshot(metadata: TableMetadata, name: str, wanted: int | str | None) -> Snapshot | None:
    """The snapshot with this id, or that this branch or tag names."""
    if wanted is None:
        return metadata.current_snapshot()
    if isinstance(wanted, str):
        found = metadata.snapshot_by_name(wanted)
    else:
        found = metadata.snapshot_by_id(wanted)
    if found is None:
        known = ", ".join(str(each.snapshot_id) for each in metadata.snapshots[-10:])
        names = ", ".join(metadata.refs)
        raise PhalanxError(
            f"The Iceberg table {name} has no snapshot {wanted!r}. Its newest snapshots are "
            f"{known or 'none'}, its branches and tags {names or 'none'}."
        )
    return found


def _schema(metadata: TableMetadata, snapshot: Snapshot | None) -> IcebergSchema:
    """The table's schema, or the one that a chosen snapshot was written with."""
    wanted = metadata.current_schema_id
    if snapshot is not None and snapshot.schema_id is not None:
        wanted = snapshot.schema_id
    for schema in metadata.schemas:
        if schema.schema_id == wanted:
            return schema
    raise StorageFailure(f"The metadata have no schema {wanted}: they are damaged.")
