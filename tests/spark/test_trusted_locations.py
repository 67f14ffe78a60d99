"""Leaves outside of a table's folder: Spark refuses them, and reads them where they are trusted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import phalanx
import phalanx.spark
from spark.conftest import MASTER
from spark.lakes import lake_at

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.list_(pa.float32(), 2))])


@pytest.fixture
def outside(tmp_path: Path) -> str:
    """A table of the rows 1 to 3, of which two are outside of it. The table was moved later."""
    table = phalanx.create(tmp_path / "first", SCHEMA, ["k"], transaction="weak")
    table.append(pa.table({"k": ["b"], "n": [3], "v": [[3.0, 0.0]]}, schema=SCHEMA))
    leaf = pa.table({"k": ["a", "a"], "n": [1, 2], "v": [[1.0, 0.0], [2.0, 0.0]]}, schema=SCHEMA)
    lance.write_dataset(leaf, tmp_path / "outside")
    table.adopt(tmp_path / "outside")
    table.set_mode("strong")
    (tmp_path / "lake").mkdir()
    return str((tmp_path / "first").rename(tmp_path / "lake" / "t"))


def _stream(spark: SparkSession, uri: str, folder: Path, options: dict[str, str]) -> int:
    folder.mkdir()
    query = (
        spark.readStream.format("phalanx")
        .options(**options)
        .load(uri)
        .select("k", "n")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    query.awaitTermination()
    return spark.read.parquet(str(folder / "rows")).count()


def test_reads(spark: SparkSession, outside: str, tmp_path: Path) -> None:
    def load_with(**options: str) -> Callable[[dict[str, str]], int]:
        return lambda trust: len(
            spark.read.format("phalanx").options(**options, **trust).load(outside).collect()
        )

    def open_outside(trust: dict[str, str]) -> phalanx.Table:
        return phalanx.open(outside, trust_locations=bool(trust))

    queries = spark.createDataFrame([([0.0, 0.0],)], "query array<float>")
    folders = iter([tmp_path / "refused", tmp_path / "read"])
    ways: dict[str, Callable[[dict[str, str]], int]] = {
        "load": load_with(),
        "load at": load_with(snapshot="1"),
        "changes": load_with(changes="true", from_snapshot="0"),
        "count": lambda trust: spark.read.format("phalanx").options(**trust).load(outside).count(),
        "stream": lambda trust: _stream(spark, outside, next(folders), trust),
        "search": lambda trust: phalanx.spark.search(
            spark, open_outside(trust), queries, "v", 9, columns=["n"]
        ).count(),
        "join": lambda trust: phalanx.spark.join(
            spark, open_outside(trust), open_outside(trust), ["k", "n"], "semi"
        ).count(),
    }
    for name, way in ways.items():
        with pytest.raises(Exception, match="trust_locations=True"):
            way({})
        assert way({"trust_locations": "true"}) == 3, name


@pytest.mark.skipif(MASTER == "python", reason="without the classes in Java there is no catalog")
def test_a_catalog_trusts_no_location(spark: SparkSession, outside: str) -> None:
    """Many users query a catalog; only its administrator adopts outside leaves."""
    root = str(Path(outside).parent)
    lake_at(spark, root).check_refused("SELECT * FROM lake.t", "trust_locations")
    trusting = lake_at(spark, root)
    spark.conf.set(f"spark.sql.catalog.{trusting.name}.trust_locations", "true")
    trusting.check_refused("SELECT * FROM lake.t", "trust_locations: there is no such setting")
    phalanx.open(outside).adopt(Path(outside).parent.parent / "outside")
    assert len(lake_at(spark, root).sql("SELECT * FROM lake.t")) == 3
