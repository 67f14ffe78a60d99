"""Damage to the files of a small table: no hang, no raw exception, no silently wrong rows.

A table without checksums may return wrong rows. Lance may abort the process that reads a damaged
file, and nothing can catch that. `verify` therefore compares checksums before Lance opens a file.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from faults.programs.damage_trials import (
    ABORTED,
    CALLS,
    HUNG,
    RAW,
    REFUSED,
    RIGHT,
    WRONG,
    Answer,
    Case,
    build,
    cases_of,
    expect,
    try_cases,
)
from phalanx.storage.lance.checksums import CHECKSUM_FOLDER
from tables import SOAK

FLIPS = 6
# Sampled cases of each table, in addition to one of each kind of file. `make test` always takes
# the same sample, and only the calls that matter most.
CASES = 40 if SOAK else 16
FEW_CALLS = ("verify", "scan", "append")
TABLES: dict[str, dict[str, Any]] = {
    "strong": {"transaction": "strong"},
    "checked": {"transaction": "strong", "checksums": True},
    **(
        {
            "weak": {"transaction": "weak"},
            "weak and checked": {"transaction": "weak", "checksums": True},
            "expressions": {"layout": "expressions", "transaction": "strong"},
            "hive": {"layout": "hive"},
        }
        if SOAK
        else {}
    ),
}


@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)
def test_damage_is_reported(tmp_path: Path, options: dict[str, Any]) -> None:
    root = tmp_path / "table"
    build(root, **options)
    calls = tuple(CALLS) if SOAK else FEW_CALLS
    expect(root, calls)
    seed = random.SystemRandom().randrange(1 << 32) if SOAK else 0
    cases = cases_of(root, FLIPS, seed)
    # At least one case of every kind of file.
    cases = random.Random(seed + 1).sample(cases, CASES) + _one_of_each(cases)
    answers = try_cases(root, cases, tmp_path / "work", calls)
    bad = [each for each in answers if each.outcome in (RAW, HUNG)]
    if options.get("checksums"):
        bad += [each for each in answers if each.call == "verify" and each.outcome == ABORTED]
        bad += _find_undetected(answers)
    assert not bad, "\n".join(map(str, [f"seed {seed}", *bad]))
    outcomes = {each.outcome for each in answers}
    # Otherwise the test would pass without any damage.
    assert {RIGHT, REFUSED} <= outcomes


def _one_of_each(cases: list[Case]) -> list[Case]:
    """Return a flip in one file of each folder, once for the manifest and once for a leaf."""
    found: dict[str, Case] = {}
    for case in cases:
        if case.kind == "flip" and CHECKSUM_FOLDER not in case.path:
            table, _, inner = case.path.partition("/")
            folder = f"{table == '__manifest'}/{inner.partition('/')[0]}"
            found.setdefault(folder, case)
    return list(found.values())


def _find_undetected(answers: list[Answer]) -> list[Answer]:
    """Return wrong answers after damage that `verify` does not detect."""
    by_case: dict[Case, dict[str, Answer]] = defaultdict(dict)
    for each in answers:
        by_case[each.case][each.call] = each
    return [
        each
        for answers_of_case in by_case.values()
        for each in answers_of_case.values()
        if each.outcome == WRONG
        and not each.call.endswith("verify")
        and answers_of_case["verify"].outcome == RIGHT
    ]
