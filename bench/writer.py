"""One writer in a process of its own: small appends to one partition, as many as it can.

It prints a line when it is ready, begins when it reads one, and prints how many commits it made
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
    until_taken(lake, rows)
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + float(seconds)
    commits = refused = 0
    while time.monotonic() < end:
        refused += until_taken(lake, rows)
        commits += time.monotonic() < end
    print(commits, refused, flush=True)


def few_rows(tenant: int) -> pa.Table:
    """Rows of one partition."""
    rows = sample(5)
    place = rows.column_names.index("tenant")
    return rows.set_column(place, "tenant", pa.array([tenant] * 5, pa.int32()))


def until_taken(lake: Lake, rows: pa.Table) -> int:
    """Append the rows, and retry if refused; return the number of refusals."""
    refused = 0
    while True:
        try:
            lake.append(rows)
            return refused
        except Refused:
            refused += 1


if __name__ == "__main__":
    main()
