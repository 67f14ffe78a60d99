"""Where a DuckLake catalog is, and one consistent reading of it.

DuckDB reads all three kinds: its own files, SQLite's, and PostgreSQL's tables. A catalog is open
only as long as it is read, for an open DuckDB file keeps writers out.
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

from phalanx.errors import InvalidCatalog, PhalanxError, StorageFailure, shown, without_secrets

if TYPE_CHECKING:
    import duckdb

_SQLITE_MAGIC = b"SQLite format 3\0"
_DUCKDB_MAGIC = b"DUCK"
_DUCKDB_MAGIC_OFFSET = 8
_POSTGRES_URI = re.compile(r"postgres(ql)?://")
_POSTGRES_SETTING = re.compile(r"\b(dbname|host|hostaddr|port|user|service)\s*=")
_ELSEWHERE = ("mysql:", "md:", "motherduck:", "quack:")
_OPEN_HERE = "Unique file handle conflict"
_MOST_COPIES = 5
# What a value of another kind leads to.
_UNTYPED = (TypeError, ValueError, ArithmeticError, LookupError, pa.ArrowException)
# Nothing is fetched or loaded by itself, and no variable of Python is taken for a table.
_CLOSED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
}
# The extension of DuckDB that reads a kind, as PyPI has it; its own files need none.
_EXTENSIONS = {
    "sqlite": "duckdb_extension_sqlite_scanner",
    "postgres": "duckdb_extension_postgres_scanner",
}


@dataclass(frozen=True, slots=True)
class CatalogLocation:
    """A catalog: of which kind it is, and where."""

    kind: str
    # The connection text of a server may hold a password.
    target: str = field(repr=False)
    metadata_schema: str

    @classmethod
    def of(cls, catalog: object, metadata_schema: str | None = None) -> CatalogLocation:
        """The location of a path or a connection text, with DuckLake's own prefixes or without."""
        text = str(catalog) if isinstance(catalog, str | Path) else None
        if not text:
            raise InvalidCatalog(
                f"Cannot open {shown(catalog)} as a DuckLake catalog: expected the path of a "
                "DuckDB or SQLite file, or a connection text of PostgreSQL such as "
                "'postgres:dbname=lake'."
            )
        kind, target = _recognised(text.removeprefix("ducklake:"), text)
        schema = metadata_schema or ("public" if kind == "postgres" else "main")
        return cls(kind, target, schema)

    def __str__(self) -> str:
        # A connection text may hold a password.
        return "the PostgreSQL catalog" if self.kind == "postgres" else f"the catalog {self.target}"

    @property
    def titled(self) -> str:
        """The catalog at the start of a sentence."""
        return f"T{str(self)[1:]}"

    @property
    def place(self) -> str:
        """Where it is, the same however it was named, without a password."""
        if self.kind != "postgres":
            return str(Path(self.target).absolute())
        return f"postgres:{without_secrets(self.target)}"

    @property
    def folder(self) -> Path | None:
        """The folder of the catalog's file; None where it is a server."""
        return None if self.kind == "postgres" else Path(self.target).absolute().parent

    @contextmanager
    def reading(self) -> Iterator[CatalogReading]:
        """One consistent reading of the catalog."""
        duckdb = _duckdb()
        with ExitStack() as stack:
            connection = duckdb.connect(config=_CLOSED)
            stack.callback(connection.close)
            try:
                connection.execute("SET TimeZone = 'UTC'")
                self._attach(connection, stack)
                # Views, macros and names of the catalog are a stranger's: nothing in them may
                # open a file, reach a server or undo these settings.
                connection.execute("SET enable_external_access = false")
                connection.execute("SET lock_configuration = true")
                connection.execute("BEGIN TRANSACTION")
                yield CatalogReading(self, connection, self._tables(connection))
            except duckdb.Error as error:
                raise InvalidCatalog(
                    f"Cannot read {self}: {without_secrets(_first_line(error))}"
                ) from None
            except _UNTYPED as error:
                # Databases without strict types hold texts and NULLs where numbers belong.
                raise InvalidCatalog(
                    f"Cannot read {self}: a value in it is not of the kind that DuckLake's "
                    f"document says ({_first_line(error)}). The catalog is damaged."
                ) from error

    def _attach(self, connection: duckdb.DuckDBPyConnection, stack: ExitStack) -> None:
        if self.kind in _EXTENSIONS:
            connection.execute(f"LOAD {_quoted(_extension(self.kind))}")
        option = "" if self.kind == "duckdb" else f"TYPE {self.kind}, "
        try:
            connection.execute(f"ATTACH {_quoted(self.target)} AS lake ({option}READ_ONLY)")
        except _duckdb().Error as error:
            if self.kind == "duckdb" and _OPEN_HERE in str(error):
                copies = stack.enter_context(TemporaryDirectory(prefix="phalanx-ducklake-"))
                connection.execute(f"ATTACH {_quoted(_copied(self.target, copies))} AS lake")
                return
            raise StorageFailure(
                f"Cannot open {self}: {without_secrets(_first_line(error))}. Check that it is "
                "there, that nobody else has it open for writing, and that it may be read."
            ) from None

    def _tables(self, connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
        rows = connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake' "
            "AND schema_name = ?",
            [self.metadata_schema],
        ).fetchall()
        return frozenset(row[0] for row in rows)


@dataclass(frozen=True, slots=True)
class CatalogReading:
    """A catalog that is open, in one transaction."""

    location: CatalogLocation
    connection: duckdb.DuckDBPyConnection
    tables: frozenset[str]

    def table(self, name: str) -> str:
        """A table of the catalog, for SQL."""
        return f"lake.{quoted_name(self.location.metadata_schema)}.{quoted_name(name)}"

    def has(self, name: str) -> bool:
        """Whether the catalog has a table of this name."""
        return name in self.tables

    def columns(self, name: str) -> dict[str, str]:
        """The columns of a table of the catalog, and their types as DuckDB sees them."""
        rows = self.connection.execute(f"DESCRIBE SELECT * FROM {self.table(name)}").fetchall()
        return {row[0]: row[1] for row in rows}

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a query finds, for the few rows that describe a table."""
        return self.connection.execute(sql, list(parameters)).fetchall()

    def arrow(self, sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """What a query finds, as columns."""
        found = self.connection.execute(sql, list(parameters)).to_arrow_table()
        return found.combine_chunks()


def _recognised(target: str, text: str) -> tuple[str, str]:
    for prefix, kind in (("sqlite:", "sqlite"), ("duckdb:", "duckdb")):
        if target.startswith(prefix):
            return kind, _existing(target.removeprefix(prefix))
    if _POSTGRES_URI.match(target):
        return "postgres", target
    for prefix in ("postgres:", "postgresql:"):
        if target.startswith(prefix):
            return "postgres", target.removeprefix(prefix)
    if target.startswith(_ELSEWHERE):
        raise InvalidCatalog(
            f"Cannot open {target.partition(':')[0]!r} catalogs: expected DuckDB, SQLite or "
            "PostgreSQL. Copy the catalog into one of these."
        )
    if not Path(target).exists() and _POSTGRES_SETTING.search(target):
        return "postgres", target
    return _kind_of_file(_existing(target)), target


def _existing(path: str) -> str:
    if not Path(path).is_file():
        raise StorageFailure(f"Cannot open the DuckLake catalog {path}: there is no such file.")
    return path


def _kind_of_file(path: str) -> str:
    with open(path, "rb") as file:
        start = file.read(len(_SQLITE_MAGIC))
    if start == _SQLITE_MAGIC:
        return "sqlite"
    if start[_DUCKDB_MAGIC_OFFSET:].startswith(_DUCKDB_MAGIC):
        return "duckdb"
    raise InvalidCatalog(
        f"Cannot open {path} as a DuckLake catalog: it is neither a DuckDB nor a SQLite file."
    )


def _copied(path: str, folder: str) -> str:
    """A copy of a DuckDB file that this process has open itself: DuckDB opens a file only once.

    It is taken again until nobody wrote meanwhile.
    """
    copy = str(Path(folder) / "catalog")
    for _ in range(_MOST_COPIES):
        before = _state(path)
        for suffix in ("", ".wal"):
            Path(copy + suffix).unlink(missing_ok=True)
            if Path(path + suffix).exists():
                shutil.copyfile(path + suffix, copy + suffix)
        if _state(path) == before:
            return copy
    raise StorageFailure(
        f"Cannot read the catalog {path}: this process has it open, and writes to it all the time. "
        "Detach it first."
    )


def _state(path: str) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = []
    for each in (Path(path), Path(f"{path}.wal")):
        try:
            stat = each.stat()
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((stat.st_size, stat.st_mtime_ns))
    return found


def _duckdb() -> Any:
    try:
        return importlib.import_module("duckdb")
    except ImportError:
        raise PhalanxError(
            "Reading DuckLake catalogs needs DuckDB: pip install 'phalanx-lance[ducklake]'."
        ) from None


def _extension(kind: str) -> str:
    """Where the extension that PyPI brought is: nothing is fetched while a catalog is read."""
    try:
        module = importlib.import_module(_EXTENSIONS[kind])
    except ImportError:
        raise PhalanxError(
            f"Reading DuckLake catalogs in {kind} needs an extension of DuckDB: "
            "pip install 'phalanx-lance[ducklake]'."
        ) from None
    folder = Path(str(module.__file__)).parent
    found = sorted(folder.glob(f"extensions/v{_duckdb().__version__}/*.duckdb_extension"))
    if not found:
        raise PhalanxError(
            f"{_EXTENSIONS[kind]} has no extension for DuckDB {_duckdb().__version__}: install "
            "the same version of both, as phalanx-lance[ducklake] does."
        )
    return str(found[0])


def quoted_name(name: str) -> str:
    """A name of a table or column, for SQL."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _quoted(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
