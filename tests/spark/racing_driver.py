"""A Spark driver that runs statements from its standard input: `racing_driver.py <root>`.

Each line of its standard input has a path below the root, a value of `spark.sql.adaptive.enabled`
and a statement. The driver prints a line when it is ready, and answers each line with the error of
the statement or null, as JSON.
"""

from __future__ import annotations

import json
import re
import sys

from pyspark.sql import SparkSession

import phalanx.spark


def main(root: str) -> None:
    """Run statements until there are no more."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.catalog.lake", "phalanx.bridge.Catalog")
    builder = builder.config("spark.sql.catalog.lake.root", root)
    spark = phalanx.spark.configure(builder).getOrCreate()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        place, adaptive, statement = json.loads(line)
        spark.conf.set("spark.sql.adaptive.enabled", adaptive)
        error = None
        try:
            spark.sql(re.sub(r"\blake\b", f"lake.`{place}`", statement)).collect()
        except Exception as raised:
            error = str(raised)
        print(json.dumps(error), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
