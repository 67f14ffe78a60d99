"""Odd names, odd types and odd places: taken, or refused with one clear message."""

from __future__ import annotations

import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import phalanx
from integration.stores import Store
from phalanx.errors import InvalidSchema, PhalanxError, SchemaMismatch, StorageFailure

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string())])


def rows(*values: tuple[int, str]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in values])


@pytest.fixture
def table(tmp_path: Path) -> phalanx.Table:
    made = phalanx.create(tmp_path / "events", SCHEMA, "p")
    made.append(rows((1, "a"), (2, "b"), (3, "c")))
    return made


@pytest.mark.parametrize(
    "name", ["location", "object_id", "read_version", "spec_id", "rows", "bytes", "metadata"]
)
def test_a_partition_field_may_have_the_name_of_a_column_of_ours(name: str, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), (name, pa.string())])
    data = pa.table([[1, 2], ["a", None]], schema=schema)
    made = phalanx.create(tmp_path / "t", schema, [name])
    made.append(data)
    made.evolve(["id"])
    made.append(data)
    made.overwrite_partitions(data.slice(0, 1))
    assert sorted(made.scan().to_arrow()["id"].to_pylist()) == [1, 2, 2]
    assert made.plan(f"\"{name}\" = 'a'").scanned_partitions == 3
    assert len(set(made.partitions().column_names)) == made.partitions().num_columns
    assert len(set(made.files().column_names)) == made.files().num_columns
    assert made.partition(**{name: "a"}).count_rows() == 0


def test_the_last_of_several_overwrites_counts(tmp_path: Path) -> None:
    """Three writers at once, in a partition with nothing to remove."""
    for number in range(4):
        made = phalanx.create(tmp_path / str(number), SCHEMA, "p")
        made.append(rows((0, "a")))
        made.delete("true")
        start = threading.Barrier(3)

        def overwrite(value: int, uri: str = made.uri, start: threading.Barrier = start) -> None:
            opened = phalanx.open(uri)
            start.wait()
            opened.overwrite_partitions(rows((value, "a"), (value, "a")))

        writers = [threading.Thread(target=overwrite, args=(value,)) for value in range(3)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        found = made.scan().to_arrow()["id"].to_pylist()
        assert len(found) == 2, found
        assert len(set(found)) == 1, found


MAP = pa.map_(pa.string(), pa.struct([("x", pa.int32())]))


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (MAP, pa.array([[("k", {"x": 1, "lost": 2})]]
         , pa.map_(pa.string(), pa.struct([("x", pa.int32()), ("lost", pa.int32())]))), "lost"),
        (pa.list_(pa.float32()), pa.array([[1e300]]), "1e+300"),
        (pa.list_(pa.float32(), 2), pa.array([[1e300, 0.0]], pa.list_(pa.float64(), 2)), "1e+300"),
        (pa.map_(pa.string(), pa.float32()), pa.array([[("k", 1e300)]],
         pa.map_(pa.string(), pa.float64())), "1e+300"),
        (pa.map_(pa.string(), pa.string()), pa.array([[("k", 15)]],
         pa.map_(pa.string(), pa.int64())), "int64"),
        (pa.map_(pa.string(), pa.timestamp("us")), pa.array([[("k", 0)]],
         pa.map_(pa.string(), pa.timestamp("us", "UTC"))), "UTC"),
    ],
)  # fmt: skip
def test_nothing_is_lost_inside_nested_values(
    kind: pa.DataType, given: pa.Array, says: str, tmp_path: Path
) -> None:
    made = phalanx.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", kind)]), "id")
    with pytest.raises(SchemaMismatch) as refused:
        made.append(pa.table({"id": [1], "v": given}))
    assert says in str(refused.value)
    assert made.partitions().num_rows == 0


def test_nested_values_in_other_widths_are_taken(tmp_path: Path) -> None:
    kinds = {
        "vector": pa.list_(pa.float32(), 2),
        "list": pa.large_list(pa.int64()),
        "map": pa.map_(pa.string(), pa.int64()),
        "name": pa.string(),
    }
    given = pa.table(
        {
            "vector": pa.array([[0.1, 0.2], None], pa.list_(pa.float64())),
            "list": pa.array([[1], None], pa.list_(pa.int8())),
            "map": pa.array([None, [("k", 1)]], pa.map_(pa.string(), pa.int16())),
            "name": pa.DictionaryArray.from_arrays(
                pa.array([0, 0], pa.uint32()), pa.array(["a"]).cast(pa.string_view())
            ),
        }
    )
    made = phalanx.create(tmp_path / "t", pa.schema(list(kinds.items())), "name")
    made.append(given)
    found = made.scan().to_arrow()
    assert found.schema.types == list(kinds.values())
    assert found["list"].to_pylist() == [[1], None]
    assert found["map"].to_pylist() == [None, [("k", 1)]]
    assert found["vector"].to_pylist()[0] == pytest.approx([0.1, 0.2])


def test_plans_are_values(table: phalanx.Table) -> None:
    where = "p = 'a' OR id > 2"
    assert table.plan(where) == table.plan(where)
    assert hash(table.plan(where)) == hash(table.plan(where))
    assert table.plan(where) != table.plan("p = 'b'")
    shipped = pickle.loads(pickle.dumps(table.plan(where)))
    assert shipped == table.plan(where)


def test_what_values_settle_is_not_filtered_again(table: phalanx.Table) -> None:
    residuals = {p.key.values[0]: p.residual for p in table.plan("p = 'a' OR id > 2").partitions}
    assert residuals == {"a": None, "b": "id > 2", "c": "id > 2"}


def test_a_predicate_that_fails_on_some_rows_deletes_none(table: phalanx.Table) -> None:
    with pytest.raises(PhalanxError, match="zero"):
        table.delete("1 / (id - 3) = 1")
    assert table.scan().count_rows() == 3


@pytest.mark.parametrize(
    "place", [None, 5, b"bytes", "", "  ", "file:/x", "s3:bucket", "memory://x"]
)
def test_a_place_that_is_none(place: Any) -> None:
    for attempt in (lambda: phalanx.open(place), lambda: phalanx.create(place, SCHEMA, "p")):
        with pytest.raises(PhalanxError, match="expected a path"):
            attempt()


def test_storage_options_are_texts(tmp_path: Path) -> None:
    options: Any = {"port": 5}
    with pytest.raises(PhalanxError, match="expected a string"):
        phalanx.open(tmp_path, storage_options=options)


def test_the_folder_is_gone(table: phalanx.Table) -> None:
    shutil.rmtree(table.uri)
    for attempt in (table.plan, lambda: table.append(rows((1, "a"))), lambda: table.schema):
        with pytest.raises(phalanx.NotPartitioned, match="no partitioned namespace"):
            attempt()


def test_a_damaged_leaf_is_reported_without_foreign_places(table: phalanx.Table) -> None:
    leaf = Path(table.plan("p = 'a'").partitions[0].location)
    for file in (leaf / "data").iterdir():
        file.write_bytes(b"no Lance file")
    for attempt in (table.scan().to_arrow, lambda: list(table.scan().to_batches())):
        with pytest.raises(StorageFailure) as failed:
            attempt()
        assert ".rs:" not in str(failed.value)


def test_a_struct_without_fields_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([]))])
    with pytest.raises(InvalidSchema, match="without fields"):
        phalanx.create(tmp_path / "t", schema, "id")


def test_a_single_term_is_a_list_of_one(tmp_path: Path) -> None:
    made = phalanx.create(tmp_path / "t", SCHEMA, phalanx.bucket("id", 4))
    assert [field.field_id for field in made.spec.fields] == ["id_bucket"]


def test_limits_without_end(table: phalanx.Table) -> None:
    assert table.scan(limit=2**63).to_arrow().num_rows == 3


def test_a_type_that_is_none(table: phalanx.Table) -> None:
    kind: Any = "int64"
    with pytest.raises(phalanx.InvalidArgument, match=r"pa\.int64"):
        table.promote_column("id", kind)


@pytest.mark.parametrize("partition_by", [[], ["k"]])
def test_decimals_may_be_anywhere_in_memory(
    root: str, store: Store, partition_by: list[str]
) -> None:
    """Lance ends with a panic for those that are not at a multiple of 16, as those of a JVM."""
    count = 4
    memory = pa.py_buffer(bytes(32 * count))
    start = (8 - memory.address) % 16
    numbers = pa.Array.from_buffers(pa.decimal128(8, 2), count, [None, memory.slice(start)])
    lists = pa.ListArray.from_arrays(range(count + 1), numbers)
    pairs = pa.StructArray.from_arrays([numbers, lists], ["n", "l"])
    texts = pa.array(["a"] * count)
    rows = pa.table(
        {
            "k": texts,
            "n": numbers,
            "l": lists,
            "m": pa.MapArray.from_arrays(range(count + 1), texts, pairs),
        }
    )
    table = phalanx.create(root, rows.schema, partition_by, storage_options=store.storage_options)
    assert table.append(rows) == count
    assert table.scan().to_arrow().to_pylist() == rows.to_pylist()


def test_a_slice_of_vectors_of_vectors(root: str, store: Store) -> None:
    """Arrow takes other rows out of such a slice."""
    kind = pa.list_(pa.list_(pa.float64(), 2), 2)
    vectors = pa.array([[[n, n + 0.25], [n + 0.5, n + 0.75]] for n in range(8)], kind)
    rows = pa.table(
        {
            "k": list("abababab"),
            "v": vectors,
            "s": pa.StructArray.from_arrays([vectors], ["v"]),
            "l": pa.ListArray.from_arrays(list(range(9)), vectors),
        }
    )
    table = phalanx.create(root, rows.schema, ["k"], storage_options=store.storage_options)
    table.append(rows.slice(1, 3))
    table.append(pa.Table.from_batches([rows.to_batches()[0].slice(4)]).to_reader())
    kept = rows.slice(1, 3).to_pylist() + rows.slice(4).to_pylist()
    assert table.scan().to_arrow().to_pylist() == sorted(kept, key=lambda row: row["k"])


def test_a_table_recreated_at_the_same_path_is_another_one(tmp_path: Path) -> None:
    place = tmp_path / "events"
    for number in (1, 2):
        made = phalanx.create(place, SCHEMA, "p")
        made.append(rows((number, "a")))
        assert phalanx.open(place).scan().to_arrow()["id"].to_pylist() == [number]
        shutil.rmtree(place)
