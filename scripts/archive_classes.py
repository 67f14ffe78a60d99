"""Writes the classes that Spark loads into an archive: `archive_classes.py <file>`.

A JVM that maps the archive starts a Spark session with a third of the work. The tests start dozens
of JVMs; `tests/processes.py` passes them the archive. It is valid for the installed Java and Spark
only, and a JVM ignores one that does not fit.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

# The statements decide which classes are archived: they use what most tests need.
STATEMENTS = """
CREATE TABLE lake.events (id bigint, k string, ts timestamp)
    PARTITIONED BY (days(ts), bucket(4, id)) TBLPROPERTIES (transaction = 'strong')
INSERT INTO lake.events SELECT id, CAST(id % 3 AS string), timestamp_seconds(id) FROM range(20)
MERGE INTO lake.events t USING (SELECT 5L AS id, 'y' AS k, timestamp_seconds(5) AS ts) s
    ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
SELECT k, count(*), max(ts) FROM lake.events WHERE id > 2 GROUP BY k ORDER BY k
"""


def main(archive: Path) -> None:
    """Run a session of Spark Connect, whose server has the classes of a driver too."""
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f"-XX:ArchiveClassesAtExit={partial} -Xlog:cds=off -Xlog:cds+dynamic=off "
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    )

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    import phalanx.spark

    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.remote("local[2]")
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
            "spark.sql.catalog.lake": "phalanx.bridge.Catalog",
            "spark.sql.catalog.lake.root": f"{folder}/lake",
        }.items():
            builder = builder.config(name, value)
        spark = phalanx.spark.configure(builder).getOrCreate()
        for statement in STATEMENTS.replace("\n    ", " ").strip().splitlines():
            spark.sql(statement).collect()
        stream = spark.readStream.table("lake.events").writeStream.format("phalanx")
        stream = stream.option("checkpointLocation", f"{folder}/checkpoint")
        stream.trigger(availableNow=True).toTable("lake.copy").awaitTermination()
        gateway = SparkContext._gateway
        spark.stop()
        # The JVM ends with its standard input, and writes the archive then.
        gateway.proc.stdin.close()
        gateway.proc.wait(300)
    partial.rename(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
