"""Indexes of every partition: after any change of the table, a search finds its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import phalanx
from integration.stores import Store
from phalanx.errors import PhalanxError
from phalanx.storage.lance.fault_points import FaultPoint, observe_fault_points
from tables import both_modes

SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("id", pa.int32()),
        ("body", pa.string()),
        ("v", pa.list_(pa.float32(), 4)),
    ]
)
WORDS = ["lance", "spear", "shield", "march", "hold", "the"]
QUERY = [0.3, -0.2, 0.9, 0.1]


def rows(start: int, count: int, tenants: str = "ab") -> pa.Table:
    random = np.random.default_rng(start)
    return pa.table(
        {
            "tenant": [tenants[n % len(tenants)] for n in range(count)],
            "id": range(start, start + count),
            "body": [" ".join(random.choice(WORDS, 1 + n % 5)) for n in range(count)],
            "v": random.normal(size=(count, 4)).astype(np.float32).tolist(),
        },
        schema=SCHEMA,
    )


def create_table(root: str, store: Store, mode: str, count: int = 200) -> phalanx.Table:
    table = phalanx.create(
        root, SCHEMA, "tenant", transaction=mode, storage_options=store.storage_options
    )
    table.append(rows(0, count))
    table.append(rows(count, 3, "c"))
    return table


def create_indexes(table: phalanx.Table) -> phalanx.Table:
    table.create_index("v", "IVF_FLAT", min_rows=20, num_partitions=2)
    table.create_index("body", "INVERTED")
    table.create_index("id", "BTREE")
    return table


def check(table: phalanx.Table) -> None:
    """With all parts of an index searched, the answers are those without any index."""
    for where in (None, "id % 2 = 0 AND tenant <> 'b'", "id < 40"):
        one = table.search("v", QUERY, 1000, where, ["id"], nprobes=100)
        other = table.search("v", QUERY, 1000, where, ["id"], use_index=False)
        assert one["id"].to_pylist() == other["id"].to_pylist()
        np.testing.assert_allclose(one["_distance"], other["_distance"], rtol=1e-5)
        one = table.search("body", "spears shield", 1000, where, ["id"])
        other = table.search("body", "spears shield", 1000, where, ["id"], use_index=False)
        assert one.equals(other)
    assert table.scan("id BETWEEN 10 AND 29").count_rows() == len(
        [number for number in ids(table) if 10 <= number <= 29]
    )


def ids(table: phalanx.Table) -> list[int]:
    found: list[int] = table.scan(columns=["id"]).to_arrow()["id"].to_pylist()
    return found


def count_covered(
    table: phalanx.Table, store: Store, name: str = "v_idx"
) -> dict[str, tuple[int, int]]:
    """For each partition the rows that an index covers, and its parts, as stock clients see it."""
    found = {}
    for each in table.partitions().to_pylist():
        main = lance.dataset(each["location"], storage_options=store.storage_options)
        for index in main.describe_indices():
            if index.name == name:
                found[each["tenant"]] = index.num_rows_indexed, len(index.segments)
    return found


@both_modes
def test_every_partition_that_is_large_enough(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode)
    before = table.snapshots().num_rows
    done = table.create_index("v", "ivf_flat", min_rows=20, num_partitions=2, metric="cosine")
    assert (done.partitions, done.rows, done.dropped) == (2, 200, ())
    ((key, why),) = done.left_flat
    assert (key.values, why) == (("c",), "3 rows, v_idx needs 20")
    assert "left 1 partition without" in str(done)
    assert count_covered(table, store) == {"a": (100, 1), "b": (100, 1)}
    assert table.snapshots().num_rows - before == (1 if mode == "strong" else 0)
    assert (
        table.create_index("v", "IVF_FLAT", min_rows=20, num_partitions=2, metric="cosine").rows
        == 0
    )
    # The index is declared: later calls and other processes know it.
    again = phalanx.open(root, storage_options=store.storage_options)
    ((name, metric),) = [(each.name, each.metric) for each in again.indexes]
    assert (name, metric) == ("v_idx", "cosine")
    assert again.search("v", QUERY, 3)["_distance"].to_pylist() == pytest.approx(
        again.search("v", QUERY, 3, metric="cosine", use_index=False)["_distance"].to_pylist(),
        abs=1e-6,
    )
    # Another metric is no reason to refuse: every vector is compared.
    check(create_indexes(table))
    assert table.drop_index("v_idx") == 2
    assert count_covered(table, store) == {}
    assert [each.name for each in table.indexes] == ["body_idx", "id_idx"]


@both_modes
def test_whatever_is_done_to_the_table(root: str, store: Store, mode: str) -> None:
    table = create_indexes(create_table(root, store, mode))
    check(table)
    table.append(rows(300, 60, "abd"))
    check(table)
    table.delete("id % 7 = 1")
    check(table)
    # What was added becomes parts of its own; new partitions are indexed too.
    assert table.optimize_indexes().partitions == 3
    assert count_covered(table, store, "body_idx")["a"][1] == 2
    check(table)
    done = table.rewrite(min_input_files=2)
    assert done.indexed.partitions
    assert count_covered(table, store, "id_idx")["a"][1] == 1
    assert list(table.health()) == []
    check(table)
    table.overwrite(rows(0, 30), "id < 40")
    table.overwrite_partitions(rows(800, 40, "b"))
    check(table)
    # Updated rows lose their places in an index, those of another tenant move as well.
    table.update("id % 3 = 0", {"body": "concat(body, ' spear')", "id": "id + 10000"})
    check(table)
    table.update("id % 10 = 5", {"tenant": "'c'"})
    table.merge(rows(805, 50), "id")
    check(table)
    table.drop_partitions("tenant = 'd'")
    check(table)
    table.append(rows(950, 40, "ad"))
    table.optimize_indexes()
    check(table)
    table.rename_column("body", "text")
    table.rename_column("text", "body")
    table.promote_column("id", pa.int64())
    table.add_column(pa.field("more", pa.int8()))
    check(table)
    table.evolve("tenant, bucket(2, id)")
    moved = table.rewrite(target_spec=2)
    assert moved.indexed.rows
    check(table)
    table.drop_column("body")
    assert [each.name for each in table.indexes] == ["v_idx", "id_idx"]
    assert table.search("v", QUERY, 1000, nprobes=100).num_rows == table.scan().count_rows()


def test_time_travel_rollback_and_vacuum(root: str, store: Store) -> None:
    table = create_indexes(create_table(root, store, "strong"))
    old = table.newest_snapshot
    assert old is not None
    found = table.search("body", "spear hold", 50, columns=["id"])
    table.rewrite(rewrite_all=True)
    table.delete("id < 100")
    table.optimize_indexes()
    assert table.at(old).search("body", "spear hold", 50, columns=["id"]).equals(found)
    check(table.at(old))
    table.rollback(old)
    check(table)
    assert table.search("body", "spear hold", 50, columns=["id"]).equals(found)
    table.append(rows(500, 40))
    table.optimize_indexes()
    check(table)
    kept = {path for path in store.files(root) if "_indices" in path}
    gone = table.vacuum(timedelta(0)).files.to_pylist()
    removed = [each for each in gone if each["kind"] == "index"]
    assert removed
    assert len({path for path in store.files(root) if "_indices" in path}) < len(kept)
    check(table)
    for each in table.partitions().to_pylist():
        main = lance.dataset(each["location"], storage_options=store.storage_options)
        assert main.to_table(filter="id = 3").num_rows == (each["tenant"] == "b")


@both_modes
def test_health_reports_rows_that_no_index_covers(root: str, store: Store, mode: str) -> None:
    table = create_indexes(create_table(root, store, mode))
    assert list(table.health()) == []
    table.append(rows(900, 80))
    (finding,) = [each for each in table.health() if each.kind == "unindexed-rows"]
    assert finding.figures == {"partitions": 2, "rows": 80}
    assert finding.command == f"phalanx index {root}"
    exec(finding.python, {"table": table})
    assert list(table.health()) == []


MEANWHILE: dict[str, Callable[[phalanx.Table], object]] = {
    "append": lambda table: table.append(rows(700, 30)),
    "delete": lambda table: table.delete("id < 50"),
    "rewrite": lambda table: table.rewrite(rewrite_all=True),
    "overwrite": lambda table: table.overwrite(rows(0, 50), "id < 60"),
}


@both_modes
@pytest.mark.parametrize("name", MEANWHILE)
def test_others_write_while_an_index_is_built(
    root: str, store: Store, mode: str, name: str
) -> None:
    table = create_table(root, store, mode)
    table.append(rows(400, 60))
    other = phalanx.open(root, storage_options=store.storage_options)
    once = threading.Lock()

    def change_once_files_are_written(step: FaultPoint) -> None:
        if step is FaultPoint.FILES_WRITTEN and once.acquire(blocking=False):
            MEANWHILE[name](other)

    with observe_fault_points(change_once_files_are_written):
        done = table.create_index("v", "IVF_FLAT", min_rows=20, num_partitions=2)
    assert done.dropped == ()
    assert {"a", "b"} == set(count_covered(table, store))
    found = table.search("v", QUERY, 1000, columns=["id"], nprobes=100)["id"].to_pylist()
    assert sorted(found) == sorted(ids(table))


def test_an_index_does_not_stand_in_the_way_of_a_replacement(root: str, store: Store) -> None:
    table = create_table(root, store, "strong")
    with table.transaction() as txn:
        txn.overwrite(rows(0, 40), "id < 40")
        table.create_index("id", "BTREE")
    check(table)


def test_leaves_of_nothing_but_null(root: str, store: Store) -> None:
    table = create_table(root, store, "strong")
    empty = rows(1000, 300, "z").set_column(3, "v", pa.nulls(300, SCHEMA.field("v").type))
    table.append(empty.cast(SCHEMA))
    done = table.create_index("v", "IVF_PQ", num_sub_vectors=2, min_rows=50)
    # A quantizer is trained with 256 vectors at least.
    assert [key.values[0] for key, _ in done.left_flat] == ["c", "a", "b", "z"]
    table.drop_index("v_idx")
    done = table.create_index("v", "IVF_FLAT", min_rows=50)
    assert [key.values[0] for key, _ in done.left_flat] == ["c", "z"]
    assert table.search("v", QUERY, 1000).num_rows == 203


def test_an_adopted_table_brings_its_index(root: str, store: Store) -> None:
    table = phalanx.create(root, SCHEMA, "tenant", storage_options=store.storage_options)
    place = store.fresh()
    dataset = lance.write_dataset(rows(0, 300, "a"), place, storage_options=store.storage_options)
    dataset.create_index("v", "IVF_FLAT", num_partitions=2)
    table.adopt(place)
    table.append(rows(500, 20, "b"))
    assert count_covered(table, store) == {"a": (300, 1)}
    one = table.search("v", QUERY, 1000, columns=["id"], nprobes=100)
    assert sorted(one["id"].to_pylist()) == sorted(ids(table))


REFUSED = [
    (("v", "IVF_FLOT"), {}, "kind 'IVF_FLOT': expected one of IVF_FLAT"),
    (("nothing", "BTREE"), {}, "'nothing'"),
    (("body", "IVF_PQ"), {}, r"IVF_PQ on column 'body' \(string\): expected a fixed-size list"),
    (("v", "BTREE"), {}, "expected a column of single values"),
    (("v", "IVF_FLAT"), {"metric": "hamming"}, "metric 'hamming': expected 'l2' or 'cosine'"),
    (("v", "IVF_FLAT"), {"num_partition": 2}, "Did you mean 'num_partitions'"),
    (("v", "IVF_FLAT"), {"num_partitions": 0}, "expected a positive integer"),
    (("id", "BTREE"), {"metric": "l2"}, "This kind has no options"),
    (("id", "BTREE"), {"min_rows": 0}, "min_rows=0"),
]


@pytest.mark.parametrize(("what", "options", "message"), REFUSED, ids=lambda each: str(each)[:30])
def test_what_is_refused(
    root: str, store: Store, what: tuple[str, str], options: dict[str, Any], message: str
) -> None:
    table = create_table(root, store, "weak", 10)
    with pytest.raises(PhalanxError, match=message):
        table.create_index(*what, **options)
    assert table.indexes == ()


def test_folders_have_no_place_for_a_declaration(root: str, store: Store) -> None:
    table = phalanx.create(
        root, SCHEMA, "tenant", layout="hive", storage_options=store.storage_options
    )
    table.append(rows(0, 40))
    with pytest.raises(PhalanxError, match="hive layout"):
        table.create_index("v", "IVF_FLAT")
    found = table.search("v", QUERY, 3, "tenant = 'b' AND id > 5", ["id"])
    assert found["tenant"].to_pylist() == ["b"] * 3
    assert table.search("body", "spear", 3, "tenant = 'b'").num_rows == 3


def test_a_weak_rewrite_of_an_index_in_parts(root: str, store: Store) -> None:
    """New rows become a part of their own; files of two parts are written as one."""
    schema = pa.schema([("id", pa.int64())])
    table = phalanx.create(root, schema, [], storage_options=store.storage_options)
    table.append(pa.table({"id": list(range(600))}))
    table.create_index("id", "BTREE")
    table.append(pa.table({"id": list(range(10))}))
    table.optimize_indexes()
    assert table.rewrite(rewrite_all=True).files_after == 1
    assert table.scan("id = 3").count_rows() == 2
