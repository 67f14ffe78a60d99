"""Configuration of Spark sessions for Phalanx."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from phalanx.errors import PhalanxError
from phalanx.spark.sql import bridge

Builder = TypeVar("Builder")

# Rows are exchanged between the JVM and Python in batches; small ones are slow.
_BATCH_ROWS = 65_536


def configure(builder: Builder) -> Builder:
    """Add the settings that Phalanx needs to a session builder; keep settings that are set.

    `spark = phalanx.spark.configure(SparkSession.builder).getOrCreate()`

    This includes a jar of Java classes, compiled once. Without them queries read all columns and
    partitions, joins shuffle, and rows are transferred more slowly.
    `.config("spark.phalanx.bridge", "false")` leaves them out.
    """
    # Otherwise workers use the first Python on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # PySpark forks to start the JVM, which does not use Lance.
    warnings.filterwarnings("ignore", "lance is not fork-safe", UserWarning)
    set_already = getattr(builder, "_options", {})
    missing = {key: value for key, value in _SETTINGS.items() if key not in set_already}
    for key, value in (missing | _bridge_settings(set_already)).items():
        builder = builder.config(key, value)  # type: ignore[attr-defined]
    return builder


def _bridge_settings(set_already: Mapping[str, object]) -> dict[str, str]:
    """Return the settings for the Java classes, for a Spark that this process starts."""
    if str(set_already.get("spark.remote", "")).startswith("sc://"):
        return {}
    is_wanted = str(set_already.get("spark.phalanx.bridge", "true")).lower() != "false"
    jar = bridge.find_jar() if is_wanted else None
    if jar is None:
        _check_no_catalog(set_already)
        return {}
    jars = [str(set_already[_JARS])] if set_already.get(_JARS) else []
    if any(jar.name in each for each in jars):
        return {}
    extensions = [str(set_already[_EXTENSIONS])] if set_already.get(_EXTENSIONS) else []
    joins = {key: value for key, value in _JOIN_SETTINGS.items() if key not in set_already}
    return {
        _JARS: ",".join([*jars, str(jar)]),
        _EXTENSIONS: ",".join([*extensions, "phalanx.bridge.Extensions"]),
        **joins,
    }


def _check_no_catalog(set_already: Mapping[str, object]) -> None:
    """Refuse a catalog whose Java class would be missing."""
    for key, value in set_already.items():
        name = key.removeprefix(_CATALOG)
        if key.startswith(_CATALOG) and "." not in name and value == _CATALOG_CLASS:
            raise PhalanxError(
                f"The catalog {name!r} needs the Java classes of Phalanx, which this session does "
                "not have. Install JDK 17 or newer and leave spark.phalanx.bridge unset, or "
                "leave the catalog out and read tables by path, with format('phalanx')."
            )


_CATALOG = "spark.sql.catalog."
_CATALOG_CLASS = "phalanx.bridge.Catalog"
_JARS = "spark.jars"
_EXTENSIONS = "spark.sql.extensions"

# Spark uses reported partitions in joins and groups: also if one side lacks keys of the other, if
# one has 16 buckets and the other 8, and if there are more partition keys than join keys.
_BUCKETING = "spark.sql.sources.v2.bucketing"
_JOIN_SETTINGS = {
    f"{_BUCKETING}.enabled": "true",
    f"{_BUCKETING}.pushPartValues.enabled": "true",
    f"{_BUCKETING}.allowCompatibleTransforms.enabled": "true",
    f"{_BUCKETING}.allowKeysSubsetOfPartitionKeys.enabled": "true",
    f"{_BUCKETING}.shuffle.enabled": "true",
    f"{_BUCKETING}.partition.filter.enabled": "true",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
}

# With TCP the first rows of each task are delayed by 40 ms.
_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"} if hasattr(socket, "AF_UNIX") else {}

_SETTINGS = {
    **_SOCKETS,
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(_BATCH_ROWS),
    # Allow columns of type TIME.
    "spark.sql.timeType.enabled": "true",
}

_LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),
    "spark.log.level": "WARN",
}


def local_session(name: str = "phalanx", log: str | os.PathLike[str] | None = None) -> SparkSession:
    """Return the active session, or start one on all cores of this machine.

    The output of Spark and its workers goes to a log file, not to the caller's output. Without
    `log` it is a temporary file, which is removed when the process ends.
    """
    if (running := SparkSession.getActiveSession()) is not None:
        return running
    builder = configure(SparkSession.builder.appName(name).master("local[*]"))
    for key, value in _LOCAL_SETTINGS.items():
        builder = builder.config(key, value)
    path = _temporary_log() if log is None else Path(log)
    try:
        with _redirect_output(path):
            return builder.getOrCreate()
    except PySparkException:
        lines = path.read_text(errors="replace").strip().splitlines() or ["nothing"]
        raise PhalanxError(
            f"Cannot start Spark: Java says {lines[-1]!r}. It needs Java 17 or newer, in JAVA_HOME "
            "or on the PATH. On Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless"
        ) from None


def _temporary_log() -> Path:
    file, name = tempfile.mkstemp(".log", "phalanx-spark-")
    os.close(file)
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    return path


@contextmanager
def _redirect_output(path: Path) -> Iterator[None]:
    """Redirect the output of processes that start in this block to a file, for their lifetime."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        yield
    finally:
        for number, saved in zip((1, 2), kept, strict=True):
            os.dup2(saved, number)
            os.close(saved)
