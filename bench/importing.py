"""Imports compared with Spark's plain write of the same rows to the same partitions."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import phalanx
import phalanx.spark
from bench.measure import Measured, cost, time_alternately
from bench.spark import session
from bench.storage import sample

_FRAGMENT_ROWS = 1 << 20


def benchmarks(rows: int) -> Iterator[Measured]:
    """Every ratio that an import should keep."""
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as name:
        folder = Path(name)
        spark = session(folder)
        try:
            yield from _measure_imports(spark, rows, folder)
        finally:
            spark.stop()


def _measure_imports(spark: SparkSession, rows: int, folder: Path) -> Iterator[Measured]:
    data = sample(rows)
    parquet, plain = str(folder / "source.parquet"), str(folder / "source.lance")
    pq.write_table(data, parquet, row_group_size=_FRAGMENT_ROWS)
    lance.write_dataset(data, plain, max_rows_per_file=_FRAGMENT_ROWS)
    made = phalanx.create(folder / "source", data.schema, "bucket(16, id)", transaction="strong")
    made.append(data)
    del data
    written = spark.read.parquet(parquet)

    def into_new(name: str, action: Callable[[str], object]) -> Callable[[], object]:
        """Run the action into a new table."""

        def act() -> object:
            shutil.rmtree(folder / name, ignore_errors=True)
            return action(str(folder / name))

        return act

    def import_from(source: str, format: str) -> Callable[[str], object]:
        return lambda uri: phalanx.spark.import_table(
            spark, source, uri, "tenant", format=format, progress=False
        )

    def write(uri: str) -> None:
        options = {"partition_by": "tenant", "transaction": "strong"}
        written.write.format("phalanx").mode("append").options(**options).save(uri)

    sources = {"parquet": parquet, "lance": plain, "phalanx": str(folder / "source")}
    actions = {name: into_new(name, import_from(place, name)) for name, place in sources.items()}
    times = time_alternately({**actions, "write": into_new("written", write)}, 3)
    for name in sources:
        table = phalanx.open(folder / name)
        assert table.scan().count_rows() == rows
        yield cost(
            f"import of {rows:,} rows from {name} into 100 partitions "
            f"({table.files().num_rows} fragments)",
            times[name],
            "Spark's plain write of them",
            times["write"],
            1.2,
        )
