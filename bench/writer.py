"""A writer in a process of its own, which appends a few rows to one partition again and again.

It prints a line when it is ready, begins when it reads a line, and prints how many commits it made
and how many were refused.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa

from bench.lakes import LAKES, Lake, Refused
from bench.storage import sample


def main() -> None:
    name, folder, tenant, seconds = sys.argv[1:]
    lake = LAKES[name](Path(folder))
    rows = few_rows(int(tenant))
    # The first append includes the one-time cost of a process.
    append_with_retries(lake, rows)
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + float(seconds)
    commits = refused = 0
    while time.monotonic() < end:
        refused += append_with_retries(lake, rows)
        commits += time.monotonic() < end
    print(commits, refused, flush=True)


def few_rows(tenant: int) -> pa.Table:
    """Rows of one partition."""
    rows = sample(5)
    place = rows.column_names.index("tenant")
    return rows.set_column(place, "tenant", pa.array([tenant] * 5, pa.int32()))


def append_with_retries(lake: Lake, rows: pa.Table) -> int:
    """Append the rows, and repeat that until it succeeds. Return the number of refusals."""
    refused = 0
    while True:
        try:
            lake.append(rows)
            return refused
        except Refused:
            refused += 1


if __name__ == "__main__":
    main()
