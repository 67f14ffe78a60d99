"""The history checker finds the broken rule in each broken history, and none in good ones."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from faults.programs.history_checker import (
    INITIAL,
    Operation,
    Rule,
    Transaction,
    anomalies,
    read,
    write,
)


def transaction(
    name: str,
    *operations: Operation,
    began: int | None = None,
    committed: int | None = None,
    process: str | None = None,
    started: float | None = None,
    ended: float | None = None,
) -> Transaction:
    return Transaction(name, process or name, operations, began, committed, started, ended)


def reads_x_y(x: str | None, y: str | None) -> tuple[Operation, Operation]:
    return read("x", x), read("y", y)


GOOD = [
    transaction("t1", read("x", INITIAL), write("x", "x1"), write("y", "y1"), began=0, committed=1),
    transaction("t2", *reads_x_y("x1", "y1"), write("y", "y2"), began=1, committed=2),
    transaction("r1", *reads_x_y("x1", "y1"), began=1),
    transaction("r2", *reads_x_y("x1", "y2"), read("x", "x1"), began=2),
    transaction("lost", read("x", "x1"), write("x", "x3"), read("x", "x3"), began=1),
    transaction("t3", read("x", "x1"), write("x", "x4"), write("x", "x5"), began=1, committed=3),
    transaction("t4", read("x", "x5"), write("z", "z1"), began=3, committed=4),
]

WRITER = transaction("w", write("x", "xw"), write("y", "yw"), committed=1)
SKEWED = [
    transaction("t1", *reads_x_y(INITIAL, INITIAL), write("x", "x1"), began=0, committed=1),
    transaction("t2", *reads_x_y(INITIAL, INITIAL), write("y", "y2"), began=0, committed=2),
]

BROKEN: dict[Rule, list[Transaction]] = {
    Rule.GARBAGE_READ: [transaction("t", read("x", "nobody's"), began=0)],
    Rule.ABORTED_READ: [
        transaction("w", write("x", "x1"), began=0),
        transaction("t", read("x", "x1"), began=0),
    ],
    Rule.INTERMEDIATE_READ: [
        transaction("w", write("x", "x1"), write("x", "x2"), began=0, committed=1),
        transaction("t", read("x", "x1"), began=1),
    ],
    Rule.DIRTY_READ: [
        transaction("w", write("x", "x1"), began=0, committed=1),
        transaction("t", read("x", "x1"), began=0),
    ],
    Rule.STALE_READ: [
        transaction("w", write("x", "x1"), began=0, committed=1),
        transaction("t", read("x", INITIAL), began=1),
    ],
    Rule.FRACTURED_READ: [WRITER, transaction("t", *reads_x_y("xw", INITIAL))],
    Rule.UNREPEATABLE_READ: [WRITER, transaction("t", read("x", INITIAL), read("x", "xw"))],
    Rule.LOST_UPDATE: [
        transaction("t1", read("x", INITIAL), write("x", "x1"), began=0, committed=1),
        transaction("t2", read("x", INITIAL), write("x", "x2"), began=0, committed=2),
    ],
    Rule.BLIND_CONFLICT: [
        transaction("t1", write("x", "x1"), began=0, committed=1),
        transaction("t2", write("x", "x2"), began=0, committed=2),
    ],
    Rule.TWO_COMMITS: [
        transaction("t1", write("x", "x1"), began=0, committed=1),
        transaction("t2", write("y", "y1"), began=0, committed=1),
    ],
    Rule.MISSING_SNAPSHOT: [
        transaction("t1", write("x", "x1"), began=0, committed=1),
        transaction("t2", write("y", "y1"), began=0, committed=3),
    ],
    Rule.BACKWARDS: [transaction("t1", write("x", "x1"), began=1, committed=1)],
    Rule.SESSION: [
        transaction("t1", write("x", "x1"), began=0, committed=1, process="p"),
        transaction("t2", write("y", "y1"), began=0, committed=2, process="p"),
    ],
    Rule.REAL_TIME: [
        transaction("t1", write("x", "x1"), began=0, committed=1, started=1, ended=2),
        transaction("t2", write("y", "y1"), began=0, committed=2, started=3, ended=4),
    ],
    Rule.CIRCULAR_FLOW: [
        transaction("t1", read("y", "y2"), write("x", "x1"), committed=1),
        transaction("t2", read("x", "x1"), write("y", "y2"), committed=2),
    ],
    Rule.READ_SKEW: [
        transaction("t1", write("x", "x1"), committed=1),
        transaction("t2", read("x", "x1"), write("y", "y2"), committed=2),
        transaction("t3", *reads_x_y(INITIAL, "y2")),
    ],
    Rule.WRITE_SKEW: SKEWED,
}


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_a_good_history(isolation: str) -> None:
    assert anomalies(GOOD, isolation) == []
    installed = {"x": [INITIAL, "x1", "x1", "x5"], "y": ["y1", "y2"]}
    assert anomalies(GOOD, isolation, installed) == []


@pytest.mark.parametrize("rule", list(BROKEN))
def test_a_broken_rule_is_found_and_no_other(rule: Rule) -> None:
    for isolation in ("snapshot", "serializable"):
        expected = set() if (rule, isolation) == (Rule.WRITE_SKEW, "snapshot") else {rule}
        assert {each.rule for each in anomalies(BROKEN[rule], isolation)} == expected


def test_own_writes_are_read() -> None:
    blind = [WRITER, transaction("t", write("x", "mine"), read("x", "xw"), committed=2)]
    assert [each.rule for each in anomalies(blind, "snapshot")] == [Rule.UNREPEATABLE_READ]


def test_what_snapshots_show() -> None:
    crossed = [
        transaction("t1", write("x", "x1"), write("y", "y1"), committed=1),
        transaction("t2", write("x", "x2"), write("y", "y2"), committed=2),
    ]
    right = {"x": ["x1", "x2"], "y": ["y1", "y2"]}
    assert anomalies(crossed, "snapshot", right) == []
    overtaken = {**right, "y": ["y2", "y1"]}
    assert [each.rule for each in anomalies(crossed, "snapshot", overtaken)] == [Rule.DIRTY_WRITE]
    for versions in (["x1"], ["x1", "x2", "x3"]):
        found = anomalies(crossed, "snapshot", {"x": versions})
        assert [each.rule for each in found] == [Rule.LOST_WRITE]
    aborted = [*crossed, transaction("t3", write("x", "x3"))]
    found = anomalies(aborted, "snapshot", {"x": ["x1", "x2", "x3"]})
    assert [each.rule for each in found] == [Rule.LOST_WRITE]


def test_every_rule_has_a_broken_history() -> None:
    assert {*BROKEN, Rule.LOST_WRITE, Rule.DIRTY_WRITE} == set(Rule)


def test_a_skew_of_three() -> None:
    keys = ["x", "y", "z"]
    three = [
        transaction(
            f"t{place}",
            read(keys[place], INITIAL),
            read(keys[place - 1], INITIAL),
            write(keys[place], f"{keys[place]}{place}"),
            began=0,
            committed=place + 1,
        )
        for place in range(3)
    ]
    found = anomalies(three, "serializable")
    assert [(each.rule, each.transactions) for each in found] == [
        (Rule.WRITE_SKEW, ("t0", "t1", "t2"))
    ]
    assert anomalies(three, "snapshot") == []


@pytest.mark.parametrize("seed", range(5))
def test_serial_histories_are_good_and_swapped_reads_are_not(seed: int) -> None:
    """A serial history has no anomaly. The same history with one stale read has some."""
    chance = random.Random(seed)
    state: dict[str, str | None] = dict.fromkeys("abcdef")
    past: dict[str, list[str | None]] = {key: [INITIAL] for key in state}
    found = []
    for number in range(1, 80):
        keys = chance.sample(sorted(state), chance.randint(2, 4))
        operations = [read(key, state[key]) for key in keys]
        for key in keys[1:]:
            state[key] = f"{key}{number}"
            past[key].append(state[key])
            operations.append(write(key, f"{key}{number}"))
        process = f"p{number % 3}"
        found.append(
            Transaction(
                f"t{number}", process, tuple(operations), number - 1, number, number, number
            )
        )
    assert anomalies(found, "serializable", past) == []
    victim = chance.randrange(40, 79)
    first = found[victim].operations[0]
    stale = read(first.key, past[first.key][0])
    wrong = replace(found[victim], operations=(stale, *found[victim].operations[1:]))
    assert anomalies([*found[:victim], wrong, *found[victim + 1 :]], "snapshot")
    without = replace(wrong, began=None)
    assert anomalies([*found[:victim], without, *found[victim + 1 :]], "serializable")
