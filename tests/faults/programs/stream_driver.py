"""A process that streams one table into another with a Spark of its own, and may die at that."""

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
from phalanx.storage.lance.fault_points import Step, observed

# The batch in whose commit the driver dies, and its group of processes.
_BATCH, _GROUP = "PHALANX_TEST_LAST_BATCH", "PHALANX_TEST_GROUP"


@contextmanager
def streaming(
    source: str, target: str, checkpoint: Path, dies_in: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that streams until all is there; it dies between a batch's commit and its note."""
    tests = Path(__file__).parents[2]
    paths = [tests, tests / "faults" / "programs" / "without_pandas"]
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
    spark.dataSource.register(MortalSource)
    rows = spark.readStream.format("phalanx").option("max_snapshots_per_trigger", 1)
    query = (
        rows.option("starting_snapshot", 1)
        .load(source)
        .writeStream.format("mortal")
        .option("partition_by", "k")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()
    spark.stop()


class MortalSource(PhalanxSource):
    """Tables as ever, but for streams that may end in a commit."""

    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> MortalWriter:  # noqa: N802
        return MortalWriter(super().streamWriter(schema, overwrite).job)


@dataclass(slots=True)
class MortalWriter(BatchWriter):
    """Ends driver and JVM when a batch is committed, before the checkpoint can tell that."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        def observe(step: Step) -> None:
            if step is Step.COMMITTED and str(batchId) == os.environ.get(_BATCH):
                os.killpg(int(os.environ[_GROUP]), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

        with observed(observe):
            BatchWriter.commit(self, messages, batchId)
