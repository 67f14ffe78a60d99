"""The profiles of the property tests, which tests share a process, and how processes start.

PHALANX_PROFILE is `quick`, `test` (the default) or `soak`.
"""

import compileall
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from processes import JAVA_OPTIONS, SPARK_OPTIONS

settings.register_profile(
    "test",
    max_examples=100,
    deadline=None,
    # Every run has the same examples, so that only a change of the code can make a test fail. The
    # soak generates new ones.
    derandomize=True,
    print_blob=True,
    # Drawing schemas with matching data is slow.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak", parent=settings.get_profile("test"), max_examples=1000, derandomize=False
)
settings.register_profile("quick", parent=settings.get_profile("test"), max_examples=10)
_PROFILE = os.environ.get("PHALANX_PROFILE", "test")
settings.load_profile(_PROFILE)

# pytest rewrites each test module once, and keeps it for the processes that tests start.
sys.dont_write_bytecode = False

# Every process that starts Spark inherits them.
os.environ.setdefault("SPARK_SUBMIT_OPTS", SPARK_OPTIONS)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", JAVA_OPTIONS)


if _PROFILE != "soak":
    # Spark's Python workers are forked from daemons that have imported Phalanx: see `preload`.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).with_name("preload")), *filter(None, [os.environ.get("PYTHONPATH")])]
    )

# Each of hundreds of processes would start a thread for each core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Where tests write: in memory, which takes a fifth less time than a disk. The soak writes more.
_MEMORY = Path("/dev/shm")
_NAME = "phalanx-tests-"
_NEEDED_BYTES = 6 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Compile the sources once, also where Python is told to keep no bytecode.

    Workers of Spark, shells and writers that are killed would each compile them again.
    """
    if hasattr(config, "workerinput"):
        return
    compileall.compile_dir(Path(__file__).parents[1] / "src", quiet=2)
    if config.option.basetemp is None and _PROFILE != "soak" and _has_memory():
        _remove_abandoned()
        config.option.basetemp = str(_MEMORY / f"{_NAME}{os.getpid()}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Free the memory. To keep the files of a test that failed, run it with `--basetemp`."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(_MEMORY / f"{_NAME}{os.getpid()}", ignore_errors=True)


def _has_memory() -> bool:
    return (
        os.access(_MEMORY, os.W_OK)
        and shutil.disk_usage(_MEMORY).free > _NEEDED_BYTES
        and os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") > 2 * _NEEDED_BYTES
    )


def _remove_abandoned() -> None:
    """Remove what runs that were killed have left."""
    for folder in _MEMORY.glob(f"{_NAME}*"):
        if not Path("/proc", folder.name.removeprefix(_NAME)).exists():
            shutil.rmtree(folder, ignore_errors=True)


_WITH_SESSION = ("tests/spark/", "test_spark_kills", "test_rewrite_races")
# They start processes of their own, or none.
_WITHOUT_SESSION = (
    *("test_converting", "test_executors", "test_fallback", "test_wheel"),
    *("driver_dies", "executor_dies"),
)
# Their setup costs more than running them in several processes saves.
_TOGETHER = (
    *("test_concurrency", "test_strong_deaths", "test_ducklake_plans", "test_ducklake_rows"),
    *("test_ducklake_catalogs", "test_iceberg_plans", "test_s3"),
)


class _OneSparkSession(LoadScopeScheduling):
    """Tests run in any process; those with Spark run in one process, and begin first.

    Modules that prepare much run in one process each.

    A session takes seconds and memory. Groups by marks (`--dist=loadgroup`) would do, but xdist
    3.8 does not find them in pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        is_spark = any(name in nodeid for name in _WITH_SESSION)
        if is_spark and not any(name in nodeid for name in _WITHOUT_SESSION):
            return "spark"
        module = nodeid.partition("::")[0]
        return module if module.endswith(tuple(f"{name}.py" for name in _TOGETHER)) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _OneSparkSession(config, log)
