"""Functions that tests run in spawned processes, which find them by the name of this module."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import phalanx


def append_and_count(table: phalanx.Table, number: int) -> int:
    """Append one row of partition `p`, and count the rows of it."""
    table.append(pa.table([["p"], [number]], names=["k", "n"]))
    return table.scan("k = 'p'").count_rows()


def count(table: phalanx.Table) -> int:
    """Return how many rows a table has."""
    return int(table.scan().count_rows())


def numbers(read: Any) -> list[int]:
    """Return the values of column `n` in a scan, in order."""
    found: list[int] = read.to_arrow()["n"].to_pylist()
    return sorted(found)


def list_changes(feed: Any) -> list[str]:
    """Return the change of each row."""
    found: list[str] = feed.to_arrow()["_change"].to_pylist()
    return found
