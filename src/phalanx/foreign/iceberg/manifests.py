"""Select the manifests of an Iceberg table to read, and read their entries as columns."""

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
from phalanx.model.sql.literals import storage_type_of
from phalanx.model.transforms.iceberg import Unevaluable, Void
from phalanx.planning.pruning.value_ranges import ValueRange, can_match_ranges
from phalanx.planning.rewrites.entries import FILE_BYTES, FILE_PATH, FILE_ROWS
from phalanx.planning.rewrites.filter import unknown_spec_error

SEQUENCE, FORMAT, MANIFEST = ".sequence", ".format", ".manifest"
CONTENT, REFERENCED, EQUALITY_IDS = ".content", ".referenced", ".equality_ids"
LEAST_PATH, GREATEST_PATH = ".least_path", ".greatest_path"

# The columns of all entries, and those of delete files only.
_FILE_TYPES = {
    FILE_PATH: pa.string(),
    FILE_BYTES: pa.int64(),
    FILE_ROWS: pa.int64(),
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
# The field ids of `partition` in an entry and of `file_path` in a position delete file.
_PARTITION_ID = 102
_PATH_ID = 2147483546
# The index of `referenced_data_file` in pyiceberg's record, which has no name for it.
_REFERENCED_INDEX = 17


@dataclass(frozen=True, slots=True)
class ManifestSelection:
    """The manifests to read, and the number of skipped manifests and of their files by spec."""

    selected: tuple[ManifestFile, ...]
    skipped: int
    skipped_files: Mapping[int, int]


def select_manifests(
    manifests: Sequence[ManifestFile],
    specs: Mapping[int, PartitionSpec],
    filters: Mapping[ManifestContent, Mapping[int, Predicate]],
) -> ManifestSelection:
    """Select the manifests whose partition summaries allow a file that matches its filter."""
    read: list[ManifestFile] = []
    skipped: dict[int, int] = {}
    for manifest in manifests:
        spec_id = manifest.partition_spec_id
        if spec_id not in specs:
            known = unknown_spec_error(spec_id, specs)
            raise UnknownSpec(f"{known} The manifest is {manifest.manifest_path}.")
        ranges = dict(_read_ranges(specs[spec_id], manifest.partitions or []))
        is_empty = not manifest.has_added_files() and not manifest.has_existing_files()
        if not is_empty and can_match_ranges(filters[manifest.content][spec_id], ranges):
            read.append(manifest)
        elif manifest.content == ManifestContent.DATA:
            files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
            skipped[spec_id] = skipped.get(spec_id, 0) + files
    return ManifestSelection(tuple(read), len(manifests) - len(read), skipped)


def _read_ranges(
    spec: PartitionSpec, summaries: Sequence[PartitionFieldSummary]
) -> Iterator[tuple[str, ValueRange]]:
    """Yield the value range of each field that the summaries describe reliably."""
    if len(summaries) != len(spec.fields):
        return
    for field, summary in zip(spec.fields, summaries, strict=True):
        if isinstance(field.derivation, Unevaluable | Void):
            continue
        try:
            low, high = (
                None if bound is None else _decode_bound(bound, field.result_type)
                for bound in (summary.lower_bound, summary.upper_bound)
            )
        except (struct.error, ValueError):
            continue
        if (low is None) != (high is None) or low != low or high != high:
            continue
        # Assume NaNs unless the summary excludes them.
        has_nan = pt.is_floating(field.result_type) and summary.contains_nan is not False
        yield field.column, ValueRange(low, high, summary.contains_null is not False, has_nan)


def _decode_bound(data: bytes, kind: pa.DataType) -> Any:
    """Decode a bound to the ordinal of its value; it may be narrower than the current type."""
    if pt.is_decimal(kind):
        return int.from_bytes(data, "big", signed=True)
    if pt.is_integer(kind) or storage_type_of(kind) is not None:
        return int.from_bytes(data, "little", signed=True)
    if pt.is_floating(kind):
        return struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
    if pt.is_boolean(kind):
        return data != b"\x00"
    return data.decode() if pt.is_string(kind) else data


@dataclass(frozen=True, slots=True)
class ManifestEntries:
    """The live entries of manifests: for each spec a table of data files and one of deletes.

    The columns are the partition fields, then those of the file.
    """

    data: Mapping[int, pa.Table]
    deletes: Mapping[int, pa.Table]


def read_entries(
    io: FileIO, manifests: Iterable[ManifestFile], specs: Mapping[int, PartitionSpec]
) -> ManifestEntries:
    """Read manifests in parallel."""

    def read(manifest: ManifestFile) -> tuple[ManifestFile, pa.Table]:
        return manifest, _read_manifest(io, manifest, specs[manifest.partition_spec_id])

    data: dict[int, list[pa.Table]] = {}
    deletes: dict[int, list[pa.Table]] = {}
    for manifest, table in ExecutorFactory.get_or_create().map(read, manifests):
        found = data if manifest.content == ManifestContent.DATA else deletes
        found.setdefault(manifest.partition_spec_id, []).append(table)
    return ManifestEntries(_concat_by_spec(data), _concat_by_spec(deletes))


def _concat_by_spec(tables: Mapping[int, Sequence[pa.Table]]) -> dict[int, pa.Table]:
    return {spec_id: pa.concat_tables(parts) for spec_id, parts in sorted(tables.items())}


def entries_schema(spec: PartitionSpec, deletes: bool) -> pa.Schema:
    """Return the columns of the entries of a spec."""
    kinds = _FILE_TYPES | _DELETE_TYPES if deletes else _FILE_TYPES
    values = [(field.field_id, field.result_type) for field in spec.fields]
    return pa.schema([*values, *kinds.items()])


def _read_manifest(io: FileIO, manifest: ManifestFile, spec: PartitionSpec) -> pa.Table:
    path = manifest.manifest_path
    try:
        entries, partition = _read_live_entries(io, manifest)
        files = [entry.data_file for entry in entries]
        records = [file.partition for file in files]
        columns = [
            _partition_column([record[index] for record in records], field)
            for field, index in _match_fields(manifest, spec, partition)
        ]
    except StorageFailure:
        raise
    except FileNotFoundError:
        raise StorageFailure(
            f"Cannot read the Iceberg manifest {path}: it is gone. The metadata of the table is "
            "damaged, or its snapshot has expired: open the table again."
        ) from None
    except Exception as error:
        raise StorageFailure(
            f"Cannot read the Iceberg manifest {path}: {_describe_error(error)}. It is damaged, or "
            "has a newer version."
        ) from error
    is_deletes = manifest.content != ManifestContent.DATA
    columns += [
        pa.array([file.file_path for file in files], pa.string()),
        pa.array([file.file_size_in_bytes for file in files], pa.int64()),
        pa.array([file.record_count for file in files], pa.int64()),
        pa.array([_sequence_number(entry, manifest) for entry in entries], pa.int64()),
        pa.array([file.file_format.value for file in files], pa.string()),
        pa.repeat(pa.scalar(path, pa.string()), len(files)),
    ]
    if is_deletes:
        columns += _delete_columns(files)
    return pa.Table.from_arrays(columns, schema=entries_schema(spec, is_deletes))


def _read_live_entries(
    io: FileIO, manifest: ManifestFile
) -> tuple[list[ManifestEntry], StructType]:
    """Return the entries that are not deleted, and the type of their partitions as written.

    pyiceberg's own reader omits what version 3 adds, such as the data file of a deletion vector.
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


def _sequence_number(entry: ManifestEntry, manifest: ManifestFile) -> int:
    """Return the data sequence number; added entries inherit it, and version 1 has none."""
    number = entry.sequence_number
    return int((manifest.sequence_number or 0) if number is None else number)


def _match_fields(
    manifest: ManifestFile, spec: PartitionSpec, written: StructType
) -> Iterator[tuple[PartitionField, int]]:
    """Return the index of each spec field in the written partition; Iceberg keeps the order."""
    if len(written.fields) != len(spec.fields):
        raise StorageFailure(
            f"The Iceberg manifest {manifest.manifest_path} has {len(written.fields)} partition "
            f"values for each file, but its spec {spec.id} has {len(spec.fields)} fields. The "
            "metadata is damaged."
        )
    return zip(spec.fields, range(len(spec.fields)), strict=True)


def _partition_column(values: list[Any], field: PartitionField) -> pa.Array:
    """Convert partition values of pyiceberg: dates and times are numbers, UUIDs are UUIDs."""
    kind = field.result_type
    if isinstance(field.derivation, Void):
        return pa.nulls(len(values), kind)
    if isinstance(field.derivation, Unevaluable) and pt.is_string(kind):
        return pa.array([None if value is None else str(value) for value in values], kind)
    if (storage := storage_type_of(kind)) is not None:
        return pa.array(values, storage).cast(kind)
    if pt.is_fixed_size_binary(kind):
        return pa.array([each.bytes if isinstance(each, UUID) else each for each in values], kind)
    return pa.array(values, kind)


def to_iceberg_values(column: pa.Array, is_uuid: bool) -> list[Any]:
    """Convert partition values to those that pyiceberg writes."""
    if (storage := storage_type_of(column.type)) is not None:
        return list(column.cast(storage).to_pylist())
    if is_uuid:
        return [None if each is None else UUID(bytes=each) for each in column.to_pylist()]
    return list(column.to_pylist())


def _delete_columns(files: Sequence[DataFile]) -> list[pa.Array]:
    """Return the columns that identify the data files of each delete file."""
    referenced: list[str | None] = [
        file[_REFERENCED_INDEX] if len(file) > _REFERENCED_INDEX else None for file in files
    ]
    return [
        pa.array([int(file.content) for file in files], pa.int8()),
        pa.array(referenced, pa.string()),
        pa.array([file.equality_ids for file in files], pa.list_(pa.int32())),
        pa.array([(file.lower_bounds or {}).get(_PATH_ID) for file in files], pa.binary()),
        pa.array([(file.upper_bounds or {}).get(_PATH_ID) for file in files], pa.binary()),
    ]


def _describe_error(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
