"""Search by `Table` and the shell: which leaves are opened, what is returned, what is refused."""

from __future__ import annotations

import json
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import phalanx
from integration.shell import run
from integration.stores import Store
from phalanx.errors import PhalanxError
from phalanx.storage.lance.location import Location

SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("id", pa.int64()),
        ("body", pa.string()),
        ("v", pa.list_(pa.float32(), 2)),
        ("bits", pa.list_(pa.uint8(), 2)),
    ]
)


def create_table(root: str, store: Store, **how: Any) -> phalanx.Table:
    table = phalanx.create(root, SCHEMA, "tenant", storage_options=store.storage_options, **how)
    table.append(
        pa.table(
            {
                "tenant": [["a", "b", "c"][n % 3] for n in range(30)],
                "id": range(30),
                "body": [f"row number{n}" for n in range(30)],
                "v": [[float(n), 0.0] for n in range(30)],
                "bits": [[n, 0] for n in range(30)],
            },
            schema=SCHEMA,
        )
    )
    return table


def record_opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the leaves that are opened from now on."""
    found: list[str] = []
    before = Location.open

    def open(self: Location, *arguments: Any) -> lance.LanceDataset:
        found.append(self.uri)
        return before(self, *arguments)

    monkeypatch.setattr(Location, "open", open)
    return found


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_tenant_never_sees_another(
    root: str, store: Store, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(root, store, transaction=mode)
    places = {row["tenant"]: row["location"] for row in table.partitions().to_pylist()}
    leaves = record_opened(monkeypatch)
    for column, query, how in (
        ("v", [4.0, 0.0], {}),
        ("body", "row number4", {}),
        ("v", [4.0, 0.0], {"hybrid": ("body", "number3")}),
    ):
        leaves.clear()
        found = table.search(column, query, 100, where="tenant = 'a'", **how)
        assert set(found["tenant"].to_pylist()) == {"a"}
        assert {uri for uri in leaves if uri in places.values()} == {places["a"]}
    leaves.clear()
    assert table.search("v", [1, 1], where="tenant = 'nobody'").num_rows == 0
    assert not set(leaves) & set(places.values())


def test_columns_and_order(root: str, store: Store) -> None:
    table = create_table(root, store)
    found = table.search("v", [4.5, 0.0], 4, columns=["ID"])
    assert found.column_names == ["id", "tenant", "_distance"]
    # Two are equally near: the first in a scan comes first, and 'b' holds 4.
    assert found["id"].to_pylist() == [4, 5, 3, 6]
    assert found.schema.field("_distance").type == pa.float32()
    assert table.search("v", np.array([1, 2])).column_names == [*SCHEMA.names, "_distance"]
    assert table.search("bits", [255, 0], 1)["_distance"].to_pylist() == [4.0]
    assert table.search("body", "the", 5).num_rows == 0
    none = table.search("v", pa.scalar([0.0, 0.0]), 100_000, "false")
    assert none.schema.equals(table.search("v", [0, 0]).schema)


def test_a_full_best_skips_leaves(root: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = phalanx.create(
        root,
        pa.schema([("p", pa.int64()), ("v", pa.list_(pa.float32(), 1))]),
        "p",
        storage_options=store.storage_options,
    )
    table.append(
        pa.table({"p": [0] * 5 + list(range(1, 200)), "v": [[0.0]] * 204}, schema=table.schema)
    )
    everything = set(table.partitions()["location"].to_pylist())
    leaves = record_opened(monkeypatch)
    found = table.search("v", [0.0], 3)
    assert found["p"].to_pylist() == [0, 0, 0]
    # No later leaf can have a row that comes before these.
    assert len(set(leaves) & everything) < 100


REFUSED = [
    (("v", [1.0]), {}, "a vector of 1 numbers: expected 2"),
    (("v", [[1.0, 2.0]]), {}, "1 × 2 numbers: expected 2"),
    (("v", "words"), {}, "expected a vector of numbers"),
    (("v", [float("nan"), 1]), {}, "all of them finite"),
    (("v", [1, 2]), {"metric": "hamming"}, "metric 'hamming': expected 'l2' or 'cosine' or 'dot'"),
    (("v", [0, 0]), {"metric": "cosine"}, "it has no direction"),
    (("bits", [1, 256]), {}, "whole numbers from 0 to 255"),
    (("bits", [1, 2]), {"metric": "l2"}, "expected 'hamming'"),
    (("body", [1, 2]), {}, "expected text"),
    (("body", "x"), {"hybrid": ("body", "x")}, "expected a vector column first"),
    (("id", 3), {}, r"column 'id' \(int64\): expected text, or a fixed-size list"),
    (("vv", [1, 2]), {}, "'vv'"),
    ((7, [1, 2]), {}, "expected a name"),
    (("v", [1, 2], 0), {}, "k=0: expected a positive integer"),
    (("v", [1, 2]), {"nprobes": 0}, "nprobes=0"),
    (("v", [1, 2]), {"use_index": 1}, "use_index=1: expected True or False"),
    (("v", [1, 2]), {"hybrid": "body"}, "hybrid='body'"),
    (("v", [1, 2]), {"hybrid": ("v", "x")}, "by words: expected text"),
    (("body", "x"), {"operator": "xor"}, "operator='xor': expected 'or' or 'and'"),
]


def test_what_is_refused(root: str, store: Store) -> None:
    table = create_table(root, store)
    for what, options, message in REFUSED:
        with pytest.raises(PhalanxError, match=message):
            table.search(*what, **options)


def test_a_column_in_the_way(root: str, store: Store) -> None:
    schema = pa.schema([("_distance", pa.int8()), ("v", pa.list_(pa.float32(), 2))])
    table = phalanx.create(root, schema, [], storage_options=store.storage_options)
    with pytest.raises(PhalanxError, match="a column '_distance'"):
        table.search("v", [1, 2])


def test_leaves_behind_the_schema(root: str, store: Store) -> None:
    """In weak mode a leaf may still have the columns that it was written with."""
    table = create_table(root, store)
    places = table.partitions()["location"].to_pylist()
    before = [lance.dataset(place, storage_options=store.storage_options) for place in places]
    table.rename_column("v", "w")
    table.rename_column("body", "v")
    for dataset in before:
        dataset.restore()
    found = table.search("w", [4.0, 0.0], 2, "id > 3", ["id"])
    assert found["id"].to_pylist() == [4, 5]
    assert table.search("v", "number7", 2, columns=["id"])["id"].to_pylist() == [7]


def test_the_shell(root: str, store: Store) -> None:
    create_table(root, store, transaction="strong")
    options = [f"--storage-option={k}={v}" for k, v in (store.storage_options or {}).items()]
    done = run("index", root, "body", "INVERTED", "--option", "stem=false", "-o", "json", *options)
    assert json.loads(done.stdout)["rows"] == 30
    done = run("index", root, *options)
    assert "indexed 0 rows" in done.stdout
    done = run("search", root, "v", "[4, 0]", "-k", "2", "--columns", "id", "-o", "json", *options)
    assert [row["id"] for row in json.loads(done.stdout)] == [4, 3]
    done = run("search", root, "body", "number8", "--where", "tenant = 'c'", *options)
    assert done.stdout.split()[:2] == ["_score", "tenant"]
    done = run(
        "search", root, "v", "[4, 0]", "--hybrid", "body=number9", "--exact", "-o", "json", *options
    )
    assert {"_distance", "_score", "_relevance_score"} <= set(json.loads(done.stdout)[0])
    assert run("search", root, "v", "four", *options).exit_code == 1
    assert run("index", root, "v", *options).exit_code == 2
    assert run("search", root, "body", "x", "--hybrid", "nothing", *options).exit_code == 2
