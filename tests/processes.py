"""Processes of tests: how writers that race or die are forked, and how a JVM starts."""

import multiprocessing
import sys
from pathlib import Path

# Lance does not survive a fork after its first use: the server that forks has only imported it.
SERVER = multiprocessing.get_context("forkserver")
# There is one server in a process, with one list. It does not find the modules of tests (Python
# 3.11 forgets the path), and it silently skips a module that it cannot import.
SERVER.set_forkserver_preload(["phalanx"])

# A JVM of a test ends too early to profit from the optimizing compiler and the parallel collector.
# Without them it starts with half the work.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The classes of Spark, which `make test` archives. A driver starts with a third of the work then.
_CLASSES = Path(sys.prefix, "spark-classes.jsa")
# A JVM continues without an archive that is missing or does not fit, and must not print that.
SPARK_OPTIONS = (
    f"{JAVA_OPTIONS} -XX:SharedArchiveFile={_CLASSES} -Xlog:disable -Xlog:all=error:stderr"
    # Spark splits its options at spaces.
    if _CLASSES.exists() and " " not in str(_CLASSES)
    else JAVA_OPTIONS
)
