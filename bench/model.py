"""The pure layers: hashing, calendar parts and planning."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import partial

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.measure import Growth, Measured, best, cost, faster
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.transforms.buckets import Bucket
from phalanx.model.transforms.calendar_parts import Day, Month, Year
from phalanx.planning.pruning.prune import prune

BUCKETS = 16


def benchmarks(rows: int) -> Iterator[Measured | Growth]:
    """Every benchmark of the model, in turn."""
    random = np.random.default_rng(7)
    yield _bucket_numbers(pa.array(random.integers(-(2**63), 2**63, rows)))
    yield _bucket_texts(_names(random, rows))
    moments = pa.array(random.integers(0, 2 * 10**15, rows)).cast(pa.timestamp("us"))
    for part, theirs in ((Year(), pc.year), (Month(), pc.month), (Day(), pc.day)):
        ours = best(partial(part.apply, moments), 5)
        own = best(partial(theirs, moments), 5)
        yield cost(f"{part.name} of a timestamp", ours, f"pyarrow's {part.name}", own, 1.5)
    yield from _plans()


def _names(random: np.random.Generator, rows: int) -> pa.Array:
    """Short texts of 5 to 12 characters, all different."""
    numbers = pa.array(random.integers(0, 10**7, rows)).cast(pa.string())
    return pc.binary_join_element_wise("user", numbers, "-")


def _bucket_numbers(values: pa.Array) -> Measured:
    def loop() -> list[int]:
        pack, hashed = struct.Struct("<q").pack, mmh3.hash
        return [abs(hashed(pack(value))) % BUCKETS for value in values.to_pylist()]

    ours = best(lambda: Bucket(BUCKETS).apply(values), 3)
    return faster("bucket of int64", ours, "a loop over mmh3.hash", best(loop, 1), 5)


def _bucket_texts(values: pa.Array) -> Measured:
    def loop() -> list[int]:
        hashed = mmh3.hash
        return [abs(hashed(value)) % BUCKETS for value in values.to_pylist()]

    ours = best(lambda: Bucket(BUCKETS).apply(values), 3)
    return faster("bucket of short strings", ours, "a loop over mmh3.hash", best(loop, 1), 2)


def _plans() -> Iterator[Measured | Growth]:
    schema = Schema.of(
        pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us")), ("country", pa.string())])
    )
    dates = [f"'{2015 + n % 10}-{n % 12 + 1:02d}-{n % 28 + 1:02d}'" for n in range(1000)]
    numbers = [str(n * 7919) for n in range(1000)]
    for partition_by, column, values in (
        ("year(ts), bucket(16, id), country", "id", numbers),
        ("id, bucket(16, id), truncate(100, id)", "id", numbers),
        ("year(ts), month(ts), day(ts)", "ts", dates),
    ):
        specs = {1: build_next_spec(partition_by, schema, {})}
        times = {
            count: best(partial(_plan, column, values[:count], specs, schema), 20)
            for count in (1, 10, 100, 1000)
        }
        yield cost(f"plan, 1,000 values: {partition_by}", times[1000], "1 value", times[1], 20)
        yield Growth(f"plan: {partition_by}", "values", times)


def _plan(
    column: str, values: list[str], specs: Mapping[int, PartitionSpec], schema: Schema
) -> str:
    where = f"{column} IN ({', '.join(values)})"
    return prune(bind_predicate(where, schema), specs, schema).manifest_filter
