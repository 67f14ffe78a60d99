"""Erasure: afterwards no file of the table or of an adopted partition contains the rows."""

from __future__ import annotations

import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileReader

import phalanx
from faults.programs.fault_injection import fail_at
from integration.shell import assert_fails, run, run_json
from phalanx.storage.lance.fault_points import FaultPoint
from phalanx.table.maintenance import erase as erasing
from phalanx.table.maintenance.erase import Erased

SCHEMA = pa.schema([("k", pa.string()), ("name", pa.string()), ("n", pa.int64())])
# A long, unique text, which is found in raw bytes if it is not compressed.
MARKER = "alice-7f3b91c2d4e8a605"
WHERE = f"name = '{MARKER}'"
NOTHING = timedelta(0)


def rows(*values: tuple[str, str, int]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, each, strict=True)) for each in values], SCHEMA
    )


def read_rows(table: phalanx.Table) -> list[tuple[str, str, int]]:
    found = table.scan().to_arrow().to_pylist()
    return sorted((row["k"], row["name"], row["n"]) for row in found)


def holders(*places: str | Path, marker: str = MARKER) -> list[str]:
    """Return every file below some paths that has the marker, in its bytes or after decoding."""
    found = []
    for place in places:
        for path in Path(place).rglob("*"):
            if path.is_file() and (marker.encode() in path.read_bytes() or marker in _decode(path)):
                found.append(str(path))
    return found


def _decode(path: Path) -> str:
    if path.suffix == ".arrow":
        return str(pa.ipc.open_file(pa.OSFile(str(path))).read_all().to_pydict())
    if path.suffix != ".lance":
        return ""
    return str(LanceFileReader(str(path)).read_all().to_table().to_pydict())


@pytest.fixture(params=["weak", "strong", "expressions"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> phalanx.Table:
    drafted = request.param == "expressions"
    made = phalanx.create(
        tmp_path / "table",
        SCHEMA,
        ["k"],
        transaction="strong" if drafted else request.param,
        layout="expressions" if drafted else "namespace",
    )
    made.append(rows(("a", MARKER, 1), ("a", "bob", 2), ("b", MARKER, 3), ("c", "eve", 4)))
    made.append(rows(("a", "dan", 5)))
    return made


LEFT = [("a", "bob", 2), ("a", "dan", 5), ("c", "eve", 4)]


def check(table: phalanx.Table, *others: str | Path) -> None:
    assert holders(table.uri, *others) == []
    for one in (table, phalanx.open(table.uri)):
        assert not one.scan(WHERE).count_rows()


def test_rows_are_gone_from_every_file(table: phalanx.Table) -> None:
    assert holders(table.uri)
    done = table.erase(WHERE)
    check(table)
    assert read_rows(table) == LEFT
    assert (done.rows, done.live_rows, done.files) == (2, 2, 2)
    assert done.files_verified
    assert done.removed.num_rows
    assert done.to_dict()["rows"] == 2
    assert "Erased 2 rows (2 of them live) from 2 files" in str(done)
    table.append(rows(("b", "new", 6)))
    assert read_rows(table) == sorted([*LEFT, ("b", "new", 6)])
    assert table.health() is not None


def test_nothing_to_erase_changes_nothing(table: phalanx.Table) -> None:
    if table.mode == "weak":
        table.set_mode("strong")
    before = {path for path in Path(table.uri).rglob("*") if "__manifest" not in str(path)}
    snapshots = table.snapshots()["id"].to_pylist()
    done = table.erase("name = 'nobody'")
    assert (done.rows, done.files, done.removed.num_rows, done.snapshots) == (0, 0, 0, ())
    assert "Nothing to erase" in str(done)
    assert done.files_verified
    assert {path for path in Path(table.uri).rglob("*") if "__manifest" not in str(path)} == before
    assert table.snapshots()["id"].to_pylist() == snapshots


@pytest.mark.parametrize("then", ["", "vacuum", "rewrite", "rewrite vacuum", "update"])
def test_rows_that_were_deleted_before(table: phalanx.Table, then: str) -> None:
    if then == "update":
        table.update(WHERE, {"name": "'someone'"})
    else:
        table.delete(WHERE)
    if "rewrite" in then:
        table.rewrite(rewrite_all=True)
    if "vacuum" in then and table.mode == "strong":
        table.vacuum(NOTHING)
    left = read_rows(table)
    stored = holders(table.uri)
    done = table.erase(WHERE)
    check(table)
    assert read_rows(table) == left
    assert bool(done.removed.num_rows) == bool(stored)
    assert done.live_rows == 0
    assert table.erase(WHERE).removed.num_rows == 0


def test_a_whole_partition_takes_its_values_along(tmp_path: Path) -> None:
    for number, mode in enumerate(("strong", "weak")):
        table = phalanx.create(tmp_path / mode, SCHEMA, ["k", "name"], transaction=mode)
        table.append(rows(("a", MARKER, 1), ("a", "bob", 2), ("b", MARKER, 3)))
        if number:
            table.delete(WHERE)
        elif mode == "strong":
            table.drop_partitions(f"{WHERE} AND k = 'a'")
            table.vacuum(NOTHING)
        done = table.erase(WHERE)
        check(table)
        assert holders(table.uri, marker="bob")
        assert read_rows(table) == [("a", "bob", 2)]
        assert done.partitions == (2 if mode == "weak" else 1)
        assert table.partitions()["name"].to_pylist() == ["bob"]
        table.append(rows(("b", MARKER, 3), ("d", "bob", 7)))
        assert read_rows(table) == sorted([("a", "bob", 2), ("b", MARKER, 3), ("d", "bob", 7)])


@pytest.mark.parametrize("mode", ["weak", "strong"])
@pytest.mark.parametrize("inside", [True, False])
def test_adopted_leaves(tmp_path: Path, mode: str, inside: bool) -> None:
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"])
    leaf = tmp_path / ("table/mine" if inside else "mine")
    lance.write_dataset(rows(("x", MARKER, 1), ("x", "bob", 2)), leaf)
    lance.write_dataset(rows(("x", MARKER, 9)), leaf, mode="append")
    table.adopt(leaf)
    table.set_mode(mode)
    done = table.erase(WHERE)
    check(table, leaf)
    assert done.rows == 2
    assert read_rows(table) == [("x", "bob", 2)]
    assert lance.dataset(str(leaf)).count_rows() == 1
    table.append(rows(("x", MARKER, 3)))
    table.set_mode("strong")
    # Dropped, they are gone with the next vacuum that may remove them.
    table.drop_partitions("k = 'x'")
    assert holders(leaf)
    with (
        fail_at(FaultPoint.VERSIONS_DELETED, 1, KeyboardInterrupt()),
        pytest.raises(KeyboardInterrupt),
    ):
        table.vacuum(NOTHING)
    [found] = [each for each in phalanx.open(table.uri).health() if each.kind == "leftovers"]
    assert found.python == "table.vacuum()"
    assert str(leaf) in found.message
    table.set_mode("weak")
    table.set_mode("strong")
    phalanx.open(table.uri).vacuum(NOTHING)
    assert holders(table.uri, leaf) == []
    assert not any(path.is_file() for path in leaf.rglob("*"))
    assert "leftovers" not in [each.kind for each in table.health()]
    table.append(rows(("x", "bob", 4)))
    assert read_rows(table) == [("x", "bob", 4)]


def test_indexes_forget(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", MARKER, 1), *(("a", f"name {n}", n) for n in range(300))))
    table.create_index("name", "BTREE")
    table.create_index("name", "INVERTED")
    assert any("_indices" in path for path in holders(table.uri))
    table.erase(WHERE)
    check(table)
    assert holders(table.uri, marker="name 7")
    assert table.scan("name = 'name 7'").count_rows() == 1
    assert not table.search("name", MARKER.split("-")[1], k=3).num_rows
    assert not [each for each in table.health() if each.kind == "unindexed-rows"]


def test_snapshots_that_read_the_rows_expire_and_no_later_ones(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", MARKER, 1), ("a", "bob", 2)))
    table.delete(WHERE)
    table.rewrite(rewrite_all=True)
    kept = table.snapshots()["id"].to_pylist()[-1]
    table.append(rows(("b", "eve", 3)))
    done = table.erase(WHERE)
    check(table)
    assert done.snapshot is None
    assert table.snapshots()["id"].to_pylist() == [kept, kept + 1]
    assert read_rows(table.at(kept)) == [("a", "bob", 2)]
    assert read_rows(table) == [("a", "bob", 2), ("b", "eve", 3)]


def test_a_running_transaction_brings_nothing_back(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", MARKER, 1), ("a", "bob", 2)))

    def move() -> None:
        with table.transaction() as txn:
            txn.update(WHERE, {"k": "'b'"})
            phalanx.open(table.uri).erase(WHERE)

    def add() -> None:
        with table.transaction() as txn:
            txn.append(rows(("a", "eve", 3)))
            phalanx.open(table.uri).append(rows(("a", MARKER, 4)))
            phalanx.open(table.uri).erase(WHERE)

    for change in (move, add):
        with pytest.raises(phalanx.CommitConflict):
            change()
    check(table)
    assert read_rows(table) == [("a", "bob", 2)]
    with pytest.raises(phalanx.PhalanxError):
        table.rollback(2)


def test_columns_that_were_renamed_promoted_and_added(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", MARKER, 1), ("a", "bob", 2)))
    table.rename_column("name", "who")
    table.add_column(pa.field("more", pa.string()))
    table.drop_column("n")
    table.erase(f"who = '{MARKER}'")
    assert holders(table.uri) == []
    assert table.scan().to_arrow().to_pylist() == [{"k": "a", "who": "bob", "more": None}]


def test_tags_of_a_leaf_need_force(table: phalanx.Table) -> None:
    leaf = table.plan("k = 'a'").partitions[0].location
    lance.dataset(leaf).tags.create("kept", lance.dataset(leaf).version)
    before = read_rows(table)
    with pytest.raises(phalanx.PhalanxError, match=r"its tags kept keep matching rows.*force=True"):
        table.erase(WHERE)
    assert read_rows(table) == before
    table.erase(WHERE, force=True)
    check(table)


def test_a_leaf_that_is_not_ours_is_refused(table: phalanx.Table, tmp_path: Path) -> None:
    from integration.test_ownership import relocate

    leaf = Path(table.plan("k = 'a'").partitions[0].location)
    other = tmp_path / "other"
    leaf.rename(other)
    relocate(table, str(other))
    record = lance.dataset(str(other)).metadata["phalanx.namespace"]
    opened = phalanx.open(table.uri)
    # The record names this table and this root: it is ours, wherever it is.
    assert str(table.uri) in record
    opened.erase(WHERE)
    check(opened, other)
    assert read_rows(opened) == LEFT


def test_hive_is_refused_with_the_way_out(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "hive", SCHEMA, ["k"], layout="hive")
    table.append(rows(("a", MARKER, 1), ("a", "bob", 2)))
    with pytest.raises(phalanx.PhalanxError, match=r"hive layout.*upgrade\(\)"):
        table.erase(WHERE)
    table.upgrade()
    table.erase(WHERE)
    check(table)


def test_a_bad_predicate_changes_nothing(table: phalanx.Table) -> None:
    mode = table.mode
    with pytest.raises(phalanx.InvalidPredicate):
        table.erase("nobody = 1")
    assert table.mode == mode
    assert isinstance(table.erase("false"), Erased)


def test_health_reports_unlisted_leaves(table: phalanx.Table, tmp_path: Path) -> None:
    """A leaf that was adopted, and that no manifest lists any more."""
    assert "leftovers" not in [each.kind for each in table.health()]
    leaf = Path(table.plan("k = 'a'").partitions[0].location)
    shutil.copytree(leaf, Path(table.uri) / "mine")
    [found] = [each for each in table.health() if each.kind == "leftovers"]
    assert "mine" in found.message
    assert "Adopt it again, or remove it" in found.message
    assert "mine" in str(table.health().to_dict())


def test_the_shell_erases(table: phalanx.Table) -> None:
    assert "Erased 2 rows (2 of them live) from 2 files" in run("erase", table.uri, WHERE).stdout
    check(table)
    found = run_json("erase", table.uri, WHERE)
    assert (found["rows"], found["files_removed"]) == (0, [])
    assert_fails(run("erase", table.uri, "nobody = 1"), 1, "nobody")


def test_with_concurrent_writers(tmp_path: Path) -> None:
    """Writes that began earlier do not restore a row, and the rows that they add stay."""
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")
    table.append(rows(*((f"{n % 3}", MARKER if n % 5 == 0 else "bob", n) for n in range(60))))
    assert table.update(WHERE, {"k": "k"}) == 12
    added = Counter[int]()

    def move() -> None:
        mine = phalanx.open(table.uri)
        for number in range(4):
            with suppress(phalanx.CommitConflict):
                mine.update(WHERE, {"k": f"'{number}'"})

    def add(first: int) -> None:
        mine = phalanx.open(table.uri)
        for number in range(first, first + 4):
            with suppress(phalanx.CommitConflict):
                mine.append(rows((f"{number % 4}", "eve", number)))
                added[number] += 1

    with ThreadPoolExecutor(3) as pool:
        work = [pool.submit(move), pool.submit(add, 1000), pool.submit(add, 2000)]
        done = phalanx.open(table.uri).erase(WHERE)
        for each in work:
            each.result()
    assert done.live_rows == 12
    check_rows = Counter(n for _, name, n in read_rows(phalanx.open(table.uri)) if name == "eve")
    assert check_rows == added
    assert table.scan(WHERE).count_rows() == 0
    # The next erasure removes the files of refused concurrent writes.
    table.erase(WHERE)
    check(table)


def test_everything_goes_before_a_table_is_dropped(tmp_path: Path) -> None:
    """Dropping a table leaves the partitions that it adopted outside of its folder."""
    for mode in ("weak", "strong"):
        table = phalanx.create(tmp_path / mode, SCHEMA, ["k"])
        leaf = tmp_path / f"{mode} outside"
        lance.write_dataset(rows(("x", MARKER, 1), ("x", "bob", 2)), leaf)
        table.adopt(leaf)
        table.append(rows(("a", "dan", 3)))
        table.set_mode(mode)
        assert table.erase("true").partitions == 2
        assert not any(path.is_file() for path in leaf.rglob("*"))
        assert read_rows(table) == []
        assert "leftovers" not in [each.kind for each in table.health()]


def test_others_that_are_always_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full check takes longer than their next commit: only the new commit is checked."""
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", MARKER, 1), ("a", "bob", 2), ("b", "dan", 3)))
    other, move = phalanx.open(table.uri), erasing.move_horizon
    found, looks, added = erasing._Erasure._find_targets, Counter[str](), 0

    def late(*given: Any, **options: Any) -> Any:
        nonlocal added
        if added < 45:
            other.append(rows(("a" if added % 2 else "b", "eve", 100 + added)))
            added += 1
        return move(*given, **options)

    def look(erasure: Any, manifest: Any) -> Any:
        looks["all"] += 1
        return found(erasure, manifest)

    monkeypatch.setattr(erasing, "move_horizon", late)
    monkeypatch.setattr(erasing._Erasure, "_find_targets", look)
    table.erase(WHERE)
    check(table)
    assert looks["all"] <= 5
    assert len(read_rows(table)) == 2 + 45


def test_others_that_add_to_a_partition_while_it_is_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rewritten rows are staged on top of the concurrent change."""
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", MARKER, 1), *(("a", "bob", n) for n in range(2, 50))))
    table.create_index("name", "BTREE", min_rows=1)
    other, clean, written = phalanx.open(table.uri), erasing.remove_matches, list[int]()

    def slow(*given: Any) -> Any:
        done = clean(*given)
        written.append(done.files_after)
        if len(written) == 1:
            other.append(rows(("a", MARKER, 100), ("a", "eve", 101)))
        elif len(written) == 2:
            other.append(rows(("a", "eve", 102)))
        return done

    monkeypatch.setattr(erasing, "remove_matches", slow)
    done = table.erase(WHERE)
    check(table)
    assert written == [1, 1, 0]
    assert (done.live_rows, done.files_written) == (2, 2)
    assert sorted(n for *_, n in read_rows(table)) == [*range(2, 50), 101, 102]
