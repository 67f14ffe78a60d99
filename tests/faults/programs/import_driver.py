"""A Spark driver that imports a table: `python import_driver.py SOURCE URI [FOLDER]`.

It prints the result as JSON. With a folder, the first worker that reads a file dies once. A file
in the folder records this death.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import phalanx.spark
from phalanx.planning.import_plan import ImportUnit
from phalanx.table.imports.sources import open_lance_source


@dataclass(frozen=True, slots=True)
class Dying:
    """A unit whose first reader dies after some rows."""

    unit: ImportUnit
    folder: Path

    @property
    def id(self) -> str:
        return self.unit.id

    @property
    def rows(self) -> int:
        return self.unit.rows

    @property
    def bytes(self) -> int:
        return self.unit.bytes

    def check(self) -> None:
        self.unit.check()

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self.unit.batches():
            yield batch
            try:
                (self.folder / "died").touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)


def main(place: str, uri: str, folder: str | None = None) -> None:
    source = open_lance_source(place)
    if folder is not None:
        # Spark's workers have to find this module.
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        )
        from import_driver import Dying as Found  # type: ignore[import-not-found]

        source = replace(source, units=tuple(Found(each, Path(folder)) for each in source.units))
    builder = SparkSession.builder.master("local[2, 3]")
    for key in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(key, "127.0.0.1")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    spark = phalanx.spark.configure(builder).getOrCreate()
    done = phalanx.spark.import_table(spark, source, uri, "bucket(2, id)", chunk_size=1)
    print(json.dumps(done.to_dict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
