"""Dropped partitions: removed at once, restored by a rollback, and forgotten by a vacuum."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import pyarrow as pa
import pytest

import phalanx
from integration.stores import Store
from phalanx.storage.commit.writing import remove_unlisted_leaves
from phalanx.storage.lance.location import Location, clear_shared_session
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.history.incremental_scan import (
    Position,
    Selection,
    find_new_rows,
    find_newest_position,
)
from tables import numbers

SCHEMA = pa.schema([("day", pa.date32()), ("n", pa.int64())])
DAYS = [date(2024, 1, day) for day in (1, 2, 3, 4)]


def rows(days: list[date | None], first: int = 0) -> pa.Table:
    return pa.table([days, list(range(first, first + len(days)))], schema=SCHEMA)


def create_table(root: str | Path, mode: str = "strong", **how: Any) -> phalanx.Table:
    table = phalanx.create(root, SCHEMA, ["day"], transaction=mode, **how)
    table.append(rows([*DAYS, None]))
    return table


def days_of(table: phalanx.Table) -> list[date | None]:
    return table.partitions()["day"].to_pylist()


def test_a_drop_is_one_snapshot_that_a_rollback_undoes(root: str, store: Store) -> None:
    table = create_table(root, storage_options=store.storage_options)
    files = store.files(root)
    assert table.drop_partitions("day < DATE '2024-01-03'") == 2
    assert numbers(table) == [2, 3, 4]
    assert days_of(table) == [*DAYS[2:], None]
    assert table.plan().total_partitions == 3
    changed = {path for path in files.keys() ^ store.files(root).keys() if "__manifest" not in path}
    assert not changed
    last = table.snapshots().to_pylist()[-1]
    assert (last["operation"], last["partitions"], last["rows_removed"]) == (
        "drop_partitions",
        2,
        None,
    )
    assert numbers(table.at(2)) == [0, 1, 2, 3, 4]
    gone = table.diff(2, 3).to_pylist()
    assert [(row["day"], row["rows_added"], row["rows_removed"]) for row in gone] == [
        (DAYS[0], 0, 1),
        (DAYS[1], 0, 1),
    ]
    assert [(row["day"], row["rows_added"]) for row in table.diff(3, 2).to_pylist()] == [
        (DAYS[0], 1),
        (DAYS[1], 1),
    ]
    assert table.rollback(2) == 4
    assert numbers(table) == [0, 1, 2, 3, 4]
    assert days_of(table) == [*DAYS, None]
    assert table.drop_partitions("day < DATE '1999-01-01'") == 0
    assert table.newest_snapshot == 4


def test_the_same_leaf_is_written_again_and_old_snapshots_stay(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    [old] = table.plan("day = DATE '2024-01-01'").partitions
    table.drop_partitions("day = DATE '2024-01-01'")
    table.add_column(pa.field("more", pa.int8()))
    more = rows([DAYS[0]], 10).append_column("more", pa.array([1], pa.int8()))
    table.append(more)
    [new] = table.plan("day = DATE '2024-01-01'").partitions
    assert new.location == old.location
    assert numbers(table) == [1, 2, 3, 4, 10]
    assert lance.dataset(new.location).to_table()["n"].to_pylist() == [10]
    assert numbers(table.at(2)) == [0, 1, 2, 3, 4]
    table.drop_partitions("true")
    assert numbers(table) == []
    table.rollback(2)
    assert numbers(table) == [0, 1, 2, 3, 4]
    assert table.scan("more IS NULL").count_rows() == 5


def test_a_vacuum_removes_what_no_snapshot_reads(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    leaves = {p.location for p in table.plan("day IS NOT NULL").partitions}
    table.drop_partitions("day IS NOT NULL")
    kept = table.vacuum(timedelta(days=1))
    assert kept.files.num_rows == 0
    assert numbers(table.at(2)) == [0, 1, 2, 3, 4]
    table.append(rows([None], 9))
    promised = table.vacuum(timedelta(0), dry_run=True)
    done = table.vacuum(timedelta(0))
    assert promised.files["path"].to_pylist() == done.files["path"].to_pylist()
    assert not any(Path(leaf).exists() for leaf in leaves)
    manifest = lance.dataset(f"{table.uri}/__manifest").to_table(["object_id", "object_type"])
    assert "phalanx_dropped" not in manifest["object_type"].to_pylist()
    clear_shared_session()
    table = phalanx.open(table.uri)
    assert numbers(table) == [4, 9]
    table.append(rows(DAYS, 20))
    assert numbers(table) == [4, 9, 20, 21, 22, 23]


def test_a_vacuum_during_a_write_that_lists_a_partition_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.storage.commit.head.CLOCK_MARGIN", timedelta(0))
    table = create_table(tmp_path / "t")
    table.drop_partitions("day = DATE '2024-01-01'")
    time.sleep(0.02)
    moment = datetime.now(UTC)
    txn = table.transaction().__enter__()
    table.vacuum(datetime.now(UTC) - moment)
    clear_shared_session()
    txn.append(rows([DAYS[1]], 10))
    with pytest.raises(phalanx.PhalanxError):
        txn.append(rows([DAYS[0]], 11))
    txn.__exit__(ValueError, ValueError(), None)
    # The partition is forgotten between the two halves of a transaction.
    table.append(rows([DAYS[0]], 12))
    table.drop_partitions("day = DATE '2024-01-01'")
    time.sleep(0.02)
    moment = datetime.now(UTC)
    txn = table.transaction().__enter__()
    txn.append(rows([DAYS[0]], 13))
    table.vacuum(datetime.now(UTC) - moment)
    with pytest.raises(phalanx.CommitConflict, match="vacuum removed"):
        txn.__exit__(None, None, None)
    clear_shared_session()
    table = phalanx.open(table.uri)
    table.append(rows([DAYS[0]], 14))
    assert numbers(table) == [1, 2, 3, 4, 14]


def test_what_matches_in_part_is_refused(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "t", SCHEMA, [phalanx.month("day")], transaction="strong")
    table.append(rows([*DAYS, date(2024, 2, 1)]))
    for where in ("day < DATE '2024-01-03'", "n = 1"):
        with pytest.raises(phalanx.InvalidPredicate, match=r"v1\(1,\) may match in part.*delete"):
            table.drop_partitions(where)
    # A partition without rows is no obstacle, and the place of rows decides nothing else.
    table.evolve(["day"])
    table.rewrite(target_spec=2)
    assert table.drop_partitions("day < DATE '2024-01-03'") == 2
    assert table.scan().count_rows() == 3


def test_in_weak_mode_partitions_stay_without_rows(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", "weak")
    assert table.drop_partitions("day IS NULL OR day = DATE '2024-01-01'") == 2
    assert table.partitions()["rows"].to_pylist() == [0, 1, 1, 1, 0]
    table.append(rows([None], 9))
    assert numbers(table) == [1, 2, 3, 9]
    assert table.drop_partitions("day IS NULL OR day = DATE '2024-01-01'") == 2
    assert numbers(table) == [1, 2, 3]


def test_weak_mode_forgets_what_was_dropped(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    table.drop_partitions("day = DATE '2024-01-01'")
    table.set_mode("weak")
    table.append(rows([DAYS[0]], 10))
    assert numbers(table) == [1, 2, 3, 4, 10]
    table.set_mode("strong")
    table.drop_partitions("day = DATE '2024-01-01'")
    assert numbers(table) == [1, 2, 3, 4]


def test_transactions_that_meet_at_a_dropped_partition(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    appending = table.transaction().__enter__()
    appending.append(rows([DAYS[0]], 10))
    dropping = table.transaction().__enter__()
    dropping.drop_partitions("day = DATE '2024-01-02'")
    table.append(rows([DAYS[1]], 11))
    with pytest.raises(phalanx.CommitConflict, match="and this one drops it"):
        dropping.__exit__(None, None, None)
    table.drop_partitions("day = DATE '2024-01-01'")
    # Appends do not conflict: the partition is listed again with the new rows only.
    appending.__exit__(None, None, None)
    assert table.scan("day = DATE '2024-01-01'").to_arrow()["n"].to_pylist() == [10]
    # Two drops of the same partition do not conflict.
    first, second = (table.transaction().__enter__() for _ in range(2))
    for txn in (first, second):
        assert txn.drop_partitions("day >= DATE '2024-01-03'") == 2
        txn.__exit__(None, None, None)
    assert (first.snapshot, second.snapshot) == (6, None)
    assert numbers(table) == [1, 4, 10, 11]


def test_streams_read_what_came_before_a_drop(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    table.append(rows([DAYS[0]], 10))
    table.drop_partitions("day = DATE '2024-01-01'")
    table.append(rows([DAYS[0]], 20))
    manifest = Manifest.open(Location.of(table.uri))

    def list_new_numbers(after: int) -> Counter[int]:
        pieces = find_new_rows(
            manifest, Position(after), find_newest_position(manifest), Selection()
        )
        return Counter(
            n
            for piece in pieces
            for batch in piece.scan.read_batches()
            for n in batch["n"].to_pylist()
        )

    assert list_new_numbers(2) == Counter([10, 20])
    assert list_new_numbers(1) == Counter([0, 1, 2, 3, 4, 10, 20])


def test_a_job_writes_to_a_dropped_partition(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    table.drop_partitions("day <= DATE '2024-01-02'")
    job = table.begin_write()
    new = rows([DAYS[0], date(2025, 1, 1)], 10)
    assert job.commit([job.write(new.to_reader()), job.write(new.to_reader())]).rows == 4
    assert numbers(table) == [2, 3, 4, 10, 10, 11, 11]
    assert numbers(table.at(2)) == [0, 1, 2, 3, 4]


def test_the_creator_of_a_leaf_does_not_remove_it_after_another_drop(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    [place] = table.plan("day = DATE '2024-01-01'").partitions
    table.drop_partitions("true")
    manifest = Manifest.open(Location.of(table.uri))
    remove_unlisted_leaves(manifest, [Path(place.location).name])
    assert numbers(table.at(2)) == [0, 1, 2, 3, 4]


def test_stock_clients_do_not_list_it(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    client = lance_namespace.connect("dir", {"root": table.uri})

    def listed() -> int:
        found = 0
        request = lance_namespace.ListNamespacesRequest(id=["v1"])
        for name in client.list_namespaces(request).namespaces:
            tables = client.list_tables(lance_namespace.ListTablesRequest(id=["v1", name]))
            found += len(tables.tables)
        return found

    assert listed() == 5
    table.drop_partitions("day IS NOT NULL")
    assert listed() == 1


# ── retention ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_retention_keeps_what_matches_and_what_is_unknown(tmp_path: Path, mode: str) -> None:
    today = datetime.now(UTC).date()
    ages = [0, 10, 89, 91, 400]
    table = phalanx.create(tmp_path / "t", SCHEMA, ["day"], transaction=mode)
    table.append(rows([*(today - timedelta(days=age) for age in ages), None]))
    keep = "day >= now - 90 days"
    promised = table.retain(keep, dry_run=True)
    assert numbers(table) == [0, 1, 2, 3, 4, 5]
    assert str(promised) == "Would drop 2 of 6 partitions."
    done = table.retain(keep)
    assert done.dropped == promised.dropped
    assert [each.key.values for each in done.dropped] == [
        (today - timedelta(days=400),),
        (today - timedelta(days=91),),
    ]
    assert numbers(table) == [0, 1, 2, 5]
    assert table.retain(keep).to_dict()["dropped"] == (
        [] if mode == "strong" else [each.to_dict() for each in done.dropped]
    )


def test_retention_of_partitions_that_have_rows_to_keep(tmp_path: Path) -> None:
    table = phalanx.create(
        tmp_path / "t", SCHEMA, [phalanx.year("day"), phalanx.month("day")], transaction="strong"
    )
    table.append(rows([date(2023, 12, 31), *DAYS, date(2024, 2, 1)]))
    keep = "day >= DATE '2024-01-03'"
    found = table.retain(keep, dry_run=True)
    assert str(found) == (
        "Would drop 1 of 3 partitions.\n"
        "1 other partition may have rows to keep, and stays whole: v1(2024, 1)."
    )
    assert "Would delete 2 rows" in str(table.retain(keep, rows=True, dry_run=True))
    assert table.retain(keep).rows is None
    assert numbers(table) == [1, 2, 3, 4, 5]
    table.rollback(2)
    done = table.retain(keep, rows=True)
    assert (len(done.dropped), done.rows) == (1, 2)
    assert numbers(table) == [3, 4, 5]
    assert table.snapshots()["operation"].to_pylist()[-1] == "drop_partitions+delete"
    with pytest.raises(phalanx.InvalidPredicate, match="does not decide it"):
        table.retain("n > 3")
    assert table.retain("n > 3", rows=True).rows == 1


def test_a_new_partition_that_others_have_made_and_dropped(tmp_path: Path) -> None:
    """The new partition takes the place of the dropped one: an object has one history."""
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    table = phalanx.create(tmp_path / "once", schema, ["k"], transaction="strong")
    with table.transaction() as transaction:
        transaction.append(pa.table([["a", "b"], [1, 2]], schema=schema))
        other = phalanx.open(table.uri)
        other.append(pa.table([["a"], [3]], schema=schema))
        other.drop_partitions("k = 'a'")
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [1, 2]
    numbers = table.snapshots()["id"].to_pylist()
    states = [sorted(table.at(each).scan().to_arrow()["n"].to_pylist()) for each in numbers]
    assert states == [[], [3], [], [1, 2]]
    changes = table.changes(0).to_arrow().select(["n", "_change"]).to_pylist()
    assert [(each["n"], each["_change"]) for each in changes[:2]] == [(3, "insert"), (3, "delete")]
    assert sorted(each["n"] for each in changes[2:]) == [1, 2]
    table.rollback(numbers[1])
    assert table.scan().to_arrow()["n"].to_pylist() == [3]
