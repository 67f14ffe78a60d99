"""DuckLakes written by DuckLake itself, with catalogs of each kind, and a PostgreSQL server.

Tests run statements in DuckLake, and compare the plans of Phalanx with what DuckLake reads.
"""

import importlib
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

KINDS = ("duckdb", "sqlite", "postgres")
_EXTENSIONS = ("sqlite_scanner", "postgres_scanner", "ducklake")
_FILES_READ = re.compile(r"Total Files\s*Read:\s*(\d+)")


class Lake:
    """A lake with a catalog of some kind; only DuckLake's own extension writes to it."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        server: str | None = None,
        inlined: int = 0,
        options: str = "",
    ) -> None:
        self.folder = folder
        self._options = f"DATA_INLINING_ROW_LIMIT {inlined}{options}"
        self.catalog = {
            "duckdb": f"{folder}/catalog.ducklake",
            "sqlite": f"sqlite:{folder}/catalog.sqlite",
            "postgres": f"postgres:{server}",
        }[kind]
        self.connection: Any = None
        self.open()

    def open(self) -> None:
        """Attach the lake, which creates it if it does not exist."""
        self.connection = duckdb.connect()
        for name in _EXTENSIONS:
            module = importlib.import_module(f"duckdb_extension_{name}")
            (path,) = Path(str(module.__file__)).parent.glob("extensions/*/*.duckdb_extension")
            self.connection.execute(f"LOAD '{path}'")
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute(
            f"ATTACH 'ducklake:{self.catalog}' AS lake "
            f"(DATA_PATH '{self.folder}/data', {self._options})"
        )
        self.connection.execute("USE lake")

    def close(self) -> None:
        """Release the catalog, so that other processes can open it."""
        self.connection.close()

    def run(self, *statements: str) -> None:
        """Execute statements in DuckLake."""
        for statement in statements:
            self.connection.execute(statement)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return what DuckLake finds."""
        found: list[tuple[Any, ...]] = self.connection.execute(sql).fetchall()
        return found

    def files_with(self, table: str, where: str) -> set[str]:
        """Return the files that have a matching row, by brute force over every row."""
        rows = self.rows(
            f"WITH every AS MATERIALIZED (SELECT *, filename AS f FROM {table}) "
            f"SELECT DISTINCT f FROM every WHERE {where}"
        )
        return {row[0] for row in rows if row[0] and str(row[0]).endswith(".parquet")}

    def files_read(self, table: str, where: str) -> int:
        """Return how many files DuckLake itself reads for a filter."""
        ((_, text),) = self.rows(f"EXPLAIN ANALYZE SELECT * FROM {table} WHERE {where}")
        found = _FILES_READ.search(text)
        # A filter that no file can meet leaves no scan at all.
        return int(found[1]) if found else 0


@contextmanager
def edit_catalog(catalog: str) -> Iterator[Any]:
    """Open the tables of a catalog, to damage them in ways that DuckLake itself never does."""
    connection = duckdb.connect(catalog)
    try:
        yield connection
    finally:
        connection.close()


class PostgresServer:
    """A server of PostgreSQL in a temporary folder, reached by a socket there."""

    def __init__(self) -> None:
        self._binaries = _binaries()
        self._folder = Path(tempfile.mkdtemp(prefix="phalanx-postgres-"))
        self._user = _unprivileged_user()
        os.chmod(self._folder, 0o755)
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        self._databases = 0
        data = f"{self._folder}/data"
        self._run("initdb", "-D", data, "-U", "phalanx", "-A", "trust", "-N", "-E", "UTF8")
        settings = f"-c listen_addresses='' -k {self._folder} -c fsync=off"
        self._run("pg_ctl", "-D", data, "-w", "-l", f"{self._folder}/log", "-o", settings, "start")

    def database(self) -> str:
        """A new database, as a connection text."""
        self._databases += 1
        name = f"lake{self._databases}"
        self._run("createdb", "-h", str(self._folder), "-U", "phalanx", name)
        return f"dbname={name} host={self._folder} user=phalanx"

    def stop(self) -> None:
        """End the server and remove its folder."""
        try:
            self._run("pg_ctl", "-D", f"{self._folder}/data", "-m", "immediate", "stop")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._binaries / program), *arguments],
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            user=self._user,
            cwd=self._folder,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr or done.stdout}")


def _binaries() -> Path:
    """The folder of PostgreSQL's programs, of which Debian puts only some on the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise FileNotFoundError(
            "PostgreSQL's server is missing: the tests of DuckLake catalogs in PostgreSQL start "
            "one. On Debian and Ubuntu: sudo apt-get install postgresql"
        )
    return found[-1].parent if found else Path(os.path.realpath(str(on_path))).parent


def _unprivileged_user() -> str | None:
    """Return the user that runs the server, which refuses to run as root."""
    if os.getuid() != 0:
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
