"""Search in one partition of many, and in all of them, compared with pylance: on the leaf alone,
and on one big table with and without an index of the tenant's column. PHALANX_BENCH_TENANTS sets
how many tenants there are (1,000).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import phalanx
from bench.measure import Beside, Measured, cost, faster, median, time_alternately

TENANTS = int(os.environ.get("PHALANX_BENCH_TENANTS", "1_000"))
VECTORS, SIZE, K = 1_000, 128, 10
# Leaves that are large enough for an index, for the recall.
LARGE, LARGE_VECTORS, QUERIES = 5, 20_000, 50
SCHEMA = pa.schema(
    [("tenant", pa.int64()), ("id", pa.int64()), ("v", pa.list_(pa.float32(), SIZE))]
)


@dataclass(frozen=True, slots=True)
class Recall:
    """The share of the true nearest rows that an index finds."""

    what: str
    found: float
    at_least: float

    def __str__(self) -> str:
        verdict = "ok" if self.found >= self.at_least else "MISSED"
        return (
            f"{self.what}\n{'':<10} {self.found:.3f}, should be at least {self.at_least:g}: "
            f"{verdict}"
        )


def benchmarks(rows: int) -> Iterator[Measured | Beside | Recall]:
    """Measure search. The number of vectors does not depend on `rows`."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _measure_speed(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        yield from _recall(Path(folder))


def draw_clustered(random: np.random.Generator, rows: int) -> np.ndarray:
    """Vectors around some centres, as embeddings are."""
    centres = np.random.default_rng(0).normal(size=(200, SIZE)).astype(np.float32) * 3
    noise = random.normal(size=(rows, SIZE)).astype(np.float32)
    found: np.ndarray = centres[random.integers(0, len(centres), rows)] + noise
    return found


def _rows(random: np.random.Generator, tenants: range, each: int) -> pa.Table:
    count = len(tenants) * each
    flat = pa.array(draw_clustered(random, count).reshape(-1))
    return pa.table(
        {
            "tenant": np.repeat(np.array(tenants, np.int64), each),
            "id": np.arange(count) + tenants.start * each,
            "v": pa.FixedSizeListArray.from_arrays(flat, SIZE),
        },
        schema=SCHEMA,
    )


def _measure_speed(folder: Path) -> Iterator[Measured | Beside]:
    random = np.random.default_rng(1)
    table = phalanx.create(folder / "tenants", SCHEMA, "tenant", transaction="strong")
    big = str(folder / "big")
    for first in range(0, TENANTS, 100):
        some = _rows(random, range(first, min(first + 100, TENANTS)), VECTORS)
        table.append(some)
        lance.write_dataset(some, big, mode="append")
    plain = lance.dataset(big)
    indexed_place = str(folder / "indexed")
    lance.write_dataset(plain.to_table(), indexed_place)
    lance.dataset(indexed_place).create_scalar_index("tenant", "BTREE")
    indexed = lance.dataset(indexed_place)
    leaf = table.partition(tenant=7)
    query = draw_clustered(random, 1)[0]
    nearest = {"column": "v", "q": query, "k": K}
    columns = ["id", "tenant", "_distance"]

    def search_filtered(dataset: lance.LanceDataset) -> pa.Table:
        return dataset.scanner(
            columns=columns, nearest=nearest, filter="tenant = 7", prefilter=True
        ).to_table()

    one = time_alternately(
        {
            "ours": lambda: table.search("v", query, K, "tenant = 7", ["id"]),
            "leaf": lambda: leaf.scanner(columns=columns, nearest=nearest).to_table(),
        },
        200,
        median,
    )
    yield cost("search in one tenant", one["ours"], "pylance on its leaf", one["leaf"], 1.5)
    both = time_alternately(
        {"big": lambda: search_filtered(plain), "indexed": lambda: search_filtered(indexed)}, 5
    )
    name = "pylance with a filter on one table"
    yield faster("search in one tenant", one["ours"], name, both["big"], 20)
    yield Beside("search in one tenant", {"ours": one["ours"], "one table, BTREE": both["indexed"]})
    every = time_alternately(
        {
            "ours": lambda: table.search("v", query, K, columns=["id"]),
            "big": lambda: plain.scanner(columns=columns, nearest=nearest).to_table(),
        },
        7,
    )
    what = f"search in all of {TENANTS:,} tenants × {VECTORS:,} vectors of {SIZE}"
    yield cost(what, every["ours"], "pylance on one flat table", every["big"], 4)


def _recall(folder: Path) -> Iterator[Recall | Beside]:
    random = np.random.default_rng(2)
    rows = _rows(random, range(LARGE), LARGE_VECTORS)
    table = phalanx.create(folder / "tenants", SCHEMA, "tenant", transaction="strong")
    table.append(rows)
    queries = draw_clustered(random, QUERIES)
    exact = [_ids(table, query, use_index=False) for query in queries]
    for kind in ("IVF_FLAT", "IVF_SQ", "IVF_PQ"):
        times = time_alternately({"built": partial(table.create_index, "v", kind)}, 1)
        found = [_ids(table, query, use_index=True) for query in queries]
        right = np.mean([len(a & b) / K for a, b in zip(exact, found, strict=True)])
        what = f"recall@{K} of {kind} with default settings"
        yield Recall(what, float(right), 0.95)
        run = time_alternately(
            {
                "index": lambda: _ids(table, queries[0], use_index=True),
                "exact": lambda: _ids(table, queries[0], use_index=False),
            },
            5,
        )
        yield Beside(f"search in {len(rows):,} vectors, {kind}", {**run, **times})


def _ids(table: phalanx.Table, query: np.ndarray, use_index: bool) -> set[int]:
    return set(table.search("v", query, K, columns=["id"], use_index=use_index)["id"].to_pylist())
