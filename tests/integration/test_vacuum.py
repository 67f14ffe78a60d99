"""Vacuum removes what no snapshot needs and nothing else, also with concurrent writers."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceDataset, LanceOperation

import phalanx
from integration.stores import Store
from phalanx.errors import CommitConflict, ForeignWrite, PhalanxError, StorageFailure
from phalanx.storage.commit.head import Head, read_head
from phalanx.storage.lance import files
from phalanx.storage.lance.location import Location, clear_shared_session
from phalanx.storage.leaf import leaf
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.naming import leaf_directory
from phalanx.table.handle import handle_of
from phalanx.table.maintenance import vacuum as vacuuming
from phalanx.table.transactions import strong_mode as strong
from phalanx.table.transactions import strong_target as staged
from phalanx.table.write.transaction import Transaction
from tables import SCHEMA, SOAK, rows

NOTHING = timedelta(0)


def read_rows(table: Any, where: str | None = None) -> list[tuple[str | None, int]]:
    found = table.scan(where).to_arrow().to_pylist()
    return sorted(((row["k"], row["n"]) for row in found), key=str)


def reopen(table: phalanx.Table) -> phalanx.Table:
    """The same table, as another process would open it."""
    return phalanx.open(table.uri, storage_options=handle_of(table).root.storage_options)


@pytest.fixture
def table(root: str, store: Store) -> phalanx.Table:
    made = phalanx.create(
        root, SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
    )
    made.append(rows(("a", 1), ("a", 2), ("b", 1)))
    return made


def pause(table: phalanx.Table) -> datetime:
    """Wait for the clock of the store, which may count in seconds; return the time afterwards."""
    time.sleep(0.02 if handle_of(table).root.is_local else 1.01)
    return datetime.now(UTC)


def vacuum(table: phalanx.Table, since: datetime | None = None) -> phalanx.Vacuumed:
    """Keep what was the newest at any moment since then (now). A dry run first says the same."""
    pause(table)
    older_than = NOTHING if since is None else datetime.now(UTC) - since
    promised = table.vacuum(older_than, dry_run=True)
    done = table.vacuum(NOTHING if since is None else datetime.now(UTC) - since)
    assert sorted(promised.files["path"].to_pylist()) == sorted(done.files["path"].to_pylist())
    assert (promised.snapshots, promised.left_alone) == (done.snapshots, done.left_alone)
    return done


def run(table: phalanx.Table, *steps: Callable[[Transaction], object]) -> None:
    """The steps in one transaction."""
    with table.transaction() as txn:
        for step in steps:
            step(txn)


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("cut off")


# ── what exists, found without the code of vacuum ────────────────────────────────────────────


def read_uncached(table: phalanx.Table) -> tuple[set[str], dict[int | None, list[str]]]:
    """The data and deletion files that snapshots and mains list, and the rows of each snapshot.

    Nothing is taken from the cache.
    """
    clear_shared_session()
    fresh, options = reopen(table), handle_of(table).root.storage_options
    listed: set[str] = set()
    states: dict[int | None, list[str]] = {}
    for number in fresh.snapshots()["id"].to_pylist() or [None]:
        view = fresh if number is None else fresh.at(number)
        found = view.scan().to_arrow().to_pylist()
        states[number] = sorted(str(tuple(row.values())) for row in found)
        for partition in view.plan().partitions:
            name = partition.location.rpartition("/")[2]
            for version in {partition.version, None}:
                dataset = lance.dataset(
                    partition.location, version=version, storage_options=options
                )
                dataset.to_table()
                for fragment in dataset.get_fragments():
                    listed |= {f"{name}/data/{file.path}" for file in fragment.data_files()}
                    deleted = fragment.deletion_file()
                    listed |= set() if deleted is None else {f"{name}/{deleted}"}
    return listed, states


def list_leaf_files(store: Store, table: phalanx.Table, *kinds: str) -> set[str]:
    """The files of the leaves, those of some kinds only, by their paths below the root."""
    root = table.uri.removeprefix("s3://")
    inside = {path.removeprefix(f"{root}/") for path in store.files(table.uri)}
    return {
        path
        for path in inside
        if not path.startswith("__manifest/") and (not kinds or path.split("/")[1] in kinds)
    }


def assert_clean(store: Store, table: phalanx.Table) -> dict[int | None, list[str]]:
    """Check that retained snapshots can be read, and that they need every data and deletion file.

    Return the rows of each snapshot.
    """
    listed, states = read_uncached(table)
    assert list_leaf_files(store, table, "data", "_deletions") == listed
    return states


# ── what goes, and what stays ────────────────────────────────────────────────────────────────


def test_retained_snapshots_are_read_in_full(table: phalanx.Table, store: Store) -> None:
    table.append(rows(("a", 3), ("c", 3)))
    table.delete("n = 1")
    since = pause(table)
    pause(table)
    table.append(rows(("a", 5)))
    table.overwrite_partitions(rows(("c", 6), (None, 6)))
    _, before = read_uncached(table)
    done = vacuum(table, since)
    # The fourth was the newest then.
    assert done.snapshots == (1, 2, 3)
    assert table.snapshots()["id"].to_pylist() == [4, 5, 6]
    after = assert_clean(store, table)
    assert after == {number: before[number] for number in (4, 5, 6)}
    assert read_rows(table.at(since)) == read_rows(table.at(4)) == [("a", 2), ("a", 3), ("c", 3)]
    for gone in (1, 3, table.snapshots()["time"][0].as_py() - timedelta(microseconds=1)):
        with pytest.raises(PhalanxError, match=r"4 to 6\. Older ones were removed by vacuum"):
            table.at(gone)
    with pytest.raises(PhalanxError, match="removed by vacuum"):
        table.rollback(2)
    assert vacuum(table, since).snapshots == ()
    assert vacuum(table).snapshots == (4, 5)
    assert assert_clean(store, table) == {6: before[6]}
    assert read_rows(table.at(6)) == read_rows(table)


def test_the_result_says_what_went(table: phalanx.Table, store: Store) -> None:
    table.delete("k = 'a'")
    pause(table)
    before = store.files(table.uri)
    promised = table.vacuum(NOTHING, dry_run=True)
    assert store.files(table.uri) == before
    assert str(promised).startswith("Would remove 2 snapshots (1 to 2).\nWould remove ")
    done = table.vacuum(NOTHING)
    assert str(done).startswith("Removed 2 snapshots (1 to 2).\nRemoved ")
    gone = set(before) - set(store.files(table.uri))
    paths = [path.removeprefix("s3://") for path in done.files["path"].to_pylist()]
    assert set(paths) == gone
    assert len(paths) == len(gone)
    assert done.bytes == sum(before[path] for path in gone) > 0
    assert set(done.files["kind"].to_pylist()) == {"version", "transaction", "data"}
    assert done.files.schema.names == ["path", "kind", "bytes", "modified"]
    with pytest.raises(PhalanxError, match="that is not negative"):
        table.vacuum(timedelta(days=-1))
    with pytest.raises(PhalanxError, match="expected a timedelta"):
        table.vacuum(7)  # type: ignore[arg-type]
    with pytest.raises(PhalanxError, match="read-only"):
        table.at(3).vacuum()


def test_recent_files_stay(table: phalanx.Table, store: Store) -> None:
    table.delete("n = 1")
    before = store.files(table.uri)
    done = table.vacuum()
    assert (done.snapshots, done.files.num_rows, done.bytes) == ((), 0, 0)
    assert set(before) <= set(store.files(table.uri))
    assert len(read_rows(table.at(2))) == 3


def test_debris_goes(table: phalanx.Table, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of writers that die, fail or lose a race: versions, data and whole leaves."""
    clean = list_leaf_files(store, table)
    with monkeypatch.context() as patch:
        patch.setattr(staged.StrongTarget, "discard", lambda self: None)
        with pytest.raises(RuntimeError, match="cut off"):
            run(
                table,
                lambda txn: txn.append(rows(("a", 10), ("new", 10))),
                lambda txn: txn.delete("n = 1"),
                fail,
            )
        with pytest.raises(CommitConflict):
            run(
                table,
                lambda txn: txn.append(rows(("a", 11), ("other", 11))),
                lambda txn: txn.delete("k = 'b'"),
                lambda _: reopen(table).delete("k = 'b'"),
            )
    schema = handle_of(table).state.properties.schema
    root = handle_of(table).root
    leaf.create_leaf(root.leaf(leaf_directory("v1$0123456789abcdef$dataset")), schema)
    stranger = root.leaf(leaf_directory("v1$someone else's$dataset"))
    lance.write_dataset(rows(("x", 1)), stranger.uri, storage_options=root.storage_options)
    name = stranger.uri.rpartition("/")[2]
    folders = store.folders(table.uri)
    assert len(folders) == 7
    done = vacuum(table)
    assert "orphan" in done.files["kind"].to_pylist()
    assert len(store.folders(table.uri)) == 4
    assert name in store.folders(table.uri)
    left = {path for path in list_leaf_files(store, table) if not path.startswith(f"{name}/")}
    if root.is_local:
        assert sorted(os.listdir(table.uri)) == sorted(store.folders(table.uri))
    listed, _ = read_uncached(table)
    assert {path for path in left if path.split("/")[1] in ("data", "_deletions")} == listed
    # The newest snapshot has a version of its own in each leaf, and main has one.
    versions = [path for path in left if "/_versions/" in path and path.endswith(".manifest")]
    assert len(versions) == 2 * 2
    assert read_rows(table) == [("a", 1), ("a", 2)]
    assert clean != left


def test_what_is_not_known_stays(table: phalanx.Table, store: Store, tmp_path: Path) -> None:
    if store.storage_options is not None:
        pytest.skip("files are put beside the table's own")
    table.delete("k = 'a'")
    location = Path(table.plan("k = 'a'").partitions[0].location)
    strange = [
        Path(table.uri) / "notes.txt",
        Path(table.uri) / "01234567_v1$short$dataset" / "data" / "x.lance",
        Path(table.uri) / "0123456_v1$0123456789abcdef$dataset" / "data" / "x.lance",
        Path(table.uri) / "01234567_v1$0123456789abcdef$dataset" / "notes.txt",
        location / "notes.txt",
        location / "data" / "notes.txt",
        location / "data" / "inner" / "deep" / "x.lance",
        location / "_versions" / "notes.manifest",
        location / "_indices" / "notes",
        location / "unknown" / "x.lance",
    ]
    for path in strange:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"kept")
    vacuum(table)
    assert all(path.read_bytes() == b"kept" for path in strange)


def test_tagged_versions_stay(table: phalanx.Table, store: Store) -> None:
    options = store.storage_options
    location = table.plan("k = 'a'").partitions[0].location
    main = lance.dataset(location, storage_options=options)
    main.tags.create("before", main.version)
    table.delete("k = 'a' AND n = 1")
    table.overwrite(rows(("a", 9)), "k = 'a'")
    version = table.plan("k = 'a'").partitions[0].version
    main.tags.create("detached", version)
    table.overwrite(rows(("a", 10)), "k = 'a'")
    vacuum(table)
    for tag, expected in (("before", [1, 2]), ("detached", [9])):
        found = lance.dataset(location, version=tag, storage_options=options).to_table()
        assert found["n"].to_pylist() == expected
    main.tags.delete("before")
    vacuum(table)
    with pytest.raises(ValueError, match="not found"):
        lance.dataset(location, version=main.version, storage_options=options)


def test_a_leaf_with_branches_is_left_alone(table: phalanx.Table, store: Store) -> None:
    options = store.storage_options
    location = table.plan("k = 'a'").partitions[0].location
    lance.dataset(location, storage_options=options).create_branch("mine")
    table.overwrite(rows(("a", 9), ("b", 9)))
    done = vacuum(table)
    assert list(done.left_alone) == [location]
    assert f"Left {location} alone: it has branches" in str(done)
    name = location.rpartition("/")[2]
    assert done.files.num_rows
    assert not any(name in path for path in done.files["path"].to_pylist())
    assert read_rows(table) == [("a", 9), ("b", 9)]


def test_an_index_stays(table: phalanx.Table, store: Store) -> None:
    options = store.storage_options
    location = table.plan("k = 'a'").partitions[0].location
    lance.dataset(location, storage_options=options).create_scalar_index("n", "BTREE")
    before = store.files(table.uri)
    for dry_run in (True, False):
        pause(table)
        with pytest.raises(ForeignWrite, match="keep_foreign_writes"):
            table.vacuum(NOTHING, dry_run=dry_run)
    assert store.files(table.uri) == before
    table.keep_foreign_writes()
    indexes = list_leaf_files(store, table, "_indices")
    assert indexes
    vacuum(table)
    assert list_leaf_files(store, table, "_indices") == indexes
    version = table.plan("k = 'a'").partitions[0].version
    dataset = lance.dataset(location, version=version, storage_options=options)
    assert dataset.describe_indices()[0].name == "n_idx"
    assert dataset.to_table(filter="n = 2")["n"].to_pylist() == [2]
    # A version without it removes it with its folder.
    table.overwrite(rows(("a", 1)))
    lance.dataset(location, storage_options=options).drop_index("n_idx")
    table.keep_foreign_writes()
    vacuum(table)
    assert not list_leaf_files(store, table, "_indices")
    if handle_of(table).root.is_local:
        assert os.listdir(f"{location}/_indices") == []


def test_schema_changes_in_between(table: phalanx.Table, store: Store) -> None:
    table.add_column(pa.field("f", pa.float32()))
    table.append(pa.table({"k": ["a"], "n": [5], "f": pa.array([0.5], pa.float32())}))
    since = pause(table)
    pause(table)
    table.promote_column("f", pa.float64())
    table.rename_column("n", "m")
    table.evolve([phalanx.bucket("m", 2)])
    table.append(pa.table({"k": ["z"], "m": [7], "f": [1.5]}))
    table.drop_column("f")
    _, before = read_uncached(table)
    done = vacuum(table, since)
    assert done.snapshots == (1, 2, 3)
    after = assert_clean(store, table)
    assert after == {number: before[number] for number in after}
    assert len(after) == 6
    assert table.at(4).schema.names == ["k", "n", "f"]
    vacuum(table)
    assert assert_clean(store, table) == {9: before[9]}
    assert table.at(9).schema.names == table.schema.names == ["k", "m"]


def test_a_schema_change_that_was_cut_off(
    table: phalanx.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupted change leaves a manifest whose properties its newest snapshot lacks."""
    with monkeypatch.context() as patch:
        patch.setattr(strong.head, "commit", fail)
        with pytest.raises(RuntimeError, match="cut off"):
            table.add_column(pa.field("f", pa.float32()))
    since = pause(table)
    pause(table)
    reopen(table).delete("n = 1")
    assert vacuum(table, since).snapshots == (1,)
    assert table.at(2).schema.names == ["k", "n"]
    assert read_rows(table.at(2)) == [("a", 1), ("a", 2), ("b", 1)]
    assert table.at(3).schema.names == ["k", "n", "f"]


def test_a_snapshot_from_a_wrong_clock(
    table: phalanx.Table, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshot 3 is dated an hour ahead, so until then snapshot 2 is the newest and is kept."""
    with monkeypatch.context() as patch:
        patch.setattr("phalanx.storage.commit.head.datetime", _clock(timedelta(hours=1)))
        table.delete("n = 1")
    assert vacuum(table).snapshots == (1,)
    assert list(assert_clean(store, table)) == [2, 3]
    assert read_rows(table.at(2)) == [("a", 1), ("a", 2), ("b", 1)]
    table.append(rows(("a", 5)))
    vacuum(table)
    assert list(assert_clean(store, table)) == [2, 3, 4]


def test_the_schema_of_the_newest_snapshot(table: phalanx.Table) -> None:
    """Vacuum may remove the snapshot's manifest version if a later one shows the same schema."""
    vacuum(table)
    vacuum(table)
    assert table.at(2).schema.names == ["k", "n"]
    table.add_column(pa.field("f", pa.float32()))
    assert table.at(2).schema.names == ["k", "n"]
    assert read_rows(table.at(2)) == [("a", 1), ("a", 2), ("b", 1)]
    vacuum(table)
    assert table.at(3).schema.names == ["k", "n", "f"]


def test_the_manifest_shrinks(table: phalanx.Table, store: Store) -> None:
    for number in range(8):
        table.append(rows(("a", number)))
    for marker in ("old", "new"):
        with table.transaction(marker=marker) as txn:
            txn.append(rows(("b", 1)))
    vacuum(table)
    found = Manifest.open(handle_of(table).root).dataset.to_table()
    kinds = found["object_type"].to_pylist()
    assert kinds.count("table_version") == kinds.count("table") == 2
    # The head, the newest snapshot, and two markers.
    assert kinds.count("phalanx") == 4
    own = {path for path in store.files(table.uri) if "/__manifest/" in path}
    vacuum(table)
    fewer = {path for path in store.files(table.uri) if "/__manifest/" in path}
    assert len(fewer) < len(own)
    assert len([path for path in fewer if path.endswith(".manifest")]) == 2


def test_markers_stay_for_a_week(table: phalanx.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(marker: str) -> int | None:
        with table.transaction(marker=marker) as txn:
            txn.append(rows(("a", 7)))
        return txn.snapshot

    assert [commit("batch"), commit("another"), commit("last")] == [3, 4, 5]
    assert vacuum(table).snapshots == (1, 2, 3, 4)
    assert [commit("batch"), commit("another")] == [3, 4]
    monkeypatch.setattr("phalanx.storage.cleanup.expiry.MARKER_RETENTION", NOTHING)
    vacuum(table)
    assert commit("last") == 5
    assert commit("batch") == 6


def test_lances_own_cleaning_is_turned_off(table: phalanx.Table, store: Store) -> None:
    """Lance's cleanup would remove versions that only snapshots list, whenever main is updated."""
    options = store.storage_options
    uri = f"{store.fresh()}/mine"
    at_once: Any = {"interval": 1, "older_than_seconds": 0}
    lance.write_dataset(rows(("z", 1)), uri, storage_options=options, auto_cleanup_options=at_once)
    table.set_mode("weak")
    table.adopt(uri)
    table.set_mode("strong")
    table.append(rows(("z", 2)))
    table.overwrite(rows(("z", 3)))
    table.append(rows(("z", 4), ("a", 4)))
    _, states = read_uncached(table)
    assert [len(state) for state in states.values()] == [4, 5, 1, 3]
    location = table.plan("k = 'a'").partitions[0].location
    main = lance.dataset(location, storage_options=options)
    main.optimize.enable_auto_cleanup({**at_once, "interval": 1000})
    table.keep_foreign_writes()
    for each in (location, uri):
        assert lance.dataset(each, storage_options=options).config() == {}


# ── leaves elsewhere ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_adopted_tables(table: phalanx.Table, store: Store, place: str) -> None:
    options = store.storage_options
    uri = f"{table.uri}/sub/mine" if place == "inside" else f"{store.fresh()}/mine"
    lance.write_dataset(rows(("z", 1)), uri, storage_options=options)
    lance.write_dataset(rows(("z", 2)), uri, mode="append", storage_options=options)
    table.set_mode("weak")
    table.adopt(uri)
    table.set_mode("strong")
    table.overwrite(rows(("z", 3)), "k = 'z'")
    before = store.files(uri)
    done = vacuum(table)
    assert set(store.files(uri)) < set(before)
    assert any(path.startswith(uri) for path in done.files["path"].to_pylist())
    assert read_rows(table, "k = 'z'") == [("z", 3)]
    assert len([path for path in store.files(uri) if path.endswith(".lance")]) == 1


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_clone_keeps_what_it_reads(table: phalanx.Table, store: Store, is_damaged: bool) -> None:
    """A leaf that reads the files of another leaf, also if a version of it is missing."""
    options = store.storage_options
    if options is not None:
        pytest.skip("Lance clones without the options of the store")
    location = table.plan("k = 'a'").partitions[0].location
    table.set_mode("weak")
    table.evolve([phalanx.truncate("k", 5)])
    uri = f"{store.fresh()}/clone"
    lance.dataset(location).shallow_clone(uri, lance.dataset(location).version)
    table.adopt(uri)
    table.set_mode("strong")
    with table.transaction() as txn:
        txn.append(rows(("other", 100)))
    # The leaf that the files are of lists them no more.
    main = lance.dataset(location)
    main.delete("true")
    table.keep_foreign_writes()
    expected = [("a", 1), ("a", 2), ("b", 1), ("other", 100)]
    assert read_rows(table) == expected
    if is_damaged:
        table.append(rows(("a", 3)))
        expected.insert(2, ("a", 3))
        clone = lance.dataset(uri)
        oldest = min(each["version"] for each in clone.versions())
        assert oldest < clone.version
        clone.tags.create("kept", oldest)
        Path(uri, "_versions", f"{2**64 - 1 - oldest}.manifest").unlink()
    done = vacuum(table)
    assert list(done.left_alone) == ([uri] if is_damaged else [])
    assert "version" in done.files["kind"].to_pylist()
    assert read_rows(reopen(table)) == expected


# ── during running transactions ──────────────────────────────────────────────────────────────


def test_a_transaction_across_a_vacuum_aborts(table: phalanx.Table, store: Store) -> None:
    steps = [
        functools.partial(Transaction.append, data=rows(("a", 10), ("new", 10))),
        lambda txn: txn.delete("n = 1"),
    ]
    with pytest.raises(CommitConflict, match="a vacuum removed files from before"):
        run(table, *steps, lambda _: vacuum(reopen(table)))
    assert read_rows(table) == [("a", 1), ("a", 2), ("b", 1)]
    run(table, *steps)
    assert read_rows(table) == [("a", 10), ("a", 2), ("new", 10)]
    vacuum(table)
    assert_clean(store, table)


def test_statements_of_a_vacuumed_transaction_say_so(table: phalanx.Table) -> None:
    other = reopen(table)
    with pytest.raises(CommitConflict, match="a vacuum removed files"):
        run(
            table,
            lambda _: other.overwrite(rows(("a", 5))),
            lambda _: vacuum(other),
            lambda txn: txn.delete("n = 1"),
        )


def test_a_statement_alone_starts_over(
    table: phalanx.Table, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement writes its files again, and those of the first attempt are removed."""
    commit = staged.StrongTarget.commit_snapshot
    meanwhile: list[Callable[[], object]] = [lambda: reopen(table).append(rows(("a", 50)))]
    meanwhile += [lambda: vacuum(reopen(table))] * 2

    def commit_late(self: staged.StrongTarget, marker: str | None) -> int | None:
        if meanwhile:
            step = meanwhile.pop()
            with monkeypatch.context() as patch:
                patch.setattr(staged.StrongTarget, "commit_snapshot", commit)
                step()
        return commit(self, marker)

    monkeypatch.setattr(staged.StrongTarget, "commit_snapshot", commit_late)
    table.append(rows(("a", 10), ("new", 10)))
    meanwhile += [lambda: vacuum(reopen(table)), lambda: vacuum(reopen(table))]
    table.overwrite_partitions(rows(("b", 20), ("more", 20)))
    meanwhile += [lambda: vacuum(reopen(table))]
    assert table.delete("n = 1") == 1
    expected = [("a", 10), ("a", 2), ("a", 50), ("b", 20), ("more", 20), ("new", 10)]
    assert read_rows(table) == expected
    vacuum(table)
    assert_clean(store, table)
    assert read_rows(reopen(table)) == expected


def test_files_of_an_earlier_attempt_count_from_then(
    table: phalanx.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that reuses files counts from when they were written; after a vacuum, from now."""
    commit = staged.StrongTarget.commit_snapshot
    monkeypatch.setattr("phalanx.storage.commit.head.CLOCK_MARGIN", NOTHING)
    began: list[datetime] = []

    def commit_late(self: staged.StrongTarget, marker: str | None) -> int | None:
        began.append(self.began)
        if len(began) == 1:
            pause(table)
            raise staged.RetryableConflict("by another")
        if len(began) == 2:
            with monkeypatch.context() as patch:
                patch.setattr(staged.StrongTarget, "commit_snapshot", commit)
                vacuum(reopen(table), datetime.now(UTC))
        return commit(self, marker)

    monkeypatch.setattr(staged.StrongTarget, "commit_snapshot", commit_late)
    table.append(rows(("a", 10)))
    assert began[0] == began[1] < began[2]
    assert read_rows(reopen(table), "n = 10") == [("a", 10)]


def test_a_transaction_across_a_vacuum_that_keeps_more(table: phalanx.Table, store: Store) -> None:
    for number in range(3):
        table.append(rows(("a", 10 + number)))
    with table.transaction() as txn:
        txn.append(rows(("a", 20), ("new", 20)))
        reopen(table).append(rows(("a", 30)))
        pause(table)
        done = reopen(table).vacuum(timedelta(hours=1))
        assert done.snapshots == ()
        txn.delete("n = 1")
        assert ("a", 30) not in read_rows(txn)
    expected = sorted([("a", n) for n in (2, 10, 11, 12, 20, 30)] + [("new", 20)], key=str)
    assert read_rows(table) == read_rows(reopen(table)) == expected
    vacuum(table)
    assert_clean(store, table)


def test_a_transaction_that_really_needs_what_is_kept(
    table: phalanx.Table, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vacuum deletes older files, and the transaction uses those of its snapshot and its own."""
    monkeypatch.setattr("phalanx.storage.commit.head.CLOCK_MARGIN", NOTHING)
    table.append(rows(("a", 3), ("c", 3)))
    table.overwrite(rows(("a", 4)), "k = 'a'")
    since = pause(table)
    pause(table)
    with table.transaction() as txn:
        txn.append(rows(("a", 20), ("new", 20)))
        reopen(table).append(rows(("a", 30)))
        # Snapshot 4 was the newest at that time, so only older ones expire.
        done = vacuum(reopen(table), since)
        assert done.snapshots == (1, 2, 3)
        assert done.files.num_rows > 10
        clear_shared_session()
        assert txn.delete("n IN (1, 3)") == 2
        txn.append(rows(("b", 21), ("newer", 21)))
        assert read_rows(txn) == [("a", 20), ("a", 4), ("b", 21), ("new", 20), ("newer", 21)]
    expected = [("a", 20), ("a", 30), ("a", 4), ("b", 21), ("new", 20), ("newer", 21)]
    assert read_rows(reopen(table)) == expected
    vacuum(table)
    assert_clean(store, table)


@pytest.mark.parametrize("minutes", [0, 30])
def test_a_transaction_that_begins_after_the_fence(
    table: phalanx.Table, store: Store, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """The store's clock dates the files after the fence, even if the vacuum's clock is ahead."""
    table.delete("n = 2")
    pause(table)
    listed = files.Folder.list_files
    begun: list[Transaction] = []

    def slow(self: files.Folder) -> Any:
        if not begun:
            begun.append(reopen(table).transaction())
            begun[0].append(rows(("a", 10), ("new", 10)))
            begun[0].delete("k = 'b'")
        return listed(self)

    with monkeypatch.context() as patch:
        patch.setattr(vacuuming, "datetime", _clock(timedelta(minutes=minutes)))
        patch.setattr(files.Folder, "list_files", slow)
        assert table.vacuum(NOTHING).snapshots == (1, 2)
    with begun[0] as txn:
        assert read_rows(txn) == [("a", 1), ("a", 10), ("new", 10)]
    assert txn.snapshot == 4
    read_uncached(table)
    assert read_rows(reopen(table)) == [("a", 1), ("a", 10), ("new", 10)]


def _clock(ahead: timedelta) -> type[datetime]:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + ahead

    return Ahead


def test_clocks_that_are_wrong(table: phalanx.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    root = handle_of(table).root

    append = functools.partial(Transaction.append, data=rows(("a", 10)))

    def horizon() -> str:
        found = read_head(Manifest.open(root))
        assert found is not None
        return found.horizon

    with monkeypatch.context() as patch:
        patch.setattr(vacuuming, "datetime", _clock(timedelta(minutes=30)))
        with pytest.raises(CommitConflict, match="vacuum"):
            run(table, append, lambda _: reopen(table).vacuum(NOTHING))
    first = horizon()
    # A horizon in the future does not hide the next vacuum.
    with pytest.raises(CommitConflict, match="vacuum"):
        run(table, append, lambda _: vacuum(reopen(table)))
    assert horizon() > first
    table.append(rows(("a", 10)))
    assert read_rows(table, "n = 10") == [("a", 10)]


def test_heads_of_before(table: phalanx.Table) -> None:
    text = json.dumps(
        {"sequence": 2, "epoch": 0, "horizon": 0, "time": "2026-01-01T00:00:00+00:00"}
    )
    assert Head.from_json(text).horizon == ""


# ── interrupted, repeated, at the same time ──────────────────────────────────────────────────


def test_interrupted_at_every_delete(
    table: phalanx.Table, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill() -> list[tuple[str | None, int]]:
        table.overwrite(rows(("a", 1), ("b", 1)))
        table.append(rows(("a", 2)))
        table.delete("n = 1")
        return read_rows(table)

    expected = fill()
    monkeypatch.setattr(files, "_DELETE_BATCH", 1)
    monkeypatch.setattr(files, "map_parallel", lambda function, items: list(map(function, items)))
    delete = files.Folder._delete
    left = [0]

    def dying(self: files.Folder, paths: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        delete(self, paths)

    moment = 0
    while True:
        pause(table)
        left[0] = moment
        try:
            with monkeypatch.context() as patch:
                patch.setattr(files.Folder, "_delete", dying)
                reopen(table).vacuum(NOTHING)
        except KeyboardInterrupt:
            assert read_rows(reopen(table)) == expected
            moment += 1 if moment < 6 or SOAK else 5
            if moment % 4 == 0:
                expected = fill()
            continue
        break
    assert moment > 6
    vacuum(table)
    assert list(assert_clean(store, table)) == table.snapshots()["id"].to_pylist()
    assert read_rows(reopen(table)) == expected


def test_cut_off_before_it_deletes(
    table: phalanx.Table, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.delete("n = 1")
    pause(table)
    with monkeypatch.context() as patch:
        patch.setattr(
            files.Folder, "list_files", lambda self: (_ for _ in ()).throw(OSError("cut"))
        )
        with pytest.raises(OSError, match="cut"):
            table.vacuum(NOTHING)
    assert table.snapshots()["id"].to_pylist() == [3]
    vacuum(table)
    assert_clean(store, table)


def in_threads(*work: Callable[[], object]) -> None:
    failures: list[BaseException] = []

    def run(step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(step,)) for step in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_two_at_once(table: phalanx.Table, store: Store) -> None:
    for number in range(5):
        table.append(rows(("a", number), (str(number), number)))
    expected = read_rows(table)
    pause(table)
    in_threads(*[functools.partial(reopen(table).vacuum, NOTHING)] * 4)
    assert read_rows(reopen(table)) == expected
    vacuum(table)
    assert_clean(store, table)


def test_times_that_no_calendar_has(table: phalanx.Table) -> None:
    assert table.vacuum(timedelta.max).files.num_rows == 0


def test_another_that_keeps_less(
    table: phalanx.Table, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other vacuum removes files that the first one would read; the first starts again."""
    table.delete("n = 1")
    since = pause(table)
    pause(table)
    table.append(rows(("a", 5)))
    pause(table)
    listed = files.Folder.list_files
    others = [reopen(table)]

    def slow(self: files.Folder) -> Any:
        if others:
            assert others.pop().vacuum(NOTHING).snapshots == (3,)
            clear_shared_session()
        return listed(self)

    monkeypatch.setattr(files.Folder, "list_files", slow)
    table.vacuum(datetime.now(UTC) - since)
    assert not others
    assert list(assert_clean(store, table)) == [4]


def test_with_concurrent_writers_and_readers(table: phalanx.Table, store: Store) -> None:
    table.overwrite(rows(*((k, 0) for k in "abc")))
    over = threading.Event()

    turns = 8 if store.storage_options is None else 3

    def write(number: int) -> None:
        own = reopen(table)
        for turn in range(turns):
            own.append(rows(("a", number), (f"own {number}", turn)))
            own.overwrite_partitions(rows((f"replaced {number}", turn)))

    def clean() -> None:
        own = reopen(table)
        while not over.is_set():
            own.vacuum(timedelta(milliseconds=1))
            # A write that overlaps a vacuum starts over: there must be time between vacuums.
            over.wait(0.3 if store.storage_options is None else 5)

    def read() -> None:
        own = reopen(table)
        while not over.is_set():
            # The rows of a transaction appear together; reading a snapshot that vacuum removed is
            # an error.
            try:
                found = read_rows(own)
            except PhalanxError as error:
                if "vacuum" not in str(error):
                    raise
                continue
            assert sum(k == "a" for k, _ in found) - 1 == sum(
                str(k).startswith("own") for k, _ in found
            )

    def work() -> None:
        try:
            in_threads(*(functools.partial(write, number) for number in (1, 2)))
        finally:
            over.set()

    in_threads(work, clean, read)
    expected = [("a", n) for n in (1, 2)] * turns + [("a", 0), ("b", 0), ("c", 0)]
    expected += [(f"own {n}", turn) for n in (1, 2) for turn in range(turns)]
    expected += [(f"replaced {n}", turns - 1) for n in (1, 2)]
    assert read_rows(reopen(table)) == sorted(expected, key=str)
    vacuum(table)
    assert_clean(store, table)


def test_a_late_restore_is_no_foreign_write(
    table: phalanx.Table, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow writer puts a version on main whose snapshot was removed meanwhile."""
    location = handle_of(table).root.leaf(table.plan("k = 'a'").partitions[0].location)
    version = table.plan("k = 'a'").partitions[0].version
    assert version is not None
    table.append(rows(("a", 3)))
    listed = files.Folder.list_files

    def slow(self: files.Folder) -> Any:
        main, restore = location.open_leaf(), LanceOperation.Restore(version)
        LanceDataset.commit(main, restore, read_version=main.version, **location.write_options)
        return listed(self)

    pause(table)
    with monkeypatch.context() as patch:
        patch.setattr(files.Folder, "list_files", slow)
        assert table.vacuum(NOTHING).snapshots == (1, 2)
    assert location.open_leaf().to_table()["n"].to_pylist() == [1, 2]
    table.append(rows(("a", 4)))
    assert read_rows(table, "k = 'a'") == [("a", 1), ("a", 2), ("a", 3), ("a", 4)]
    assert location.open_leaf().count_rows() == 4
    vacuum(table)
    assert_clean(store, table)


# ── afterwards ───────────────────────────────────────────────────────────────────────────────


def test_everything_goes_on(table: phalanx.Table, store: Store) -> None:
    options = store.storage_options
    table.append(rows(("a", 3), ("c", 3)))
    since = pause(table)
    pause(table)
    table.delete("n = 1")
    vacuum(table, since)
    assert table.rollback(3) == 5
    assert read_rows(table) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 3)]
    vacuum(table)
    assert_clean(store, table)
    on_main = [
        row["n"]
        for partition in table.plan().partitions
        for row in lance.dataset(partition.location, storage_options=options).to_table().to_pylist()
    ]
    assert sorted(on_main) == [1, 1, 2, 3, 3]
    assert table.diff(5, 5).num_rows == 0
    for mode in ("weak", "strong"):
        table.set_mode(mode)
        assert len(read_rows(table)) == 5
        table.append(rows(("a", 4)))
        table.delete("n = 4")
    vacuum(table)
    assert_clean(store, table)
    location = table.plan("k = 'a'").partitions[0].location
    lance.write_dataset(rows(("a", 1000)), location, mode="append", storage_options=options)
    assert table.keep_foreign_writes() == [location]
    lance.write_dataset(rows(("a", 1001)), location, mode="append", storage_options=options)
    assert table.discard_foreign_writes() == [location]
    assert ("a", 1000) in read_rows(table)
    assert ("a", 1001) not in read_rows(table)


# ── weak mode ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def weak(root: str, store: Store) -> phalanx.Table:
    made = phalanx.create(root, SCHEMA, ["k"], storage_options=store.storage_options)
    made.append(rows(("a", 1), ("a", 2), ("b", 1)))
    made.append(rows(("a", 3), ("c", 3)))
    made.delete("n = 1")
    return made


def test_weak_mode(weak: phalanx.Table, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for older_than in (NOTHING, timedelta(minutes=59)):
        with pytest.raises(PhalanxError, match=r"in weak mode.*at least 1:00:00.*set_mode"):
            weak.vacuum(older_than)
    assert weak.vacuum().files.num_rows == 0
    location = weak.plan("k = 'a'").partitions[0].location
    tagged = lance.dataset(location, version=3, storage_options=store.storage_options)
    tagged.tags.create("kept", 3)
    schema, root = handle_of(weak).state.properties.schema, handle_of(weak).root
    leaf.create_leaf(root.leaf(leaf_directory("v1$0123456789abcdef$dataset")), schema)
    weak.set_mode("strong")
    weak.append(rows(("b", 8)))
    weak.delete("n = 8")
    weak.set_mode("weak")
    monkeypatch.setattr(vacuuming, "LONGEST_WEAK_WRITE", NOTHING)
    before = read_rows(weak)
    done = vacuum(weak)
    assert done.snapshots == ()
    assert {"version", "orphan", "data"} <= set(done.files["kind"].to_pylist())
    assert read_rows(weak) == read_rows(reopen(weak)) == before
    assert tagged.to_table()["n"].to_pylist() == [1, 2]
    tagged.tags.delete("kept")
    vacuum(weak)
    assert_clean(store, weak)
    versions = [path for path in list_leaf_files(store, weak) if path.endswith(".manifest")]
    assert len(versions) == len(weak.plan().partitions)
    weak.append(rows(("a", 9)))
    weak.set_mode("strong")
    weak.append(rows(("b", 9)))
    assert read_rows(weak) == sorted([*before, ("a", 9), ("b", 9)], key=str)


def test_weak_mode_keeps_what_was_the_newest_since(
    weak: phalanx.Table, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that began earlier can still read."""
    monkeypatch.setattr(vacuuming, "LONGEST_WEAK_WRITE", NOTHING)
    location = weak.plan("k = 'a'").partitions[0].location
    reader = lance.dataset(location, storage_options=store.storage_options)
    since = pause(weak)
    pause(weak)
    weak.overwrite(rows(("a", 5)))
    vacuum(weak, since)
    assert reader.to_table()["n"].to_pylist() == [2, 3]
    vacuum(weak)
    assert read_rows(weak) == [("a", 5)]
    assert_clean(store, weak)


def test_going_strong_meanwhile(weak: phalanx.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuuming, "LONGEST_WEAK_WRITE", NOTHING)
    listed = files.Folder.list_files

    def slow(self: files.Folder) -> Any:
        reopen(weak).set_mode("strong")
        reopen(weak).append(rows(("a", 9)))
        return listed(self)

    monkeypatch.setattr(files.Folder, "list_files", slow)
    pause(weak)
    with pytest.raises(CommitConflict, match="changed to strong mode"):
        weak.vacuum(NOTHING)
    assert read_rows(weak.at(1)) == [("a", 2), ("a", 3), ("c", 3)]


# ── readers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["weak", "strong"])
@pytest.mark.parametrize(
    "read",
    [
        lambda scan: scan.to_arrow(),
        lambda scan: list(scan.to_batches()),
        lambda scan: scan.count_rows(),
        lambda scan: scan.to_reader().read_all(),
    ],
)
def test_a_reader_gets_an_error_for_what_a_vacuum_removed(
    root: str,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    read: Callable[[phalanx.Scan], object],
) -> None:
    """The leaf is open, and its files are gone before they are read."""
    monkeypatch.setattr(vacuuming, "LONGEST_WEAK_WRITE", NOTHING)
    table = phalanx.create(
        root, SCHEMA, ["k"], transaction=mode, storage_options=store.storage_options
    )
    table.append(rows(("a", 1), ("a", 2)))
    scan, other, opened = table.scan("n > 0"), reopen(table), Location.open_leaf
    removed: list[bool] = []

    def slow(self: Location, version: int | None = None) -> Any:
        dataset = opened(self, version)
        if not removed:
            removed.append(True)
            other.overwrite(rows(("a", 3)))
            pause(other)
            other.vacuum(NOTHING)
        return dataset

    monkeypatch.setattr(Location, "open_leaf", slow)
    with pytest.raises(StorageFailure, match="Vacuum removed the version that was being read"):
        read(scan)
    assert read_rows(table) == [("a", 3)]


# ── an object store, whatever the tests run on ───────────────────────────────────────────────


def test_on_s3(s3: Store) -> None:
    options = {**(s3.storage_options or {}), "timeout": "60s", "request_timeout": "60s"}
    table = phalanx.create(s3.fresh(), SCHEMA, ["k"], transaction="strong", storage_options=options)
    table.append(rows(("a", 1), ("b", 1)))
    table.delete("k = 'a'")
    done = vacuum(table)
    assert done.snapshots == (1, 2)
    assert set(done.files["kind"].to_pylist()) == {"version", "transaction", "data"}
    assert list(assert_clean(s3, table)) == [3]
