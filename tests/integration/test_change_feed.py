"""The change feed: inserted, deleted and updated rows, with compactions and schema changes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import phalanx
from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.storage.commit.writing import RowReplacement
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.leaf import write_deletions_at
from phalanx.table.handle import handle_of
from phalanx.table.write import operations
from phalanx.table.write.incoming_rows import LocalRows, Target
from phalanx.table.write.transaction import run_in_transaction
from tables import INT32_SCHEMA, int32_rows


def list_changes(feed: phalanx.ChangeFeed, column: str = "n") -> list[tuple[str, int]]:
    """Return each number with its change, and check that removals come before additions."""
    found = feed.to_arrow()
    happened = found.select(["_snapshot", "_change", column]).to_pylist()
    ids = [each["_snapshot"] for each in happened]
    assert ids == sorted(ids)
    went = [each["_change"] in ("delete", "update_before") for each in happened]
    assert sorted(zip(ids, [not each for each in went], strict=True)) == list(
        zip(ids, [not each for each in went], strict=True)
    )
    return sorted((each["_change"], each[column]) for each in happened)


@pytest.fixture(params=["namespace", "expressions"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> phalanx.Table:
    """Snapshot 2 adds 1 to 4, and snapshot 3 adds 5 and 6."""
    made = phalanx.create(
        tmp_path / "table", INT32_SCHEMA, ["k"], transaction="strong", layout=request.param
    )
    made.append(int32_rows(("a", 1), ("a", 2), ("b", 3), (None, 4)))
    made.append(int32_rows(("a", 5), ("c", 6)))
    return made


def record_opened(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Record the locations of the leaves that are opened from now on."""
    found: set[str] = set()
    real = Location.open_leaf

    def open_leaf(self: Location, version: int | None = None) -> lance.LanceDataset:
        found.add(self.uri)
        return real(self, version)

    monkeypatch.setattr(Location, "open_leaf", open_leaf)
    return found


def test_every_change_of_rows_is_reported(table: phalanx.Table) -> None:
    assert list_changes(table.changes(0)) == [("insert", n) for n in range(1, 7)]
    table.delete("n IN (1, 6)")
    assert list_changes(table.changes(3)) == [("delete", 1), ("delete", 6)]
    table.overwrite(int32_rows(("a", 10), ("new", 11)), "n IN (2, 3, 10, 11)")
    assert list_changes(table.changes(4)) == [
        *[("delete", 2), ("delete", 3)],
        *[("insert", 10), ("insert", 11)],
    ]
    table.overwrite_partitions(int32_rows(("a", 20)))
    assert list_changes(table.changes(5)) == [("delete", 5), ("delete", 10), ("insert", 20)]
    with table.transaction() as txn:
        txn.append(int32_rows(("c", 30), ("d", 31)))
        txn.delete("n IN (20, 30)")
    # Rows that exist only within a transaction are not reported.
    assert list_changes(table.changes(6)) == [("delete", 20), ("insert", 31)]
    assert list_changes(table.changes(2, 4)) == [
        *[("delete", 1), ("delete", 6)],
        *[("insert", 5), ("insert", 6)],
    ]
    assert table.changes(4, 4).to_arrow().num_rows == 0
    times = table.snapshots().column("time").to_pylist()
    assert list_changes(table.changes(times[2], times[3])) == [("delete", 1), ("delete", 6)]


def test_what_changes_no_row_is_not_reported(table: phalanx.Table) -> None:
    table.delete("n = 1")
    table.rewrite(rewrite_all=True)
    table.promote_column("n", pa.int64())
    table.add_column(pa.field("more", pa.int8()))
    table.rename_column("n", "m")
    table.evolve([phalanx.truncate("k", 1)])
    table.rewrite(target_spec=2)
    feed = table.changes(4)
    assert feed.to_arrow().num_rows == feed.plan.total == 0
    # Earlier rows have the columns of the last snapshot, or of the one that is asked for.
    everything = table.changes(0).to_arrow()
    assert everything.column_names == ["k", "m", "more", "_change", "_snapshot", "_update"]
    assert everything.schema.field("m").type == pa.int64()
    assert list_changes(table.changes(0), "m") == [
        ("delete", 1),
        *[("insert", n) for n in range(1, 7)],
    ]
    assert list_changes(table.changes(0, 4), "n") == list_changes(table.changes(0), "m")
    # The leaf lacks the column that is selected, or that the predicate uses.
    assert set(table.changes(0, columns=["more"]).to_arrow()["more"].to_pylist()) == {None}
    assert list_changes(table.changes(0, where="more IS NULL AND m > 4"), "m") == [
        *[("insert", 5), ("insert", 6)],
    ]


def test_a_rollback_takes_and_brings_back_the_difference(table: phalanx.Table) -> None:
    table.delete("n IN (2, 3)")
    table.append(int32_rows(("a", 7)))
    number = table.rollback(3)
    assert list_changes(table.changes(number - 1)) == [
        *[("delete", 7), ("insert", 2), ("insert", 3)],
    ]
    # The same rows in files of another schema are the same rows.
    table.promote_column("n", pa.int64())
    table.delete("n = 1")
    table.append(int32_rows(("b", 8)))
    number = table.rollback(number)
    assert list_changes(table.changes(number - 1)) == [("delete", 8), ("insert", 1)]
    assert table.rollback(1) == number + 1
    assert list_changes(table.changes(number)) == [("delete", n) for n in range(1, 7)]


def test_a_rollback_over_a_compaction(table: phalanx.Table) -> None:
    table.delete("n = 1")
    table.rewrite(rewrite_all=True)
    table.append(int32_rows(("a", 7), ("b", 8)))
    number = table.rollback(4)
    assert list_changes(table.changes(number - 1)) == [("delete", 7), ("delete", 8)]
    # Back to the compacted files.
    assert list_changes(table.changes(number, table.rollback(5))) == []
    # All rows of files that changed later are reported.
    table.delete("n = 2")
    table.rollback(4)
    found = list_changes(table.changes(number + 2))
    assert found == [("delete", 5), ("insert", 2), ("insert", 5)]


def test_dropped_partitions_are_reported_row_by_row(table: phalanx.Table) -> None:
    table.drop_partitions("k = 'a' OR k IS NULL")
    gone = [("delete", n) for n in (1, 2, 4, 5)]
    assert list_changes(table.changes(3)) == gone
    assert list_changes(table.changes(3, where="k = 'a'")) == [("delete", n) for n in (1, 2, 5)]
    table.append(int32_rows(("a", 7)))
    assert list_changes(table.changes(4)) == [("insert", 7)]
    table.rollback(3)
    assert list_changes(table.changes(5)) == [("delete", 7), *[("insert", n) for _, n in gone]]
    with table.transaction() as txn:
        txn.update("n IN (1, 3)", {"n": "n + 10", "k": "'c'"})
        txn.drop_partitions("k = 'c'")
        txn.append(int32_rows(("c", 30)))
    assert list_changes(table.changes(6)) == [*[("delete", n) for n in (1, 3, 6)], ("insert", 30)]


def test_what_others_wrote_is_reported_when_it_is_kept(table: phalanx.Table) -> None:
    table.append(int32_rows(("a", 7)))
    uri = table.partition(k="a").uri
    lance.write_dataset(int32_rows(("a", 8)), uri, mode="append")
    lance.dataset(uri).delete("n = 1")
    table.keep_foreign_writes()
    assert list_changes(table.changes(4)) == [("delete", 1), ("insert", 8)]
    lance.dataset(uri).optimize.compact_files()
    table.keep_foreign_writes()
    assert list_changes(table.changes(5)) == []
    lance.dataset(uri).update({"n": "n + 10"}, where="n = 8")
    table.keep_foreign_writes()
    assert list_changes(table.changes(6)) == [("delete", 8), ("insert", 18)]


def test_only_what_a_snapshot_changed_is_opened(
    table: phalanx.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.delete("n = 5")
    table.append(int32_rows(("b", 7)))
    places = {
        key: table.partition(k=key).uri.removeprefix("file://") for key in ("a", "b", "c", None)
    }
    feed = table.changes(3)
    found = record_opened(monkeypatch)
    assert list_changes(feed) == [("delete", 5), ("insert", 7)]
    assert found == {places["a"], places["b"]}
    found.clear()
    feed = table.changes(2, where="k = 'b' AND n > 0")
    assert list_changes(feed) == [("insert", 7)]
    assert found == {places["b"]}
    assert (len(feed.plan.changes), feed.plan.total) == (1, 4)
    assert "reads 1 of 4 changed partitions" in str(feed.plan)
    [planned] = feed.plan.to_dict()["changes"]
    assert (planned["snapshot"], planned["values"], planned["operation"]) == (5, ["b"], "append")
    found.clear()
    assert list_changes(table.changes(2, where="k = 'zzz'")) == []
    assert not found


def test_what_cannot_be_decided_is_refused(table: phalanx.Table, tmp_path: Path) -> None:
    with pytest.raises(PhalanxError, match="from snapshot 3 to 2: from_snapshot must not be later"):
        table.changes(3, 2)
    with pytest.raises(PhalanxError, match="has no snapshot 9: expected one of 1 to 3"):
        table.changes(1, 9)
    with pytest.raises(phalanx.InvalidPredicate, match="nowhere"):
        table.changes(1, where="nowhere = 1")
    with pytest.raises(SchemaMismatch, match="nowhere"):
        table.changes(1, columns=["nowhere"])
    weak = phalanx.create(tmp_path / "weak", INT32_SCHEMA, ["k"])
    with pytest.raises(PhalanxError, match="weak mode"):
        weak.changes(0)
    table.add_column(pa.field("_change", pa.int8()))
    with pytest.raises(SchemaMismatch, match=r"'_change'.*rename"):
        table.changes(1)
    assert list_changes(table.changes(1, columns=["n"])) == [("insert", n) for n in range(1, 7)]


def test_expired_snapshots(table: phalanx.Table) -> None:
    feed = table.changes(1)
    time.sleep(0.01)
    table.append(int32_rows(("a", 7)))
    table.vacuum(timedelta(0))
    for first in (0, 1):
        with pytest.raises(
            PhalanxError, match=rf"snapshot {first} is not retained.*oldest retained is 4"
        ):
            table.changes(first)
    with pytest.raises(PhalanxError, match=r"snapshot 1 is not retained.*oldest retained is 4"):
        feed.to_arrow()
    assert list_changes(table.changes(4)) == []


# ── updates ──────────────────────────────────────────────────────────────────────────────────


def pairs_in(feed: phalanx.ChangeFeed) -> Counter[tuple[int, int]]:
    """Return the numbers before and after every update."""
    found = feed.to_arrow().to_pylist()
    before = {
        (each["_snapshot"], each["_update"]): each["n"]
        for each in found
        if each["_change"] == "update_before"
    }
    after = {
        (each["_snapshot"], each["_update"]): each["n"]
        for each in found
        if each["_change"] == "update_after"
    }
    assert before.keys() == after.keys()
    assert all(
        (each["_update"] is None) == (each["_change"] in ("insert", "delete")) for each in found
    )
    return Counter((before[link], after[link]) for link in before)


def test_updates_have_a_before_and_an_after(table: phalanx.Table) -> None:
    table.update("n IN (1, 3, 5)", {"n": "n + 10"})
    assert pairs_in(table.changes(3)) == Counter([(1, 11), (3, 13), (5, 15)])
    # To another partition, and to a new one.
    with table.transaction() as txn:
        txn.update("n IN (11, 6)", {"n": "n + 10", "k": "'b'"})
        txn.update("n = 4", {"n": "n + 10", "k": "'new'"})
    assert pairs_in(table.changes(4)) == Counter([(11, 21), (6, 16), (4, 14)])
    # The predicate applies to each row by itself.
    assert list_changes(table.changes(4, where="k = 'b'")) == [
        ("update_after", 16),
        ("update_after", 21),
    ]
    assert list_changes(table.changes(4, where="n > 15")) == [
        ("update_after", 16),
        ("update_after", 21),
    ]
    assert table.merge(int32_rows(("a", 15), ("zz", 13), ("d", 40)), "n").updated == 2
    assert pairs_in(table.changes(5)) == Counter([(15, 15), (13, 13)])
    assert ("insert", 40) in list_changes(table.changes(5))
    table.rewrite(rewrite_all=True)
    table.promote_column("n", pa.int64())
    assert pairs_in(table.changes(3, 4)) == Counter([(1, 11), (3, 13), (5, 15)])


def test_a_transaction_shows_rows_before_and_after(table: phalanx.Table) -> None:
    with table.transaction() as txn:
        txn.update("n IN (1, 2, 3)", {"n": "n + 10"})
        txn.update("n IN (11, 13)", {"n": "n + 10", "k": "'c'"})
        txn.delete("n IN (12, 23)")
        txn.append(int32_rows(("a", 100), ("b", 101), ("b", 102)))
        txn.update("n IN (100, 102, 4)", {"n": "n + 1000"})
        txn.delete("n = 1102")
    feed = table.changes(3)
    assert pairs_in(feed) == Counter([(1, 21), (4, 1004)])
    assert list_changes(feed) == [
        *[("delete", 2), ("delete", 3), ("insert", 101), ("insert", 1100)],
        *[("update_after", 21), ("update_after", 1004)],
        *[("update_before", 1), ("update_before", 4)],
    ]


def test_updates_on_top_of_other_snapshots(table: phalanx.Table) -> None:
    """Rows that are rewritten on top of another snapshot are still linked."""
    with table.transaction() as txn:
        txn.update("n IN (1, 3)", {"n": "n + 10", "k": "'new'"})
        txn.update("n = 5", {"n": "n + 10"})
        txn.delete("n = 13")
        txn.append(int32_rows(("b", 30), ("b", 31)))
        txn.delete("n = 30")
        txn.update("n = 4", {"n": "n + 10", "k": "'b'"})
        # It creates the same partition, and adds to leaves in which rows are updated.
        phalanx.open(table.uri).append(int32_rows(("new", 50), ("a", 51), ("b", 52)))
    assert pairs_in(table.changes(4)) == Counter([(1, 11), (5, 15), (4, 14)])
    assert ("delete", 3) in list_changes(table.changes(4))


def test_rows_of_a_file_that_stand_for_others_and_for_none(table: phalanx.Table) -> None:
    """A job may record the old positions of only some of its rows."""

    def statement(target: Target) -> int:
        manifest = target.state
        with operations._shuffle_data(manifest, int32_rows(("a", 11), ("a", 12), ("a", 15))) as new:
            [write] = LocalRows(new).stage(target)
        dataset = write.location.open_leaf(write.version)
        found = dataset.to_table(filter="n IN (1, 5)", with_row_address=True)
        addresses = found["_rowaddr"].to_numpy()
        write.deletion = lambda leaf: write_deletions_at(leaf, addresses)
        one, five = addresses.tolist()
        old = pa.table({"leaf": [0, None, 0], "address": pa.array([one, None, five], pa.uint64())})
        write.replacements = (RowReplacement(write.fragments, (write.object_id,), old),)
        return target.apply([write], "merge", "")

    run_in_transaction(handle_of(table).for_write("manifest"), statement)
    assert pairs_in(table.changes(3)) == Counter([(1, 11), (5, 15)])
    assert ("insert", 12) in list_changes(table.changes(3))


def files_of(table: phalanx.Table) -> set[str]:
    return {path.name for path in Path(table.uri, "_phalanx_updates").glob("*")}


def test_vacuum_keeps_and_removes_the_records_of_updates(table: phalanx.Table) -> None:
    table.update("n = 1", {"n": "n + 10"})
    [first] = files_of(table)
    table.update("n = 2", {"n": "n + 10"})
    [second] = files_of(table) - {first}
    # A writer that died before its commit.
    Path(table.uri, "_phalanx_updates", f"{'0' * 32}.arrow").write_bytes(b"cut of")
    Path(table.uri, "_phalanx_updates", "other.txt").write_bytes(b"not ours")
    table.vacuum(timedelta(days=1))
    assert len(files_of(table)) == 4
    time.sleep(0.01)
    kinds: Iterable[str] = table.vacuum(timedelta(0), dry_run=True).files["kind"].to_pylist()
    assert Counter(kinds)["updates"] == 2
    table.vacuum(timedelta(0))
    assert files_of(table) == {second, "other.txt"}
    table.append(int32_rows(("a", 9)))
    table.vacuum(timedelta(0))
    assert files_of(table) == {"other.txt"}


def test_rows_of_every_kind_of_column(tmp_path: Path) -> None:
    """Rows that are taken one by one equal those of a scan, in every type."""
    struct = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
    data = pa.table(
        {
            "k": pa.array([None, 1, 1, 1, 2], pa.int8()),
            "vector": pa.array([[float(n)] * 4 for n in range(5)], pa.list_(pa.float32(), 4)),
            "struct": pa.array([{"x": 1, "y": ["a", None]}, None, {}, {"y": []}, None], struct),
            "lists": pa.array([[{"x": 1}], [], None, [None], [{}]], pa.list_(struct)),
            "word": pa.array(["a", "b", None, "a", "b"]).dictionary_encode(),
            "raw": pa.array([b"", None, b"1", b"22", b"333"], pa.large_binary()),
            "when": pa.array([1, 2, 3, None, 5], pa.timestamp("ns", "Europe/Paris")),
        }
    )
    table = phalanx.create(tmp_path / "table", data.schema, ["k"], transaction="strong")
    table.append(data)
    there = table.scan().to_arrow()
    chosen = "raw IN (arrow_cast(X'3232', 'LargeBinary')) OR raw IS NULL OR k IS NULL"
    gone = table.scan(chosen).to_arrow()
    assert table.delete(chosen) == gone.num_rows == 3
    table.promote_column("k", pa.int32())
    for feed, expected in ((table.changes(0, 2), there), (table.changes(2), gone)):
        found = feed.to_arrow().select(expected.column_names)
        assert found.to_pylist() == expected.to_pylist()
