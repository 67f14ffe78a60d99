"""Processes that update, merge and drop the same partitions at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

import phalanx
from processes import SERVER

SCHEMA = pa.schema([("k", pa.string()), ("id", pa.int64()), ("n", pa.int64())])
KEYS = ("a", "b", "c")


def rows(found: list[tuple[str, int, int]]) -> pa.Table:
    """Rows by partition, id and number."""
    return pa.table([list(column) for column in zip(*found, strict=True)], schema=SCHEMA)


def together(root: str, longest: float, *work: tuple[Callable[..., None], int]) -> None:
    """Do all of it at the same time, so many times each."""
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
    """Bring the same keys as everybody, and change those that are there."""
    table = phalanx.open(root)
    for time in range(times):
        found = [(key, 2000 + place, 100 * number + time) for place, key in enumerate(KEYS)]
        table.merge(rows(found), "id")


def append(root: str, number: int, times: int) -> None:
    """Add rows that nobody changes, one after the other."""
    table = phalanx.open(root)
    for time in range(times):
        table.append(rows([(KEYS[time % len(KEYS)], 10_000 + 100 * number + time, 0)]))


def drop(root: str, number: int, times: int) -> None:
    """Drop one partition after the other."""
    table = phalanx.open(root)
    for time in range(times):
        table.drop_partitions(f"k = '{KEYS[time % len(KEYS)]}'")


def contents(table: phalanx.Table) -> set[tuple[Any, ...]]:
    """The rows, no two of which are the same."""
    found = [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()]
    assert len(set(found)) == len(found)
    return set(found)
