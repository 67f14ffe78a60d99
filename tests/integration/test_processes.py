"""Tables in other processes and threads: pickled, spawned, forked, and asked by asyncio."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import phalanx
from integration.spawning import append_and_count, list_changes, numbers
from integration.stores import Store
from phalanx.errors import PhalanxError
from tables import SCHEMA, rows


def pickle_and_load(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.fixture
def table(root: str, store: Store) -> phalanx.Table:
    made = phalanx.create(
        root, SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
    )
    made.append(rows(("a", 1), ("a", 2), ("b", 3)))
    made.delete("n = 2")
    return made


# ── pickled ──────────────────────────────────────────────────────────────────────────────────


def test_a_table_follows_what_is_stored(table: phalanx.Table) -> None:
    other = pickle_and_load(table)
    assert (other.uri, other.mode, other.schema) == (table.uri, "strong", table.schema)
    other.append(rows(("c", 4)))
    assert numbers(table.scan()) == numbers(other.scan()) == [1, 3, 4]


def test_a_table_in_the_past_stays_there(table: phalanx.Table) -> None:
    past = table.at(2)
    by_time = table.at(table.snapshots()["time"][1])
    table.append(rows(("c", 4)))
    for view in (
        pickle_and_load(past),
        pickle_and_load(pickle_and_load(past)),
        pickle_and_load(by_time),
    ):
        assert numbers(view.scan()) == [1, 2, 3]
        with pytest.raises(PhalanxError, match="read-only"):
            view.append(rows(("c", 5)))


def test_scans_changes_and_plans(table: phalanx.Table) -> None:
    scan, changes = table.scan("n > 1"), table.changes(1)
    plan = table.plan("k = 'a'")
    rewrite = table.plan_rewrite()
    table.append(rows(("a", 9)))
    assert numbers(pickle_and_load(scan)) == [3]
    assert pickle_and_load(changes).to_arrow().to_pylist() == changes.to_arrow().to_pylist()
    assert pickle_and_load(plan) == plan
    assert pickle_and_load(plan).to_dict()["partitions"] == plan.to_dict()["partitions"]
    assert pickle_and_load(rewrite).to_dict() == rewrite.to_dict()
    with table.transaction() as txn:
        txn.append(rows(("a", 10)))
        assert numbers(pickle_and_load(txn.scan())) == [1, 3, 9, 10]
        with pytest.raises(PhalanxError, match="Cannot pickle a transaction"):
            pickle_and_load(txn)


def test_other_layouts(root: str, store: Store) -> None:
    for layout in ("hive", "expressions"):
        made = phalanx.create(
            f"{root}-{layout}",
            SCHEMA,
            ["k"],
            layout=layout,
            storage_options=store.storage_options,
        )
        made.append(rows(("a", 1)))
        assert pickle_and_load(made).layout == layout
        assert numbers(pickle_and_load(made).scan()) == [1]


def test_what_a_vacuum_removed_is_reported(table: phalanx.Table) -> None:
    stored = pickle.dumps(table.at(1))
    for _ in range(3):
        table.append(rows(("a", 1)))
    table.vacuum(timedelta(0))
    with pytest.raises(PhalanxError, match="as it was when it was pickled"):
        pickle.loads(stored)


# ── elsewhere ────────────────────────────────────────────────────────────────────────────────


def test_in_spawned_processes(table: phalanx.Table) -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(append_and_count, [table, table], [10, 11]))
        past = pool.submit(numbers, table.at(2).scan()).result()
        kinds = pool.submit(list_changes, table.changes(1, 3)).result()
    assert max(found) == 2
    assert past == [1, 2, 3]
    assert kinds == ["insert", "insert", "insert", "delete"]
    assert numbers(table.scan("k = 'p'")) == [10, 11]


def test_by_asyncio(table: phalanx.Table) -> None:
    async def work() -> list[int]:
        loop = asyncio.get_running_loop()
        await asyncio.gather(
            *(asyncio.to_thread(table.append, rows(("p", n))) for n in range(4)),
            *(loop.run_in_executor(None, table.append, rows(("q", n))) for n in range(4)),
        )
        with ThreadPoolExecutor(2) as pool:
            return await loop.run_in_executor(pool, lambda: numbers(table.scan("k <> 'a'")))

    assert asyncio.run(work()) == [0, 0, 1, 1, 2, 2, 3, 3, 3]


# ── forked ───────────────────────────────────────────────────────────────────────────────────


def run_forked(work: Callable[[], object]) -> str:
    """Return the output of a forked child; an alarm kills one that hangs."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Lance and Python warn of every fork.
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            said = f"fine {work()}"
        except BaseException as error:
            said = f"{type(error).__name__} {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    assert os.waitpid(child, 0)[1] == 0, "the child hung, or crashed"
    return said


@pytest.mark.parametrize(
    "use",
    [
        lambda table: table.scan().to_arrow(),
        lambda table: table.schema,
        lambda table: table.append(rows(("a", 9))),
        lambda table: table.delete("n = 1"),
        lambda table: table.at(1),
        lambda table: table.health(),
        lambda table: table.search("n", [1]),
        lambda table: table.vacuum(),
        lambda table: pickle.loads(pickle.dumps(table)),
        lambda table: phalanx.open(table.uri),
        lambda table: phalanx.create(f"{table.uri}-new", SCHEMA, []),
    ],
)
def test_a_fork_after_lance_was_used(table: phalanx.Table, use: Callable[[Any], object]) -> None:
    said = run_forked(lambda: use(table))
    assert said.startswith("PhalanxError Cannot use Phalanx in the process")
    assert "spawn or forkserver" in said


def test_objects_of_before_a_fork(table: phalanx.Table) -> None:
    scan, past, feed = table.scan(), table.at(2), table.changes(1)
    with table.transaction() as txn:
        for use in (
            scan.to_arrow,
            scan.count_rows,
            lambda: next(scan.to_batches()),
            past.scan,
            feed.to_arrow,
            lambda: txn.append(rows(("a", 9))),
            txn.scan,
        ):
            assert run_forked(use).startswith("PhalanxError Cannot use Phalanx in the process")


def test_a_fork_before_lance_is_used(tmp_path: Any) -> None:
    """As Spark's daemon does it: Phalanx is imported, and every worker opens its tables."""
    script = f"""
        import os, warnings, pyarrow as pa, phalanx
        warnings.simplefilter("ignore")
        from phalanx.model.schema.schema import Schema
        from phalanx.model.predicates.binding import bind_predicate
        schema = pa.schema([("n", pa.int64())])
        bind_predicate("n % 2 = 1", Schema.of(schema))
        for number in range(2):
            child = os.fork()
            if not child:
                table = phalanx.create({str(tmp_path)!r} + f"/{{number}}", schema, [])
                table.append(pa.table({{"n": [1, 2]}}))
                os._exit(table.scan("n > 1").count_rows())
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["1", "1"], done.stderr
