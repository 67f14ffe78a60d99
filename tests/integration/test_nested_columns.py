"""Fields inside structs: read, filtered, indexed and searched by their paths."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import phalanx
from integration.shell import run_json
from integration.stores import Store
from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.table.handle import handle_of

STRUCT = pa.struct(
    [
        ("t", pa.int64()),
        ("u", pa.struct([("w", pa.float32()), ("x y", pa.string())])),
        ("vec", pa.list_(pa.float32(), 2)),
        ("text", pa.string()),
    ]
)
SCHEMA = pa.schema([("id", pa.int64()), ("s", STRUCT), ("k", pa.string())])
LAYOUTS = [
    ("namespace", "strong"),
    ("namespace", "weak"),
    ("expressions", "strong"),
    ("hive", "weak"),
]
TEXTS = ["a spear", "long spears march", "a shield", None]


def row(number: int) -> dict[str, Any]:
    """A row in which some things are NULL, each at its level."""
    inner = None if number % 4 == 0 else {"w": number / 2, "x y": f"v{number}"}
    struct = {
        "t": None if number % 5 == 0 else number % 10,
        "u": inner,
        "vec": None if number % 11 == 0 else [number % 13, number % 3],
        "text": TEXTS[number % 4],
    }
    return {"id": number, "s": None if number % 7 == 0 else struct, "k": "abc"[number % 3]}


ROWS = [row(number) for number in range(120)]


def inside(row: dict[str, Any], path: str) -> Any:
    found: Any = row
    for name in path.split("."):
        found = None if found is None else found[name]
    return found


@pytest.fixture(params=LAYOUTS, ids="-".join)
def table(request: pytest.FixtureRequest, root: str, store: Store) -> phalanx.Table:
    layout, mode = request.param
    made = phalanx.create(
        root,
        SCHEMA,
        ["k"],
        transaction=mode,
        layout=layout,
        storage_options=store.storage_options,
    )
    made.append(pa.Table.from_pylist(ROWS, SCHEMA))
    return made


def check(table: phalanx.Table, where: str | None, expected: list[dict[str, Any]]) -> None:
    names = ["s.t", "id", "s.u.x y", "k", "s.u", "s.vec"]
    scan = table.scan(where, columns=names)
    found = scan.to_arrow()
    assert found.schema == scan.schema
    assert found.schema.names == names
    assert sorted(found.to_pylist(), key=lambda each: each["id"]) == [
        {name: inside(each, name) for name in names} for each in expected
    ]
    assert pa.Table.from_batches(scan.to_batches(), scan.schema) == found


def test_fields_go_by_their_paths(table: phalanx.Table) -> None:
    check(table, None, ROWS)
    check(table, "s.t = 3", [each for each in ROWS if inside(each, "s.t") == 3])
    # What Lance cannot filter needs the struct too.
    check(
        table,
        "murmur3(s.t) = murmur3(4) AND k = 'a'",
        [each for each in ROWS if inside(each, "s.t") == 4 and each["k"] == "a"],
    )
    assert table.scan(columns=["S.T"], limit=4).to_arrow().schema.names == ["s.t"]
    both = table.scan("id = 1", columns=["s", "s.t"]).to_arrow().to_pylist()
    assert both == [{"s": ROWS[1]["s"], "s.t": 1}]
    for wrong in ("s.no", "s.t.u", "s.", ".t"):
        with pytest.raises(SchemaMismatch, match="Cannot select the column"):
            table.scan(columns=[wrong])
    with pytest.raises(phalanx.InvalidArgument, match="twice"):
        table.scan(columns=["s.t", "S.t"])


def test_leaves_of_an_older_schema(root: str, store: Store) -> None:
    table = phalanx.create(root, SCHEMA, ["k"], storage_options=store.storage_options)
    table.append(pa.Table.from_pylist(ROWS[:6], SCHEMA))
    past = table.scan(columns=["id", "s.t"]).to_arrow()["s.t"].to_pylist()
    manifest = handle_of(table).state
    table.rename_column("s.t", "renamed")
    assert table.scan(columns=["s.renamed"]).to_arrow()["s.renamed"].to_pylist() == past
    assert manifest.load_latest() is not manifest


def test_an_index_of_values(table: phalanx.Table) -> None:
    if table.layout == "hive":
        return
    table.create_index("s.t", "BTREE", min_rows=1)
    assert [each.name for each in table.indexes] == ["s.t_idx"]
    for where, wanted in (("s.t = 3", 3), ("s.t IS NULL", None)):
        expected = [each for each in ROWS if inside(each, "s.t") == wanted]
        check(table, where, expected)
    dataset = table.partition(k="a")
    assert "ScalarIndexQuery" in dataset.scanner(filter="s.t = 3").explain_plan()
    table.append(pa.Table.from_pylist([row(1000)], SCHEMA))
    table.optimize_indexes()
    table.rewrite(rewrite_all=True)
    check(table, "s.t = 3", [each for each in ROWS if inside(each, "s.t") == 3])
    assert table.drop_index("s.t_idx") == 3
    assert table.indexes == ()
    with pytest.raises(PhalanxError, match="single values"):
        table.create_index("s.u", "BTREE")


def test_vectors(table: phalanx.Table) -> None:
    def distance(each: dict[str, Any]) -> float:
        vector = inside(each, "s.vec")
        return float((vector[0] - 3) ** 2 + (vector[1] - 1) ** 2)

    wanted = sorted(distance(each) for each in ROWS if inside(each, "s.vec"))[:30]
    for _ in range(2):
        for use_index in (True, False):
            found = table.search(
                "s.vec", [3, 1], k=30, columns=["id", "s.vec", "s.t"], use_index=use_index
            )
            assert found.schema.names[:3] == ["id", "s.vec", "s.t"]
            assert found["_distance"].to_pylist() == wanted
            for each in found.to_pylist():
                assert each["s.vec"] == inside(ROWS[each["id"]], "s.vec")
                assert each["s.t"] == inside(ROWS[each["id"]], "s.t")
        if table.layout == "hive":
            break
        table.create_index("s.vec", "IVF_FLAT", num_partitions=1, min_rows=1)


def test_words(table: phalanx.Table) -> None:
    exact = table.search("s.text", "spear", k=200, columns=["id", "s.text"])
    assert sorted(exact["id"].to_pylist()) == [
        each["id"] for each in ROWS if "spear" in (inside(each, "s.text") or "")
    ]
    if table.layout != "hive":
        table.create_index("s.text", "INVERTED")
        again = table.search("s.text", "spear", k=200, columns=["id", "s.text"])
        assert again.drop_columns(["_score"]) == exact.drop_columns(["_score"])
        assert again["_score"].to_pylist() == pytest.approx(exact["_score"].to_pylist())
    both = table.search("s.vec", [3, 1], k=5, hybrid=("s.text", "spear"), columns=["id"])
    assert both.num_rows == 5


def test_changes(root: str, store: Store) -> None:
    table = phalanx.create(
        root, SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
    )
    table.append(pa.Table.from_pylist(ROWS[:6], SCHEMA))
    table.delete("s.t = 1")
    found = table.changes(2, columns=["s.u.w", "id"]).to_arrow()
    assert found.select(["s.u.w", "id", "_change"]).to_pylist() == [
        {"s.u.w": 0.5, "id": 1, "_change": "delete"}
    ]


def test_in_a_shell(tmp_path: Any) -> None:
    table = phalanx.create(tmp_path / "t", SCHEMA, ["k"])
    table.append(pa.Table.from_pylist(ROWS[:4], SCHEMA))
    found = run_json("scan", table.uri, "--columns", "s.t,id", "--where", "id = 3")
    assert found == [{"s.t": 3, "id": 3}]
