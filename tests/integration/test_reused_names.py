"""Column names that pass from one field to another: leaves follow the field ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceDataset

import phalanx
from integration.stores import Store
from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.schema import field_ids_of
from phalanx.table.handle import handle_of
from tables import sorted_rows

INNER = pa.struct([("i", pa.int32()), ("j", pa.int32())])
SCHEMA = pa.schema(
    [
        ("p", pa.string()),
        ("a", pa.int32()),
        ("b", pa.int32()),
        ("s", INNER),
        ("t", INNER),
    ]
)
ROWS = [
    {"p": "k", "a": 1, "b": 2, "s": {"i": 3, "j": 4}, "t": {"i": 5, "j": 6}},
    {"p": "k", "a": 7, "b": 8, "s": None, "t": {"i": 9, "j": 10}},
]
Change = Callable[[phalanx.Table], Any]


def _swap(one: str, other: str) -> Change:
    inside = one.rpartition(".")[0]
    passing = f"{inside}.zz" if inside else "zz"

    def change(table: phalanx.Table) -> None:
        table.rename_column(one, "zz")
        table.rename_column(other, one.rpartition(".")[2])
        table.rename_column(passing, other.rpartition(".")[2])

    return change


def _steps(*steps: Change) -> Change:
    def change(table: phalanx.Table) -> None:
        for step in steps:
            step(table)

    return change


NEW_B = pa.field("b", pa.int32())
CHANGES: dict[str, Change] = {
    "drop and add": _steps(lambda t: t.drop_column("b"), lambda t: t.add_column(NEW_B)),
    "swap": _swap("a", "b"),
    "drop and rename": _steps(lambda t: t.drop_column("b"), lambda t: t.rename_column("a", "b")),
    "rename and add": _steps(lambda t: t.rename_column("b", "c"), lambda t: t.add_column(NEW_B)),
    "another type": _steps(
        lambda t: t.drop_column("b"), lambda t: t.add_column(pa.field("b", pa.string()))
    ),
    "swap and promote": _steps(_swap("a", "b"), lambda t: t.promote_column("a", pa.int64())),
    "swap structs": _swap("s", "t"),
    "swap inside a struct": _swap("s.i", "s.j"),
    "drop and rename inside a struct": _steps(
        lambda t: t.drop_column("s.i"), lambda t: t.rename_column("s.j", "i")
    ),
    "a passing name that is used": _steps(
        lambda t: t.add_column(pa.field("b_10", pa.int32())),
        lambda t: t.drop_column("b"),
        lambda t: t.add_column(NEW_B),
    ),
}
# Rows that no file has a column of.
ALL_NEW = _steps(
    lambda t: t.add_column(pa.field("y", pa.int64())),
    lambda t: t.drop_column("x"),
    lambda t: t.rename_column("y", "x"),
)


def leaf(table: phalanx.Table) -> lance.LanceDataset:
    """The newest version of the only leaf's main branch."""
    [location] = table.partitions()["location"].to_pylist()
    return lance.dataset(location, storage_options=handle_of(table).root.storage_options)


def check_main(table: phalanx.Table, wanted: list[dict[str, Any]]) -> None:
    """The leaf has the namespace's fields and these rows, for Phalanx and for stock clients."""
    assert sorted_rows(table) == wanted
    main = leaf(table)
    assert field_ids_of(main) == Schema.of(table.schema).ids
    assert sorted(main.to_table().to_pylist(), key=str) == wanted


def rows_like(row: dict[str, Any], table: phalanx.Table) -> pa.Table:
    return pa.Table.from_pylist(
        [row], phalanx.open(table.uri, storage_options=handle_of(table).root.storage_options).schema
    )


def create_table(root: str, store: Store, mode: str) -> phalanx.Table:
    options = store.storage_options
    table = phalanx.create(root, SCHEMA, ["p"], transaction=mode, storage_options=options)
    for row in ROWS:
        table.append(pa.Table.from_pylist([row], SCHEMA))
    return table


@pytest.mark.parametrize("name", list(CHANGES))
def test_rollback(root: str, store: Store, name: str) -> None:
    table = create_table(root, store, "strong")
    CHANGES[name](table)
    wanted = sorted_rows(table)
    table.delete("true")
    table.rollback(3)
    check_main(table, wanted)
    assert table.diff(3, table.snapshots()["id"].to_pylist()[-1])["rows_added"].to_pylist() == [0]
    table.append(rows_like(wanted[0], table))
    check_main(table, sorted([*wanted, wanted[0]], key=str))


def test_rollback_to_rows_without_a_column(root: str, store: Store) -> None:
    schema = pa.schema([("x", pa.int64())])
    options = store.storage_options
    table = phalanx.create(root, schema, [], transaction="strong", storage_options=options)
    table.append(pa.table({"x": [1, 2]}, schema=schema))
    ALL_NEW(table)
    table.rollback(2)
    check_main(table, [{"x": None}, {"x": None}])


def create_lagging_table(
    root: str, store: Store, name: str
) -> tuple[phalanx.Table, list[dict[str, Any]]]:
    """A weak table whose leaf was restored to a version before the change, and its rows."""
    table = create_table(root, store, "weak")
    version = leaf(table).version
    CHANGES[name](table)
    wanted = sorted_rows(table)
    old = leaf(table).checkout_version(version)
    old.restore()
    assert sorted_rows(table) == wanted
    return table, wanted


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_leaf_that_lags_behind(root: str, store: Store, name: str) -> None:
    table, wanted = create_lagging_table(root, store, name)
    table.append(rows_like(wanted[0], table))
    check_main(table, sorted([*wanted, wanted[0]], key=str))


def deaths(monkeypatch: pytest.MonkeyPatch, write: Callable[[], Any]) -> Iterator[int]:
    """Yield every number of commits after which the write dies, until it succeeds."""
    commit = LanceDataset.commit
    for allowed in range(10):
        left = allowed

        def dying(*arguments: Any, **named: Any) -> lance.LanceDataset:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            return commit(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(LanceDataset, "commit", staticmethod(dying))
            try:
                write()
            except KeyboardInterrupt:
                yield allowed
            else:
                return


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_death_between_the_commits(
    root: str, store: Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, wanted = create_lagging_table(root, store, name)
    more = rows_like(wanted[0], table)
    start = leaf(table).version
    between = []
    for _ in deaths(monkeypatch, lambda: table.append(more)):
        # The commits of an earlier attempt stand: the next attempt goes on from them.
        assert sorted_rows(table) == wanted
        assert sorted_rows(phalanx.open(root, storage_options=store.storage_options)) == wanted
        assert table.scan("p = 'k'").count_rows() == len(wanted)
        between.append(leaf(table).version - start)
    assert 1 in between
    check_main(table, sorted([*wanted, wanted[0]], key=str))


def test_one_commit_where_no_name_is_used_again(root: str, store: Store) -> None:
    table = create_table(root, store, "weak")
    version = leaf(table).version
    table.drop_column("b")
    table.rename_column("a", "c")
    leaf(table).checkout_version(version).restore()
    before = leaf(table).version
    table.append(rows_like(sorted_rows(table)[0], table))
    assert leaf(table).version == before + 2
