"""The Java side of the source: a few classes, compiled for the Spark that is installed.

They only carry and translate: columns come from Python as they are, rows go there in large
batches, and what a query wants of a table (columns, conditions, aggregates, the partitions that a
join needs) is told to Python. All planning and I/O is Python's, with and without them.
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
# A wheel has the jar for the Spark that it was built with: no JDK is needed with that one.
_SHIPPED = Path(__file__).with_name("jars")
_PROVIDER = "phalanx.bridge.Source"
_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
_VERSION = "phalanx/bridge/spark-version"
_RELEASE = "17"


class CannotCompile(Exception):
    """Why there is no jar."""


@functools.cache
def jar() -> Path | None:
    """The jar for the installed Spark, compiled if it is missing; None, and a warning, if not."""
    try:
        return compiled(_folder())
    except CannotCompile as reason:
        warnings.warn(
            f"Spark works with Phalanx by its Python source alone: {reason} Queries read all "
            "columns and all partitions, joins shuffle, and rows travel slower. Install a JDK 17 "
            "or newer, on Debian and Ubuntu: sudo apt-get install openjdk-17-jdk-headless",
            stacklevel=3,
        )
        return None


def _folder() -> Path:
    """Where jars are kept; they are of use to all projects of a user."""
    found = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(found) / "phalanx"


def compiled(folder: Path) -> Path:
    """The jar that was shipped, or is in the folder, if need be after compiling it there.

    The JVM runs what is in it: the folder must be the user's alone, and the jar as it was written.
    """
    sources = sorted(_SOURCES.rglob("*.java"))
    name = f"bridge-{pyspark.__version__}-{_digest(*sources)[:16]}.jar"
    if (shipped := _SHIPPED / name).exists():
        return shipped
    target = folder / name
    try:
        _make_private(folder)
        if not _is_intact(target):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                made = _packed(sources, Path(place))
                digest = Path(place, "digest")
                digest.write_text(_digest(made))
                # Others may be at it as well: the last one wins, and all are the same.
                made.replace(target)
                digest.replace(_digest_file(target))
    except OSError as error:
        raise CannotCompile(f"its Java classes cannot be kept in {folder}: {error}.") from None
    return target


def _make_private(folder: Path) -> None:
    """Make the folder, or check that nobody else can have put anything there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise CannotCompile(
            f"its Java classes cannot be kept in {folder}, which is a link or belongs to another "
            "user. Remove it, or name another folder with XDG_CACHE_HOME."
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


def _packed(sources: list[Path], folder: Path) -> Path:
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
    """Add a file without the time of its making: the same classes make the same jar."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)


def _compile(sources: list[Path], classes: Path) -> None:
    jars = map(str, sorted(Path(pyspark.__file__).with_name("jars").glob("*.jar")))
    # The compiler of the Java that runs Spark; the command `javac` may be another's.
    # It runs for seconds: its own code is compiled quickly rather than well.
    quickly = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    compiler = [_java(), *quickly, "-m", "jdk.compiler/com.sun.tools.javac.Main"]
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
        raise CannotCompile("there is no Java to compile its classes.")
    return found
