"""Damage to every file of a small table: never a hang, a raw exception, or silently wrong rows.

Silently wrong rows are excusable only where no checksum could have told. Lance may abort the
process over a damaged file, which nobody can catch: `verify` compares checksums before Lance opens
a file, so that it never does.
"""

from __future__ import annotations

import os
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
    tried,
)
from phalanx.storage.lance.checksums import FOLDER

SOAK = os.environ.get("PHALANX_PROFILE") == "soak"
FLIPS = 6
# So many cases of each table, and one of each kind of file; in `make test` always the same, by the
# calls that matter most.
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
def test_damage_is_told(tmp_path: Path, options: dict[str, Any]) -> None:
    root = tmp_path / "table"
    build(root, **options)
    calls = tuple(CALLS) if SOAK else FEW_CALLS
    expect(root, calls)
    seed = random.SystemRandom().randrange(1 << 32) if SOAK else 0
    cases = cases_of(root, FLIPS, seed)
    # Every kind of file at least once.
    cases = random.Random(seed + 1).sample(cases, CASES) + _one_of_each(cases)
    answers = tried(root, cases, tmp_path / "work", calls)
    bad = [each for each in answers if each.outcome in (RAW, HUNG)]
    if options.get("checksums"):
        bad += [each for each in answers if each.call == "verify" and each.outcome == ABORTED]
        bad += _silent(answers)
    assert not bad, "\n".join(map(str, [f"seed {seed}", *bad]))
    said = {each.outcome for each in answers}
    # The test would not notice if nothing were damaged.
    assert {RIGHT, REFUSED} <= said


def _one_of_each(cases: list[Case]) -> list[Case]:
    """A flip in a file of each folder of the manifest, and of the first leaf."""
    found: dict[str, Case] = {}
    for case in cases:
        if case.kind == "flip" and FOLDER not in case.path:
            table, _, inner = case.path.partition("/")
            folder = f"{table == '__manifest'}/{inner.partition('/')[0]}"
            found.setdefault(folder, case)
    return list(found.values())


def _silent(answers: list[Answer]) -> list[Answer]:
    """Wrong rows after a damage of which `verify` says nothing."""
    by_case: dict[Case, dict[str, Answer]] = defaultdict(dict)
    for each in answers:
        by_case[each.case][each.call] = each
    return [
        each
        for said in by_case.values()
        for each in said.values()
        if each.outcome == WRONG
        and not each.call.endswith("verify")
        and said["verify"].outcome == RIGHT
    ]
