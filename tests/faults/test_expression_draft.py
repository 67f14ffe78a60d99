"""Tables of the expression draft under races and deaths: no row is lost or duplicated."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import lance
import pytest

import phalanx
from faults.programs.counter_race import Race, count, create, read_records, run, versions_in
from faults.programs.fault_injection import count_steps, kill_at
from faults.programs.history_checker import anomalies
from faults.programs.strong_changes import CHANGES, make_template, rows
from faults.test_strong_deaths import Rows, contents, rows_of
from integration.expression_rows import leaf, pin, pins
from phalanx.storage.lance.fault_points import FaultPoint
from tables import SOAK

# After its rows, after its specs, and before the cleanup.
UPGRADE_STEPS = [FaultPoint.MANIFEST_WRITTEN, FaultPoint.PROPERTIES_CHANGED]
KEYS = [f"p{number}" for number in range(6)]
PREDICATES = ["k = 'a'", "k > 'a' AND n < 5", "k IS NULL", "k LIKE 'b%'", "n = 3"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a table with two specs, snapshots, and a leaf that is read by a tag."""
    root = tmp_path_factory.mktemp("template") / "table"
    make_template(root, "expressions")
    table = phalanx.open(root)
    table.evolve([phalanx.truncate("k", 1)])
    table.append(rows(("abc", 20), ("b", 21)))
    dataset = leaf(table, "b")
    dataset.tags.create("release", dataset.version)
    pin(table, "b", read_tag="release")
    return root


def read_as_the_draft(root: Path) -> Rows:
    """Read the table by the rows of its manifest alone."""
    found: Rows = Counter()
    tables = lance.dataset(f"{root}/__manifest").to_table(filter="object_type = 'table'")
    for row in tables.to_pylist():
        dataset = lance.dataset(f"{root}/{row['location']}")
        pinned = row["read_tag"] or row["read_version"]
        found += rows_of((dataset.checkout_version(pinned) if pinned else dataset).to_table())
    return found


def plan_predicates(table: phalanx.Table) -> list[object]:
    plans = [table.plan(where) for where in PREDICATES]
    return [[(each.key, each.location, each.residual) for each in p.partitions] for p in plans]


def test_racing_processes_lose_and_double_nothing(tmp_path: Path) -> None:
    (records := tmp_path / "records").mkdir()
    race = Race(str(tmp_path / "table"), records)
    table = create(race, KEYS, 0, "expressions")
    run(race, *((count, (number, 5, KEYS, "snapshot")) for number in range(2)), longest=240)
    history = read_records(race)
    committed = [one for one in history if one.committed is not None]
    assert len(committed) == 10
    found = table.scan("kind = 'counter'").to_arrow()
    assert sum(found["n"].to_pylist()) == sum(len(one.writes) for one in committed)
    assert anomalies(history, "snapshot", versions_in(table, 2)) == []
    assert read_as_the_draft(Path(race.root)) == rows_of(table.scan().to_arrow())


@pytest.mark.parametrize(
    "step", [FaultPoint.VERSION_STAGED, FaultPoint.COMMITTING, FaultPoint.COMMITTED]
)
def test_a_killed_transaction_is_all_there_or_not_at_all(
    template: Path, tmp_path: Path, step: FaultPoint
) -> None:
    root = tmp_path / "table"
    shutil.copytree(template, root)
    before = contents(phalanx.open(root))
    assert kill_at(step, 1, root, "transaction")
    after = contents(phalanx.open(root))
    assert read_as_the_draft(root) == after[1]
    assert (after != before) == (step is FaultPoint.COMMITTED)
    # It has a marker: a repeated call applies it exactly once.
    CHANGES["transaction"].run(phalanx.open(root))
    done = contents(phalanx.open(root))
    assert read_as_the_draft(root) == done[1]
    assert done[1][("new", 10, 5.0)] == 1
    assert step is not FaultPoint.COMMITTED or done == after


def test_a_death_on_the_way_out_of_strong_mode_hides_no_row(template: Path, tmp_path: Path) -> None:
    """The mode is weak. Readers and writers ignore the versions that rows still name."""
    root = tmp_path / "table"
    shutil.copytree(template, root)
    before = contents(phalanx.open(root))[1]
    assert kill_at(FaultPoint.PROPERTIES_CHANGED, 2, root, "to weak mode")
    table = phalanx.open(root)
    assert (table.mode, contents(table)[1]) == ("weak", before)
    assert pins(table, "a")[0] is not None
    table.append(rows(("a", 30)))
    expected = before + rows_of(rows(("a", 30)))
    assert contents(phalanx.open(root))[1] == expected == read_as_the_draft(root)
    assert pins(table, "a") == (None, None, None)


def test_an_upgrade_that_is_killed_leaves_a_table(template: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(template, whole)
    table = phalanx.open(whole)
    before = contents(table)
    with count_steps() as steps:
        table.upgrade()
    assert table.layout == "namespace"
    layouts = set()
    chosen = steps if SOAK else UPGRADE_STEPS
    assert set(UPGRADE_STEPS) <= set(steps)
    for step in chosen:
        for time in sorted({1, steps[step]}):
            root = tmp_path / f"{step.name}-{time}"
            shutil.copytree(template, root)
            plans = plan_predicates(phalanx.open(root))
            assert kill_at(step, time, root, "upgrade")
            cut = phalanx.open(root)
            layouts.add(cut.layout)
            assert contents(cut) == before
            assert plan_predicates(cut) == plans
            cut.upgrade()
            assert (cut.layout, cut.mode) == ("namespace", "strong")
            assert contents(phalanx.open(root)) == before
            assert plan_predicates(cut) == plans
            names = lance.dataset(f"{root}/__manifest").schema.names
            assert not {"read_branch", "read_tag"} & set(names)
            cut.append(rows(("a", 40)))
            assert cut.scan().count_rows() == sum(before[1].values()) + 1
    assert layouts == {"expressions", "namespace"}
