"""Strong mode: many partitions change at once or not at all, and every snapshot can be read."""

from __future__ import annotations

import functools
import operator
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import lance
import lance_namespace
import lancedb
import pyarrow as pa
import pytest
from lance import LanceDataset, LanceOperation
from lance_namespace import ListNamespacesRequest, ListTablesRequest

import phalanx
from integration.job_races import append_in_turns
from integration.stores import Store
from phalanx.errors import CommitConflict, ForeignWrite, PartialWrite, PhalanxError
from phalanx.storage.commit import head, publishing
from phalanx.storage.commit.publishing import publish
from phalanx.storage.lance import versions
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.leaf import leaf
from phalanx.storage.manifest.changes import insert_rows, upsert_rows
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.handle import handle_of
from phalanx.table.transactions import strong_mode as strong
from phalanx.table.transactions import strong_target as staged
from phalanx.table.write.transaction import Transaction
from processes import SERVER
from tables import SCHEMA, rows


def read_rows(table: Any, where: str | None = None) -> list[tuple[str | None, int]]:
    found = table.scan(where).to_arrow().to_pylist()
    return sorted(((row["k"], row["n"]) for row in found), key=str)


def on_main(table: phalanx.Table) -> list[tuple[str | None, int]]:
    """What stock clients see: the newest version of every leaf."""
    options = handle_of(table).root.storage_options
    found = [
        row
        for partition in table.plan().partitions
        for row in lance.dataset(partition.location, storage_options=options).to_table().to_pylist()
    ]
    return sorted(((row["k"], row["n"]) for row in found), key=str)


@pytest.fixture
def table(root: str, store: Store) -> phalanx.Table:
    made = phalanx.create(
        root, SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
    )
    made.append(rows(("a", 1), ("a", 2), ("b", 1)))
    return made


def reopen(table: phalanx.Table) -> phalanx.Table:
    """The same table, as another process would open it."""
    return phalanx.open(table.uri, storage_options=handle_of(table).root.storage_options)


def run(
    table: phalanx.Table, *steps: Callable[[Transaction], object], isolation: str = "snapshot"
) -> None:
    """The steps in one transaction."""
    with table.transaction(isolation) as txn:
        for step in steps:
            step(txn)


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("cut off")


# ── all or nothing ───────────────────────────────────────────────────────────────────────────


def test_statements_become_visible_together(table: phalanx.Table) -> None:
    before = read_rows(table)
    with table.transaction() as txn:
        txn.append(rows(("a", 3), ("c", 1), (None, 7)))
        assert txn.delete("n = 1") == 3
        txn.append(rows(("c", 2)))
        txn.overwrite_partitions(rows(("b", 9)))
        own = [("a", 2), ("a", 3), ("b", 9), ("c", 2), (None, 7)]
        assert read_rows(txn) == sorted(own, key=str)
        assert read_rows(txn, "k = 'c'") == [("c", 2)]
        assert read_rows(table) == read_rows(reopen(table)) == on_main(table) == before
    assert read_rows(table) == read_rows(reopen(table)) == on_main(table) == sorted(own, key=str)
    assert txn.snapshot == 3


def test_an_exception_leaves_nothing(table: phalanx.Table, store: Store) -> None:
    before, folders = read_rows(table), store.folders(table.uri)
    count = table.snapshots().num_rows
    append = functools.partial(Transaction.append, data=rows(("a", 3), ("new", 1)))
    with pytest.raises(RuntimeError, match="cut off"):
        run(table, append, lambda txn: txn.delete("k = 'b'"), fail)
    assert read_rows(table) == on_main(table) == before
    assert store.folders(table.uri) == folders
    assert table.snapshots().num_rows == count
    with table.transaction() as txn:
        pass
    with pytest.raises(PhalanxError, match="over"):
        txn.append(rows(("a", 3)))


def test_nothing_done_makes_no_snapshot(table: phalanx.Table) -> None:
    with table.transaction() as txn:
        assert txn.delete("n = 99") == 0
        assert txn.append(rows()) == 0
    assert table.append(rows()) == 0
    assert txn.snapshot is None
    assert table.snapshots().num_rows == 2


def test_a_scan_keeps_its_snapshot(table: phalanx.Table) -> None:
    scan = table.scan()
    batches = scan.to_batches()
    first = next(batches)
    table.overwrite(rows(("z", 1)))
    table.delete("true")
    seen = [row for batch in [first, *batches] for row in batch.to_pylist()]
    assert len(seen) == scan.count_rows() == 3


def test_one_merge_holds_everything(table: phalanx.Table) -> None:
    version = handle_of(table).refresh().version
    with table.transaction(marker="batch 1") as txn:
        txn.append(rows(("a", 3), ("c", 1)))
        txn.delete("k = 'b'")
    manifest = handle_of(table).refresh()
    assert manifest.version == version + 1
    found = manifest.dataset.to_table().to_pylist()
    assert len({row["object_id"] for row in found}) == len(found)
    tables = {row["object_id"]: row for row in found if row["object_type"] == "table"}
    assert {row["partition_field_k"] for row in tables.values()} == {"a", "b", "c"}
    versions = {
        row["object_id"]: row["read_version"]
        for row in found
        if row["object_type"] == "table_version" and row["object_id"].endswith("$3")
    }
    assert versions == {f"{name}$3": row["read_version"] for name, row in tables.items()}


# ── concurrent writers ───────────────────────────────────────────────────────────────────────


def test_fragments_of_the_manifest_do_not_pile_up(table: phalanx.Table) -> None:
    for number in range(40):
        table.append(rows(("ab"[number % 2], number)))
        manifest = Manifest.open(handle_of(table).root)
        assert len(manifest.dataset.get_fragments()) <= 24
        assert handle_of(table).refresh().list_leaves() == manifest.list_leaves()
    assert len(read_rows(table)) == 43
    assert table.snapshots()["id"].to_pylist() == list(range(1, 43))
    assert len(read_rows(table.at(5))) == 6


def test_appends_are_rebased(table: phalanx.Table) -> None:
    with table.transaction() as txn:
        txn.append(rows(("a", 10), ("new", 10)))
        txn.append(rows(("a", 11), ("new", 11)))
        txn.delete("n = 11")
        reopen(table).append(rows(("a", 20), ("new", 20)))
    expected = [("a", 1), ("a", 2), ("a", 10), ("a", 20), ("b", 1), ("new", 10), ("new", 20)]
    assert read_rows(table) == on_main(table) == sorted(expected, key=str)
    assert table.plan().total_partitions == 3


def test_a_deletion_passes_an_append(table: phalanx.Table) -> None:
    with table.transaction() as txn:
        txn.delete("n <= 2")
        reopen(table).append(rows(("a", 2)))
    assert read_rows(table) == on_main(table) == [("a", 2)]


@pytest.mark.parametrize(
    "other",
    [
        lambda table: table.delete("k = 'a' AND n = 1"),
        lambda table: table.delete("k = 'a' AND n = 2"),
        lambda table: table.overwrite(rows(("a", 5)), "k = 'a'"),
    ],
)
def test_the_same_rows_conflict(
    table: phalanx.Table, other: Callable[[phalanx.Table], object]
) -> None:
    with pytest.raises(CommitConflict, match=r"snapshot 3 changed partition v1\('a',\)"):
        run(
            table,
            lambda txn: txn.delete("k = 'a' AND n = 1"),
            lambda txn: txn.append(rows(("b", 8))),
            lambda _: other(reopen(table)),
        )
    assert ("b", 8) not in read_rows(table)
    table.append(rows(("b", 9)))
    assert ("b", 9) in read_rows(table)


def test_other_partitions_never_conflict(table: phalanx.Table) -> None:
    with table.transaction() as txn:
        txn.overwrite_partitions(rows(("a", 5)))
        reopen(table).overwrite_partitions(rows(("b", 6), ("c", 6)))
    assert read_rows(table) == on_main(table) == [("a", 5), ("b", 6), ("c", 6)]


def test_of_two_replacements_one_conflicts(table: phalanx.Table) -> None:
    other = reopen(table)
    for data in (rows(("fresh", 1)), rows(("fresh", 2)), rows(("a", 3))):
        replace = operator.methodcaller("overwrite_partitions", data)
        with pytest.raises(CommitConflict, match="replace"):
            run(table, replace, lambda _, replace=replace: replace(other))
        assert read_rows(table, f"k = '{data['k'][0]}'") == [
            (data["k"][0].as_py(), data["n"][0].as_py())
        ]
    with pytest.raises(CommitConflict, match="replace"):
        run(
            table,
            lambda txn: txn.overwrite(rows(("x", 1))),
            lambda _: other.overwrite(rows(("y", 1))),
        )
    assert read_rows(table) == [("y", 1)]


def test_a_statement_alone_is_tried_again(
    table: phalanx.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = reopen(table)
    commit = staged.StrongTarget.commit_snapshot
    left = [rows(("a", 100), ("d", 1)), rows(("a", 101), ("d", 2))]

    def commit_late(self: staged.StrongTarget, marker: str | None) -> int | None:
        if left:
            data = left.pop()
            monkeypatch.setattr(staged.StrongTarget, "commit_snapshot", commit)
            other.overwrite_partitions(data)
            monkeypatch.setattr(staged.StrongTarget, "commit_snapshot", commit_late)
        return commit(self, marker)

    monkeypatch.setattr(staged.StrongTarget, "commit_snapshot", commit_late)
    table.overwrite_partitions(rows(("a", 7), ("d", 7)))
    assert read_rows(table) == on_main(table) == [("a", 7), ("b", 1), ("d", 7)]
    assert table.snapshots()["operation"].to_pylist()[2:] == ["overwrite_partitions"] * 3


def test_a_transaction_in_several_threads(table: phalanx.Table) -> None:
    """Each statement builds on the one before it."""
    with table.transaction() as txn, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: txn.append(rows(("a", n), (f"new {n % 2}", n))), range(10, 18)))
    assert table.snapshots()["rows_added"].to_pylist()[-1] == 16
    assert len(read_rows(reopen(table))) == 3 + 16
    assert read_rows(table, "k = 'new 1'") == [("new 1", n) for n in range(11, 18, 2)]


def test_a_manifest_with_stable_row_ids(table: phalanx.Table) -> None:
    """Another writer may have made it: rows do not go by their addresses there."""
    manifest = Manifest.open(handle_of(table).root)
    where, options = manifest.root.subfolder("__manifest"), manifest.root.storage_options
    everything, metadata = manifest.dataset.to_table(), dict(manifest.dataset.metadata)
    mixed = everything.take([*range(3, everything.num_rows), 1, 0, 2])
    lance.LanceDataset.drop(where.uri, options)
    half = everything.num_rows // 2
    lance.write_dataset(
        mixed.slice(0, half), where.uri, enable_stable_row_ids=True, storage_options=options
    )
    dataset = lance.write_dataset(
        mixed.slice(half), where.uri, mode="append", storage_options=options
    )
    dataset.update_metadata(metadata)
    for number in range(10, 22):
        reopen(table).append(rows(("a", number), ("b", number), (f"new {number}", number)))
    assert len(read_rows(reopen(table))) == 3 + 36
    names = Manifest.open(manifest.root).dataset.to_table().column("object_id").to_pylist()
    assert len(names) == len(set(names))


def test_rows_of_a_leaf_with_stable_row_ids_stay_apart(root: str, store: Store) -> None:
    table = phalanx.create(root, SCHEMA, ["k"], storage_options=store.storage_options)
    leaf = f"{root}/mine.lance"
    options = {"storage_options": store.storage_options}
    first = rows(*(("a", n) for n in range(50)))
    made = lance.write_dataset(first, leaf, enable_stable_row_ids=True, **options)
    table.adopt(leaf)
    table.set_mode("strong")
    with table.transaction() as txn:
        txn.append(rows(*(("a", 100 + n) for n in range(5))))
        reopen(table).append(rows(*(("a", 200 + n) for n in range(5))))
    [partition] = table.plan().partitions
    made = lance.dataset(leaf, version=partition.version, **options)
    ids = made.to_table(columns=[], with_row_id=True).column("_rowid").to_pylist()
    assert len(ids) == len(set(ids)) == 60


def test_a_writer_that_is_always_late(
    table: phalanx.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer gives up after its retries; the error names the change and the last winner."""
    change, calls = head.replace_rows, []

    def late(*arguments: Any) -> None:
        calls.append(1)
        with monkeypatch.context() as patch:
            patch.setattr(head, "replace_rows", change)
            reopen(table).append(rows(("other", len(calls))))
        change(*arguments)

    monkeypatch.setattr(head, "retry_conflicts", functools.partial(retry_conflicts, attempts=3))
    monkeypatch.setattr(head, "replace_rows", late)
    said = (
        r"the change of partition v1\('new',\), v1\('a',\) to .* always first, the last one with "
        r"snapshot 5\. Nothing was changed"
    )
    with pytest.raises(CommitConflict, match=said):
        table.append(rows(("a", 9), ("new", 9)))
    assert len(calls) == 3
    assert read_rows(reopen(table), "n = 9") == []
    assert read_rows(table, "k = 'other'") == [("other", 1), ("other", 2), ("other", 3)]


def test_serializable_sees_phantoms(table: phalanx.Table) -> None:
    for data in (rows(("a", 50)), rows(("new", 50))):
        steps = [
            lambda txn: txn.append(rows(("b", sum(n for _, n in read_rows(txn, "k <> 'b'"))))),
            lambda _, data=data: reopen(table).append(data),
        ]
        with pytest.raises(CommitConflict, match="has read it"):
            run(table, *steps, isolation="serializable")
    with table.transaction("serializable") as txn:
        txn.append(rows(("c", sum(n for _, n in read_rows(txn, "k = 'a'")))))
        reopen(table).append(rows(("b", 1), ("other", 1)))
    assert ("c", 53) in read_rows(table)


def test_a_compaction_changes_no_row_that_was_read(table: phalanx.Table) -> None:
    for n in range(10, 16):
        table.append(rows(("a", n), ("b", n)))
    expected = read_rows(table)
    with table.transaction("serializable") as txn:
        txn.append(rows(("c", sum(n for _, n in read_rows(txn, "k = 'a'")))))
        txn.delete("k = 'other'")
        assert reopen(table).rewrite(rewrite_all=True, where="k IN ('a', 'b')").groups
        reopen(table).create_index("n", "BTREE", min_rows=1)
    assert [k for k, _ in read_rows(table)].count("c") == 1
    assert set(read_rows(table)) >= {each for each in expected if each[0] in ("a", "b")}
    table.evolve("k, bucket(2, n)")
    with table.transaction("serializable") as txn:
        # The rows are in other partitions afterwards, and the same ones.
        before = read_rows(txn)
        reopen(table).rewrite(target_spec=2)
        txn.append(rows(("d", len(before))))
    assert read_rows(table) == sorted([*before, ("d", len(before))], key=str)
    with pytest.raises(CommitConflict, match="has read it"):
        run(
            table,
            lambda txn: txn.append(rows(("c", len(read_rows(txn, "k = 'a'"))))),
            lambda _: reopen(table).rewrite(rewrite_all=True),
            lambda _: reopen(table).append(rows(("a", 99))),
            isolation="serializable",
        )


@pytest.mark.parametrize("meanwhile", ["nothing", "append", "rollback", "drop again"])
def test_an_append_to_a_dropped_partition(table: phalanx.Table, meanwhile: str) -> None:
    """Appends never conflict: the partition is listed again, with the new rows only."""
    before = read_rows(table, "k = 'a'")
    other = reopen(table)
    with table.transaction() as txn:
        txn.append(rows(("a", 70), ("b", 70)))
        other.drop_partitions("k = 'a'")
        if meanwhile in ("append", "drop again"):
            other.append(rows(("a", 60)))
        if meanwhile == "drop again":
            other.drop_partitions("k = 'a'")
        if meanwhile == "rollback":
            snapshot = other.newest_snapshot
            assert snapshot is not None
            other.rollback(snapshot - 1)
    kept = {"append": [("a", 60)], "rollback": before}.get(meanwhile, [])
    assert read_rows(table, "k = 'a'") == sorted([*kept, ("a", 70)], key=str)
    assert on_main(table) == read_rows(table)
    assert ("b", 70) in read_rows(table)
    newest = table.newest_snapshot
    assert newest is not None
    changes = table.changes(newest - 1).to_arrow()
    assert sorted(zip(changes["k"].to_pylist(), changes["_change"].to_pylist(), strict=True)) == [
        ("a", "insert"),
        ("b", "insert"),
    ]
    assert read_rows(table.at(2), "k = 'a'") == before
    table.vacuum(timedelta(0))
    assert read_rows(reopen(table), "k = 'a'") == sorted([*kept, ("a", 70)], key=str)


def test_removing_rows_of_a_dropped_partition_is_reported(table: phalanx.Table) -> None:
    with pytest.raises(CommitConflict, match="removed it"):
        run(
            table,
            lambda txn: txn.append(rows(("a", 70))),
            lambda txn: txn.delete("k = 'a' AND n = 1"),
            lambda _: reopen(table).drop_partitions("k = 'a'"),
        )
    assert read_rows(table, "k = 'a'") == []


def test_write_skew(table: phalanx.Table) -> None:
    """Each transaction reads two partitions and empties one: only `serializable` refuses that."""
    table.overwrite(rows(("a", 1), ("b", 1)))

    def write_skew(isolation: str) -> None:
        with table.transaction(isolation) as one:
            assert len(read_rows(one)) == 2
            one.delete("k = 'a'")
            with reopen(table).transaction(isolation) as other:
                assert len(read_rows(other)) == 2
                other.delete("k = 'b'")

    with pytest.raises(CommitConflict, match="has read it"):
        write_skew("serializable")
    assert read_rows(table) == [("a", 1)]
    table.overwrite(rows(("a", 1), ("b", 1)))
    write_skew("snapshot")
    assert read_rows(table) == []


def test_a_change_of_the_table_ends_transactions(table: phalanx.Table) -> None:
    changes: list[Callable[[phalanx.Table], object]] = [
        lambda table: table.add_column(pa.field("more", pa.int32())),
        lambda table: table.drop_column("more"),
        lambda table: table.evolve([phalanx.bucket("n", 2)]),
        lambda table: table.set_mode("weak"),
    ]
    for change in changes:
        steps = [
            operator.methodcaller("delete", "k = 'a'"),
            lambda _, change=change: change(reopen(table)),
        ]
        with pytest.raises(CommitConflict, match="schema"):
            run(table, *steps)
    assert read_rows(table) == on_main(table) == [("a", 1), ("a", 2), ("b", 1)]


def test_a_change_that_was_cut_off_is_completed(
    table: phalanx.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(strong.head, "commit", fail)
        with pytest.raises(RuntimeError, match="cut off"):
            table.add_column(pa.field("more", pa.int32()))
    assert table.scan().to_arrow().column_names == ["k", "n", "more"]
    more = rows(("a", 3)).append_column("more", pa.array([5], pa.int32()))
    reopen(table).append(more)
    assert table.scan("k = 'a'").to_arrow()["more"].to_pylist() == [None, None, 5]
    assert table.snapshots()["operation"].to_pylist() == [
        "create",
        "append",
        "add_column",
        "append",
    ]


def test_a_marker_outlives_weak_mode(table: phalanx.Table) -> None:
    for _ in range(2):
        with table.transaction(marker="batch 1") as txn:
            txn.append(rows(("k", 1)))
        table.set_mode("weak")
        table.set_mode("strong")
    assert read_rows(table, "k = 'k'") == [("k", 1)]
    with table.transaction(marker="batch 2") as txn:
        txn.append(rows(("k", 2)))
    assert read_rows(table, "k = 'k'") == [("k", 1), ("k", 2)]


@pytest.mark.parametrize("marker", [5, "a\nb", "\ud800", b"x"])
def test_what_cannot_be_a_marker(table: phalanx.Table, marker: Any) -> None:
    with pytest.raises(PhalanxError, match="Cannot mark a transaction as"):
        table.transaction(marker=marker)


def test_a_marker_commits_once(table: phalanx.Table) -> None:
    snapshots = []
    for _ in range(3):
        with reopen(table).transaction(marker="batch 7") as txn:
            txn.append(rows(("a", 70), ("new", 70)))
        snapshots.append(txn.snapshot)
    assert snapshots == [3, 3, 3]
    assert read_rows(table, "n = 70") == [("a", 70), ("new", 70)]
    with table.transaction(marker="batch 8") as txn:
        txn.append(rows(("a", 70)))
        with reopen(table).transaction(marker="batch 8") as other:
            other.append(rows(("a", 70)))
    assert txn.snapshot == other.snapshot == 4
    assert read_rows(table, "n = 70") == [("a", 70), ("a", 70), ("new", 70)]


def test_racing_processes_lose_nothing(table: phalanx.Table) -> None:
    options = handle_of(table).root.storage_options
    # A commit is hundreds of requests there when others commit too, and the server is slow.
    numbers = range(100, 108 if handle_of(table).root.is_local else 103)
    writers = [
        SERVER.Process(target=append_in_turns, args=(table.uri, options, number))
        for number in numbers
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * len(numbers)
    found = Counter(read_rows(table, "n >= 100"))
    expected = Counter(
        (k, number)
        for number in numbers
        for turn in range(4)
        for k in ("a", f"shared {turn}", f"own {number}")
    )
    assert found == expected
    assert on_main(table) == read_rows(table)
    snapshots = table.snapshots()
    last = 2 + 4 * len(numbers)
    assert snapshots["id"].to_pylist() == list(range(1, last + 1))
    times = snapshots["time"].to_pylist()
    assert times == sorted(times)
    # Every snapshot has whole transactions: three rows each.
    counts = [table.at(each).scan("n >= 100").count_rows() for each in range(2, last + 1)]
    assert counts == list(range(0, 3 * (last - 1), 3))


# ── snapshots ────────────────────────────────────────────────────────────────────────────────


def test_snapshots_tell_what_happened(table: phalanx.Table) -> None:
    table.delete("n = 1")
    with table.transaction() as txn:
        txn.append(rows(("a", 3), ("c", 3)))
        txn.delete("k = 'a' AND n = 2")
    found = table.snapshots()
    assert found.schema.field(0).equals(pa.field("id", pa.int64()))
    assert found.schema.field("time").type == pa.timestamp("us", "UTC")
    columns = ["id", "operation", "partitions", "rows_added", "rows_removed"]
    assert [tuple(row.values()) for row in found.select(columns).to_pylist()] == [
        (1, "create", 0, 0, 0),
        (2, "append", 2, 3, 0),
        (3, "delete", 2, 0, 2),
        (4, "append+delete", 2, 2, 1),
    ]


def test_time_travel(table: phalanx.Table) -> None:
    table.append(rows(("c", 3)))
    table.rename_column("n", "m")
    table.delete("k = 'a'")
    times = table.snapshots()["time"].to_pylist()
    states = [[], [("a", 1), ("a", 2), ("b", 1)], [("a", 1), ("a", 2), ("b", 1), ("c", 3)]]
    for number, state in enumerate(states, 1):
        for at in (
            number,
            times[number - 1],
            times[number - 1].astimezone(UTC).replace(tzinfo=None),
        ):
            assert read_rows(table.at(at)) == state
    assert table.at(4).scan().to_arrow().column_names == ["k", "m"]
    assert table.at(datetime.now(UTC) + timedelta(days=1)).scan().count_rows() == 2
    old = table.at(3)
    assert old.plan("k = 'c'").scanned_partitions == 1
    assert sum(old.partitions()["rows"].to_pylist()) == 4
    for change in (
        lambda: old.append(rows(("a", 1))),
        lambda: old.delete("true"),
        lambda: old.evolve([]),
        lambda: old.drop_column("n"),
        lambda: old.set_mode("weak"),
        lambda: old.transaction(),
        lambda: old.rollback(1),
    ):
        with pytest.raises(PhalanxError, match="read-only"):
            change()
    for wrong in (0, 99, times[0] - timedelta(seconds=1)):
        with pytest.raises(PhalanxError, match="no snapshot"):
            table.at(wrong)


def test_snapshots_by_the_ids_that_are_listed(table: phalanx.Table) -> None:
    listed = table.snapshots()["id"]
    assert read_rows(table.at(listed[0])) == []
    assert read_rows(table.at(listed.to_numpy()[1])) == read_rows(table)
    for wrong in (True, "1", 1.0, None):
        with pytest.raises(PhalanxError, match="expected its id"):
            table.at(wrong)  # type: ignore[arg-type]


def test_an_unreadable_head(table: phalanx.Table) -> None:
    manifest = Manifest.open(handle_of(table).root)
    upsert_rows(manifest, pa.table({"object_id": [head.HEAD_ROW_ID], "object_type": ["phalanx"]}))
    for attempt in (lambda: table.append(rows(("a", 1))), lambda: table.vacuum()):
        with pytest.raises(PhalanxError, match="Cannot read the newest snapshot"):
            attempt()


def test_rollback_is_a_new_snapshot(table: phalanx.Table) -> None:
    table.append(rows(("c", 3), ("a", 9)))
    table.add_column(pa.field("more", pa.int32()))
    table.delete("k = 'b'")
    assert table.rollback(2) == 6
    assert read_rows(table) == on_main(table) == [("a", 1), ("a", 2), ("b", 1)]
    assert table.scan().to_arrow().column_names == ["k", "n", "more"]
    assert table.rollback(3) == 7
    assert read_rows(table) == on_main(table) == [("a", 1), ("a", 2), ("a", 9), ("b", 1), ("c", 3)]
    assert read_rows(table.at(6)) == [("a", 1), ("a", 2), ("b", 1)]
    table.append(rows(("a", 4)).append_column("more", pa.array([1], pa.int32())))
    assert ("a", 4) in read_rows(table)


def test_diff(table: phalanx.Table) -> None:
    table.append(rows(("c", 3), ("c", 4), ("a", 9)))
    table.delete("k = 'a' AND n = 1")
    found = table.diff(2, 4)
    changed = {row["k"]: (row["rows_added"], row["rows_removed"]) for row in found.to_pylist()}
    assert changed == {"a": (1, 1), "c": (2, 0)}
    back = {
        row["k"]: (row["rows_added"], row["rows_removed"]) for row in table.diff(4, 2).to_pylist()
    }
    assert back == {"a": (1, 1), "c": (0, 2)}
    assert table.diff(3, 3).num_rows == 0
    assert found["from_version"].to_pylist()[1] is None


def counts(table: phalanx.Table, a: int, b: int) -> list[tuple[int, int]]:
    return [(row["rows_added"], row["rows_removed"]) for row in table.diff(a, b).to_pylist()]


def test_diff_over_promotions_of_every_column(root: str, store: Store) -> None:
    schema = pa.schema([("n", pa.int8())])

    def numbers(kind: pa.DataType, *values: int) -> pa.Table:
        return pa.table([pa.array(values, kind)], names=["n"])

    options = store.storage_options
    table = phalanx.create(root, schema, [], transaction="strong", storage_options=options)
    table.append(numbers(pa.int8(), 1, 2, 3))  # 2
    table.promote_column("n", pa.int16())  # 3
    table.append(numbers(pa.int16(), 4, 5))  # 4
    table.delete("n = 1")  # 5
    table.promote_column("n", pa.int64())  # 6
    assert counts(table, 2, 3) == counts(table, 3, 2) == [(0, 0)]
    assert counts(table, 2, 6) == [(2, 1)]
    assert counts(table, 6, 2) == [(1, 2)]
    assert counts(table, 4, 6) == [(0, 1)]
    # The same rows, promoted once more.
    table.rollback(2)  # 7
    assert table.snapshots()["rows_added"].to_pylist()[-1] == 1
    assert table.snapshots()["rows_removed"].to_pylist()[-1] == 2
    assert counts(table, 2, 7) == [(0, 0)]
    assert counts(table, 6, 7) == [(1, 2)]
    # The same number of other rows, under a number that was used before.
    table.append(numbers(pa.int64(), 6, 7))  # 8
    assert counts(table, 4, 8) == counts(table, 8, 4) == [(2, 2)]
    assert counts(table, 6, 8) == [(3, 2)]
    table.overwrite(numbers(pa.int64(), 1, 2, 3))  # 9
    assert counts(table, 2, 9) == [(3, 3)]


def test_diff_over_a_promotion_after_vacuum(root: str, store: Store) -> None:
    schema = pa.schema([("n", pa.int8())])
    options = store.storage_options
    table = phalanx.create(root, schema, [], transaction="strong", storage_options=options)
    table.append(pa.table({"n": [1, 2]}, schema))
    table.promote_column("n", pa.int64())
    table.rollback(2)
    table.vacuum(timedelta(0))
    table.append(pa.table({"n": [3]}))
    [*_, first, last] = table.snapshots()["id"].to_pylist()
    assert counts(table, first, last) == [(1, 0)]


# ── modes ────────────────────────────────────────────────────────────────────────────────────


def test_weak_mode_names_strong_mode(root: str, store: Store) -> None:
    table = phalanx.create(root, SCHEMA, ["k"], storage_options=store.storage_options)
    table.append(rows(("a", 1)))
    assert table.snapshots().num_rows == 0
    assert table.snapshots().schema.names[0] == "id"
    for call in (
        lambda: table.at(1),
        lambda: table.rollback(1),
        lambda: table.diff(1, 2),
        lambda: table.transaction(),
    ):
        with pytest.raises(PhalanxError, match="strong mode"):
            call()


def test_into_strong_mode_and_back(root: str, store: Store) -> None:
    table = phalanx.create(root, SCHEMA, ["k"], storage_options=store.storage_options)
    table.append(rows(("a", 1), ("b", 1)))
    table.append(rows(("a", 2)))
    for _ in range(2):
        before = read_rows(table)
        table.set_mode("strong")
        table.set_mode("strong")
        assert reopen(table).mode == "strong"
        assert read_rows(table) == read_rows(table.at(1)) == before
        assert table.snapshots()["operation"].to_pylist() == ["set_mode"]
        table.append(rows(("a", 3), ("c", 3)))
        table.delete("n = 1")
        before = read_rows(table)
        table.set_mode("weak")
        table.set_mode("weak")
        assert reopen(table).mode == "weak"
        assert read_rows(table) == on_main(table) == before
        found = handle_of(table).refresh().dataset.to_table()
        assert set(found["object_type"].to_pylist()) == {"namespace", "table"}
        assert found["read_version"].null_count == found.num_rows
        table.append(rows(("a", 4)))
        table.overwrite_partitions(rows(("b", 1)))
    with pytest.raises(PhalanxError, match="mode 'other'"):
        table.set_mode("other")


def test_a_weak_writer_notices_the_new_mode(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = phalanx.create(root, SCHEMA, ["k"], storage_options=store.storage_options)
    table.append(rows(("a", 1)))
    other = reopen(table)
    ensure = phalanx.table.write.incoming_rows.write_rows

    def slow(*arguments: Any) -> Any:
        other.set_mode("strong")
        return ensure(*arguments)

    monkeypatch.setattr(phalanx.table.write.incoming_rows, "write_rows", slow)
    with pytest.raises(PartialWrite, match=r"strong mode.*v1\('a',\)"):
        table.append(rows(("a", 2)))
    monkeypatch.undo()
    assert read_rows(table) == [("a", 1)]
    table.append(rows(("a", 3)))
    assert read_rows(table) == [("a", 1), ("a", 3)]
    assert table.partition(k="a").count_rows() == 2
    location = table.plan().partitions[0].location
    main = lance.dataset(location, storage_options=store.storage_options)
    assert sorted(main.to_table()["n"].to_pylist()) == [1, 3]


@pytest.mark.parametrize("dies", [False, True])
def test_a_late_weak_commit_blocks_nothing(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """One of two partitions is committed in time, the other late, perhaps by a writer that dies."""
    table = phalanx.create(root, SCHEMA, ["k"], storage_options=store.storage_options)
    table.append(rows(("a", 1), ("b", 1)))
    other = reopen(table)
    commit = leaf.apply_change

    def slow(location: Any, *arguments: Any, **options: Any) -> Any:
        if "b" in places[location.uri]:
            while not in_time:
                time.sleep(0.001)
            other.set_mode("strong")
        done = commit(location, *arguments, **options)
        in_time.append(location)
        if dies and len(in_time) == 2:
            raise KeyboardInterrupt
        return done

    places = {each.location: each.key.values for each in table.plan().partitions}
    in_time: list[Any] = []
    monkeypatch.setattr(leaf, "apply_change", slow)
    expected = KeyboardInterrupt if dies else PartialWrite
    with pytest.raises(expected, match=None if dies else r"Written: v1\('a',\)\. Not .*v1\('b',\)"):
        table.append(rows(("a", 2), ("b", 2)))
    monkeypatch.undo()
    assert read_rows(table) == [("a", 1), ("a", 2), ("b", 1)]
    table.delete("k = 'b'")
    table.append(rows(("b", 3)))
    table.set_mode("weak")
    assert read_rows(table) == [("a", 1), ("a", 2), ("b", 3)]
    assert not [each for each in table.health() if each.kind == "foreign-writes"]


def test_a_foreign_write_below_a_late_one_is_reported(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = phalanx.create(root, SCHEMA, ["k"], storage_options=store.storage_options)
    table.append(rows(("a", 1)))
    other, location = reopen(table), table.plan().partitions[0].location
    write = phalanx.table.write.incoming_rows.write_rows

    def slow(*arguments: Any) -> Any:
        other.set_mode("strong")
        lance.write_dataset(
            rows(("a", 7)), location, mode="append", storage_options=store.storage_options
        )
        return write(*arguments)

    monkeypatch.setattr(phalanx.table.write.incoming_rows, "write_rows", slow)
    with pytest.raises(PartialWrite):
        table.append(rows(("a", 2)))
    monkeypatch.undo()
    with pytest.raises(ForeignWrite, match="outside Phalanx"):
        table.append(rows(("a", 3)))


# What `restore_as_next` calls before it stages the version, and before it puts it in place.
_STEPS_OF_RESTORE = {"staged": "open_store", "put": "set_manifest_version"}


@pytest.mark.parametrize("step", _STEPS_OF_RESTORE)
def test_a_late_restore_fails(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """While a writer is about to restore its snapshot, the table becomes weak and is written."""
    table = phalanx.create(
        root, SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
    )
    table.append(rows(("a", 1)))
    weak, original = reopen(table), getattr(versions, _STEPS_OF_RESTORE[step])

    def slow(*arguments: Any) -> Any:
        monkeypatch.undo()
        weak.set_mode("weak")
        weak.append(rows(("a", 3)))
        weak.delete("n = 1")
        return original(*arguments)

    monkeypatch.setattr(versions, _STEPS_OF_RESTORE[step], slow)
    table.append(rows(("a", 2)))
    assert read_rows(table) == on_main(table) == [("a", 2), ("a", 3)]
    weak.append(rows(("a", 4)))
    assert read_rows(table) == [("a", 2), ("a", 3), ("a", 4)]


def test_a_lost_answer_is_no_conflict(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store repeats a request that took effect, and then reports that the file exists."""
    table = phalanx.create(
        root, SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
    )
    table.append(rows(("a", 1)))
    location = handle_of(table).root.leaf(table.plan().partitions[0].location)
    main = location.open_leaf()
    open_store = versions.open_store

    class Repeating:
        def __init__(self, inner: Any) -> None:
            self.get = inner.get
            self._put = inner.put

        def put(self, path: str, *arguments: Any, **options: Any) -> None:
            self._put(path, *arguments, **options)
            self._put(path, *arguments, **options)

    monkeypatch.setattr(versions, "open_store", lambda each: Repeating(open_store(each)))
    versions.restore_as_next(location, main, main.version)
    assert location.open_leaf().version == main.version + 1
    with pytest.raises(OSError, match="Commit conflict"):
        versions.restore_as_next(location, main, main.version)
    assert location.open_leaf().version == main.version + 1


def test_a_publisher_leaves_a_table_alone_that_became_weak(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher reads the manifest; the table becomes weak before it opens the leaves."""
    table = phalanx.create(
        root, SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
    )
    table.append(rows(("a", 1)))
    weak, locations_of = reopen(table), publishing.locations_of

    def slow(*arguments: Any) -> Any:
        monkeypatch.undo()
        found = locations_of(*arguments)
        weak.set_mode("weak")
        weak.append(rows(("a", 3)))
        weak.delete("n = 1")
        return found

    monkeypatch.setattr(publishing, "locations_of", slow)
    table.append(rows(("a", 2)))
    assert read_rows(table) == on_main(table) == [("a", 2), ("a", 3)]


@pytest.mark.parametrize("before", [True, False])
def test_an_older_snapshot_is_not_published_to_a_table_that_became_weak(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """A slow writer publishes its snapshot; another has committed a later one, and left strong.

    The slow writer restores before or after the other has changed the mode.
    """
    table = phalanx.create(
        root, SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
    )
    table.append(rows(("a", 1), ("b", 1)))
    other, commit = reopen(table), LanceDataset.commit

    def slow(dataset: Any, operation: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(operation, LanceOperation.Restore):
            return commit(dataset, operation, *arguments, **options)
        monkeypatch.undo()
        if before:
            done = commit(dataset, operation, *arguments, **options)
        other.append(rows(("a", 3)))
        other.set_mode("weak")
        return done if before else commit(dataset, operation, *arguments, **options)

    monkeypatch.setattr(LanceDataset, "commit", slow)
    table.append(rows(("a", 2)))
    expected = [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    assert read_rows(table) == on_main(table) == expected
    other.append(rows(("a", 4)))
    assert read_rows(table) == sorted([*expected, ("a", 4)])


# ── readers ──────────────────────────────────────────────────────────────────────────────────


def test_appendix_c_opens(root: str, store: Store) -> None:
    """NULL on the rows of the tables: the highest `table_version` row counts."""
    table = phalanx.create(root, SCHEMA, ["k"], storage_options=store.storage_options)
    table.append(rows(("a", 1), ("b", 1)))
    table.append(rows(("a", 2), ("b", 2)))
    manifest = handle_of(table).refresh()
    ids = {
        p.key.values[0]: f"{name}"
        for p, name in zip(table.plan().partitions, manifest.leaf_versions(), strict=True)
    }
    insert_rows(
        manifest,
        pa.table(
            {
                "object_id": [f"{ids['a']}$9", f"{ids['a']}$10", f"{ids['b']}$1"],
                "object_type": ["table_version"] * 3,
                "metadata": ["{}"] * 3,
                # A new leaf has the record of its owner in version 2.
                "read_version": pa.array([4, 3, 4], pa.uint64()),
            }
        ),
    )
    manifest.load_latest().dataset.update_metadata({"phalanx.mode": ""})
    opened = reopen(table)
    assert opened.mode == "strong"
    assert read_rows(opened) == [("a", 1), ("b", 1), ("b", 2)]
    opened.append(rows(("a", 3)))
    assert read_rows(opened) == on_main(opened) == [("a", 1), ("a", 3), ("b", 1), ("b", 2)]
    # The numbers of earlier versions are not used again.
    assert opened.snapshots()["id"].to_pylist() == [11, 12]
    assert read_rows(opened.at(11)) == [("a", 1), ("b", 1), ("b", 2)]


def test_stock_readers_see_the_last_commit(table: phalanx.Table, store: Store) -> None:
    if store.storage_options is not None:
        pytest.skip("lancedb does not pass storage options on to the leaf")
    table.append(rows(("a", 3)))
    table.delete("n = 1")
    names = list(handle_of(table).refresh().leaf_versions())
    database = lancedb.connect_namespace("dir", {"root": table.uri})
    for kind, properties in (
        ("dir", {"root": table.uri}),
        ("phalanx.PartitionedNamespace", {"root": table.uri}),
    ):
        stock = lance_namespace.connect(kind, properties)
        assert set(stock.list_namespaces(ListNamespacesRequest(id=[])).namespaces) == {"v1"}
        assert not stock.list_tables(ListTablesRequest(id=[])).tables
        seen = []
        for name in names:
            *path, leaf = name.split("$")
            assert stock.list_tables(ListTablesRequest(id=path)).tables == [leaf]
            found = lance.dataset(namespace_client=stock, table_id=[*path, leaf]).to_table()
            assert database.open_table(leaf, namespace_path=path).to_arrow() == found
            seen += [(row["k"], row["n"]) for row in found.to_pylist()]
        assert seen == [("a", 2), ("a", 3)]
    assert on_main(table) == read_rows(table) == [("a", 2), ("a", 3)]


def test_main_is_repaired(table: phalanx.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(staged, "publish", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        table.append(rows(("a", 3), ("c", 3)))
        assert on_main(table) == [("a", 1), ("a", 2), ("b", 1)]
        # The next writer completes what this one has left, in whatever partition it writes.
        table.append(rows(("b", 4)))
        assert on_main(table) == sorted({*read_rows(table)} - {("b", 4)})
    assert len(read_rows(table)) == 6
    reopen(table).append(rows(("d", 5)))
    assert on_main(table) == read_rows(table)


def test_a_foreign_write_delays_no_other_leaf(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishing runs in a few threads, and the error of one leaf does not cancel the others."""
    keys = [f"k{number:02}" for number in range(24)]
    table = phalanx.create(
        root, SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
    )
    table.append(rows(*((key, 1) for key in keys)))
    with monkeypatch.context() as patch:
        patch.setattr(staged, "publish", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        table.append(rows(*((key, 2) for key in keys)))
    first, *others = table.plan().partitions
    foreign = rows((first.key.values[0], 1000))
    options = store.storage_options
    lance.write_dataset(foreign, first.location, mode="append", storage_options=options)
    reopen(table).append(rows((keys[-1], 3)))
    for each in others:
        main = lance.dataset(each.location, storage_options=options).to_table()
        assert main.num_rows == (3 if each.key.values[0] == keys[-1] else 2)


def test_a_late_restore_is_repaired(table: phalanx.Table) -> None:
    """A slow writer puts an older snapshot on main, and then checks again."""
    manifest = handle_of(table).refresh()
    (name, version), *_ = manifest.leaf_versions().items()
    table.append(rows(("a", 3)))
    location = manifest.root.leaf(manifest.list_leaves()[1][".location"][0].as_py())
    main = location.open_leaf()
    lance.LanceDataset.commit(
        main,
        LanceOperation.Restore(version),
        read_version=main.version,
        storage_options=location.storage_options,
    )
    assert ("a", 3) not in on_main(table)
    publish(manifest, [name])
    assert on_main(table) == read_rows(table)


@pytest.mark.parametrize("lagging", [False, True])
def test_a_foreign_write_is_detected(
    table: phalanx.Table, lagging: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lagging:
        with monkeypatch.context() as patch:
            patch.setattr(staged, "publish", lambda *_: (_ for _ in ()).throw(OSError("gone")))
            table.append(rows(("a", 3)))
    before = read_rows(table)
    location = table.plan("k = 'a'").partitions[0].location
    options = handle_of(table).root.storage_options
    lance.write_dataset(rows(("a", 1000)), location, mode="append", storage_options=options)
    assert read_rows(table) == before
    with pytest.raises(ForeignWrite, match=location.rpartition("/")[2].replace("$", r"\$")):
        table.append(rows(("a", 4), ("b", 4)))
    assert read_rows(table) == before
    assert ("a", 1000) in on_main(table)
    table.append(rows(("b", 4)))
    assert ("b", 4) in read_rows(table)
    if lagging:
        with pytest.raises(PhalanxError, match="changed it too"):
            table.keep_foreign_writes()
        assert table.discard_foreign_writes() == [location]
    else:
        assert table.keep_foreign_writes() == [location]
        assert ("a", 1000) in read_rows(table)
        assert table.snapshots()["rows_added"].to_pylist()[-1] == 1
    assert table.keep_foreign_writes() == table.discard_foreign_writes() == []
    table.append(rows(("a", 5)))
    assert on_main(table) == read_rows(table)
    assert ("a", 5) in read_rows(table)


def test_a_foreign_write_between_staging_and_publishing(table: phalanx.Table) -> None:
    location = table.plan("k = 'a'").partitions[0].location
    options = handle_of(table).root.storage_options

    def foreign(_: Transaction) -> None:
        lance.write_dataset(rows(("a", 1000)), location, mode="append", storage_options=options)

    with pytest.raises(ForeignWrite, match="Snapshot 3 is committed"):
        run(table, lambda txn: txn.append(rows(("a", 4))), foreign)
    assert ("a", 4) in read_rows(table)
    assert ("a", 1000) not in read_rows(table)
    assert ("a", 1000) in on_main(table)


def test_the_head_says_where_history_stands(table: phalanx.Table) -> None:
    found = head.read_head(Manifest.open(handle_of(table).root))
    assert found is not None
    assert (found.sequence, found.horizon) == (2, "")
    assert found.epoch == handle_of(table).refresh().properties.epoch
