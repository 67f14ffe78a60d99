"""Versions, branches and tags that table rows of the expression draft name (Read Behavior)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance_namespace import CountTableRowsRequest, DescribeTableRequest

import phalanx
from integration.expression_rows import (
    leaf,
    on_a_branch,
    pin,
    pins,
    read_by_the_draft,
    read_pairs,
    row_of,
)
from phalanx.errors import CommitConflict, PhalanxError
from phalanx.storage.commit.head import remove_strong_rows
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from tables import SCHEMA, rows

BASE = [("a", 1), ("a", 2), ("b", 1), ("c", 1)]


@pytest.fixture(params=["weak", "strong"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> phalanx.Table:
    made = phalanx.create(
        # Lance keeps branches in a folder of this name.
        tmp_path / "tree" / "table",
        SCHEMA,
        ["k"],
        transaction=request.param,
        layout="expressions",
    )
    made.append(rows(("a", 1), ("b", 1), ("c", 1)))
    made.append(rows(("a", 2)))
    return made


@pytest.fixture
def pinned(table: phalanx.Table) -> phalanx.Table:
    """`a` by a tag on an older version, `b` by a branch, `c` by a version in weak mode."""
    older = leaf(table, "a").version - 1
    leaf(table, "a").tags.create("release", older)
    pin(table, "a", read_tag="release")
    pin(table, "b", read_branch="team/work", read_version=_branch(table))
    if table.mode == "weak":
        pin(table, "c", read_version=leaf(table, "c").version)
    return table


def _branch(table: phalanx.Table) -> int:
    return on_a_branch(leaf(table, "b"), "team/work", rows(("b", 7)))


PINNED = [("a", 1), ("b", 1), ("b", 7), ("c", 1)]


def test_all_reads_honour_the_rows(pinned: phalanx.Table) -> None:
    for table in (pinned, phalanx.open(pinned.uri)):
        assert read_pairs(table) == PINNED == read_by_the_draft(table.uri)
        assert table.scan("k = 'b' AND n = 7").count_rows() == 1
        assert table.partition(k="b").count_rows() == 2
        assert table.partition(k="a").to_table()["n"].to_pylist() == [1]
        listed = {row["k"]: row for row in table.partitions().to_pylist()}
        assert {key: row["rows"] for key, row in listed.items()} == {"a": 1, "b": 2, "c": 1}
        [planned] = table.plan("k = 'b'").partitions
        assert planned.version == row_of(table, "b")["read_version"]
        assert lance.dataset(planned.location, version=planned.version).count_rows() == 2


@pytest.mark.parametrize("table", ["strong"], indirect=True)
def test_the_newest_snapshot_is_what_is_read(pinned: phalanx.Table) -> None:
    newest = pinned.newest_snapshot
    assert newest is not None
    assert read_pairs(pinned.at(newest)) == PINNED
    pinned.append(rows(("c", 2)))
    pinned.add_column(pa.field("more", pa.int8()))
    assert read_pairs(pinned.at(newest)) == PINNED
    assert pinned.at(newest).schema.names == ["k", "n"]
    pinned.rollback(newest)
    assert read_pairs(pinned) == PINNED == read_by_the_draft(pinned.uri)


def test_the_namespace_shows_what_is_read(pinned: phalanx.Table) -> None:
    namespace = phalanx.PartitionedNamespace(root=pinned.uri)
    for key, count in (("a", 1), ("b", 2)):
        id = row_of(pinned, key)["object_id"].split("$")
        described = namespace.describe_table(DescribeTableRequest(id=id))
        assert described.location is not None
        assert lance.dataset(described.location, version=described.version).count_rows() == count
        assert namespace.count_table_rows(CountTableRowsRequest(id=id)).count == count


def test_a_tag_that_moves_is_followed_at_once(pinned: phalanx.Table) -> None:
    assert read_pairs(pinned) == PINNED
    other = phalanx.open(pinned.uri)
    assert read_pairs(other) == PINNED
    dataset = leaf(pinned, "a")
    dataset.tags.update("release", dataset.version)
    assert read_pairs(pinned) == read_pairs(other) == sorted([*PINNED, ("a", 2)])


def test_a_tag_of_a_branch_is_read_there(table: phalanx.Table) -> None:
    version = _branch(table)
    leaf(table, "b").tags.create("candidate", ("team/work", version))
    pin(table, "b", read_tag="candidate")
    assert read_pairs(table) == sorted([*BASE, ("b", 7)]) == read_by_the_draft(table.uri)
    if table.mode == "weak":
        table.set_mode("strong")
    table.append(rows(("b", 8)))
    assert pins(table, "b")[1:] == ("team/work", None)
    assert read_pairs(table) == sorted([*BASE, ("b", 7), ("b", 8)]) == read_by_the_draft(table.uri)


def test_the_main_branch_may_be_named(table: phalanx.Table) -> None:
    pin(table, "a", read_branch="main", read_version=leaf(table, "a").version - 1)
    assert read_pairs(table) == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"read_version": 1, "read_tag": "release"}, "has read_version = 1, read_tag = 'release'"),
        ({"read_branch": "team/work"}, "has read_branch = 'team/work': expected"),
        ({"read_branch": "x", "read_tag": "release"}, "has read_branch = 'x', read_tag"),
        (
            {"read_version": 1, "read_branch": "x", "read_tag": "release"},
            "has read_version = 1, read_branch = 'x', read_tag = 'release'",
        ),
        ({"read_tag": "none"}, "the tag 'none'"),
        ({"read_branch": "nowhere", "read_version": 1}, "tree/nowhere is in the manifest"),
    ],
)
def test_other_combinations_name_the_row(
    table: phalanx.Table, values: dict[str, int | str], why: str
) -> None:
    pin(table, "a", **values)
    with pytest.raises(PhalanxError, match=why) as raised:
        read_pairs(phalanx.open(table.uri))
    row = row_of(table, "a")
    assert row["object_id"] in str(raised.value) or row["location"] in str(raised.value)
    with pytest.raises(PhalanxError, match=why if table.mode == "strong" else "in weak mode"):
        table.append(rows(("a", 5)))


@pytest.mark.parametrize("table", ["weak"], indirect=True)
def test_weak_writes_that_no_reader_would_see_are_refused(pinned: phalanx.Table) -> None:
    before = [leaf(pinned, key).version for key in "abc"]
    changes = (
        lambda: pinned.append(rows(("new", 1))),
        lambda: pinned.delete("n = 1"),
        lambda: pinned.overwrite(rows(("a", 1)), "k = 'a'"),
        lambda: pinned.begin_write(),
        lambda: pinned.rewrite(min_input_files=2),
    )
    for change in changes:
        with pytest.raises(PhalanxError, match=r"row 'v1\$.*pins the version that is read"):
            change()
    assert [leaf(pinned, key).version for key in "abc"] == before
    assert pinned.plan().total_partitions == 3
    pin(pinned, "b")
    with pytest.raises(PhalanxError, match="names, and in weak mode the newest format"):
        pinned.upgrade()


def test_strong_writes_go_on_top_of_what_is_read(pinned: phalanx.Table) -> None:
    if pinned.mode == "weak":
        pinned.set_mode("strong")
        assert read_pairs(pinned) == PINNED == read_by_the_draft(pinned.uri)
    pinned.append(rows(("a", 9), ("b", 9), ("new", 9)))
    expected = sorted([*PINNED, ("a", 9), ("b", 9), ("new", 9)])
    assert read_pairs(pinned) == expected == read_by_the_draft(pinned.uri)
    # A version replaces the tag, and the branch has a newer one. Main follows where it is read.
    assert pins(pinned, "a")[1:] == (None, None)
    assert pins(pinned, "b")[1:] == ("team/work", None)
    assert leaf(pinned, "a").to_table()["n"].to_pylist() == [1, 9]
    assert leaf(pinned, "b").to_table()["n"].to_pylist() == [1]
    branch = leaf(pinned, "b").checkout_version(("team/work", None))
    assert branch.to_table()["n"].to_pylist() == [1, 7, 9]
    assert leaf(pinned, "a").checkout_version("release").to_table()["n"].to_pylist() == [1]


def test_every_change_works_on_a_branch(pinned: phalanx.Table) -> None:
    if pinned.mode == "weak":
        pinned.set_mode("strong")
    with pinned.transaction() as txn:
        txn.append(rows(("b", 8), ("b", 9)))
        txn.delete("n = 7")
    assert [n for k, n in read_pairs(pinned) if k == "b"] == [1, 8, 9]
    before = pinned.newest_snapshot
    pinned.add_column(pa.field("more", pa.int32()))
    pinned.overwrite(
        rows(("b", 3)).append_column("more", pa.array([4], pa.int32())), "k = 'b' AND n > 1"
    )
    assert [n for k, n in read_pairs(pinned) if k == "b"] == [1, 3]
    pinned.rewrite(min_input_files=2)
    assert read_pairs(pinned) == read_by_the_draft(pinned.uri)
    assert before is not None
    assert [n for k, n in read_pairs(pinned.at(before)) if k == "b"] == [1, 8, 9]
    changed = pinned.diff(before, pinned.newest_snapshot or 0).to_pylist()
    assert {row["k"]: (row["rows_added"], row["rows_removed"]) for row in changed} == {
        "a": (0, 0),
        "b": (1, 2),
        "c": (0, 0),
    }
    pinned.rollback(before)
    assert [n for k, n in read_pairs(pinned) if k == "b"] == [1, 8, 9]
    pinned.vacuum(timedelta(0))
    assert [n for k, n in read_pairs(pinned) if k == "b"] == [1, 8, 9]
    assert read_pairs(pinned) == read_by_the_draft(pinned.uri)
    # Vacuum must not remove what the tag keeps, nor the main branch of `b`.
    assert leaf(pinned, "a").checkout_version("release").count_rows() == 1
    assert leaf(pinned, "b").to_table()["n"].to_pylist() == [1]


def test_a_branch_that_others_wrote_to_is_reported(pinned: phalanx.Table) -> None:
    if pinned.mode == "weak":
        pinned.set_mode("strong")
    branch = leaf(pinned, "b").checkout_version(("team/work", None))
    lance.write_dataset(rows(("b", 100)), branch, mode="append")
    with pytest.raises(phalanx.ForeignWrite, match="tree/team/work outside Phalanx"):
        pinned.append(rows(("b", 9)))
    assert read_pairs(pinned) == PINNED == read_by_the_draft(pinned.uri)
    pinned.keep_foreign_writes()
    assert read_pairs(pinned) == sorted([*PINNED, ("b", 100)]) == read_by_the_draft(pinned.uri)


def test_a_branch_cannot_go_to_weak_mode_or_the_newest_format(pinned: phalanx.Table) -> None:
    if pinned.mode == "weak":
        pinned.set_mode("strong")
    name = row_of(pinned, "b")["object_id"].replace("$", r"\$")
    with pytest.raises(PhalanxError, match=rf"{name} is read from the branch 'team/work'"):
        pinned.set_mode("weak")
    with pytest.raises(PhalanxError, match=rf"{name} is read from the branch 'team/work'"):
        pinned.upgrade()
    assert (pinned.mode, pinned.layout) == ("strong", "expressions")
    assert read_pairs(pinned) == PINNED


def test_a_row_that_changes_under_a_transaction_is_reported(tmp_path: Path) -> None:
    table = phalanx.create(
        tmp_path / "t", SCHEMA, ["k"], transaction="strong", layout="expressions"
    )
    table.append(rows(("b", 1)))
    version = _branch(table)
    txn = table.transaction()
    txn.append(rows(("b", 2)))
    pin(table, "b", read_branch="team/work", read_version=version)
    with pytest.raises(CommitConflict, match="from another branch now"):
        txn.__exit__(None, None, None)
    assert read_pairs(table) == [("b", 1), ("b", 7)]
    # A single statement retries on top of what is read now.
    table.append(rows(("b", 2)))
    assert read_pairs(table) == [("b", 1), ("b", 2), ("b", 7)] == read_by_the_draft(table.uri)


def test_a_rollback_does_not_change_branches(tmp_path: Path) -> None:
    table = phalanx.create(
        tmp_path / "t", SCHEMA, ["k"], transaction="strong", layout="expressions"
    )
    table.append(rows(("b", 1)))
    table.append(rows(("c", 1)))
    pin(table, "b", read_branch="team/work", read_version=_branch(table))
    table.append(rows(("b", 2)))
    first, second, third = table.snapshots()["id"].to_pylist()[1:]
    counted = ["k", "rows_added", "rows_removed"]
    assert table.diff(first, third).select(counted).to_pylist() == [
        {"k": "b", "rows_added": 2, "rows_removed": 0},
        {"k": "c", "rows_added": 1, "rows_removed": 0},
    ]
    # The row changed during the second one, and the last change counts.
    assert table.diff(second, third).select(counted).to_pylist() == [
        {"k": "b", "rows_added": 1, "rows_removed": 0}
    ]
    with pytest.raises(
        PhalanxError, match=r"read from .* then, and is read from .*tree/team/work now"
    ):
        table.rollback(first)
    assert read_pairs(table.at(first)) == [("b", 1)]
    table.rollback(second)
    assert read_pairs(table) == [("b", 1), ("b", 7), ("c", 1)] == read_by_the_draft(table.uri)


def test_out_of_strong_mode_and_back(tmp_path: Path) -> None:
    table = phalanx.create(
        tmp_path / "t", SCHEMA, ["k"], transaction="strong", layout="expressions"
    )
    table.append(rows(("a", 1), ("b", 1)))
    leaf(table, "a").tags.create("release", leaf(table, "a").version)
    pin(table, "a", read_tag="release")
    table.set_mode("weak")
    assert [pins(table, key) for key in "ab"] == [(None, None, None)] * 2
    table.append(rows(("a", 2)))
    assert read_pairs(table) == [("a", 1), ("a", 2), ("b", 1)] == read_by_the_draft(table.uri)
    table.set_mode("strong")
    table.append(rows(("a", 3)))
    assert (
        read_pairs(table)
        == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
        == read_by_the_draft(table.uri)
    )


def test_nothing_clears_a_table_that_is_strong_again(tmp_path: Path) -> None:
    """A writer that saw the mode weak may come late."""
    table = phalanx.create(
        tmp_path / "t", SCHEMA, ["k"], transaction="strong", layout="expressions"
    )
    table.append(rows(("a", 1)))
    before = pins(table, "a")
    remove_strong_rows(Manifest.open(Location.of(table.uri)))
    assert pins(table, "a") == before
    assert table.newest_snapshot == 2


def test_vacuum_in_weak_mode_keeps_what_rows_name(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "t", SCHEMA, ["k"], layout="expressions")
    table.append(rows(("a", 1)))
    old = leaf(table, "a").version
    table.overwrite(rows(("a", 2)))
    pin(table, "a", read_version=old)
    found = table.vacuum(timedelta(0), dry_run=True)
    paths = " ".join(found.files["path"].to_pylist())
    [data] = [
        file.path
        for fragment in lance.dataset(leaf(table, "a").uri, version=old).get_fragments()
        for file in fragment.data_files()
    ]
    assert found.files.num_rows
    assert data not in paths
    pin(table, "a")
    assert data in " ".join(table.vacuum(timedelta(0), dry_run=True).files["path"].to_pylist())


@pytest.mark.parametrize("table", ["strong"], indirect=True)
def test_changes_are_reported_unless_others_change_what_is_read(table: phalanx.Table) -> None:
    def list_changes(first: int, last: int | None = None) -> list[tuple[str, int]]:
        found = table.changes(first, last).to_arrow()
        return sorted(zip(found["_change"].to_pylist(), found["n"].to_pylist(), strict=True))

    newest = table.newest_snapshot
    assert newest is not None
    table.delete("n = 2")
    assert list_changes(newest - 1) == [("delete", 2), ("insert", 2)]
    older = row_of(table, "a")["read_version"]
    table.append(rows(("a", 9)))
    pin(table, "a", read_version=older)
    table.append(rows(("b", 10)))
    assert read_pairs(table) == [("a", 1), ("b", 1), ("b", 10), ("c", 1)]
    assert list_changes(newest - 1, newest + 1) == [("delete", 2), ("insert", 2)]
    for first, last in ((newest, newest + 2), (newest + 2, None)):
        with pytest.raises(PhalanxError, match="read of its table v1"):
            table.changes(first, last)
    # After Phalanx has written that table again, it reports everything.
    table.append(rows(("a", 11)))
    table.append(rows(("a", 12)))
    assert list_changes(newest + 4) == [("insert", 12)]
