"""From the Hive-style layout to the newest format: in place, and without rewriting a row."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import lance_namespace as catalog
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, ListNamespacesRequest

import phalanx
from integration.stores import Store
from phalanx.storage.hive.files import PROPERTIES_FILE
from phalanx.storage.lance.fault_points import FaultPoint, observe_fault_points
from properties.table_model import as_multiset

SCHEMA = pa.schema(
    [
        pa.field("day", pa.date32()),
        pa.field("country", pa.string(), nullable=False),
        pa.field("id", pa.string()),
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("n", pa.int64()),
        pa.field("s", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
    ]
)
SPEC = "day, country, bucket(3, id), year(ts), truncate(10, n), hash(id)"


def rows(count: int = 24) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "day": date(2025, 1, 1 + n % 2) if n % 3 else None,
                "country": ["US", "a/b %$"][n % 2],
                "id": None if n % 5 == 4 else f"user{n % 4}",
                "ts": datetime(2024 + n % 2, 6, 1, tzinfo=UTC),
                "n": n - 10,
                "s": None if n % 4 == 3 else {"a": n, "b": ["x", None][: n % 3]},
            }
            for n in range(count)
        ],
        SCHEMA,
    )


def create_table(store: Store, partition_by: Any = SPEC) -> phalanx.Table:
    options = store.storage_options
    table = phalanx.create(
        store.fresh(), SCHEMA, partition_by, layout="hive", storage_options=options
    )
    table.append(rows())
    table.append(rows(8))
    table.delete("n = 3")
    return table


def data_files(table: phalanx.Table, store: Store) -> set[str]:
    return {path for path in store.files(table.uri) if "/data/" in path}


def test_the_rows_stay(store: Store) -> None:
    table = create_table(store)
    before, files = as_multiset(table.scan().to_arrow()), data_files(table, store)
    plan = table.upgrade(dry_run=True)
    assert (table.layout, plan.partitions) == ("hive", table.plan().total_partitions)
    assert data_files(table, store) == files
    assert table.upgrade() == plan
    for opened in (table, phalanx.open(table.uri, storage_options=store.storage_options)):
        assert (opened.layout, opened.mode) == ("namespace", "weak")
        found = opened.scan().to_arrow()
        assert found.schema.equals(SCHEMA)
        assert as_multiset(found) == before
        assert opened.plan().total_partitions == plan.partitions
        only = opened.plan("id = 'user1' AND country = 'a/b %$'")
        assert 0 < only.scanned_partitions < plan.partitions
        matching = opened.scan("id = 'user1' AND country = 'a/b %$'").to_arrow()
        expected = phalanx.open(table.uri, storage_options=store.storage_options).scan().to_arrow()
        wanted = [
            row
            for row in expected.to_pylist()
            if (row["id"], row["country"]) == ("user1", "a/b %$")
        ]
        assert matching.num_rows == len(wanted) > 0
    # The upgrade only adds columns to the existing ones.
    assert files <= data_files(table, store)
    assert not any(path.endswith(PROPERTIES_FILE) for path in store.files(table.uri))


def test_the_upgraded_table_can_do_all(store: Store) -> None:
    table = create_table(store)
    table.upgrade()
    total = table.plan().total_partitions
    assert table.append(rows()) == 24
    # Every row found its old partition.
    assert table.plan().total_partitions == total
    table.set_mode("strong")
    table.append(rows(2))
    table.evolve("country")
    table.append(rows(4))
    table.rename_column("n", "number")
    assert table.scan().count_rows() == 24 + 8 - 1 + 24 + 2 + 4
    assert str(table.upgrade()) == f"{table.uri} has the newest format."


def test_a_leaf_of_another_writer_gets_the_ids(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("a", pa.int64()), ("b", pa.string())])
    table = phalanx.create(tmp_path / "t", schema, ["k"], layout="hive")
    table.append(pa.table([["x"], [1], ["one"]], schema=schema))
    other = pa.table({"b": ["two"], "a": pa.array([2], pa.int64())})
    lance.write_dataset(other, tmp_path / "t" / "k=y.lance")
    table.upgrade()
    assert table.scan().to_arrow().sort_by("a").to_pylist() == [
        {"k": "x", "a": 1, "b": "one"},
        {"k": "y", "a": 2, "b": "two"},
    ]
    table.rename_column("a", "c")
    assert table.scan("c = 2").to_arrow()["b"].to_pylist() == ["two"]


def test_a_leaf_with_other_values_than_its_path_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("a", pa.int64())])
    table = phalanx.create(tmp_path / "t", schema, ["k"], layout="hive")
    for stored in ("y", "z"):
        other = pa.table({"a": pa.array([2], pa.int64()), "k": [stored]})
        lance.write_dataset(other, tmp_path / "t" / "k=y.lance", mode="append")
    # The path counts.
    assert table.scan("k = 'y'").to_arrow()["k"].to_pylist() == ["y", "y"]
    with pytest.raises(phalanx.PhalanxError, match="holds 'z', but its path has 'y'"):
        table.upgrade()
    assert table.layout == "hive"
    table.partition(k="y").drop_columns(["k"])
    table.upgrade()
    assert table.scan("k = 'y'").to_arrow()["k"].to_pylist() == ["y", "y"]


def test_indexes_stay(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("a", pa.int64())])
    table = phalanx.create(tmp_path / "t", schema, ["k"], layout="hive")
    table.append(pa.table([["x"] * 10, range(10)], schema=schema))
    table.partition(k="x").create_scalar_index("a", "BTREE")
    table.upgrade()
    assert [index.name for index in table.partition(k="x").describe_indices()] == ["a_idx"]
    assert table.scan("a = 7").to_arrow().to_pylist() == [{"k": "x", "a": 7}]


def test_empty_leaves_and_an_empty_table(tmp_path: Path) -> None:
    empty = phalanx.create(tmp_path / "empty", SCHEMA, SPEC, layout="hive")
    empty.upgrade()
    assert (empty.layout, empty.scan().count_rows()) == ("namespace", 0)
    table = phalanx.create(tmp_path / "t", SCHEMA, ["country", "day"], layout="hive")
    table.append(rows(4))
    table.delete("true")
    total = table.plan().total_partitions
    table.upgrade()
    assert table.plan().total_partitions == total > 0
    table.append(rows(4))
    assert as_multiset(table.scan().to_arrow()) == as_multiset(rows(4))


def test_a_hash_of_lists_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("tags", pa.list_(pa.string())), ("n", pa.int64())])
    table = phalanx.create(tmp_path / "t", schema, "hash(tags)", layout="hive")
    table.append(pa.table([[["x"]], [1]], schema=schema))
    for dry_run in (True, False):
        with pytest.raises(phalanx.PhalanxError, match=r"hive_hash\(tags\).*scalar values only"):
            table.upgrade(dry_run)
    assert (table.layout, table.scan().count_rows()) == ("hive", 1)


def test_a_root_with_a_manifest(tmp_path: Path) -> None:
    root = tmp_path / "listed"
    namespace = catalog.connect("dir", {"root": str(root)})
    namespace.create_namespace(CreateNamespaceRequest(id=["other"]))
    table = phalanx.create(root, SCHEMA, SPEC, layout="hive")
    table.append(rows())
    table.upgrade()
    assert (table.layout, phalanx.open(root).layout) == ("namespace", "namespace")
    assert as_multiset(phalanx.open(root).scan().to_arrow()) == as_multiset(rows())
    table.append(rows(3))
    assert table.scan().count_rows() == 27
    listed = namespace.list_namespaces(ListNamespacesRequest(id=[])).namespaces
    assert sorted(listed) == ["other", "v1"]
    assert not any(
        key.startswith("lance.partitioning.")
        for key in lance.dataset(str(root / "__manifest")).metadata
    )


def test_a_namespace_v1_of_others_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "listed"
    namespace = catalog.connect("dir", {"root": str(root)})
    namespace.create_namespace(CreateNamespaceRequest(id=["v1"]))
    namespace.create_namespace(CreateNamespaceRequest(id=["v1", "mine"]))
    table = phalanx.create(root, SCHEMA, SPEC, layout="hive")
    table.append(rows())
    with pytest.raises(phalanx.PhalanxError, match="a namespace 'v1' of its own"):
        table.upgrade()
    assert phalanx.open(root).layout == "hive"
    assert as_multiset(phalanx.open(root).scan().to_arrow()) == as_multiset(rows())


def test_writers_during_an_upgrade(tmp_path: Path) -> None:
    """A writer of the old layout appends between any two steps: no row is lost without an error."""
    table = phalanx.create(tmp_path / "t", SCHEMA, ["country", "day"], layout="hive")
    table.append(rows())
    beside = phalanx.open(table.uri)
    written = [rows()]
    seen: set[FaultPoint] = set()
    is_free = threading.Lock()

    def append(step: FaultPoint) -> None:
        """Between the steps of the upgrade; what this does has steps of its own."""
        if step not in wanted or step in seen or not is_free.acquire(blocking=False):
            return
        seen.add(step)
        new = rows(6)
        if step is FaultPoint.COMMITTING:
            # All leaves are listed by now, and this one is new.
            new = new.set_column(0, "day", pa.array([date(2030, 1, 1)] * 6)).cast(SCHEMA)
        if step is not FaultPoint.MANIFEST_CREATED:
            assert phalanx.open(table.uri).scan().count_rows() == sum(map(len, written))
        beside.append(new)
        written.append(new)
        is_free.release()

    wanted = (
        FaultPoint.COLUMNS_CHANGED,
        FaultPoint.LEAF_ALIGNED,
        FaultPoint.COMMITTING,
        FaultPoint.MANIFEST_CREATED,
    )
    with observe_fault_points(append):
        table.upgrade()
    assert seen == set(wanted)
    assert (table.layout, beside.layout) == ("namespace", "namespace")
    found = phalanx.open(table.uri).scan().to_arrow()
    assert as_multiset(found) == as_multiset(pa.concat_tables(written))
    assert found["country"].null_count == 0


def test_two_upgrades_at_the_same_time(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "t", SCHEMA, ["country", "day"], layout="hive")
    table.append(rows())
    results: list[Any] = []

    def upgrade() -> None:
        try:
            results.append(phalanx.open(table.uri).upgrade())
        except phalanx.PhalanxError as error:
            results.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any(not isinstance(each, Exception) for each in results), results
    assert table.layout == "namespace"
    assert as_multiset(table.scan().to_arrow()) == as_multiset(rows())


def test_types_in_paths_become_columns(tmp_path: Path) -> None:
    columns = {
        "u": pa.array([2**64 - 1, None], pa.uint64()),
        "b": pa.array([True, False]),
        "d": pa.array([Decimal("-1.20"), None], pa.decimal128(9, 2)),
        "t": pa.array([1, None], pa.time64("ns")),
        "ts": pa.array([-1, None], pa.timestamp("ns", "America/New_York")),
        "l": pa.array(["x", ""], pa.large_string()),
        "n": pa.array([None, 1], pa.int8()),
    }
    given = pa.table(columns)
    names = ["u", "b", "d", "t", "ts", "l"]
    table = phalanx.create(tmp_path / "t", given.schema, names, layout="hive")
    table.append(given)
    table.upgrade()
    found = phalanx.open(table.uri).scan().to_arrow()
    assert found.schema.equals(given.schema)
    assert as_multiset(found) == as_multiset(given)


def test_files_for_the_old_layout_come_too_late(tmp_path: Path) -> None:
    """Files without the columns of the path never get into a leaf that has them."""
    table = phalanx.create(tmp_path / "t", SCHEMA, ["country", "day"], layout="hive")
    table.append(rows())
    job = phalanx.open(table.uri).begin_write()
    files = job.write(rows().to_reader())
    table.upgrade()
    with pytest.raises(phalanx.CommitConflict, match="upgraded"):
        job.commit([files])
    assert as_multiset(table.scan().to_arrow()) == as_multiset(rows())
