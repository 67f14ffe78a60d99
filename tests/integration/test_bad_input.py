"""What is refused, before anything is written, and with which words."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import pyarrow as pa
import pytest
from lance import LanceDataset

import phalanx
from integration.stores import Store
from phalanx.errors import (
    InvalidArgument,
    InvalidPredicate,
    InvalidSchema,
    InvalidSpec,
    NotPartitioned,
    PartialWrite,
    PhalanxError,
    SchemaMismatch,
    UnknownSpec,
)
from properties.oracle import find_matches

STRUCT = pa.struct([pa.field("must", pa.int32(), nullable=False), pa.field("may", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("country", pa.string()),
        pa.field("tiny", pa.int8()),
        pa.field("half", pa.float32()),
        pa.field("price", pa.decimal128(5, 2)),
        pa.field("at", pa.timestamp("s")),
        pa.field("zoned", pa.timestamp("us", "UTC")),
        pa.field("s", STRUCT),
        pa.field("items", pa.list_(STRUCT)),
        pa.field("many", pa.list_(pa.field("item", pa.int8(), nullable=False))),
    ]
)
NOON = datetime.datetime(2025, 1, 1, 12)
ROW = {
    "id": 1,
    "country": "US",
    "tiny": 1,
    "half": 0.5,
    "price": Decimal("1.25"),
    "at": NOON,
    "zoned": NOON.replace(tzinfo=datetime.UTC),
    "s": {"must": 1, "may": None},
    "items": [{"must": 1, "may": "x"}],
    "many": [1],
}


def rows(*changes: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{**ROW, **change} for change in changes or ({},)], SCHEMA)


def replace_column(name: str, array: pa.Array, field: pa.Field | None = None) -> pa.Table:
    """One good row, but for a column of another type or value."""
    place = SCHEMA.get_field_index(name)
    return rows().set_column(place, field or pa.field(name, array.type), array)


def build_unchecked(name: str, value: Any) -> pa.Table:
    """One good row and one with a NULL that the schema forbids."""
    nullable = pa.schema([pa.field(f.name, _nullable(f.type)) for f in SCHEMA])
    return pa.Table.from_pylist([ROW, {**ROW, name: value}], nullable)


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, _nullable(child.type)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    return kind


@pytest.fixture
def table(root: str, store: Store) -> phalanx.Table:
    made = phalanx.create(root, SCHEMA, ["country"], storage_options=store.storage_options)
    made.append(rows({}, {"country": None}))
    return made


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "no rows at all": ("text", "Cannot read rows from str"),
    "a list of dicts": ([ROW], "pa.Table.from_pylist"),
    "a missing column": (rows().drop_columns(["tiny"]), "lacks the column 'tiny'"),
    "a misspelt column": (
        rows().rename_columns([n if n != "country" else "contry" for n in SCHEMA.names]),
        "Did you mean 'contry' as 'country'",
    ),
    "an extra column": (
        rows().append_column("more", pa.array([1])),
        "has the column 'more', which the table does not have",
    ),
    "a doubled column": (
        rows().append_column("tiny", pa.array([1], pa.int8())),
        "more than once",
    ),
    "text for a number": (replace_column("tiny", pa.array(["1"])), "'tiny' is int8, .* string"),
    "a number for text": (
        replace_column("country", pa.array([1])),
        "'country' is string, .* int64",
    ),
    "an overflow": (replace_column("tiny", pa.array([128])), "'tiny' is int8.*128"),
    "a fraction for a whole number": (replace_column("tiny", pa.array([1.0])), "'tiny' is int8"),
    "a float that would be rounded": (replace_column("half", pa.array([0.1])), "0.1 .*exactly"),
    "a whole number that would be rounded": (
        replace_column("half", pa.array([2**24 + 1])),
        "half.*16777217|16777217.*half",
    ),
    "too many digits": (replace_column("price", pa.array([Decimal("1234.56")])), "'price'"),
    "too fine a fraction": (replace_column("price", pa.array([Decimal("1.234")])), "'price'"),
    "a zone where there is none": (
        replace_column("at", pa.array([NOON], pa.timestamp("s", "UTC"))),
        "'at' is timestamp",
    ),
    "no zone where there is one": (
        replace_column("zoned", pa.array([NOON], pa.timestamp("us"))),
        "'zoned' is timestamp",
    ),
    "finer moments": (
        replace_column("at", pa.array([1_500_000], pa.timestamp("us"))),
        "'at' is timestamp.s.",
    ),
    "a date for a moment": (replace_column("at", pa.array([NOON.date()])), "'at' is timestamp"),
    "NULL in a column": (build_unchecked("id", None), "'id' is not nullable, but row 1"),
    "NULL in a struct": (
        build_unchecked("s", {"must": None, "may": "x"}),
        "'s.must' is not nullable",
    ),
    "NULL in a struct in a list": (
        build_unchecked("items", [{"must": 1, "may": None}, {"must": None, "may": None}]),
        "'items.*must' is not nullable",
    ),
    "NULL in a list": (build_unchecked("many", [1, None]), "'many.*' is not nullable"),
    "an overflow in a list": (replace_column("many", pa.array([[300]])), "'many.*int8"),
    "a missing field of a struct": (
        replace_column("s", pa.array([{"must": 1}])),
        "'s' has the fields must, may, but the data has must",
    ),
    "an extra field of a struct in a list": (
        replace_column("items", pa.array([[{"must": 1, "may": "x", "more": 2}]])),
        "has the fields must, may, but the data has must, may, more",
    ),
    "a missing field of a struct in a list": (
        replace_column("items", pa.array([[{"must": 1}]])),
        "has the fields must, may, but the data has must",
    ),
}


@pytest.mark.parametrize("case", list(BAD_ROWS))
@pytest.mark.parametrize("method", ["append", "overwrite", "overwrite_partitions"])
def test_bad_rows(table: phalanx.Table, store: Store, case: str, method: str) -> None:
    data, message = BAD_ROWS[case]
    before = store.files(table.uri)
    with pytest.raises(SchemaMismatch, match=message):
        getattr(table, method)(data)
    assert store.files(table.uri) == before


def test_a_bad_row_late_in_a_stream(table: phalanx.Table, store: Store) -> None:
    good, bad = rows({"country": "new"}), build_unchecked("id", None)
    schema = bad.schema
    batches = [good.cast(schema).to_batches()[0], *bad.to_batches()]
    before = store.files(table.uri)
    with pytest.raises(SchemaMismatch, match="'id' is not nullable, but row 2 of the data"):
        table.append(pa.RecordBatchReader.from_batches(schema, batches))
    assert store.files(table.uri) == before


def test_a_stream_that_breaks(table: phalanx.Table, store: Store) -> None:
    def batches() -> Any:
        yield rows({"country": "new"}).to_batches()[0]
        raise RuntimeError("the source is gone")

    before = store.files(table.uri)
    with pytest.raises(RuntimeError, match="the source is gone"):
        table.append(pa.RecordBatchReader.from_batches(SCHEMA, batches()))
    assert store.files(table.uri) == before


def test_rows_that_are_not_among_the_replaced(table: phalanx.Table, store: Store) -> None:
    before = store.files(table.uri)
    data = rows({"country": "FR"}, {"country": None})
    with pytest.raises(InvalidPredicate, match=r"Row 1 of the data does not match"):
        table.overwrite(data, "country = 'FR'")
    assert store.files(table.uri) == before


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("contry = 'US'", "country"),
        ("s.mus = 1", "must"),
        ("country =", "country ="),
        ("country", "."),
        ("id + 1", "."),
        ("country > 1 AND nothing(id)", "nothing"),
        ("at = 'no moment'", "."),
        ("sum(id) = 1", "."),
        ("id IN (SELECT 1)", "."),
        ("", "."),
        ("true; drop table t", "."),
        (1, "."),
    ],
)
def test_bad_predicates(table: phalanx.Table, store: Store, where: Any, message: str) -> None:
    before = store.files(table.uri)
    for use in (table.delete, table.plan, table.scan, lambda w: table.overwrite(rows(), w)):
        with pytest.raises(InvalidPredicate, match=message):
            use(where)
    assert store.files(table.uri) == before


def test_what_is_no_column_or_limit(table: phalanx.Table) -> None:
    with pytest.raises(SchemaMismatch, match="'contry'"):
        table.scan(columns=["contry"])
    for columns in ([], "id", ["id", "id"], [1]):
        with pytest.raises(InvalidArgument):
            table.scan(columns=columns)  # type: ignore[arg-type]
    for limit in (-1, 1.5, True):
        with pytest.raises(InvalidArgument, match="Cannot use the limit"):
            table.scan(limit=limit)  # type: ignore[arg-type]
    # As most Python code has it.
    with pytest.raises(ValueError, match="limit"):
        table.scan(limit=-1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.transaction(isolation="total"), "Cannot isolate"),
        (lambda t: t.transaction(marker=3), "Cannot mark"),
        (lambda t: t.set_mode("medium"), "Cannot set the mode 'medium'"),
        (lambda t: t.merge(rows(), 5), "Cannot merge on 5"),
        (lambda t: t.merge(rows(), "id", when_matched="insert"), "when_matched='insert'"),
        (lambda t: t.merge(rows(), "id", when_not_matched="x"), "when_not_matched='x'"),
        (lambda t: t.update("true", {}), "Cannot update by"),
        (lambda t: t.begin_write("upsert"), "operation 'upsert'"),
        (lambda t: t.at("yesterday"), "Cannot read snapshot 'yesterday'"),
        (lambda t: t.changes(2, 1), "must not be later"),
        (lambda t: t.vacuum(older_than=7), "older_than=7"),
        (lambda t: t.rewrite(max_commits=0), "max_commits=0"),
        (lambda t: t.rewrite(target_size=1), "there is no such option"),
        (lambda t: t.rewrite(min_input_files=0), "min_input_files=0"),
        (lambda t: t.health(skew=3), "there is no such limit"),
        (lambda t: t.search("country", "de", k=0), "k=0"),
        (lambda t: t.search("country", 7), "expected text"),
        (lambda t: t.create_index("id", "HASH"), "kind 'HASH'"),
        (lambda t: t.create_index("id", "BTREE", depth=2), "depth=2"),
        (lambda t: t.add_column("new"), "expected pa.field"),
        (lambda t: t.promote_column("id", "int64"), r"pa\.int64"),
        (lambda t: t.rename_column("id", None), "expected a name as text"),
        (lambda t: phalanx.create(f"{t.uri}-2", SCHEMA, [], layout="x"), "layout='x'"),
        (lambda t: phalanx.create(f"{t.uri}-2", SCHEMA, [], transaction="x"), "transaction='x'"),
        (lambda t: phalanx.open(5), "as the location of a table"),
    ],
)
def test_bad_arguments(tmp_path: Path, call: Any, message: str) -> None:
    """Arguments that are wrong for every table are an error of their own, and a ValueError."""
    table = phalanx.create(tmp_path / "t", SCHEMA, ["country"], transaction="strong")
    table.append(rows())
    before = set(tmp_path.rglob("*"))
    with pytest.raises(InvalidArgument, match=message):
        call(table)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.decimal32(5, 2), "a"),
        (pa.list_(pa.string(), 2), "a"),
        (pa.list_(pa.struct([("x", pa.int32())]), 2), "a"),
        (pa.list_view(pa.int32()), "a"),
        (pa.string_view(), "a"),
        (pa.month_day_nano_interval(), "a"),
        (pa.run_end_encoded(pa.int32(), pa.string()), "a"),
        (pa.map_(pa.string(), pa.int32(), keys_sorted=True), "a"),
        (pa.dictionary(pa.int32(), pa.string(), ordered=True), "a"),
        (pa.int32(), "a.b"),
        (pa.int32(), ""),
        (pa.int32(), "back`tick"),
        (pa.int32(), "*"),
        (pa.int32(), "_rowid"),
        (pa.int32(), "_rowaddr"),
    ],
)
def test_schemas_that_cannot_be_stored(
    root: str, store: Store, kind: pa.DataType, name: str
) -> None:
    options = store.storage_options
    with pytest.raises(InvalidSchema):
        phalanx.create(root, pa.schema([("id", pa.int32()), (name, kind)]), [])
    assert not store.files(root)
    table = phalanx.create(root, pa.schema([("id", pa.int32())]), [], storage_options=options)
    before = store.files(root)
    with pytest.raises(InvalidSchema):
        table.add_column(pa.field(name, kind))
    if kind == pa.int32():
        with pytest.raises(InvalidSchema):
            table.rename_column("id", name)
    assert store.files(root) == before


def test_create_refuses(root: str, store: Store, table: phalanx.Table) -> None:
    before = store.files(table.uri)
    with pytest.raises(PhalanxError, match="a namespace exists there"):
        phalanx.create(table.uri, SCHEMA, ["country"], storage_options=store.storage_options)
    assert store.files(table.uri) == before
    elsewhere = store.fresh()
    for partition_by, error in (
        (["contry"], InvalidSpec),
        ("year(country)", InvalidSpec),
        ("bucket(0, id)", InvalidSpec),
        ("id, id", InvalidSpec),
        ([phalanx.expression("col0 +", ["id"], pa.int32(), field_id="x")], InvalidSpec),
        ([phalanx.expression("col0", ["items"], pa.int32(), field_id="x")], InvalidSpec),
    ):
        with pytest.raises(error):
            phalanx.create(elsewhere, SCHEMA, partition_by, storage_options=store.storage_options)
    with pytest.raises(PhalanxError, match="transaction"):
        phalanx.create(elsewhere, SCHEMA, [], transaction="sometimes")
    assert not store.files(elsewhere)


def test_bad_schema_changes(table: phalanx.Table, store: Store) -> None:
    before = store.files(table.uri)
    for change in (
        lambda: table.add_column(pa.field("id", pa.int32())),
        lambda: table.add_column(pa.field("new", pa.int32(), nullable=False)),
        lambda: table.drop_column("country"),
        lambda: table.rename_column("id", "tiny"),
        lambda: table.promote_column("id", pa.int16()),
        lambda: table.promote_column("id", pa.string()),
        lambda: table.promote_column("price", pa.decimal128(20, 3)),
    ):
        with pytest.raises(SchemaMismatch):
            change()
    for change in (
        lambda: table.drop_column("none"),
        lambda: table.rename_column("none", "other"),
        lambda: table.promote_column("none", pa.int64()),
        lambda: table.rename_column("id", ""),
        lambda: table.rename_column("id", "a.b"),
    ):
        with pytest.raises(PhalanxError):
            change()
    assert store.files(table.uri) == before


# ── roots that are none ──────────────────────────────────────────────────────────────────────


def manifest_of(table: phalanx.Table, store: Store) -> LanceDataset:
    return lance.dataset(f"{table.uri}/__manifest", storage_options=store.storage_options)


def reopen(table: phalanx.Table, store: Store) -> phalanx.Table:
    return phalanx.open(table.uri, storage_options=store.storage_options)


def test_nothing_is_there(root: str, store: Store) -> None:
    with pytest.raises(NotPartitioned, match="Check the path"):
        phalanx.open(root, storage_options=store.storage_options)


def test_a_plain_directory_namespace(tmp_path: Path) -> None:
    stock = lance_namespace.connect("dir", {"root": str(tmp_path)})
    stock.create_namespace(lance_namespace.CreateNamespaceRequest(id=["ns"]))
    before = Store(str(tmp_path)).files(str(tmp_path))
    with pytest.raises(NotPartitioned, match="without partition specs"):
        phalanx.open(tmp_path)
    with pytest.raises(PhalanxError, match="a namespace exists there"):
        phalanx.create(tmp_path, SCHEMA, [])
    assert Store(str(tmp_path)).files(str(tmp_path)) == before


def test_a_plain_lance_table_or_file(tmp_path: Path) -> None:
    lance.write_dataset(rows(), str(tmp_path / "t.lance"))
    (tmp_path / "file").write_text("no table")
    for path in ("t.lance", "file"):
        with pytest.raises(PhalanxError):
            phalanx.open(tmp_path / path)


def test_a_root_that_was_created_in_part(table: phalanx.Table, store: Store) -> None:
    manifest_of(table, store).update_metadata({"schema": None})
    with pytest.raises(NotPartitioned, match="no schema among its properties"):
        reopen(table, store)


@pytest.mark.parametrize(
    ("key", "text", "error", "message"),
    [
        ("partition_spec_v1", "{", InvalidSpec, "partition_spec_v1 of .* cannot be read"),
        ("partition_spec_v1", '{"id": 1}', InvalidSpec, "partition_spec_v1 of"),
        ("partition_spec_v1", '{"id":7,"fields":[]}', InvalidSpec, "holds spec 7"),
        ("partition_spec_v2", '{"id":1,"fields":[]}', InvalidSpec, "holds spec 1"),
        ("schema", "{", InvalidSchema, "schema"),
        ("phalanx.epoch", "many", PhalanxError, "phalanx.epoch"),
        ("phalanx.mode", "sometimes", PhalanxError, "phalanx.mode"),
    ],
)
def test_corrupt_properties(
    table: phalanx.Table, store: Store, key: str, text: str, error: type[Exception], message: str
) -> None:
    manifest_of(table, store).update_metadata({key: text})
    with pytest.raises(error, match=message):
        reopen(table, store)


def test_data_under_a_spec_without_definition(table: phalanx.Table, store: Store) -> None:
    row = pa.table({"object_id": ["v9$abc$dataset"], "object_type": ["table"], "location": ["x"]})
    merge = manifest_of(table, store).merge_insert("object_id").when_not_matched_insert_all()
    merge.execute(row)
    fresh = reopen(table, store)
    for use in (
        lambda: fresh.scan().to_arrow(),
        lambda: fresh.plan("country = 'US'"),
        lambda: fresh.scan("id = 1").count_rows(),
        lambda: fresh.append(rows()),
        lambda: fresh.delete("true"),
        fresh.partitions,
    ):
        with pytest.raises(UnknownSpec, match="holds data under v9"):
            use()


def test_a_leaf_that_is_gone(table: phalanx.Table, store: Store) -> None:
    location = table.plan("country = 'US'").partitions[0].location
    LanceDataset.drop(location, store.storage_options)
    fresh = reopen(table, store)
    assert fresh.scan("country IS NULL").count_rows() == 1
    with pytest.raises(PhalanxError, match=location.rsplit("/", 1)[1].split("$")[0]):
        fresh.scan().to_arrow()
    with pytest.raises(PhalanxError):
        fresh.scan().count_rows()


# ── a failure in the middle ──────────────────────────────────────────────────────────────────


def test_a_failure_in_the_middle_of_an_append(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = phalanx.create(root, SCHEMA, ["country"], storage_options=store.storage_options)
    data = rows({"country": "DE"}, {"country": "FR"}, {"country": "US"}, {"country": None})
    commit = LanceDataset.commit
    # Every leaf exists before the first is written.
    made = {}

    def failing(target: Any, operation: Any, **named: Any) -> Any:
        uri = target if isinstance(target, str) else target.uri
        if not made:
            leaves = table.partitions().select(["country", "location"]).to_pylist()
            made.update({leaf["location"]: leaf["country"] for leaf in leaves})
        if any(uri.endswith(place.rsplit("/", 1)[1]) for place in made if made[place] == "FR"):
            raise OSError("the disk is full")
        return commit(target, operation, **named)

    monkeypatch.setattr(LanceDataset, "commit", staticmethod(failing))
    with pytest.raises(PartialWrite) as caught:
        table.append(data)
    message = str(caught.value)
    written, missing = message.split("Not written:")
    assert "3 of 4" in message
    assert "FR" in missing
    assert "the disk is full" in missing
    assert all(name in written for name in ("DE", "US", "None"))
    assert "FR" not in written
    assert table.scan().count_rows() == 3
    monkeypatch.undo()
    table.overwrite_partitions(data)
    assert sorted(map(str, table.scan().to_arrow()["country"].to_pylist())) == sorted(
        map(str, data["country"].to_pylist())
    )


# ── predicates that Lance would read differently ─────────────────────────────────────────────

TRAPS = pa.table(
    {
        "country": ["US", "FR", None, "o'neil", 'qu"ote', "back`tick", "us", ""],
        "Mixed": ["a", "b", "c", "d", "e", None, "a", "$"],
        "select": pa.array([1, 2, 3, None, 5, 6, 7, 8], pa.int32()),
        'qu"ote': pa.array([1, 2, 3, None, 5, 6, 7, 8], pa.int8()),
        "it's": ["x", "y", None, "it's", "x", "x", "x", "x"],
        "price": pa.array([1, 2, None, 14, 5, 6, 7, 8]).cast(pa.decimal128(21, 2)),
        "at": pa.array(range(8)).cast(pa.timestamp("s")),
        "zoned": pa.array(range(8)).cast(pa.timestamp("us", "Europe/Paris")),
        "f": pa.array([0.0, -0.0, float("nan"), None, 1.5, float("inf"), 2.5, -1.0]),
        "s": pa.array(
            [{"Order": n, "by`tick": str(n)} if n % 3 else None for n in range(8)],
            pa.struct([("Order", pa.int32()), ("by`tick", pa.string())]),
        ),
    }
)
TRAP_PREDICATES = [
    "\"country\" <> 'US'",
    "country = 'o''neil' OR country = 'qu\"ote' OR country = 'back`tick'",
    "mixed = 'b'",
    "MIXED IN ('a', '$')",
    '"select" > 2',
    '"qu""ote" >= 5 AND "it\'s" = \'x\'',
    "\"it's\" = 'it''s'",
    "price = 14",
    "price > 1.5 AND price < 5.000001",
    '"select" > price - 1',
    "at >= '1970-01-01 00:00:04'",
    "at = '1970-01-01T00:00:02Z'",
    "zoned > '1970-01-01 01:00:03'",
    '"select" = 3.0',
    "\"select\" = '5'",
    '"select" BETWEEN 1.5 AND 5.5',
    'length(country) = 2 AND "select" < 2',
    "country LIKE '%`%' OR country LIKE 'o''%'",
    "country ILIKE 'us'",
    "f = 0",
    "f > 1",
    "f <> f",
    's."Order" > 3',
    "s.order = 4",
    "s.\"by`tick\" = '5'",
    "s IS NULL",
    "s.\"Order\" IS NULL OR at + INTERVAL '1 second' < at",
    's."Order" IS NULL',
    "country IS NOT DISTINCT FROM NULL",
    "CASE WHEN country = 'US' THEN true END",
    "abs(murmur3(country)) % 4 = 1",
    "at + INTERVAL '1 second' = '1970-01-01 00:00:02'",
]


@pytest.mark.parametrize("where", TRAP_PREDICATES)
def test_predicates_that_lance_alone_would_misread(store: Store, where: str) -> None:
    exact = where.replace("mixed", '"Mixed"').replace("MIXED", '"Mixed"')
    exact = exact.replace("s.order", 's."Order"').replace("murmur3(country)", 'murmur3("country")')
    plain = TRAPS.drop_columns(["s", "f"])
    expected = find_matches(plain, exact, TRAPS.select(["s", "f"]))
    assert expected is not None
    wanted = TRAPS.filter(expected)["at"].to_pylist()
    for partition_by in ([], ["country"]):
        table = phalanx.create(
            store.fresh(), TRAPS.schema, partition_by, storage_options=store.storage_options
        )
        table.append(TRAPS)
        assert sorted(table.scan(where, ["at"]).to_arrow()["at"].to_pylist()) == wanted
        assert table.scan(where).count_rows() == len(wanted)
        assert table.delete(where) == len(wanted)
        left = sorted(table.scan().to_arrow()["at"].to_pylist())
        assert left == [at for at in TRAPS["at"].to_pylist() if at not in wanted]
