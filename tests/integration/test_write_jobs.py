"""Writes by many tasks with one commit, with concurrent writers and later changes."""

from __future__ import annotations

import itertools
import shutil
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import phalanx
from integration.job_races import Row, run_jobs, write_task, write_tasks
from integration.stores import Store
from phalanx.errors import (
    CommitConflict,
    InvalidPredicate,
    PartialWrite,
    PhalanxError,
    SchemaMismatch,
)
from processes import SERVER
from tables import INT32_SCHEMA, both_modes, int32_rows

_LONGEST = 120


def contents(table: phalanx.Table) -> Counter[Row]:
    return Counter(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


def orphans(table: phalanx.Table, store: Store) -> set[str]:
    """The leaves that the manifest does not list."""
    listed = {uri.rpartition("/")[2] for uri in table.partitions()["location"].to_pylist()}
    return store.folders(table.uri) - listed - {"__manifest"}


def create_table(root: str, store: Store, mode: str) -> phalanx.Table:
    """A table with the partitions a and b, one row in each."""
    options = store.storage_options
    table = phalanx.create(root, INT32_SCHEMA, ["k"], transaction=mode, storage_options=options)
    table.append(int32_rows(("a", 1), ("b", 2)))
    return table


def vacuum(table: phalanx.Table, store: Store) -> None:
    """Remove everything that is not needed, also recent files."""
    time.sleep(0.02 if store.storage_options is None else 1.01)
    table.vacuum(timedelta(0))


# ── alone ────────────────────────────────────────────────────────────────────────────────────


@both_modes
def test_all_tasks_are_one_commit(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode)
    job = table.begin_write()
    tasks = write_tasks(job, [("a", 3), ("c", 4)], [("c", 5)], [], [(None, 6)])
    assert contents(table) == Counter([("a", 1), ("b", 2)]), "nobody sees what tasks have written"
    before = table.snapshots().num_rows
    done = job.commit(tasks)
    assert (done.rows, done.partitions, done.fragments) == (4, 3, 4)
    assert "4 rows to 3 partitions" in str(done)
    assert contents(table) == Counter([("a", 1), ("b", 2), ("a", 3), ("c", 4), ("c", 5), (None, 6)])
    assert table.snapshots().num_rows == before + (mode == "strong")
    assert done.snapshot == (3 if mode == "strong" else None)
    assert orphans(table, store) == set()


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tables in both modes with rows under two specs."""
    found = {}
    for mode in ("weak", "strong"):
        found[mode] = tmp_path_factory.mktemp("template") / mode
        table = phalanx.create(
            found[mode], INT32_SCHEMA, [phalanx.bucket("n", 2)], transaction=mode
        )
        table.append(int32_rows(("a", 1), ("b", 2), (None, 3)))
        table.evolve(["k"])
        table.append(int32_rows(("a", 4), ("c", 5), (None, 6)))
    return found


_ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.integers(0, 9)), max_size=6
)


@settings(max_examples=25)
@given(
    mode=st.sampled_from(["weak", "strong"]),
    operation=st.sampled_from(["append", "overwrite", "overwrite_partitions", "overwrite n > 3"]),
    given_rows=_ROWS,
    cuts=st.lists(st.integers(0, 6), max_size=3),
)
@example(mode="strong", operation="overwrite", given_rows=[], cuts=[])
@example(mode="weak", operation="overwrite n > 3", given_rows=[], cuts=[1])
@example(mode="weak", operation="overwrite_partitions", given_rows=[(None, 3)], cuts=[])
@example(mode="strong", operation="overwrite_partitions", given_rows=[("a", 1)] * 2, cuts=[1])
def test_a_job_does_what_the_table_does(
    templates: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    mode: str,
    operation: str,
    given_rows: list[Row],
    cuts: list[int],
) -> None:
    operation, _, where = operation.partition(" ")
    if where:
        given_rows = [(k, n) for k, n in given_rows if n > 3]
    base = tmp_path_factory.mktemp("tables")
    tables = {}
    for name in ("whole", "tasks"):
        shutil.copytree(templates[mode], base / name)
        tables[name] = phalanx.open(base / name)
    whole: Callable[..., object] = getattr(tables["whole"], operation)
    whole(int32_rows(*given_rows), *([where] if where else []))
    job = tables["tasks"].begin_write(operation, where or "true")
    ends = [0, *sorted(min(cut, len(given_rows)) for cut in cuts), len(given_rows)]
    parts = [given_rows[a:b] for a, b in itertools.pairwise(ends)]
    job.commit(write_tasks(job, *parts))
    assert contents(tables["tasks"]) == contents(tables["whole"])
    shutil.rmtree(base)


@both_modes
def test_a_row_outside_of_what_is_replaced_is_refused_by_its_task(
    root: str, store: Store, mode: str
) -> None:
    table = create_table(root, store, mode)
    job = table.begin_write("overwrite", "n > 5")
    with pytest.raises(InvalidPredicate, match=r"Row 1 .* does not match 'n > 5'.*'n': 3"):
        write_tasks(job, [("a", 6), ("a", 3)])
    with pytest.raises(InvalidPredicate, match="'m'"):
        table.begin_write("overwrite", "m > 5")


@both_modes
def test_rows_of_another_schema_are_refused_by_their_task(
    root: str, store: Store, mode: str
) -> None:
    job = create_table(root, store, mode).begin_write()
    with pytest.raises(SchemaMismatch, match="'n'"):
        job.write(pa.table({"k": ["a"], "n": ["x"]}).to_reader())


# ── tasks that ran more than once ────────────────────────────────────────────────────────────


@both_modes
def test_only_the_messages_that_are_committed_count(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode)
    job = table.begin_write()
    first, second = [("a", 3), ("new", 4)], [("new", 5), ("newer", 6)]
    write_tasks(job, first, second, [("only tried", 7)])
    chosen = write_tasks(job, second, first)
    job.commit(chosen)
    expected = Counter([("a", 1), ("b", 2), *first, *second])
    assert contents(table) == expected
    if mode == "strong":
        vacuum(table, store)
        assert orphans(table, store) == set()
        listed = {path for paths in table.files()["paths"].to_pylist() for path in paths}
        stored = {path.rpartition("/")[2] for path in store.files(root) if "/data/" in path}
        own = {path.rpartition("/")[2] for path in store.files(f"{root}/__manifest")}
        assert stored - own == listed
        assert contents(table) == expected


@both_modes
def test_a_job_that_is_never_committed_leaves_the_table_alone(
    root: str, store: Store, mode: str
) -> None:
    table = create_table(root, store, mode)
    write_tasks(table.begin_write("overwrite"), [("a", 3), ("new", 4)])
    table.append(int32_rows(("new", 5)))
    assert contents(table) == Counter([("a", 1), ("b", 2), ("new", 5)])
    if mode == "strong":
        assert orphans(table, store)
        vacuum(table, store)
        assert orphans(table, store) == set()
        assert contents(table) == Counter([("a", 1), ("b", 2), ("new", 5)])


@both_modes
def test_tasks_that_race_make_each_leaf_once(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode)
    job = table.begin_write()
    start, answers = SERVER.Barrier(4), SERVER.Queue()
    running = [
        SERVER.Process(target=write_task, args=(job, number, start, answers)) for number in range(4)
    ]
    for each in running:
        each.start()
    tasks = [answers.get(timeout=_LONGEST) for _ in running]
    for each in running:
        each.join(_LONGEST)
        assert each.exitcode == 0
    job.commit(tasks)
    new = [(k, number) for number in range(4) for k in ("new", "newer", "a")]
    assert contents(table) == Counter([("a", 1), ("b", 2), *new])
    assert table.partitions().num_rows == 4
    assert orphans(table, store) == set()


# ── with concurrent writers ──────────────────────────────────────────────────────────────────


@both_modes
@pytest.mark.parametrize("operation", ["append", "overwrite_partitions"])
def test_another_writer_makes_the_same_partition_first(
    root: str, store: Store, mode: str, operation: str
) -> None:
    table = create_table(root, store, mode)
    job = table.begin_write(operation)
    tasks = write_tasks(job, [("new", 3), ("a", 4)], [("new", 5), ("newer", 6)])
    table.append(int32_rows(("new", 7), ("b", 8)))
    job.commit(tasks)
    ours = [("new", 3), ("a", 4), ("new", 5), ("newer", 6)]
    kept = [("b", 2), ("b", 8)]
    if operation == "append":
        kept += [("a", 1), ("new", 7)]
    elif mode == "strong":
        # An append since the snapshot that is replaced is not undone.
        kept += [("new", 7)]
    assert contents(table) == Counter([*ours, *kept])
    assert table.partitions().num_rows == 4
    assert orphans(table, store) == set()


@both_modes
def test_two_jobs_make_the_same_partition(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode)
    jobs = [table.begin_write() for _ in range(2)]
    tasks = [
        write_tasks(job, [("new", place)], [("new", place + 10)]) for place, job in enumerate(jobs)
    ]
    for job, each in zip(reversed(jobs), reversed(tasks), strict=True):
        job.commit(each)
    expected = [("a", 1), ("b", 2), ("new", 0), ("new", 10), ("new", 1), ("new", 11)]
    assert contents(table) == Counter(expected)
    assert orphans(table, store) == set()


@both_modes
def test_jobs_that_race_lose_and_double_nothing(tmp_path: Path, mode: str) -> None:
    store, root = Store(str(tmp_path)), str(tmp_path / "table")
    table = create_table(root, store, mode)
    start = SERVER.Barrier(3)
    running = [SERVER.Process(target=run_jobs, args=(root, n, start)) for n in range(3)]
    for each in running:
        each.start()
    for each in running:
        each.join(_LONGEST)
        assert each.exitcode == 0
    new: list[Row] = []
    for n in (number * 100 + turn * 10 for number in range(3) for turn in range(3)):
        turn = n // 10 % 10
        new += [(f"new{turn}", n), ("a", n), (f"new{turn}", n + 1)]
    assert contents(table) == Counter([("a", 1), ("b", 2), *new])
    assert table.partitions().num_rows == 5
    assert orphans(table, store) == set()


Change = Callable[[phalanx.Table], object]
CHANGES: dict[str, Change] = {
    "add a column": lambda table: table.add_column(pa.field("more", pa.int8())),
    "rename a column": lambda table: table.rename_column("n", "m"),
    "give its name to another": lambda table: (
        table.rename_column("n", "x"),
        table.add_column(pa.field("n", pa.int64())),
    ),
    "drop a column": lambda table: (
        table.add_column(pa.field("more", pa.int8())),
        table.drop_column("n"),
    ),
    "promote a column": lambda table: table.promote_column("n", pa.int64()),
    "evolve": lambda table: table.evolve([phalanx.bucket("n", 4)]),
}


@both_modes
@pytest.mark.parametrize(
    ("operation", "change"),
    [*(("overwrite", name) for name in CHANGES), ("append", "add a column"), ("append", "evolve")],
)
@pytest.mark.parametrize("moment", ["before the tasks", "before the commit"])
def test_a_changed_table_is_a_conflict(
    tmp_path: Path, mode: str, change: str, moment: str, operation: str
) -> None:
    store, root = Store(str(tmp_path)), str(tmp_path / "table")
    table = create_table(root, store, mode)
    job = table.begin_write(operation, "n < 9" if operation == "overwrite" else "true")

    def run() -> None:
        if moment == "before the tasks":
            CHANGES[change](phalanx.open(root))
        tasks = write_tasks(job, [("a", 3), ("new", 4)])
        if moment == "before the commit":
            CHANGES[change](phalanx.open(root))
        job.commit(tasks)

    with pytest.raises(CommitConflict, match=r"changed its schema|schema was changed") as error:
        run()
    assert "\n" not in str(error.value)
    found = table.scan().to_arrow()
    assert found.num_rows == 2
    assert sorted(found["k"].to_pylist()) == ["a", "b"]
    # The table accepts the next write.
    columns = {f.name: pa.array([None if f.name != "k" else "z"], f.type) for f in table.schema}
    again = table.begin_write()
    again.commit([again.write(pa.table(columns).to_reader())])
    assert table.scan().count_rows() == 3


@pytest.mark.parametrize("moment", ["before the tasks", "before the commit"])
def test_a_vacuum_meanwhile_is_a_conflict(root: str, store: Store, moment: str) -> None:
    table = create_table(root, store, "strong")
    table.append(int32_rows(("a", 9)))
    job = table.begin_write()

    def run() -> None:
        if moment == "before the tasks":
            table.vacuum(timedelta(0))
        tasks = write_tasks(job, [("a", 3), ("new", 4)])
        if moment == "before the commit":
            table.vacuum(timedelta(0))
        job.commit(tasks)

    with pytest.raises(CommitConflict, match="vacuum") as error:
        run()
    assert "\n" not in str(error.value)
    expected = Counter([("a", 1), ("b", 2), ("a", 9)])
    assert contents(table) == expected
    table.append(int32_rows(("new", 5)))
    vacuum(table, store)
    assert contents(table) == expected + Counter([("new", 5)])
    assert orphans(table, store) == set()


@pytest.mark.parametrize(
    ("mode", "others"),
    [("weak", ["strong"]), ("strong", ["weak"]), ("strong", ["weak", "strong"])],
    ids=str,
)
@pytest.mark.parametrize("moment", ["before the tasks", "before the commit"])
def test_another_mode_meanwhile_is_a_conflict(
    root: str, store: Store, mode: str, others: list[str], moment: str
) -> None:
    table = create_table(root, store, mode)
    job = table.begin_write()

    def change() -> None:
        for other in others:
            phalanx.open(root, storage_options=store.storage_options).set_mode(other)

    def run() -> None:
        if moment == "before the tasks":
            change()
        tasks = write_tasks(job, [("a", 3), ("new", 4)])
        if moment == "before the commit":
            change()
        job.commit(tasks)

    with pytest.raises(CommitConflict, match="mode"):
        run()
    assert contents(table) == Counter([("a", 1), ("b", 2)])


def test_a_rollback_meanwhile_is_written_on_top_of(root: str, store: Store) -> None:
    table = create_table(root, store, "strong")
    table.append(int32_rows(("a", 3), ("late", 4)))
    job = table.begin_write()
    tasks = write_tasks(job, [("a", 5), ("late", 6), ("new", 7)])
    table.rollback(2)
    job.commit(tasks)
    assert contents(table) == Counter([("a", 1), ("b", 2), ("a", 5), ("late", 6), ("new", 7)])


def test_two_overwrites_of_the_same_rows_are_a_conflict(root: str, store: Store) -> None:
    table = create_table(root, store, "strong")
    job = table.begin_write("overwrite")
    tasks = write_tasks(job, [("a", 3)])
    table.overwrite(int32_rows(("a", 4)))
    with pytest.raises(CommitConflict, match=r"v1\('[ab]',\).*both replace rows"):
        job.commit(tasks)
    assert contents(table) == Counter([("a", 4)])


def test_an_append_during_an_overwrite_stays(root: str, store: Store) -> None:
    table = create_table(root, store, "strong")
    job = table.begin_write("overwrite")
    tasks = write_tasks(job, [("a", 3)])
    table.append(int32_rows(("a", 4), ("c", 5)))
    job.commit(tasks)
    assert contents(table) == Counter([("a", 3), ("a", 4), ("c", 5)])


@both_modes
def test_a_recreated_table_is_not_taken_for_the_old_one(tmp_path: Path, mode: str) -> None:
    """A process that runs tasks of many jobs remembers tables."""
    store, root = Store(str(tmp_path)), str(tmp_path / "table")
    job = create_table(root, store, mode).begin_write()
    job.commit(write_tasks(job, [("a", 3)]))
    shutil.rmtree(root)
    schema = pa.schema([("n", pa.int32()), ("z", pa.string())])
    table = phalanx.create(root, schema, ["n"], transaction=mode)
    table.append(pa.table({"n": [1, 2], "z": ["x", "y"]}, schema=schema))
    again = table.begin_write()
    again.commit([again.write(pa.table({"n": [1, 3], "z": ["p", "q"]}).to_reader())])
    assert contents(table) == Counter([(1, "x"), (2, "y"), (1, "p"), (3, "q")])


# ── markers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("operation", ["append", "overwrite", "overwrite_partitions"])
def test_the_same_marker_writes_once(root: str, store: Store, operation: str) -> None:
    table = create_table(root, store, "strong")
    late = table.begin_write(operation, marker="monday")
    late_tasks = write_tasks(late, [("a", 3), ("new", 4)])
    snapshots = set()
    for _ in range(2):
        job = table.begin_write(operation, marker="monday")
        snapshots.add(job.commit(write_tasks(job, [("a", 3), ("new", 4)])).snapshot)
    snapshots.add(late.commit(late_tasks).snapshot)
    assert snapshots == {3}
    kept = {"append": [("a", 1), ("b", 2)], "overwrite": [], "overwrite_partitions": [("b", 2)]}
    assert contents(table) == Counter([*kept[operation], ("a", 3), ("new", 4)])
    assert orphans(table, store) == set()
    job = table.begin_write(operation, marker="tuesday")
    assert job.commit(write_tasks(job, [("b", 5)])).snapshot == 4


def test_what_was_done_already_is_not_reported_as_written(root: str, store: Store) -> None:
    table = create_table(root, store, "strong")
    jobs = [table.begin_write(marker="monday") for _ in range(2)]
    tasks = [write_tasks(job, [("a", 3)]) for job in jobs]
    assert jobs[0].commit(tasks[0]).rows == 1
    assert jobs[1].commit(tasks[1]).rows == 0


def test_of_jobs_that_share_a_marker_one_is_committed(root: str, store: Store) -> None:
    table = create_table(root, store, "strong")
    jobs = [table.begin_write(marker=marker) for marker in ("x\ny", "y\nz", "z")]
    tasks = [write_tasks(job, [("a", number)]) for number, job in enumerate(jobs, 3)]
    done = [job.commit(each) for job, each in zip(jobs, tasks, strict=True)]
    assert [each.rows for each in done] == [1, 0, 1]
    assert [each.snapshot for each in done] == [3, 3, 4]
    assert table.begin_write(marker="a\nz").repeated_snapshot == 4
    assert table.markers() == {"x": 3, "y": 3, "z": 4}
    assert contents(table) == Counter([("a", 1), ("b", 2), ("a", 3), ("a", 5)])
    with pytest.raises(PhalanxError, match="Cannot mark a transaction as"):
        table.begin_write(marker="a\n\tb")


def test_a_job_without_rows_is_done_once_too(root: str, store: Store) -> None:
    table = create_table(root, store, "strong")
    job = table.begin_write(marker="monday")
    assert job.commit(write_tasks(job, [])).snapshot == 3
    job = table.begin_write(marker="monday")
    assert job.commit(write_tasks(job, [("a", 3)])).snapshot == 3
    assert contents(table) == Counter([("a", 1), ("b", 2)])


def test_a_marker_needs_strong_mode(root: str, store: Store) -> None:
    table = create_table(root, store, "weak")
    with pytest.raises(PhalanxError, match=r"'monday'.*weak mode.*set_mode\('strong'\)"):
        table.begin_write(marker="monday")


# ── failures of the store ────────────────────────────────────────────────────────────────────


def test_a_leaf_that_fails_in_weak_mode_is_named(root: str, store: Store) -> None:
    table = create_table(root, store, "weak")
    job = table.begin_write()
    tasks = write_tasks(job, [("a", 3), ("b", 4)], [("c", 5), ("a", 6)])
    [broken] = [uri for k, uri in _locations(table) if k == "b"]
    whole = lance.LanceDataset.commit

    def commit(target: Any, *arguments: Any, **options: Any) -> Any:
        if target.uri.rpartition("/")[2] == broken.rpartition("/")[2]:
            raise OSError("LanceError(IO): no space left")
        return whole(target, *arguments, **options)

    with (
        mock.patch.object(lance.LanceDataset, "commit", staticmethod(commit)),
        pytest.raises(PartialWrite) as error,
    ):
        job.commit(tasks)
    text = str(error.value)
    assert "Wrote 2 of 3 partitions" in text
    assert "Not written: v1('b',)" in text
    assert "v1('a',)" in text.partition("Not written")[0]
    assert "v1('c',)" in text.partition("Not written")[0]
    assert "no space left" in text
    assert contents(table) == Counter([("a", 1), ("b", 2), ("a", 3), ("c", 5), ("a", 6)])


def _locations(table: phalanx.Table) -> list[tuple[str | None, str]]:
    found = table.partitions()
    return list(zip(found["k"].to_pylist(), found["location"].to_pylist(), strict=True))
