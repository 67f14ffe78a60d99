"""MERGE INTO in Iceberg's connector for Spark, run with Python of a separate environment.

The first file has the rows of the table, and each other file is merged into it. Prints the seconds
of each merge as JSON.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main(folder: str, jar: str, rows: str, *arriving: str) -> None:
    builder = SparkSession.builder.master("local[*]").appName("peers")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "6g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.jars": jar,
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": f"{folder}/iceberg",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.sql("CREATE NAMESPACE ice.bench")
    table = spark.read.parquet(rows).writeTo("ice.bench.rows").partitionedBy(f.col("tenant"))
    table.tableProperty("format-version", "2").tableProperty("write.merge.mode", "merge-on-read")
    table.create()
    times = []
    for path in arriving:
        start = time.perf_counter()
        spark.sql(
            f"MERGE INTO ice.bench.rows AS t USING parquet.`{path}` AS s ON t.tenant = s.tenant "
            "AND t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        times.append(time.perf_counter() - start)
    print(json.dumps(times))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
