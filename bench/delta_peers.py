"""Merges in Delta tables, run with Python of an environment that has deltalake."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake  # type: ignore[import-not-found]


def main() -> None:
    """Print the seconds of a merge of each of the files into the first one, as a list."""
    folder, source, *arriving = map(Path, sys.argv[1:])
    write_deltalake(str(folder), pq.read_table(source), partition_by=["tenant"])
    seconds = []
    for path in arriving:
        rows = pq.read_table(path)
        start = time.perf_counter()
        (
            DeltaTable(str(folder))
            .merge(rows, "t.tenant = s.tenant AND t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
