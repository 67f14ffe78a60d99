"""Read files as streams of rows: Parquet, CSV, JSON lines, Arrow and Lance.

Text in CSV and JSON is parsed to the column types of the table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.fs
import pyarrow.json
import pyarrow.parquet as pq
import pyarrow.types as pt
import typer

from phalanx.cli.console.messages import RowProgress
from phalanx.errors import InvalidSchema, SchemaMismatch
from phalanx.model.schema.rows import conform_rows, remove_ids
from phalanx.storage.lance.location import Location

STDIN = "-"
# Arrow cannot read a longer line, and infers types from the first block.
_BLOCK_BYTES = 16 << 20
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4"}
_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class Format(StrEnum):
    """The format of a file."""

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
    Format | None,
    typer.Option("--format", help="The format of the files, regardless of their names."),
]
NullOption = Annotated[
    list[str] | None,
    typer.Option(
        "--null",
        metavar="TEXT",
        help="CSV: a text that means NULL, like an empty field. Repeatable.",
        show_default=False,
    ),
]


def guess_format(name: str) -> Format | None:
    """Return the format by the name of a file; Arrow for stdin, None if unknown."""
    if name == STDIN:
        return Format.ARROW
    path = PurePath(name.rstrip("/"))
    suffix = path.suffix.lower()
    return _BY_SUFFIX.get(PurePath(path.stem).suffix.lower() if suffix in _COMPRESSED else suffix)


@dataclass(frozen=True, slots=True)
class Source:
    """A file to read, or `-` for stdin; `nulls` are the CSV texts that mean NULL."""

    name: str
    format: Format
    storage_options: dict[str, str] | None = field(default=None, repr=False)
    nulls: tuple[str, ...] = ("",)

    def read_schema(self) -> pa.Schema:
        """Return the columns of the file, for a new table."""
        schema = self._name_file_in_errors(self.open_reader)().schema
        for column in schema:
            if self.format in (Format.CSV, Format.JSONL) and pa.types.is_null(column.type):
                raise InvalidSchema(
                    f"{self.name}: column {column.name!r} has no value near the start of the file, "
                    "so its type is unknown. Give the types with --schema."
                )
        return pa.schema([_without_parquet_id(field) for field in schema])

    def count_rows(self) -> int | None:
        """Return the number of rows, or None if it takes reading them."""
        if self.format is Format.PARQUET:
            return int(pq.ParquetFile(self._open_file()).metadata.num_rows)
        if self.format is Format.LANCE:
            return int(Location.of(self.name, self.storage_options).open().count_rows())
        return None

    def read_batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the columns and types of the schema; errors name the file."""
        batches = self._name_file_in_errors(
            lambda: conform_rows(self.open_reader(schema), schema)
        )()
        while (batch := self._name_file_in_errors(lambda: next(batches, None))()) is not None:
            yield batch

    def open_reader(self, schema: pa.Schema | None = None) -> pa.RecordBatchReader:
        """Open the file; text of CSV and JSON is parsed to the types of the schema."""
        match self.format:
            case Format.PARQUET:
                file = pq.ParquetFile(self._open_file())
                return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
            case Format.CSV:
                return _parse_reader(self._open_csv(schema), schema)
            case Format.JSONL:
                return _parse_reader(self._open_json_lines(schema), schema)
            case Format.ARROW:
                return self._open_arrow()
            case Format.LANCE:
                dataset = Location.of(self.name, self.storage_options).open()
                return dataset.scanner(scan_in_order=True).to_reader()

    def _open_csv(self, schema: pa.Schema | None) -> pa.RecordBatchReader:
        types = {} if schema is None else {field.name: to_csv_type(field.type) for field in schema}
        return pyarrow.csv.open_csv(
            self._open_stream(),
            read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types,
                null_values=list(self.nulls),
                strings_can_be_null=True,
                # In CSV, two quotes are an empty text.
                quoted_strings_can_be_null=False,
            ),
        )

    def _open_json_lines(self, schema: pa.Schema | None) -> pa.RecordBatchReader:
        wanted = None
        if schema is not None:
            wanted = pa.schema([(field.name, to_json_type(field.type)) for field in schema])
        try:
            return pyarrow.json.open_json(
                self._open_stream(),
                read_options=pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES),
                parse_options=pyarrow.json.ParseOptions(explicit_schema=wanted),
            )
        except pa.ArrowInvalid as error:
            if wanted is None or "Empty JSON" not in str(error):
                raise
            return pa.RecordBatchReader.from_batches(wanted, [])

    def _open_arrow(self) -> pa.RecordBatchReader:
        if self.name == STDIN:
            return pa.ipc.open_stream(sys.stdin.buffer)
        file = self._open_file()
        is_stream = file.read(6) != b"ARROW1"
        file.seek(0)
        if is_stream:
            return pa.ipc.open_stream(file)
        stored = pa.ipc.open_file(file)
        batches = (stored.get_batch(place) for place in range(stored.num_record_batches))
        return pa.RecordBatchReader.from_batches(stored.schema, batches)

    def _open_stream(self) -> Any:
        if self.name == STDIN:
            return sys.stdin.buffer
        filesystem, path = self._resolve()
        return filesystem.open_input_stream(path, compression="detect")

    def _open_file(self) -> Any:
        if self.name == STDIN:
            raise OSError(f"Cannot read {self.format} from stdin, only from a file. Name a file.")
        filesystem, path = self._resolve()
        return filesystem.open_input_file(path)

    def _resolve(self) -> tuple[Any, str]:
        if _URI.match(self.name):
            filesystem, path = pyarrow.fs.FileSystem.from_uri(self.name)
            return filesystem, path
        return pyarrow.fs.LocalFileSystem(), self.name

    def _name_file_in_errors(self, read: Callable[[], Any]) -> Callable[[], Any]:
        """Return the function with errors that name the file and its format."""

        def read_or_explain() -> Any:
            try:
                return read()
            except SchemaMismatch as error:
                raise SchemaMismatch(f"{self.name}: {error}") from None
            except (pa.ArrowException, ValueError) as error:
                label = _LABELS.get(self.format, self.format)
                raise SchemaMismatch(f"Cannot read {self.name} as {label}: {error}") from None

        return read_or_explain


def chain_sources(
    sources: Sequence[Source], schema: pa.Schema, progress: RowProgress
) -> pa.RecordBatchReader:
    """Return the rows of all sources as one stream that reports progress."""

    def batches() -> Iterator[pa.RecordBatch]:
        for source in sources:
            for batch in source.read_batches(schema):
                progress.read(batch.num_rows)
                yield batch
        progress.all_read()

    return pa.RecordBatchReader.from_batches(remove_ids(schema), batches())


def _parse_reader(reader: pa.RecordBatchReader, schema: pa.Schema | None) -> pa.RecordBatchReader:
    """Return the reader with its text parsed to the types of the schema."""
    if schema is None:
        return reader
    kinds = [
        schema.field(field.name).type if field.name in schema.names else field.type
        for field in reader.schema
    ]

    def parse_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for name, array, kind in zip(reader.schema.names, batch.columns, kinds, strict=True):
            try:
                arrays.append(parse_text(array, kind))
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(f"column {name!r} ({kind}): {error}") from None
        return pa.RecordBatch.from_arrays(arrays, names=reader.schema.names)

    nothing = pa.RecordBatch.from_arrays(
        [pa.array([], field.type) for field in reader.schema], schema=reader.schema
    )
    return pa.RecordBatchReader.from_batches(
        parse_batch(nothing).schema, (parse_batch(batch) for batch in reader)
    )


def _without_parquet_id(field: pa.Field) -> pa.Field:
    metadata = {
        key: text for key, text in (field.metadata or {}).items() if key != b"PARQUET:field_id"
    }
    return field.with_metadata(metadata or None)


def make_source(
    name: str, format: Format | None, nulls: list[str] | None, options: dict[str, str] | None
) -> Source:
    """Return a file as a source of rows; raise a usage error if its format is unknown."""
    known = format or guess_format(name)
    if known is None:
        raise typer.BadParameter(
            f"Cannot determine the format of {name!r} from its name: pass --format.",
            param_hint="'--format'",
        )
    return Source(name, known, options, ("", *(nulls or [])))


def count_total_rows(sources: Sequence[Source]) -> int | None:
    """Return the number of rows of all sources; None if it takes reading them."""
    counts = [source.count_rows() for source in sources]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


# A time of day followed by a zone.
_HAS_ZONE = r"[T ]\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"


def to_csv_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to read a CSV column as; `parse_text` converts it to that of the table."""
    if pt.is_dictionary(kind):
        return to_csv_type(kind.value_type)
    return pa.string() if _is_zoned(kind) or _is_bytes(kind) else kind


def to_json_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to read a JSON field as; `parse_text` converts it to that of the table."""
    if pt.is_dictionary(kind):
        return to_json_type(kind.value_type)
    if _is_zoned(kind) or _is_bytes(kind) or pt.is_date(kind) or pt.is_time(kind):
        return pa.string()
    if pt.is_struct(kind):
        return pa.struct([child.with_type(to_json_type(child.type)) for child in kind])
    if _is_list(kind):
        return pa.list_(kind.value_field.with_type(to_json_type(kind.value_type)))
    return kind


def parse_text(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse the text of an array; ArrowInvalid names the text that is invalid.

    A timestamp without a zone is in the zone of its column. Bytes are in hex.
    """
    if pt.is_dictionary(kind):
        return parse_text(array, kind.value_type)
    if pt.is_struct(kind) and pt.is_struct(array.type):
        children = [
            parse_text(child, field.type)
            for child, field in zip(array.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(
            children, names=[field.name for field in kind], mask=array.is_null()
        )
    if _is_list(kind) and pt.is_list(array.type):
        return _parse_lists(array, kind)
    if not pt.is_string(array.type) or pt.is_string(kind) or pt.is_large_string(kind):
        return array
    if _is_zoned(kind):
        return _parse_zoned(array, kind)
    if _is_bytes(kind):
        return _parse_hex(array, kind)
    if pt.is_time(kind):
        # Arrow parses a time of day only as part of a timestamp.
        unit = kind.unit
        moments = pc.binary_join_element_wise("1970-01-01T", array, "")
        return moments.cast(pa.timestamp(unit)).cast(kind)
    return array.cast(kind)


def _parse_lists(array: pa.ListArray, kind: pa.DataType) -> pa.Array:
    items = parse_text(array.flatten(), kind.value_type)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = pa.array([0, *lengths.cumsum()], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, items, mask=array.is_null())
    return lists.cast(kind) if pt.is_fixed_size_list(kind) else lists


def _parse_zoned(array: pa.StringArray, kind: pa.TimestampType) -> pa.Array:
    zoned = pc.match_substring_regex(array, _HAS_ZONE)
    local = pc.if_else(zoned, None, array).cast(pa.timestamp(kind.unit))
    return pc.coalesce(
        pc.if_else(zoned, array, None).cast(kind), pc.assume_timezone(local, kind.tz)
    )


def _parse_hex(array: pa.StringArray, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(
            [None if text is None else bytes.fromhex(text) for text in array.to_pylist()], kind
        )
    except ValueError as error:
        raise pa.ArrowInvalid(f"bytes are written as hexadecimal digits: {error}") from None


def _is_zoned(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) and kind.tz is not None)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_fixed_size_binary(kind)
        or pt.is_binary_view(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))
