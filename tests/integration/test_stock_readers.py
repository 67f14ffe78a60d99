"""Clients that know nothing of partitions read our tables, and cannot destroy them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_lance
import lance
import lance_namespace as catalog
import lancedb
import pyarrow as pa
import pytest
from lance_namespace import (
    CountTableRowsRequest,
    CreateNamespaceRequest,
    CreateTableRequest,
    DeclareTableRequest,
    DeregisterTableRequest,
    DescribeTableRequest,
    DropNamespaceRequest,
    DropTableRequest,
    ListNamespacesRequest,
    ListTablesRequest,
    RegisterTableRequest,
)

import phalanx
from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.schema import field_ids_of

SCHEMA = pa.schema([("id", pa.int64()), ("country", pa.string()), ("amount", pa.int32())])
ROWS = pa.table(
    {"id": [1, 2, 3, 4], "country": ["US", "DE", None, "US"], "amount": [5, 6, 7, 8]}, SCHEMA
)
EXTENSION = "extensions/v{}/lance.duckdb_extension"


@pytest.fixture
def table(tmp_path: Path) -> phalanx.Table:
    made = phalanx.create(tmp_path / "root", SCHEMA, ["country"])
    made.append(ROWS)
    made.evolve([phalanx.bucket("id", 2), "country"])
    made.append(ROWS)
    return made


def stock(table: phalanx.Table) -> catalog.LanceNamespace:
    return catalog.connect("dir", {"root": table.uri})


def paths_of_tables(namespace: catalog.LanceNamespace, *parent: str) -> list[list[str]]:
    """Return the tables that a client finds from a namespace down."""
    here = list(parent)
    found = [[*here, name] for name in namespace.list_tables(ListTablesRequest(id=here)).tables]
    for name in namespace.list_namespaces(ListNamespacesRequest(id=here)).namespaces:
        found += paths_of_tables(namespace, *here, name)
    return found


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: (row["id"], str(row)))


# ── reading ──────────────────────────────────────────────────────────────────────────────────


def test_the_directory_namespace_finds_all_rows(table: phalanx.Table) -> None:
    namespace = stock(table)
    paths = paths_of_tables(namespace)
    assert len(paths) == table.partitions().num_rows
    parts = []
    for path in paths:
        location = namespace.describe_table(DescribeTableRequest(id=path)).location
        opened = lance.dataset(namespace_client=namespace, table_id=path)
        assert lance.dataset(location).to_table() == opened.to_table()
        count = namespace.count_table_rows(CountTableRowsRequest(id=path)).count
        assert count == opened.count_rows()
        parts.append(opened.to_table())
    assert in_order(pa.concat_tables(parts)) == in_order(table.scan().to_arrow())


def test_a_partition_can_be_queried_by_a_stock_client(table: phalanx.Table) -> None:
    found = [
        lance.dataset(namespace_client=stock(table), table_id=path).to_table(
            filter="country = 'US' AND amount > 5"
        )
        for path in paths_of_tables(stock(table))
    ]
    ours = table.scan("country = 'US' AND amount > 5").to_arrow()
    assert in_order(pa.concat_tables(found)) == in_order(ours)
    assert ours.num_rows == 2


def test_lancedb_finds_all_rows(table: phalanx.Table) -> None:
    database = lancedb.connect_namespace("dir", {"root": table.uri})
    parts = []
    for *namespace, name in paths_of_tables(stock(table)):
        assert list(database.list_tables(namespace_path=namespace).tables) == [name]
        opened = database.open_table(name, namespace_path=namespace)
        parts.append(opened.search().where("amount > 5").to_arrow())
    ours = table.scan("amount > 5").to_arrow()
    assert in_order(pa.concat_tables(parts)) == in_order(ours)
    assert ours.num_rows == 6


def test_lancedb_connects_through_our_namespace(table: phalanx.Table) -> None:
    database = lancedb.connect_namespace("phalanx.PartitionedNamespace", {"root": table.uri})
    parts = []
    for *namespace, name in paths_of_tables(stock(table)):
        assert list(database.list_tables(namespace_path=namespace).tables) == [name]
        parts.append(database.open_table(name, namespace_path=namespace).to_arrow())
    assert in_order(pa.concat_tables(parts)) == in_order(table.scan().to_arrow())


def test_duckdb_reads_a_leaf_and_the_manifest(table: phalanx.Table) -> None:
    connection = duckdb.connect()
    folder = Path(duckdb_extension_lance.__file__).parent
    path = folder / EXTENSION.format(duckdb.__version__)
    connection.execute(f"LOAD '{path}'")

    def scan_leaf(uri: str, what: str = "*") -> pa.Table:
        return connection.sql(f"SELECT {what} FROM __lance_scan('{uri}')").to_arrow_table()

    parts = [scan_leaf(uri) for uri in table.partitions().column("location").to_pylist()]
    assert in_order(pa.concat_tables(parts)) == in_order(table.scan().to_arrow())
    manifest = lance.dataset(f"{table.uri}/__manifest").to_table()
    columns = ["object_id", "object_type", "location", "partition_field_country"]
    found = scan_leaf(f"{table.uri}/__manifest", ", ".join(columns))
    assert found.sort_by("object_id").to_pylist() == (
        manifest.select(columns).sort_by("object_id").to_pylist()
    )


# ── writing ──────────────────────────────────────────────────────────────────────────────────

Write = Callable[[catalog.LanceNamespace, list[str]], object]


def arrow_stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


STOCK_WRITES: dict[str, Write] = {
    "create_namespace": lambda ns, path: ns.create_namespace(CreateNamespaceRequest(id=["new"])),
    "create_namespace below": lambda ns, path: ns.create_namespace(
        CreateNamespaceRequest(id=["v1", "new"])
    ),
    "create_table": lambda ns, path: ns.create_table(
        CreateTableRequest(id=["new"]), arrow_stream(ROWS)
    ),
    "create_table in a partition": lambda ns, path: ns.create_table(
        CreateTableRequest(id=[*path[:-1], "new"]), arrow_stream(ROWS)
    ),
    "overwrite a partition": lambda ns, path: ns.create_table(
        CreateTableRequest(id=path, mode="overwrite"), arrow_stream(ROWS)
    ),
    "declare_table": lambda ns, path: ns.declare_table(DeclareTableRequest(id=["new"])),
    "register_table": lambda ns, path: ns.register_table(
        RegisterTableRequest(id=["new"], location="elsewhere.lance")
    ),
    "deregister_table": lambda ns, path: ns.deregister_table(DeregisterTableRequest(id=path)),
    "drop_table": lambda ns, path: ns.drop_table(DropTableRequest(id=path)),
    "drop_namespace": lambda ns, path: ns.drop_namespace(DropNamespaceRequest(id=path[:-1])),
    "drop_namespace with all below": lambda ns, path: ns.drop_namespace(
        DropNamespaceRequest(id=["v1"], behavior="Cascade")
    ),
}


@pytest.mark.parametrize("name", STOCK_WRITES)
def test_a_stock_write_is_refused_and_destroys_nothing(table: phalanx.Table, name: str) -> None:
    path = paths_of_tables(stock(table))[0]
    before = everything(table)
    with pytest.raises(catalog.LanceNamespaceError):
        STOCK_WRITES[name](stock(table), path)
    assert everything(table) == before


LANCEDB_WRITES: dict[str, Callable[[Any, list[str]], object]] = {
    "create_table": lambda db, path: db.create_table("new", ROWS),
    "create_table in a partition": lambda db, path: db.create_table(
        "new", ROWS, namespace_path=path[:-1]
    ),
    "drop_table": lambda db, path: db.drop_table(path[-1], namespace_path=path[:-1]),
    "create_namespace": lambda db, path: db.create_namespace(["new"]),
    "drop_namespace": lambda db, path: db.drop_namespace(path[:-1]),
}


@pytest.mark.parametrize("name", LANCEDB_WRITES)
def test_a_lancedb_write_is_refused_and_destroys_nothing(table: phalanx.Table, name: str) -> None:
    path = paths_of_tables(stock(table))[0]
    database = lancedb.connect_namespace("dir", {"root": table.uri})
    before = everything(table)
    with pytest.raises((RuntimeError, catalog.LanceNamespaceError)):
        LANCEDB_WRITES[name](database, path)
    assert everything(table) == before


def test_a_leaf_is_a_lance_table_that_anyone_with_its_path_can_write(table: phalanx.Table) -> None:
    """LanceDB overwrites a table that it can open without asking the manifest."""
    *namespace, name = paths_of_tables(stock(table))[0]
    database = lancedb.connect_namespace("dir", {"root": table.uri})
    leaf = lance.dataset(namespace_client=stock(table), table_id=[*namespace, name])
    manifest, rows = everything(table)[:4], leaf.to_table()
    database.create_table(name, rows.slice(0, 0), namespace_path=namespace, mode="overwrite")
    assert everything(table)[:4] == manifest
    assert table.scan().count_rows() == 2 * ROWS.num_rows - rows.num_rows
    # The rows can be restored until the leaf's old versions are cleaned up.
    assert lance.dataset(leaf.uri, version=leaf.version).to_table() == rows


def everything(table: phalanx.Table) -> tuple[object, ...]:
    """All that a write could have damaged."""
    manifest = lance.dataset(f"{table.uri}/__manifest")
    opened = phalanx.open(table.uri)
    return (
        manifest.version,
        manifest.schema,
        manifest.metadata,
        manifest.to_table().sort_by("object_id").to_pylist(),
        opened.partitions().to_pylist(),
        in_order(opened.scan().to_arrow()),
        sorted(path.name for path in Path(table.uri).iterdir()),
    )


# ── field ids ────────────────────────────────────────────────────────────────────────────────

NESTED = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("gone", pa.string()),
        pa.field("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("scores", pa.map_(pa.string(), pa.float32())),
        pa.field("country", pa.string()),
    ]
)


def nested_row(number: int, country: str) -> dict[str, Any]:
    return {
        "id": number,
        "place": {"city": "x", "zip": number},
        "tags": ["a"],
        "scores": [("s", 1.5)],
        "country": country,
    }


def test_every_leaf_has_the_field_ids_of_the_namespace(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "root", NESTED, ["country"])
    old = pa.Table.from_pylist(
        [{**nested_row(number, country), "gone": "y"} for number, country in enumerate("abc")],
        schema=NESTED,
    )
    table.append(old)
    table.drop_column("gone")
    table.add_column(pa.field("note", pa.struct([("text", pa.string())])))
    table.rename_column("place", "address")
    table.promote_column("id", pa.int64())
    table.promote_column("address.zip", pa.int64())
    now = phalanx.model.schema.rows.remove_ids(table.schema)
    table.append(
        pa.Table.from_pylist(
            [
                {**nested_row(9, "new"), "address": {"city": "z", "zip": 2**40}, "note": None},
                {**nested_row(10, "a"), "address": None, "note": {"text": "t"}},
            ],
            schema=now,
        )
    )
    expected = Schema.of(table.schema).ids
    assert expected == (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
    leaves = table.partitions().column("location").to_pylist()
    assert len(leaves) == 4
    for uri in leaves:
        leaf = lance.dataset(uri)
        assert field_ids_of(leaf) == expected
        assert leaf.schema.equals(now)
    found = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    assert found[1]["address"] == {"city": "x", "zip": 1}
    assert found[9]["address"] == {"city": "z", "zip": 2**40}
    assert found[10]["note"] == {"text": "t"}
    assert [found[number]["note"] for number in (0, 1, 2, 9)] == [None] * 4
