"""What Spark can read: files of one format, a table of its catalog, a data source, a DataFrame."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructField, StructType

from phalanx.errors import PhalanxError, without_secrets
from phalanx.spark.runtime.failures import of_spark
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
# Text has no types: times without a zone are in UTC, and what cannot be read is no NULL.
_TEXT_DEFAULTS = {"timeZone": "UTC", "mode": "FAILFAST"}
_DEFAULTS: dict[str, dict[str, str]] = {
    # A file whose columns stand in another order is refused, not mixed up.
    "csv": {**_TEXT_DEFAULTS, "header": "true", "inferSchema": "true", "enforceSchema": "false"},
    "json": _TEXT_DEFAULTS,
}
_LISTING = {"pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter"}
_WILD = re.compile(r"([\\*?\[\]{}])")


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as it was found: where, how large, and when it was written last."""

    path: str
    size: int
    modified: int

    @property
    def digest(self) -> str:
        """What tells the file from others, and from what it is later."""
        return digest_of(self.path, f"{self.size} {self.modified}")


@dataclass(frozen=True, slots=True)
class Source:
    """What is read: files, which can be read in parts, or something that is read as a whole."""

    name: str
    format: str
    options: Mapping[str, str] = field(repr=False)
    files: tuple[InputFile, ...] | None
    given: StructType | str | None
    whole: DataFrame | None = None

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files or ())

    def schema(self, spark: SparkSession, stored: StructType | None) -> StructType:
        """The columns; text has the types of the table, if there is one already."""
        if self.whole is not None:
            # Connect looks for it now, not when it was loaded.
            with of_spark(f"read {self.name}"):
                return self.whole.schema
        is_typed = self.given is not None or stored is None or self.format not in _DEFAULTS
        names_only = {} if is_typed or self.format != "csv" else {"inferSchema": "false"}
        with of_spark(f"read {self.name} as {self.format}"):
            reader = self._reader(spark, names_only)
            if self.given is not None:
                reader = reader.schema(self.given)
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
        """The rows of some files, or of the whole."""
        if self.whole is not None or files is None:
            assert self.whole is not None
            return self.whole
        paths = [_WILD.sub(r"\\\1", file.path) for file in files]
        based = {"basePath": self.name} if self._is_folder else {}
        with of_spark(f"read {self.name} as {self.format}"):
            return self._reader(spark, based).schema(schema).load(paths)

    @property
    def _is_folder(self) -> bool:
        """Whether names of folders in it may be values of columns."""
        names = {PurePosixPath(file.path).name for file in self.files or ()}
        return not _WILD.search(self.name) and names != {PurePosixPath(self.name).name}

    def _reader(self, spark: SparkSession, more: Mapping[str, str]) -> DataFrameReader:
        return spark.read.format(self.format).options(**{**self.options, **more})


def source_of(
    spark: SparkSession,
    source: str | DataFrame,
    format: str | None,
    options: Mapping[str, object],
    schema: StructType | str | None,
) -> Source:
    """What a user names: a DataFrame, a path, a table, or the source of another format."""
    given = {name: option_text(value) for name, value in options.items()}
    if not isinstance(source, str):
        if not hasattr(source, "schema") or not hasattr(source, "write"):
            raise PhalanxError(
                f"Cannot ingest {source!r}: expected a DataFrame, or the path of files, or the "
                "name of a table."
            )
        return Source("a DataFrame", "DataFrame", given, None, None, source)
    if format is None and _suffix(source) is None and _is_table(spark, source):
        with of_spark(f"read the table {source}"):
            return Source(source, "table", given, None, None, spark.table(source))
    wanted = None if format is None else format.lower()
    if wanted is not None and wanted not in FILE_FORMATS:
        return _whole(spark, source, wanted, given, schema)
    files = _listed(spark, source, given)
    wanted = wanted or _suffix(source) or _common_suffix(source, files)
    return Source(source, wanted, _with_defaults(wanted, given), files, schema)


def _whole(
    spark: SparkSession,
    source: str,
    format: str,
    options: dict[str, str],
    schema: StructType | str | None,
) -> Source:
    """The rows of a data source of Spark; the source of JDBC is its URL."""
    with of_spark(f"read {without_secrets(source)} as {format}"):
        reader = spark.read.format(format).options(**options)
        if schema is not None:
            reader = reader.schema(schema)
        frame = reader.option("url", source).load() if format == "jdbc" else reader.load(source)
    return Source(without_secrets(source), format, options, None, None, frame)


def _listed(spark: SparkSession, source: str, options: Mapping[str, str]) -> tuple[InputFile, ...]:
    """The files there, in the order of their paths."""
    listing = {name: text for name, text in options.items() if name.lower() in _LISTING}
    try:
        with of_spark(f"list the files of {source}"):
            # The contents are not read.
            found = spark.read.format("binaryFile").options(**listing).load(source)
            rows = found.selectExpr("path", "length", "unix_micros(modificationTime)").collect()
    except PhalanxError as error:
        cause = error.__cause__
        if not isinstance(cause, AnalysisException) or cause.getCondition() != "PATH_NOT_FOUND":
            raise
        raise PhalanxError(
            f"Cannot ingest {source!r}: there is no such path, and no table of that name. Check "
            "it, or name the format of another source."
        ) from None
    files = tuple(sorted((InputFile(*row) for row in rows), key=lambda file: file.path))
    if not files:
        raise PhalanxError(f"Cannot ingest {source!r}: there are no files in it.")
    return files


def _with_defaults(format: str, options: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower() for name in options}
    defaults = {
        name: text for name, text in _DEFAULTS.get(format, {}).items() if name.lower() not in given
    }
    return {**defaults, **options}


def _suffix(path: str) -> str | None:
    """The format that the ending of a name tells."""
    name = PurePosixPath(path)
    if name.suffix.lower() in _COMPRESSED:
        name = name.with_suffix("")
    return _BY_SUFFIX.get(name.suffix.lower())


def _common_suffix(source: str, files: Sequence[InputFile]) -> str:
    found = {_suffix(file.path) for file in files}
    if len(found) != 1 or None in found:
        endings = sorted({PurePosixPath(file.path).suffix or "no ending" for file in files})
        raise PhalanxError(
            f"Cannot tell the format of {source!r} by its files ({', '.join(endings)}). Say it, "
            "such as format='parquet'."
        )
    return str(found.pop())


def _is_table(spark: SparkSession, name: str) -> bool:
    try:
        return bool(spark.catalog.tableExists(name))
    except Exception:
        # Most paths are no names.
        return False
