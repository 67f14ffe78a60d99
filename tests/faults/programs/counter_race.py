"""Processes that change the same partitions at the same time, and record what they read."""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import phalanx
from faults.programs.history_checker import Operation, Transaction, Version, read, write
from phalanx.errors import CommitConflict
from processes import SERVER
from tables import table_of

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        # `counter`, one for each partition, or `log`.
        ("kind", pa.string()),
        ("n", pa.int64()),
        ("by", pa.string()),
        ("keys", pa.string()),
    ]
)


@dataclass(frozen=True)
class Race:
    """A table with counters, and the folder for the records of its writers and reader."""

    root: str
    records: Path
    options: dict[str, str] | None = None

    @property
    def stop_file(self) -> Path:
        """The file that stops the reader."""
        return self.records / "over"

    def open(self) -> phalanx.Table:
        """Open the table in this process."""
        return phalanx.open(self.root, storage_options=self.options)


def create(race: Race, keys: list[str], start: int, layout: str = "namespace") -> phalanx.Table:
    """Create the table with a counter in each partition."""
    table = phalanx.create(
        race.root,
        SCHEMA,
        ["k"],
        transaction="strong",
        layout=layout,
        storage_options=race.options,
    )
    table.append(_rows([(key, "counter", start, "", "") for key in keys]))
    return table


def run(race: Race, *work: tuple[Callable[..., None], tuple[Any, ...]], longest: float) -> None:
    """Run all work at the same time, with a concurrent reader."""
    reader = SERVER.Process(target=watch, args=(race,))
    writers = [SERVER.Process(target=target, args=(race, *args)) for target, args in work]
    for process in (reader, *writers):
        process.start()
    try:
        end = time.monotonic() + longest
        for process in writers:
            process.join(max(0.0, end - time.monotonic()))
        assert [process.exitcode for process in writers] == [0] * len(writers)
    finally:
        race.stop_file.touch()
        reader.join(longest)
        for process in (reader, *writers):
            process.kill()
    assert reader.exitcode == 0


def read_records(race: Race) -> list[Transaction]:
    """Return the transactions of all processes, those of each process in order."""
    return [
        Transaction.from_json(json.loads(line))
        for path in sorted(race.records.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


class Record:
    """The file with the transactions of one process."""

    def __init__(self, race: Race, process: str) -> None:
        self._process = process
        self._path = race.records / f"{process}.jsonl"

    def add(
        self,
        name: str,
        operations: list[Operation],
        began: int | None,
        committed: int | None,
        started: float | None,
    ) -> None:
        """Add a transaction that has just ended."""
        facts = {
            "name": name,
            "process": self._process,
            "operations": [[each.kind, each.key, each.version] for each in operations],
            "began": began,
            "committed": committed,
            "started": started,
            "ended": time.monotonic() if committed is not None else None,
        }
        with self._path.open("a") as file:
            print(json.dumps(facts), file=file)


# ── writers ──────────────────────────────────────────────────────────────────────────────────


def count(race: Race, number: int, transactions: int, keys: list[str], isolation: str) -> None:
    """Increment some counters in one transaction, and log it in each. Retry after a conflict.

    The operation depends on the number of the process.
    """
    chance = random.Random(number)

    def step(txn: phalanx.Transaction, name: str) -> Iterator[Operation]:
        chosen = chance.sample(keys, chance.randint(2, 5))
        where = f"kind = 'counter' AND k IN ({', '.join(map(repr, chosen))})"
        seen = _counters(txn.scan(where).to_arrow())
        yield from (read(key, by) for key, (_, by) in seen.items())
        listed = ",".join(chosen)
        one_more = [(key, "counter", n + 1, name, "") for key, (n, _) in seen.items()]
        match number % 4:
            case 1:
                assert txn.update(where, {"n": "n + 1", "by": f"'{name}'"}) == len(chosen)
            case 2:
                assert txn.merge(_rows(one_more), ["k", "kind"]).updated == len(chosen)
            case _:
                assert txn.overwrite(_rows(one_more), where) == len(chosen)
        yield from (write(key, name) for key in chosen)
        txn.append(_rows([(key, "log", 1, name, listed) for key in chosen]))
        own = _counters(txn.scan(where).to_arrow())
        yield from (read(key, by) for key, (_, by) in own.items())

    _transact(race, number, transactions, isolation, step, chance)


def toggle(race: Race, number: int, transactions: int, keys: list[str], isolation: str) -> None:
    """Switch one of a pair off if both are on, else on. One of each pair should always be on."""
    chance = random.Random(number)

    def step(txn: phalanx.Transaction, name: str) -> Iterator[Operation]:
        place = chance.randrange(0, len(keys), 2)
        pair = keys[place : place + 2]
        seen = _counters(txn.scan(f"k IN ('{pair[0]}', '{pair[1]}')").to_arrow())
        yield from (read(key, by) for key, (_, by) in seen.items())
        # Give other processes the time to do the same.
        time.sleep(chance.random() / 50)
        key = pair[number % 2]
        turned_on = sum(n for n, _ in seen.values()) < 2
        txn.overwrite(_rows([(key, "counter", int(turned_on), name, "")]), f"k = '{key}'")
        yield write(key, name)

    _transact(race, number, transactions, isolation, step, chance)


def _transact(
    race: Race,
    number: int,
    transactions: int,
    isolation: str,
    step: Callable[[phalanx.Transaction, str], Iterator[Operation]],
    chance: random.Random,
) -> None:
    table = race.open()
    record = Record(race, f"writer{number}")
    done = attempt = 0
    while done < transactions:
        attempt += 1
        name = f"{number}.{attempt}"
        operations: list[Operation] = []
        started = time.monotonic()
        began = None
        try:
            with table.transaction(isolation) as txn:
                began = txn._changes.head.sequence
                operations.extend(step(txn, name))
        except CommitConflict:
            record.add(name, operations, began, None, started)
            time.sleep(chance.random() / 20)
            continue
        record.add(name, operations, began, txn.snapshot, started)
        done += 1


# ── readers ──────────────────────────────────────────────────────────────────────────────────


def watch(race: Race) -> None:
    """Read the newest rows and those of a random snapshot until the race is over."""
    table, chance = race.open(), random.Random(0)
    record = Record(race, "reader")
    looks = 0
    is_over = False
    while not is_over:
        # Check this first, so that the last read comes after the last commit.
        is_over = race.stop_file.exists()
        looks += 1
        past = chance.choice([each for each in table.snapshots()["id"].to_pylist() if each > 1])
        for number in (None, past):
            try:
                rows = (table if number is None else table.at(number)).scan().to_arrow()
            except phalanx.PhalanxError:
                # Only a vacuum removes a snapshot that was just listed.
                assert number is not None
                assert number not in table.snapshots()["id"].to_pylist()
                continue
            check_rows(rows)
            seen = [read(key, by) for key, (_, by) in _counters(rows).items()]
            record.add(f"look {looks} {number}", seen, None, None, None)


def vacuum(race: Race, times: int, older_than: timedelta) -> None:
    """Vacuum again and again."""
    table = race.open()
    for _ in range(times):
        table.vacuum(older_than)
        time.sleep(0.5)


def rewrite(race: Race, times: int) -> None:
    """Rewrite all files, again and again."""
    table = race.open()
    for _ in range(times):
        table.rewrite(rewrite_all=True, partial_progress=True, max_commits=2)


def check_rows(rows: pa.Table) -> None:
    """Check that each transaction is complete or absent, and counted once."""
    written: dict[str, Counter[str]] = defaultdict(Counter)
    listed: dict[str, str] = {}
    lines: Counter[str] = Counter()
    for row in rows.to_pylist():
        if row["kind"] == "log":
            written[row["by"]][row["k"]] += 1
            listed[row["by"]] = row["keys"]
            lines[row["k"]] += 1
    for name, found in written.items():
        assert found == Counter(listed[name].split(",")), (name, found)
    counters = _counters(rows)
    if lines:
        assert {key: n for key, (n, _) in counters.items()} == {key: lines[key] for key in counters}


def versions_in(table: phalanx.Table, first: int) -> dict[str, list[Version]]:
    """Return the versions of every counter by snapshot, and check the rows of each snapshot."""
    found: dict[str, list[Version]] = defaultdict(list)
    for number in table.snapshots()["id"].to_pylist():
        if number >= first:
            rows = table.at(number).scan().to_arrow()
            check_rows(rows)
            for key, (_, by) in _counters(rows).items():
                found[key].append(by)
    return dict(found)


def _counters(rows: pa.Table) -> dict[str, tuple[int, Version]]:
    """Return the number and the last writer of each counter, by partition."""
    found = [row for row in rows.to_pylist() if row["kind"] == "counter"]
    counters = {row["k"]: (row["n"], row["by"] or None) for row in found}
    assert len(counters) == len(found)
    return counters


def _rows(rows: list[tuple[str, str, int, str, str]]) -> pa.Table:
    return table_of(SCHEMA, rows)
