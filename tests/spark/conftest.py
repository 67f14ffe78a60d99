"""One Spark session for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import phalanx.spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two threads, in which tasks are tried again."""
    builder = SparkSession.builder.master("local[2, 3]").appName("tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.session.timeZone": "America/New_York",
        "spark.driver.memory": "1g",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = phalanx.spark.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A path that nothing is at."""
    return str(tmp_path / "table")
