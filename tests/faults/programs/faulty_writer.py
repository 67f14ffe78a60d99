"""A Spark data source whose writers die, fail or stall at a given step.

Run as a script with a path and a scenario, it writes with executors in separate processes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import phalanx.spark
from phalanx.spark.source.row_changes import ChangesWritten, RowChangeWriter
from phalanx.spark.source.source import PhalanxSource
from phalanx.spark.source.writing import FilesWritten, TableWriter
from phalanx.storage.lance.fault_points import FaultPoint, Observer, observe_fault_points

# Spark's processes do not find the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
LONGEST = 60.0


@dataclass
class FaultyWriter(DataSourceArrowWriter):
    """A writer that fails when it writes files or commits, a given number of times.

    Files in a folder count the faults of all processes.
    """

    inner: TableWriter | RowChangeWriter
    faults: dict[str, str]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        written = self.inner.write(iterator)
        rows = rows_written(written)
        fault = self.faults.get("task", "")
        if fault and rows and self._is_due("task"):
            if fault == "fails":
                raise OSError("the disk is gone")
            if fault == "is slow":
                self._wait_for_others()
            else:
                executor = _parent(os.getppid())
                os.kill(os.getpid() if fault == "dies" else executor, signal.SIGKILL)
                time.sleep(LONGEST)
        (Path(self.faults["folder"]) / f"finished {uuid.uuid4().hex}").touch()
        return written

    def _wait_for_others(self) -> None:
        """Wait until the other task and the second run of this one are done."""
        end = time.monotonic() + LONGEST
        while len(list(Path(self.faults["folder"]).glob("finished*"))) < 2:
            assert time.monotonic() < end, "Spark has not started the task again"
            time.sleep(0.05)
        # Their messages are on their way to the driver.
        time.sleep(2)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        fault = self.faults.get("commit", "")
        with (
            observe_fault_points(self._killer(FaultPoint[fault]))
            if fault in FaultPoint.__members__
            else nullcontext()
        ):
            self.inner.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.inner.abort(messages)

    def _killer(self, step: FaultPoint) -> Observer:
        def observe(reached: FaultPoint) -> None:
            if reached is step and self._is_due("commit"):
                if self.faults.get("waits"):
                    # The watching process ends the driver now; this process must not go on after
                    # it.
                    time.sleep(LONGEST)
                os.kill(os.getpid(), signal.SIGKILL)

        return observe

    def _is_due(self, kind: str) -> bool:
        for number in range(int(self.faults.get("times", "1"))):
            try:
                (Path(self.faults["folder"]) / f"{kind}{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False


def rows_written(message: WriterCommitMessage) -> int:
    """Return how many rows a task has written."""
    match message:
        case FilesWritten(files=files):
            return files.rows
        case ChangesWritten(changes=changes):
            return changes.files.rows
    raise AssertionError(message)


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


class FaultySource(PhalanxSource):
    """The data source, with the additional options `fault.<name>`."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def writer(self, schema: StructType, overwrite: bool) -> FaultyWriter:  # type: ignore[override]
        faults = {
            name.removeprefix("fault."): self.options[name]
            for name in list(self.options)
            if name.startswith("fault.")
        }
        for name in faults:
            del self.options[f"fault.{name}"]
        return FaultyWriter(super().writer(schema, overwrite), faults)


def save(data: DataFrame, uri: str, folder: Path, mode: str = "append", **given: str) -> None:
    """Write with faults; `marker` and other words without a fault are the source's own."""
    folder.mkdir(exist_ok=True)
    writer = data.write.format("faulty").mode(mode).option("fault.folder", str(folder))
    for name, text in given.items():
        kind = "fault." if name in ("task", "commit", "times", "waits") else ""
        writer = writer.option(f"{kind}{name}", text)
    writer.save(uri)


def frame(spark: SparkSession, start: int, tasks: int = 2) -> DataFrame:
    """Forty rows in two tasks: twenty in the partition a, and twenty in one that is new."""
    data = spark.range(start, start + 40, 1, tasks)
    return data.selectExpr(f"IF(id % 2 = 0, 'a', 'new{start}') AS k", "id AS n")


def main(uri: str, scenario: str, folder: str) -> None:
    """Run a scenario in a session of its own."""
    on_cluster = scenario == "cluster"
    builder = SparkSession.builder.master("local-cluster[2,1,1024]" if on_cluster else "local[2]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.minTaskRuntime": "500ms",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = phalanx.spark.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(FaultySource)
    if on_cluster:
        save(frame(spark, 100), uri, Path(folder) / "slow", task="is slow")
        save(frame(spark, 200), uri, Path(folder) / "lost", task="kills its executor")
    else:
        save(frame(spark, 100), uri, Path(folder), commit=scenario, waits="yes")


if __name__ == "__main__":
    main(*sys.argv[1:])
