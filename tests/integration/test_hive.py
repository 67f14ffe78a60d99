"""The Hive-style layout: the draft's examples, on real tables of Lance."""

from __future__ import annotations

import json
import operator
import os
import shutil
import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_lance
import lance
import lance_namespace as catalog
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, CreateTableRequest, ListTablesRequest

import phalanx
from integration.stores import Store
from phalanx.errors import PhalanxError
from phalanx.model.specs.hive_properties import (
    HIVE_IS_PARTITIONED,
    HIVE_PARTITION_COLUMNS,
    HIVE_SCHEMA,
)
from phalanx.storage.hive.files import PROPERTIES_FILE

EVENTS = pa.schema([("event_date", pa.date32()), ("country", pa.string()), ("n", pa.int64())])
TENTH, ELEVENTH = date(2025, 12, 10), date(2025, 12, 11)
Event = tuple[date | None, str | None, int]


def events(*rows: Event) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(EVENTS.names, row, strict=True)) for row in rows], EVENTS)


ROWS = events(
    (TENTH, "US", 1), (TENTH, "CN", 2), (ELEVENTH, "US", 3), (ELEVENTH, "FR", 4), (None, None, 5)
)


def create_table(
    store: Store, schema: pa.Schema, partition_by: Any, rows: pa.Table
) -> phalanx.Table:
    options = store.storage_options
    uri = store.fresh()
    phalanx.create(uri, schema, partition_by, layout="hive", storage_options=options).append(rows)
    return phalanx.open(uri, storage_options=options)


@pytest.fixture
def table(store: Store) -> phalanx.Table:
    return create_table(store, EVENTS, ["event_date", "country"], ROWS)


def leaves(table: phalanx.Table, where: str | None = None) -> list[str]:
    """The leaves that a predicate reads, below the root."""
    return [each.location[len(table.uri) + 1 :] for each in table.plan(where).partitions]


def values(table: phalanx.Table, where: str | None, column: str = "n") -> list[Any]:
    return sorted(table.scan(where, [column]).to_arrow()[column].to_pylist())


def content(table: phalanx.Table) -> list[Event]:
    rows = table.scan().to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=lambda row: row[2])


# ── the document's layout and pruning ────────────────────────────────────────────────────────


def test_the_folders_are_those_of_the_draft(table: phalanx.Table, store: Store) -> None:
    assert leaves(table) == [
        "event_date=2025-12-10/country=CN.lance",
        "event_date=2025-12-10/country=US.lance",
        "event_date=2025-12-11/country=FR.lance",
        "event_date=2025-12-11/country=US.lance",
        "event_date=__HIVE_DEFAULT_PARTITION__/country=__HIVE_DEFAULT_PARTITION__.lance",
    ]
    files = store.files(table.uri)
    assert any(path.endswith(f"/{PROPERTIES_FILE}") for path in files)
    assert (table.layout, table.mode, table.spec.id) == ("hive", "weak", 1)
    leaf = table.partition(event_date=TENTH, country="US")
    assert leaf.schema.names == ["n"]
    assert content(table) == [
        (TENTH, "US", 1), (TENTH, "CN", 2), (ELEVENTH, "US", 3), (ELEVENTH, "FR", 4),
        (None, None, 5),
    ]  # fmt: skip


def test_pruning_by_identity(table: phalanx.Table) -> None:
    where = "event_date = '2025-12-11' AND country != 'FR'"
    assert leaves(table, where) == ["event_date=2025-12-11/country=US.lance"]
    assert values(table, where) == [3]
    assert table.plan(where).total_partitions == 5


def test_pruning_by_year_month_and_day(store: Store) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "Europe/Paris")), ("n", pa.int64())])
    moments = [
        datetime(2025, 12, 9, 23, 59, tzinfo=UTC),
        datetime(2025, 12, 10, 9, tzinfo=UTC),
        datetime(2025, 12, 10, 10, tzinfo=UTC),
        # The eleventh in Paris, the tenth in UTC.
        datetime(2025, 12, 10, 23, 30, tzinfo=UTC),
        datetime(2025, 12, 11, tzinfo=UTC),
        datetime(2026, 1, 10, 10, tzinfo=UTC),
    ]
    rows = pa.table([pa.array(moments, schema.field("ts").type), range(6)], schema=schema)
    table = create_table(store, schema, "year(ts), month(ts), day(ts)", rows)
    assert leaves(table)[0] == "ts_year=2025/ts_month=12/ts_day=09.lance"
    assert leaves(table)[-1] == "ts_year=2026/ts_month=01/ts_day=10.lance"
    where = "ts >= '2025-12-10T10:00:00Z' AND ts < '2025-12-11T00:00:00Z'"
    assert leaves(table, where) == ["ts_year=2025/ts_month=12/ts_day=10.lance"]
    assert values(table, where) == [2, 3]
    assert "ts" in table.partition(ts_year=2025, ts_month=12, ts_day=9).schema.names


def test_pruning_by_hour(store: Store) -> None:
    schema = pa.schema([("ts", pa.timestamp("ns")), ("n", pa.int64())])
    moments = [datetime(2025, 1, 1, hour) for hour in (0, 7, 23)]
    table = create_table(store, schema, "hour(ts)", pa.table([moments, range(3)], schema=schema))
    assert leaves(table) == ["ts_hour=00.lance", "ts_hour=07.lance", "ts_hour=23.lance"]
    where = "ts = '2025-01-01T07:00:00'"
    assert leaves(table, where) == ["ts_hour=07.lance"]
    assert values(table, where) == [1]


def test_pruning_of_numbers_by_truncate(store: Store) -> None:
    """The draft would leave out `<= 120` for `i > 125`, and lose 126 to 129."""
    schema = pa.schema([("i", pa.int64())])
    numbers = [-5, 5, 100, 119, 120, 125, 126, 129, 130, 500]
    table = create_table(store, schema, "truncate(10, i)", pa.table([numbers], schema=schema))
    assert "i_trunc=120.lance" in leaves(table)
    assert leaves(table, "i > 125") == [
        "i_trunc=120.lance",
        "i_trunc=130.lance",
        "i_trunc=500.lance",
    ]
    assert values(table, "i > 125", "i") == [126, 129, 130, 500]
    assert leaves(table, "i > 129") == ["i_trunc=130.lance", "i_trunc=500.lance"]


def test_pruning_of_text_by_truncate(store: Store) -> None:
    schema = pa.schema([("s", pa.string())])
    texts = ["abcdef", "abd", "ab", "é/=", "xyz", None]
    table = create_table(store, schema, "truncate(3, s)", pa.table([texts], schema=schema))
    assert leaves(table, "s LIKE 'abcd%'") == ["s_trunc=abc.lance"]
    assert values(table, "s LIKE 'abcd%'", "s") == ["abcdef"]
    assert leaves(table, "s LIKE 'ab%'") == [
        "s_trunc=ab.lance",
        "s_trunc=abc.lance",
        "s_trunc=abd.lance",
    ]
    assert values(table, "s = 'é/='", "s") == ["é/="]
    assert len(leaves(table, "s = 'é/='")) == 1


@pytest.mark.parametrize(
    ("partition_by", "folder"),
    # murmur3 of "US" is −629525236: hexadecimal da7a350c, and 12 modulo 16.
    [("bucket(16, c)", "c_bucket=12.lance"), ("hash(c)", "c_hash=da7a350c.lance")],
)
def test_pruning_by_hashes(store: Store, partition_by: str, folder: str) -> None:
    schema = pa.schema([("c", pa.string()), ("n", pa.int64())])
    countries = ["US", "CN", "FR", "DE", "IT", None]
    table = create_table(
        store, schema, partition_by, pa.table([countries, range(6)], schema=schema)
    )
    assert leaves(table, "c = 'US'") == [folder]
    assert values(table, "c = 'US'") == [0]
    assert len(leaves(table, "c > 'US'")) == len(leaves(table, "c IS NOT NULL"))
    assert len(leaves(table, "c IS NULL")) == 1


def test_hashes_of_lists_and_structs(store: Store) -> None:
    pair = pa.struct([("a", pa.int32()), ("b", pa.string())])
    schema = pa.schema([("tags", pa.list_(pa.string())), ("pair", pair), ("n", pa.int64())])
    rows = pa.Table.from_pylist(
        [
            {"tags": ["x", None], "pair": {"a": 1, "b": "y"}, "n": 1},
            {"tags": ["x", None], "pair": {"a": 1, "b": "y"}, "n": 2},
            {"tags": [], "pair": None, "n": 3},
        ],
        schema,
    )
    table = create_table(store, schema, "hash(tags), hash(pair)", rows)
    assert len(leaves(table)) == 2
    assert table.scan().to_arrow().sort_by("n").equals(rows)


# ── values in paths ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", [
    "", "a/b=c", "100%", "$id", "a\x00b", "é日😀", "__HIVE_DEFAULT_PARTITION__", "a.lance",
    ".", "..", "%2F", "a b+c&d~;,", "\u2028|<>!@()", "%25",
])  # fmt: skip
def test_special_texts_come_back(store: Store, text: str) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("n", pa.int64())])
    rows = pa.table([[text, None], [text, text], [1, 2]], schema=schema)
    table = create_table(store, schema, ["a", "b"], rows)
    table.append(rows)
    assert table.plan().total_partitions == 2
    found = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["n"])
    one, two = {"a": text, "b": text, "n": 1}, {"a": None, "b": text, "n": 2}
    assert found == [one, one, two, two]
    assert table.partition(a=text, b=text).count_rows() == 2


def test_types_come_back(store: Store) -> None:
    columns = {
        "u": pa.array([2**64 - 1], pa.uint64()),
        "b": pa.array([True]),
        "d": pa.array([Decimal("-1.20")], pa.decimal128(9, 2)),
        "t": pa.array([1], pa.time64("ns")),
        "ts": pa.array([-1], pa.timestamp("ns", "America/New_York")),
        "l": pa.array(["x"], pa.large_string()),
        "n": pa.array([None], pa.int8()),
    }
    rows = pa.table(columns)
    table = create_table(store, rows.schema, ["u", "b", "d", "t", "ts", "l"], rows)
    assert leaves(table)[0].replace("%25", "%") == (
        "u=18446744073709551615/b=true/d=-1.20/t=00%3A00%3A00.000000001"
        "/ts=1969-12-31T23%3A59%3A59.999999999Z/l=x.lance"
    )
    assert table.scan().to_arrow().equals(rows)


# ── writes ───────────────────────────────────────────────────────────────────────────────────


def test_overwriting_partitions_twice_gives_the_same(table: phalanx.Table) -> None:
    new = events((TENTH, "US", 10), (ELEVENTH, "DE", 11))
    expected = [
        (TENTH, "CN", 2), (ELEVENTH, "US", 3), (ELEVENTH, "FR", 4), (None, None, 5),
        (TENTH, "US", 10), (ELEVENTH, "DE", 11),
    ]  # fmt: skip
    for _ in range(2):
        assert table.overwrite_partitions(new) == 2
        assert content(table) == expected


def test_overwrite_and_delete_by_columns_in_the_path(table: phalanx.Table) -> None:
    assert table.overwrite(events((TENTH, "US", 9)), "country = 'US'") == 1
    assert values(table, "country = 'US'") == [9]
    # Each row decides what no partition value decides.
    assert table.delete("country || n = 'CN2' OR n = 4") == 2
    assert values(table, None) == [5, 9]
    assert table.plan().total_partitions == 5


def test_only_columns_in_the_path(table: phalanx.Table) -> None:
    found = table.scan("country = 'US'", ["country"]).to_arrow()
    assert found.to_pylist() == [{"country": "US"}] * 2
    assert table.scan("length(country) = 2").count_rows() == 4
    assert table.scan(None, ["country"], 3).to_arrow().num_rows == 3


def test_compaction(table: phalanx.Table) -> None:
    table.append(ROWS)
    before = content(table)
    done = table.rewrite(min_input_files=2)
    assert (done.files_before, done.files_after) == (10, 5)
    assert content(table) == before


def test_a_leaf_that_another_made(store: Store) -> None:
    """Columns go by their names, whatever their order and numbers are."""
    schema = pa.schema([("k", pa.string()), ("a", pa.int64()), ("b", pa.string())])
    rows = pa.table([["x"], [1], ["one"]], schema=schema)
    table = create_table(store, schema, ["k"], rows)
    other = pa.table({"b": ["two"], "gone": [0], "a": pa.array([2], pa.int64())})
    uri, options = f"{table.uri}/k=y.lance", store.storage_options
    dataset = lance.write_dataset(other, uri, storage_options=options)
    dataset.drop_columns(["gone"])
    table.append(pa.table([["y"], [3], ["three"]], schema=schema))
    assert table.scan("k = 'y' AND a > 1").to_arrow().sort_by("a").to_pylist() == [
        {"k": "y", "a": 2, "b": "two"},
        {"k": "y", "a": 3, "b": "three"},
    ]


def test_a_leaf_with_another_schema_is_refused(store: Store) -> None:
    table = create_table(store, EVENTS, ["event_date", "country"], ROWS)
    uri = f"{table.uri}/event_date=2025-12-12/country=US.lance"
    lance.write_dataset(pa.table({"n": ["text"]}), uri, storage_options=store.storage_options)
    for act in (
        lambda: table.scan().to_arrow(),
        lambda: table.append(events((date(2025, 12, 12), "US", 1))),
    ):
        with pytest.raises(phalanx.SchemaMismatch, match="'n' is string, expected int64"):
            act()


# ── what else lies there ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def local(tmp_path: Path) -> phalanx.Table:
    return create_table(Store(str(tmp_path)), EVENTS, ["event_date", "country"], ROWS)


def test_files_and_folders_of_others_are_left_alone(local: phalanx.Table) -> None:
    root = Path(local.uri)
    (root / "_SUCCESS").touch()
    (root / ".part.crc").touch()
    (root / "_temporary" / "event=1").mkdir(parents=True)
    (root / ".hidden=1").mkdir()
    (root / "notes").mkdir()
    lance.write_dataset(pa.table({"x": [1]}), root / "other.lance")
    (root / "event_date=2025-12-10" / "_SUCCESS").touch()
    (root / "event_date=2030-01-01").mkdir()
    # The files of a writer that died before its first commit.
    (root / "event_date=2025-12-10" / "country=XX.lance" / "data").mkdir(parents=True)
    assert len(content(local)) == 5
    assert local.partitions().num_rows == 5
    assert local.append(events((TENTH, "XX", 6))) == 1
    assert values(local, "country = 'XX'") == [6]


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("region=EU", "event_date=<value>"),
        ("event_date=2025-12-10/region=EU.lance", "country=<value>.lance"),
        ("event_date=2025-12-10/country=DE", "country=<value>.lance"),
        ("event_date=2025-12-12.lance", "event_date=<value>"),
    ],
)
def test_folders_of_another_partitioning_are_refused(
    local: phalanx.Table, folder: str, expected: str
) -> None:
    (Path(local.uri) / folder).mkdir()
    with pytest.raises(phalanx.PhalanxError, match=expected.replace(".", r"\.")):
        local.scan()


def test_a_value_of_another_type_is_refused(local: phalanx.Table) -> None:
    (Path(local.uri) / "event_date=soon" / "country=US.lance").mkdir(parents=True)
    with pytest.raises(phalanx.PhalanxError, match="event_date is 'soon', expected date32"):
        local.plan()


def test_two_folders_of_one_partition_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    table = create_table(Store(str(tmp_path)), schema, ["k"], pa.table([[1], [1]], schema=schema))
    shutil.copytree(f"{table.uri}/k=1.lance", f"{table.uri}/k=01.lance")
    with pytest.raises(phalanx.PhalanxError, match=r"k=01\.lance and k=1\.lance are the same"):
        table.scan()


def test_a_table_that_is_recreated_at_its_path(tmp_path: Path) -> None:
    """No cache knows leaves by their paths."""
    for number in range(3):
        table = phalanx.create(tmp_path / "t", EVENTS, ["country"], layout="hive")
        table.append(events((TENTH, "US", number)))
        assert phalanx.open(tmp_path / "t").scan().to_arrow()["n"].to_pylist() == [number]
        shutil.rmtree(tmp_path / "t")


def test_a_value_too_long_for_a_name(local: phalanx.Table) -> None:
    with pytest.raises(phalanx.PhalanxError, match="at most 255 bytes"):
        local.append(events((TENTH, "x" * 300, 1)))
    assert len(content(local)) == 5


# ── properties ───────────────────────────────────────────────────────────────────────────────


def test_create_on_an_existing_table(table: phalanx.Table, store: Store) -> None:
    for layout in ("hive", "namespace"):
        with pytest.raises(phalanx.PhalanxError, match="exists there"):
            phalanx.create(
                table.uri, EVENTS, ["country"], layout=layout, storage_options=store.storage_options
            )
    other = phalanx.create(
        store.fresh(), EVENTS, ["country"], storage_options=store.storage_options
    )
    with pytest.raises(phalanx.PhalanxError, match="exists there"):
        phalanx.create(
            other.uri, EVENTS, ["country"], layout="hive", storage_options=store.storage_options
        )


def in_threads(*calls: Any) -> list[Any]:
    """Return the results of concurrent calls."""
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        barrier.wait()
        try:
            results[place] = calls[place]()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_of_two_creators_one_wins(store: Store) -> None:
    uri, options = store.fresh(), store.storage_options
    results = in_threads(
        *(
            lambda spec=spec: phalanx.create(
                uri, EVENTS, spec, layout="hive", storage_options=options
            )
            for spec in ("country", "event_date", "bucket(2, n)")
        )
    )
    (winner,) = [each for each in results if isinstance(each, phalanx.Table)]
    assert all(isinstance(each, phalanx.Table | phalanx.PhalanxError) for each in results)
    assert phalanx.open(uri, storage_options=options).spec == winner.spec


def test_appends_to_a_new_leaf_at_the_same_time(store: Store) -> None:
    uri, options = store.fresh(), store.storage_options
    phalanx.create(uri, EVENTS, ["country"], layout="hive", storage_options=options)
    results = in_threads(
        *(
            lambda n=n: phalanx.open(uri, storage_options=options).append(events((TENTH, "US", n)))
            for n in range(4)
        )
    )
    assert results == [1] * 4
    assert values(phalanx.open(uri, storage_options=options), None) == [0, 1, 2, 3]


def test_properties_given_on_opening(local: phalanx.Table, tmp_path: Path) -> None:
    root = Path(local.uri)
    stored = json.loads((root / PROPERTIES_FILE).read_text())
    (root / PROPERTIES_FILE).unlink()
    with pytest.raises(phalanx.NotPartitioned):
        phalanx.open(root)
    assert len(content(phalanx.open(root, properties=stored))) == 5
    # A wider type than the one that is stored.
    (root / PROPERTIES_FILE).write_text(json.dumps(stored))
    columns = json.loads(stored[HIVE_PARTITION_COLUMNS])
    text = stored[HIVE_SCHEMA].replace('"name": "utf8"', '"name": "largeutf8"')
    wide = phalanx.open(root, properties={HIVE_SCHEMA: text})
    assert wide.schema.field("country").type == pa.large_string()
    assert values(wide, "country = 'US'") == [1, 3]
    reversed_columns = json.dumps(columns[::-1])
    with pytest.raises(phalanx.PhalanxError, match="expected country=<value>"):
        phalanx.open(root, properties={HIVE_PARTITION_COLUMNS: reversed_columns}).scan()
    other = phalanx.create(tmp_path / "other", EVENTS, ["country"])
    with pytest.raises(phalanx.PhalanxError, match="namespace layout"):
        phalanx.open(other.uri, properties=stored)


@pytest.fixture
def listed_table(tmp_path: Path) -> phalanx.Table:
    """A table in a root that stock clients have given a manifest."""
    root = tmp_path / "listed"
    namespace = catalog.connect("dir", {"root": str(root)})
    namespace.create_namespace(CreateNamespaceRequest(id=["other"]))
    assert (root / "__manifest").exists()
    with pytest.raises(phalanx.NotPartitioned):
        phalanx.open(root)
    made = phalanx.create(root, EVENTS, ["event_date", "country"], layout="hive")
    made.append(ROWS)
    return phalanx.open(root)


def test_properties_in_a_manifest(listed_table: phalanx.Table) -> None:
    root = Path(listed_table.uri)
    assert not (root / PROPERTIES_FILE).exists()
    assert lance.dataset(str(root / "__manifest")).metadata[HIVE_IS_PARTITIONED] == "true"
    assert listed_table.layout == "hive"
    assert len(content(listed_table)) == 5
    for layout in ("hive", "namespace"):
        with pytest.raises(phalanx.PhalanxError, match="exists there"):
            phalanx.create(root, EVENTS, ["country"], layout=layout)


def test_leaves_that_a_manifest_lists(listed_table: phalanx.Table) -> None:
    """Stock clients put tables into folders of other names, and list them under these."""
    namespace = catalog.connect("dir", {"root": listed_table.uri})
    day = "event_date=2025-12-12"
    namespace.create_namespace(CreateNamespaceRequest(id=[day]))
    for name, number in (("country=US", 6), ("country=DE.lance", 7)):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([("n", pa.int64())])) as writer:
            writer.write(pa.record_batch({"n": pa.array([number], pa.int64())}))
        namespace.create_table(CreateTableRequest(id=[day, name]), sink.getvalue().to_pybytes())
    twelfth = date(2025, 12, 12)
    assert values(listed_table, "event_date = '2025-12-12'") == [6, 7]
    listed_table.append(events((twelfth, "US", 8), (twelfth, "FR", 9)))
    assert values(listed_table, "event_date = '2025-12-12' AND country = 'US'") == [6, 8]
    assert listed_table.plan().total_partitions == 8
    with pytest.raises(phalanx.PhalanxError, match="lists tables of stock clients"):
        listed_table.upgrade()
    assert listed_table.layout == "hive"


def test_broken_properties(local: phalanx.Table) -> None:
    file = Path(local.uri) / PROPERTIES_FILE
    file.write_text("{")
    with pytest.raises(phalanx.InvalidManifest, match="expected JSON"):
        phalanx.open(local.uri)
    file.write_text(json.dumps({HIVE_IS_PARTITIONED: "true", HIVE_PARTITION_COLUMNS: "[]"}))
    with pytest.raises(phalanx.NotPartitioned, match=HIVE_SCHEMA):
        phalanx.open(local.uri)


# ── what the layout has not ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "refused",
    [
        lambda table: table.transaction(),
        lambda table: table.set_mode("strong"),
        lambda table: table.at(1),
        lambda table: table.evolve("country"),
        lambda table: table.add_column(pa.field("x", pa.int8())),
        lambda table: table.drop_column("n"),
        lambda table: table.vacuum(),
        lambda table: table.health(),
        lambda table: table.adopt("elsewhere"),
        lambda table: table.rewrite(target_spec=1),
    ],
)
def test_what_is_refused_names_the_way_out(local: phalanx.Table, refused: Any) -> None:
    with pytest.raises(phalanx.PhalanxError, match=r"has the hive layout: weak mode only.*upgrade"):
        refused(local)


def test_there_are_no_snapshots(local: phalanx.Table, tmp_path: Path) -> None:
    other = phalanx.create(tmp_path / "weak", EVENTS, ["country"])
    assert local.snapshots().num_rows == 0
    assert local.snapshots().schema == other.snapshots().schema


def test_no_strong_mode_from_the_start(tmp_path: Path) -> None:
    with pytest.raises(phalanx.PhalanxError, match="hive layout has weak mode only"):
        phalanx.create(tmp_path / "t", EVENTS, ["country"], layout="hive", transaction="strong")
    assert not os.listdir(tmp_path)
    with pytest.raises(phalanx.PhalanxError, match="'expressions' or 'hive'"):
        phalanx.create(tmp_path / "t", EVENTS, ["country"], layout="delta")


# ── clients that know nothing of it ──────────────────────────────────────────────────────────


def test_stock_clients_read_leaves(local: phalanx.Table) -> None:
    uri = f"{local.uri}/event_date=2025-12-10/country=US.lance"
    assert lance.dataset(uri).to_table().to_pylist() == [{"n": 1}]
    lance.write_dataset(pa.table({"n": [7]}), uri, mode="append")
    assert values(local, "country = 'US'") == [1, 3, 7]
    extension = f"extensions/v{duckdb.__version__}/lance.duckdb_extension"
    path = Path(duckdb_extension_lance.__file__).parent / extension
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.load_extension(str(path))
    assert connection.sql(f"SELECT sum(n) FROM '{uri}'").fetchall() == [(8,)]


def test_stock_directories_list_tables(tmp_path: Path) -> None:
    """Without a manifest, Lance's directory lists one level."""
    table = create_table(Store(str(tmp_path)), EVENTS, ["country"], ROWS)
    listed = catalog.connect("dir", {"root": table.uri}).list_tables(ListTablesRequest(id=[]))
    assert sorted(listed.tables) == [
        "country=CN", "country=FR", "country=US", "country=__HIVE_DEFAULT_PARTITION__",
    ]  # fmt: skip
    assert len(content(table)) == 5


def test_a_file_uri(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}")
    table = create_table(store, EVENTS, ["country"], events((TENTH, "a/b", 1)))
    assert (Path(table.uri.removeprefix("file://")) / "country=a%2Fb.lance").is_dir()
    assert content(table) == [(TENTH, "a/b", 1)]


def _cut_down(tmp_path: Path, numbers: Sequence[int]) -> phalanx.Table:
    """A table of another writer, which cuts numbers down to a multiple, also below zero."""
    schema = pa.schema([("i", pa.int64()), ("n", pa.int64())])
    table = phalanx.create(tmp_path / "t", schema, "truncate(10, i)", layout="hive")
    for start in sorted({number // 10 * 10 for number in numbers}):
        own = [number for number in numbers if number // 10 * 10 == start]
        lance.write_dataset(
            pa.table([own, own], schema=schema), tmp_path / "t" / f"i_trunc={start}.lance"
        )
    return phalanx.open(table.uri)


def test_numbers_that_another_writer_cuts_down(tmp_path: Path) -> None:
    numbers = [-25, -20, -11, -10, -9, -3, -1, 0, 4, 9, 10, 25]
    table = _cut_down(tmp_path, numbers)
    for value in (-26, -25, -20, -15, -10, -9, -3, -1, 0, 5, 10, 30):
        for sign, holds in (
            *(("=", operator.eq), ("<>", operator.ne), ("<", operator.lt), ("<=", operator.le)),
            *((">", operator.gt), (">=", operator.ge)),
        ):
            where = f"i {sign} {value}"
            wanted = [number for number in numbers if holds(number, value)]
            assert sorted(values(table, where, "i")) == wanted, where
            assert table.scan(where).count_rows() == len(wanted)
    assert leaves(table, "i = 25") == ["i_trunc=20.lance"]
    assert sorted(values(table, "i - (i % 10) = 0", "i")) == [-9, -3, -1, 0, 4, 9]
    # A merge finds a key wherever it is, and a new row goes toward zero.
    merged = table.merge(pa.table({"i": [-3, -5], "n": [100, 200]}), on="i")
    assert (merged.updated, merged.inserted) == (1, 1)
    assert values(table, "i = -3", "n") == [100]
    assert values(table, "i = -5", "n") == [200]
    assert leaves(table, "i = -5") == ["i_trunc=-10.lance", "i_trunc=0.lance"]
    assert table.delete("i < 0 AND i > -10") == 4
    assert sorted(values(table, None, "i")) == [-25, -20, -11, -10, 0, 4, 9, 10, 25]
    with pytest.raises(PhalanxError, match=r"i_trunc=-[0-9]+.lance has numbers in 'i' .* Import"):
        table.upgrade()


def test_numbers_cut_toward_zero_are_upgraded(tmp_path: Path) -> None:
    schema = pa.schema([("i", pa.int64()), ("n", pa.int64())])
    table = phalanx.create(tmp_path / "t", schema, "truncate(10, i)", layout="hive")
    table.append(pa.table([[-25, -3, 3], [1, 2, 3]], schema=schema))
    table.upgrade()
    assert table.layout == "namespace"
    assert leaves(table, "i = -3") == leaves(table, "i = 3")
    assert values(table, "i = -25", "n") == [1]
