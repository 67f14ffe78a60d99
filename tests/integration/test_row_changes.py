"""Updates and merges: what changes, where rows go, which leaves are opened, what is refused."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pytest

import phalanx
from integration.stores import Store
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf import leaf
from phalanx.table.write import merge as merging
from phalanx.table.write import merge_source

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("k", pa.string()),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("x", pa.float32()),
    ]
)
MODES = pytest.mark.parametrize("mode", ["weak", "strong"])


def rows(*found: tuple[int | None, str | None, int, float | None]) -> pa.Table:
    return pa.table([list(column) for column in zip(*found, strict=True)], schema=SCHEMA)


def create_table(
    root: str | Path, mode: str, *found: Any, by: Any = ("k",), **how: Any
) -> phalanx.Table:
    table = phalanx.create(root, SCHEMA, list(by), transaction=mode, **how)
    table.append(rows(*found))
    return table


def contents(table: Any) -> list[tuple[Any, ...]]:
    found = [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()]
    return sorted(found, key=repr)


def sizes(table: phalanx.Table) -> dict[tuple[int, tuple[Any, ...]], int]:
    plan = table.plan()
    counts = table.partitions()["rows"].to_pylist()
    keys = [(p.key.spec_id, p.key.values) for p in plan.partitions]
    return {key: count for key, count in zip(keys, counts, strict=True) if count}


@pytest.fixture
def opened_leaves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of the leaves that are opened."""
    found: list[str] = []
    before = Location.open_leaf

    def open_leaf(self: Location, *arguments: Any) -> lance.LanceDataset:
        found.append(self.uri)
        return before(self, *arguments)

    monkeypatch.setattr(Location, "open_leaf", open_leaf)
    return found


ABC = ((1, "a", 1, 0.5), (2, "a", 2, 1.5), (3, "b", 3, None), (4, None, 4, 2.5))


# ── update ───────────────────────────────────────────────────────────────────────────────────


@MODES
def test_all_values_come_from_the_row_as_it_was(root: str, store: Store, mode: str) -> None:
    table = create_table(root, mode, *ABC, storage_options=store.storage_options)
    assert table.update("id < 3", {"n": "n + id", "ID": "n", "x": "id * 1.1"}) == 2
    assert contents(table) == sorted(
        [
            (1, "a", 2, pytest.approx(1.1)),
            (2, "a", 4, pytest.approx(2.2)),
            (3, "b", 3, None),
            (4, None, 4, 2.5),
        ],
        key=repr,
    )
    assert table.update("id > 100", {"n": "0"}) == 0
    if mode == "strong":
        found = table.snapshots().to_pylist()
        assert [each["operation"] for each in found] == ["create", "append", "update"]
        assert (found[-1]["rows_added"], found[-1]["rows_removed"]) == (2, 2)


@MODES
def test_a_row_moves_only_if_its_partition_changes(tmp_path: Path, mode: str) -> None:
    table = create_table(tmp_path / "t", mode, *ABC)
    table.evolve([phalanx.bucket("id", 1)])
    table.append(rows((5, "a", 5, 0.0)))
    # The old leaf keeps a row whose values there stay the same.
    assert table.update("id IN (1, 5)", {"n": "n + 10", "k": "concat('', k)"}) == 2
    assert sizes(table) == {(1, ("a",)): 2, (1, ("b",)): 1, (1, (None,)): 1, (2, (0,)): 1}
    # Other rows move to the newest spec, also from and to NULL.
    assert table.update("k IS NULL OR id = 1", {"k": "CASE WHEN k IS NULL THEN 'c' END"}) == 2
    assert sizes(table) == {(1, ("a",)): 1, (1, ("b",)): 1, (2, (0,)): 3}
    assert {row[0]: row[1:3] for row in contents(table)} == {
        1: (None, 11),
        2: ("a", 2),
        3: ("b", 3),
        4: ("c", 4),
        5: ("a", 15),
    }


@MODES
def test_rows_that_change_places_with_each_other(tmp_path: Path, mode: str) -> None:
    table = create_table(tmp_path / "t", mode, *ABC)
    swapped = "CASE k WHEN 'a' THEN 'b' WHEN 'b' THEN 'a' ELSE k END"
    assert table.update("true", {"k": swapped, "n": "n + 1"}) == 4
    assert [row[:3] for row in contents(table)] == [
        (1, "b", 2),
        (2, "b", 3),
        (3, "a", 4),
        (4, None, 5),
    ]


def test_an_update_opens_and_writes_only_what_it_touches(
    tmp_path: Path, opened_leaves: list[str]
) -> None:
    table = create_table(tmp_path / "t", "strong", *ABC)
    before = {p.key.values: p.version for p in table.plan().partitions}
    opened_leaves.clear()
    table.update("k = 'a' AND id = 1", {"n": "7"})
    [touched] = table.plan("k = 'a'").partitions
    assert set(opened_leaves) == {touched.location}
    after = {p.key.values: p.version for p in table.plan().partitions}
    assert {key for key in after if after[key] != before[key]} == {("a",)}
    files = table.files()
    # The rows that were not updated stay, and the new ones are in a file of their own.
    assert sorted(files.filter(pa.compute.equal(files["k"], "a"))["rows"].to_pylist()) == [1, 1]


TYPES = pa.schema(
    [
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us")),
        pa.field("zoned", pa.timestamp("ms", "Europe/Paris")),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("small", pa.int8()),
        pa.field("single", pa.float32()),
        pa.field("text", pa.large_string()),
        pa.field("raw", pa.binary()),
        pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
        pa.field("vector", pa.list_(pa.float32(), 2)),
        pa.field("inside", pa.struct([("a", pa.int32())])),
    ]
)


def test_values_are_cast_to_their_columns(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "t", TYPES, [])
    table.append(TYPES.empty_table())
    table.append(pa.Table.from_pylist([{"small": 3, "price": Decimal("10.00")}], TYPES))
    new = {
        "day": "'2024-02-29'",
        "at": "DATE '2024-02-29'",
        "zoned": "'2024-02-29T12:00:00Z'",
        "price": "price * 1.155",
        "small": "small + 1",
        "single": "small / 2.0",
        "text": "'x' || small",
        "raw": "NULL",
        "kind": "'red'",
        "vector": "make_array(1.0, 2.0)",
        "inside": "named_struct('a', small)",
    }
    assert table.update("true", new) == 1
    [row] = table.scan().to_arrow().to_pylist()
    assert row["day"] == date(2024, 2, 29)
    assert row["at"] == datetime(2024, 2, 29)
    assert row["zoned"].isoformat() == "2024-02-29T13:00:00+01:00"
    assert row["price"] == Decimal("11.55")
    assert (row["small"], row["single"], row["text"], row["raw"]) == (4, 1.5, "x3", None)
    assert (row["kind"], row["vector"], row["inside"]) == ("red", [1.0, 2.0], {"a": 3})


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        ({}, ("expected at least one column",)),
        ({"missing": "1"}, ("No column 'missing'",)),
        ({"n": 1}, ("'n' to 1", "expected SQL text")),
        ({"n": "k"}, ("it gives string", "int32", "Cast it")),
        ({"n": "x"}, ("it gives float", "int32")),
        ({"n": "NULL"}, ("not nullable",)),
        ({"n": "nullif(n, 3)"}, ("NULL for some rows", "coalesce")),
        ({"n": "n +"}, ("'n' to 'n +'",)),
        ({"n": "max(n)"}, ("aggregate function",)),
        ({"n": "n * 1000000000"}, ("'n' to",)),
        ({"n": "n / (n - n)"}, ("zero",)),
        ({"n": "1", "N": "2"}, ("'n' twice",)),
        ({"k": "'a' > 1 + 'b'"}, ("'k' to",)),
    ],
)
def test_what_cannot_be_set_is_refused_before_anything_changes(
    tmp_path: Path, assignments: dict[str, str], words: tuple[str, ...]
) -> None:
    table = create_table(tmp_path / "t", "weak", *ABC)
    with pytest.raises((phalanx.SchemaMismatch, phalanx.InvalidArgument)) as raised:
        table.update("true", assignments)
    assert all(word in str(raised.value) for word in words), raised.value
    assert contents(table) == sorted(ABC, key=repr)


def test_the_predicate_of_an_update_is_checked(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", "weak", *ABC)
    with pytest.raises(phalanx.InvalidPredicate, match="No column 'no'"):
        table.update("no = 1", {"n": "1"})
    schema = pa.schema([("s", pa.struct([("a", pa.int8())]))])
    other = phalanx.create(tmp_path / "o", schema, [])
    with pytest.raises(phalanx.SchemaMismatch, match="inside the column 's'"):
        other.update("true", {"s.a": "1"})


# ── merge ────────────────────────────────────────────────────────────────────────────────────

ARRIVING = ((2, "a", 20, None), (3, "c", 30, 3.5), (9, "b", 90, 9.5), (None, "a", 0, 0.0))


@MODES
@pytest.mark.parametrize("matched", ["update", "delete", "ignore"])
@pytest.mark.parametrize("not_matched", ["insert", "ignore"])
def test_every_kind_of_merge(tmp_path: Path, mode: str, matched: str, not_matched: str) -> None:
    twice = (2, "b", 5, 5.5)
    table = create_table(tmp_path / "t", mode, *ABC, twice)
    done = table.merge(
        rows(*ARRIVING).to_reader(), "ID", when_matched=matched, when_not_matched=not_matched
    )
    inserted = [ARRIVING[2], ARRIVING[3]] if not_matched == "insert" else []
    known = {
        "update": [ARRIVING[0], ARRIVING[0], ARRIVING[1]],
        "delete": [],
        "ignore": [ABC[1], twice, ABC[2]],
    }[matched]
    assert contents(table) == sorted([ABC[0], ABC[3], *known, *inserted], key=repr)
    assert done == merging.MergeCounts(
        len(inserted), 3 if matched == "update" else 0, 3 if matched == "delete" else 0
    )
    assert str(done).startswith(f"{len(inserted)} inserted, ")


def test_keys_are_equal_as_their_columns_are(tmp_path: Path) -> None:
    schema = pa.schema([("f", pa.float64()), ("t", pa.timestamp("ns")), ("n", pa.int64())])
    table = phalanx.create(tmp_path / "t", schema, [phalanx.identity("f")])
    moment = pa.scalar(1, pa.timestamp("ns"))
    later = pa.scalar(2, pa.timestamp("ns"))

    def some(*found: tuple[Any, Any, int]) -> pa.Table:
        columns = list(zip(*found, strict=True))
        return pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
            schema=schema,
        )

    table.append(some((0.0, moment, 1), (math.nan, moment, 2), (None, moment, 3)))
    done = table.merge(
        some((-0.0, moment, 10), (math.nan, moment, 20), (None, moment, 30), (0.0, later, 40)),
        ["f", "t"],
    )
    assert (done.inserted, done.updated) == (2, 2)
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [3, 10, 20, 30, 40]


@pytest.mark.parametrize(
    "by", [["k"], [phalanx.truncate("k", 1)], [phalanx.bucket("k", 64)], ["k", phalanx.year("at")]]
)
def test_a_merge_opens_only_leaves_that_can_hold_its_keys(
    tmp_path: Path, by: list[Any], opened_leaves: list[str]
) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.date32()), ("n", pa.int64())])

    def some(keys: str, n: int) -> pa.Table:
        return pa.table(
            [list(keys), [date(2024, 1, 1)] * len(keys), [n] * len(keys)], schema=schema
        )

    table = phalanx.create(tmp_path / "t", schema, by, transaction="strong")
    table.append(some("abcdef", 0))
    table.evolve([phalanx.truncate("k", 2)])
    table.append(some("abcdefg", 0))
    opened_leaves.clear()
    assert table.merge(some("ax", 1), "k").updated == 2
    touched = {p.location for p in table.plan("k IN ('a', 'x')").partitions}
    assert set(opened_leaves) <= touched
    assert len(touched) == 3
    assert table.scan("n = 1").count_rows() == 3


def test_keys_in_any_transform_prune_to_all_that_hold_them(tmp_path: Path) -> None:
    """Many keys at once, through specs that know both, one or no column of the key."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("n", pa.int64())])
    table = phalanx.create(tmp_path / "t", schema, [phalanx.multi_bucket(["a", "b"], 4)])
    count = 400
    for place, by in enumerate(
        [[phalanx.truncate("a", 50), "b"], [phalanx.truncate("n", 10)], None]
    ):
        pairs = range(place * count, (place + 1) * count)
        table.append(
            pa.table([pairs, [f"b{n % 3}" for n in pairs], [n % 20 for n in pairs]], schema=schema)
        )
        if by is not None:
            table.evolve(by)
    wanted = range(0, 3 * count + 100, 2)
    source = pa.table([wanted, [f"b{n % 3}" for n in wanted], [7] * len(wanted)], schema=schema)
    done = table.merge(source, ["b", "a"])
    assert (done.inserted, done.updated) == (50, 3 * count // 2)
    found = table.scan().to_arrow().to_pylist()
    assert len(found) == 3 * count + 50
    assert all((row["n"] == 7) is (row["a"] % 2 == 0 or row["a"] % 20 == 7) for row in found)


def test_a_source_larger_than_memory(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", "strong", *((n, "abc"[n % 3], n, 0.0) for n in range(300)))
    parts = [
        rows(*((n, "abcd"[n % 4], -n, None) for n in range(m, m + 40))) for m in range(0, 400, 40)
    ]
    reader = pa.RecordBatchReader.from_batches(
        SCHEMA, (batch for part in parts for batch in part.to_batches())
    )
    with mock.patch.object(
        merging, "SpillBudget", functools.partial(merge_source.SpillBudget, 1000)
    ):
        done = table.merge(reader, "id")
    assert (done.inserted, done.updated) == (100, 300)
    assert contents(table) == sorted(((n, "abcd"[n % 4], -n, None) for n in range(400)), key=repr)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.merge(rows(*ARRIVING[:1] * 2), "id"), ("2 rows", "id = 2", "Keep one")),
        (lambda t: t.merge(rows(*ARRIVING), "nope"), ("Cannot merge on 'nope'",)),
        (lambda t: t.merge(rows(*ARRIVING), []), ("expected a column",)),
        (lambda t: t.merge(rows(*ARRIVING).drop_columns("x"), "id"), ("lacks the column 'x'",)),
        (lambda t: t.merge(rows(*ARRIVING), "id", when_matched="upsert"), ("'upsert'", "'update'")),
        (
            lambda t: t.merge(rows(*ARRIVING), "id", when_not_matched="delete"),
            ("when_not_matched='delete'", "'insert' or 'ignore'"),
        ),
    ],
)
def test_a_wrong_merge_is_refused_before_anything_changes(
    tmp_path: Path, change: Callable[[phalanx.Table], Any], words: tuple[str, ...]
) -> None:
    table = create_table(tmp_path / "t", "strong", *ABC)
    with pytest.raises(phalanx.PhalanxError) as raised:
        change(table)
    assert all(word in str(raised.value) for word in words), raised.value
    assert table.newest_snapshot == 2


def test_statements_of_one_transaction_see_each_other(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", "strong", *ABC)
    with table.transaction() as txn:
        assert txn.update("k = 'a'", {"k": "'new'"}) == 2
        assert txn.merge(rows((1, "new", 100, None), (50, "new", 50, None)), "id").updated == 1
        assert txn.drop_partitions("k = 'b'") == 1
        seen = contents(txn)
    assert (
        contents(table)
        == seen
        == sorted(
            [(1, "new", 100, None), (2, "new", 2, 1.5), (4, None, 4, 2.5), (50, "new", 50, None)],
            key=repr,
        )
    )
    assert table.newest_snapshot == 3


def test_two_merges_that_insert_the_same_key(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", "strong", *ABC)
    txn = table.transaction().__enter__()
    txn.merge(rows((60, "q", 1, None)), "id")
    table.merge(rows((60, "q", 2, None)), "id")
    with pytest.raises(phalanx.CommitConflict, match="both replace rows there"):
        txn.__exit__(None, None, None)
    assert table.scan("id = 60").to_arrow()["n"].to_pylist() == [2]


# ── other layouts, and failures in weak mode ─────────────────────────────────────────────────


@pytest.mark.parametrize("layout", ["hive", "expressions"])
def test_drafts_of_the_format(tmp_path: Path, layout: str) -> None:
    table = create_table(tmp_path / "t", "weak", *ABC, layout=layout)
    assert table.update("id = 1", {"n": "n + 10"}) == 1
    assert table.update("id = 2", {"k": "'b'"}) == 1
    done = table.merge(rows((3, "z", 33, None), (7, "a", 7, None)), "id")
    assert (done.inserted, done.updated) == (1, 1)
    assert table.drop_partitions("k = 'b'") == 1
    assert contents(table) == sorted(
        [(1, "a", 11, 0.5), (3, "z", 33, None), (4, None, 4, 2.5), (7, "a", 7, None)], key=repr
    )
    assert lance.dataset(table.plan("k = 'b'").partitions[0].location).count_rows() == 0


def failing(place: str, which: Callable[..., bool]) -> Any:
    """Commits of a leaf that fail."""
    before = leaf.apply_change

    def commit(location: Location, fragments: Any, *arguments: Any, **named: Any) -> int:
        if which(location, tuple(fragments), *arguments):
            raise OSError(f"no {place}")
        return before(location, fragments, *arguments, **named)

    return mock.patch.object(leaf, "apply_change", commit)


def test_a_failure_names_partitions_whose_rows_are_there_twice(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", "weak", *ABC)
    [place] = table.plan("k = 'a'").partitions
    with (
        failing("removal", lambda location, *_: location.uri == place.location),
        pytest.raises(phalanx.PartialWrite) as raised,
    ):
        table.update("id IN (1, 3)", {"k": "'c'"})
    for words in (
        "Wrote 1 of 2 partitions. Written: v1('b',). Not written: v1('a',).",
        "Rows that move out of v1('a',) exist twice",
        "where` that selects only partitions that were not written",
    ):
        assert words in str(raised.value)
    assert [row[:2] for row in contents(table)] == [
        (1, "a"),
        (1, "c"),
        (2, "a"),
        (3, "c"),
        (4, None),
    ]


def test_rows_that_cannot_arrive_everywhere_are_taken_back(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", "weak", *ABC)
    [place] = table.plan("k = 'b'").partitions
    with (
        failing("room", lambda location, *_: location.uri == place.location),
        pytest.raises(phalanx.PartialWrite, match="changed nothing else"),
    ):
        table.update("k = 'a'", {"k": "CASE id WHEN 1 THEN 'b' ELSE 'c' END"})
    assert contents(table) == sorted(ABC, key=repr)


def test_a_weak_update_of_rows_that_others_change_meanwhile(tmp_path: Path) -> None:
    """Concurrently added rows stay, and concurrently changed rows are read again."""
    table = create_table(tmp_path / "t", "weak", *ABC)
    other = phalanx.open(table.uri)
    before = leaf.apply_change
    done = []

    def commit(*arguments: Any, **named: Any) -> int:
        if not done:
            done.append(True)
            other.update("id = 2", {"n": "50"})
            other.append(rows((9, "a", 9, None)))
        return before(*arguments, **named)

    with mock.patch.object(leaf, "apply_change", commit):
        assert table.update("k = 'a' AND id < 9", {"n": "n + 1"}) == 2
    assert {row[0]: row[2] for row in contents(table)} == {1: 2, 2: 51, 3: 3, 4: 4, 9: 9}
