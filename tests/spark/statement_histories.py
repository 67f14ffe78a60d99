"""Statements that record the order in which they ran in the rows, for the checker of histories.

Each row has a log, to which every statement that changes the row adds a word of its own. The word
before it is that of the version of the row that the statement read.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

import phalanx
from faults.programs.history_checker import (
    INITIAL,
    Anomaly,
    Operation,
    Transaction,
    anomalies,
    read,
    write,
)

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("log", pa.string())])
KEYS = range(6)
# How many rows the source of a statement has.
SIZES = (0, 1, 1, 2, 4)
CONDITIONS = ("t.id = s.id", "t.id >= s.id AND t.id < s.id + 1")


@dataclass(frozen=True)
class Change:
    """A statement on `lake.t` that adds its word to the logs of some rows."""

    word: str
    keys: tuple[int, ...]
    sql: str


def changes(session: str, seed: int) -> Iterator[Change]:
    """Statements without end, of all kinds that change rows."""
    chosen = random.Random(f"{session} {seed}")
    for number in range(1, 1_000_000):
        word = f"{session}{number}"
        keys = tuple(sorted(chosen.sample(KEYS, chosen.choice(SIZES))))
        yield Change(word, keys, chosen.choice(_KINDS)(word, keys, chosen.choice(CONDITIONS)))


def _source(keys: Sequence[int]) -> str:
    listed = ", ".join(f"({key}L)" for key in keys) or "(0L)"
    return f"(SELECT * FROM VALUES {listed} AS v (id) WHERE {bool(keys)})"


def _upsert(word: str, keys: Sequence[int], condition: str) -> str:
    return (
        f"MERGE INTO lake.t AS t USING {_source(keys)} AS s ON {condition} WHEN MATCHED THEN "
        f"UPDATE SET log = concat(t.log, ' {word}') WHEN NOT MATCHED THEN INSERT (id, k, log) "
        f"VALUES (s.id, string(s.id % 2), '{word}')"
    )


def _insert_only(word: str, keys: Sequence[int], condition: str) -> str:
    return (
        f"MERGE INTO lake.t AS t USING {_source(keys)} AS s ON {condition} WHEN NOT MATCHED THEN "
        f"INSERT (id, k, log) VALUES (s.id, string(s.id % 2), '{word}')"
    )


def _insert_missing(word: str, keys: Sequence[int], condition: str) -> str:
    return (
        f"INSERT INTO lake.t SELECT s.id, string(s.id % 2), '{word}' FROM {_source(keys)} AS s "
        f"WHERE NOT EXISTS (SELECT 1 FROM lake.t AS t WHERE {condition})"
    )


def _update(word: str, keys: Sequence[int], condition: str) -> str:
    return (
        f"UPDATE lake.t AS t SET log = concat(log, ' {word}') WHERE EXISTS "
        f"(SELECT 1 FROM {_source(keys)} AS s WHERE {condition})"
    )


_KINDS = (_upsert, _upsert, _insert_only, _insert_missing, _update)


def create_table(root: str, partition_by: str) -> phalanx.Table:
    """Create the table without rows."""
    return phalanx.create(f"{root}/t", SCHEMA, partition_by, transaction="strong")


def find_statement_anomalies(
    table: phalanx.Table, sessions: Sequence[Iterable[tuple[Change, str | None]]]
) -> list[Anomaly]:
    """Return the anomalies of the statements that sessions ran, each with its error."""
    logs = _logs(table)
    snapshots = _snapshots_of_words(table)
    transactions = []
    for process, statements in enumerate(sessions):
        for change, error in statements:
            operations = list(_operations(change, logs, failed=error is not None))
            if operations:
                committed = None if error is not None else snapshots.get(change.word)
                transactions.append(
                    Transaction(change.word, str(process), tuple(operations), None, committed)
                )
    installed = {key: of_key[0] for key, of_key in logs.items()}
    return anomalies(transactions, "serializable", installed)


def _operations(
    change: Change, logs: dict[str, list[list[str]]], *, failed: bool
) -> Iterator[Operation]:
    for key in map(str, change.keys):
        if failed:
            # Whoever reads this version has read a write that was never committed.
            yield write(key, change.word)
            continue
        for log in logs.get(key, []):
            if change.word in log:
                place = log.index(change.word)
                yield read(key, log[place - 1] if place else INITIAL)
                yield write(key, change.word)


def _logs(table: phalanx.Table) -> dict[str, list[list[str]]]:
    """The logs of the rows with each key; there is one, unless something is wrong."""
    found = defaultdict(list)
    for row in table.scan().to_arrow().to_pylist():
        found[str(row["id"])].append(row["log"].split(" "))
    return found


def _snapshots_of_words(table: phalanx.Table) -> dict[str, int]:
    """The snapshot in which each word was there first."""
    found: dict[str, int] = {}
    for number in table.snapshots()["id"].to_pylist():
        for row in table.at(number).scan().to_arrow().to_pylist():
            for word in row["log"].split(" "):
                found.setdefault(word, number)
    return found
