"""Rows in many small batches, and more rows than the buffer holds."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import phalanx
from integration.stores import Store
from phalanx.storage.streams import shuffle as shuffling
from properties.table_model import as_multiset

INNER = pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.string())]))])
SCHEMA = pa.schema(
    [
        ("k", pa.int32()),
        ("n", pa.int64()),
        ("text", pa.string()),
        ("code", pa.dictionary(pa.int32(), pa.string())),
        ("s", INNER),
        ("items", pa.list_(pa.int32())),
        ("v", pa.list_(pa.float32(), 2)),
    ]
)


def batch(number: int, count: int = 10) -> pa.RecordBatch:
    numbers = range(number * count, (number + 1) * count)
    columns = {
        "k": [None if n % 4 == 3 else n % 4 for n in numbers],
        "n": list(numbers),
        "text": [None if n % 7 == 0 else "é" * (n % 5) for n in numbers],
        "code": pa.array([f"{number}-{n % 3}" for n in numbers]).dictionary_encode(),
        "s": [None if n % 5 == 0 else {"x": n, "y": {"z": str(n)}} for n in numbers],
        "items": [None if n % 6 == 0 else [n, None] for n in numbers],
        "v": [None if n % 9 == 0 else [n, 1] for n in numbers],
    }
    arrays = [
        columns[f.name] if f.name == "code" else pa.array(columns[f.name], f.type) for f in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def stream(count: int) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, (batch(number) for number in range(count)))


@pytest.fixture
def table(root: str, store: Store) -> phalanx.Table:
    return phalanx.create(root, SCHEMA, ["k"], storage_options=store.storage_options)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def check(table: phalanx.Table, count: int) -> None:
    expected = pa.Table.from_batches([batch(number) for number in range(count)])
    found = table.scan().to_arrow()
    assert as_multiset(found) == as_multiset(expected)
    # Within a partition rows keep the order in which they came.
    for key in (0, 1, 2):
        assert (
            table.scan(f"k = {key}").to_arrow()["n"].to_pylist()
            == expected.filter(pa.compute.equal(expected["k"], key))["n"].to_pylist()
        )


def test_many_small_batches_make_one_fragment_for_each_partition(table: phalanx.Table) -> None:
    assert table.append(stream(200)) == 2000
    assert table.files()["fragment_id"].to_pylist() == [0, 0, 0, 0]
    check(table, 200)


@pytest.mark.parametrize("buffer", [0, 1, 2_000, 20_000])
def test_more_rows_than_the_buffer_holds(
    table: phalanx.Table, scratch: Path, monkeypatch: pytest.MonkeyPatch, buffer: int
) -> None:
    monkeypatch.setattr(shuffling, "BUFFER_BYTES", buffer)
    put_aside = []
    original = shuffling._spill

    def record_put_aside(*arguments: Any) -> Any:
        put_aside.append(1)
        return original(*arguments)

    monkeypatch.setattr(shuffling, "_spill", record_put_aside)
    assert table.append(stream(60)) == 600
    assert put_aside
    assert table.files()["fragment_id"].to_pylist() == [0, 0, 0, 0]
    check(table, 60)
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("method", ["append", "overwrite", "overwrite_partitions"])
def test_temporary_files_go_when_the_source_breaks(
    table: phalanx.Table,
    store: Store,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    monkeypatch.setattr(shuffling, "BUFFER_BYTES", 1)
    seen = []

    def broken() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            yield batch(number)
            seen.extend(scratch.iterdir())
        raise RuntimeError("the source is gone")

    before = store.files(table.uri)
    with pytest.raises(RuntimeError, match="the source is gone"):
        getattr(table, method)(pa.RecordBatchReader.from_batches(SCHEMA, broken()))
    assert seen
    assert not list(scratch.iterdir())
    assert store.files(table.uri) == before


def test_temporary_files_go_when_a_leaf_cannot_be_written(
    table: phalanx.Table, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phalanx.storage.leaf import leaf

    def failing(*_: Any, **__: Any) -> Any:
        assert list(scratch.iterdir())
        raise OSError("the disk is full")

    monkeypatch.setattr(shuffling, "BUFFER_BYTES", 1)
    monkeypatch.setattr(leaf, "write_fragments", failing)
    with pytest.raises(OSError, match="the disk is full"):
        table.append(stream(20))
    assert not list(scratch.iterdir())
    assert table.scan().count_rows() == 0


def test_memory_does_not_grow_with_the_input(
    root: str, store: Store, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 MB go through a buffer of 16 MB."""
    schema = pa.schema([("k", pa.int32()), ("payload", pa.binary())])
    table = phalanx.create(root, schema, ["k"], storage_options=store.storage_options)
    monkeypatch.setattr(shuffling, "BUFFER_BYTES", 16 << 20)
    payload = pa.array([b"x" * 4096] * 1000)

    def batches(count: int) -> Iterator[pa.RecordBatch]:
        keys = pa.array([n % 4 for n in range(1000)], pa.int32())
        for _ in range(count):
            yield pa.RecordBatch.from_arrays([keys, payload], schema=schema)

    table.append(pa.RecordBatchReader.from_batches(schema, batches(10)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table.append(pa.RecordBatchReader.from_batches(schema, batches(100)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 300, f"{grown:.0f} MB"
    assert table.scan().count_rows() == 110_000


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_a_limit_stops_reading(table: phalanx.Table, limit: int) -> None:
    table.append(stream(20))
    found = list(table.scan("n >= 3", limit=limit).to_batches())
    assert sum(part.num_rows for part in found) == limit
