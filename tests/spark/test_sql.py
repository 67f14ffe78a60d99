"""Plain SQL over a table with three specs: the rows are those of parquet, and few leaves read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import phalanx
from spark import sql_tables
from spark.conftest import LOCAL, MASTER
from spark.joins import physical_plan
from spark.sql_battery import FILTERS, QUERIES
from spark.sql_grammar import condition
from spark.sql_tables import Twin

READ = re.compile(r"phalanx: ([\d,]+) of ([\d,]+) partitions")
MARK = re.compile(r"\b(q\d{3}) AS q#")


@pytest.fixture(scope="module")
def twin(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Twin:
    made = sql_tables.create_twin(tmp_path_factory.mktemp("sql"))
    sql_tables.register(spark, made)
    return made


def leaves_read(plan: str) -> int:
    """Return how many leaves the scans of a plan read in total."""
    final = plan.split("== Initial Plan ==")[0]
    return sum(int(found.replace(",", "")) for found, _ in READ.findall(final))


def combine_queries(queries: Sequence[str], view: str) -> str:
    """Combine all queries; each row has the number of its query."""
    return " UNION ALL ".join(
        f"SELECT 'q{number:03}' AS q, to_json(struct(*)) AS row FROM ({query.format(t=view)})"
        for number, query in enumerate(queries)
    )


def leaves_of_marked(plan: str) -> Mapping[str, int]:
    """Return how many leaves each query of `combine_queries` reads."""
    found: Counter[str] = Counter()
    mark = ""
    for line in plan.splitlines():
        if (begins := MARK.search(line)) is not None:
            mark = begins[1]
        found[mark] += leaves_read(line)
    return found


def test_a_battery_of_conditions(spark: SparkSession, twin: Twin) -> None:
    queries = [f"SELECT id FROM {{t}} AS f WHERE {each}" for each, _ in FILTERS]
    assert len(FILTERS) + len(QUERIES) >= 100
    frame = spark.sql(combine_queries(queries, "t"))
    counts = leaves_of_marked(physical_plan(frame))
    expected = same_rows(spark, queries, frame)
    got = {each: counts[f"q{number:03}"] for number, (each, _) in enumerate(FILTERS)}
    assert got == dict(FILTERS)
    # No query reads fewer leaves than there are with a row of its answer.
    for number, query in enumerate(queries):
        ids = [int(row[6:-1]) for mark, row in expected if mark == f"q{number:03}"]
        assert len({twin.leaves[each] for each in ids}) <= counts[f"q{number:03}"], query


def test_a_battery_of_queries(spark: SparkSession, twin: Twin) -> None:
    queries = [query for query, _ in QUERIES]
    same_rows(spark, queries, spark.sql(combine_queries(queries, "t")))
    got = {
        query: leaves_read(physical_plan(spark.sql(query.format(t="t")))) for query, _ in QUERIES
    }
    assert got == dict(QUERIES)


def same_rows(
    spark: SparkSession, queries: Sequence[str], frame: DataFrame
) -> list[tuple[str, str]]:
    """Check that frame and table return the rows of Parquet for every query; return them."""
    found, expected = (
        [tuple(row) for row in each.collect()]
        for each in (frame, spark.sql(combine_queries(queries, "p")))
    )
    for number, query in enumerate(queries):
        mark = f"q{number:03}"
        rows, own = (Counter(r for q, r in each if q == mark) for each in (found, expected))
        assert rows == own, query
    return expected


@pytest.mark.parametrize("zone", ["America/New_York", "UTC"])
def test_conditions_of_any_form_change_no_result(
    spark: SparkSession, twin: Twin, zone: str
) -> None:
    chance = Random(zone)
    conditions = [condition(chance) for _ in range(40)]
    truths = ", ".join(f"({each}) AS c{number}" for number, each in enumerate(conditions))
    filtered = " UNION ALL ".join(
        f"SELECT {number} AS q, id FROM t AS f WHERE {each}"
        for number, each in enumerate(conditions)
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        expected = spark.sql(f"SELECT id, {truths} FROM p").collect()
        found = spark.sql(filtered).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    for number, each in enumerate(conditions):
        ids = sorted(row.id for row in found if row.q == number)
        assert ids == sorted(row.id for row in expected if row[f"c{number}"]), each


# ── one DataFrame, many queries ──────────────────────────────────────────────────────────────


@pytest.mark.executors
@pytest.mark.bare
def test_queries_of_one_frame_have_nothing_to_do_with_each_other(
    spark: SparkSession, uri: str
) -> None:
    rows = pa.table({"k": ["a", "b", "c", None], "n": pa.array([1, 2, 3, 4], pa.int64())})
    table = phalanx.create(uri, rows.schema, ["k"])
    table.append(rows)
    frame = spark.read.format("phalanx").load(uri)
    one, other = frame.where("k = 'a'"), frame.where("k <> 'a' AND n > 2")
    both = one.union(other).union(frame.select("k", "n"))
    assert sorted(row.n for row in both.collect()) == [1, 1, 2, 3, 3, 4]
    assert frame.count() == 4
    assert one.count() == 1
    if MASTER != "python":
        assert leaves_read(physical_plan(one.select("n"))) == 1
        assert leaves_read(physical_plan(both)) == 1 + 2 + 4


def test_a_view_sees_what_is_written_later(spark: SparkSession, uri: str) -> None:
    rows = pa.table({"k": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
    table = phalanx.create(uri, rows.schema, ["k"])
    table.append(rows)
    spark.read.format("phalanx").load(uri).createOrReplaceTempView("later")
    query = "SELECT k, count(*) AS c, max(k) AS m FROM later WHERE k >= 'a' GROUP BY k ORDER BY k"
    assert [tuple(row) for row in spark.sql(query).collect()] == [("a", 1, "a"), ("b", 1, "b")]
    table.append(pa.table({"k": ["b", "c"], "n": pa.array([3, 4], pa.int64())}))
    assert spark.sql("SELECT sum(n) FROM later WHERE k = 'b'").collect()[0][0] == 5
    assert [row.c for row in spark.sql(query).collect()] == [1, 2, 1]
    table.delete("k = 'a'")
    assert [row.k for row in spark.sql(query).collect()] == ["b", "c"], "emptied leaves have no key"


# ── limits, metadata, statistics ─────────────────────────────────────────────────────────────


def test_a_limit_reads_no_more_leaves_than_it_needs(spark: SparkSession, twin: Twin) -> None:
    frame = spark.sql("SELECT id FROM t WHERE country IS NOT NULL LIMIT 3")
    assert "limit 3" in physical_plan(frame)
    assert len(frame.collect()) == 3
    assert leaves_read(physical_plan(frame)) == 1
    assert spark.sql("SELECT * FROM t").limit(1000).count() == sql_tables.ROWS
    assert len(spark.sql("SELECT id FROM t WHERE isnan(x) LIMIT 2").collect()) == 2
    assert (
        "limit"
        not in physical_plan(spark.sql("SELECT id FROM t WHERE isnan(x) LIMIT 2")).split(
            "phalanx:"
        )[1]
    )


@pytest.mark.parametrize(
    ("query", "answered"),
    [
        ("SELECT count(*) FROM t", True),
        ("SELECT count(*) FROM t WHERE country = 'US'", False),
        ("SELECT count(id), count(1) FROM t", True),
        ("SELECT count(n) FROM t", False),
        ("SELECT min(id) FROM t", False),
        ("SELECT count(*) FROM c WHERE country = 'US'", True),
        ("SELECT country, count(*), min(country) FROM c GROUP BY country", True),
        ("SELECT DISTINCT country FROM c", True),
        ("SELECT max(country), count(country) FROM c WHERE country IS NOT NULL", True),
        ("SELECT country, max(n) FROM c GROUP BY country", False),
        ("SELECT count(*) FROM c WHERE country = 'US' AND n > 0", False),
        ("SELECT count(*) FROM c WHERE upper(country) = 'US'", False),
        ("SELECT count(DISTINCT country) FROM c", False),
        ("SELECT count(*), max(country) FROM c WHERE country = 'nowhere'", True),
    ],
)
def test_metadata_answers_what_it_can(
    spark: SparkSession, by_country: str, query: str, answered: bool
) -> None:
    spark.read.format("phalanx").load(by_country).createOrReplaceTempView("c")
    frame = spark.sql(query)
    assert ("LocalTableScan" in physical_plan(frame)) == answered
    expected = spark.sql(re.sub(r"\b(t|c)\b(?= WHERE| GROUP|$)", "p", query))
    assert Counter(map(repr, map(tuple, frame.collect()))) == Counter(
        map(repr, map(tuple, expected.collect()))
    )


@pytest.fixture(scope="module")
def by_country(twin: Twin, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same rows under one spec."""
    uri = str(tmp_path_factory.mktemp("one") / "table")
    table = phalanx.create(uri, sql_tables.SCHEMA, ["country"])
    table.append(sql_tables.rows())
    return uri


def test_sizes_are_those_of_the_leaves_that_are_left(spark: SparkSession, by_country: str) -> None:
    if MASTER != LOCAL:
        return
    frame = spark.read.format("phalanx").load(by_country)
    leaves = {row["country"]: row for row in phalanx.open(by_country).partitions().to_pylist()}
    before = spark.conf.get("spark.sql.cbo.enabled")
    spark.conf.set("spark.sql.cbo.enabled", "true")
    try:
        found = {
            name: each._jdf.queryExecution().optimizedPlan().collectLeaves().head().stats()
            for name, each in {
                "all": frame,
                "US": frame.where("country = 'US'"),
                "few": frame.where("country = 'US'").select("id"),
            }.items()
        }
    finally:
        spark.conf.set("spark.sql.cbo.enabled", before)
    sizes = {name: int(str(each.sizeInBytes())) for name, each in found.items()}
    rows = {name: int(str(each.rowCount().get())) for name, each in found.items()}
    assert rows == {
        "all": sql_tables.ROWS,
        "US": leaves["US"]["rows"],
        "few": leaves["US"]["rows"],
    }
    assert 0 < sizes["few"] < sizes["US"] < sizes["all"]


def test_a_join_prunes_the_large_side_when_it_runs(
    spark: SparkSession, by_country: str, uri: str
) -> None:
    regions = pa.table({"country": ["US", "DE", "FR"], "region": ["west", "east", "east"]})
    phalanx.create(uri, regions.schema, ["region"]).append(regions)
    spark.read.format("phalanx").load(uri).createOrReplaceTempView("regions")
    spark.read.format("phalanx").load(by_country).createOrReplaceTempView("c")
    query = (
        "SELECT count(n) FROM {} c JOIN regions r ON c.country = r.country WHERE region = 'east'"
    )
    frame = spark.sql(query.format("c"))
    assert frame.collect() == spark.sql(query.format("p")).collect()
    plan = physical_plan(frame)
    assert "dynamicpruning" in plan
    assert "BroadcastHashJoin" in plan
    assert "phalanx: 2 of 6 partitions" in plan.split("== Initial Plan ==")[0]
    assert "phalanx: 1 of 2 partitions" in plan
