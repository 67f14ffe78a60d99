"""A process that streams one table into another with its own Spark, and may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import phalanx.spark
from phalanx.spark.source.source import PhalanxSource
from phalanx.spark.source.stream_sink import BatchWriter
from phalanx.storage.lance.fault_points import FaultPoint, observe_fault_points

# The batch in whose commit the driver dies, and its group of processes.
_BATCH, _GROUP = "PHALANX_TEST_LAST_BATCH", "PHALANX_TEST_GROUP"


@contextmanager
def start_stream(
    source: str, target: str, checkpoint: Path, dies_in: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a driver that streams all rows. It dies in a given batch, after its commit."""
    tests = Path(__file__).parents[2]
    paths = [tests, Path(__file__).with_name("without_pandas")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    if dies_in is not None:
        environment[_BATCH] = str(dies_in)
    log = checkpoint.with_suffix(".log")
    with log.open("ab") as errors:
        driver = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from {__name__} import run; run(*{[source, target]}, {str(checkpoint)!r})",
            ],
            env=environment,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield driver
    finally:
        kill(driver)


def kill(driver: subprocess.Popen[bytes]) -> None:
    """End the driver and its JVM at once; its Python workers may live a little longer."""
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def run(source: str, target: str, checkpoint: str) -> None:
    """What the driver does: a batch for each snapshot of the source."""
    os.environ[_GROUP] = str(os.getpgid(0))
    builder = SparkSession.builder.master("local[1]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = phalanx.spark.configure(builder).getOrCreate()
    spark.dataSource.register(DyingSource)
    rows = spark.readStream.format("phalanx").option("max_snapshots_per_trigger", 1)
    query = (
        rows.option("starting_snapshot", 1)
        .load(source)
        .writeStream.format("dying")
        .option("partition_by", "k")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()
    spark.stop()


class DyingSource(PhalanxSource):
    """The usual data source, but a stream may end during a commit."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:  # noqa: N802
        return DyingWriter(super().streamWriter(schema, overwrite).job)


@dataclass(slots=True)
class DyingWriter(BatchWriter):
    """End driver and JVM after a batch is committed, before the checkpoint records it."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        def observe(step: FaultPoint) -> None:
            if step is FaultPoint.COMMITTED and str(batchId) == os.environ.get(_BATCH):
                os.killpg(int(os.environ[_GROUP]), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

        with observe_fault_points(observe):
            BatchWriter.commit(self, messages, batchId)
