"""Strong transactions: their cost, how it grows, and the same transactions in other systems."""

from __future__ import annotations

import cProfile
import dataclasses
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pyarrow as pa

import phalanx
from bench.lakes import LAKES
from bench.measure import Beside, Growth, Measured, Rate, Shared, cost, median, time_alternately
from bench.storage import sample
from bench.writer import append_with_retries, few_rows
from phalanx.model.specs.partition_key import to_key_columns
from phalanx.storage.commit import head, publishing, writing
from phalanx.storage.commit.head import LeafVersion
from phalanx.storage.manifest.partition_rows import build_partition_rows
from phalanx.storage.state.naming import leaf_directory
from phalanx.table.handle import handle_of
from phalanx.table.transactions import strong_mode as strong
from phalanx.table.transactions.strong_target import StrongTarget

_TENANTS = 100
_FEW_ROWS = 10_000
_TABLE_ROWS = (10, 1_000, 100_000)
_SNAPSHOTS = (10, int(os.environ.get("PHALANX_BENCH_SNAPSHOTS", "10_000")))
_SECONDS = 5
_ROUNDS = 2
_WRITERS = 4
_COMMITS = 25

Result = Measured | Growth | Beside | Rate | Shared

# The steps of a commit, and the functions in which their time is spent.
_STEPS: Mapping[str, Callable[..., object]] = {
    "begin": strong.load_head,
    "files": writing.write_rows,
    "detached commits": StrongTarget.apply,
    "manifest commit": head.commit,
    "main follows": publishing.publish,
}


def benchmarks(rows: int) -> Iterator[Result]:
    """Every ratio that strong transactions should keep."""
    for size in (rows, _FEW_ROWS):
        with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
            yield from _against_weak(size, Path(folder))
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        yield from _by_table_rows(Path(folder))
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        yield from _by_snapshots(Path(folder))
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        yield from _beside(Path(folder))
    yield from _several_writers()


def _against_weak(rows: int, folder: Path) -> Iterator[Result]:
    data = sample(rows)
    tables = {
        mode: phalanx.create(folder / mode, data.schema, "tenant", transaction=mode)
        for mode in ("weak", "strong")
    }
    for table in tables.values():
        table.append(data)
    appends = {mode: partial(table.append, data) for mode, table in tables.items()}
    times = time_alternately(appends, 5)
    what = f"strong append of {rows:,} rows to {_TENANTS} partitions"
    yield cost(what, times["strong"], "weak", times["weak"], 1.5)
    yield _steps(what, appends["strong"], 3)


def _by_table_rows(folder: Path) -> Iterator[Result]:
    appends: dict[str, Callable[[], object]] = {}
    for size in _TABLE_ROWS:
        table = bulk_table(folder / str(size), size)
        appends[str(size)] = partial(table.append, few_rows(0))
        appends[str(size)]()
    medians = time_alternately(appends, _COMMITS, median)
    times = {int(size): time for size, time in medians.items()}
    what = "commit of a few rows to one partition"
    yield Growth(what, "table rows", times)
    few, many = _TABLE_ROWS[-2:]
    yield cost(f"{what}, {many:,} table rows", times[many], f"{few:,}", times[few], 4)
    for label, append in appends.items():
        yield _steps(f"{what}, {int(label):,} table rows", append, _COMMITS)


def bulk_table(root: Path, partitions: int) -> phalanx.Table:
    """Create a table with many partitions in one commit of the manifest. Only one has a leaf."""
    rows = few_rows(0)
    table = phalanx.create(root, rows.schema, "tenant", transaction="strong")
    manifest, newest = strong.load_head(handle_of(table).load_manifest())
    tenants = pa.array(np.arange(1, partitions, dtype=np.int32))
    keys = to_key_columns(1, pa.table({"tenant": tenants}), partitions - 1)
    new = build_partition_rows(manifest, keys, leaf_directory)
    names = new.filter(pa.compute.equal(new.column("object_type"), "table")).column("object_id")
    leaves = [LeafVersion(name, 1, "append", 1, 0, 1) for name in names.to_pylist()]
    # Do not look for the main branches of leaves that do not exist.
    newest = dataclasses.replace(newest, published=newest.sequence + 1)
    head.commit(manifest, newest, leaves, "append", new=new)
    return phalanx.open(root)


def _by_snapshots(folder: Path) -> Iterator[Result]:
    few, many = (_with_snapshots(folder / str(count), count) for count in _SNAPSHOTS)
    appends = {"few": partial(few.append, few_rows(0)), "many": partial(many.append, few_rows(0))}
    what = "commit of a few rows to one partition"
    before = time_alternately(appends, _COMMITS, median)
    yield Growth(what, "snapshots", dict(zip(_SNAPSHOTS, before.values(), strict=True)))
    start = time.perf_counter()
    many.vacuum(older_than=timedelta(0))
    yield Beside(f"vacuum of {_SNAPSHOTS[1]:,} snapshots", {"all": time.perf_counter() - start})
    # The first append after a vacuum takes longer.
    many.append(few_rows(0))
    after = time_alternately(appends, _COMMITS, median)
    yield cost(
        f"{what}, {_SNAPSHOTS[1]:,} snapshots and a vacuum",
        after["many"],
        f"{_SNAPSHOTS[0]} snapshots",
        after["few"],
        2,
    )


def _with_snapshots(root: Path, count: int) -> phalanx.Table:
    """Create a table with this many snapshots, by small appends to one partition after another."""
    data = sample(_FEW_ROWS)
    table = phalanx.create(root, data.schema, "tenant", transaction="strong")
    table.append(data)
    for number in range(table.snapshots().num_rows, count):
        table.append(few_rows(number % _TENANTS))
    return table


def _steps(what: str, append: Callable[[], object], runs: int) -> Beside:
    """Measure the steps of an append. The rest is the splitting of the rows, and retries."""
    profile = cProfile.Profile()
    for _ in range(runs):
        profile.enable()
        append()
        profile.disable()
    # Worker threads are not profiled; the functions that wait for them are.
    stats: Any = pstats.Stats(profile)
    found = {}
    for name, function in _STEPS.items():
        assert isinstance(function, FunctionType)
        code = function.__code__
        entry = stats.stats.get((code.co_filename, code.co_firstlineno, code.co_name))
        found[name] = entry[3] / runs if entry else 0.0
    found["rest"] = stats.total_tt / runs - sum(found.values())
    return Beside(f"steps of: {what}", found)


def _beside(folder: Path) -> Iterator[Result]:
    data = sample(_FEW_ROWS)
    lakes = {name: kind(folder / name, data.schema) for name, kind in LAKES.items()}
    for lake in lakes.values():
        lake.append(data)
    for what, rows in (
        ("one transaction of a few rows, 1 partition", few_rows(0)),
        (f"one transaction of {_FEW_ROWS:,} rows, {_TENANTS} partitions", data),
    ):
        appends = {name: partial(lake.append, rows) for name, lake in lakes.items()}
        yield Beside(what, time_alternately(appends, _COMMITS if rows.num_rows < 10 else 5, median))


def _several_writers() -> Iterator[Result]:
    for name in LAKES:
        rounds = [(_rate(name, 1), _rate(name, _WRITERS)) for _ in range(_ROUNDS)]
        alone, together = (max(found, key=_per_second) for found in zip(*rounds, strict=True))
        yield alone
        yield together
        if name == "Phalanx":
            yield Shared(f"{name}: {_WRITERS} writers", alone, together, 0.8, 1 / 3)


def _per_second(rate: Rate) -> float:
    return rate.per_second


def _rate(name: str, writers: int) -> Rate:
    """Measure how often processes commit, each to another partition of a larger table."""
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        root = Path(folder) / name
        data = sample(_FEW_ROWS)
        append_with_retries(LAKES[name](root, data.schema), data)
        command = [sys.executable, "-m", "bench.writer", name, str(root)]
        processes = [
            subprocess.Popen(
                [*command, str(tenant), str(_SECONDS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for tenant in range(writers)
        ]
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"A writer of {name} could not start.")
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        outputs = [process.communicate()[0] for process in processes]
    counts = [tuple(map(int, line.split())) for line in outputs]
    commits = [made for made, _ in counts]
    who = "1 writer" if writers == 1 else f"{writers} writers, each on a partition of its own"
    return Rate(
        f"{name}: {who}",
        _SECONDS,
        commits,
        sum(refused for _, refused in counts),
    )
