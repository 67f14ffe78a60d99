"""The change feed: which rows came, went and became others, whatever else happened meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import phalanx
from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.storage import leaf
from phalanx.storage.location import Location
from phalanx.table import operations
from phalanx.table.transaction import run_alone

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32())])
Told = tuple[str, int]


def rows(*pairs: tuple[str | None, int]) -> pa.Table:
    return pa.table([[k for k, _ in pairs], [n for _, n in pairs]], schema=SCHEMA)


def told(feed: phalanx.ChangeFeed, column: str = "n") -> list[tuple[str, int]]:
    """What happened to which number, in order of time, then what went before what came."""
    found = feed.to_arrow()
    happened = found.select(["_snapshot", "_change", column]).to_pylist()
    ids = [each["_snapshot"] for each in happened]
    assert ids == sorted(ids)
    went = [each["_change"] in ("delete", "update_before") for each in happened]
    assert sorted(zip(ids, [not each for each in went], strict=True)) == list(
        zip(ids, [not each for each in went], strict=True)
    )
    return sorted((each["_change"], each[column]) for each in happened)


@pytest.fixture
def table(tmp_path: Path) -> phalanx.Table:
    """Snapshot 2 has brought 1 to 4, and snapshot 3 has brought 5 and 6."""
    made = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")
    made.append(rows(("a", 1), ("a", 2), ("b", 3), (None, 4)))
    made.append(rows(("a", 5), ("c", 6)))
    return made


def opened(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The places of leaves that are opened from now on."""
    found: set[str] = set()
    real = Location.open_leaf

    def watched(self: Location, version: int | None = None) -> lance.LanceDataset:
        found.add(self.uri)
        return real(self, version)

    monkeypatch.setattr(Location, "open_leaf", watched)
    return found


def test_every_change_of_rows_is_told(table: phalanx.Table) -> None:
    assert told(table.changes(0)) == [("insert", n) for n in range(1, 7)]
    table.delete("n IN (1, 6)")
    assert told(table.changes(3)) == [("delete", 1), ("delete", 6)]
    table.overwrite(rows(("a", 10), ("new", 11)), "n IN (2, 3, 10, 11)")
    assert told(table.changes(4)) == [
        *[("delete", 2), ("delete", 3)],
        *[("insert", 10), ("insert", 11)],
    ]
    table.overwrite_partitions(rows(("a", 20)))
    assert told(table.changes(5)) == [("delete", 5), ("delete", 10), ("insert", 20)]
    with table.transaction() as txn:
        txn.append(rows(("c", 30), ("d", 31)))
        txn.delete("n IN (20, 30)")
    # What was there only within a transaction was never there.
    assert told(table.changes(6)) == [("delete", 20), ("insert", 31)]
    assert told(table.changes(2, 4)) == [
        *[("delete", 1), ("delete", 6)],
        *[("insert", 5), ("insert", 6)],
    ]
    assert table.changes(4, 4).to_arrow().num_rows == 0
    times = table.snapshots().column("time").to_pylist()
    assert told(table.changes(times[2], times[3])) == [("delete", 1), ("delete", 6)]


def test_what_changes_no_row_is_not_told(table: phalanx.Table) -> None:
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
    assert told(table.changes(0), "m") == [("delete", 1), *[("insert", n) for n in range(1, 7)]]
    assert told(table.changes(0, 4), "n") == told(table.changes(0), "m")
    # The leaf lacks the column that is selected, or that the predicate is about.
    assert set(table.changes(0, columns=["more"]).to_arrow()["more"].to_pylist()) == {None}
    assert told(table.changes(0, where="more IS NULL AND m > 4"), "m") == [
        *[("insert", 5), ("insert", 6)],
    ]


def test_a_rollback_takes_and_brings_back_the_difference(table: phalanx.Table) -> None:
    table.delete("n IN (2, 3)")
    table.append(rows(("a", 7)))
    number = table.rollback(3)
    assert told(table.changes(number - 1)) == [
        *[("delete", 7), ("insert", 2), ("insert", 3)],
    ]
    # The same rows in files of another schema are the same rows.
    table.promote_column("n", pa.int64())
    table.delete("n = 1")
    table.append(rows(("b", 8)))
    number = table.rollback(number)
    assert told(table.changes(number - 1)) == [("delete", 8), ("insert", 1)]
    assert table.rollback(1) == number + 1
    assert told(table.changes(number)) == [("delete", n) for n in range(1, 7)]


def test_what_others_wrote_is_told_when_it_is_kept(table: phalanx.Table) -> None:
    table.append(rows(("a", 7)))
    uri = table.partition(k="a").uri
    lance.write_dataset(rows(("a", 8)), uri, mode="append")
    lance.dataset(uri).delete("n = 1")
    table.keep_foreign_writes()
    assert told(table.changes(4)) == [("delete", 1), ("insert", 8)]
    lance.dataset(uri).optimize.compact_files()
    table.keep_foreign_writes()
    assert told(table.changes(5)) == []
    lance.dataset(uri).update({"n": "n + 10"}, where="n = 8")
    table.keep_foreign_writes()
    assert told(table.changes(6)) == [("delete", 8), ("insert", 18)]


def test_only_what_a_snapshot_changed_is_opened(
    table: phalanx.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.delete("n = 5")
    table.append(rows(("b", 7)))
    places = {
        key: table.partition(k=key).uri.removeprefix("file://") for key in ("a", "b", "c", None)
    }
    feed = table.changes(3)
    found = opened(monkeypatch)
    assert told(feed) == [("delete", 5), ("insert", 7)]
    assert found == {places["a"], places["b"]}
    found.clear()
    feed = table.changes(2, where="k = 'b' AND n > 0")
    assert told(feed) == [("insert", 7)]
    assert found == {places["b"]}
    assert len(feed.plan.changes) == 1 and feed.plan.total == 4
    assert "reads 1 of 4 changed partitions" in str(feed.plan)
    [planned] = feed.plan.to_dict()["changes"]
    assert (planned["snapshot"], planned["values"], planned["operation"]) == (5, ["b"], "append")
    found.clear()
    assert told(table.changes(2, where="k = 'zzz'")) == [] and not found


def test_what_cannot_be_told_is_refused(table: phalanx.Table, tmp_path: Path) -> None:
    with pytest.raises(PhalanxError, match="from snapshot 3 to 2: the first must not be the later"):
        table.changes(3, 2)
    with pytest.raises(PhalanxError, match="has no snapshot 9: expected one of 1 to 3"):
        table.changes(1, 9)
    with pytest.raises(phalanx.InvalidPredicate, match="nowhere"):
        table.changes(1, where="nowhere = 1")
    with pytest.raises(SchemaMismatch, match="nowhere"):
        table.changes(1, columns=["nowhere"])
    weak = phalanx.create(tmp_path / "weak", SCHEMA, ["k"])
    with pytest.raises(PhalanxError, match="weak mode"):
        weak.changes(0)
    table.add_column(pa.field("_change", pa.int8()))
    with pytest.raises(SchemaMismatch, match="'_change'.*rename"):
        table.changes(1)
    assert told(table.changes(1, columns=["n"])) == [("insert", n) for n in range(1, 7)]


def test_expired_snapshots(table: phalanx.Table) -> None:
    feed = table.changes(1)
    time.sleep(0.01)
    table.append(rows(("a", 7)))
    table.vacuum(timedelta(0))
    for first in (0, 1):
        with pytest.raises(PhalanxError, match="snapshot 1|snapshot 0.*oldest retained is 4"):
            table.changes(first)
    with pytest.raises(PhalanxError, match="snapshot 1 is not retained.*oldest retained is 4"):
        feed.to_arrow()
    assert told(table.changes(4)) == []


# ── updates, as a statement tells them ───────────────────────────────────────────────────────


def update(where: str, more: int, key: str | None = None) -> Any:
    """A statement that adds to the numbers of matching rows, and perhaps moves them elsewhere."""

    def statement(target: Any) -> int:
        return updated(target, where, more, key)

    return statement


def updated(target: Any, where: str, more: int, key: str | None) -> int:
    from phalanx.model.binding import bind
    from phalanx.model.evaluation import matches
    from phalanx.storage.writing import Replacement, leaf_writes

    manifest = target.manifest
    schema = manifest.properties.schema
    predicate = bind(where, schema)
    writes, old, found = [], [], []
    for number, leaves in manifest.leaves().items():
        for write in leaf_writes(manifest, number, leaves, [None] * leaves.num_rows):
            dataset = write.location.open_leaf(write.version)
            every = dataset.to_table(with_row_address=True).combine_chunks()
            kept = matches(predicate, every.drop_columns(["_rowaddr"]).to_batches()[0]) if (
                every.num_rows
            ) else pa.array([], pa.bool_())
            chosen = every.filter(kept)
            if chosen.num_rows:
                addresses = chosen.column("_rowaddr").to_numpy()
                write.deletion = lambda dataset, gone=addresses: leaf.deletion_by_address(
                    dataset, gone
                )
                writes.append(write)
                old.append(addresses)
                found.append(chosen.drop_columns(["_rowaddr"]))
    if not writes:
        return 0
    new = pa.concat_tables(found)
    new = new.set_column(1, "n", pa.array([n + more for n in new["n"].to_pylist()], SCHEMA.field("n").type))
    if key is not None:
        new = new.set_column(0, "k", pa.array([key] * new.num_rows))
    names = tuple(write.object_id for write in writes)
    origin = pa.table(
        {
            "leaf": pa.array(np.repeat(np.arange(len(old)), [len(each) for each in old])),
            "address": pa.array(np.concatenate(old)),
        }
    )
    with operations._local(manifest, new) as shuffled:
        from phalanx.storage.writing import merged
        from phalanx.table.arrivals import LocalRows

        arrived = LocalRows(shuffled).arrive(target)
        keys = new["k"].to_pylist()
        for write, value in zip(arrived, shuffled.keys.column("k").to_pylist(), strict=True):
            mine = [place for place, each in enumerate(keys) if each == value]
            write.replacements = (Replacement(write.fragments, names, origin.take(mine)),)
        deletions = {write.location.uri: write for write in writes}
        return int(target.commit(merged(arrived, deletions), "update", ""))


def pairs_in(feed: phalanx.ChangeFeed) -> Counter[tuple[int, int]]:
    """The numbers before and after, of every update."""
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
    assert all((each["_update"] is None) == (each["_change"] in ("insert", "delete")) for each in found)
    return Counter((before[link], after[link]) for link in before)


def run(table: phalanx.Table, *statements: Any) -> None:
    def together(target: Any) -> int:
        return sum(statement(target) for statement in statements)

    run_alone(table._writable(), together)


def deleting(where: str) -> Any:
    return lambda target: operations.delete(target.manifest, lambda each: each(target), where)


def appending(data: pa.Table) -> Any:
    return lambda target: operations.append(target.manifest, lambda each: each(target), data)


def test_updates_have_a_before_and_an_after(table: phalanx.Table) -> None:
    run(table, update("n IN (1, 3, 5)", 10))
    assert pairs_in(table.changes(3)) == Counter([(1, 11), (3, 13), (5, 15)])
    # To another partition, and to a new one.
    run(table, update("n IN (11, 6)", 10, "b"), update("n = 4", 10, "new"))
    assert pairs_in(table.changes(4)) == Counter([(11, 21), (6, 16), (4, 14)])
    # Each row is judged for itself.
    assert told(table.changes(4, where="k = 'b'")) == [("update_after", 16), ("update_after", 21)]
    assert told(table.changes(4, where="n > 15")) == [("update_after", 16), ("update_after", 21)]
    table.rewrite(rewrite_all=True)
    table.promote_column("n", pa.int64())
    assert pairs_in(table.changes(3, 4)) == Counter([(1, 11), (3, 13), (5, 15)])


def test_a_transaction_tells_what_rows_were_and_are(table: phalanx.Table) -> None:
    run(
        table,
        update("n IN (1, 2, 3)", 10),
        update("n IN (11, 13)", 10, "c"),
        deleting("n IN (12, 23)"),
        appending(rows(("a", 100), ("b", 101), ("b", 102))),
        update("n IN (100, 102, 4)", 1000),
        deleting("n = 1102"),
    )
    feed = table.changes(3)
    assert pairs_in(feed) == Counter([(1, 21), (4, 1004)])
    assert told(feed) == [
        *[("delete", 2), ("delete", 3), ("insert", 101), ("insert", 1100)],
        *[("update_after", 21), ("update_after", 1004)],
        *[("update_before", 1), ("update_before", 4)],
    ]


def test_updates_on_top_of_other_snapshots(table: phalanx.Table) -> None:
    """Rows that must be written anew on top of another snapshot are linked all the same."""
    one = table.transaction()
    one._run(update("n IN (1, 3)", 10, "new"))
    one._run(update("n = 5", 10))
    one._run(deleting("n = 13"))
    # It makes the same partition, and adds to a leaf that has rows updated.
    phalanx.open(table.uri).append(rows(("new", 50), ("a", 51)))
    with one:
        pass
    assert pairs_in(table.changes(4)) == Counter([(1, 11), (5, 15)])
    assert ("delete", 3) in told(table.changes(4))


def files_of(table: phalanx.Table) -> set[str]:
    return {path.name for path in Path(table.uri, "_phalanx_updates").glob("*")}


def test_vacuum_keeps_and_removes_what_tells_of_updates(table: phalanx.Table) -> None:
    run(table, update("n = 1", 10))
    [first] = files_of(table)
    run(table, update("n = 2", 10))
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
    table.append(rows(("a", 9)))
    table.vacuum(timedelta(0))
    assert files_of(table) == {"other.txt"}
