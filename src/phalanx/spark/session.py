"""A Spark session that is set up for Phalanx."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TypeVar

Builder = TypeVar("Builder")

# Rows travel between the JVM and Python in batches: short ones cost more than the rows.
_BATCH_ROWS = 65_536


def configure(builder: Builder) -> Builder:
    """The builder of a Spark session with what Phalanx needs; what is set already stays.

    `spark = phalanx.spark.configure(SparkSession.builder).getOrCreate()`
    """
    # The workers take another Python otherwise: the first one on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark forks to start a JVM, where nothing of Lance is used.
    warnings.filterwarnings("ignore", "lance is not fork-safe", UserWarning)
    set_already = getattr(builder, "_options", {})
    for key, value in _SETTINGS.items():
        if key not in set_already:
            builder = builder.config(key, value)  # type: ignore[attr-defined]
    return builder


_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(_BATCH_ROWS),
    # Columns of times are read as such.
    "spark.sql.timeType.enabled": "true",
}
