"""With Java classes built for another Spark, the Python source works alone."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa

import phalanx
from phalanx.spark.sql import bridge

SCRIPT = """
import sys
from pyspark.sql import SparkSession
import phalanx.spark
from phalanx.spark.sql import bridge
from pathlib import Path

bridge.find_jar.cache_clear()
bridge.find_jar = lambda: Path(sys.argv[1])
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1")
spark = phalanx.spark.configure(builder).getOrCreate()
frame = spark.read.format("phalanx").load(sys.argv[2])
print(sorted(tuple(row) for row in frame.where("k = 'a'").collect()))
print(sorted(tuple(row) for row in frame.where("n > 1").collect()))
"""


def test_classes_for_another_spark_are_not_used(tmp_path: Path) -> None:
    jar = bridge.find_jar()
    assert jar is not None
    other = tmp_path / "bridge-other.jar"
    with zipfile.ZipFile(jar) as given, zipfile.ZipFile(other, "w") as changed:
        for name in given.namelist():
            changed.writestr(name, b"9.9.9" if name.endswith("version") else given.read(name))
    rows = pa.table({"k": ["a", "b"], "n": [1, 2]})
    phalanx.create(tmp_path / "table", rows.schema, ["k"]).append(rows)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(other), str(tmp_path / "table")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines() == ["[('a', 1)]", "[('b', 2)]"], done.stderr[-3000:]
    assert done.stderr.count("The classes of Phalanx are for Spark 9.9.9") == 1
