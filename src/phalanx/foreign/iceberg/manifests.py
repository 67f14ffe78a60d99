"""Iceberg's manifests: which of them have to be read, and their entries as columns."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.types import StructType
from pyiceberg.utils.concurrent import ExecutorFactory

from phalanx.errors import StorageFailure, UnknownSpec
from phalanx.model.predicates.predicate import Predicate
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.sql.literals import storage_type
from phalanx.model.transforms.iceberg import Unevaluable, Void
from phalanx.planning.pruning.value_ranges import ValueRange, may_hold_within
from phalanx.planning.rewrites.entries import BYTES, PATH, ROWS
from phalanx.planning.rewrites.filter import unknown_spec

SEQUENCE, FORMAT, MANIFEST = ".sequence", ".format", ".manifest"
CONTENT, REFERENCED, EQUALITY_IDS = ".content", ".referenced", ".equality_ids"
LEAST_PATH, GREATEST_PATH = ".least_path", ".greatest_path"

# What every entry has, and what only delete files have.
_FILE_TYPES = {
    PATH: pa.string(),
    BYTES: pa.int64(),
    ROWS: pa.int64(),
    SEQUENCE: pa.int64(),
    FORMAT: pa.string(),
    MANIFEST: pa.string(),
}
_DELETE_TYPES = {
    CONTENT: pa.int8(),
    REFERENCED: pa.string(),
    EQUALITY_IDS: pa.list_(pa.int32()),
    LEAST_PATH: pa.binary(),
    GREATEST_PATH: pa.binary(),
}
# The ids of `partition` in an entry, and of `file_path` in a file of position deletes.
_PARTITION_ID = 102
_PATH_ID = 2147483546
# Where pyiceberg's record of a file has `referenced_data_file`, for which it has no name.
_REFERENCED_PLACE = 17


@dataclass(frozen=True, slots=True)
class Choice:
    """The manifests to read, and how many others cannot hold a match, with how many files."""

    read: tuple[ManifestFile, ...]
    skipped: int
    skipped_files: Mapping[int, int]


def chosen(
    manifests: Sequence[ManifestFile],
    specs: Mapping[int, PartitionSpec],
    filters: Mapping[ManifestContent, Mapping[int, Predicate]],
) -> Choice:
    """The manifests whose partition summaries let some file match its spec's filter."""
    read: list[ManifestFile] = []
    skipped: dict[int, int] = {}
    for manifest in manifests:
        spec_id = manifest.partition_spec_id
        if spec_id not in specs:
            known = unknown_spec(spec_id, specs)
            raise UnknownSpec(f"{known} The manifest is {manifest.manifest_path}.")
        ranges = dict(_ranges(specs[spec_id], manifest.partitions or []))
        is_empty = not manifest.has_added_files() and not manifest.has_existing_files()
        if not is_empty and may_hold_within(filters[manifest.content][spec_id], ranges):
            read.append(manifest)
        elif manifest.content == ManifestContent.DATA:
            files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
            skipped[spec_id] = skipped.get(spec_id, 0) + files
    return Choice(tuple(read), len(manifests) - len(read), skipped)


def _ranges(
    spec: PartitionSpec, summaries: Sequence[PartitionFieldSummary]
) -> Iterator[tuple[str, ValueRange]]:
    """What the summaries say of each field; those that say nothing clear are left out."""
    if len(summaries) != len(spec.fields):
        return
    for field, summary in zip(spec.fields, summaries, strict=True):
        if isinstance(field.derivation, Unevaluable | Void):
            continue
        try:
            low, high = (
                None if bound is None else _bound(bound, field.result_type)
                for bound in (summary.lower_bound, summary.upper_bound)
            )
        except (struct.error, ValueError):
            continue
        if (low is None) != (high is None) or low != low or high != high:
            continue
        # Who does not say whether there are NaNs may have some.
        has_nan = pt.is_floating(field.result_type) and summary.contains_nan is not False
        yield field.column, ValueRange(low, high, summary.contains_null is not False, has_nan)


def _bound(data: bytes, kind: pa.DataType) -> Any:
    """A bound as the ordinal of its value; numbers may have been narrower when it was written."""
    if pt.is_decimal(kind):
        return int.from_bytes(data, "big", signed=True)
    if pt.is_integer(kind) or storage_type(kind) is not None:
        return int.from_bytes(data, "little", signed=True)
    if pt.is_floating(kind):
        return struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
    if pt.is_boolean(kind):
        return data != b"\x00"
    return data.decode() if pt.is_string(kind) else data


@dataclass(frozen=True, slots=True)
class Entries:
    """The live entries of manifests: for each spec a table of data files, and one of deletes.

    Each has the partition values, one column for each field, and then those of the file.
    """

    data: Mapping[int, pa.Table]
    deletes: Mapping[int, pa.Table]


def read_entries(
    io: FileIO, manifests: Iterable[ManifestFile], specs: Mapping[int, PartitionSpec]
) -> Entries:
    """Read manifests, several at a time."""

    def read(manifest: ManifestFile) -> tuple[ManifestFile, pa.Table]:
        return manifest, _table(io, manifest, specs[manifest.partition_spec_id])

    data: dict[int, list[pa.Table]] = {}
    deletes: dict[int, list[pa.Table]] = {}
    for manifest, table in ExecutorFactory.get_or_create().map(read, manifests):
        found = data if manifest.content == ManifestContent.DATA else deletes
        found.setdefault(manifest.partition_spec_id, []).append(table)
    return Entries(_joined(data), _joined(deletes))


def _joined(tables: Mapping[int, Sequence[pa.Table]]) -> dict[int, pa.Table]:
    return {spec_id: pa.concat_tables(parts) for spec_id, parts in sorted(tables.items())}


def entries_schema(spec: PartitionSpec, deletes: bool) -> pa.Schema:
    """The columns of a spec's entries."""
    kinds = _FILE_TYPES | _DELETE_TYPES if deletes else _FILE_TYPES
    values = [(field.field_id, field.result_type) for field in spec.fields]
    return pa.schema([*values, *kinds.items()])


def _table(io: FileIO, manifest: ManifestFile, spec: PartitionSpec) -> pa.Table:
    path = manifest.manifest_path
    try:
        entries, partition = _live_entries(io, manifest)
        files = [entry.data_file for entry in entries]
        records = [file.partition for file in files]
        columns = [
            _values([record[place] for record in records], field)
            for field, place in _places(manifest, spec, partition)
        ]
    except StorageFailure:
        raise
    except FileNotFoundError:
        raise StorageFailure(
            f"Cannot read the Iceberg manifest {path}: it is gone. The table's metadata are "
            "damaged, or its snapshot has expired: open the table again."
        ) from None
    except Exception as error:
        raise StorageFailure(
            f"Cannot read the Iceberg manifest {path}: {_told(error)}. It is damaged, or of a "
            "newer version."
        ) from error
    is_deletes = manifest.content != ManifestContent.DATA
    columns += [
        pa.array([file.file_path for file in files], pa.string()),
        pa.array([file.file_size_in_bytes for file in files], pa.int64()),
        pa.array([file.record_count for file in files], pa.int64()),
        pa.array([_sequence(entry, manifest) for entry in entries], pa.int64()),
        pa.array([file.file_format.value for file in files], pa.string()),
        pa.repeat(pa.scalar(path, pa.string()), len(files)),
    ]
    if is_deletes:
        columns += _delete_columns(files)
    return pa.Table.from_arrays(columns, schema=entries_schema(spec, is_deletes))


def _live_entries(io: FileIO, manifest: ManifestFile) -> tuple[list[ManifestEntry], StructType]:
    """The entries that are not deleted, and the type of their partitions as it was written.

    pyiceberg's own reader leaves out what version 3 adds, such as the file that a deletion vector
    is about.
    """
    with AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[3],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:
        live = [entry for entry in reader if entry.status != ManifestEntryStatus.DELETED]
        partition = reader.schema.find_type(_PARTITION_ID)
    assert isinstance(partition, StructType)
    return live, partition


def _sequence(entry: ManifestEntry, manifest: ManifestFile) -> int:
    """The data sequence number, which an added entry inherits and version 1 has not."""
    number = entry.sequence_number
    return int((manifest.sequence_number or 0) if number is None else number)


def _places(
    manifest: ManifestFile, spec: PartitionSpec, written: StructType
) -> Iterator[tuple[PartitionField, int]]:
    """Where in the written partition each field of the spec stands: Iceberg keeps their order."""
    if len(written.fields) != len(spec.fields):
        raise StorageFailure(
            f"The Iceberg manifest {manifest.manifest_path} has {len(written.fields)} partition "
            f"values for each file, but its spec {spec.id} has {len(spec.fields)} fields. The "
            "metadata are damaged."
        )
    return zip(spec.fields, range(len(spec.fields)), strict=True)


def _values(values: list[Any], field: PartitionField) -> pa.Array:
    """Partition values as pyiceberg has them: dates and times are numbers, a UUID is a UUID."""
    kind = field.result_type
    if isinstance(field.derivation, Void):
        return pa.nulls(len(values), kind)
    if isinstance(field.derivation, Unevaluable) and pt.is_string(kind):
        return pa.array([None if value is None else str(value) for value in values], kind)
    if (storage := storage_type(kind)) is not None:
        return pa.array(values, storage).cast(kind)
    if pt.is_fixed_size_binary(kind):
        return pa.array([each.bytes if isinstance(each, UUID) else each for each in values], kind)
    return pa.array(values, kind)


def internal_values(column: pa.Array, is_uuid: bool) -> list[Any]:
    """The other way round: partition values as pyiceberg writes them."""
    if (storage := storage_type(column.type)) is not None:
        return list(column.cast(storage).to_pylist())
    if is_uuid:
        return [None if each is None else UUID(bytes=each) for each in column.to_pylist()]
    return list(column.to_pylist())


def _delete_columns(files: Sequence[DataFile]) -> list[pa.Array]:
    """What says which data files each delete file is about."""
    referenced: list[str | None] = [
        file[_REFERENCED_PLACE] if len(file) > _REFERENCED_PLACE else None for file in files
    ]
    return [
        pa.array([int(file.content) for file in files], pa.int8()),
        pa.array(referenced, pa.string()),
        pa.array([file.equality_ids for file in files], pa.list_(pa.int32())),
        pa.array([(file.lower_bounds or {}).get(_PATH_ID) for file in files], pa.binary()),
        pa.array([(file.upper_bounds or {}).get(_PATH_ID) for file in files], pa.binary()),
    ]


def _told(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
