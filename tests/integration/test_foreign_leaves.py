"""Leaves of another writer, whose columns do not, or not clearly, match the namespace's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx
from foreign_namespaces import ForeignManifest, write_leaf
from phalanx.errors import PhalanxError, SchemaMismatch
from tables import sorted_rows

# One bucket: every row is in the same partition, whatever its values.
ONE = {1: [("p", 0, {"type": "bucket", "num_buckets": 1}, "int32")]}
INTS = (("a", "int64"), ("b", "int64"))


def namespace(
    root: Path,
    leaf: Callable[[Path], Any],
    *,
    ids: tuple[int, ...] = (0, 1),
    fields: tuple[tuple[str, str], ...] = INTS,
) -> phalanx.Table:
    leaf(root / "leaf")
    specs = {1: [("p", ids[0], {"type": "bucket", "num_buckets": 1}, "int32")]}
    manifest = ForeignManifest(root, fields, ids, specs)
    manifest.add_partition("x", "leaf", p=0)
    return phalanx.open(manifest.write())


def stock(root: Path) -> list[dict[str, Any]]:
    """What a stock client of Lance finds in the leaf."""
    return sorted(lance.dataset(root / "leaf").to_table(["a", "b"]).to_pylist(), key=str)


def _under_another_id(path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"a": [10], "b": [20]}), path)
    dataset.add_columns({"passing": "b"})
    dataset.drop_columns(["b"])
    lance.dataset(path).alter_columns({"path": "passing", "name": "b"})


def _plain(**columns: Any) -> Callable[[Path], Any]:
    return lambda path: lance.write_dataset(pa.table(columns), path)


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another order": (_plain(b=[20], a=[10]), "'b' has the field id 0, .* id 1 .*0 is 'a'"),
    "another id": (_under_another_id, "'b' has the field id 2, but the field id 1"),
    "another order and more": (_plain(b=[20], c=[1], a=[10]), "'b' has the field id 0"),
    "another type": (_plain(a=[10], b=["20"]), "'b' is string, expected int64"),
    "another width": (
        _plain(a=[10], b=pa.array([20.0], pa.float64())),
        "'b' is double, expected int64",
    ),
    "a list": (_plain(a=[10], b=[[20]]), "'b' is list.*, expected int64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_leaves_that_break_the_schema_are_refused(tmp_path: Path, name: str) -> None:
    leaf, why = REFUSED[name]
    table = namespace(tmp_path, leaf)
    before = lance.dataset(tmp_path / "leaf").to_table().to_pylist()
    row = pa.table({"a": [1], "b": [2]})
    uses: list[Callable[[], Any]] = [
        lambda: table.scan().to_arrow(),
        lambda: table.scan("b = 20").count_rows(),
        lambda: list(table.scan(columns=["a"], limit=1).to_batches()),
        lambda: table.append(row),
        lambda: table.delete("a = 10"),
        lambda: table.update("a = 10", {"b": "1"}),
        lambda: table.merge(row, on="a"),
        lambda: table.overwrite(row, "a = 1"),
        lambda: table.overwrite_partitions(row),
        lambda: table.set_mode("strong"),
        lambda: table.add_column(pa.field("c", pa.int8())),
        lambda: table.rename_column("a", "z"),
        lambda: table.rewrite(rewrite_all=True),
        lambda: table.create_index("b", "BTREE"),
    ]
    for use in uses:
        with pytest.raises(SchemaMismatch, match=rf"(?s){tmp_path}/leaf.*{why}"):
            use()
    assert (table.mode, table.schema.names) == ("weak", ["a", "b"])
    found = lance.dataset(tmp_path / "leaf")
    assert (found.version, found.to_table().to_pylist()) == (found.latest_version, before)


def test_an_adoption_repairs_the_ids_of_a_listed_leaf(tmp_path: Path) -> None:
    table = namespace(tmp_path, _plain(b=[20, 21], a=[10, 11]))
    table.adopt(tmp_path / "leaf")
    wanted = [{"a": 10, "b": 20}, {"a": 11, "b": 21}]
    assert sorted_rows(table) == stock(tmp_path) == wanted
    table.append(pa.table({"a": [1], "b": [2]}))
    wanted = [{"a": 1, "b": 2}, *wanted]
    assert sorted_rows(table) == stock(tmp_path) == wanted
    table.set_mode("strong")
    table.delete("a = 10")
    assert sorted_rows(table) == stock(tmp_path) == [wanted[0], wanted[2]]
    with pytest.raises(PhalanxError, match="There is nothing to do"):
        table.adopt(tmp_path / "leaf")


def test_the_adoption_of_a_listed_leaf_checks_its_rows(tmp_path: Path) -> None:
    table = namespace(tmp_path, _plain(b=[20], a=[10], c=[1]))
    with pytest.raises(SchemaMismatch, match="'c'"):
        table.adopt(tmp_path / "leaf")
    right = namespace(tmp_path / "right", _plain(a=[10], b=[20]))
    with pytest.raises(PhalanxError, match="There is nothing to do"):
        right.adopt(tmp_path / "right" / "leaf")
    (tmp_path / "k").mkdir()
    lance.write_dataset(pa.table({"n": [1, 2], "k": ["a", "b"]}), tmp_path / "k" / "leaf")
    manifest = ForeignManifest(tmp_path / "k")
    manifest.add_partition("x", "leaf", k="a")
    with pytest.raises(PhalanxError, match="rows belong to several partitions"):
        phalanx.open(manifest.write()).adopt(tmp_path / "k" / "leaf")


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_leaf_without_any_id_of_the_namespace_goes_by_names(tmp_path: Path, mode: str) -> None:
    table = namespace(tmp_path, _plain(b=[20, 21], a=[10, 11]), ids=(10, 20))
    wanted = [{"a": 10, "b": 20}, {"a": 11, "b": 21}]
    assert sorted_rows(table) == wanted
    assert table.scan("b = 21").to_arrow()["a"].to_pylist() == [11]
    table.set_mode(mode)
    assert sorted_rows(table) == stock(tmp_path) == wanted
    table.append(pa.table({"a": [1], "b": [2]}))
    wanted = [{"a": 1, "b": 2}, *wanted]
    assert sorted_rows(table) == sorted_rows(phalanx.open(table.uri)) == stock(tmp_path) == wanted
    table.add_column(pa.field("c", pa.int8()))
    table.delete("a = 10")
    assert stock(tmp_path) == [wanted[0], wanted[2]]
    assert sorted_rows(table) == [{**row, "c": None} for row in (wanted[0], wanted[2])]


def _rename_columns(table: phalanx.Table) -> None:
    """Swap the names of the two columns."""
    table.rename_column("a", "c")
    table.rename_column("b", "a")
    table.rename_column("c", "b")


def _replace_column(table: phalanx.Table) -> None:
    """Another column of the same name and type."""
    table.drop_column("b")
    table.add_column(pa.field("b", pa.int32()))


ROWS = ((10, 20, 7), (11, 21, 9))
SCHEMA_CHANGES: dict[str, tuple[Callable[[phalanx.Table], Any], Callable[..., dict[str, Any]]]] = {
    "add_column": (
        lambda table: table.add_column(pa.field("c", pa.int8())),
        lambda a, b, n: {"a": a, "b": b, "n": n, "c": None},
    ),
    "add a struct": (
        lambda table: table.add_column(pa.field("c", pa.struct([("a", pa.int64())]))),
        lambda a, b, n: {"a": a, "b": b, "n": n, "c": None},
    ),
    "rename_column": (
        lambda table: table.rename_column("b", "z"),
        lambda a, b, n: {"a": a, "z": b, "n": n},
    ),
    "names change their places": (_rename_columns, lambda a, b, n: {"b": a, "a": b, "n": n}),
    "drop_column": (lambda table: table.drop_column("b"), lambda a, b, n: {"a": a, "n": n}),
    "drop and add": (_replace_column, lambda a, b, n: {"a": a, "n": n, "b": None}),
    "promote_column": (
        lambda table: table.promote_column("b", pa.int64()),
        lambda a, b, n: {"a": a, "b": b, "n": n},
    ),
}


@pytest.mark.parametrize("mode", ["weak", "strong", "listed while strong"])
@pytest.mark.parametrize("name", SCHEMA_CHANGES)
def test_a_leaf_that_goes_by_names_follows_changes_of_the_schema(
    tmp_path: Path, name: str, mode: str
) -> None:
    change, wanted = SCHEMA_CHANGES[name]
    fields = (("a", "int64"), ("b", "int32"), ("n", "int64"))

    def leaf(path: Path) -> None:
        a, b, n = zip(*ROWS, strict=True)
        data = pa.table({"b": pa.array(b, pa.int32()), "n": pa.array(n), "a": pa.array(a)})
        lance.write_dataset(data, path)

    table = namespace(tmp_path, leaf, ids=(10, 20, 30), fields=fields)
    rows = ROWS
    if mode != "weak":
        table.set_mode("strong")
    if mode == "listed while strong":
        leaf(tmp_path / "second")
        manifest = lance.dataset(tmp_path / "__manifest")
        listed = manifest.to_table(filter="location = 'leaf'").to_pylist()[0]
        second = {
            **dict.fromkeys(listed),
            "object_id": "v1$y$dataset",
            "object_type": "table",
            "location": "second",
            "partition_field_p": 0,
        }
        lance.write_dataset(
            pa.Table.from_pylist([second], manifest.schema), manifest.uri, mode="append"
        )
        rows = ROWS * 2
    change(table)
    for found in (table, phalanx.open(tmp_path)):
        assert sorted_rows(found) == sorted((wanted(*row) for row in rows), key=str)
    assert table.delete("n = 7") == len(rows) // 2
    one = pa.Table.from_pylist([wanted(1, 2, 3)], table.schema)
    table.append(one)
    table.merge(one, on="n")
    left = sorted([*(wanted(*row) for row in rows if row[2] != 7), wanted(1, 2, 3)], key=str)
    assert sorted_rows(table) == sorted_rows(phalanx.open(tmp_path)) == left
    table.rewrite(rewrite_all=True)
    assert sorted_rows(table) == left
    stored = []
    for location in table.partitions()["location"].to_pylist():
        stored += lance.dataset(location).to_table().to_pylist()
    assert sorted(stored, key=str) == left


def test_a_column_that_came_since_is_missing_until_the_leaf_is_adopted(tmp_path: Path) -> None:
    fields = (*INTS, ("c", "int8"))
    table = namespace(tmp_path, _plain(b=[20], a=[10]), ids=(10, 20, 30), fields=fields)
    with pytest.raises(SchemaMismatch, match=r"none of its columns.*adopt\("):
        sorted_rows(table)
    table.adopt(tmp_path / "leaf")
    assert sorted_rows(table) == [{"a": 10, "b": 20, "c": None}]
    table.append(pa.table({"a": [1], "b": [2], "c": pa.array([3], pa.int8())}))
    table.delete("c IS NULL")
    assert sorted_rows(table) == [{"a": 1, "b": 2, "c": 3}]
    assert lance.dataset(tmp_path / "leaf").to_table().to_pylist() == sorted_rows(table)


def test_an_adoption_needs_the_columns_that_place_a_row(tmp_path: Path) -> None:
    table = namespace(tmp_path, _plain(b=[20]), ids=(10, 20))
    with pytest.raises(SchemaMismatch, match=r"lacks .*'a'"):
        table.adopt(tmp_path / "leaf")


def test_a_name_that_another_column_had_is_not_certain(tmp_path: Path) -> None:
    """The leaf may have either of the two columns named `b`; Phalanx cannot know which."""
    table = namespace(tmp_path, _plain(b=[20], a=[10]), ids=(10, 20))
    table.drop_column("b")
    table.add_column(pa.field("b", pa.int64()))
    lance.dataset(tmp_path / "leaf").delete("true")
    lance.write_dataset(pa.table({"b": [20], "a": [10]}), tmp_path / "leaf", mode="overwrite")
    with pytest.raises(SchemaMismatch, match=r"none of its columns.*adopt\("):
        sorted_rows(table)
    table.adopt(tmp_path / "leaf")
    assert sorted_rows(table) == [{"a": 10, "b": 20}]


def test_not_all_names_or_types_are_not_enough(tmp_path: Path) -> None:
    for number, leaf in enumerate(
        (_plain(b=[20]), _plain(b=[20], a=["10"]), _plain(b=[20], a=[10], c=[1]))
    ):
        root = tmp_path / str(number)
        table = namespace(root, leaf, ids=(10, 20))
        with pytest.raises(SchemaMismatch, match=f"{root}/leaf: none of its columns"):
            sorted_rows(table)


def test_what_the_format_allows_is_read(tmp_path: Path) -> None:
    """A leaf may be behind: a rename, a new column, a dropped one; and its order is its own."""
    older = namespace(tmp_path / "1", _plain(z=[10], b=[20]))
    assert sorted_rows(older) == [{"a": 10, "b": 20}]
    shorter = namespace(tmp_path / "2", _plain(a=[10]))
    assert sorted_rows(shorter) == [{"a": 10, "b": None}]
    longer = namespace(
        tmp_path / "3",
        lambda path: write_leaf(path, pa.table({"a": [10], "old": [1], "b": [20]}), (0, 1, 2)),
        ids=(0, 2),
    )
    assert sorted_rows(longer) == [{"a": 10, "b": 20}]
    narrow = namespace(tmp_path / "4", lambda path: lance.write_dataset(_narrow(), path))
    assert sorted_rows(narrow) == [{"a": 10, "b": 20}]
    for table in (older, shorter, longer, narrow):
        before = sorted_rows(table)
        table.append(pa.table({"a": [1], "b": [2]}))
        assert sorted_rows(table) == [{"a": 1, "b": 2}, *before]
        assert stock(Path(table.uri)) == sorted_rows(table)


def _narrow() -> pa.Table:
    return pa.table({"a": [10], "b": pa.array([20], pa.int32())})


def test_a_column_that_the_namespace_never_had_is_not_lost(tmp_path: Path) -> None:
    table = namespace(tmp_path, _plain(a=[10], b=[20], theirs=["x"]))
    assert sorted_rows(table) == [{"a": 10, "b": 20}]
    with pytest.raises(
        SchemaMismatch, match=r"'theirs' \(field id 2\) does not exist in the table"
    ):
        table.append(pa.table({"a": [1], "b": [2]}))
    assert lance.dataset(tmp_path / "leaf").to_table()["theirs"].to_pylist() == ["x"]


def test_nulls_in_a_column_without_any_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])
    table = phalanx.create(tmp_path / "t", schema, [phalanx.bucket("a", 1)], transaction="weak")
    table.append(pa.table({"a": [1], "b": [2]}, schema=schema))
    [location] = table.partitions()["location"].to_pylist()
    nullable = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    found = pa.table({"a": [None, 3], "b": [4, 5]}, schema=nullable)
    lance.write_dataset(found, location, mode="overwrite")
    with pytest.raises(SchemaMismatch, match="'a' has NULLs, but in the table's schema it is not"):
        sorted_rows(table)
