"""Finds anomalies in a recorded history of transactions (after Adya: G0, G1, G-SI, G2).

Keys are registers. Each write has its own version, so a read shows which write it saw. Versions
have the order of the snapshots that committed them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any

from faults.programs.cycles import Edges, find_path, prune_to_cycles

# The version of a key before its first write.
INITIAL = None
Version = str | None


class Rule(Enum):
    """What a history must not show."""

    GARBAGE_READ = "a version that nobody wrote was read"
    ABORTED_READ = "a write of an aborted transaction was read (G1a)"
    INTERMEDIATE_READ = "a write that its own transaction replaced was read (G1b)"
    DIRTY_READ = "a write was read that was not committed when the reader began"
    STALE_READ = "a version was read that was replaced before the reader began"
    FRACTURED_READ = "one write of a transaction was read, and what another of its writes replaced"
    UNREPEATABLE_READ = "a transaction saw another version of a key than before, or than its own"
    LOST_UPDATE = "two transactions read the same version, and both replaced it"
    BLIND_CONFLICT = "two transactions at the same time replaced the same key"
    LOST_WRITE = "a committed write is in no snapshot, or a snapshot has another write instead"
    TWO_COMMITS = "two transactions committed the same snapshot"
    MISSING_SNAPSHOT = "no transaction committed a snapshot"
    BACKWARDS = "a transaction was committed before it began"
    SESSION = "a transaction does not see what its process has seen before"
    REAL_TIME = "a transaction does not see what was committed before it began"
    DIRTY_WRITE = "transactions replaced each other's writes in a cycle (G0)"
    CIRCULAR_FLOW = "transactions saw each other's writes in a cycle (G1c)"
    READ_SKEW = "a transaction saw a write, but not another that the write depends on (G-single)"
    WRITE_SKEW = "in a cycle of transactions, each missed a write of the next (G2)"


@dataclass(frozen=True)
class Operation:
    """A read or a write of a version."""

    kind: str
    key: str
    version: Version


def read(key: str, version: Version) -> Operation:
    """A read that saw a version."""
    return Operation("read", key, version)


def write(key: str, version: str) -> Operation:
    """A write of a version that no other write has."""
    return Operation("write", key, version)


@dataclass(frozen=True)
class Transaction:
    """The reads and writes of a transaction, in order.

    `began` is the snapshot that it read, and `committed` the one that it created. They are None if
    unknown. `committed` is also None if it aborted or wrote nothing. `started` and `ended` are
    times of one clock.
    """

    name: str
    process: str
    operations: tuple[Operation, ...]
    began: int | None = None
    committed: int | None = None
    started: float | None = None
    ended: float | None = None

    @property
    def reads(self) -> dict[str, Version]:
        """The first version read of each key, without own writes."""
        found: dict[str, Version] = {}
        written = set()
        for each in self.operations:
            if each.kind == "write":
                written.add(each.key)
            elif each.key not in written:
                found.setdefault(each.key, each.version)
        return found

    @property
    def writes(self) -> dict[str, Version]:
        """The last version written to each key."""
        return {each.key: each.version for each in self.operations if each.kind == "write"}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Transaction:
        """Return the transaction that a process has recorded."""
        operations = tuple(Operation(*each) for each in facts["operations"])
        return cls(**{**facts, "operations": operations})


@dataclass(frozen=True)
class Anomaly:
    """A broken rule, and the transactions that broke it."""

    rule: Rule
    transactions: tuple[str, ...]
    detail: str = field(compare=False, default="")


def anomalies(
    transactions: Sequence[Transaction],
    isolation: str,
    installed: Mapping[str, Sequence[Version]] | None = None,
) -> list[Anomaly]:
    """Return all violations of an isolation level, `snapshot` or the stricter `serializable`.

    `installed` has the versions of keys in the order of the snapshots, as far as they are known.
    A cycle is reported only if no simpler rule names one of its transactions.
    """
    history = _History(transactions, installed or {})
    found = [
        *_wrong_reads(history),
        *_unrepeatable_reads(history),
        *_find_fractured_reads(history),
        *_conflicts(history),
        *_find_lost_writes(history),
        *_order_anomalies(history),
    ]
    known = {name for anomaly in found for name in anomaly.transactions}
    cycles = _cycles(history, isolation)
    return found + [each for each in cycles if not known & set(each.transactions)]


class _History:
    """The writer of each version, and the order of the versions of each key."""

    def __init__(
        self, transactions: Sequence[Transaction], installed: Mapping[str, Sequence[Version]]
    ) -> None:
        self.transactions = transactions
        self.installed = installed
        self.committed = sorted(
            (each for each in transactions if each.committed is not None),
            key=lambda each: each.committed or 0,
        )
        self.writer: dict[tuple[str, str], Transaction] = {
            (each.key, each.version): transaction
            for transaction in transactions
            for each in transaction.operations
            if each.kind == "write" and each.version is not None
        }
        order: dict[str, list[Version]] = defaultdict(lambda: [INITIAL])
        for transaction in self.committed:
            for key, version in transaction.writes.items():
                order[key].append(version)
        self.order: dict[str, list[Version]] = {**order}
        for key, versions in installed.items():
            self.order[key] = [INITIAL, *(each for each in versions if each is not INITIAL)]
        self.place = {
            (key, version): place
            for key, versions in self.order.items()
            for place, version in enumerate(versions)
        }

    def writer_of(self, key: str, version: Version) -> Transaction | None:
        return None if version is INITIAL else self.writer.get((key, version))

    def replacer_of(self, key: str, version: Version) -> Transaction | None:
        """Return the transaction that replaced a version."""
        place = self.place.get((key, version), 0 if version is INITIAL else None)
        versions = self.order.get(key, [INITIAL])
        if place is None or place + 1 >= len(versions):
            return None
        return self.writer_of(key, versions[place + 1])


def _wrong_reads(history: _History) -> Iterator[Anomaly]:
    for reader in history.transactions:
        for key, version in reader.reads.items():
            writer = history.writer_of(key, version)
            detail = f"{reader.name} read {key} = {version}"
            if writer is None:
                if version is not INITIAL:
                    yield Anomaly(Rule.GARBAGE_READ, (reader.name,), detail)
            elif writer.committed is None:
                yield Anomaly(Rule.ABORTED_READ, (reader.name, writer.name), detail)
            elif writer.writes[key] != version:
                yield Anomaly(Rule.INTERMEDIATE_READ, (reader.name, writer.name), detail)
            elif reader.began is not None and writer.committed > reader.began:
                yield Anomaly(Rule.DIRTY_READ, (reader.name, writer.name), detail)
            later = history.replacer_of(key, version)
            if (
                later is not None
                and later.committed is not None
                and reader.began is not None
                and later.committed <= reader.began
            ):
                yield Anomaly(Rule.STALE_READ, (reader.name, later.name), detail)


def _unrepeatable_reads(history: _History) -> Iterator[Anomaly]:
    for transaction in history.transactions:
        seen: dict[str, Version] = {}
        for each in transaction.operations:
            if each.kind == "read" and seen.get(each.key, each.version) != each.version:
                detail = (
                    f"{transaction.name} saw {each.key} = {seen[each.key]}, then {each.version}"
                )
                others = (history.writer_of(each.key, v) for v in (seen[each.key], each.version))
                names = dict.fromkeys([transaction.name, *(o.name for o in others if o)])
                yield Anomaly(Rule.UNREPEATABLE_READ, tuple(names), detail)
            seen[each.key] = each.version


def _find_fractured_reads(history: _History) -> Iterator[Anomaly]:
    for reader in history.transactions:
        seen = reader.reads
        for key, version in seen.items():
            writer = history.writer_of(key, version)
            if writer is None or writer is reader or writer.committed is None:
                continue
            for other, mine in writer.writes.items():
                if other == key or other not in seen:
                    continue
                places = [history.place.get((other, v)) for v in (seen[other], mine)]
                if None not in places and places[0] < places[1]:  # type: ignore[operator]
                    detail = f"{reader.name} read {key} of {writer.name}, but {other} before it"
                    yield Anomaly(Rule.FRACTURED_READ, (reader.name, writer.name), detail)


def _conflicts(history: _History) -> Iterator[Anomaly]:
    replaced: dict[tuple[str, Version], Transaction] = {}
    for transaction in history.committed:
        seen = transaction.reads
        for key in transaction.writes:
            if key in seen:
                other = replaced.setdefault((key, seen[key]), transaction)
                if other is not transaction:
                    detail = f"both read {key} = {seen[key]}"
                    yield Anomaly(Rule.LOST_UPDATE, (other.name, transaction.name), detail)
                continue
            for other in history.committed:
                if (
                    transaction.began is not None
                    and key in other.writes
                    and transaction.began < (other.committed or 0) < (transaction.committed or 0)
                ):
                    detail = f"both wrote {key}"
                    yield Anomaly(Rule.BLIND_CONFLICT, (other.name, transaction.name), detail)


def _find_lost_writes(history: _History) -> Iterator[Anomaly]:
    for key, versions in history.installed.items():
        seen = {version for version in versions if version is not INITIAL}
        for transaction in history.committed:
            last = transaction.writes.get(key, INITIAL)
            if last is not INITIAL and last not in seen:
                yield Anomaly(
                    Rule.LOST_WRITE, (transaction.name,), f"{key} never had version {last}"
                )
        for version in seen:
            writer = history.writer_of(key, version)
            if writer is None or writer.committed is None or writer.writes[key] != version:
                names = () if writer is None else (writer.name,)
                yield Anomaly(Rule.LOST_WRITE, names, f"{key} had version {version}")


def _order_anomalies(history: _History) -> Iterator[Anomaly]:
    before: Transaction | None = None
    for each in history.committed:
        assert each.committed is not None
        if each.began is not None and each.began >= each.committed:
            detail = f"began at {each.began}, committed as {each.committed}"
            yield Anomaly(Rule.BACKWARDS, (each.name,), detail)
        if before is not None and before.committed is not None:
            names = (before.name, each.name)
            if each.committed == before.committed:
                yield Anomaly(Rule.TWO_COMMITS, names, f"both are {each.committed}")
            elif each.committed > before.committed + 1:
                detail = f"none between {before.committed} and {each.committed}"
                yield Anomaly(Rule.MISSING_SNAPSHOT, names, detail)
        before = each
    yield from _session_anomalies(history)
    yield from _real_time_anomalies(history)


def _session_anomalies(history: _History) -> Iterator[Anomaly]:
    """Compare the transactions of each process, in the order of its record."""
    seen: dict[str, tuple[int, str]] = {}
    for each in history.transactions:
        last, name = seen.get(each.process, (-1, ""))
        if each.began is not None and each.began < last:
            detail = f"{each.name} began at {each.began} after {name} had seen {last}"
            yield Anomaly(Rule.SESSION, (name, each.name), detail)
        known = [mark for mark in (each.began, each.committed) if mark is not None]
        if known and max(known) > last:
            seen[each.process] = (max(known), each.name)


def _real_time_anomalies(history: _History) -> Iterator[Anomaly]:
    ended = sorted(
        (each.ended, each.committed or 0, each.name, each.process)
        for each in history.committed
        if each.ended is not None
    )
    newest = (-1, "", "")
    waiting = deque(ended)
    timed = [each for each in history.transactions if each.started is not None]
    for each in sorted(timed, key=lambda each: each.started or 0.0):
        while waiting and each.started is not None and waiting[0][0] < each.started:
            _, committed, name, process = waiting.popleft()
            newest = max(newest, (committed, name, process))
        # Within a process, `_session_anomalies` checks this order.
        if each.began is not None and each.began < newest[0] and newest[2] != each.process:
            detail = f"{each.name} began at snapshot {each.began}, after the commit of {newest[0]}"
            yield Anomaly(Rule.REAL_TIME, (newest[1], each.name), detail)


def _cycles(history: _History, isolation: str) -> Iterator[Anomaly]:
    edges = _dependencies(history)
    searched = [
        (Rule.DIRTY_WRITE, "ww", {"ww"}),
        (Rule.CIRCULAR_FLOW, "wr", {"ww", "wr"}),
        (Rule.READ_SKEW, "rw", {"ww", "wr"}),
    ]
    if isolation == "serializable":
        searched.append((Rule.WRITE_SKEW, "rw", {"ww", "wr", "rw"}))
    reported: set[frozenset[str]] = set()
    for rule, closing, kinds in searched:
        graph = prune_to_cycles(edges, kinds | {closing})
        for start, targets in graph.items():
            for target, labels in targets.items():
                if closing not in labels:
                    continue
                path = find_path(graph, target, start, kinds)
                if path is not None and frozenset(path) not in reported:
                    reported.add(frozenset(path))
                    yield Anomaly(rule, tuple(sorted(path)), f"{closing}: {start} → {path}")


def _dependencies(history: _History) -> Edges:
    """Return the required order of transactions.

    ww: the second replaced a write of the first. wr: it read one. rw: it replaced what the first
    read.
    """
    edges: Edges = defaultdict(lambda: defaultdict(set))

    def add(first: Transaction | None, then: Transaction | None, kind: str) -> None:
        if first is not None and then is not None and first is not then:
            edges[first.name][then.name].add(kind)

    for key, versions in history.order.items():
        for one, other in pairwise(versions):
            add(history.writer_of(key, one), history.writer_of(key, other), "ww")
    for reader in history.transactions:
        if reader.writes and reader.committed is None:
            continue
        for key, version in reader.reads.items():
            add(history.writer_of(key, version), reader, "wr")
            add(reader, history.replacer_of(key, version), "rw")
    return edges
