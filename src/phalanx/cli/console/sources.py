"""Files as streams of rows: parquet, CSV, JSON lines, Arrow and Lance."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.json
import pyarrow.parquet as pq
import typer

from phalanx.cli.console.messages import RowProgress
from phalanx.cli.text_values import csv_type, json_type, parsed
from phalanx.errors import InvalidSchema, SchemaMismatch
from phalanx.model.schema.rows import conformed, without_ids
from phalanx.storage.lance.location import Location

STDIN = "-"
# A line longer than a block cannot be read, and types are inferred from the first block.
_BLOCK_BYTES = 16 << 20
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4"}
_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class Format(StrEnum):
    """What a file is."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"
    ARROW = "arrow"
    LANCE = "lance"


_LABELS = {Format.JSONL: "JSON lines, one object on each line"}
_BY_SUFFIX = {
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".csv": Format.CSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".ipc": Format.ARROW,
    ".feather": Format.ARROW,
    ".lance": Format.LANCE,
}


FormatOption = Annotated[
    Format | None, typer.Option("--format", help="What the files are, whatever their names say.")
]
NullOption = Annotated[
    list[str] | None,
    typer.Option(
        "--null",
        metavar="TEXT",
        help="CSV: a text that stands for NULL, like an empty field. Repeatable.",
        show_default=False,
    ),
]


def format_of(name: str) -> Format | None:
    """The format that a file's name tells; Arrow for stdin, None if nobody knows."""
    if name == STDIN:
        return Format.ARROW
    path = PurePath(name.rstrip("/"))
    suffix = path.suffix.lower()
    return _BY_SUFFIX.get(PurePath(path.stem).suffix.lower() if suffix in _COMPRESSED else suffix)


@dataclass(frozen=True, slots=True)
class Source:
    """A file to read, `-` for stdin; `nulls` are the CSV texts that stand for NULL."""

    name: str
    format: Format
    storage_options: dict[str, str] | None = field(default=None, repr=False)
    nulls: tuple[str, ...] = ("",)

    def schema(self) -> pa.Schema:
        """The columns of the file, as a new table would have them."""
        schema = self._checked(self.reader)().schema
        for column in schema:
            if self.format in (Format.CSV, Format.JSONL) and pa.types.is_null(column.type):
                raise InvalidSchema(
                    f"{self.name}: column {column.name!r} has no value near the start of the file, "
                    "so its type is unknown. Give the types with --schema."
                )
        return pa.schema([_without_parquet_id(field) for field in schema])

    def rows(self) -> int | None:
        """How many rows there are, if that is known without reading them."""
        if self.format is Format.PARQUET:
            return int(pq.ParquetFile(self._seekable()).metadata.num_rows)
        if self.format is Format.LANCE:
            return int(Location.of(self.name, self.storage_options).open().count_rows())
        return None

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows in the schema's columns and types; errors name the file."""
        batches = self._checked(lambda: conformed(self.reader(schema), schema))()
        while (batch := self._checked(lambda: next(batches, None))()) is not None:
            yield batch

    def reader(self, schema: pa.Schema | None = None) -> pa.RecordBatchReader:
        """The rows as they are; text of CSV and JSON as the schema's types."""
        match self.format:
            case Format.PARQUET:
                file = pq.ParquetFile(self._seekable())
                return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
            case Format.CSV:
                return _typed(self._csv(schema), schema)
            case Format.JSONL:
                return _typed(self._json_lines(schema), schema)
            case Format.ARROW:
                return self._arrow()
            case Format.LANCE:
                dataset = Location.of(self.name, self.storage_options).open()
                return dataset.scanner(scan_in_order=True).to_reader()

    def _csv(self, schema: pa.Schema | None) -> pa.RecordBatchReader:
        types = {} if schema is None else {field.name: csv_type(field.type) for field in schema}
        return pyarrow.csv.open_csv(
            self._stream(),
            read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types,
                null_values=list(self.nulls),
                strings_can_be_null=True,
                # Two quotes are how CSV writes an empty text.
                quoted_strings_can_be_null=False,
            ),
        )

    def _json_lines(self, schema: pa.Schema | None) -> pa.RecordBatchReader:
        wanted = None
        if schema is not None:
            wanted = pa.schema([(field.name, json_type(field.type)) for field in schema])
        try:
            return pyarrow.json.open_json(
                self._stream(),
                read_options=pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES),
                parse_options=pyarrow.json.ParseOptions(explicit_schema=wanted),
            )
        except pa.ArrowInvalid as error:
            if wanted is None or "Empty JSON" not in str(error):
                raise
            return pa.RecordBatchReader.from_batches(wanted, [])

    def _arrow(self) -> pa.RecordBatchReader:
        if self.name == STDIN:
            return pa.ipc.open_stream(sys.stdin.buffer)
        file = self._seekable()
        is_stream = file.read(6) != b"ARROW1"
        file.seek(0)
        if is_stream:
            return pa.ipc.open_stream(file)
        stored = pa.ipc.open_file(file)
        batches = (stored.get_batch(place) for place in range(stored.num_record_batches))
        return pa.RecordBatchReader.from_batches(stored.schema, batches)

    def _stream(self) -> Any:
        if self.name == STDIN:
            return sys.stdin.buffer
        filesystem, path = self._place()
        return filesystem.open_input_stream(path, compression="detect")

    def _seekable(self) -> Any:
        if self.name == STDIN:
            raise OSError(f"Cannot read {self.format} from stdin: it is not a stream. Name a file.")
        filesystem, path = self._place()
        return filesystem.open_input_file(path)

    def _place(self) -> tuple[Any, str]:
        if _URI.match(self.name):
            filesystem, path = pyarrow.fs.FileSystem.from_uri(self.name)
            return filesystem, path
        return pyarrow.fs.LocalFileSystem(), self.name

    def _checked(self, read: Callable[[], Any]) -> Callable[[], Any]:
        """The same function, with errors that name the file and what it was read as."""

        def checked() -> Any:
            try:
                return read()
            except SchemaMismatch as error:
                raise SchemaMismatch(f"{self.name}: {error}") from None
            except (pa.ArrowException, ValueError) as error:
                label = _LABELS.get(self.format, self.format)
                raise SchemaMismatch(f"Cannot read {self.name} as {label}: {error}") from None

        return checked


def chained(
    sources: Sequence[Source], schema: pa.Schema, progress: RowProgress
) -> pa.RecordBatchReader:
    """The rows of all sources as one stream, which tells how far it is."""

    def batches() -> Iterator[pa.RecordBatch]:
        for source in sources:
            for batch in source.batches(schema):
                progress.read(batch.num_rows)
                yield batch
        progress.all_read()

    return pa.RecordBatchReader.from_batches(without_ids(schema), batches())


def _typed(reader: pa.RecordBatchReader, schema: pa.Schema | None) -> pa.RecordBatchReader:
    """The reader with its text parsed to the schema's types."""
    if schema is None:
        return reader
    kinds = [
        schema.field(field.name).type if field.name in schema.names else field.type
        for field in reader.schema
    ]

    def typed(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for name, array, kind in zip(reader.schema.names, batch.columns, kinds, strict=True):
            try:
                arrays.append(parsed(array, kind))
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(f"column {name!r} ({kind}): {error}") from None
        return pa.RecordBatch.from_arrays(arrays, names=reader.schema.names)

    nothing = pa.RecordBatch.from_arrays(
        [pa.array([], field.type) for field in reader.schema], schema=reader.schema
    )
    return pa.RecordBatchReader.from_batches(
        typed(nothing).schema, (typed(batch) for batch in reader)
    )


def _without_parquet_id(field: pa.Field) -> pa.Field:
    metadata = {
        key: text for key, text in (field.metadata or {}).items() if key != b"PARQUET:field_id"
    }
    return field.with_metadata(metadata or None)


def source_of(
    name: str, format: Format | None, nulls: list[str] | None, options: dict[str, str] | None
) -> Source:
    """A file as a source of rows; a usage error where nobody can tell what it is."""
    known = format or format_of(name)
    if known is None:
        raise typer.BadParameter(
            f"Cannot tell what {name!r} is by its name: say it with --format.",
            param_hint="'--format'",
        )
    return Source(name, known, options, ("", *(nulls or [])))


def total_rows(sources: Sequence[Source]) -> int | None:
    """How many rows all of them have; None where that is not known before they are read."""
    counts = [source.rows() for source in sources]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
