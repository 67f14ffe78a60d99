"""Racing processes lose no update and read no partial transaction. The history is linear."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import lance
import pytest

from faults.programs.counter_race import (
    Race,
    check_rows,
    count,
    create,
    read_records,
    rewrite,
    run,
    toggle,
    vacuum,
    versions_in,
)
from faults.programs.history_checker import Rule, anomalies
from tables import SOAK

LONGEST = 1800 if SOAK else 240
KEYS = [f"p{number}" for number in range(12)]
PAIRS = ["x0", "y0", "x1", "y1"]


@pytest.fixture
def race(tmp_path: Path) -> Race:
    (records := tmp_path / "records").mkdir()
    return Race(str(tmp_path / "table"), records)


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"] if SOAK else ["snapshot"])
def test_counters_are_exact(race: Race, isolation: str) -> None:
    processes, each = (6, 40) if SOAK else (4, 8)
    table = create(race, KEYS, 0)
    run(
        race,
        *((count, (number, each, KEYS, isolation)) for number in range(processes)),
        longest=LONGEST,
    )
    history = read_records(race)
    committed = [one for one in history if one.committed is not None]
    assert len(committed) == processes * each
    rows = table.scan("kind = 'counter'").to_arrow()
    assert sum(rows["n"].to_pylist()) == sum(len(one.writes) for one in committed)
    assert table.snapshots()["id"].to_pylist() == list(range(1, processes * each + 3))
    assert anomalies(history, isolation, versions_in(table, 2)) == []
    for partition in table.plan().partitions:
        held = table.partition(k=partition.key.values[0]).to_table()
        assert lance.dataset(partition.location).to_table() == held


def test_counters_during_vacuum(race: Race) -> None:
    """A vacuum removes old snapshots while others commit and read."""
    processes, each = (4, 20) if SOAK else (2, 4)
    table = create(race, KEYS, 0)
    run(
        race,
        *((count, (number, each, KEYS, "snapshot")) for number in range(processes)),
        (vacuum, (20 if SOAK else 2, timedelta(seconds=2 if SOAK else 1))),
        longest=LONGEST,
    )
    table.vacuum(timedelta(0))
    history = read_records(race)
    committed = [one for one in history if one.committed is not None]
    assert len(committed) == processes * each
    rows = table.scan().to_arrow()
    check_rows(rows)
    assert len(rows) == len(KEYS) + sum(len(one.writes) for one in committed)
    assert table.snapshots()["id"].to_pylist() == [processes * each + 2]
    assert anomalies(history, "snapshot") == []


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_counters_during_rewrites(race: Race, isolation: str) -> None:
    """Rewrites replace files while others add and remove rows of the same files."""
    processes, each = (4, 20) if SOAK else (2, 5)
    table = create(race, KEYS, 0)
    run(
        race,
        *((count, (number, each, KEYS, isolation)) for number in range(processes)),
        (rewrite, (20 if SOAK else 3,)),
        longest=LONGEST,
    )
    history = read_records(race)
    committed = [one for one in history if one.committed is not None]
    assert len(committed) == processes * each
    rows = table.scan().to_arrow()
    check_rows(rows)
    assert len(rows) == len(KEYS) + sum(len(one.writes) for one in committed)
    operations = table.snapshots()["operation"].to_pylist()
    assert operations.count("rewrite") == len(operations) - len(committed) - 2 > 0
    found = anomalies(history, isolation, versions_in(table, 2))
    # The snapshots of rewrites belong to no recorded transaction.
    assert [each for each in found if each.rule is not Rule.MISSING_SNAPSHOT] == []


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_write_skew(race: Race, isolation: str) -> None:
    """Only `serializable` keeps one of each pair on. The checker finds every violation."""
    table = create(race, PAIRS, 1)
    each = 30 if SOAK else 8
    run(
        race,
        *((toggle, (number, each, PAIRS, isolation)) for number in range(4)),
        longest=LONGEST,
    )
    history = read_records(race)
    installed = versions_in(table, 2)
    broken = [
        number
        for number in table.snapshots()["id"].to_pylist()[1:]
        for pair in ("0", "1")
        if not sum(
            table.at(number).scan(f"k IN ('x{pair}', 'y{pair}')").to_arrow()["n"].to_pylist()
        )
    ]
    assert anomalies(history, "snapshot", installed) == []
    skewed = anomalies(history, "serializable", installed)
    assert {found.rule for found in skewed} <= {Rule.WRITE_SKEW}
    if isolation == "serializable":
        assert not broken
        assert not skewed
    elif broken:
        assert skewed
