"""Rows of older specs are moved to their partitions under the newest one in one transaction."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx
from integration.stores import Store
from phalanx.errors import CommitConflict, InvalidSpec, PhalanxError
from phalanx.table.maintenance.move import Move
from tables import SCHEMA, contents, rows_of_key

NEWEST = 2


def by_spec(table: phalanx.Table) -> dict[int, int]:
    """How many rows are stored under each spec."""
    found = table.files()
    counted: Counter[int] = Counter()
    for spec_id, count in zip(found["spec_id"].to_pylist(), found["rows"].to_pylist(), strict=True):
        counted[spec_id] += count
    return dict(counted)


@pytest.fixture
def table(root: str, store: Store) -> phalanx.Table:
    """Rows under two specs: by k, and since then by k and a bucket of n."""
    options = store.storage_options
    made = phalanx.create(root, SCHEMA, ["k"], transaction="strong", storage_options=options)
    for first in range(0, 40, 10):
        numbers = range(first, first + 10)
        made.append(pa.concat_tables([rows_of_key(k, numbers) for k in ("a", "b", None)]))
    made.delete("n % 10 = 3")
    made.evolve(["k", phalanx.bucket("n", 4)])
    made.append(rows_of_key("a", [100, 101]))
    return made


def run_before_commit(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run a step once, after rows are written and before they are committed."""
    before, left = Move._run_groups, [action]

    def ran(*arguments: Any) -> Any:
        done = before(*arguments)
        if left:
            left.pop()()
        return done

    monkeypatch.setattr(Move, "_run_groups", ran)


def test_rows_are_where_the_newest_spec_wants_them(table: phalanx.Table, store: Store) -> None:
    before, old = contents(table), table.newest_snapshot
    assert old is not None
    plan = table.plan_rewrite(target_spec=NEWEST)
    assert {group.key.spec_id for group in plan.groups} == {1}
    assert plan.rewritten_files == 12
    assert plan.retirable == ()
    done = table.rewrite(target_spec=NEWEST)
    assert (done.groups, done.files_before, done.rows, done.dropped) == (3, 12, 108, ())
    assert done.snapshots == (old + 1,)
    assert contents(table) == before
    assert by_spec(table) == {NEWEST: 110}
    assert contents(table.at(old)) == before
    last = table.snapshots().to_pylist()[-1]
    assert (last["operation"], last["rows_added"], last["rows_removed"]) == ("rewrite", 108, 108)
    planned = table.plan("k = 'a' AND n = 17").partitions
    assert [each.key.spec_id for each in planned] == [1, NEWEST], "the old one has no rows left"
    options = store.storage_options
    for row in table.partitions().to_pylist():
        found = lance.dataset(row["location"], storage_options=options).to_table()
        assert set(found["k"].to_pylist()) <= {row["k"]}
        assert row["spec_id"] == NEWEST or not found.num_rows, "stock clients see no row twice"


def test_a_spec_without_data_can_be_retired(table: phalanx.Table) -> None:
    table.rewrite(target_spec=NEWEST)
    plan = table.plan_rewrite(target_spec=NEWEST)
    assert (plan.groups, plan.retirable) == ((), (1,))
    assert "spec v1 no longer holds files: a vacuum removes those of older versions" in str(plan)
    assert plan.to_dict()["retirable_specs"] == [1]
    assert str(table.rewrite(target_spec=NEWEST)) == "nothing to rewrite"


def test_only_partitions_that_the_filter_keeps(table: phalanx.Table) -> None:
    before = contents(table)
    done = table.rewrite("k = 'a'", target_spec=NEWEST)
    assert [group.key.values for group in done.plan.groups] == [("a",)]
    assert contents(table) == before
    assert by_spec(table) == {1: 72, NEWEST: 38}
    assert table.plan_rewrite("k = 'a'", target_spec=NEWEST).retirable == ()


def test_large_leaves_are_moved_by_several_tasks(table: phalanx.Table) -> None:
    before = contents(table)
    size = table.files()["bytes"][0].as_py()
    done = table.rewrite(target_spec=NEWEST, max_file_group_size_bytes=2 * size + 1)
    assert done.groups == 6
    assert contents(table) == before
    assert by_spec(table) == {NEWEST: 110}


def test_over_three_specs_and_a_changed_schema(table: phalanx.Table) -> None:
    table.add_column(pa.field("more", pa.string()))
    table.rename_column("k", "key")
    table.evolve([phalanx.bucket("n", 3)])
    before = Counter(map(str, table.scan().to_arrow().to_pylist()))
    table.rewrite(target_spec=3)
    assert Counter(map(str, table.scan().to_arrow().to_pylist())) == before
    assert by_spec(table) == {3: 110}


def test_rows_that_come_meanwhile_disturb_nothing(
    table: phalanx.Table, root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = phalanx.open(root, storage_options=store.storage_options)
    before = contents(table)
    # Also into a partition that both create.
    run_before_commit(
        monkeypatch,
        lambda: other.append(pa.concat_tables([rows_of_key("b", [500]), rows_of_key("c", [1])])),
    )
    table.rewrite(target_spec=NEWEST)
    assert contents(table) == before + Counter([("b", 500), ("c", 1)])
    assert by_spec(table) == {NEWEST: 112}


def test_what_is_removed_meanwhile_stays_removed(
    table: phalanx.Table, root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = phalanx.open(root, storage_options=store.storage_options)
    before = contents(table)
    run_before_commit(monkeypatch, lambda: other.delete("k = 'a' AND n = 7"))
    done = table.rewrite(target_spec=NEWEST)
    assert (done.groups, done.dropped) == (3, ())
    assert len(done.snapshots) == 2, "what was disturbed is moved by a second one"
    assert contents(table) == before - Counter([("a", 7)])
    assert by_spec(table) == {NEWEST: 109}


@pytest.mark.parametrize("how", ["compacted", "moved"])
def test_files_that_others_rewrite_meanwhile(
    table: phalanx.Table,
    root: str,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    other = phalanx.open(root, storage_options=store.storage_options)
    before = contents(table)
    target = NEWEST if how == "moved" else None
    run_before_commit(monkeypatch, lambda: other.rewrite(target_spec=target, min_input_files=2))
    table.rewrite(target_spec=NEWEST)
    assert contents(table) == before
    assert by_spec(table) == {NEWEST: 110}


def test_vacuum_keeps_what_was_moved(table: phalanx.Table, store: Store) -> None:
    before = contents(table)
    table.rewrite(target_spec=NEWEST)
    time.sleep(0.02 if store.storage_options is None else 1.01)
    table.vacuum(timedelta(0))
    assert contents(table) == before


@pytest.mark.parametrize(
    ("target", "message"),
    [(1, "under the newest spec, 2. Evolve"), (7, "there is none. Expected one of 1, 2")],
)
def test_other_targets_are_refused(table: phalanx.Table, target: int, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        table.rewrite(target_spec=target)


def test_a_table_in_weak_mode_returns_to_it(table: phalanx.Table) -> None:
    table.set_mode("weak")
    before = contents(table)
    done = table.rewrite(target_spec=NEWEST)
    assert (done.snapshots, done.rows, done.dropped) == ((), 108, ())
    assert (table.mode, table.snapshots().num_rows) == ("weak", 0)
    assert by_spec(table) == {NEWEST: 110}
    assert contents(table) == before
    assert table.rewrite(target_spec=NEWEST).groups == 0
    table.append(rows_of_key("a", [200]))
    assert contents(table) == before + Counter([("a", 200)])


def test_a_concurrent_change_to_strong_mode_is_kept(
    table: phalanx.Table, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.set_mode("weak")
    other = phalanx.open(table.uri, storage_options=store.storage_options)
    run_before_commit(monkeypatch, lambda: other.set_mode("strong"))
    with pytest.raises(CommitConflict, match="changed its schema, its specs or its mode"):
        table.rewrite(target_spec=NEWEST)
    assert table.mode == "strong"
    table.rewrite(target_spec=NEWEST)
    assert (table.mode, by_spec(table)) == ("strong", {NEWEST: 110})


def test_a_move_that_fails_leaves_weak_mode_as_it_was(
    table: phalanx.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise PhalanxError("the disk is full")

    table.set_mode("weak")
    before, places = contents(table), by_spec(table)
    run_before_commit(monkeypatch, fail)
    with pytest.raises(PhalanxError, match="the disk is full"):
        table.rewrite(target_spec=NEWEST)
    assert (table.mode, contents(table), by_spec(table)) == ("weak", before, places)
