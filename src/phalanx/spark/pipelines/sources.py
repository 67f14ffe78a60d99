"""Inputs of an ingest: files of one format, a table, another data source, a DataFrame."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructField, StructType

from phalanx.errors import InvalidArgument, PhalanxError, hide_secrets
from phalanx.spark.runtime.failures import translate_spark_errors
from phalanx.spark.runtime.options import option_text
from phalanx.table.imports.chunks import digest_of

_BY_SUFFIX = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
}
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate"}
FILE_FORMATS = ("parquet", "csv", "json", "orc", "text", "avro", "xml")
# Text formats: times without a zone are in UTC, and unreadable values are errors, not NULL.
_TEXT_DEFAULTS = {"timeZone": "UTC", "mode": "FAILFAST"}
_DEFAULTS: dict[str, dict[str, str]] = {
    # Refuse a file whose columns are in another order, instead of mixing them up.
    "csv": {**_TEXT_DEFAULTS, "header": "true", "inferSchema": "true", "enforceSchema": "false"},
    "json": _TEXT_DEFAULTS,
}
_LISTING = {"pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter"}
_WILD = re.compile(r"([\\*?\[\]{}])")


@dataclass(frozen=True, slots=True)
class InputFile:
    """A listed file: its path, size and modification time."""

    path: str
    size: int
    modified: int

    @property
    def digest(self) -> str:
        """A digest that identifies the file at this state."""
        return digest_of(self.path, f"{self.size} {self.modified}")


@dataclass(frozen=True, slots=True)
class SparkInput:
    """The input of an ingest: files, which can be read in parts, or a whole DataFrame."""

    name: str
    format: str
    options: Mapping[str, str] = field(repr=False)
    files: tuple[InputFile, ...] | None
    user_schema: StructType | str | None
    dataframe: DataFrame | None = None

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(file.size for file in self.files or ())

    def schema(self, spark: SparkSession, stored: StructType | None) -> StructType:
        """Return the columns; text files get the types of an existing table."""
        if self.dataframe is not None:
            # Spark Connect resolves the schema only now.
            with translate_spark_errors(f"read {self.name}"):
                return self.dataframe.schema
        is_typed = self.user_schema is not None or stored is None or self.format not in _DEFAULTS
        names_only = {} if is_typed or self.format != "csv" else {"inferSchema": "false"}
        with translate_spark_errors(f"read {self.name} as {self.format}"):
            reader = self._reader(spark, names_only)
            if self.user_schema is not None:
                reader = reader.schema(self.user_schema)
            found = reader.load(self.name).schema
        if is_typed or stored is None:
            return found
        known = {field.name: field.dataType for field in stored}
        return StructType(
            [StructField(each.name, known.get(each.name, each.dataType)) for each in found]
        )

    def frame(
        self, spark: SparkSession, schema: StructType, files: Sequence[InputFile] | None
    ) -> DataFrame:
        """Return the rows of some files, or of the whole input."""
        if self.dataframe is not None or files is None:
            assert self.dataframe is not None
            return self.dataframe
        paths = [_WILD.sub(r"\\\1", file.path) for file in files]
        based = {"basePath": self.name} if self._is_folder else {}
        with translate_spark_errors(f"read {self.name} as {self.format}"):
            return self._reader(spark, based).schema(schema).load(paths)

    @property
    def _is_folder(self) -> bool:
        """Whether folder names may be partition values."""
        names = {PurePosixPath(file.path).name for file in self.files or ()}
        return not _WILD.search(self.name) and names != {PurePosixPath(self.name).name}

    def _reader(self, spark: SparkSession, more: Mapping[str, str]) -> DataFrameReader:
        return spark.read.format(self.format).options(**{**self.options, **more})


def resolve_source(
    spark: SparkSession,
    source: str | DataFrame,
    format: str | None,
    options: Mapping[str, object],
    schema: StructType | str | None,
) -> SparkInput:
    """Resolve a source: a DataFrame, a path, a table, or the source of another format."""
    given = {name: option_text(value) for name, value in options.items()}
    if not isinstance(source, str):
        if not hasattr(source, "schema") or not hasattr(source, "write"):
            raise InvalidArgument(
                f"Cannot ingest {source!r}: expected a DataFrame, a path of files, or the name of "
                "a table."
            )
        return SparkInput("a DataFrame", "DataFrame", given, None, None, source)
    if format is None and _format_of(source) is None and _is_table(spark, source):
        with translate_spark_errors(f"read the table {source}"):
            return SparkInput(source, "table", given, None, None, spark.table(source))
    wanted = None if format is None else format.lower()
    if wanted is not None and wanted not in FILE_FORMATS:
        return _load_dataframe(spark, source, wanted, given, schema)
    files = _list_files(spark, source, given)
    wanted = wanted or _format_of(source) or _common_format(source, files)
    return SparkInput(source, wanted, _add_defaults(wanted, given), files, schema)


def _load_dataframe(
    spark: SparkSession,
    source: str,
    format: str,
    options: dict[str, str],
    schema: StructType | str | None,
) -> SparkInput:
    """Load a data source of Spark; for JDBC the source is the URL."""
    with translate_spark_errors(f"read {hide_secrets(source)} as {format}"):
        reader = spark.read.format(format).options(**options)
        if schema is not None:
            reader = reader.schema(schema)
        frame = reader.option("url", source).load() if format == "jdbc" else reader.load(source)
    return SparkInput(hide_secrets(source), format, options, None, None, frame)


def _list_files(
    spark: SparkSession, source: str, options: Mapping[str, str]
) -> tuple[InputFile, ...]:
    """List the files of a path, ordered by path."""
    listing = {name: text for name, text in options.items() if name.lower() in _LISTING}
    try:
        with translate_spark_errors(f"list the files of {source}"):
            # Does not read the contents.
            found = spark.read.format("binaryFile").options(**listing).load(source)
            rows = found.selectExpr("path", "length", "unix_micros(modificationTime)").collect()
    except PhalanxError as error:
        cause = error.__cause__
        if not isinstance(cause, AnalysisException) or cause.getCondition() != "PATH_NOT_FOUND":
            raise
        raise PhalanxError(
            f"Cannot ingest {source!r}: there is no such path or table. Check the name, or set the "
            "format of another source."
        ) from None
    files = tuple(sorted((InputFile(*row) for row in rows), key=lambda file: file.path))
    if not files:
        raise PhalanxError(f"Cannot ingest {source!r}: it has no files.")
    return files


def _add_defaults(format: str, options: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower() for name in options}
    defaults = {
        name: text for name, text in _DEFAULTS.get(format, {}).items() if name.lower() not in given
    }
    return {**defaults, **options}


def _format_of(path: str) -> str | None:
    """Return the format of a file by its suffix."""
    name = PurePosixPath(path)
    if name.suffix.lower() in _COMPRESSED:
        name = name.with_suffix("")
    return _BY_SUFFIX.get(name.suffix.lower())


def _common_format(source: str, files: Sequence[InputFile]) -> str:
    found = {_format_of(file.path) for file in files}
    if len(found) != 1 or None in found:
        endings = sorted({PurePosixPath(file.path).suffix or "no ending" for file in files})
        raise PhalanxError(
            f"Cannot infer the format of {source!r} from its files ({', '.join(endings)}). Set it, "
            "such as format='parquet'."
        )
    return str(found.pop())


def _is_table(spark: SparkSession, name: str) -> bool:
    try:
        return bool(spark.catalog.tableExists(name))
    except Exception:
        # Most paths are not valid table names.
        return False
