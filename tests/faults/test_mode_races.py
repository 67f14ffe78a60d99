"""The mode changes back and forth during appends, and publishers are slow: no row is lost."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest

import phalanx
from phalanx.errors import CommitConflict, PartialWrite
from phalanx.storage.commit import publishing, writing
from phalanx.storage.lance import versions
from phalanx.table.transactions import strong_mode
from phalanx.table.transactions.strong_target import StrongTarget
from tables import SCHEMA, SOAK, numbers, rows

SECONDS = 40.0 if SOAK else 3.0


class Writes:
    """The numbers that writers appended, by the outcome that the writers got."""

    def __init__(self) -> None:
        self.written: set[int] = set()
        self.unknown: set[int] = set()
        self.refused: set[int] = set()

    def append(self, table: phalanx.Table, key: str, number: int) -> None:
        try:
            table.append(rows((key, number)))
        except CommitConflict:
            self.refused.add(number)
        except PartialWrite as error:
            is_known = bool(error.not_written) and not error.unknown
            (self.refused if is_known else self.unknown).add(number)
        else:
            self.written.add(number)

    def check(self, table: phalanx.Table) -> None:
        found = Counter(table.scan().to_arrow()["n"].to_pylist())
        assert self.written - set(found) == set(), "lost"
        assert {number for number, times in found.items() if times > 1} == set(), "doubled"
        assert set(found) & self.refused == set(), "refused and written"


def delay_publishing(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Wait before each step of a publisher, as in a slow store or in a process that was paused."""
    chance = random.Random(seed)

    def delay(module: Any, name: str) -> None:
        original = getattr(module, name)

        def slow(*arguments: Any) -> Any:
            time.sleep(chance.choice([0, 0, 0, 0.01, 0.05, 0.15]))
            return original(*arguments)

        monkeypatch.setattr(module, name, slow)

    delay(publishing, "locations_of")
    delay(publishing, "restore_as_next")
    delay(versions, "set_manifest_version")


def test_appends_during_changes_of_the_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(1_000_000) if SOAK else 3
    table = phalanx.create(tmp_path / "t", SCHEMA, ["k"], transaction="strong")
    delay_publishing(monkeypatch, seed)
    writes, numbers, end = Writes(), itertools.count(), time.monotonic() + SECONDS
    errors: list[BaseException] = []

    def run(chance: random.Random, changes_mode: bool) -> None:
        own = phalanx.open(table.uri)
        try:
            while time.monotonic() < end:
                if changes_mode:
                    for mode in ("weak", "strong"):
                        own.set_mode(mode)
                        time.sleep(chance.choice([0.02, 0.1, 0.2]))
                else:
                    writes.append(own, chance.choice("ab"), next(numbers))
                    time.sleep(chance.choice([0, 0.005, 0.03]))
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(random.Random(seed + place), place == 0))
        for place in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert errors == [], f"seed {seed}"
    assert writes.written
    for mode in ("strong", "weak"):
        writes.check(phalanx.open(table.uri))
        table.set_mode(mode)
    writes.check(phalanx.open(table.uri))
    assert "foreign-writes" not in {each.kind for each in table.health()}


class LateWriter:
    """An append in weak mode that waits just before it lists its new partition."""

    def __init__(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._insert, self._may_insert = writing.insert_rows, threading.Event()
        waits = threading.Event()

        def insert_late(*arguments: Any) -> None:
            waits.set()
            assert self._may_insert.wait(60)
            self._insert(*arguments)

        self.outcome: BaseException | None = None
        self._thread = threading.Thread(target=self._append, args=(uri,))
        monkeypatch.setattr(writing, "insert_rows", insert_late)
        self._thread.start()
        assert waits.wait(60)
        monkeypatch.setattr(writing, "insert_rows", self._insert)

    def _append(self, uri: str) -> None:
        try:
            phalanx.open(uri).append(rows(("a", 1)))
        except BaseException as error:
            self.outcome = error

    def finish(self) -> None:
        self._may_insert.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def check_refused(self) -> None:
        assert isinstance(self.outcome, CommitConflict)
        assert "changed to strong mode" in str(self.outcome)


def check_consistent(table: phalanx.Table, expected: list[int]) -> None:
    """The rows are there in both modes, and no writer is blocked."""
    assert "foreign-writes" not in {each.kind for each in table.health()}
    for mode in ("strong", "weak", "strong"):
        table.set_mode(mode)
        assert numbers(phalanx.open(table.uri)) == expected
        table.append(rows(("a", 100 + len(expected))))
        expected = sorted([*expected, 100 + len(expected)])
    assert numbers(phalanx.open(table.uri)) == expected


def test_a_weak_writer_lists_its_partition_after_a_change_to_strong_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows would not be in the snapshot that takes the partition over."""
    table = phalanx.create(tmp_path / "t", SCHEMA, ["k"])
    late = LateWriter(table.uri, monkeypatch)
    table.set_mode("strong")
    insert = writing.insert_rows

    def take_over(*arguments: Any) -> None:
        insert(*arguments)
        phalanx.open(table.uri).append(rows(("b", 2)))

    monkeypatch.setattr(late, "_insert", take_over)
    late.finish()
    late.check_refused()
    check_consistent(table, [2])


def test_a_late_partition_while_a_change_of_the_mode_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = phalanx.create(tmp_path / "t", SCHEMA, ["k"])
    late = LateWriter(table.uri, monkeypatch)
    complete = strong_mode.complete_change

    def die(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    def complete_and_wait(*arguments: Any) -> Any:
        manifest = complete(*arguments)
        late.finish()
        return manifest.load_latest()

    monkeypatch.setattr(strong_mode, "complete_change", die)
    with pytest.raises(KeyboardInterrupt):
        table.set_mode("strong")
    monkeypatch.setattr(strong_mode, "complete_change", complete_and_wait)
    table.append(rows(("a", 2)))
    monkeypatch.undo()
    late.check_refused()
    check_consistent(table, [2])


def test_a_late_partition_while_a_transaction_creates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = phalanx.create(tmp_path / "t", SCHEMA, ["k"])
    late = LateWriter(table.uri, monkeypatch)
    table.set_mode("strong")
    commit = StrongTarget.commit_snapshot

    def commit_late(*arguments: Any) -> Any:
        late.finish()
        return commit(*arguments)

    monkeypatch.setattr(StrongTarget, "commit_snapshot", commit_late)
    table.append(rows(("a", 2)))
    monkeypatch.undo()
    late.check_refused()
    check_consistent(table, [2])


def test_a_helper_meets_the_next_change_of_the_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It completes that one too, before it says whether its rows are in the table."""
    table = phalanx.create(tmp_path / "t", SCHEMA, ["k"])
    other = phalanx.open(table.uri)
    change, apply = strong_mode.change_properties, writing.apply_to_leaves

    def die(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    def begin_change(mode: Literal["weak", "strong"]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(strong_mode, "complete_change", die)
            with pytest.raises(KeyboardInterrupt):
                other.set_mode(mode)

    def apply_before_changes(*arguments: Any) -> Any:
        done = apply(*arguments)
        other.set_mode("strong")
        begin_change("weak")
        monkeypatch.setattr(strong_mode, "change_properties", change_too_late)
        return done

    def change_too_late(*arguments: Any) -> Any:
        monkeypatch.setattr(strong_mode, "change_properties", change)
        other.set_mode("weak")
        begin_change("strong")
        return change(*arguments)

    monkeypatch.setattr(writing, "apply_to_leaves", apply_before_changes)
    table.append(rows(("a", 1)))
    assert strong_mode.change_properties is change
    monkeypatch.undo()
    assert table.mode == "strong"
    check_consistent(table, [1])
