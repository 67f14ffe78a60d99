"""Changes of single rows by many tasks: what they commit, and what is a conflict."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import phalanx
from integration.stores import Store
from phalanx.errors import CommitConflict, PhalanxError, SchemaMismatch
from phalanx.model.predicates.predicate import TRUE
from phalanx.storage.commit.writing import ReadFootprint
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.reading import ROW_ID_FIELDS
from phalanx.table.handle import handle_of
from phalanx.table.jobs.row_job import DELETE, INSERT, OPERATION_COLUMN, UPDATE, RowJob, TaskChanges
from phalanx.table.jobs.row_lookup import KeyedLeaves, LookupWork
from phalanx.table.read.scan import plan_scan
from phalanx.table.write.merge import MergeCounts
from phalanx.table.write.operations import versions_of
from tables import KEYED_SCHEMA, table_of

EVERYTHING = KeyedLeaves(None)
Row = tuple[Any, ...]


def rows(*values: Row) -> pa.Table:
    return table_of(KEYED_SCHEMA, values)


def contents(table: phalanx.Table) -> list[Row]:
    found = table.scan().to_arrow()
    return sorted(
        zip(*(found[name].to_pylist() for name in KEYED_SCHEMA.names), strict=True), key=repr
    )


@pytest.fixture(params=["weak", "strong"])
def table(root: str, store: Store, request: pytest.FixtureRequest) -> phalanx.Table:
    """Twelve rows under two specs, with a column that came later and another name."""
    old = pa.schema([("id", pa.int64()), ("key", pa.string())])
    made = phalanx.create(
        root,
        old,
        "bucket(2, id)",
        transaction=request.param,
        storage_options=store.storage_options,
    )
    made.append(pa.table([list(range(6)), ["a", "b", None] * 2], schema=old))
    made.rename_column("key", "k")
    made.add_column(pa.field("n", pa.int32()))
    made.evolve("k")
    made.append(rows(*((i, "abc"[i % 3], i) for i in range(6, 12))))
    return made


def begin_job(table: phalanx.Table, operation: str = "update", marker: str | None = None) -> RowJob:
    return pickle.loads(
        pickle.dumps(RowJob.begin(handle_of(table).for_write("rows"), operation, marker))
    )


def look_up(job: RowJob, leaves: KeyedLeaves = EVERYTHING) -> pa.Table:
    """All rows with their ids."""
    work = LookupWork.of(job.manifest, leaves, [(name, name) for name in KEYED_SCHEMA.names])
    return pa.Table.from_batches(
        [batch for task in work.tasks for batch in work.batches(task)], work.schema
    )


def change(job: RowJob, there: pa.Table, operation: int, **values: Any) -> TaskChanges:
    """One task that does the same to some rows."""
    for name, value in values.items():
        place = there.column_names.index(name)
        column = pa.array([value] * there.num_rows, there.schema.field(name).type)
        there = there.set_column(place, there.schema.field(name), column)
    operations = pa.array([operation] * there.num_rows, pa.int32())
    changes = there.append_column(OPERATION_COLUMN, operations).to_batches(max_chunksize=2)
    return pickle.loads(pickle.dumps(job.write(changes)))


def where(there: pa.Table, ids: list[int]) -> pa.Table:
    return there.filter(pc.is_in(there["id"], pa.array(ids, pa.int64())))


def insert_rows(job: RowJob, *new: Row) -> TaskChanges:
    made = rows(*new)
    for name in ROW_ID_FIELDS.names:
        made = made.append_column(name, pa.nulls(made.num_rows, pa.int64()))
    return change(job, made, INSERT)


def test_rows_change_move_come_and_go_in_one_commit(table: phalanx.Table) -> None:
    before = contents(table)
    job = begin_job(table, "merge")
    there = look_up(job)
    assert there.num_rows == 12
    tasks = [
        change(job, where(there, [0, 7]), UPDATE, k="b", n=-1),
        change(job, where(there, [2, 9]), UPDATE, k="new"),
        change(job, where(there, [1, 8]), DELETE),
        insert_rows(job, (50, "a", 1), (51, None, 2)),
    ]
    assert contents(table) == before
    done = job.commit(tasks)
    assert done.counts == MergeCounts(2, 4, 2)
    expected = [row for row in before if row[0] not in (0, 1, 2, 7, 8, 9)]
    expected += [(0, "b", -1), (7, "b", -1), (2, "new", None), (9, "new", 9)]
    assert contents(table) == sorted([*expected, (50, "a", 1), (51, None, 2)], key=repr)
    if table.mode == "strong":
        last = table.snapshots().to_pylist()[-1]
        assert (last["operation"], table.newest_snapshot) == ("merge", done.written.snapshot)
        changes = table.changes(last["id"] - 1, columns=["id", "k", "n"]).to_arrow().to_pylist()
        pairs: dict[int, list[Any]] = {}
        alone = []
        for each in changes:
            if each["_update"] is None:
                alone.append((each["_change"], each["id"]))
            else:
                image = (each["_change"], each["id"], each["k"], each["n"])
                pairs.setdefault(each["_update"], []).append(image)
        assert sorted(alone) == [("delete", 1), ("delete", 8), ("insert", 50), ("insert", 51)]
        was = {row[0]: row for row in before}
        now = {row[0]: row for row in contents(table)}
        expected_pairs = [
            [("update_after", *now[i]), ("update_before", *was[i])] for i in (0, 2, 7, 9)
        ]
        assert sorted(map(sorted, pairs.values()), key=repr) == sorted(expected_pairs, key=repr)


def test_nothing_to_change_is_no_snapshot_and_all_rows_of_a_file_go(table: phalanx.Table) -> None:
    job = begin_job(table, "delete")
    before = table.newest_snapshot
    assert job.commit([]).counts == MergeCounts()
    assert table.newest_snapshot == before
    job = begin_job(table, "delete")
    assert job.commit([change(job, look_up(job), DELETE)]).counts.deleted == 12
    assert contents(table) == []
    assert table.files().num_rows == 0


def test_rows_that_others_changed_are_a_conflict(table: phalanx.Table) -> None:
    first, second = begin_job(table), begin_job(table)
    both = [change(job, where(look_up(job), [7]), UPDATE, n=-1) for job in (first, second)]
    appended = (99, "b", 99)
    table.append(rows(appended))
    assert first.commit(both[:1]).counts.updated == 1
    now = contents(table)
    assert appended in now
    with pytest.raises(CommitConflict, match="again"):
        second.commit(both[1:])
    assert contents(table) == now


def test_rows_of_other_files_are_no_conflict(table: phalanx.Table) -> None:
    first, second = begin_job(table), begin_job(table)
    one = change(first, where(look_up(first), [7]), UPDATE, n=-1)
    other = change(second, where(look_up(second), [0, 8]), DELETE)
    first.commit([one])
    second.commit([other])
    assert [row for row in contents(table) if row[0] in (0, 7, 8)] == [(7, "b", -1)]


def test_two_merges_of_a_partition_do_not_both_bring_a_key(root: str, store: Store) -> None:
    table = phalanx.create(
        root, KEYED_SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
    )
    looked = [KeyedLeaves(pa.record_batch({"k": [key]})) for key in "aac"]
    jobs = [begin_job(table, "merge") for _ in looked]
    tasks = [
        insert_rows(job, (place, key, 0))
        for place, (job, key) in enumerate(zip(jobs, "aac", strict=True))
    ]
    read = [ReadFootprint(each.find_versions, jobs[0].job.version) for each in looked]
    jobs[0].commit(tasks[:1], read[:1])
    with pytest.raises(CommitConflict, match="and this one has read it"):
        jobs[1].commit(tasks[1:2], read[1:2])
    with pytest.raises(CommitConflict, match="and this one has read it"):
        jobs[1].commit(tasks[1:2], [everything(jobs[1])])
    jobs[2].commit(tasks[2:], read[2:])
    assert contents(table) == [(0, "a", 0), (2, "c", 0)]


def everything(job: RowJob) -> ReadFootprint:
    """All rows, in the state in which the job began."""
    return ReadFootprint(lambda now: versions_of(plan_scan(now, TRUE).leaves), job.job.version)


# A concurrent change, and whether it conflicts with a job that has read all rows.
OTHERS: dict[str, tuple[Callable[[phalanx.Table], object], bool]] = {
    "append": (lambda table: table.append(rows((50, "a", 1), (51, "new", 1))), True),
    "rewrite": (lambda table: table.rewrite(min_input_files=1, rewrite_all=True), True),
    "delete": (lambda table: table.delete("id = 7"), False),
    "update": (lambda table: table.update("id = 7", {"n": "0"}), False),
    "drop": (lambda table: table.drop_partitions("k = 'b'"), False),
    "overwrite": (lambda table: table.overwrite(rows((7, "b", 0)), "k = 'b'"), False),
    "rename": (lambda table: table.rename_column("n", "m"), False),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_was_read_may_only_have_got_rows_by_appends(
    root: str, store: Store, other: str
) -> None:
    table = phalanx.create(
        root, KEYED_SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
    )
    table.append(rows(*((i, "abc"[i % 3], i) for i in range(6, 12))))
    table.append(rows(*((i, "abc"[i % 3], i) for i in range(12, 18))))
    change, is_blind = OTHERS[other]
    job, plain = begin_job(table, "merge"), table.begin_write()
    inserts = insert_rows(job, (100, "c", 0))
    files = plain.write(rows((101, "c", 0)).to_reader())
    change(table)
    if is_blind:
        job.commit([inserts], [everything(job)])
        plain.commit([files])
        assert {100, 101} < {row[0] for row in contents(table)}
    else:
        before = table.snapshots().num_rows
        with pytest.raises(CommitConflict, match="Cannot commit to"):
            job.commit([inserts], [everything(job)])
        with pytest.raises(CommitConflict, match="Cannot commit to"):
            plain.commit([files], read=[everything(job)])
        assert table.snapshots().num_rows == before


def test_rows_that_were_computed_from_others_are_no_append(root: str, store: Store) -> None:
    """A job may begin after its read: a change between the two is a conflict."""
    table = phalanx.create(
        root, KEYED_SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
    )
    table.append(rows((1, "a", 1)))
    before = begin_job(table, "merge")
    first, second = table.begin_write(), table.begin_write()
    tasks = [job.write(rows((2, "a", 2)).to_reader()) for job in (first, second)]
    first.commit(tasks[:1], read=[everything(before)])
    third = table.begin_write()
    last = third.write(rows((2, "a", 2)).to_reader())
    for job, task in ((second, tasks[1]), (third, last)):
        with pytest.raises(CommitConflict, match="and this one has read it"):
            job.commit([task], read=[everything(before)])
    third.commit([last], read=[everything(begin_job(table, "merge"))])
    assert table.snapshots()["operation"].to_pylist()[2:] == ["insert", "insert"]


@pytest.mark.parametrize(
    "facts",
    [
        {"id": "../elsewhere"},
        {"id": "0" * 31},
        {"version": 0},
        {"version": 10**30},
        {"began": datetime(2024, 1, 1)},
        {"operation": "rewrite"},
    ],
)
def test_a_job_is_taken_up_by_its_facts(table: phalanx.Table, facts: dict[str, Any]) -> None:
    job = begin_job(table, "merge")
    known = {key: getattr(job.job, key) for key in ("root", "id", "version", "began", "operation")}
    known["root"] = Location.of(job.job.root.uri, job.job.root.storage_options)
    assert RowJob.resume(**known) == job
    with pytest.raises((ValueError, PhalanxError)):
        RowJob.resume(**{**known, **facts})


def test_only_leaves_that_can_hold_a_key_are_looked_at(table: phalanx.Table) -> None:
    job = begin_job(table, "merge")

    def look_up_ids(**keys: list[Any]) -> set[int]:
        arrays = {
            name: pa.array(each, KEYED_SCHEMA.field(name).type) for name, each in keys.items()
        }
        return set(look_up(job, KeyedLeaves(pa.record_batch(arrays)))["id"].to_pylist())

    older, newer = set(range(6)), set(range(6, 12))
    assert look_up_ids(k=["c"]) == older | {8, 11}
    bucket = look_up_ids(id=[0], k=["nobody"])
    assert 0 in bucket
    assert bucket < older
    assert look_up_ids(id=[0]) == bucket | newer


def test_a_row_that_is_changed_twice_is_refused(table: phalanx.Table) -> None:
    before = contents(table)
    job = begin_job(table, "merge")
    there = where(look_up(job), [7])
    with pytest.raises(SchemaMismatch, match="more than once"):
        job.commit([change(job, there, UPDATE, n=n) for n in (1, 2)])
    assert contents(table) == before
    assert job.commit([change(job, there, DELETE) for _ in range(2)]).counts.deleted == 1


def test_a_marker_is_committed_once(table: phalanx.Table) -> None:
    if table.mode == "weak":
        with pytest.raises(PhalanxError, match="weak mode"):
            begin_job(table, "merge", "once")
        return
    first, second = begin_job(table, "merge", "once"), begin_job(table, "merge", "once")
    for job in (first, second, begin_job(table, "merge", "once")):
        done = job.commit([insert_rows(job, (100, "z", 0))])
        assert done.is_repeated is (job is not first)
    assert [row for row in contents(table) if row[0] == 100] == [(100, "z", 0)]


def test_other_layouts_are_refused(root: str, store: Store) -> None:
    options = store.storage_options
    table = phalanx.create(root, KEYED_SCHEMA, ["k"], layout="hive", storage_options=options)
    with pytest.raises(PhalanxError, match="hive layout"):
        begin_job(table)
