"""Compaction: the same rows in fewer files, with concurrent writers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx
from integration.stores import Store
from phalanx.errors import CommitConflict, InvalidPredicate, PhalanxError
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf import compaction
from phalanx.storage.leaf.compaction import CompactedFiles
from phalanx.table.handle import handle_of
from phalanx.table.maintenance import rewrite as rewriting
from tables import SCHEMA, both_modes, rows, rows_of_key


def read_rows(table: phalanx.Table) -> Counter[tuple[str | None, int]]:
    return Counter((row["k"], row["n"]) for row in table.scan().to_arrow().to_pylist())


def on_main(table: phalanx.Table) -> Counter[tuple[str | None, int]]:
    """What stock clients see."""
    options = handle_of(table).root.storage_options
    return Counter(
        (row["k"], row["n"])
        for uri in table.partitions()["location"].to_pylist()
        for row in lance.dataset(uri, storage_options=options).to_table().to_pylist()
    )


def create_table(
    root: str, store: Store, mode: str, keys: str = "ab", files: int = 6
) -> phalanx.Table:
    """Create a table with a number of files in each partition, of ten rows each."""
    options = store.storage_options
    table = phalanx.create(root, SCHEMA, ["k"], transaction=mode, storage_options=options)
    for file in range(files):
        table.append(
            pa.concat_tables([rows_of_key(k, range(file * 10, file * 10 + 10)) for k in keys])
        )
    return table


def files_of(table: phalanx.Table) -> dict[str | None, int]:
    return dict(Counter(table.files()["k"].to_pylist()))


def run_before_commit(
    monkeypatch: pytest.MonkeyPatch, action: Callable[[], object], times: int
) -> None:
    """Run a step after files are written and before they are committed."""
    left = [times]
    before = rewriting.Compaction._run_groups

    def ran(*arguments: Any) -> dict[int, CompactedFiles]:
        done = before(*arguments)
        if left[0]:
            left[0] -= 1
            action()
        return done

    monkeypatch.setattr(rewriting.Compaction, "_run_groups", ran)


# ── alone ────────────────────────────────────────────────────────────────────────────────────


@both_modes
def test_small_files_become_one(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode)
    table.delete("n % 10 = 3")
    before = read_rows(table)
    plan = table.plan_rewrite()
    assert [(group.key.values, len(group.files)) for group in plan.groups] == [
        (("a",), 6),
        (("b",), 6),
    ]
    done = table.rewrite()
    assert (done.groups, done.files_before, done.files_after, done.rows) == (2, 12, 2, 108)
    assert done.bytes_after < done.bytes_before
    assert done.dropped == ()
    assert "12 files" in str(done)
    assert read_rows(table) == on_main(table) == before
    assert files_of(table) == {"a": 1, "b": 1}
    assert set(table.files()["deleted_rows"].to_pylist()) == {0}
    again = table.rewrite()
    assert (again.groups, str(again)) == (0, "nothing to rewrite")


def test_it_is_one_snapshot_and_older_ones_stay(root: str, store: Store) -> None:
    table = create_table(root, store, "strong")
    before = read_rows(table)
    old = table.newest_snapshot
    assert old is not None
    done = table.rewrite()
    assert done.snapshots == (old + 1,)
    last = table.snapshots().to_pylist()[-1]
    assert (last["operation"], last["rows_added"], last["rows_removed"]) == ("rewrite", 0, 0)
    assert read_rows(table.at(old)) == read_rows(table) == before
    assert [row["rows_added"] for row in table.diff(old, old + 1).to_pylist()] == [0, 0]
    table.rollback(old)
    assert files_of(table) == {"a": 6, "b": 6}
    assert read_rows(table) == before
    time.sleep(0.02 if store.storage_options is None else 1.01)
    table.rewrite()
    table.vacuum(timedelta(0))
    assert read_rows(table) == on_main(table) == before


def test_progress_is_kept_in_several_snapshots(root: str, store: Store) -> None:
    table = create_table(root, store, "strong", keys="abcde", files=5)
    before = read_rows(table)
    calls: list[tuple[int, int]] = []
    done = table.rewrite(
        partial_progress=True,
        max_commits=3,
        progress=lambda finished, total: calls.append((finished, total)),
    )
    assert len(done.snapshots) == 3
    assert calls == [(count, 5) for count in (1, 2, 3, 4, 5)]
    assert read_rows(table) == before
    assert files_of(table) == dict.fromkeys("abcde", 1)


@both_modes
def test_every_group_is_reported_when_it_is_done(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode, keys="abc", files=5)
    calls: list[tuple[int, int]] = []
    table.rewrite(progress=lambda finished, total: calls.append((finished, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]


@both_modes
def test_groups_of_one_partition_are_committed_together(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode, keys="a", files=10)
    before = read_rows(table)
    size = table.files()["bytes"][0].as_py()
    done = table.rewrite(max_file_group_size_bytes=5 * size + 1)
    assert (done.groups, done.files_after) == (2, 2)
    assert read_rows(table) == on_main(table) == before


@both_modes
def test_only_what_the_filter_keeps(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode)
    done = table.rewrite("k = 'a'")
    assert (done.groups, files_of(table)) == (1, {"a": 1, "b": 6})
    assert table.rewrite("k = 'nobody'").groups == 0


@both_modes
def test_large_results_are_cut_at_the_target(root: str, store: Store, mode: str) -> None:
    options = store.storage_options
    table = phalanx.create(root, SCHEMA, [], transaction=mode, storage_options=options)
    for file in range(8):
        table.append(rows_of_key("a", range(file * 20_000, file * 20_000 + 20_000)))
    before = read_rows(table)
    total = sum(table.files()["bytes"].to_pylist())
    done = table.rewrite(target_file_size_bytes=total // 4)
    assert 3 <= done.files_after <= 5
    assert read_rows(table) == before


@both_modes
def test_deleted_rows_are_a_reason(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode, files=1)
    table.delete("k = 'a' AND n < 4")
    done = table.rewrite()
    assert [group.key.values for group in done.plan.groups] == [("a",)]
    assert read_rows(table) == Counter(
        {("a", n): 1 for n in range(4, 10)} | {("b", n): 1 for n in range(10)}
    )
    assert table.files()["deleted_rows"].to_pylist() == [0, 0]


@both_modes
def test_tables_of_several_specs(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode)
    table.evolve(["k", phalanx.bucket("n", 2)])
    for file in range(5):
        table.append(rows_of_key("a", range(1000 + file * 10, 1010 + file * 10)))
    table.add_column(pa.field("more", pa.string()))
    before = read_rows(table)
    done = table.rewrite("k = 'a'")
    assert {group.key.spec_id for group in done.plan.groups} == {1, 2}
    assert read_rows(table) == on_main(table) == before


@pytest.mark.parametrize("stable", [False, True])
@both_modes
def test_rows_and_indexes_stay_right(root: str, store: Store, mode: str, stable: bool) -> None:
    """A leaf that had an index and stable row ids before."""
    options = store.storage_options
    table = phalanx.create(root, SCHEMA, ["k"], storage_options=options)
    place = store.fresh()
    for file in range(6):
        dataset = lance.write_dataset(
            rows_of_key("a", range(file * 10, file * 10 + 10)),
            place,
            mode="append" if file else "create",
            storage_options=options,
            enable_stable_row_ids=stable,
        )
    table.adopt(place)
    dataset = lance.dataset(place, storage_options=options)
    dataset.create_scalar_index("n", "BTREE")
    table.set_mode(mode)
    before = read_rows(table)
    numbers = lance.dataset(place, storage_options=options).to_table(with_row_id=True)
    table.rewrite()
    assert read_rows(table) == on_main(table) == before
    leaf = table.partition(k="a")
    assert len(leaf.get_fragments()) == 1
    for n in (0, 5, 17, 59):
        assert leaf.to_table(filter=f"n = {n}")["n"].to_pylist() == [n]
    if stable:
        after = leaf.to_table(with_row_id=True)
        assert sorted(zip(after["n"], after["_rowid"], strict=True), key=str) == sorted(
            zip(numbers["n"], numbers["_rowid"], strict=True), key=str
        )


# ── with concurrent writers ──────────────────────────────────────────────────────────────────


@both_modes
def test_rows_that_come_meanwhile_disturb_nothing(
    root: str, store: Store, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(root, store, mode)
    other = phalanx.open(root, storage_options=store.storage_options)
    before = read_rows(table)
    run_before_commit(monkeypatch, lambda: other.append(rows(("a", 900))), 1)
    done = table.rewrite()
    assert (done.groups, done.dropped) == (2, ())
    assert read_rows(table) == on_main(table) == before + Counter([("a", 900)])
    assert files_of(table) == {"a": 2, "b": 1}


@both_modes
def test_files_that_lose_rows_meanwhile_are_planned_again(
    root: str, store: Store, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(root, store, mode)
    other = phalanx.open(root, storage_options=store.storage_options)
    before = read_rows(table)
    run_before_commit(monkeypatch, lambda: other.delete("k = 'a' AND n = 7"), 1)
    done = table.rewrite()
    assert (done.groups, done.dropped) == (2, ())
    assert read_rows(table) == on_main(table) == before - Counter([("a", 7)])
    assert files_of(table) == {"a": 1, "b": 1}


@both_modes
def test_files_that_always_lose_rows_are_left_and_said(
    root: str, store: Store, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(root, store, mode)
    other = phalanx.open(root, storage_options=store.storage_options)
    before = read_rows(table)
    numbers = iter(range(100))
    run_before_commit(monkeypatch, lambda: other.delete(f"k = 'a' AND n = {next(numbers)}"), 100)
    done = table.rewrite()
    assert done.groups == 1
    assert [group.key.values for group in done.dropped] == [("a",)]
    assert "left 1 group alone" in str(done)
    assert "'a'" in str(done)
    gone = Counter(("a", n) for n in range(next(numbers)))
    assert read_rows(table) == on_main(table) == before - gone
    assert files_of(table) == {"a": 6, "b": 1}


@both_modes
def test_two_rewrites_at_the_same_time(
    root: str, store: Store, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(root, store, mode)
    other = phalanx.open(root, storage_options=store.storage_options)
    before = read_rows(table)
    run_before_commit(monkeypatch, other.rewrite, 1)
    table.rewrite()
    assert read_rows(table) == on_main(table) == before
    assert files_of(table) == {"a": 1, "b": 1}


def test_a_transaction_that_removed_rows_of_the_same_files_fails(root: str, store: Store) -> None:
    table = create_table(root, store, "strong")
    before = read_rows(table)

    def delete_and_rewrite(transaction: Any) -> None:
        transaction.delete("k = 'a' AND n = 7")
        table.rewrite()

    message = "remove rows of the same file"
    with pytest.raises(CommitConflict, match=message), table.transaction() as transaction:
        delete_and_rewrite(transaction)
    assert read_rows(table) == before
    table.delete("k = 'a' AND n = 7")
    assert read_rows(table) == before - Counter([("a", 7)])


def test_a_vacuum_meanwhile_is_survived(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(root, store, "strong")
    other = phalanx.open(root, storage_options=store.storage_options)
    before = read_rows(table)
    run_before_commit(monkeypatch, lambda: other.vacuum(timedelta(0)), 1)
    table.rewrite()
    assert read_rows(table) == on_main(table) == before


# ── refused ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_file_size": 5}, "no such option. Did you mean 'target_file_size_bytes'"),
        ({"min_inptu_files": 5}, "no such option. Did you mean 'min_input_files'"),
        ({"partial_progress": "x"}, "partial_progress='x': expected True or False"),
        ({"max_commits": 0}, "max_commits=0: expected a positive integer"),
        ({"partial_progres": True}, "no such option. Did you mean 'partial_progress'"),
        ({"xyz": 1}, "no such option. Expected case_sensitive, .*strict, target_file"),
        ({"min_input_files": 0}, "min_input_files=0"),
        ({"where": "k = 'a'", "partition_filter": "k = 'a'"}, "both where and partition_filter"),
    ],
)
def test_bad_options_are_reported(
    root: str, store: Store, options: dict[str, Any], message: str
) -> None:
    table = create_table(root, store, "weak", files=1)
    with pytest.raises(PhalanxError, match=message):
        table.rewrite(**options)


def test_a_predicate_that_does_not_fit_is_reported(root: str, store: Store) -> None:
    with pytest.raises(InvalidPredicate, match="nobody"):
        create_table(root, store, "weak", files=1).plan_rewrite("nobody = 1")


def test_lance_makes_tasks_of_what_is_written_down(tmp_path: Path) -> None:
    """Lance can make a compaction task of text, for any fragments; `compaction` relies on it."""
    root = str(tmp_path / "leaf")
    for file in range(4):
        dataset = lance.write_dataset(rows(("a", file)), root, mode="append" if file else "create")
    done = compaction.compact_fragments(Location.of(root), dataset.version, [1, 3], 100)
    assert [each.id for each in done.old] == [1, 3]
    assert [each.physical_rows for each in done.new] == [2]


def test_files_that_are_gone_before_they_are_read_are_planned_again(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(root, store, "weak", keys="a")
    other = phalanx.open(root, storage_options=store.storage_options)
    plan = rewriting.plan_rewrite_files
    times: list[int] = []

    def slow(*arguments: Any) -> Any:
        found = plan(*arguments)
        times.append(len(times))
        if len(times) == 1:
            # No fragment that was planned is there afterwards.
            other.delete("n < 20")
        return found

    monkeypatch.setattr(rewriting, "plan_rewrite_files", slow)
    done = table.rewrite(rewrite_all=True)
    assert (done.groups, done.dropped, len(times)) == (1, (), 2)
    assert read_rows(table) == Counter(("a", n) for n in range(20, 60))
    assert files_of(table) == {"a": 1}


@pytest.mark.parametrize("indexed", [False, True])
def test_a_weak_rewrite_during_a_change_of_the_mode(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch, indexed: bool
) -> None:
    """A rewrite commits after a change to strong mode: rows are unchanged, later writes succeed."""
    table = create_table(root, store, "weak", keys="a")
    if indexed:
        table.create_index("n", "BTREE", min_rows=1)
    other = phalanx.open(root, storage_options=store.storage_options)
    expected, fits = read_rows(table), compaction.select_unchanged
    times: list[int] = []

    def slow(*arguments: Any) -> Any:
        # After the last check of the mode.
        if not times:
            times.append(1)
            other.set_mode("strong")
        return fits(*arguments)

    monkeypatch.setattr(compaction, "select_unchanged", slow)
    table.rewrite(rewrite_all=True)
    monkeypatch.undo()
    assert read_rows(table) == expected == on_main(table)
    table.append(rows(("a", 100)))
    assert read_rows(table) == expected + Counter([("a", 100)]) == on_main(table)
    table.set_mode("weak")
    assert read_rows(table) == expected + Counter([("a", 100)])
