"""Changes of rows: merges compared with other systems, updates of a few rows, and drops."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import phalanx
from bench.measure import Beside, Growth, Measured, best, cost
from bench.storage import sample
from bench.strong import bulk_table

ARRIVING = 100_000
_RUNS = 3
_KEY = ["tenant", "id"]
_DROPPED = (10, 1_000, 100_000)
_DELTA = "deltalake~=1.6"
_ENVIRONMENT = Path(__file__).parent.parent / "build" / "delta"


def benchmarks(rows: int) -> Iterator[Measured | Beside | Growth | str]:
    """Measure changes of rows."""
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        yield from _measure_merges(rows, Path(folder))
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        yield _measure_drop(Path(folder))


def _measure_merges(rows: int, folder: Path) -> Iterator[Measured | Beside | str]:
    data = sample(rows)
    arriving = [make_merge_rows(data, rows, run) for run in range(_RUNS)]
    tables = {
        mode: phalanx.create(folder / mode, data.schema, "tenant", transaction=mode)
        for mode in ("weak", "strong")
    }
    for table in tables.values():
        table.append(data)
    big = lance.write_dataset(data, str(folder / "lance"))

    def merge_insert(source: pa.Table) -> None:
        job = big.merge_insert(_KEY).when_matched_update_all().when_not_matched_insert_all()
        job.execute(source)

    merges: dict[str, Callable[[pa.Table], object]] = {
        "strong": lambda source: tables["strong"].merge(source, _KEY),
        "weak": lambda source: tables["weak"].merge(source, _KEY),
        "pylance": merge_insert,
    }
    times: dict[str, list[float]] = {name: [] for name in merges}
    for source in arriving:
        for name, merge in merges.items():
            start = time.perf_counter()
            merge(source)
            times[name].append(time.perf_counter() - start)
    counts = {table.scan().count_rows() for table in tables.values()} | {big.count_rows()}
    assert counts == {rows + _RUNS * (ARRIVING // 2)}
    found = {name: min(seconds) for name, seconds in times.items()}
    what = f"merge of {ARRIVING:,} rows, half of them new, into {rows:,} over 100 partitions"
    delta = _measure_delta(data, arriving, folder)
    if isinstance(delta, str):
        yield delta
    else:
        found |= {"Delta (delta-rs)": min(delta)}
    yield Beside(what, found)
    few = arriving[0].filter(pc.less(arriving[0]["tenant"], 2)).slice(0, 100)
    seconds = best(lambda: tables["strong"].merge(few, _KEY), _RUNS)
    alone = best(lambda: merge_insert(few), _RUNS)
    yield cost(f"merge of {few.num_rows} rows of 2 partitions", seconds, "merge_insert", alone, 1)
    yield Beside(
        "update of 100 rows in one partition",
        {
            "strong": best(
                lambda: tables["strong"].update(
                    "tenant = 7 AND quantity = 7", {"quantity": "quantity"}
                ),
                _RUNS,
            ),
            "pylance": best(
                lambda: big.update({"quantity": "quantity"}, "tenant = 7 AND quantity = 7"), _RUNS
            ),
        },
    )


def make_merge_rows(data: pa.Table, rows: int, run: int) -> pa.Table:
    """Make rows to merge. Half of them have existing keys."""
    random = np.random.default_rng(run)
    known = random.choice(rows, ARRIVING // 2, replace=False)
    new = sample(ARRIVING // 2, seed=run + 1)
    first = rows + run * (ARRIVING // 2)
    ids = pa.array(np.arange(first, first + ARRIVING // 2))
    changed = data.take(pa.array(known))
    changed = changed.set_column(2, "amount", pa.array(random.random(len(known))))
    return pa.concat_tables([changed, new.set_column(0, "id", ids)]).combine_chunks()


def _measure_delta(data: pa.Table, arriving: list[pa.Table], folder: Path) -> list[float] | str:
    """Return the seconds of the same merges in a Delta table, or why they were not measured."""
    python = _ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(_ENVIRONMENT, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", _DELTA, "pyarrow"]
        if subprocess.run(install, check=False, capture_output=True).returncode:
            shutil.rmtree(_ENVIRONMENT)
            return f"Delta was not measured: {_DELTA} could not be installed"
    paths = []
    for place, rows in enumerate([data, *arriving]):
        paths.append(folder / f"rows{place}.parquet")
        pq.write_table(rows, paths[-1])
    script = Path(__file__).with_name("delta_peers.py")
    ran = subprocess.run(
        [python, script, folder / "delta", *paths], check=False, capture_output=True, text=True
    )
    if ran.returncode:
        print(ran.stderr[-2000:], file=sys.stderr)
        return "Delta was not measured: its merge failed"
    found: list[float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _measure_drop(folder: Path) -> Growth:
    """One commit for any number of partitions."""
    times = {}
    for count in _DROPPED:
        table = bulk_table(folder / str(count), count)
        # Later statements reuse the cached manifest.
        table.plan()
        start = time.perf_counter()
        assert table.drop_partitions("tenant > 0") == count - 1
        times[count] = time.perf_counter() - start
    return Growth("drop of all partitions but one", "partitions", times)
