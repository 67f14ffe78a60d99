"""Random tables and statements that change rows, against the same as queries."""

from __future__ import annotations

import tempfile
from datetime import date
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import phalanx
from spark.lakes import lake_at, rows_of
from spark.row_statements import ALL, Clause, Delete, Merge, Update
from spark.test_row_changes import SCHEMA, TYPES, Row, rows
from tables import SOAK

EXAMPLES = 20 if SOAK else 2
# Statements on one table: each is seen by the next.
STATEMENTS = 3

texts = st.sampled_from(["a", "b", "c", None])
values = st.tuples(
    texts, st.none() | st.integers(-3, 9), st.none() | st.dates(date(2023, 12, 1), date(2024, 3, 9))
)
specs = st.sampled_from(["k", "bucket(3, id)", "k, year(d)", "month(d)", "truncate(2, n), k", ""])
conditions = st.sampled_from(
    [
        *("true", "t.k = 'a'", "t.k <> 'b'", "NOT (t.k = 'a' AND t.n > 3)", "t.k IS NULL"),
        *("t.n % 3 = 1", "t.n BETWEEN 0 AND 4", "t.d >= '2024-01-01'", "year(t.d) = 2024"),
        *("t.k IN ('a', NULL)", "t.id > 5", "t.id % 2 = 0 OR t.d IS NULL", "upper(t.k) = 'C'"),
    ]
)
subqueries = st.sampled_from(
    [
        *("t.id IN (SELECT id FROM s)", "t.k IN (SELECT k FROM s)", "t.k NOT IN (SELECT k FROM s)"),
        *("EXISTS (SELECT 1 FROM s WHERE s.k = t.k AND s.n < t.n)", "t.n > (SELECT avg(n) FROM s)"),
    ]
)
assigned = st.dictionaries(st.sampled_from(["k", "n", "d"]), st.integers(0, 2), min_size=1)
TO = {
    "k": ("'new'", "NULL", "concat(t.k, 'x')"),
    "n": ("t.n + 1", "NULL", "7"),
    "d": ("date'2024-02-29'", "NULL", "date_add(t.d, 31)"),
}
OF_SOURCE = {"k": "s.k", "n": "s.n", "d": "s.d"}


@st.composite
def assignments(draw: st.DrawFn, matched: bool = False) -> dict[str, str]:
    chosen = draw(assigned)
    if matched and draw(st.booleans()):
        return ALL if draw(st.booleans()) else {name: OF_SOURCE[name] for name in chosen}
    return {name: TO[name][place] for name, place in chosen.items()}


@st.composite
def clauses(draw: st.DrawFn, conditions: st.SearchStrategy[str], matched: bool) -> list[Clause]:
    one = st.tuples(conditions, st.none() | assignments(matched))
    return draw(st.lists(one, max_size=2))


@st.composite
def merges(draw: st.DrawFn) -> Merge:
    on = draw(
        st.sampled_from(
            [
                "t.id = s.id",
                "t.id = s.id AND t.k = s.k",
                "t.id = s.id AND t.k = 'a'",
                "t.id <=> s.id",
            ]
        )
    )
    of_source = st.sampled_from(["true", "s.n > 2", "s.k IS NULL", "s.id < 8"])
    inserts: Any = st.tuples(of_source, st.sampled_from([ALL, {"id": "s.id", "k": "'ins'"}]))
    found = Merge(
        on,
        draw(clauses(conditions | of_source, True)),
        draw(st.lists(inserts, max_size=2)),
        draw(clauses(conditions, False)),
    )
    some = found.matched or found.not_matched or found.by_source
    return found if some else Merge(on, [("true", ALL)], [("true", ALL)])


statements = st.one_of(
    st.builds(Update, assignments(), conditions | subqueries),
    st.builds(Delete, conditions | subqueries),
    merges(),
    merges(),
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(values, min_size=4, max_size=14),
    st.lists(st.tuples(st.integers(0, 16), values), max_size=6, unique_by=lambda each: each[0]),
    st.lists(specs, min_size=1, max_size=3),
    st.sampled_from(["strong", "strong", "weak"]),
    st.lists(statements, min_size=STATEMENTS, max_size=STATEMENTS),
)
def test_changes_give_what_the_same_queries_do(
    spark: SparkSession,
    data: list[Row],
    source: list[tuple[int, Row]],
    partitioning: list[str],
    mode: str,
    changes: list[Update | Delete | Merge],
) -> None:
    old = [(number, *each) for number, each in enumerate(data)]
    spark.createDataFrame([(n, *each) for n, each in source], TYPES).createOrReplaceTempView("s")
    with tempfile.TemporaryDirectory() as root:
        lake = lake_at(spark, root)
        table = phalanx.create(f"{root}/t", SCHEMA, partitioning[0], transaction=mode)
        cut = len(old) // len(partitioning)
        for place, spec in enumerate(partitioning):
            if place:
                table.evolve(spec)
            last = place == len(partitioning) - 1
            table.append(rows(old[place * cut : None if last else (place + 1) * cut]))
        for change in changes:
            spark.createDataFrame(old, TYPES).createOrReplaceTempView("old")
            old = [tuple(each) for each in spark.sql(change.query()).collect()]
            lake.sql(change.statement("lake.t"))
            assert rows_of(table) == sorted(old, key=repr), change
            if len({each[0] for each in old}) < len(old) or any(each[0] is None for each in old):
                # The queries identify rows by their ids.
                break
