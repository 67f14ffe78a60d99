"""Manifests of other writers, with columns left out, changed or added."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import DescribeTableRequest, ListTablesRequest

import phalanx
from foreign_namespaces import OPTIONAL, ForeignManifest, read_by_the_format
from phalanx.table.joins.prepare import prepare_join
from tables import rows

TEXTS = [
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.large_string()),
]
WIDTHS = [pa.int64(), pa.uint32(), pa.int8()]


def build(root: Path, **how: Any) -> phalanx.Table:
    """The partitions a and b, of one row each."""
    manifest = ForeignManifest(root)
    manifest.add("v1", "namespace")
    for key in ("a", "b"):
        lance.write_dataset(rows((key, 1)), root / "leaves" / key)
        manifest.add_partition(f"k{key}", f"leaves/{key}", k=key)
    return phalanx.open(manifest.write(**how))


def read_rows(table: phalanx.Table, where: str | None = None) -> list[Any]:
    found = phalanx.open(table.uri).scan(where, columns=["k", "n"]).to_arrow()
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True), key=str)


def use(table: phalanx.Table) -> None:
    """Every kind of change, in weak mode and in strong mode."""
    assert read_rows(table) == [("a", 1), ("b", 1)]
    assert read_rows(table, "k = 'b'") == [("b", 1)]
    table.append(rows(("a", 2), ("c", 3), (None, 4)))
    assert read_rows(table) == [("a", 1), ("a", 2), ("b", 1), ("c", 3), (None, 4)]
    table.overwrite_partitions(rows(("c", 5)))
    table.add_column(pa.field("more", pa.int8()))
    table.set_mode("strong")
    more = rows(("d", 6)).append_column("more", pa.array([1], pa.int8()))
    with table.transaction() as transaction:
        transaction.append(more)
        transaction.delete("k = 'a'")
    assert (
        read_rows(table)
        == [("b", 1), ("c", 5), ("d", 6), (None, 4)]
        == read_by_the_format(table.uri)
    )
    table.drop_partitions("k = 'b'")
    table.evolve([phalanx.truncate("n", 10)])
    table.set_mode("weak")
    table.append(more)
    assert (
        read_rows(table)
        == [("c", 5), ("d", 6), ("d", 6), (None, 4)]
        == read_by_the_format(table.uri)
    )


@pytest.mark.parametrize("without", [[name] for name in OPTIONAL] + [list(OPTIONAL)])
def test_optional_columns_may_be_missing(tmp_path: Path, without: list[str]) -> None:
    table = build(tmp_path, without=without)
    namespace = phalanx.PartitionedNamespace(root=table.uri)
    described = namespace.describe_table(DescribeTableRequest(id=["v1", "ka", "dataset"]))
    assert described.location == f"{tmp_path}/leaves/a"
    listed = namespace.list_all_tables(ListTablesRequest(id=[]))
    assert listed.tables == ["v1$ka$dataset", "v1$kb$dataset"]
    use(table)


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_other_types_of_text(tmp_path: Path, kind: pa.DataType) -> None:
    names = ("object_id", "object_type", "location", "metadata", "partition_field_k", "read_tag")
    use(build(tmp_path, types=dict.fromkeys(names, kind)))


@pytest.mark.parametrize("kind", WIDTHS, ids=str)
def test_other_widths_of_numbers(tmp_path: Path, kind: pa.DataType) -> None:
    use(build(tmp_path / "version", types={"read_version": kind}))
    root = tmp_path / "values"
    lance.write_dataset(rows(("a", 1)), root / "leaf")
    specs = {1: [("tens", 1, {"type": "truncate", "width": 10}, "int64")]}
    manifest = ForeignManifest(root, specs=specs)
    manifest.add_partition("x", "leaf", tens=0)
    table = phalanx.open(manifest.write(types={"partition_field_tens": kind}))
    assert read_rows(table, "n < 10") == [("a", 1)]
    assert not read_rows(table, "n > 10")
    table.append(rows(("a", 2), ("b", 1 << 40)))
    assert read_rows(table, "n > 1") == [("a", 2), ("b", 1 << 40)]
    assert len(table.plan("n = 1099511627776").partitions) == 1


def test_what_others_add_stays(tmp_path: Path) -> None:
    more = {"owner": pa.array(["them"] * 6), "size": pa.array(range(6), pa.int32())}
    manifest = ForeignManifest(tmp_path)
    manifest.add("v1", "namespace")
    manifest.add("v1$view", "view", location="v")
    for key in ("a", "b"):
        lance.write_dataset(rows((key, 1)), tmp_path / key)
        manifest.add_partition(f"k{key}", key, k=key)
    table = phalanx.open(manifest.write(more=more, metadata={"theirs": "x"}))
    use(table)
    there = lance.dataset(tmp_path / "__manifest")
    kept = {row["object_id"]: row["owner"] for row in there.to_table().to_pylist()}
    assert kept["v1$view"] == kept["v1$ka$dataset"] == "them"
    assert there.metadata["theirs"] == "x"


def test_a_spec_whose_columns_are_not_there_yet(tmp_path: Path) -> None:
    """Another writer has defined a spec, and no partition of it."""
    specs = {
        1: [("k", 0, {"type": "identity"}, "utf8")],
        4: [("tens", 1, {"type": "truncate", "width": 10}, "int64")],
    }
    lance.write_dataset(rows(("a", 1)), tmp_path / "leaf")
    manifest = ForeignManifest(tmp_path, specs=specs)
    manifest.add_partition("x", "leaf", k="a")
    table = phalanx.open(manifest.write(without=["partition_field_tens"]))
    assert read_rows(table, "n < 10") == [("a", 1)]
    table.append(rows(("b", 25)))
    assert read_rows(table, "n = 25") == [("b", 25)]
    assert table.partitions()["tens"].to_pylist() == [None, 20]


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_two_writers_do_not_list_a_partition_twice(tmp_path: Path, kind: pa.DataType) -> None:
    """Lance refuses the second of two rows only by a key, which other writers may not have set."""
    uri = build(tmp_path, types={"object_id": kind}).uri
    errors: list[BaseException] = []
    start = threading.Barrier(3)

    def write(number: int) -> None:
        table = phalanx.open(uri)
        start.wait()
        try:
            for key in "cdef":
                table.append(rows((key, number)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(read_rows(phalanx.open(uri))) == 2 + 3 * 4
    ids = lance.dataset(f"{uri}/__manifest").to_table()["object_id"].to_pylist()
    assert len(ids) == len(set(ids)) == 1 + 2 * 6


def test_joins_see_pins_and_all_leaves(tmp_path: Path) -> None:
    left = tmp_path / "left"
    lance.write_dataset(rows(("a", 1)), left / "x")
    lance.write_dataset(rows(("a", 9)), left / "x", mode="append")
    lance.write_dataset(rows(("a", 2)), left / "y")
    manifest = ForeignManifest(left)
    manifest.add_partition("x", "x", k="a", read_version=1)
    manifest.add_partition("y", "y", k="a")
    one = phalanx.open(manifest.write())
    other = build(tmp_path / "right")
    plan, reader = prepare_join(one, other, "k", "full", right_columns=["k"])
    assert plan.compatible
    batches = [
        batch for task in plan.plan_execution("full").tasks for batch in reader.batches(task)
    ]
    found = pa.Table.from_batches(batches, reader.schema)
    joined = list(zip(*(each.to_pylist() for each in found.columns), strict=True))
    assert sorted(row[:2] for row in joined if row[0] == "a" and row[1] is not None) == [
        ("a", 1),
        ("a", 2),
    ]
    assert found.num_rows == 3
