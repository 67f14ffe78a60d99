"""Many threads share one table and run every public operation.

Each thread changes only its own rows, so it always knows which of them exist.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import phalanx
from phalanx.errors import CommitConflict, PartialWrite, SchemaMismatch
from tables import SOAK

THREADS = 64
STEPS = {"weak": 15, "strong": 6} if SOAK else {"weak": 2, "strong": 1}
SCHEMA = pa.schema(
    [("owner", pa.int32()), ("id", pa.int64()), ("k", pa.int32()), ("v", pa.int64())]
)


def rows(owner: int, values: dict[int, int], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Build the rows of a thread. The id decides the partition."""
    ids = list(values)
    known = {
        "owner": [owner] * len(ids),
        "id": ids,
        "k": [each % 3 for each in ids],
        "v": list(values.values()),
    }
    empty = [None] * len(ids)
    return pa.table(
        [known.get(name, empty) for name in schema.names], schema=without_metadata(schema)
    )


def without_metadata(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])


class Worker:
    """The operations of one thread, and the rows that it expects."""

    def __init__(self, number: int, table: phalanx.Table, mode: str) -> None:
        self.number, self.table, self.mode = number, table, mode
        self.random = random.Random(number)
        self.rows: dict[int, int] = {}
        self.wanted: dict[int, int] = {}
        self.next = number * 1_000_000
        self.conflicts: Counter[str] = Counter()
        self.schema_changes = 0
        self.where = f"owner = {number}"

    def run(self) -> None:
        """Run some steps, and check the rows after each."""
        for step in range(STEPS[self.mode]):
            # Some thread runs every operation, for all numbers.
            choice = (self.number + step * 17) % len(OPERATIONS)
            operation = OPERATIONS[choice]
            if self.mode == "weak" and operation in STRONG_ONLY:
                operation = Worker.append
            while not self.attempt(operation):
                self.check()
            self.check()

    def attempt(self, operation: Operation) -> bool:
        """Run an operation once; return False if a change of the schema was in its way.

        Writers then try again with the new schema. Few threads change the schema, so this ends.
        """
        self.wanted = dict(self.rows)
        try:
            operation(self)
        except PartialWrite:
            # In weak mode each partition has its old rows or its new rows.
            assert self.mode == "weak"
            self.rows = self.read_partial()
        except (CommitConflict, SchemaMismatch) as error:
            if isinstance(error, SchemaMismatch) or "changed its schema" in str(error):
                self.schema_changes += 1
                # A thread changes the schema at most once in each of its steps.
                assert self.schema_changes <= THREADS * STEPS[self.mode]
                return False
            self.conflicts[operation.__name__] += 1
        else:
            self.rows = self.wanted
        return True

    def read_partial(self) -> dict[int, int]:
        """Return the stored rows. Each partition must have its old rows or its new rows."""
        found = self.read_values()
        for k in range(3):
            old, new, now = (
                {each: v for each, v in some.items() if each % 3 == k}
                for some in (self.rows, self.wanted, found)
            )
            assert now in (old, new), self.number
        return found

    def read_values(self) -> dict[int, int]:
        found = self.table.scan(self.where, columns=["id", "v"]).to_arrow()
        pairs = list(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))
        assert len(dict(pairs)) == len(pairs), self.number
        return dict(pairs)

    def read_rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.scan(self.where).to_arrow().to_pylist()
        return found

    def check(self) -> None:
        """Check that the table holds exactly the expected rows of this thread."""
        assert self.read_values() == self.rows, self.number

    def new_values(self, count: int) -> dict[int, int]:
        self.next += count
        return {self.next - place: self.random.randrange(100) for place in range(count)}

    def pick_ids(self) -> list[int]:
        return self.random.sample(sorted(self.rows), min(2, len(self.rows)))

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def append(self) -> None:
        new = self.new_values(3)
        self.wanted |= new
        assert self.table.append(rows(self.number, new, self.table.schema)) == 3

    def delete(self) -> None:
        gone = self.pick_ids() or [-1]
        self.wanted = {each: v for each, v in self.rows.items() if each not in gone}
        listed = ", ".join(map(str, gone))
        deleted = self.table.delete(f"{self.where} AND id IN ({listed})")
        assert deleted == len(self.rows.keys() & set(gone))

    def update(self) -> None:
        self.wanted = {each: v + 1 for each, v in self.rows.items()}
        assert self.table.update(self.where, {"v": "v + 1"}) == len(self.rows)

    def merge(self) -> None:
        brought = self.new_values(1) | dict.fromkeys(self.pick_ids(), 7)
        self.wanted |= brought
        done = self.table.merge(rows(self.number, brought, self.table.schema), on="id")
        counts = (done.inserted, done.updated)
        assert counts == (1, len(brought) - 1), (brought, self.rows, self.read_rows())

    def overwrite(self) -> None:
        self.wanted = new = self.new_values(2)
        self.table.overwrite(rows(self.number, new, self.table.schema), self.where)

    def transaction(self) -> None:
        self.wanted = new = self.new_values(2)
        with self.table.transaction("serializable") as txn:
            schema = self.table.schema
            txn.delete(self.where)
            txn.append(rows(self.number, new, schema))
            assert txn.scan(self.where).count_rows() == 2

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def read(self) -> None:
        assert self.table.scan(self.where).count_rows() == len(self.rows)
        listed = self.table.scan(self.where, limit=1).to_reader().read_all()
        assert listed.num_rows == min(1, len(self.rows))
        plan = self.table.plan("k = 1")
        assert plan.scanned_partitions <= 1 < plan.total_partitions + 1
        assert self.table.partitions().num_rows == self.table.plan().total_partitions
        assert self.table.files().num_rows >= 0
        assert repr(self.table)

    def past(self) -> None:
        known = self.table.snapshots()["id"].to_pylist()
        assert known == sorted(set(known))
        newest = self.table.newest_snapshot
        assert newest is not None
        assert newest >= known[-1]
        found = self.table.at(newest).scan(self.where, columns=["id"]).to_arrow()
        assert sorted(found["id"].to_pylist()) == sorted(self.rows)

    def changes(self) -> None:
        """Replay the changes between two snapshots on the rows of the first."""
        newest = self.table.newest_snapshot
        assert newest is not None
        before = max(1, newest - 5)
        held = Counter(_ids(self.table.at(before).scan(self.where)))
        feed = self.table.changes(before, newest, self.where).to_arrow()
        for each, change in zip(feed["id"].to_pylist(), feed["_change"].to_pylist(), strict=True):
            held[each] += 1 if change in ("insert", "update_after") else -1
        assert +held == Counter(_ids(self.table.at(newest).scan(self.where)))

    # ── upkeep ───────────────────────────────────────────────────────────────────────────────

    def health(self) -> None:
        found = {each.kind for each in self.table.health()}
        assert not found & {"foreign-writes", "missing-partitions", "missing-files"}

    def rewrite(self) -> None:
        self.table.rewrite()

    def vacuum(self) -> None:
        self.table.vacuum(timedelta(days=1))

    def add_column(self) -> None:
        self.table.add_column(pa.field(f"c{self.number}_{self.next}", pa.int8()))
        self.next += 1

    def index(self) -> None:
        self.table.create_index("id", "BTREE", min_rows=1)
        self.table.optimize_indexes()


def _ids(scan: phalanx.Scan) -> list[int]:
    found: list[int] = scan.to_arrow()["id"].to_pylist()
    return found


Operation = Callable[[Worker], None]
STRONG_ONLY: tuple[Operation, ...] = (Worker.transaction, Worker.past, Worker.changes)
# A change of the schema fails all concurrent writes, so it is as rare as in practice.
OPERATIONS: tuple[Operation, ...] = (
    *(Worker.append, Worker.delete, Worker.update, Worker.merge, Worker.overwrite),
    *(Worker.transaction, Worker.read, Worker.past, Worker.changes),
    *(Worker.append, Worker.read, Worker.merge, Worker.append, Worker.delete),
    *(Worker.health, Worker.rewrite, Worker.vacuum, Worker.index, Worker.add_column),
)


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_one_table_in_many_threads(tmp_path: Any, mode: str) -> None:
    table = phalanx.create(tmp_path / "t", SCHEMA, ["k"], transaction=mode)
    table.append(rows(-1, {0: 0, 1: 0, 2: 0}))
    assert table.scan("owner = -1").count_rows() == 3
    workers = [Worker(number, table, mode) for number in range(THREADS)]
    failures: list[BaseException] = []
    begin = threading.Barrier(THREADS)

    def run(worker: Worker) -> None:
        begin.wait()
        try:
            worker.run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    found = table.scan(columns=["owner", "id", "v"]).to_arrow().to_pylist()
    expected = [
        {"owner": worker.number, "id": each, "v": v}
        for worker in workers
        for each, v in worker.rows.items()
    ]
    kept = [row for row in found if row["owner"] >= 0]
    assert Counter(map(str, kept)) == Counter(map(str, expected))
    # Appends and reads conflict with nothing but a change of the schema.
    conflicts = sum((worker.conflicts for worker in workers), Counter())
    assert not conflicts.keys() & {"append", "read", "past", "changes", "health", "vacuum"}
    assert sum(bool(worker.rows) for worker in workers) >= 10
    # Another handle reads the same.
    other = phalanx.open(tmp_path / "t")
    assert other.scan().count_rows() == table.scan().count_rows() == len(found)
    assert "foreign-writes" not in {each.kind for each in other.health()}


class WeakWriter:
    """A writer in weak mode, during changes of the mode, and what it knows of its rows."""

    def __init__(self, number: int, uri: str) -> None:
        self.number, self.table = number, phalanx.open(uri)
        self.random = random.Random(number)
        self.there: set[int] = set()
        self.gone: set[int] = set()
        # Rows of a partial write: they may exist or not.
        self.unsure: set[int] = set()

    def step(self) -> None:
        if self.there and self.random.random() < 0.4:
            each = self.random.choice(sorted(self.there))
            self.attempt({each}, self.there, self.gone, lambda: self.remove(each))
        else:
            first = (self.number + 1) * 1_000_000 + len(self.there | self.gone | self.unsure)
            new = {first, first + 500_000}
            data = rows(self.number, dict.fromkeys(new, 0))
            self.attempt(new, self.gone, self.there, lambda: self.table.append(data))

    def remove(self, each: int) -> None:
        assert self.table.delete(f"id = {each}") == 1

    def attempt(
        self, ids: set[int], before: set[int], after: set[int], change: Callable[[], object]
    ) -> None:
        try:
            change()
        except CommitConflict:
            # The change had no effect.
            before |= ids
        except PartialWrite:
            before -= ids
            self.unsure |= ids
        else:
            before -= ids
            after |= ids


def test_weak_writers_during_changes_of_the_mode(tmp_path: Any) -> None:
    """No acknowledged row is lost or duplicated, and writers still work afterwards."""
    table = phalanx.create(tmp_path / "t", SCHEMA, ["k"])
    table.append(rows(-1, {0: 0, 1: 0, 2: 0}))
    assert table.scan("owner = -1").count_rows() == 3
    writers = [WeakWriter(number, table.uri) for number in range(3)]
    failures: list[BaseException] = []
    over = threading.Event()

    def run(writer: WeakWriter) -> None:
        try:
            while not over.is_set():
                writer.step()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60 if SOAK else 8):
            for mode in ("strong", "weak"):
                with suppress(CommitConflict):
                    table.set_mode(mode)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    found = Counter(table.scan("owner >= 0").to_arrow()["id"].to_pylist())
    for writer in writers:
        assert not [each for each in writer.there if found[each] != 1]
        assert not [each for each in writer.gone - writer.unsure if found[each]]
        assert not [each for each in writer.unsure if found[each] > 1]
    assert any(writer.there for writer in writers)
    table.set_mode("strong")
    table.append(rows(-1, {3: 0, 4: 0, 5: 0}))
    table.vacuum()
    table.set_mode("weak")
    table.append(rows(-1, {6: 0, 7: 0, 8: 0}))
    assert table.scan("owner = -1").count_rows() == 9
    assert "foreign-writes" not in {each.kind for each in table.health()}
