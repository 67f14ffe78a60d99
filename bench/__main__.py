"""`make bench`: print every ratio, what it is measured against, and what it should be.

PHALANX_BENCH_ROWS sets the number of rows (10 million by default), PHALANX_BENCH_SNAPSHOTS that of
the commits of a long history (10,000); `python -m bench storage` runs one part alone.
"""

from __future__ import annotations

import os
import sys

from bench import (
    ducklake,
    importing,
    model,
    rewrite,
    rows,
    search,
    spark,
    spark_merge,
    storage,
    strong,
)


def main() -> None:
    count = int(os.environ.get("PHALANX_BENCH_ROWS", "10_000_000"))
    print(f"{count:,} rows, {os.cpu_count()} cores; the best of several runs of each\n")
    parts = {
        "model": model.benchmarks,
        "ducklake": ducklake.benchmarks,
        "rewrite": rewrite.benchmarks,
        "storage": storage.benchmarks,
        "strong": strong.benchmarks,
        "rows": rows.benchmarks,
        "search": search.benchmarks,
        "spark": spark.benchmarks,
        "spark_merge": spark_merge.benchmarks,
        "importing": importing.benchmarks,
    }
    for name in sys.argv[1:] or parts:
        for measured in parts[name](count):
            print(measured, flush=True)


if __name__ == "__main__":
    main()
