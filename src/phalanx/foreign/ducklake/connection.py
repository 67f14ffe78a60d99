"""The location of a DuckLake catalog, and consistent reads of it.

DuckDB reads all three kinds of catalog: its own files, SQLite files, and PostgreSQL. A catalog is
open only while it is read, because an open DuckDB file locks out writers.
"""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from phalanx.errors import InvalidCatalog, PhalanxError, StorageFailure, format_value, hide_secrets

if TYPE_CHECKING:
    import duckdb

_SQLITE_MAGIC = b"SQLite format 3\0"
_DUCKDB_MAGIC = b"DUCK"
_DUCKDB_MAGIC_OFFSET = 8
_POSTGRES_URI = re.compile(r"postgres(ql)?://")
_POSTGRES_SETTING = re.compile(r"\b(dbname|host|hostaddr|port|user|service)\s*=")
_UNSUPPORTED_PREFIXES = ("mysql:", "md:", "motherduck:", "quack:")
_ALREADY_OPEN = "Unique file handle conflict"
_MAX_COPIES = 5
# The errors that a value of an unexpected type causes.
_VALUE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, pa.ArrowException)
# Download and load no extensions, and do not resolve table names to Python variables.
_SANDBOX_SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
}
# The PyPI package of the DuckDB extension for each kind; DuckDB files need none.
_EXTENSIONS = {
    "sqlite": "duckdb_extension_sqlite_scanner",
    "postgres": "duckdb_extension_postgres_scanner",
}


@dataclass(frozen=True, slots=True)
class CatalogLocation:
    """The kind and the location of a catalog."""

    kind: str
    # The connection text of a server may hold a password.
    target: str = field(repr=False)
    metadata_schema: str

    @classmethod
    def of(cls, catalog: object, metadata_schema: str | None = None) -> CatalogLocation:
        """Parse a path or a connection text, with or without DuckLake's own prefixes."""
        text = str(catalog) if isinstance(catalog, str | Path) else None
        if not text:
            raise InvalidCatalog(
                f"Cannot open {format_value(catalog)} as a DuckLake catalog: expected the path of "
                "a DuckDB or SQLite file, or a PostgreSQL connection text such as "
                "'postgres:dbname=lake'."
            )
        kind, target = _parse_target(text.removeprefix("ducklake:"), text)
        schema = metadata_schema or ("public" if kind == "postgres" else "main")
        return cls(kind, target, schema)

    def __str__(self) -> str:
        # A connection text may hold a password.
        return "the PostgreSQL catalog" if self.kind == "postgres" else f"the catalog {self.target}"

    @property
    def title(self) -> str:
        """The catalog at the start of a sentence."""
        return f"T{str(self)[1:]}"

    @property
    def address(self) -> str:
        """The normalized location, without a password."""
        if self.kind != "postgres":
            return str(Path(self.target).absolute())
        return f"postgres:{hide_secrets(self.target)}"

    @property
    def folder(self) -> Path | None:
        """The folder of the catalog's file; None for a server."""
        return None if self.kind == "postgres" else Path(self.target).absolute().parent

    @contextmanager
    def open(self) -> Iterator[CatalogReader]:
        """Open the catalog for reading, in one transaction."""
        duckdb = _import_duckdb()
        with ExitStack() as stack:
            connection = duckdb.connect(config=_SANDBOX_SETTINGS)
            stack.callback(connection.close)
            try:
                connection.execute("SET TimeZone = 'UTC'")
                self._attach(connection, stack)
                # Views, macros and names of the catalog are untrusted: they must not open a file,
                # connect to a server or change these settings.
                connection.execute("SET enable_external_access = false")
                connection.execute("SET lock_configuration = true")
                connection.execute("BEGIN TRANSACTION")
                yield CatalogReader(self, connection, self._list_tables(connection))
            except duckdb.Error as error:
                raise InvalidCatalog(
                    f"Cannot read {self}: {hide_secrets(_first_line(error))}"
                ) from None
            except _VALUE_ERRORS as error:
                # Databases without strict types may hold texts and NULLs instead of numbers.
                raise InvalidCatalog(
                    f"Cannot read {self}: a value in it does not have the type that DuckLake "
                    f"specifies ({_first_line(error)}). The catalog is damaged."
                ) from error

    def _attach(self, connection: duckdb.DuckDBPyConnection, stack: ExitStack) -> None:
        if self.kind in _EXTENSIONS:
            connection.execute(f"LOAD {quote_text(_find_extension(self.kind))}")
        option = "" if self.kind == "duckdb" else f"TYPE {self.kind}, "
        try:
            connection.execute(f"ATTACH {quote_text(self.target)} AS lake ({option}READ_ONLY)")
        except _import_duckdb().Error as error:
            if self.kind == "duckdb" and _ALREADY_OPEN in str(error):
                copies = stack.enter_context(TemporaryDirectory(prefix="phalanx-ducklake-"))
                connection.execute(
                    f"ATTACH {quote_text(_copy_catalog(self.target, copies))} AS lake"
                )
                return
            raise StorageFailure(
                f"Cannot open {self}: {hide_secrets(_first_line(error))}. Check that it "
                "exists, that no other process has it open for writing, and that you may read it."
            ) from None

    def _list_tables(self, connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
        rows = connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake' "
            "AND schema_name = ?",
            [self.metadata_schema],
        ).fetchall()
        return frozenset(row[0] for row in rows)


@dataclass(frozen=True, slots=True)
class CatalogReader:
    """An open catalog, read in one transaction."""

    location: CatalogLocation
    connection: duckdb.DuckDBPyConnection
    tables: frozenset[str]

    def qualify(self, name: str) -> str:
        """Return the qualified name of a catalog table for SQL."""
        return f"lake.{quote_name(self.location.metadata_schema)}.{quote_name(name)}"

    def has_table(self, name: str) -> bool:
        """Return whether the catalog has a table of this name."""
        return name in self.tables

    def describe_columns(self, name: str) -> dict[str, str]:
        """Return the columns of a catalog table with their DuckDB types."""
        rows = self.connection.execute(f"DESCRIBE SELECT * FROM {self.qualify(name)}").fetchall()
        return {row[0]: row[1] for row in rows}

    def fetch_rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query, for small results."""
        return self.connection.execute(sql, list(parameters)).fetchall()

    def fetch_arrow(self, sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """Return the rows of a query as an Arrow table."""
        found = self.connection.execute(sql, list(parameters)).to_arrow_table()
        return found.combine_chunks()


def _parse_target(target: str, text: str) -> tuple[str, str]:
    for prefix, kind in (("sqlite:", "sqlite"), ("duckdb:", "duckdb")):
        if target.startswith(prefix):
            return kind, _check_exists(target.removeprefix(prefix))
    if _POSTGRES_URI.match(target):
        return "postgres", target
    for prefix in ("postgres:", "postgresql:"):
        if target.startswith(prefix):
            return "postgres", target.removeprefix(prefix)
    if target.startswith(_UNSUPPORTED_PREFIXES):
        raise InvalidCatalog(
            f"Cannot open {target.partition(':')[0]!r} catalogs: expected DuckDB, SQLite or "
            "PostgreSQL. Copy the catalog into one of these."
        )
    if not Path(target).exists() and _POSTGRES_SETTING.search(target):
        return "postgres", target
    return _detect_kind(_check_exists(target)), target


def _check_exists(path: str) -> str:
    if not Path(path).is_file():
        raise StorageFailure(f"Cannot open the DuckLake catalog {path}: there is no such file.")
    return path


def _detect_kind(path: str) -> str:
    with open(path, "rb") as file:
        start = file.read(len(_SQLITE_MAGIC))
    if start == _SQLITE_MAGIC:
        return "sqlite"
    if start[_DUCKDB_MAGIC_OFFSET:].startswith(_DUCKDB_MAGIC):
        return "duckdb"
    raise InvalidCatalog(
        f"Cannot open {path} as a DuckLake catalog: it is neither a DuckDB nor a SQLite file."
    )


def _copy_catalog(path: str, folder: str) -> str:
    """Copy a DuckDB file that this process has open itself: DuckDB opens a file only once.

    Repeats the copy until no write happened meanwhile.
    """
    copy = str(Path(folder) / "catalog")
    for _ in range(_MAX_COPIES):
        before = _file_state(path)
        for suffix in ("", ".wal"):
            Path(copy + suffix).unlink(missing_ok=True)
            if Path(path + suffix).exists():
                shutil.copyfile(path + suffix, copy + suffix)
        if _file_state(path) == before:
            return copy
    raise StorageFailure(
        f"Cannot read the catalog {path}: this process has it open and keeps writing to it. "
        "Detach it first."
    )


def _file_state(path: str) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = []
    for each in (Path(path), Path(f"{path}.wal")):
        try:
            stat = each.stat()
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((stat.st_size, stat.st_mtime_ns))
    return found


def _import_duckdb() -> Any:
    try:
        return importlib.import_module("duckdb")
    except ImportError:
        raise PhalanxError(
            "Reading DuckLake catalogs needs DuckDB: pip install 'phalanx-lance[ducklake]'."
        ) from None


def _find_extension(kind: str) -> str:
    """Return the path of the extension that PyPI installed; nothing is downloaded."""
    try:
        module = importlib.import_module(_EXTENSIONS[kind])
    except ImportError:
        raise PhalanxError(
            f"Reading DuckLake catalogs in {kind} needs a DuckDB extension: "
            "pip install 'phalanx-lance[ducklake]'."
        ) from None
    folder = Path(str(module.__file__)).parent
    found = sorted(folder.glob(f"extensions/v{_import_duckdb().__version__}/*.duckdb_extension"))
    if not found:
        raise PhalanxError(
            f"{_EXTENSIONS[kind]} has no extension for DuckDB {_import_duckdb().__version__}: "
            "install the same version of both, as phalanx-lance[ducklake] does."
        )
    return str(found[0])


def quote_name(name: str) -> str:
    """Quote the name of a table or column for SQL."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def quote_text(text: str) -> str:
    """Quote a string literal for SQL."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
