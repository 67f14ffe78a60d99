"""Functions that write or kill workers during a rewrite on Spark. As a script: the rewrite."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

import phalanx

SCHEMA = pa.schema([("p", pa.int32()), ("batch", pa.string()), ("n", pa.int64())])


def batch(name: str, partitions: int, rows: int = 1) -> pa.Table:
    """Rows that are added and removed together, the same number in every partition."""
    count = partitions * rows
    numbers = list(range(count))
    return pa.table([[n % partitions for n in numbers], [name] * count, numbers], schema=SCHEMA)


def create(root: str, partitions: int, files: int, rows: int) -> phalanx.Table:
    """Create a table with a number of small files in every partition."""
    table = phalanx.create(root, SCHEMA, ["p"], transaction="strong")
    for number in range(files):
        table.append(batch(f"first {number}", partitions, rows))
    return table


def write(root: str, name: str, partitions: int, over: str, pause: float) -> None:
    """Append batches, and delete every second one, until the file exists; print their names."""
    table = phalanx.open(root)
    number = 0
    with Path(f"{over}.{name}").open("w") as log:
        while not Path(over).exists():
            mine = f"{name} {number}"
            table.append(batch(mine, partitions))
            if number % 2:
                table.delete(f"batch = '{mine}'")
                # Also rows that are being rewritten.
                table.delete(f"batch = 'first {number}'")
                print(f"-first {number}", file=log)
            else:
                print(f"+{mine}", file=log)
            number += 1
            time.sleep(pause)


def kill_workers(driver: int, over: str, pause: float) -> None:
    """Kill Python workers of a process's Spark, one after another, until the file exists."""
    while not Path(over).exists():
        for found in _workers(driver)[:1]:
            os.kill(found, signal.SIGKILL)
        time.sleep(pause)


def executors(session: int) -> list[int]:
    """The executors of a session of processes that run tasks of Python."""
    parents: dict[int, int] = {}
    running, found = set(), set()
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with suppress(OSError, ValueError):
                number = int(each.name)
                fields = (each / "stat").read_text().rpartition(")")[2].split()
                parents[number] = int(fields[1])
                if int(fields[3]) == session:
                    line = (each / "cmdline").read_bytes()
                    if b"CoarseGrainedExecutorBackend" in line:
                        found.add(number)
                    elif b"pyspark.daemon\x00pyspark.worker" in line:
                        running.add(number)
    return sorted(found & {parents.get(each, 0) for each in running})


def _workers(driver: int) -> list[int]:
    """The processes that run tasks: children of the daemon that the driver's JVM has started."""
    parents: dict[int, int] = {}
    daemons = set()
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with suppress(OSError, ValueError):
                number = int(each.name)
                parents[number] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
                if b"pyspark.daemon\x00pyspark.worker" in (each / "cmdline").read_bytes():
                    daemons.add(number)
    ours = {each for each in daemons if parents.get(parents.get(each, 0)) == driver}
    return sorted(number for number, parent in parents.items() if parent in ours)


def main(root: str, folder: str, on: str = "") -> None:
    """Rewrite on Spark, in this process or on executors; a file shows that it has begun."""
    from pyspark.sql import SparkSession

    import phalanx.spark

    if on:
        builder = SparkSession.builder.master(on).config("spark.ui.enabled", "false")
        phalanx.spark.configure(builder.config("spark.driver.host", "127.0.0.1")).getOrCreate()
    spark = phalanx.spark.local_session(log=Path(folder) / "log")
    spark.range(1).count()
    (Path(folder) / "begun").touch()
    print(phalanx.open(root).rewrite(spark=spark, partial_progress=True, rewrite_all=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
