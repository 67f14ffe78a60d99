"""A folder of tables as a catalog of Spark SQL: each statement, also seen from outside Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import phalanx.spark
from integration.conftest import s3  # noqa: F401
from integration.stores import Store
from phalanx.errors import PhalanxError
from phalanx.spark import configure
from phalanx.spark.sql import bridge
from spark.conftest import TOKEN
from spark.joins import physical_plan
from spark.lakes import Lake, lake_at, rows_of
from tables import SOAK


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """A catalog without tables."""
    return lake_at(spark, str(tmp_path / "lake"))


# ── tables ───────────────────────────────────────────────────────────────────────────────────


def test_a_table_from_its_first_statement_to_its_last(lake: Lake) -> None:
    assert lake.sql("SHOW TABLES IN lake") == []
    lake.sql(
        "CREATE TABLE lake.events (ts timestamp, user_id bigint NOT NULL, country string, v int) "
        "PARTITIONED BY (years(ts), bucket(16, user_id), country) "
        "TBLPROPERTIES (transaction='strong')"
    )
    table = lake.table("events")
    assert repr(table).endswith("by year(ts), bucket(16, user_id), country>")
    assert table.mode == "strong"
    assert not table.schema.field("user_id").nullable
    described = dict(row[:2] for row in lake.sql("DESCRIBE EXTENDED lake.events"))
    assert [described[f"Part {n}"] for n in range(3)] == [
        "year(ts)",
        "bucket(16, user_id)",
        "country",
    ]
    assert "transaction=strong" in described["Table Properties"]
    assert described["Location"] == table.uri
    [(made,)] = lake.sql("SHOW CREATE TABLE lake.events")
    lake.sql(made.replace(f"{lake.name}.events", "lake.deep.er.events"))
    assert lake.table("deep/er/events").spec.fields == table.spec.fields
    assert lake.sql("SHOW TABLES IN lake") == [("", "events", False)]
    assert lake.sql("SHOW NAMESPACES IN lake") == [("deep",)]
    assert lake.sql("SHOW TABLES IN lake.deep.er") == [("deep.er", "events", False)]
    lake.sql(
        "INSERT INTO lake.events VALUES (timestamp'2024-12-31 23:00:00', 1, 'US', 1), "
        "(timestamp'2024-06-01 00:00:00', 2, NULL, 2)"
    )
    # Partition values are in UTC, and the session is in New York.
    keys = [
        (row["ts_year"], row["user_id_bucket"], row["country"] or "null")
        for row in table.partitions().to_pylist()
    ]
    assert sorted(key[::2] for key in keys) == [(2024, "null"), (2025, "US")]
    shown = [f"ts_year={y}/user_id_bucket={b}/country={c}" for y, b, c in sorted(keys)]
    assert sorted(row[0] for row in lake.sql("SHOW PARTITIONS lake.events")) == shown
    assert lake.sql("SHOW PARTITIONS lake.events PARTITION (country='US')") == [(shown[1],)]
    lake.sql("ALTER TABLE lake.events ADD COLUMNS (note string, more int)")
    lake.sql("ALTER TABLE lake.events RENAME COLUMN v TO value")
    lake.sql("ALTER TABLE lake.events ALTER COLUMN value TYPE bigint")
    lake.sql("ALTER TABLE lake.events DROP COLUMN more")
    assert table.schema.names == ["ts", "user_id", "country", "value", "note"]
    assert table.schema.field("value").type == pa.int64()
    assert lake.sql("SELECT value, note FROM lake.events WHERE country = 'US'") == [(1, None)]
    lake.sql("ALTER TABLE lake.events SET TBLPROPERTIES (transaction='weak')")
    assert table.mode == "weak"
    lake.sql("DROP TABLE lake.events")
    assert [path.name for path in Path(lake.root).iterdir()] == ["deep"]
    lake.sql("DROP TABLE IF EXISTS lake.events")


def test_tables_with_fields_of_any_kind_are_shown_and_written(lake: Lake) -> None:
    schema = pa.schema([("f", pa.float64()), ("n", pa.int64()), ("k", pa.string())])
    by = [
        "f",
        phalanx.expression("col0 % 5", ["n"], pa.int64(), field_id="rest"),
        phalanx.multi_bucket(["n", "k"], 1),
        phalanx.truncate("k", 1),
    ]
    table = phalanx.create(f"{lake.root}/t", schema, by)
    lake.sql("INSERT INTO lake.t VALUES (1.5, 7, 'ab'), (double('NaN'), 8, NULL)")
    assert lake.sql("SELECT * FROM lake.t WHERE f = 1.5") == [(1.5, 7, "ab")]
    assert table.partitions().num_rows == 2
    assert sorted(row[0] for row in lake.sql("SHOW PARTITIONS lake.t")) == [
        "f=1.5/rest=2/n_k_multi_bucket=0/k_truncate=a",
        "f=nan/rest=3/n_k_multi_bucket=0/k_truncate=null",
    ]
    parts = [row[1] for row in lake.sql("DESCRIBE lake.t") if row[0].startswith("Part ")]
    assert parts == [
        "f",
        "expression('col0 % 5', n)",
        "multi_bucket(1, n, k)",
        "truncate(1, k)",
    ]


def test_the_past_and_what_a_table_is_made_of(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.t (k string, n int) PARTITIONED BY (k) TBLPROPERTIES "
        "(transaction='strong')"
    )
    for n in range(3):
        lake.table("t").append(pa.table({"k": ["a"], "n": pa.array([n], pa.int32())}))
    assert lake.sql("SELECT count(*) FROM lake.t VERSION AS OF 2") == [(1,)]
    assert lake.sql("SELECT n FROM lake.t VERSION AS OF 3 WHERE n > 0") == [(1,)]
    snapshots = lake.sql("SELECT id, string(time), rows_added FROM lake.t.snapshots ORDER BY id")
    assert [row[::2] for row in snapshots] == [(1, 0), (2, 1), (3, 1), (4, 1)]
    moment = f"SELECT max(n) FROM lake.t TIMESTAMP AS OF '{snapshots[2][1]}'"
    assert lake.sql(moment) == [(1,)]
    assert lake.spark.read.option("versionAsOf", 2).table(f"{lake.name}.t").count() == 1
    assert lake.sql("SELECT k, rows FROM lake.t.partitions") == [("a", 3)]
    assert lake.sql("SELECT count(*), sum(rows) FROM lake.t.files") == [(3, 3)]
    assert lake.sql("SELECT partition_by FROM lake.t.specs") == [("k",)]
    lake.check_refused(
        "SELECT * FROM lake.t VERSION AS OF 9", "has no snapshot 9: expected one of 1 to"
    )


REFUSED = [
    ("CREATE TABLE lake.u (a int) PARTITIONED BY (weeks(a))", "weeks.a.: expected one of"),
    ("CREATE TABLE lake.u (a int) PARTITIONED BY (hours(a))", "year of column 'a'"),
    ("CREATE TABLE lake.u (a int) USING parquet", "USING parquet"),
    ("CREATE TABLE lake.u (a int) TBLPROPERTIES (x='y')", "property 'x'"),
    ("CREATE TABLE lake.`_u` (a int)", "Cannot use the name '_u'"),
    ("ALTER TABLE lake.t ADD COLUMN x int FIRST", "position 'FIRST'"),
    ("ALTER TABLE lake.t DROP COLUMN k", "partitioned by k"),
    ("ALTER TABLE lake.t SET TBLPROPERTIES (transaction='odd')", "transaction='odd'"),
    ("ALTER TABLE lake.t RENAME TO lake.u", "the name of a table is the name of its folder"),
    ("ALTER TABLE lake.t DROP PARTITION (k='a')", "partitions follow from the rows"),
    ("DROP TABLE lake.folder", "cannot be found"),
    ("INSERT INTO lake.t REPLACE WHERE n + 1 = 2 SELECT 'a', 1", r"by \(n \+ 1\) = 2"),
]


def test_what_is_refused_gets_a_one_line_error_and_changes_nothing(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.t (k string, n int) PARTITIONED BY (k)")
    lake.table("t").append(pa.table({"k": ["a", "b"], "n": pa.array([1, 2], pa.int32())}))
    (Path(lake.root) / "folder").mkdir()
    for statement, message in REFUSED:
        lake.check_refused(statement, message)
    assert lake.sql("SHOW TABLES IN lake") == [("", "t", False)]
    assert (Path(lake.root) / "folder").is_dir()
    assert rows_of(lake.table("t")) == [("a", 1), ("b", 2)]
    assert lake.table("t").schema.names == ["k", "n"]
    other = lake_at(lake.spark, lake.root)
    lake.spark.conf.set(f"spark.sql.catalog.{other.name}.colour", "red")
    other.check_refused(
        "SHOW TABLES IN lake", f"spark.sql.catalog.{other.name}.colour: there is no such"
    )
    lake.spark.conf.set(f"spark.sql.catalog.{lake.name}x", "phalanx.bridge.Catalog")
    lake.check_refused(
        "SHOW TABLES IN " + lake.name + "x", "it has no folder. Set spark.sql.catalog"
    )


def test_tables_that_are_made_of_rows_are_there_whole_or_not_at_all(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE lake.made PARTITIONED BY (months(d), truncate(2, k)) "
        "TBLPROPERTIES (transaction='strong') "
        "AS SELECT id, date'2024-01-31' + int(id) AS d, 'k' || id AS k FROM range(4)"
    )
    table = lake.table("made")
    assert repr(table).endswith("by year(d), month(d), truncate(2, k)>")
    assert table.scan().count_rows() == 4
    failing = "SELECT id, if(id = 3, raise_error('boom'), id) AS x FROM range(4)"
    lake.check_refused(f"CREATE TABLE lake.failed AS {failing}", "boom")
    lake.check_refused(f"CREATE OR REPLACE TABLE lake.made AS {failing}", "boom")
    assert table.scan().count_rows() == 4
    assert [path.name for path in Path(lake.root).iterdir()] == ["made"]
    lake.sql("CREATE OR REPLACE TABLE lake.made PARTITIONED BY (x) AS SELECT 1 AS x UNION SELECT 2")
    assert rows_of(lake.table("made")) == [(1,), (2,)]
    assert lake.sql("SELECT x FROM lake.made ORDER BY x") == [(1,), (2,)]
    lake.sql("REPLACE TABLE lake.made (y string)")
    assert lake.sql("SELECT * FROM lake.made") == []
    assert [path.name for path in Path(lake.root).iterdir()] == ["made"]


def test_a_catalog_in_an_object_store(spark: SparkSession, s3: Store) -> None:  # noqa: F811
    assert s3.storage_options is not None
    lake = lake_at(spark, s3.fresh(), **s3.storage_options)
    lake.sql("CREATE TABLE lake.a.t PARTITIONED BY (k) AS SELECT id, id % 2 AS k FROM range(4)")
    lake.sql("INSERT INTO lake.a.t VALUES (9, 1)")
    lake.sql("DELETE FROM lake.a.t WHERE id = 2 OR k = 1 AND id < 9")
    assert lake.sql("SELECT id, k FROM lake.a.t ORDER BY id") == [(0, 0), (9, 1)]
    assert lake.sql("SHOW TABLES IN lake.a") == [("a", "t", False)]
    lake.check_refused("CREATE OR REPLACE TABLE lake.a.t AS SELECT 1 AS x", "cannot move folders")
    lake.sql("DROP TABLE lake.a.t")
    assert s3.files(lake.root) == {}


def test_no_reader_sees_a_table_without_the_rows_it_is_made_with(
    spark: SparkSession,
    s3: Store,  # noqa: F811
) -> None:
    """An object store moves no folders; there too, the table appears only with its rows."""
    options = s3.storage_options
    assert options is not None
    lake = lake_at(spark, s3.fresh(), **options)
    rows = spark.range(0, 60, 1, 3).selectExpr("id", "id % 2 AS k")
    by = "TBLPROPERTIES (transaction='{}') AS SELECT id, id % 2 AS k FROM range(0, 60, 1, 3)"
    more: dict[str, Callable[[str], Any]] = {
        "strong": lambda name: lake.sql(f"CREATE OR REPLACE TABLE {name} {by.format('strong')}"),
        "create": lambda name: rows.writeTo(name.replace("lake", lake.name)).create(),
    }
    ways: dict[str, Callable[[str], Any]] = {
        "weak": lambda name: lake.sql(
            f"CREATE TABLE {name} PARTITIONED BY (k) {by.format('weak')}"
        ),
        "write": lambda name: phalanx.spark.write(
            rows,
            f"{lake.root}/{name.removeprefix('lake.')}",
            partition_by="k",
            storage_options=options,
            transaction="strong",
        ),
        **(more if SOAK else {}),
    }
    for way, make in ways.items():
        seen, stop = set(), threading.Event()
        uri = f"{lake.root}/{way}"

        def watch(uri: str = uri, seen: set[int | None] = seen, stop: Any = stop) -> None:
            while not stop.wait(0.1):
                try:
                    table = phalanx.open(uri, storage_options=options)
                    seen.add(table.scan().count_rows())
                except phalanx.NotPartitioned:
                    seen.add(None)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            make(f"lake.{way}")
        finally:
            stop.set()
            watcher.join()
        assert seen <= {None, 60}, way
        table = phalanx.open(uri, storage_options=options)
        assert table.scan().count_rows() == 60
        if table.mode == "strong":
            assert table.snapshots()["operation"].to_pylist() == ["create"]
        lake.check_refused(f"CREATE TABLE lake.{way} AS SELECT 1 AS x", "ALREADY_EXISTS")
    lake.sql("CREATE OR REPLACE TABLE lake.none (x int)")
    assert lake.sql("SELECT * FROM lake.none") == []
    lake.check_refused("CREATE TABLE lake.bad AS SELECT raise_error('no') AS x", "no")
    assert "bad" not in [name for _, name, _ in lake.sql("SHOW TABLES IN lake")]
    lake.sql("CREATE TABLE lake.bad AS SELECT 1 AS x")
    assert lake.sql("SELECT x FROM lake.bad") == [(1,)]


@pytest.mark.parametrize(
    ("key", "value"),
    [("root", "/elsewhere"), ("storage.endpoint", "http://x"), ("storage.token", "x")],
)
def test_settings_that_the_application_began_with_are_not_for_a_session_to_change(
    spark: SparkSession, key: str, value: str
) -> None:
    """A client of Connect would send the credentials of a catalog wherever it says."""
    session, setting = spark.newSession(), f"spark.sql.catalog.operators.{key}"
    session.sql(f"SET {setting}={value}")
    lake = Lake(session, "operators", "")
    lake.check_refused(
        "SHOW TABLES IN lake", f"operators: the session has changed {setting}, which was"
    )
    with pytest.raises(Exception, match=setting) as raised:
        lake.sql("SHOW TABLES IN lake")
    assert TOKEN not in str(raised.value)
    session.sql(f"RESET {setting}")
    assert lake.sql("SHOW TABLES IN lake") == []
    if key == "storage.token":
        other = Lake(spark.newSession(), "operators", "")
        other.spark.conf.unset(setting)
        other.check_refused("SHOW TABLES IN lake", f"has changed {setting}")


# ── reads ────────────────────────────────────────────────────────────────────────────────────


def test_reads_are_planned_like_those_by_path(lake: Lake) -> None:
    for name in ("a", "b"):
        lake.sql(
            f"CREATE TABLE lake.{name} (id bigint, k string) PARTITIONED BY (bucket(4, id)) "
            "TBLPROPERTIES (transaction='strong')"
        )
        ids = list(range(40))
        lake.table(name).append(pa.table({"id": ids, "k": [str(i % 3) for i in ids]}))
    one = lake.frame("SELECT k FROM lake.a WHERE id = 7")
    assert "1 of 4 partitions" in physical_plan(one)
    assert one.collect() == [("1",)]
    joined = lake.frame("SELECT /*+ MERGE(b) */ a.id, b.k FROM lake.a a JOIN lake.b b USING (id)")
    assert "Exchange" not in physical_plan(joined)
    assert joined.count() == 40
    view = lake.spark.table(f"{lake.name}.a")
    assert view.count() == 40
    lake.sql("INSERT INTO lake.a VALUES (100, 'new')")
    assert view.count() == 41
    assert view.where("k = 'new'").collect() == [(100, "new")]


# ── without the classes in Java ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", ["no jar", "left out"])
def test_without_the_jar_it_says_what_it_needs(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = SparkSession.Builder().config("spark.sql.catalog.lake", "phalanx.bridge.Catalog")
    if case == "no jar":
        monkeypatch.setattr(bridge, "find_jar", lambda: None)
    else:
        builder = builder.config("spark.phalanx.bridge", "false")
    with pytest.raises(PhalanxError, match="catalog 'lake' needs the Java classes"):
        configure(builder)


def test_tables_are_read_by_their_names_as_by_their_paths(spark: SparkSession, lake: Lake) -> None:
    """A task has the rows of many small partitions, unless rows are joined or grouped by them."""
    rows = pa.table({"k": list(range(8)) * 2, "n": list(range(16))})
    for name in ("facts", "more"):
        phalanx.create(f"{lake.root}/{name}", rows.schema, "k").append(rows)
    names = pa.table({"k": [1, 2], "name": ["one", "two"]})
    phalanx.create(f"{lake.root}/names", names.schema, []).append(names)
    assert lake.frame("SELECT n FROM lake.facts").rdd.getNumPartitions() == 1
    assert lake.frame("SELECT k, sum(n) FROM lake.facts GROUP BY k").rdd.getNumPartitions() == 8
    assert "Exchange" not in physical_plan(lake.frame("SELECT sum(n) FROM lake.facts"))
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        joined = lake.frame("SELECT f.n FROM lake.facts f JOIN lake.more m ON f.k = m.k")
        assert "Exchange" not in physical_plan(joined)
        assert joined.count() == 32
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    pruned = lake.frame(
        "SELECT f.n FROM lake.facts f JOIN lake.names d ON f.k = d.k WHERE d.name = 'two'"
    )
    assert sorted(row.n for row in pruned.collect()) == [2, 10]
    plan = physical_plan(pruned)
    assert "dynamicpruning" in plan
    assert "phalanx: 1 of 8 partitions" in plan
