"""Updates, merges and drops in racing processes: none is lost, and no key is duplicated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import phalanx
from faults.programs.row_race import (
    KEYS,
    SCHEMA,
    append,
    contents,
    drop,
    merge,
    rows,
    run_together,
    update,
)
from tables import SOAK

TIMES = 20 if SOAK else 5
LONGEST = 1200 if SOAK else 120


def count_updates(table: phalanx.Table) -> int:
    """Count the updates of the change feed, and check that it yields every snapshot."""
    state: set[tuple[object, ...]] = set()
    before: dict[tuple[int, int], int] = {}
    after: dict[tuple[int, int], int] = {}
    changes = table.changes(0).to_arrow().to_pylist()
    for number in table.snapshots()["id"].to_pylist():
        for change in changes:
            if change["_snapshot"] != number:
                continue
            row, link = (change["k"], change["id"], change["n"]), (number, change["_update"])
            if change["_change"] in ("delete", "update_before"):
                state.remove(row)
            else:
                assert row not in state
                state.add(row)
            if change["_update"] is not None:
                (before if change["_change"] == "update_before" else after)[link] = change["id"]
        assert state == contents(table.at(number))
    assert before == after
    return len(before)


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_updates_during_appends(tmp_path: Path, mode: str) -> None:
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction=mode)
    table.append(rows([(key, place, 0) for place, key in enumerate(KEYS)]))
    run_together(table.uri, LONGEST, (update, TIMES), (update, TIMES), (append, TIMES))
    found = contents(table)
    assert {(key, place, 2 * TIMES) for place, key in enumerate(KEYS)} <= found
    assert len(found) == len(KEYS) + TIMES
    if mode == "strong":
        assert count_updates(table) == 2 * TIMES * len(KEYS)


def test_merges_of_the_same_keys(tmp_path: Path) -> None:
    """If two merges insert a key at the same time, one of them finds the row of the other."""
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")
    run_together(table.uri, LONGEST, (merge, TIMES), (merge, TIMES), (append, TIMES))
    for number in table.snapshots()["id"].to_pylist():
        ids = Counter(row[1] for row in contents(table.at(number)))
        assert set(ids.values()) <= {1}
    merged = [row for row in contents(table) if row[1] < 10_000]
    # All three keys come from the same merge.
    assert len(merged) == len(KEYS)
    assert len({row[2] for row in merged}) == 1
    assert count_updates(table) == (2 * TIMES - 1) * len(KEYS)


def test_drops_during_appends(tmp_path: Path) -> None:
    """A drop removes all rows of one partition. No append is lost in a dropped partition."""
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")
    run_together(table.uri, LONGEST, (append, 2 * TIMES), (append, 2 * TIMES), (drop, TIMES))
    snapshots = table.snapshots().to_pylist()
    operations = Counter(each["operation"] for each in snapshots)
    assert operations["append"] == 4 * TIMES
    before: set[tuple[object, ...]] = set()
    for each in snapshots:
        now = contents(table.at(each["id"]))
        if each["operation"] == "drop_partitions":
            gone = {row[0] for row in before - now}
            assert len(gone) <= 1
            assert now == {row for row in before if row[0] not in gone}
        else:
            assert before <= now
            assert len(now) == len(before) + (each["operation"] == "append")
        before = now
    first = snapshots[-1]["id"] // 2
    state = contents(table.at(first))
    table.rollback(first)
    assert contents(table) == state
    assert count_updates(table) == 0
