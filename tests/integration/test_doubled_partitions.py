"""Partitions with several leaves: each of several writers may create the same partition."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

import phalanx
from foreign_namespaces import BY_K, ForeignManifest, read_by_the_format
from phalanx.errors import PhalanxError
from tables import rows

Pairs = list[tuple[str | None, int]]
DOUBLED: Pairs = [("a", 1), ("a", 2), ("b", 1), (None, 3), (None, 4)]


def build(root: Path, specs: dict[int, Any] | None = None) -> phalanx.Table:
    """Two leaves of the partition a, one of b, two of NULL."""
    manifest = ForeignManifest(root, specs=specs or BY_K)
    manifest.add("v1", "namespace")
    for name, pair in (("x1", DOUBLED[0]), ("x2", DOUBLED[1]), ("y", DOUBLED[2])):
        lance.write_dataset(rows(pair), root / f"{name}_leaf")
        manifest.add_partition(name, f"{name}_leaf", k=pair[0])
    for name, pair in (("z2", DOUBLED[3]), ("z1", DOUBLED[4])):
        lance.write_dataset(rows(pair), root / "below" / name)
        manifest.add_partition(name, f"below/{name}", k=None)
    return phalanx.open(manifest.write())


@pytest.fixture(params=["weak", "strong"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> phalanx.Table:
    found = build(tmp_path / "ns")
    found.set_mode(request.param)
    return found


def read_rows(table: phalanx.Table, where: str | None = None) -> list[Any]:
    found = table.scan(where, columns=["k", "n"]).to_arrow()
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True), key=str)


def check(table: phalanx.Table, wanted: Pairs) -> None:
    wanted = sorted(wanted, key=str)
    assert read_rows(table) == read_rows(phalanx.open(table.uri)) == wanted
    assert read_by_the_format(table.uri) == wanted
    assert table.scan().count_rows() == len(wanted)
    for key in {k for k, _ in wanted}:
        where = "k IS NULL" if key is None else f"k = '{key}'"
        assert read_rows(table, where) == [pair for pair in wanted if pair[0] == key]


def test_all_leaves_are_read(table: phalanx.Table) -> None:
    check(table, DOUBLED)
    assert len(table.plan("k = 'a'").partitions) == 2
    assert table.partitions()["k"].to_pylist() == ["a", "a", "b", None, None]


def test_rows_are_added_to_the_first(table: phalanx.Table) -> None:
    for number in (10, 11):
        table.append(rows(("a", number), (None, number), ("c", number)))
    added: Pairs = [(key, number) for key in ("a", None, "c") for number in (10, 11)]
    check(table, [*DOUBLED, *added])
    counts = dict(
        zip(
            (Path(each).name for each in table.partitions()["location"].to_pylist()),
            table.partitions()["rows"].to_pylist(),
            strict=True,
        )
    )
    assert (counts["x1_leaf"], counts["x2_leaf"]) == (3, 1)
    assert (counts["z1"], counts["z2"]) == (3, 1)


def test_changes_reach_all_leaves(table: phalanx.Table) -> None:
    table.overwrite_partitions(rows(("a", 60)))
    check(table, [("a", 60), *DOUBLED[2:]])
    assert table.update("k IS NULL", {"n": "n + 10"}) == 2
    check(table, [("a", 60), ("b", 1), (None, 13), (None, 14)])
    table.append(rows(("a", 61)))
    merged = table.merge(rows(("a", 61), ("b", 2)), on="n", when_matched="delete")
    assert merged.deleted == 1
    check(table, [("a", 60), ("b", 1), ("b", 2), (None, 13), (None, 14)])
    assert table.delete("n = 13 OR n = 60") == 2
    check(table, [("b", 1), ("b", 2), (None, 14)])
    assert table.drop_partitions("k IS NULL") == 2
    check(table, [("b", 1), ("b", 2)])


def test_rows_move_to_the_first(table: phalanx.Table) -> None:
    assert table.update("k = 'b'", {"k": "'a'"}) == 1
    check(table, [*DOUBLED[:2], ("a", 1), *DOUBLED[3:]])


def test_a_partition_is_no_one_table(table: phalanx.Table) -> None:
    with pytest.raises(PhalanxError, match=r"2 leaves with rows.*x1_leaf and .*x2_leaf.*rewrite\("):
        table.partition(k="a")
    assert table.partition(k="b").count_rows() == 1
    table.delete("n = 1 AND k = 'a'")
    assert table.partition(k="a").to_table()["n"].to_pylist() == [2]
    table.delete("k = 'a'")
    assert table.partition(k="a").count_rows() == 0


def test_a_rewrite_unites_them(table: phalanx.Table) -> None:
    mode = table.mode
    [finding] = [each for each in table.health() if each.kind == "doubled-partitions"]
    assert finding.figures == {"partitions": 2, "leaves": 4}
    assert "x1_leaf and " in finding.message
    done = table.rewrite("k = 'a'")
    assert done.united == 1
    assert "united the leaves of 1 partition" in str(done)
    check(table, DOUBLED)
    assert sorted(table.partition(k="a").to_table()["n"].to_pylist()) == [1, 2]
    assert Path(table.partition(k="a").uri).name == "x1_leaf"
    with pytest.raises(PhalanxError, match="2 leaves with rows"):
        table.partition(k=None)
    assert table.rewrite(min_input_files=2).united == 1
    assert table.rewrite(min_input_files=2).united == 0
    assert table.mode == mode
    check(table, DOUBLED)
    listed = table.partitions()["k"].to_pylist()
    # In weak mode an empty leaf stays: a writer may be about to use it.
    assert listed == (["a", "b", None] if mode == "strong" else ["a", "a", "b", None, None])
    assert not [each for each in table.health() if each.kind == "doubled-partitions"]
    table.append(rows(("a", 5)))
    assert sorted(table.partition(k="a").to_table()["n"].to_pylist()) == [1, 2, 5]
    table.vacuum(timedelta(hours=2))
    check(table, [*DOUBLED, ("a", 5)])


def test_the_change_feed_shows_nothing_of_it(tmp_path: Path) -> None:
    table = build(tmp_path / "ns")
    table.set_mode("strong")
    before = table.newest_snapshot
    assert before is not None
    table.rewrite()
    assert table.changes(before).to_arrow().num_rows == 0


def test_those_of_an_older_spec_are_united_and_moved(tmp_path: Path) -> None:
    table = build(tmp_path / "ns")
    table.evolve([phalanx.bucket("n", 2)])
    assert table.rewrite(target_spec=2).united == 2
    check(table, DOUBLED)
    sizes = table.partitions()
    assert {
        spec: rows
        for spec, rows in zip(sizes["spec_id"].to_pylist(), sizes["rows"].to_pylist(), strict=True)
        if spec == 1
    } == {1: 0}


def test_other_changes(table: phalanx.Table) -> None:
    import pyarrow as pa

    table.add_column(pa.field("more", pa.int8()))
    table.create_index("n", "BTREE")
    check(table, DOUBLED)
    assert read_rows(table, "n = 2") == [("a", 2)]
    table.evolve([phalanx.truncate("k", 1)])
    table.overwrite_partitions(rows(("a", 9)).append_column("more", pa.array([1], pa.int8())))
    check(table, [("a", 9), *DOUBLED[2:]])
