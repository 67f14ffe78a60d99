"""Joins of real tables without Spark: their plans, the leaves that they read, and their rows."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import phalanx
from integration.shell import assert_fails, run, run_json
from integration.stores import Store
from phalanx.errors import SchemaMismatch
from phalanx.planning.joins.kinds import JOIN_HOWS
from phalanx.storage.leaf.reading import LeafScan
from phalanx.table.joins.prepare import plan_join, prepare_join

ORDERS = pa.schema([("order_id", pa.int64()), ("customer_id", pa.int32()), ("tag", pa.string())])
CUSTOMERS = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def orders(store: Store) -> phalanx.Table:
    """Orders 0 to 39 of customers 0 to 9, and one without a customer."""
    options = store.storage_options
    table = phalanx.create(
        store.fresh(), ORDERS, [phalanx.bucket("customer_id", 16)], storage_options=options
    )
    customers = [*(number % 10 for number in range(40)), None]
    table.append(pa.table([list(range(41)), customers, ["x"] * 41], schema=ORDERS))
    return table


@pytest.fixture
def customers(store: Store) -> phalanx.Table:
    """Customers 0 to 4, 20 to 29, and one without an id."""
    options = store.storage_options
    table = phalanx.create(
        store.fresh(), CUSTOMERS, [phalanx.bucket("id", 8)], storage_options=options
    )
    ids = [*range(5), *range(20, 30), None]
    table.append(pa.table([ids, [f"c{number}" for number in ids]], schema=CUSTOMERS))
    return table


@pytest.fixture
def opened_leaves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which leaves are read."""
    found: list[str] = []
    read = LeafScan.read_batches

    def recording(scan: LeafScan) -> Iterator[pa.RecordBatch]:
        found.append(scan.location.uri)
        return read(scan)

    monkeypatch.setattr(LeafScan, "read_batches", recording)
    return found


def join_rows(left: Any, right: Any, on: Any, how: Any, **options: Any) -> list[dict[str, Any]]:
    """The rows of a join whose versions all fit, run task by task."""
    plan, reader = prepare_join(left, right, on, how, **options)
    reader = pickle.loads(pickle.dumps(reader))
    execution = pickle.loads(pickle.dumps(plan.plan_execution(how)))
    assert not execution.shuffles
    batches = [batch for task in execution.tasks for batch in reader.batches(task)]
    return pa.Table.from_batches(batches, reader.schema).to_pylist()


ON = [("customer_id", "id")]


@pytest.mark.parametrize(
    ("how", "count"), list(zip(JOIN_HOWS, (20, 41, 31, 52, 20, 21), strict=True))
)
def test_every_kind_of_join(
    orders: phalanx.Table, customers: phalanx.Table, how: str, count: int
) -> None:
    rows = join_rows(orders, customers, ON, how)
    assert len(rows) == count
    for row in rows:
        if row.get("name") is not None and row["order_id"] is not None:
            assert row["name"] == f"c{row['customer_id']}"
    expected = ["order_id", "customer_id", "tag"]
    expected += [] if how in ("semi", "anti") else ["id", "name"]
    assert all(list(row) == expected for row in rows)


def test_only_leaves_that_are_needed_are_read(
    orders: phalanx.Table, customers: phalanx.Table, opened_leaves: list[str]
) -> None:
    plan = plan_join(orders, customers, ON)
    assert opened_leaves == []
    join_rows(orders, customers, ON, "inner")
    met = {leaf.location for group in plan.groups for leaf in (*group.left, *group.right)}
    assert set(opened_leaves) == met
    assert len(opened_leaves) == len(met)
    assert len(met) < orders.partitions().num_rows + customers.partitions().num_rows
    opened_leaves.clear()
    join_rows(orders, customers, ON, "left")
    assert set(opened_leaves) == met | {leaf.location for leaf in plan.left_only}


def test_predicates_prune_before_the_join(
    orders: phalanx.Table, customers: phalanx.Table, opened_leaves: list[str]
) -> None:
    rows = join_rows(orders, customers, ON, "inner", left_where="customer_id = 3 AND order_id > 20")
    assert sorted(row["order_id"] for row in rows) == [23, 33]
    assert len(opened_leaves) == 2


def test_a_leaf_without_rows_is_in_no_plan(orders: phalanx.Table, customers: phalanx.Table) -> None:
    before = plan_join(orders, customers, ON)
    customers.delete("id = 3")
    customers.delete("id IS NULL")
    after = plan_join(orders, customers, ON)
    assert len(after.right.leaves) < len(before.right.leaves)
    assert all(leaf.rows for leaf in after.right.leaves)
    assert sorted(row["name"] for row in join_rows(orders, customers, ON, "right"))[:1] == ["c0"]


def test_a_key_of_both_tables_stands_once_and_first(store: Store) -> None:
    schemas = [
        pa.schema([("a", pa.int64()), ("id", pa.int32())]),
        pa.schema([("b", pa.int64()), ("id", pa.int64())]),
    ]
    left, right = (
        phalanx.create(
            store.fresh(), schema, [phalanx.bucket("id", 4)], storage_options=store.storage_options
        )
        for schema in schemas
    )
    left.append(pa.table([[1, 2], [1, 2]], schema=schemas[0]))
    right.append(pa.table([[20, 30], [2, 3]], schema=schemas[1]))
    rows = join_rows(left, right, "id", "full")
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": 1, "a": 1, "b": None},
        {"id": 2, "a": 2, "b": 20},
        {"id": 3, "a": None, "b": 30},
    ]
    assert join_rows(left, right, "id", "right", right_columns=["id"], left_columns=["a"]) == [
        {"id": 2, "a": 2},
        {"id": 3, "a": None},
    ]
    _, reader = prepare_join(left, right, "id", "full")
    assert reader.schema.types == [pa.int64(), pa.int64(), pa.int64()]
    _, reader = prepare_join(left, right, "id", "inner")
    assert reader.schema.types == [pa.int32(), pa.int64(), pa.int64()]


def test_a_name_that_both_tables_have_is_refused_before_anything_runs(
    orders: phalanx.Table, opened_leaves: list[str]
) -> None:
    with pytest.raises(SchemaMismatch, match="Both tables have a column 'order_id'"):
        prepare_join(orders, orders, "customer_id", "inner")
    rows = join_rows(orders, orders, "customer_id", "inner", right_columns=["customer_id"])
    assert len(rows) == 160
    assert len(join_rows(orders, orders, "customer_id", "semi")) == 40


def test_a_plan_holds_the_versions_that_it_has_seen(store: Store) -> None:
    schema = pa.schema([("id", pa.int64())])
    table = phalanx.create(
        store.fresh(), schema, ["id"], transaction="strong", storage_options=store.storage_options
    )
    table.append(pa.table([[1, 2]], schema=schema))
    plan, reader = prepare_join(table, table, "id", "inner")
    table.delete("id = 1")
    tasks = plan.plan_execution("inner").tasks
    rows = [row for task in tasks for batch in reader.batches(task) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows) == [1, 2]
    assert join_rows(table, table, "id", "inner") == [{"id": 2}]
    assert len(join_rows(table.at(2), table, "id", "anti")) == 1


def test_columns_follow_the_schema_as_it_is_now(
    orders: phalanx.Table, customers: phalanx.Table
) -> None:
    customers.rename_column("name", "called")
    customers.add_column(pa.field("vip", pa.bool_()))
    orders.drop_column("tag")
    rows = join_rows(orders, customers, ON, "inner")
    assert set(rows[0]) == {"order_id", "customer_id", "id", "called", "vip"}
    assert rows[0]["called"] == f"c{rows[0]['id']}"


# --- the shell ------------------------------------------------------------------------------------


def test_join_plan_in_the_shell(tmp_path: Any) -> None:
    for name, schema, buckets in (("orders", ORDERS, 4), ("customers", CUSTOMERS, 2)):
        column = schema.names[1] if name == "orders" else "id"
        table = phalanx.create(str(tmp_path / name), schema, [phalanx.bucket(column, buckets)])
        arrays = [pa.array(range(50)).cast(kind) for kind in schema.types]
        table.append(pa.table(arrays, schema=schema))
    both = str(tmp_path / "orders"), str(tmp_path / "customers")
    found = run_json("join-plan", *both, "--on", "customer_id=id")
    assert found["compatible"] is True
    assert [
        (
            [leaf["values"]["customer_id_bucket"] for leaf in group["left"]],
            [leaf["values"]["id_bucket"] for leaf in group["right"]],
        )
        for group in found["groups"]
    ] == [([0, 2], [0]), ([1, 3], [1])]
    shown = run("join-plan", *both, "--on", "customer_id=id")
    assert shown.exit_code == 0
    assert "2 groups, no shuffle" in shown.stdout
    needs = run("join-plan", *both, "--on", "order_id=id")
    assert "needs a shuffle: no pair of partition fields" in needs.stdout
    assert_fails(run("join-plan", *both, "--on", "nope"), 1, "Cannot join on 'nope'")
    assert_fails(run("join-plan", *both, "--on", "=id"), 2)
    assert run("join-plan", *both).exit_code == 2
