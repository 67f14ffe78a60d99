"""Spark's own parquet against Phalanx in Spark: write, read, one partition, and a join."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import phalanx
import phalanx.spark
from bench import spark_sql
from bench.measure import Beside, Measured, cost, faster, time_alternately
from bench.peers import iceberg_on_spark
from bench.spark_peers import aggregate
from bench.storage import sample

_BUCKETS = 20
_SMALL_FILES, _LEAVES = 2_000, 50


def benchmarks(rows: int) -> Iterator[Measured | Beside | str]:
    """Every ratio that Phalanx in Spark should keep."""
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as name:
        folder = Path(name)
        spark = session(folder)
        try:
            yield from _measure_writes_and_reads(spark, rows, folder)
            yield from _measure_join(spark, rows // 2, folder)
            yield from _measure_compaction(spark, folder)
        finally:
            spark.stop()
        yield from _measure_peers(folder / "source.parquet", folder)


def session(folder: Path) -> SparkSession:
    """Spark on all cores of this machine, quiet."""
    builder = SparkSession.builder.master("local[*]").appName("bench")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "6g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Spark must not broadcast a side of the join.
        "spark.sql.autoBroadcastJoinThreshold": "-1",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = phalanx.spark.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _measure_writes_and_reads(spark: SparkSession, rows: int, folder: Path) -> Iterator[Measured]:
    source = folder / "source.parquet"
    pq.write_table(sample(rows), source, row_group_size=1 << 20)
    rows_read = spark.read.parquet(str(source))
    places = {name: str(folder / name) for name in ("parquet", "phalanx")}

    def write_parquet() -> None:
        rows_read.write.mode("overwrite").partitionBy("tenant").parquet(places["parquet"])

    def write_phalanx() -> None:
        shutil.rmtree(places["phalanx"], ignore_errors=True)
        options = {"partition_by": "tenant", "transaction": "strong"}
        rows_read.write.format("phalanx").mode("append").options(**options).save(places["phalanx"])

    times = time_alternately({"phalanx": write_phalanx, "parquet": write_parquet}, 3)
    fragments = phalanx.open(places["phalanx"]).files().num_rows
    yield cost(
        f"partitioned write into 100 partitions ({fragments} fragments)",
        times["phalanx"],
        "Spark's parquet",
        times["parquet"],
        0.9,
    )

    def load(name: str, where: str | None) -> DataFrame:
        if name == "parquet":
            found = spark.read.parquet(places[name])
            return found if where is None else found.where(where)
        reader = spark.read.format("phalanx")
        return (reader if where is None else reader.option("where", where)).load(places[name])

    for what, where, runs in (
        ("read with six aggregates", None, 5),
        ("query of one partition", "tenant = 42", 10),
    ):
        actions = {name: partial(_aggregate, partial(load, name, where)) for name in places}
        times = time_alternately(actions, runs)
        yield cost(what, times["phalanx"], "Spark's parquet", times["parquet"], 1.0)
    yield from spark_sql.measure_queries(spark, places)


def _measure_peers(source: Path, folder: Path) -> Iterator[Beside | str]:
    """The same jobs in connectors of peers, which use another Spark."""
    found = iceberg_on_spark(source, folder)
    if isinstance(found, str):
        yield found
        return
    for job, times in found.items():
        yield Beside(f"the same {job} elsewhere", times)


def _aggregate(load: Callable[[], DataFrame]) -> None:
    aggregate(load()).collect()


def _measure_join(
    spark: SparkSession, rows: int, folder: Path
) -> Iterator[Measured | Beside | str]:
    random = np.random.default_rng(1)
    sides = {
        "orders": pa.table(
            {
                "id": pa.array(random.permutation(rows)),
                "amount": pa.array(random.random(rows)),
                "at": pa.array(random.integers(0, 10**15, rows)).cast(pa.timestamp("us")),
            }
        ),
        "payments": pa.table(
            {
                "id": pa.array(random.permutation(rows)),
                "paid": pa.array(random.random(rows)),
                "method": pa.array(random.integers(0, 5, rows)).cast(pa.string()),
            }
        ),
    }
    for name, table in sides.items():
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=1 << 20)
        made = phalanx.create(
            folder / name, table.schema, [phalanx.bucket("id", _BUCKETS)], transaction="strong"
        )
        made.append(table)

    def run_aggregates(joined: DataFrame) -> None:
        joined.agg(f.sum("amount"), f.sum("paid"), f.count("method")).collect()

    def ours() -> None:
        left, right = str(folder / "orders"), str(folder / "payments")
        run_aggregates(phalanx.spark.join(spark, left, right, "id"))

    def theirs() -> None:
        left, right = (
            spark.read.parquet(str(folder / f"{name}.parquet")) for name in ("orders", "payments")
        )
        run_aggregates(left.join(right, "id"))

    times = time_alternately({"ours": ours, "theirs": theirs}, 4)
    yield faster(
        f"join of two tables of {rows:,} rows, in {_BUCKETS} partitions",
        times["ours"],
        "Spark's shuffle join from parquet",
        times["theirs"],
        4,
    )
    yield from spark_sql.measure_join(
        spark,
        {name: str(folder / name) for name in sides},
        {name: str(folder / f"{name}.parquet") for name in sides},
        rows,
    )


def _measure_compaction(spark: SparkSession, folder: Path) -> Iterator[Measured | Beside]:
    rows = sample(1_000 * _LEAVES)
    tenants = pa.array(np.arange(rows.num_rows) % _LEAVES, pa.int32())
    rows = rows.set_column(rows.column_names.index("tenant"), "tenant", tenants)
    made, used = folder / "small-files", folder / "compacted"
    table = phalanx.create(made, rows.schema, "tenant", transaction="strong")
    for _ in range(_SMALL_FILES // _LEAVES):
        table.append(rows)

    def measure(action: Callable[[], object]) -> float:
        """Return the shortest of some runs, each on its own copy."""
        times = []
        for _ in range(3):
            shutil.rmtree(used, ignore_errors=True)
            shutil.copytree(made, used)
            start = time.perf_counter()
            action()
            times.append(time.perf_counter() - start)
        return min(times)

    def theirs() -> None:
        for place in phalanx.open(used).partitions()["location"].to_pylist():
            lance.dataset(place).optimize.compact_files()

    times = {
        "on Spark": measure(lambda: phalanx.open(used).rewrite(spark=spark)),
        "in threads": measure(lambda: phalanx.open(used).rewrite()),
        "theirs": measure(theirs),
    }
    what = f"compact {_SMALL_FILES:,} fragments in {_LEAVES} partitions"
    name = "pylance, leaf after leaf"
    yield cost(f"{what} on Spark", times["on Spark"], name, times["theirs"], 1.3)
    yield Beside(f"{what} in threads", {"Phalanx": times["in threads"], name: times["theirs"]})
