"""Rows of tables of the published text that pin a version, a branch, a tag, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import CountTableRowsRequest, DescribeTableRequest

import phalanx
from foreign_namespaces import ForeignManifest, read_by_the_format
from phalanx.errors import InvalidManifest, PhalanxError
from tables import rows

PINS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "version": ({"read_version": 1}, [1]),
    "branch": ({"read_branch": "work", "read_version": 2}, [1, 7]),
    "main": ({"read_branch": "main", "read_version": 2}, [1, 2]),
    "tag": ({"read_tag": "release"}, [1]),
    "tag of a branch": ({"read_tag": "candidate"}, [1, 7]),
    "nothing": ({}, [1, 2, 3]),
}
PINNED = [name for name in PINS if name != "nothing"]


def build(root: Path, pins: dict[str, Any], **how: Any) -> phalanx.Table:
    """The partition a, in a leaf with versions, a branch and tags; and the partition b."""
    path = root / "leaves" / "a"
    dataset = lance.write_dataset(rows(("a", 1)), path)
    dataset = lance.write_dataset(rows(("a", 2)), path, mode="append")
    dataset.tags.create("release", 1)
    dataset.create_branch("work", 1)
    branch = dataset.checkout_version(("work", None))
    branch = lance.write_dataset(rows(("a", 7)), branch, mode="append")
    dataset.tags.create("candidate", ("work", branch.version))
    lance.write_dataset(rows(("a", 3)), path, mode="append")
    lance.write_dataset(rows(("b", 1)), root / "b")
    manifest = ForeignManifest(root)
    manifest.add("v1", "namespace")
    manifest.add_partition("ka", "leaves/a", k="a", **pins)
    manifest.add_partition("kb", "b", k="b")
    return phalanx.open(manifest.write(**how))


@pytest.fixture(params=PINNED)
def pinned(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[phalanx.Table, list[int]]:
    pins, wanted = PINS[request.param]
    return build(tmp_path / "ns", pins), wanted


def of_a(table: phalanx.Table) -> list[int]:
    return sorted(table.scan("k = 'a'").to_arrow()["n"].to_pylist())


def read_rows(table: phalanx.Table) -> list[Any]:
    found = table.scan(columns=["k", "n"]).to_arrow()
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True), key=str)


@pytest.mark.parametrize("name", PINS)
def test_every_reader_honours_them(tmp_path: Path, name: str) -> None:
    pins, wanted = PINS[name]
    table = build(tmp_path / "ns", pins)
    assert table.mode == "weak"
    assert read_rows(table) == read_by_the_format(table.uri)
    assert of_a(table) == wanted
    assert table.scan().count_rows() == len(wanted) + 1
    assert sorted(table.partition(k="a").to_table()["n"].to_pylist()) == wanted
    [planned] = table.plan("k = 'a'").partitions
    assert lance.dataset(planned.location, version=planned.version).count_rows() == len(wanted)
    assert {row["k"]: row["rows"] for row in table.partitions().to_pylist()} == {
        "a": len(wanted),
        "b": 1,
    }
    files = [row["rows"] for row in table.files().to_pylist() if row["k"] == "a"]
    assert sum(files) == len(wanted)
    assert table.health() is not None
    namespace = phalanx.PartitionedNamespace(root=table.uri)
    id = ["v1", "ka", "dataset"]
    described = namespace.describe_table(DescribeTableRequest(id=id))
    assert described.location is not None
    assert lance.dataset(described.location, version=described.version).count_rows() == len(wanted)
    assert namespace.count_table_rows(CountTableRowsRequest(id=id)).count == len(wanted)


def test_weak_writes_under_them_are_refused(pinned: tuple[phalanx.Table, list[int]]) -> None:
    table, wanted = pinned
    more = pa.field("more", pa.int8())
    changes: list[Callable[[], Any]] = [
        lambda: table.append(rows(("b", 2))),
        lambda: table.append(rows(("new", 1))),
        lambda: table.delete("n = 1"),
        lambda: table.update("n = 1", {"n": "5"}),
        lambda: table.merge(rows(("a", 1)), on="n"),
        lambda: table.overwrite(rows(("a", 1)), "k = 'a'"),
        lambda: table.overwrite_partitions(rows(("a", 1))),
        lambda: table.drop_partitions("k = 'a'"),
        lambda: table.begin_write(),
        lambda: table.rewrite(min_input_files=2),
        lambda: table.create_index("n", "BTREE"),
        lambda: table.add_column(more),
        lambda: table.drop_column("n"),
        lambda: table.rename_column("n", "m"),
        lambda: table.promote_column("n", pa.int64()),
    ]
    before = _versions(table)
    for change in changes:
        with pytest.raises(
            PhalanxError, match=r"'v1\$ka\$dataset' pins the version.*set_mode\('strong'"
        ):
            change()
    assert _versions(table) == before
    assert of_a(table) == wanted


def _versions(table: phalanx.Table) -> list[int]:
    root = Path(table.uri)
    return [lance.dataset(root / name).version for name in ("__manifest", "leaves/a", "b")]


def test_strong_mode_takes_them_over(pinned: tuple[phalanx.Table, list[int]]) -> None:
    table, wanted = pinned
    table.set_mode("strong")
    assert of_a(table) == of_a(phalanx.open(table.uri)) == wanted
    assert read_rows(table) == read_by_the_format(table.uri)
    table.append(rows(("a", 100), ("new", 1)))
    assert of_a(phalanx.open(table.uri)) == [*wanted, 100]
    assert read_rows(table) == read_by_the_format(table.uri)
    with table.transaction() as transaction:
        transaction.delete("n = 1")
        transaction.append(rows(("a", 101)))
    table.rewrite(min_input_files=2)
    table.add_column(pa.field("more", pa.int8()))
    table.create_index("n", "BTREE")
    assert of_a(table) == [*(n for n in wanted if n != 1), 100, 101]
    assert read_rows(table) == read_by_the_format(table.uri)
    kinds = lance.dataset(f"{table.uri}/__manifest").to_table()["object_type"].to_pylist()
    assert {"namespace", "table", "table_version", "phalanx"} == set(kinds)
    table.vacuum(timedelta(0))
    assert of_a(phalanx.open(table.uri)) == [*(n for n in wanted if n != 1), 100, 101]
    assert read_rows(table) == read_by_the_format(table.uri)


def test_vacuum_keeps_what_they_read(pinned: tuple[phalanx.Table, list[int]]) -> None:
    table, wanted = pinned
    found = table.vacuum(timedelta(0), dry_run=True)
    [planned] = table.plan("k = 'a'").partitions
    needed = {
        file.path
        for fragment in lance.dataset(planned.location, version=planned.version).get_fragments()
        for file in fragment.data_files()
    }
    gone = {path.rpartition("/")[2] for path in found.files["path"].to_pylist()}
    assert not needed & gone
    for each in found.files["path"].to_pylist():
        Path(each).unlink()
    assert of_a(phalanx.open(table.uri)) == wanted


@pytest.mark.parametrize("name", [name for name in PINNED if "branch" not in name])
def test_out_of_strong_mode_they_are_over(tmp_path: Path, name: str) -> None:
    pins, wanted = PINS[name]
    table = build(tmp_path / "ns", pins)
    table.set_mode("strong")
    table.append(rows(("a", 9)))
    table.set_mode("weak")
    assert of_a(table) == [*wanted, 9]
    table.append(rows(("a", 10)))
    assert of_a(table) == [*wanted, 9, 10]
    assert read_rows(table) == read_by_the_format(table.uri)
    table.set_mode("strong")
    assert of_a(table) == [*wanted, 9, 10]


def test_what_strong_mode_left_behind_means_nothing(tmp_path: Path) -> None:
    """A writer died between setting the mode and clearing the rows."""
    table = phalanx.create(tmp_path / "t", rows().schema, ["k"], transaction="strong")
    table.append(rows(("a", 1)))
    manifest = lance.dataset(f"{table.uri}/__manifest")
    manifest.update_metadata({"phalanx.mode": "weak"})
    [location] = table.partitions()["location"].to_pylist()
    lance.write_dataset(rows(("a", 2)), location, mode="append")
    table = phalanx.open(table.uri)
    assert (table.mode, of_a(table)) == ("weak", [1, 2])
    table.append(rows(("a", 3)))
    assert of_a(table) == [1, 2, 3]
    assert read_rows(table) == read_by_the_format(table.uri)


def test_a_pin_in_a_weak_table_of_phalanx_counts(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "t", rows().schema, ["k"], transaction="weak")
    table.append(rows(("a", 1)))
    table.append(rows(("a", 2)))
    [location] = table.partitions()["location"].to_pylist()
    manifest = lance.dataset(f"{table.uri}/__manifest")
    version = lance.dataset(location).version - 1
    manifest.update({"read_version": str(version)}, where="object_type = 'table'")
    assert of_a(table) == of_a(phalanx.open(table.uri)) == [1]
    with pytest.raises(PhalanxError, match="pins the version that is read"):
        table.append(rows(("a", 3)))
    table.set_mode("strong")
    table.append(rows(("a", 3)))
    assert of_a(table) == [1, 3]


def test_a_pin_that_comes_under_a_weak_write_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = phalanx.create(tmp_path / "t", rows().schema, ["k"], transaction="weak")
    table.append(rows(("a", 1)))
    from phalanx.storage.commit import writing

    committed = writing.apply_to_leaves

    def pin_then_commit(*arguments: Any) -> int:
        lance.dataset(f"{table.uri}/__manifest").update(
            {"read_version": "2"}, where="object_type = 'table'"
        )
        return committed(*arguments)

    monkeypatch.setattr(writing, "apply_to_leaves", pin_then_commit)
    with pytest.raises(phalanx.PartialWrite, match="pinned the version to read"):
        table.append(rows(("a", 2)))


@pytest.mark.parametrize(
    ("pins", "why"),
    [
        ({"read_version": 1, "read_tag": "release"}, "read_version = 1, read_tag = 'release'"),
        ({"read_branch": "work"}, "read_branch = 'work': expected"),
        ({"read_tag": "none"}, "the tag 'none'"),
        ({"read_version": 99}, "missing in version 99"),
    ],
)
def test_what_they_cannot_say_is_reported(tmp_path: Path, pins: dict[str, Any], why: str) -> None:
    table = build(tmp_path / "ns", pins)
    with pytest.raises(PhalanxError, match=why):
        read_rows(table)
    if "read_version" not in pins or "read_tag" in pins:
        with pytest.raises(InvalidManifest, match=why):
            table.partitions()


def test_a_tag_that_moves_is_followed(tmp_path: Path) -> None:
    table = build(tmp_path / "ns", {"read_tag": "release"})
    assert of_a(table) == [1]
    lance.dataset(tmp_path / "ns/leaves/a").tags.update("release", 2)
    assert of_a(table) == [1, 2]


def test_a_version_that_others_name_in_strong_mode_counts(tmp_path: Path) -> None:
    """By the published text a writer commits to main, and then has the row name that version."""
    table = build(tmp_path / "ns", {"read_version": 1})
    table.set_mode("strong")
    version = lance.write_dataset(rows(("a", 50)), tmp_path / "ns/leaves/a", mode="append").version
    lance.dataset(f"{table.uri}/__manifest").update(
        {"read_version": str(version)}, where="object_id = 'v1$ka$dataset'"
    )
    assert of_a(table) == of_a(phalanx.open(table.uri)) == [1, 50]
    assert of_a(table.at(table.newest_snapshot or 0)) == [1, 50]
    table.append(rows(("a", 60)))
    assert of_a(table) == [1, 50, 60]
    assert read_rows(table) == read_by_the_format(table.uri)
