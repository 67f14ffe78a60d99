"""Read the rows of one data file of an Iceberg table, on any machine and without the catalog.

pyiceberg matches columns by field id, so renamed, added, dropped and promoted ones work. Deletes
are applied here, because pyiceberg does not support equality deletes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import _task_to_record_batches
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import FileScanTask
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, UUIDType

from phalanx.errors import PhalanxError, StorageFailure
from phalanx.foreign.iceberg.deletes import IcebergDelete
from phalanx.foreign.iceberg.manifests import FORMAT, to_iceberg_values
from phalanx.foreign.iceberg.schema import schema_of
from phalanx.foreign.iceberg.trust import GuardedIO
from phalanx.model.schema.grouping import find_positions
from phalanx.model.schema.schema import Schema
from phalanx.planning.rewrites.entries import FILE_BYTES, FILE_PATH, FILE_ROWS

_READABLE_FORMATS = {FileFormat.PARQUET.value, FileFormat.ORC.value}


@dataclass(frozen=True, slots=True)
class ReadContext:
    """What is needed to read any file of a table.

    `dropped` are columns of earlier schemas that equality deletes may still refer to.
    """

    properties: Mapping[str, Any] = field(repr=False)
    location: str
    name: str
    # None if files outside of the table's folder may be read too.
    folder: str | None
    schema: Schema
    iceberg_schema: IcebergSchema
    dropped: tuple[NestedField, ...]
    specs: Mapping[int, PartitionSpec]
    name_mapping: NameMapping | None
    format_version: int

    def open_io(self) -> FileIO:
        """Return access to the files, limited to the folder of the table if there is one."""
        io = load_file_io(dict(self.properties), self.location)
        return io if self.folder is None else GuardedIO(io, self.folder, self.name)

    def read_batches(
        self, io: FileIO, file: DataFile, fields: tuple[NestedField, ...]
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a file with these columns, including deleted ones."""
        schema = IcebergSchema(*fields)
        nested = {number for number in schema.field_ids if _is_leaf(schema, number)}
        return _task_to_record_batches(
            io=io,
            task=FileScanTask(file),
            bound_row_filter=AlwaysTrue(),
            projected_schema=schema,
            table_schema=self.iceberg_schema,
            projected_field_ids=nested,
            positional_deletes=None,
            case_sensitive=True,
            name_mapping=self.name_mapping,
            partition_spec=self.specs.get(file.spec_id),
            format_version=self.format_version,  # type: ignore[arg-type]
            downcast_ns_timestamp_to_us=None,
        )


def _is_leaf(schema: IcebergSchema, number: int) -> bool:
    kind = schema.find_type(number)
    return kind.is_primitive or kind.is_struct


@dataclass(frozen=True, slots=True)
class IcebergUnit:
    """A data file with its deletes, which yields rows in the schema of the table.

    Internal: `context`.

    Attributes:
        path: The path of the file.
        format: The format of the file.
        bytes: The size of the file.
        written_rows: The number of rows in it, including deleted ones.
        rows: The number of rows that it yields.
        spec_id: The id of the spec.
        partition: The partition values.
        deletes: The delete files that apply to it.
    """

    context: ReadContext
    path: str
    format: str
    bytes: int
    written_rows: int
    rows: int
    spec_id: int
    partition: tuple[Any, ...]
    deletes: tuple[IcebergDelete, ...]

    @property
    def id(self) -> str:
        """The paths of the file and its deletes, which identify the unit."""
        return " ".join([self.path, *(each.path for each in self.deletes)])

    def check(self) -> None:
        """Raise if a file of the unit is missing or has an unsupported format."""
        io = self.context.open_io()
        for path, form in [(self.path, self.format), *((d.path, d.format) for d in self.deletes)]:
            if not io.new_input(path).exists():
                raise _unreadable(path, "it is gone")
            if form not in _READABLE_FORMATS and form != FileFormat.PUFFIN.value:
                raise _unreadable(path, f"pyiceberg reads Parquet and ORC, not {form}")

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are not deleted, in the order of the file."""
        io = self.context.open_io()
        if self.format not in _READABLE_FORMATS:
            raise _unreadable(self.path, f"pyiceberg reads Parquet and ORC, not {self.format}")
        path = self.path
        try:
            fields = self._fields_to_read()
            by_equality = [each for each in self.deletes if each.kind == "equality"]
            equal = [self._read_equality_rows(io, each) for each in by_equality]
            deleted = self.read_deleted_positions(io)
            start = 0
            for batch in self.context.read_batches(io, self._data_file(), fields):
                kept = np.full(batch.num_rows, True)
                low, high = np.searchsorted(deleted, [start, start + batch.num_rows])
                kept[deleted[low:high] - start] = False
                start += batch.num_rows
                for columns, rows in equal:
                    kept &= find_positions(_comparable_columns(batch, columns), rows) < 0
                live = batch if kept.all() else batch.filter(pa.array(kept))
                if live.num_rows:
                    yield self._to_table_schema(live)
            if start != self.written_rows:
                raise _unreadable(path, f"it has {start} rows, not {self.written_rows} as listed")
        except PhalanxError:
            raise
        except FileNotFoundError as error:
            raise _unreadable(error.filename or path, "a file is gone") from None
        except Exception as error:
            raise _unreadable(path, " ".join(str(error).split())) from error

    def count_live_rows(self) -> int:
        """Count the rows that are not deleted; with equality deletes this reads the file."""
        if any(each.kind == "equality" for each in self.deletes):
            return sum(batch.num_rows for batch in self.batches())
        return self.written_rows - len(self.read_deleted_positions(self.context.open_io()))

    def read_deleted_positions(self, io: FileIO) -> npt.NDArray[np.int64]:
        """Return the distinct positions of deleted rows in the file, in order."""
        found = [np.empty(0, dtype=np.int64)]
        for delete in self.deletes:
            if delete.kind != "equality":
                try:
                    found.append(_read_positions(io, delete, self.path))
                except FileNotFoundError:
                    raise _unreadable(delete.path, "it is gone") from None
        every = np.unique(np.concatenate(found))
        return every[every < self.written_rows]

    def _fields_to_read(self) -> tuple[NestedField, ...]:
        """Return the columns of the schema, and dropped ones that equality deletes refer to."""
        wanted = {number for each in self.deletes for number in each.equality_ids}
        names = {field.name for field in self.context.iceberg_schema.fields}
        dropped = tuple(
            _rename_dropped(field, names)
            for field in self.context.dropped
            if field.field_id in wanted
        )
        return (*self.context.iceberg_schema.fields, *dropped)

    def _read_equality_rows(
        self, io: FileIO, delete: IcebergDelete
    ) -> tuple[tuple[str, ...], pa.Table]:
        """Return the columns to compare, and the rows that the delete file deletes."""
        by_id = {field.field_id: field for field in self._fields_to_read()}
        unknown = [number for number in delete.equality_ids if number not in by_id]
        if unknown or not delete.equality_ids:
            what = f"the field {unknown[0]}, which does not exist" if unknown else "no field"
            raise _unreadable(delete.path, f"its equality deletes compare {what}")
        fields = tuple(by_id[number] for number in delete.equality_ids)
        names = tuple(field.name for field in fields)
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=delete.path,
            file_format=FileFormat(delete.format),
            partition=Record(),
        )
        file.spec_id = -1
        rows = [
            _comparable_columns(batch, names)
            for batch in self.context.read_batches(io, file, fields)
        ]
        return names, pa.concat_tables(rows) if rows else _empty_table(fields)

    def _data_file(self) -> DataFile:
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat(self.format),
            partition=Record(*self.partition),
            record_count=self.written_rows,
            file_size_in_bytes=self.bytes,
        )
        file.spec_id = self.spec_id
        return file

    def _to_table_schema(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.context.schema.arrow
        columns = [_cast(batch.column(name), schema.field(name).type) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def make_units(
    context: ReadContext,
    spec_id: int,
    files: pa.Table,
    deletes: Sequence[tuple[IcebergDelete, ...]],
) -> list[IcebergUnit]:
    """Return the data files of one spec as units; `rows` still includes deleted ones."""
    kinds = context.specs[spec_id].partition_type(context.iceberg_schema).fields
    values = [
        to_iceberg_values(files.column(index), isinstance(kind.field_type, UUIDType))
        for index, kind in enumerate(kinds)
    ]
    partitions = list(zip(*values, strict=True)) or [()] * files.num_rows
    columns = [
        files.column(name).to_pylist() for name in (FILE_PATH, FORMAT, FILE_BYTES, FILE_ROWS)
    ]
    return [
        IcebergUnit(context, path, form, size, rows, rows, spec_id, partition, found)
        for path, form, size, rows, partition, found in zip(
            *columns, partitions, deletes, strict=True
        )
    ]


def _rename_dropped(field: NestedField, taken: set[str]) -> NestedField:
    """Return a dropped column under an unused name."""
    name = field.name
    while name in taken:
        name += "_"
    return NestedField(field.field_id, name, field.field_type, required=False)


def _empty_table(fields: tuple[NestedField, ...]) -> pa.Table:
    last = max(field.field_id for field in fields)
    return schema_of(IcebergSchema(*fields), last).arrow.remove_metadata().empty_table()


def _comparable_columns(batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.Table:
    """Return the columns to compare, in types that do not depend on the file."""
    columns = [batch.column(name) for name in names]
    return pa.table(
        [_cast(each, _comparable_type(each.type)) for each in columns], names=list(names)
    )


def _comparable_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column if column.type == kind else column.cast(kind)


def _read_positions(io: FileIO, delete: IcebergDelete, path: str) -> npt.NDArray[np.int64]:
    """Return the positions that a delete file deletes from one data file."""
    with io.new_input(delete.path).open() as stream:
        if delete.kind == "vector":
            vectors = deletion_vectors_from_puffin_file(PuffinFile(stream.read()))
            found = [each.to_vector() for each in vectors if each.referenced_data_file == path]
            chunks = [chunk for vector in found for chunk in vector.chunks]
            return np.concatenate(
                [np.empty(0, dtype=np.int64), *(chunk.to_numpy() for chunk in chunks)]
            ).astype(np.int64)
        if delete.format not in _READABLE_FORMATS:
            raise _unreadable(delete.path, f"pyiceberg reads Parquet and ORC, not {delete.format}")
        is_parquet = delete.format == FileFormat.PARQUET.value
        form = ds.ParquetFileFormat() if is_parquet else ds.OrcFileFormat()
        fragment = form.make_fragment(stream)
        own = pc.field("file_path") == path
        table = ds.Scanner.from_fragment(fragment, columns=["pos"], filter=own).to_table()
    positions: npt.NDArray[np.int64] = table.column("pos").to_numpy().astype(np.int64)
    return positions


def _unreadable(path: str, why: str) -> StorageFailure:
    return StorageFailure(
        f"Cannot read the Iceberg file {path}: {why.rstrip('.')}. Restore the file, or open "
        "another snapshot."
    )
