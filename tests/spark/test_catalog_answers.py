"""What Python answers about a catalog: tables made, changed, listed and removed, without Spark."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    LongType,
    StringType,
    StructField,
    StructType,
    TimeType,
    VariantType,
)

import phalanx
from integration.conftest import s3  # noqa: F401
from integration.stores import Store
from phalanx.errors import PhalanxError
from phalanx.spark.runtime.types import spark_schema
from phalanx.spark.sql.planner import Planner
from tables import INT32_SCHEMA, SCHEMA

COLUMNS = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("user_id", pa.int64()),
        ("country", pa.string()),
        ("name", pa.string()),
        ("d", pa.date32()),
        ("place", pa.struct([("x", pa.int32())])),
    ]
)
X = pa.schema([("x", pa.int32())])


class Asking:
    """Asks about one root as the classes in Java do."""

    def __init__(self, root: str, storage: dict[str, str] | None = None) -> None:
        self.root = root
        self.storage = storage or {}

    def __call__(self, do: str, name: str = "", **more: Any) -> dict[str, Any]:
        parts = name.split(".") if name else []
        about = {"root": self.root, "storage": self.storage, "name": parts}
        return Planner().answer({**about, "ask": do, **more})

    def create(
        self,
        name: str,
        columns: pa.Schema = COLUMNS,
        by: tuple[Any, ...] = (),
        how: str = "create",
        may_create: bool = True,
        may_replace: bool = False,
        **properties: str,
    ) -> dict[str, Any]:
        """CREATE TABLE, or what stages it."""
        return self(
            how,
            name,
            schema=spark_schema(columns).json(),
            partitioning=[transform(*each) for each in by],
            properties={"owner": "me", **properties},
            may_create=may_create,
            may_replace=may_replace,
        )


def transform(name: str, *arguments: Any) -> dict[str, Any]:
    """A transform as it comes from Java."""
    args = [
        {"value": str(each), "type": "integer"}
        if isinstance(each, int)
        else {"column": each.split(".")}
        for each in arguments
    ]
    return {"call": name, "args": args}


@pytest.fixture
def ask(tmp_path: Path) -> Asking:
    """A catalog without tables."""
    return Asking(str(tmp_path / "lake"))


def check_refused(call: Callable[[], Any], message: str) -> None:
    """Check that the call fails with a one-line error."""
    with pytest.raises(PhalanxError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


# ── partitioning ─────────────────────────────────────────────────────────────────────────────

MEANINGS: list[tuple[tuple[Any, ...], str]] = [
    ((), ""),
    ((("identity", "country"),), "country"),
    ((("years", "ts"),), "year(ts)"),
    ((("months", "ts"),), "year(ts), month(ts)"),
    ((("days", "d"),), "year(d), month(d), day(d)"),
    ((("hours", "ts"),), "year(ts), month(ts), day(ts), hour(ts)"),
    ((("years", "ts"), ("months", "ts")), "year(ts), month(ts)"),
    ((("month", "ts"),), "month(ts)"),
    ((("bucket", 16, "user_id"),), "bucket(16, user_id)"),
    ((("bucket", 8, "user_id", "country"),), "multi_bucket(8, user_id, country)"),
    ((("truncate", 4, "name"),), "truncate(4, name)"),
    ((("identity", "place.x"), ("bucket", 4, "place.x")), "place.x, bucket(4, place.x)"),
    (
        (("years", "ts"), ("bucket", 16, "user_id"), ("identity", "country")),
        "year(ts), bucket(16, user_id), country",
    ),
]


@pytest.mark.parametrize(("by", "meaning"), MEANINGS, ids=[meaning for _, meaning in MEANINGS])
def test_transforms_of_spark_mean_fields_of_the_spec(
    ask: Asking, by: tuple[Any, ...], meaning: str
) -> None:
    made = ask.create("t", by=by)
    table = phalanx.open(f"{ask.root}/t")
    assert repr(table).endswith(f"by {meaning or 'nothing'}>")
    # What DESCRIBE shows makes the same table again.
    again = [
        (each["name"], *each["parameters"], *(".".join(path) for path in each["columns"]))
        for each in made["partitioning"]
    ]
    ask.create("u", by=tuple(again))
    assert phalanx.open(f"{ask.root}/u").spec.fields == table.spec.fields


def test_other_fields_are_written_as_a_property(ask: Asking) -> None:
    ask.create("t", partition_by="multi_bucket(4, name, country), truncate(2, name)")
    assert [f.field_id for f in phalanx.open(f"{ask.root}/t").spec.fields] == [
        "name_country_multi_bucket",
        "name_truncate",
    ]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"by": (("foo", "name"),)}, r"foo\(name\): expected one of identity, years"),
    ({"by": (("bucket", "name"),)}, r"bucket\(name\)"),
    ({"by": (("years", "name"),)}, "year of column 'name'"),
    ({"by": (("identity", "nope"),)}, "Cannot partition by nope"),
    ({"by": (("identity", "name"),), "partition_by": "country"}, "both PARTITIONED BY and"),
    ({"transaction": "some"}, "transaction='some'.*'weak' or 'strong'"),
    ({"provider": "parquet"}, "USING parquet"),
    ({"location": "/x"}, "LOCATION '/x'"),
    ({"colour": "red"}, "property 'colour'"),
    ({"comment": "words"}, "property 'comment'"),
]


@pytest.mark.parametrize(("told", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_made_leaves_nothing(
    ask: Asking, told: dict[str, Any], message: str
) -> None:
    for how in ("create", "stage"):
        check_refused(lambda how=how: ask.create("t", how=how, **told), message)
    assert ask("list")["tables"] == []
    assert not [path for path in Path(ask.root).rglob("*") if path.is_file()]


def test_columns_have_a_name_and_a_type_and_nothing_else(ask: Asking) -> None:
    commented = StructField("k", StringType(), True, {"comment": "why"})
    for columns, message in (
        (StructType([commented]), "column 'k' with COMMENT 'why'"),
        (StructType([StructField("s", StructType([commented]))]), "column 's.k' with COMMENT"),
    ):
        about = {"schema": columns.json(), "partitioning": [], "properties": {}}
        check_refused(lambda about=about: ask("create", "t", **about), message)
        # Columns of a query bring along what they had elsewhere.
        staged = ask("stage", "t", may_create=True, may_replace=False, **about)
        ask("abort", "t", staged=staged["staged"])


def _field(kind: str) -> str:
    return f'{{"name": "c", "type": {kind}, "nullable": true, "metadata": {{}}}}'


# Types in Spark's JSON that a table cannot keep.
NOT_KEPT = [
    ('"char(5)"', r"column 'c' as char\(5\)"),
    ('"varchar(5)"', r"column 'c' as varchar\(5\)"),
    ('"interval year to month"', "column 'c' as interval year to month"),
    ('"interval"', "column 'c' as interval"),
    ('"timestamp_ltz(9)"', r"column 'c' as timestamp_ltz\(9\)"),
    ('"timestamp_ntz(7)"', r"column 'c' as timestamp_ntz\(7\)"),
    (
        '{"type": "udt", "class": "org.example.Point", "pyClass": "os.Point", "sqlType": "int"}',
        "column 'c' as the user-defined type org.example.Point",
    ),
    (
        '{"type": "array", "elementType": "varchar(5)", "containsNull": true}',
        r"column 'c\[\]' as varchar\(5\)",
    ),
    (
        '{"type": "map", "keyType": "integer", "valueType": "timestamp_ltz(9)", '
        '"valueContainsNull": true}',
        r"column 'c\[\]' as timestamp_ltz\(9\)",
    ),
    (
        f'{{"type": "struct", "fields": [{_field(chr(34) + "interval month" + chr(34))}]}}',
        "column 'c.c' as interval month",
    ),
]


@pytest.mark.parametrize(("kind", "message"), NOT_KEPT, ids=[kind[:30] for kind, _ in NOT_KEPT])
def test_a_type_that_cannot_be_kept_is_refused(ask: Asking, kind: str, message: str) -> None:
    schema = f'{{"type": "struct", "fields": [{_field(kind)}]}}'
    about = {"schema": schema, "partitioning": [], "properties": {}}
    check_refused(lambda: ask("create", "t", **about), message)
    check_refused(lambda: ask("stage", "t", may_create=True, may_replace=True, **about), message)
    ask.create("t", SCHEMA)
    add = {"change": "add", "path": ["c"], "type": kind, "nullable": True, "position": None}
    change = {**add, "comment": None, "default": None}
    check_refused(lambda: ask("alter", "t", changes=[change]), message)
    assert phalanx.open(f"{ask.root}/t").schema.names == SCHEMA.names


def test_lengths_that_spark_notes_for_a_string_are_refused_with_a_query_too(
    ask: Asking,
) -> None:
    for noted in ("char(5)", "array<varchar(5)>"):
        told = {"__CHAR_VARCHAR_TYPE_STRING": noted}
        columns = StructType([StructField("k", StringType(), True, told)])
        about = {"schema": columns.json(), "partitioning": [], "properties": {}}
        message = re.escape(f"column 'k' as {noted}")
        check_refused(lambda about=about: ask("create", "t", **about), message)
        about |= {"may_create": True, "may_replace": False}
        check_refused(lambda about=about: ask("stage", "t", **about), message)


def test_a_collated_column_is_no_partition(ask: Asking) -> None:
    columns = StructType(
        [StructField("s", StringType("UTF8_LCASE")), StructField("k", StringType())]
    )
    identity = [{"call": "identity", "args": [{"column": ["s"]}]}]
    about = {"schema": columns.json(), "partitioning": identity, "properties": {}}
    message = r"Cannot partition by s: column 's' is string collate UTF8_LCASE"
    check_refused(lambda: ask("create", "t", **about), message)
    by = {"partition_by": "k, bucket(4, s)"}
    about = {"schema": columns.json(), "partitioning": [], "properties": by}
    check_refused(lambda: ask("create", "t", **about), r"Cannot partition by bucket\(4, s\)")
    ask("create", "t", **{**about, "properties": {}})
    change = {"change": "set", "key": "partition_by", "value": "s"}
    check_refused(lambda: ask("alter", "t", changes=[change]), message)


def test_a_column_keeps_the_type_of_spark_through_changes(ask: Asking) -> None:
    ask.create("t", SCHEMA, transaction="strong")
    for name, kind in (("s", "string collate UNICODE_CI"), ("v", "variant"), ("t", "time(2)")):
        add = {"change": "add", "path": [name], "type": json.dumps(kind), "nullable": True}
        ask("alter", "t", changes=[{**add, "position": None, "comment": None, "default": None}])
    table = phalanx.open(f"{ask.root}/t")
    table.rename_column("v", "w")
    table.drop_column("n")
    table.evolve("k")
    kinds = {field.name: field.dataType for field in spark_schema(phalanx.open(table.uri).schema)}
    assert kinds == {
        "k": StringType(),
        "s": StringType("UNICODE_CI"),
        "w": VariantType(),
        "t": TimeType(2),
    }
    for name, kind in (("s", "string"), ("t", "time(6)"), ("k", "string collate UNICODE")):
        change = {"change": "promote", "path": [name], "type": json.dumps(kind)}
        check_refused(
            lambda change=change: ask("alter", "t", changes=[change]), "Cannot change column"
        )


def test_a_note_that_does_not_fit_its_column_is_refused(tmp_path: Path) -> None:
    for place, (kind, note) in enumerate(
        [
            (pa.int32(), "variant"),
            (pa.string(), "time(3)"),
            (pa.string(), "string collate 1 OR 1"),
            (pa.time64("us"), "time(99)"),
            (pa.struct([("a", pa.int32())]), "variant"),
            (pa.list_(pa.string()), "string collate UTF8_LCASE"),
            (pa.int64(), "no such type"),
            (pa.int64(), "interval year"),
            (pa.int64(), ""),
        ]
    ):
        field = pa.field("c", kind, metadata={"phalanx:spark_type": note})
        table = phalanx.create(tmp_path / str(place), pa.schema([field]), [])
        if note:
            check_refused(lambda table=table: spark_schema(table.schema), "Cannot read column 'c'")
        else:
            assert spark_schema(table.schema).fields[0].dataType == LongType()


# ── tables and namespaces ────────────────────────────────────────────────────────────────────


def test_folders_are_namespaces_and_only_tables_are_dropped(ask: Asking, tmp_path: Path) -> None:
    assert ask("list") == {"tables": [], "namespaces": []}
    assert ask("list", "sales") == {"missing": True}
    assert ask("load", "sales.t") == {"missing": True}
    ask.create("sales.t", transaction="strong")
    ask.create("t")
    lake = Path(ask.root)
    (lake / "others" / "deep").mkdir(parents=True)
    (lake / "others" / "file").write_text("mine")
    lance.write_dataset(pa.table({"x": [1]}), str(lake / "lance_table"))
    assert ask("list") == {"tables": ("t",), "namespaces": ("others", "sales")}
    assert ask("list", "sales") == {"tables": ("t",), "namespaces": ()}
    assert ask("list", "t") == {"missing": True}
    assert ask.create("t") == {"exists": True}
    check_refused(lambda: ask.create("others"), "it is a folder with other files")
    check_refused(lambda: ask.create("t.inner"), "is a table, and tables cannot be nested")
    for name in ("_t", ".t", "a/b", ""):
        check_refused(lambda name=name: ask("create_namespace", f"x.{name}"), "Cannot use the name")
    for name in ("others", "lance_table", "others.deep"):
        check_refused(lambda name=name: ask("drop", name), "not a Phalanx table")
    assert (lake / "others" / "file").read_text() == "mine"
    assert ask("drop", "nope") == {"dropped": False}
    outside = Planner().answer(
        {"root": f"{ask.root}/sales", "storage": {}, "name": ["..", "t"], "ask": "load"}
    )
    assert outside == {"missing": True}
    assert ask("drop", "sales.t") == {"dropped": True}
    assert ask("drop_namespace", "sales") == {}
    assert ask("drop_namespace", "sales") == {"missing": True}
    assert ask("drop_namespace", "others") == {"filled": True}
    assert ask("create_namespace", "a.b") == {}
    assert ask("create_namespace", "a.b") == {"exists": True}
    assert ask("list") == {"tables": ("t",), "namespaces": ("a", "others")}


def test_what_a_table_is_made_of_has_a_name_below_it(ask: Asking) -> None:
    ask.create("t", SCHEMA, (("identity", "k"),), transaction="strong")
    table = phalanx.open(f"{ask.root}/t")
    table.append(pa.table({"k": ["a", "b"], "n": [1, 2]}, SCHEMA))
    for kind in ("partitions", "files", "snapshots", "specs"):
        found = ask("load", f"t.{kind}")
        assert found["options"] == {"metadata_table": kind}
        assert found["read_only"]
    past = ask("load", "t.files", version="1")
    assert past["options"] == {"metadata_table": "files", "snapshot": "1"}
    assert ask("load", "t.other") == {"missing": True}
    assert ask("load", "t", version="1")["read_only"]
    check_refused(lambda: ask("load", "t", version="9"), "no snapshot 9")
    check_refused(lambda: ask("load", "t", version="main"), "VERSION AS OF 'main'")
    # A table of that name comes first.
    ask.create("space.files", X)
    assert not ask("load", "space.files")["read_only"]


def test_changes_are_all_looked_at_before_the_first_is_made(ask: Asking) -> None:
    ask.create("t", INT32_SCHEMA, (("identity", "k"),))
    add = {"change": "add", "type": '"integer"', "nullable": True} | dict.fromkeys(
        ("position", "comment", "default")
    )
    drop = {"change": "drop", "path": ["k"], "if_exists": False}
    check_refused(
        lambda: ask("alter", "t", changes=[{**add, "path": ["x"]}, drop]), "drop column 'k'"
    )
    table = phalanx.open(f"{ask.root}/t")
    assert table.schema.names == ["k", "n"]
    changes = [
        {**add, "path": ["x"]},
        {"change": "rename", "path": ["n"], "new": "number"},
        {"change": "promote", "path": ["number"], "type": '"long"'},
        {"change": "drop", "path": ["nope"], "if_exists": True},
        {"change": "set", "key": "transaction", "value": "strong"},
        {"change": "set", "key": "partition_by", "value": "bucket(4, number)"},
    ]
    ask("alter", "t", changes=changes)
    assert table.schema.names == ["k", "number", "x"]
    assert table.schema.field("number").type == pa.int64()
    assert (table.mode, len(table.specs)) == ("strong", 2)
    assert ask("alter", "nope", changes=[]) == {"missing": True}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({**add, "path": ["y"], "position": "FIRST"}, "position 'FIRST'"),
        ({**add, "path": ["y"], "comment": "why"}, "comment 'why'"),
        ({**add, "path": ["y"], "nullable": False}, "nullable"),
        ({**add, "path": ["k", "y"]}, "fields cannot be added to a struct"),
        ({"change": "set", "key": "transaction", "value": "odd"}, "transaction='odd'"),
        ({"change": "set", "key": "odd", "value": "1"}, "property 'odd'"),
        ({"change": "RemoveProperty"}, "by RemoveProperty: expected ADD"),
        ({"change": "promote", "path": ["k"], "type": '"integer"'}, "from string to int32"),
    ]
    for change, message in wrong:
        check_refused(lambda change=change: ask("alter", "t", changes=[change]), message)


# ── tables that become visible with their rows ───────────────────────────────────────────────


def test_a_staged_table_takes_its_place_at_once_or_never(ask: Asking) -> None:
    staged = ask.create("t", SCHEMA, how="stage")
    assert ask("list")["tables"] == ()
    assert ask("load", "t") == {"missing": True}
    phalanx.open(staged["path"]).append(pa.table({"k": ["a"], "n": [1]}, SCHEMA))
    ask("finish", "t", staged=staged["staged"], may_replace=False)
    uri = f"{ask.root}/t"
    assert phalanx.open(uri).scan().count_rows() == 1
    assert ask.create("t", how="stage") == {"exists": True}
    aborted = ask.create("t", X, how="stage", may_replace=True)
    ask("abort", "t", staged=aborted["staged"])
    assert phalanx.open(uri).schema.names == ["k", "n"]
    other = ask.create("t", X, how="stage", may_replace=True)
    assert phalanx.open(uri).schema.names == ["k", "n"]
    ask("finish", "t", staged=other["staged"], may_replace=True)
    assert phalanx.open(uri).schema.names == ["x"]
    assert ask.create("u", how="stage", may_create=False, may_replace=True) == {"missing": True}
    assert [path.name for path in Path(ask.root).iterdir()] == ["t"]


def test_a_table_that_is_replaced_is_there_at_every_moment(ask: Asking) -> None:
    ask.create("t", X)
    manifest = Path(ask.root) / "t" / "__manifest"
    over, missing = threading.Event(), []

    def watch() -> None:
        while not over.is_set():
            if not manifest.exists():
                missing.append(True)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        for _ in range(20):
            staged = ask.create("t", X, how="stage", may_replace=True)
            ask("finish", "t", staged=staged["staged"], may_replace=True)
    finally:
        over.set()
        watching.join()
    assert missing == []
    assert [path.name for path in Path(ask.root).iterdir()] == ["t"]


def test_what_a_dead_driver_has_staged_goes_with_the_next_one(ask: Asking) -> None:
    dead, alive = (ask.create("t", X, how="stage")["staged"] for _ in range(2))
    for path in [Path(dead), *Path(dead).rglob("*")]:
        os.utime(path, (0, 0))
    assert Path(dead).exists()
    own = ask.create("u", X, how="stage")["staged"]
    assert {path.name for path in Path(ask.root).iterdir()} == {Path(alive).name, Path(own).name}


def test_a_staged_table_yields_to_one_that_came_first(ask: Asking) -> None:
    staged = ask.create("t", X, how="stage")
    ask.create("t", SCHEMA)
    assert ask("finish", "t", staged=staged["staged"], may_replace=False) == {"exists": True}
    assert phalanx.open(f"{ask.root}/t").schema.names == ["k", "n"]
    ask("drop", "t")
    ask("create_namespace", "t")
    (Path(ask.root) / "t" / "file").write_text("mine")
    finish = {"staged": staged["staged"], "may_replace": False}
    check_refused(lambda: ask("finish", "t", **finish), "Cannot move the new table to")
    assert (Path(ask.root) / "t" / "file").read_text() == "mine"


def test_an_object_store_is_a_catalog_too(s3: Store) -> None:  # noqa: F811
    ask = Asking(s3.fresh(), s3.storage_options)
    assert ask("list") == {"tables": (), "namespaces": ()}
    assert ask("load", "a.t") == {"missing": True}
    ask.create("a.t", SCHEMA, (("identity", "k"),), transaction="strong")
    assert ask("list") == {"tables": (), "namespaces": ("a",)}
    assert ask("list", "a") == {"tables": ("t",), "namespaces": ()}
    table = phalanx.open(f"{ask.root}/a/t", storage_options=s3.storage_options)
    table.append(pa.table({"k": ["a", "b"], "n": [1, 2]}, SCHEMA))
    check_refused(lambda: ask.create("a.t", how="stage", may_replace=True), "cannot move folders")
    staged = ask.create("a.u", X, how="stage")
    ask("abort", "a.u", new=staged["new"])
    assert ask("drop", "a.u") == {"dropped": False}
    staged = ask.create("a.u", X, how="stage")
    assert ask("list", "a")["tables"] == ("t",)
    ask("finish", "a.u", new=staged["new"], may_replace=False)
    assert ask("list", "a")["tables"] == ("t", "u")
    assert ask("drop", "a.t") == {"dropped": True}
    assert [name for name in s3.files(f"{ask.root}/a") if "/t/" in name] == []


def test_of_two_staged_in_an_object_store_one_is_made(s3: Store) -> None:  # noqa: F811
    ask = Asking(s3.fresh(), s3.storage_options)
    one, other = (ask.create("t", X, how="stage") for _ in range(2))
    ask("finish", "t", new=one["new"], may_replace=False)
    late = {"new": other["new"], "may_replace": False}
    check_refused(lambda: ask("finish", "t", **late), "Cannot create.*a namespace exists there")
    # The table that now exists is not the one that is aborted.
    ask("abort", "t", new=other["new"])
    assert ask("load", "t")["path"].endswith("/t")
    ask("abort", "t", new=one["new"])
    assert ask("load", "t") == {"missing": True}


# ── conditions ───────────────────────────────────────────────────────────────────────────────

FLOATS = [
    *(None, 0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 5e-324),
    struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0],
]


def order(number: float) -> tuple[int, float]:
    """Spark's order of floats: all NaN are equal and above all numbers; both zeros are equal."""
    return (1, 0.0) if math.isnan(number) else (0, number + 0.0)


@pytest.mark.parametrize("by", ["", "f"])
def test_floats_are_deleted_as_spark_compares_them(tmp_path: Path, by: str) -> None:
    uri = str(tmp_path / "t")
    schema = pa.schema([("i", pa.int64()), ("f", pa.float64())])
    table = phalanx.create(uri, schema, by, transaction="strong")
    table.append(pa.table({"i": range(len(FLOATS)), "f": FLOATS}, schema))
    full = table.newest_snapshot
    assert full is not None
    tests: dict[str, Callable[[tuple[int, float], tuple[int, float]], bool]] = {
        "=": lambda a, b: a == b,
        "<>": lambda a, b: a != b,
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
    }
    for constant in (0.0, -0.0, 1.5, math.nan, math.inf, -math.inf):
        value = {"value": str(constant), "type": "double"}
        for operator, holds in tests.items():
            tree = {"call": operator, "args": [{"column": ["f"]}, value]}
            about = {"path": uri, "zone": "UTC", "conditions": [tree], "texts": ["f"]}
            Asking(str(tmp_path))("delete", "t", **about)
            kept = sorted(table.scan().to_arrow()["i"].to_pylist())
            expected = [
                i for i, f in enumerate(FLOATS) if f is None or not holds(order(f), order(constant))
            ]
            assert kept == expected, (operator, constant)
            table.rollback(full)


def test_columns_of_any_name_are_passed_to_phalanx(tmp_path: Path) -> None:
    names = ["Odd Name", 'quo"te', "select", "ünï"]
    schema = pa.schema([(name, pa.string()) for name in names])
    table = phalanx.create(str(tmp_path / "t"), schema, ["Odd Name"])
    texts = ["it's", 'a"b', "100%_\\", ""]
    table.append(pa.table(dict.fromkeys(names, texts), schema))
    for left, (name, text) in zip((3, 2, 1, 0), zip(names, texts, strict=True), strict=True):
        pattern = {"value": text, "type": "string"}
        call = "STARTS_WITH" if "%" in text else "="
        tree = {"call": call, "args": [{"column": [name]}, pattern]}
        about = {"path": table.uri, "zone": "UTC", "conditions": [tree], "texts": [name]}
        assert Asking(str(tmp_path))("delete", "t", **about) == {"deleted": 1}
        assert table.scan().count_rows() == left
