"""Processes that update, merge and drop the same partitions at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

import phalanx
from processes import SERVER
from tables import table_of

SCHEMA = pa.schema([("k", pa.string()), ("id", pa.int64()), ("n", pa.int64())])
KEYS = ("a", "b", "c")


def rows(found: list[tuple[str, int, int]]) -> pa.Table:
    """Build rows from a partition, an id and a number."""
    return table_of(SCHEMA, found)


def run_together(root: str, longest: float, *work: tuple[Callable[..., None], int]) -> None:
    """Run all work at the same time, each as often as given."""
    processes = [
        SERVER.Process(target=target, args=(root, number, times))
        for number, (target, times) in enumerate(work)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(longest)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * len(codes)


def update(root: str, number: int, times: int) -> None:
    """Add one to every row."""
    table = phalanx.open(root)
    for _ in range(times):
        table.update("id < 1000", {"n": "n + 1"})


def merge(root: str, number: int, times: int) -> None:
    """Merge the same keys as every other process: update the existing ones, insert the rest."""
    table = phalanx.open(root)
    for time in range(times):
        found = [(key, 2000 + place, 100 * number + time) for place, key in enumerate(KEYS)]
        table.merge(rows(found), "id")


def append(root: str, number: int, times: int) -> None:
    """Append rows that no process changes, one after the other."""
    table = phalanx.open(root)
    for time in range(times):
        table.append(rows([(KEYS[time % len(KEYS)], 10_000 + 100 * number + time, 0)]))


def drop(root: str, number: int, times: int) -> None:
    """Drop one partition after the other."""
    table = phalanx.open(root)
    for time in range(times):
        table.drop_partitions(f"k = '{KEYS[time % len(KEYS)]}'")


def contents(table: phalanx.Table) -> set[tuple[Any, ...]]:
    """Return the rows, and check that none occurs twice."""
    found = [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()]
    assert len(set(found)) == len(found)
    return set(found)
