"""The jar of Java classes, compiled for the installed Spark.

The classes transfer columns and rows in large batches, and pass what a query pushes down (columns,
conditions, aggregates, partitions for joins) to Python. All planning and I/O is in Python.
docs/BRIDGE.md specifies how the two communicate.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import warnings
import zipfile
from pathlib import Path

import pyspark

_SOURCES = Path(__file__).with_name("java")
# A wheel contains the jar for the Spark of its build, for which no JDK is needed.
_SHIPPED = Path(__file__).with_name("jars")
_PROVIDER = "phalanx.bridge.Source"
_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
_VERSION = "phalanx/bridge/spark-version"
_RELEASE = "17"


class CannotCompile(Exception):
    """The reason why the jar cannot be built."""


@functools.cache
def find_jar() -> Path | None:
    """Return the jar for the installed Spark, compiled if needed; warn and return None if not."""
    try:
        return build_jar(_cache_folder())
    except CannotCompile as reason:
        warnings.warn(
            f"Spark uses only the Python source of Phalanx: {reason} Queries read all columns and "
            "all partitions, joins shuffle, and rows are transferred more slowly. Install JDK 17 "
            "or newer, on Debian and Ubuntu: sudo apt-get install openjdk-17-jdk-headless",
            stacklevel=3,
        )
        return None


def _cache_folder() -> Path:
    """Return the folder of compiled jars, shared by all projects of a user."""
    found = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(found) / "phalanx"


def build_jar(folder: Path) -> Path:
    """Return the shipped jar, else the one in the folder, compiling it if it is missing.

    The JVM runs its code: the folder must belong to the user alone, and the digest must match.
    """
    sources = sorted(_SOURCES.rglob("*.java"))
    name = f"bridge-{pyspark.__version__}-{_digest(*sources)[:16]}.jar"
    if (shipped := _SHIPPED / name).exists():
        return shipped
    target = folder / name
    try:
        _make_private(folder)
        if not _is_intact(target):
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                packed = _pack(sources, Path(temporary))
                digest = Path(temporary, "digest")
                digest.write_text(_digest(packed))
                # Other processes may do the same; all write equal files.
                packed.replace(target)
                digest.replace(_digest_file(target))
    except OSError as error:
        raise CannotCompile(f"its Java classes cannot be stored in {folder}: {error}.") from None
    return target


def _make_private(folder: Path) -> None:
    """Create the folder, or check that only this user could write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise CannotCompile(
            f"its Java classes cannot be stored in {folder}, which is a link or belongs to another "
            "user. Remove it, or set another folder with XDG_CACHE_HOME."
        )
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    if found.st_mode & 0o022:
        for jar in folder.glob("*.jar"):
            jar.unlink(missing_ok=True)


def _is_intact(jar: Path) -> bool:
    try:
        return _digest_file(jar).read_text() == _digest(jar)
    except FileNotFoundError:
        return False


def _digest_file(jar: Path) -> Path:
    return jar.with_suffix(".sha256")


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _pack(sources: list[Path], folder: Path) -> Path:
    classes = folder / "classes"
    _compile(sources, classes)
    made = folder / "bridge.jar"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, _SERVICE, _PROVIDER.encode())
        _add(archive, _VERSION, pyspark.__version__.encode())
        for path in sorted(classes.rglob("*.class")):
            _add(archive, path.relative_to(classes).as_posix(), path.read_bytes())
    return made


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a file without its modification time, so that equal classes make equal jars."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)


def _compile(sources: list[Path], classes: Path) -> None:
    jars = map(str, sorted(Path(pyspark.__file__).with_name("jars").glob("*.jar")))
    # The compiler of the Java that runs Spark; `javac` may belong to another one.
    # It runs for seconds only, so skip the optimizing JIT.
    jvm_options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    compiler = [_java(), *jvm_options, "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    options = ["--release", _RELEASE, "-nowarn", "-cp", os.pathsep.join(jars), "-d", str(classes)]
    done = subprocess.run(
        [*compiler, *options, *map(str, sources)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise CannotCompile(
            f"its Java classes do not compile for Spark {pyspark.__version__}: {lines[0]}."
        )


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        raise CannotCompile("no Java was found to compile its classes.")
    return found
