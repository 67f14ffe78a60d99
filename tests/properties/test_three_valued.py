"""Predicates mean what SQL's three-valued logic says: judged by plain Python and by DuckDB."""

from __future__ import annotations

import math
import tempfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.evaluation import match_rows
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.schema.schema import Schema
from properties.oracle import by_duckdb
from properties.three_valued import SCHEMA, Condition, Row, conditions, tables

NAMESPACE = Schema.of(SCHEMA)
# What a table of all columns is partitioned by; none is an expression of what is compared.
SPECS = ["", "i", "bucket(4, s), day", "year(ts), month(ts)", "d, b", "truncate(10, j), year(tm)"]


def check_duckdb(table: pa.Table, condition: Condition, expected: list[bool | None]) -> None:
    """The two judges agree, or one of the known differences explains why not."""
    found = by_duckdb(table, condition.sql)
    assert found is None or found.to_pylist() == expected, condition


@given(data=tables(), condition=conditions())
def test_a_predicate_is_true_where_sql_says_so(
    data: tuple[pa.Table, list[Row]], condition: Condition
) -> None:
    table, rows = data
    expected = [condition.of(row) for row in rows]
    check_duckdb(table, condition, expected)
    wanted = [value is True for value in expected]
    (batch,) = table.combine_chunks().to_batches()
    predicate = bind_predicate(condition.sql, NAMESPACE)
    assert match_rows(predicate, batch).to_pylist() == wanted, condition
    # Plans carry predicates as text.
    again = bind_predicate(to_datafusion(predicate), NAMESPACE)
    assert match_rows(again, batch).to_pylist() == wanted, (condition, to_datafusion(predicate))


@settings(max_examples=settings().max_examples // 4)
@given(
    data=tables(),
    asked=st.lists(conditions(), min_size=4, max_size=4),
    spec=st.sampled_from(SPECS),
    mode=st.sampled_from(["weak", "strong"]),
)
def test_a_table_gives_counts_and_deletes_the_rows_that_sql_says(
    data: tuple[pa.Table, list[Row]], asked: list[Condition], spec: str, mode: str
) -> None:
    table, rows = data
    numbered = table.append_column("id", pa.array(range(len(table)), pa.int64()))
    with tempfile.TemporaryDirectory() as folder:
        stored = phalanx.create(
            str(Path(folder) / "t"), numbered.schema, spec or [], transaction=mode
        )
        stored.append(numbered)
        left = set(range(len(rows)))
        for condition in asked:
            true = {place for place in left if condition.of(rows[place]) is True}
            found = stored.scan(condition.sql)
            assert set(found.to_arrow()["id"].to_pylist()) == true, (condition, spec)
            assert found.count_rows() == len(true), (condition, spec)
        stored.update(asked[0].sql, {"id": "id + 1000"})
        true = {place for place in left if asked[0].of(rows[place]) is True}
        expected = {place + 1000 if place in true else place for place in left}
        assert set(stored.scan().to_arrow()["id"].to_pylist()) == expected, (asked[0], spec)
        for condition in asked[1:]:
            true = {place for place in left if condition.of(rows[place]) is True}
            assert stored.delete(condition.sql) == len(true), (condition, spec)
            left -= true
            assert {n % 1000 for n in stored.scan().to_arrow()["id"].to_pylist()} == left


FOUND = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "x": pa.array([1, 2, 3, 4, 5, None], pa.int64()),
        "y": pa.array([1, None, 1, None, 2, 2], pa.int64()),
        "d": pa.array([*map(Decimal, ("99999.99", "0.10", "0.11", "1", "2.5")), None]).cast(
            pa.decimal128(9, 2)
        ),
        "f": pa.array([0.0, -0.0, 0.1, math.inf, math.nan, None]),
        "ts": pa.array([0, 10**18, -(10**18), 10**15, 5, None], pa.int64()).cast(
            pa.timestamp("ns")
        ),
    }
)


@pytest.mark.parametrize("spec", ["", "x", "bucket(2, x), year(ts)"])
@pytest.mark.parametrize(
    "where",
    [
        "NOT (x IN (1, 2) AND x IN (3, 4))",
        "NOT (x IN (1) AND x NOT IN (1))",
        "NOT (x IN (1) AND x NOT IN (1, 2, NULL))",
        "(x IN (1, 2) AND x IN (3, 4)) IS NULL",
        "(x NOT IN (1, 2) AND y = 2) OR (x NOT IN (3, 4) AND y = 2)",
        "x NOT IN (1, 2) OR x NOT IN (3, 4) OR y IS NULL",
        "CASE WHEN x IN (1, 2) AND x IN (3, 4) THEN true ELSE x IS NULL END",
        "NOT (CASE x WHEN 1 THEN 2 WHEN 2.5 THEN 3 ELSE 0.5 END = f * 0.1)",
        "CASE CAST(x AS VARCHAR) WHEN '1' THEN y WHEN '2' THEN 7 ELSE x END > 1",
        "d = 99999.99",
        "NOT (d <> 99999.99)",
        "d IN (99999.99, 0.105)",
        "d NOT IN (0.1, 0.105, NULL)",
        "f IN (-0.0, 1, 2, 3, 4)",
        "f NOT IN (0.0, 1, 2, 3, 4)",
        "date_part('year', ts) < 9999",
        "NOT (date_part('year', ts) >= 9999)",
        "date_part('year', ts) <> 1500 AND date_part('year', ts) > 1600",
        "date_part('year', ts) BETWEEN 1 AND 9999",
        "date_part('year', ts) IN (1970, 2001, 9999)",
        "x < 99999999999999999999 AND x > 2.5",
        "(x = 2.5) IS NULL",
    ],
)
def test_what_was_found_wrong_once(where: str, spec: str, tmp_path: Path) -> None:
    judged = by_duckdb(FOUND, where)
    assert judged is not None
    wanted = [row for row, true in enumerate(judged.to_pylist()) if true]
    table = phalanx.create(str(tmp_path / "t"), FOUND.schema, spec or [])
    table.append(FOUND)
    assert sorted(table.scan(where).to_arrow()["id"].to_pylist()) == wanted
    assert table.delete(where) == len(wanted)
    left = sorted(table.scan().to_arrow()["id"].to_pylist())
    assert left == [row for row in range(FOUND.num_rows) if row not in wanted]
