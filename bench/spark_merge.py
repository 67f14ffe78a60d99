"""MERGE by Spark SQL, `phalanx.spark.merge`, and the same MERGE in Iceberg's connector."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import phalanx
import phalanx.spark
from bench.measure import Beside
from bench.peers import iceberg_merges
from bench.rows import ARRIVING, make_merge_rows
from bench.spark import session
from bench.storage import sample

_RUNS = 3
_KEY = ["tenant", "id"]


def benchmarks(rows: int) -> Iterator[Beside | str]:
    """The same rows merged in each way, three times."""
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as name:
        folder = Path(name)
        data = sample(rows)
        paths = [folder / "rows.parquet"]
        pq.write_table(data, paths[0], row_group_size=1 << 20)
        for run in range(_RUNS):
            paths.append(folder / f"arriving{run}.parquet")
            pq.write_table(make_merge_rows(data, rows, run), paths[-1])
        for way in ("sql", "dataframe"):
            table = phalanx.create(
                folder / "lake" / way, data.schema, "tenant", transaction="strong"
            )
            table.append(data)
        del data
        spark = session(folder)
        try:
            times = _measure_merges(spark, folder, paths[1:], rows)
        finally:
            spark.stop()
        peers = iceberg_merges(folder, paths)
        if isinstance(peers, str):
            yield peers
        else:
            times["Iceberg's MERGE INTO"] = min(peers)
        what = f"merge of {ARRIVING:,} rows into {rows:,} over 100 partitions by Spark"
        yield Beside(what, times)


def _measure_merges(
    spark: SparkSession, folder: Path, arriving: list[Path], rows: int
) -> dict[str, float]:
    spark.conf.set("spark.sql.catalog.lake", "phalanx.bridge.Catalog")
    spark.conf.set("spark.sql.catalog.lake.root", str(folder / "lake"))

    def by_sql(path: Path) -> None:
        spark.sql(
            f"MERGE INTO lake.sql AS t USING parquet.`{path}` AS s ON t.tenant = s.tenant AND "
            "t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def by_dataframe(path: Path) -> None:
        source = spark.read.parquet(str(path))
        phalanx.spark.merge(spark, source, str(folder / "lake" / "dataframe"), _KEY)

    ways: dict[str, Callable[[Path], None]] = {
        "MERGE INTO": by_sql,
        "phalanx.spark.merge": by_dataframe,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for path in arriving:
        for name, merge in ways.items():
            start = time.perf_counter()
            merge(path)
            times[name].append(time.perf_counter() - start)
    for way in ("sql", "dataframe"):
        count = phalanx.open(folder / "lake" / way).scan().count_rows()
        assert count == rows + _RUNS * (ARRIVING // 2)
    return {name: min(found) for name, found in times.items()}
