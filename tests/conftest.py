"""How hard the property tests try, which tests share a process, and how other processes start.

PHALANX_PROFILE is `test` (the default) or `soak`.
"""

import compileall
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from processes import JAVA_OPTIONS

settings.register_profile(
    "test",
    max_examples=100,
    deadline=None,
    # The same examples in every run: a change is judged by itself. The soak looks for new ones.
    derandomize=True,
    print_blob=True,
    # Drawing schemas with matching data is slow by nature.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak", parent=settings.get_profile("test"), max_examples=1000, derandomize=False
)
settings.load_profile(os.environ.get("PHALANX_PROFILE", "test"))

# Every process that starts Spark inherits them.
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_name, JAVA_OPTIONS)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the sources once, also where Python is told to keep no bytecode.

    Workers of Spark, shells and writers that are killed would each compile them anew.
    """
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(__file__).parents[1] / "src", quiet=2)


_WITH_SESSION = ("tests/spark/", "test_spark_kills", "test_rewrite_fire")
# They start processes of their own, or none.
_WITHOUT_SESSION = (
    *("test_converting", "test_executors", "test_fallback", "test_wheel"),
    *("driver_dies", "executor_dies"),
)
# What their modules prepare costs more than they gain by running in several processes.
_TOGETHER = (
    *("test_concurrency", "test_strong_deaths", "test_ducklake_plans", "test_ducklake_rows"),
    *("test_ducklake_catalogs", "test_iceberg_plans", "test_s3"),
)


class _OneSparkSession(LoadScopeScheduling):
    """Tests run wherever there is time; but those with Spark in one process, and they begin first.

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
