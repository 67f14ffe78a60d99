"""The mode changes back and forth during appends, and publishers are slow: no row is lost."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.errors import CommitConflict, PartialWrite
from phalanx.storage.commit import publishing
from phalanx.storage.lance import versions
from tables import SCHEMA, SOAK, rows

SECONDS = 40.0 if SOAK else 3.0


class Writes:
    """The numbers that writers appended, by what the writers were told."""

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
    assert errors == [], seed
    assert writes.written
    for mode in ("strong", "weak"):
        writes.check(phalanx.open(table.uri))
        table.set_mode(mode)
    writes.check(phalanx.open(table.uri))
    assert "foreign-writes" not in {each.kind for each in table.health()}
