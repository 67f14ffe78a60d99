"""Writing, scanning and planning a table, against the alternative a user would choose."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads

import phalanx
from bench.iceberg import iceberg_table
from bench.measure import Growth, Measured, Memory, best, cost, faster
from phalanx.model.specs.partition_key import to_key_columns
from phalanx.storage.manifest.changes import insert_rows
from phalanx.storage.manifest.partition_rows import build_partition_rows
from phalanx.storage.state.naming import leaf_directory
from phalanx.table.handle import handle_of

_TENANTS = 100
_PARTITIONS = 100_000
_FIRST_DAY = date(1900, 1, 1)


def benchmarks(rows: int) -> Iterator[Measured | Growth | Memory]:
    """Every ratio the storage layer should keep."""
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        yield from _measure_writes_and_reads(rows, Path(folder))
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        yield from _measure_plans(Path(folder))
    yield from _measure_memory(rows)


def sample(rows: int, seed: int = 0) -> pa.Table:
    """Rows of six columns that fall in a hundred partitions."""
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "id": pa.array(np.arange(rows)),
            "tenant": pa.array(random.integers(0, _TENANTS, rows).astype(np.int32)),
            "amount": pa.array(random.random(rows)),
            "quantity": pa.array(random.integers(0, 1000, rows)),
            "product": pa.array(random.integers(0, 50, rows)).cast(pa.string()),
            "at": pa.array(random.integers(0, 10**15, rows)).cast(pa.timestamp("us")),
        }
    )


def _measure_writes_and_reads(rows: int, folder: Path) -> Iterator[Measured]:
    table = sample(rows)
    counter = iter(range(1000))

    def append() -> None:
        made = phalanx.create(folder / f"phalanx-{next(counter)}", table.schema, "tenant")
        made.append(table)

    def single() -> None:
        lance.write_dataset(table, str(folder / f"lance-{next(counter)}"))

    def hive() -> None:
        by_tenant = pads.partitioning(pa.schema([("tenant", pa.int32())]), flavor="hive")
        where = str(folder / f"hive-{next(counter)}")
        pads.write_dataset(table, where, format="parquet", partitioning=by_tenant)

    ours, theirs = best(append, 3), best(single, 3)
    name = f"append into {_TENANTS} partitions"
    yield cost(name, ours, "lance.write_dataset into one table", theirs, 3)
    yield faster(name, ours, "pyarrow.dataset.write_dataset, hive, parquet", best(hive, 1), 2)

    events = phalanx.open(folder / "phalanx-0")
    one = lance.dataset(str(next(folder.glob("lance-*"))))
    yield cost(
        "full scan, in memory",
        best(lambda: events.scan().to_arrow(), 5),
        "the same of one Lance table",
        best(one.to_table, 5),
        1.3,
    )
    yield cost(
        "full scan, streamed",
        best(lambda: sum(batch.num_rows for batch in events.scan().to_batches()), 5),
        "the same of one Lance table",
        best(lambda: sum(batch.num_rows for batch in one.to_batches()), 5),
        1.3,
    )
    yield faster(
        f"a query that needs 1 of {_TENANTS} partitions",
        best(lambda: events.scan("tenant = 7").to_arrow(), 30),
        "one Lance table with the same filter",
        best(lambda: one.to_table(filter="tenant = 7"), 5),
        20,
    )


def _measure_plans(folder: Path) -> Iterator[Measured | Growth]:
    cold: dict[int, float] = {}
    for partitions in (_PARTITIONS // 100, _PARTITIONS // 10, _PARTITIONS):
        root = folder / str(partitions)
        _bulk(root, partitions)
        opened = best(partial(phalanx.open, root), 3)
        cold[partitions] = best(partial(_cold_plan, root), 3)
    yield cost(f"open with {_PARTITIONS:,} partitions", opened, "one second", 1.0, 1)
    yield Growth("cold plan of one matching partition", "partitions", cold)
    few, many = cold[_PARTITIONS // 10], cold[_PARTITIONS]
    yield cost("cold plan, ten times the partitions", many, "a tenth of them", few, 10)

    table = phalanx.open(folder / str(_PARTITIONS))
    peer = iceberg_table(folder / "iceberg", _FIRST_DAY, _PARTITIONS)
    for what, where in (("equality", _equality(500)), ("range", _range(500, 530))):
        table.plan(where)
        yield faster(
            f"warm {what} plan over {_PARTITIONS:,} partitions",
            best(partial(_plan, table, where), 7),
            "pyiceberg over as many files",
            best(partial(_plan_files, peer, where), 2),
            10,
        )


def _plan(table: phalanx.Table, where: str) -> object:
    return table.plan(where).partitions


def _plan_files(table: Any, where: str) -> object:
    return list(table.scan(where).plan_files())


def _cold_plan(root: Path) -> object:
    return phalanx.open(root).plan(_equality(500)).partitions


def _equality(day: int) -> str:
    return f"day = '{_FIRST_DAY + timedelta(days=day)}'"


def _range(first: int, last: int) -> str:
    start, end = _FIRST_DAY + timedelta(days=first), _FIRST_DAY + timedelta(days=last)
    return f"day >= '{start}' AND day < '{end}'"


def _bulk(root: Path, partitions: int) -> None:
    """A namespace with this many partitions, of which only the manifest exists."""
    schema = pa.schema([("day", pa.date32()), ("amount", pa.float64())])
    phalanx.create(root, schema, "day")
    manifest = handle_of(phalanx.open(root)).load_manifest()
    first = (_FIRST_DAY - date(1970, 1, 1)).days
    days = pa.array(np.arange(first, first + partitions, dtype=np.int32)).cast(pa.date32())
    keys = to_key_columns(1, pa.table({"day": days}), partitions)
    insert_rows(manifest, build_partition_rows(manifest, keys, leaf_directory))


def _measure_memory(rows: int) -> Iterator[Memory]:
    for what in ("append", "scan"):
        peaks = {size: _peak(what, size) for size in (rows // 2, rows * 5)}
        yield Memory(f"peak memory of a streamed {what}", "rows", peaks)


def _peak(what: str, rows: int) -> int:
    """The peak memory of a process of its own, in bytes."""
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        if what == "scan":
            append_stream(Path(folder), rows)
        command = [sys.executable, "-m", "bench.memory", what, folder, str(rows)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


def append_stream(root: Path, rows: int) -> None:
    """Append rows that are generated while they are written."""
    step = 1 << 17
    schema = sample(1).schema
    batches = (
        batch
        for start in range(0, rows, step)
        for batch in sample(min(step, rows - start), start).to_batches()
    )
    made = phalanx.create(root / "events", schema, "tenant")
    made.append(pa.RecordBatchReader.from_batches(schema, batches))
