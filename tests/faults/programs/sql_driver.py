"""SQL statements in a session of its own, whose writers die or stall at a given step.

As a script, with the root of a catalog, a scenario and a folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import phalanx.spark

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.catalog.lake": "phalanx.bridge.Catalog",
    # Two tasks write, each with its partitions.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "500ms",
}


def rows(start: int, end: int) -> str:
    """A query for rows of eight partitions."""
    return f"SELECT string(id % 8) AS k, id AS n, {start} AS v FROM range({start}, {end}, 1, 2)"


def merge(start: int, end: int) -> str:
    """Changes the existing rows, and adds the others."""
    return (
        f"MERGE INTO lake.t AS t USING ({rows(start, end)}) AS s ON t.n = s.n "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def main(root: str, scenario: str, folder: str) -> None:
    """Run a scenario."""
    on_cluster = scenario == "cluster"
    builder = SparkSession.builder.master("local-cluster[2,1,1024]" if on_cluster else "local[2]")
    for key, value in {**SETTINGS, "spark.sql.catalog.lake.root": root}.items():
        builder = builder.config(key, value)
    spark = phalanx.spark.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    faults_file = Path(os.environ["PHALANX_TEST_FAULTS"])

    def run(statement: str, **faults: str) -> None:
        name = Path(folder) / f"{len(list(Path(folder).iterdir()))}"
        name.mkdir()
        faults_file.write_text(json.dumps({**faults, "folder": str(name)}))
        spark.sql(statement)

    if on_cluster:
        run(f"INSERT INTO lake.t {rows(40, 80)}", task="is slow")
        run(merge(60, 100), task="is slow")
        run(merge(80, 120), task="kills its executor")
    else:
        run(merge(20, 60), commit=scenario, waits="yes")


if __name__ == "__main__":
    main(*sys.argv[1:])
