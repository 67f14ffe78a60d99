"""Leaves modified outside Phalanx become part of a table only if they fit it."""

from __future__ import annotations

from collections.abc import Callable

import lance
import pyarrow as pa
import pytest

import phalanx
from integration.stores import Store
from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.table.handle import handle_of
from tables import sorted_rows

SCHEMA = pa.schema([("k", pa.string()), ("a", pa.int64()), ("b", pa.int64())])


def rows(*keys: str | None) -> pa.Table:
    numbers = range(len(keys))
    return pa.table([list(keys), list(numbers), [10 * n for n in numbers]], schema=SCHEMA)


def create_table(root: str, store: Store, by: PartitionBy) -> phalanx.Table:
    options = store.storage_options
    return phalanx.create(root, SCHEMA, by, transaction="strong", storage_options=options)


def leaf_of(table: phalanx.Table, where: str) -> str:
    """Return the one leaf with matching rows."""
    [partition] = table.plan(where).partitions
    return partition.location


def write(table: phalanx.Table, location: str, data: pa.Table, mode: str = "append") -> None:
    options = handle_of(table).root.storage_options
    lance.write_dataset(data, location, mode=mode, storage_options=options)


def check_refused(
    table: phalanx.Table, location: str, kind: type[PhalanxError], *parts: str
) -> None:
    """Check that the change is refused in one message, and the table works once it is undone."""
    before, snapshots = sorted_rows(table), table.snapshots()["id"].to_pylist()
    with pytest.raises(kind) as refused:
        table.keep_foreign_writes()
    assert type(refused.value) is kind
    for part in (location, *parts, "discard_foreign_writes()"):
        assert part in str(refused.value)
    assert sorted_rows(table) == before
    assert table.snapshots()["id"].to_pylist() == snapshots
    assert table.discard_foreign_writes() == [location]
    table.append(rows("x", None))
    assert len(sorted_rows(table)) == len(before) + 2


def test_another_identity(root: str, store: Store) -> None:
    table = create_table(root, store, ["k"])
    table.append(rows("x", "y"))
    location = leaf_of(table, "k = 'x'")
    write(table, location, rows("x", "x", "y"))
    check_refused(table, location, PhalanxError, "k='y'", "expected k='x'")


@pytest.mark.parametrize(
    ("own", "where", "foreign", "found", "expected"),
    [
        (None, "k IS NULL", "x", "k='x'", "k=None"),
        ("x", "k = 'x'", None, "k=None", "k='x'"),
    ],
)
def test_null(
    root: str,
    store: Store,
    own: str | None,
    where: str,
    foreign: str | None,
    found: str,
    expected: str,
) -> None:
    table = create_table(root, store, ["k"])
    table.append(rows(own))
    location = leaf_of(table, where)
    write(table, location, rows(own))
    assert table.keep_foreign_writes() == [location]
    assert len(sorted_rows(table)) == 2
    write(table, location, rows(foreign))
    check_refused(table, location, PhalanxError, found, f"expected {expected}")


def test_another_bucket(root: str, store: Store) -> None:
    table = create_table(root, store, [phalanx.bucket("k", 4)])
    table.append(rows(*"abcdefgh"))
    location = leaf_of(table, "k = 'a'")
    own = [k for k in "abcdefgh" if leaf_of(table, f"k = '{k}'") == location]
    other = next(k for k in "abcdefgh" if k not in own)
    write(table, location, rows(*own))
    assert table.keep_foreign_writes() == [location]
    assert len(sorted_rows(table)) == 8 + len(own)
    write(table, location, rows(*own, other))
    check_refused(table, location, PhalanxError, "bucket(4, k)")


def test_a_leaf_of_an_older_spec(root: str, store: Store) -> None:
    table = create_table(root, store, ["k"])
    table.append(rows("x"))
    location = leaf_of(table, "k = 'x'")
    table.evolve([phalanx.bucket("a", 8)])
    table.append(rows("y"))
    # Of other partitions by the newest spec, but not by its own.
    write(table, location, rows(*["x"] * 20))
    assert table.keep_foreign_writes() == [location]
    assert len(sorted_rows(table)) == 22
    write(table, location, rows("y"))
    check_refused(table, location, PhalanxError, "k='y'", "expected k='x'")


def test_a_leaf_whose_partition_column_is_gone(root: str, store: Store) -> None:
    table = create_table(root, store, ["k", phalanx.truncate("a", 10)])
    table.append(rows("x"))
    location = leaf_of(table, "k = 'x'")
    table.evolve([phalanx.truncate("a", 10)])
    table.drop_column("k")
    write(table, location, rows("x", "x").drop_columns(["k"]))
    assert table.keep_foreign_writes() == [location]
    far = pa.table({"a": pa.array([50]), "b": pa.array([1])})
    write(table, location, far)
    with pytest.raises(PhalanxError, match=r"=50, expected .*=0 alone"):
        table.keep_foreign_writes()


def test_rows_that_were_moved_by_an_update(root: str, store: Store) -> None:
    table = create_table(root, store, ["k"])
    table.append(rows("x", "x"))
    location = leaf_of(table, "k = 'x'")
    options = handle_of(table).root.storage_options
    lance.dataset(location, storage_options=options).update({"k": "'y'"}, where="a = 1")
    check_refused(table, location, PhalanxError, "k='y'", "expected k='x'")


def test_a_deletion_reads_no_rows(root: str, store: Store) -> None:
    table = create_table(root, store, ["k"])
    table.append(rows("x", "x"))
    location = leaf_of(table, "k = 'x'")
    options = handle_of(table).root.storage_options
    lance.dataset(location, storage_options=options).delete("a = 1")
    assert table.keep_foreign_writes() == [location]
    assert [row["a"] for row in sorted_rows(table)] == [0]


REPLACEMENTS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "other order": lambda data: data.select(["k", "b", "a"]),
    "other types": lambda data: data.cast(
        pa.schema([("k", pa.string()), ("a", pa.int32()), ("b", pa.int64())])
    ),
    "one less": lambda data: data.select(["k", "a"]),
    "one more": lambda data: data.append_column("c", data["a"]),
    "not null": lambda data: data.cast(
        pa.schema(
            [("k", pa.string()), pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())]
        )
    ),
    "metadata": lambda data: data.cast(
        pa.schema(
            [("k", pa.string()), pa.field("a", pa.int64(), metadata={"x": "y"}), ("b", pa.int64())]
        )
    ),
}


@pytest.mark.parametrize("name", list(REPLACEMENTS))
def test_other_columns(root: str, store: Store, name: str) -> None:
    table = create_table(root, store, ["k"])
    table.append(rows("x", "x"))
    location = leaf_of(table, "k = 'x'")
    write(table, location, REPLACEMENTS[name](rows("x", "x", "x")), mode="overwrite")
    check_refused(table, location, SchemaMismatch, "expected")


def test_a_replacement_with_the_same_columns(root: str, store: Store) -> None:
    table = create_table(root, store, ["k"])
    table.append(rows("x", "x"))
    location = leaf_of(table, "k = 'x'")
    write(table, location, rows("x", "x", "x"), mode="overwrite")
    assert table.keep_foreign_writes() == [location]
    assert sorted_rows(table) == sorted(rows("x", "x", "x").to_pylist(), key=str)


def test_fields_that_were_renumbered(root: str, store: Store) -> None:
    table = create_table(root, store, ["k"])
    table.append(rows("x", "x"))
    table.drop_column("a")
    table.add_column(pa.field("c", pa.int64()))
    location = leaf_of(table, "k = 'x'")
    write(table, location, pa.table({"k": ["x"], "b": [1], "c": [2]}), mode="overwrite")
    before = sorted_rows(table)
    with pytest.raises(SchemaMismatch, match=r"with the field ids 0, 1, 2, expected .* 0, 2, 3"):
        table.keep_foreign_writes()
    assert sorted_rows(table) == before
