"""Real Iceberg tables for tests: a catalog in SQLite, files on disk, deletes of every kind."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyroaring import BitMap

_PATH_ID, _POSITION_ID = 2147483546, 2147483545


def catalog_at(folder: Path) -> SqlCatalog:
    """An empty catalog with the namespace `lake`."""
    catalog = SqlCatalog(
        "tests", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
    )
    catalog.create_namespace("lake")
    return catalog


def data_files(table: Table) -> list[DataFile]:
    """The data files of the current snapshot."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    return [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        if manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io)
    ]


def data_file(table: Table, path: str) -> DataFile:
    """The data file at a path."""
    return next(file for file in data_files(table) if file.file_path == path)


def position_deletes(
    table: Table, places: Sequence[tuple[str, int]], like: DataFile, *, bounds: bool = True
) -> DataFile:
    """A file that deletes rows by path and position, in the partition of a data file."""
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(_PATH_ID)}),
            pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(_POSITION_ID)}),
        ]
    )
    ordered = sorted(places)
    columns = [[path for path, _ in ordered], [place for _, place in ordered]]
    rows = pa.table(columns, schema=schema)
    given = (columns[0][0].encode(), columns[0][-1].encode()) if bounds else None
    return _parquet(table, rows, DataFileContent.POSITION_DELETES, like, given)


def equality_deletes(
    table: Table, rows: pa.Table, ids: Sequence[int], like: DataFile | None
) -> DataFile:
    """A file that deletes rows equal to these; for the whole table without a partition."""
    fields = [
        field.with_metadata({"PARQUET:field_id": str(number)})
        for field, number in zip(rows.schema, ids, strict=True)
    ]
    typed = rows.cast(pa.schema(fields))
    return _parquet(table, typed, DataFileContent.EQUALITY_DELETES, like, None, list(ids))


def deletion_vector(table: Table, of: DataFile, places: Iterable[int]) -> DataFile:
    """A deletion vector in a Puffin file, as in version 3."""
    places = list(places)
    bitmap = struct.pack("<qI", 1, 0) + BitMap(places).serialize()
    body = b"\xd1\xd3\x39\x64" + bitmap
    blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    footer = json.dumps(
        {
            "blobs": [
                {
                    "type": "deletion-vector-v1",
                    "fields": [],
                    "snapshot-id": -1,
                    "sequence-number": -1,
                    "offset": 4,
                    "length": len(blob),
                    "properties": {
                        "referenced-data-file": of.file_path,
                        "cardinality": str(len(places)),
                    },
                }
            ],
            "properties": {},
        }
    ).encode()
    magic = b"PFA1"
    content = magic + blob + magic + footer + struct.pack("<iI", len(footer), 0) + magic
    path = f"{table.location()}/data/{uuid.uuid4()}.puffin"
    with table.io.new_output(path).create() as stream:
        stream.write(content)
    file = DataFile.from_args(
        3,
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PUFFIN,
        partition=of.partition,
        record_count=len(places),
        file_size_in_bytes=len(content),
        referenced_data_file=of.file_path,
        content_offset=4,
        content_size_in_bytes=len(blob),
    )
    file.spec_id = of.spec_id
    return file


def _parquet(
    table: Table,
    rows: pa.Table,
    content: DataFileContent,
    like: DataFile | None,
    bounds: tuple[bytes, bytes] | None,
    ids: list[int] | None = None,
) -> DataFile:
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    output = table.io.new_output(path)
    with output.create() as stream:
        pq.write_table(rows, stream)
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record() if like is None else like.partition,
        record_count=rows.num_rows,
        file_size_in_bytes=len(output),
        lower_bounds=None if bounds is None else {_PATH_ID: bounds[0]},
        upper_bounds=None if bounds is None else {_PATH_ID: bounds[1]},
        equality_ids=ids,
    )
    file.spec_id = (
        next(spec.spec_id for spec in table.specs().values() if not spec.fields)
        if like is None
        else like.spec_id
    )
    return file


class _DeletesWriter(ManifestWriterV2):
    """pyiceberg's writer of manifests, for those of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _VectorsWriter(_DeletesWriter):
    """A writer that adds the fields of format version 3 for deletion vectors."""

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        schema = self._with_partition(3)
        return AvroOutputFile[ManifestEntry](
            self._output_file, schema, "manifest_entry", schema, self._meta
        )


class _AddDeletes(_FastAppendFiles):
    """A snapshot with more delete files."""

    deletes: Sequence[DataFile] = ()

    def _manifests(self) -> list[ManifestFile]:
        found = self._existing_manifests()
        for file in self.deletes:
            is_vector = file.file_format == FileFormat.PUFFIN
            make = _VectorsWriter if is_vector else _DeletesWriter
            version = 3 if is_vector else 2
            with make(
                self.spec(file.spec_id),
                self.schema(),
                self.new_manifest_output(),
                self.snapshot_id,
                "deflate",
            ) as writer:
                entry = ManifestEntry.from_args(
                    version,
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self.snapshot_id,
                    data_file=file,
                )
                writer.add_entry(entry)
            found.append(writer.to_manifest_file())
        return found


def add_deletes(table: Table, *files: DataFile) -> None:
    """Commit a snapshot with these delete files."""
    transaction = table.transaction()
    producer: Any = _AddDeletes(Operation.DELETE, transaction, table.io)
    producer.deletes = files
    producer.commit()
    transaction.commit_transaction()
