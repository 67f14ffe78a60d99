"""One Spark session for all tests of a process.

`PHALANX_TEST_MASTER` says which: `local[2, 3]` by default, `local-cluster[2,1,1024]` for executors
of their own, `connect` for both these and Connect, or `python` for a session without the classes in
Java.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import phalanx.spark
from processes import SPARK_OPTIONS

LOCAL = "local[2, 3]"
CLUSTER = "local-cluster[2,1,1024]"
TOKEN = "secret-token"
MASTER = os.environ.get("PHALANX_TEST_MASTER", LOCAL)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two threads, in which failed tasks are retried."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.session.timeZone": "America/New_York",
        "spark.driver.memory": "1g",
        # Derby writes its log there.
        "spark.executor.extraJavaOptions": SPARK_OPTIONS,
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={tmp_path_factory.mktemp('derby')}",
    }
    if MASTER != "python":
        # A catalog of the application's user; it needs the Java classes.
        settings |= {
            "spark.sql.catalog.operators": "phalanx.bridge.Catalog",
            "spark.sql.catalog.operators.root": str(tmp_path_factory.mktemp("operators")),
            "spark.sql.catalog.operators.storage.token": TOKEN,
        }
    builder = SparkSession.builder.appName("tests")
    match MASTER:
        case "connect":
            builder = builder.remote(CLUSTER)
        case "python":
            builder = builder.master(LOCAL).config("spark.phalanx.bridge", "false")
        case _:
            builder = builder.master(MASTER)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # A server that was started with these settings warns that they cannot be changed.
        warnings.filterwarnings("ignore", "Failed to set", UserWarning)
        session = phalanx.spark.configure(builder).getOrCreate()
    if MASTER != "connect":
        session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A path where nothing exists."""
    return str(tmp_path / "table")
