"""Random histories: the feed, replayed on the rows of one snapshot, gives those of another."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

import phalanx
from phalanx.errors import SchemaMismatch
from phalanx.model.schema.field_ids import FIELD_ID
from properties.oracle import by_duckdb

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int16()), ("t", pa.string())])
KEYS = st.sampled_from(["a", "b", "cc", None])
NUMBERS = st.integers(0, 5)
ROWS = st.lists(st.tuples(KEYS, NUMBERS, st.sampled_from(["x", "y", None])), max_size=5)
# Predicates over the original column names.
CONDITIONS = st.sampled_from(
    [
        *("n < 2", "n % 2 = 0", "k = 'a'", "k IS NULL OR n = 3", "t = 'x' AND k <> 'b'", "true"),
        *("NOT (k IN ('a', 'b') AND t IN ('x', NULL))", "k NOT IN ('cc', NULL) OR n >= 2.5"),
        *("(k = t) IS NOT TRUE", "k LIKE 'c%' OR t IS DISTINCT FROM 'x'"),
    ]
)
ASSIGNMENTS = st.sampled_from(
    [{"n": "n + 1"}, {"k": "'b'"}, {"k": "t", "n": "0"}, {"t": "NULL"}, {"k": "NULL", "t": "k"}]
)
SPECS = st.sampled_from([["k"], [phalanx.bucket("n", 2)], [phalanx.truncate("k", 1), "t"], []])
KEPT = st.sampled_from(["update", "delete", "ignore"])

Step = tuple[str, Any]
STATEMENTS = st.one_of(
    st.tuples(st.just("append"), ROWS),
    st.tuples(st.just("delete"), CONDITIONS),
    st.tuples(st.just("update"), st.tuples(CONDITIONS, ASSIGNMENTS)),
    st.tuples(st.just("merge"), st.tuples(ROWS, KEPT)),
    st.tuples(st.just("overwrite"), ROWS),
    st.tuples(st.just("overwrite_partitions"), ROWS),
    st.tuples(st.just("drop"), st.sampled_from(["k = 'a'", "k IS NULL", "true"])),
)
STEPS = st.one_of(
    STATEMENTS,
    STATEMENTS,
    st.tuples(st.just("transaction"), st.lists(STATEMENTS, min_size=2, max_size=4)),
    st.tuples(st.just("evolve"), SPECS),
    st.tuples(
        st.sampled_from(["move", "compact", "promote", "add", "rename", "forget"]), st.none()
    ),
    st.tuples(st.just("rollback"), st.integers(0, 100)),
)


class History:
    """A table, and the names that its first columns have by now."""

    def __init__(self, folder: str) -> None:
        self.table = phalanx.create(
            os.path.join(folder, "table"), SCHEMA, ["k"], transaction="strong"
        )
        self.names = {name: name for name in SCHEMA.names}
        self.count = 0

    def take(self, step: Step) -> None:
        name, given = step
        match name:
            case "transaction":
                with self.table.transaction() as txn:
                    for statement in given:
                        self.run(txn, statement)
            case "evolve":
                self.table.evolve([self.use_current_name(field) for field in given])
            case "move":
                self.table.rewrite(target_spec=self.table.spec.id)
            case "compact":
                self.table.rewrite(rewrite_all=True)
            case "promote":
                with suppress(SchemaMismatch):
                    self.table.promote_column(self.names["n"], pa.int64())
            case "add":
                self.count += 1
                self.table.add_column(pa.field(f"new{self.count}", pa.int32()))
            case "rename":
                self.count += 1
                self.table.rename_column(self.names["n"], f"n{self.count}")
                self.names["n"] = f"n{self.count}"
            case "forget":
                if self.count and f"new{self.count}" in self.table.schema.names:
                    self.table.drop_column(f"new{self.count}")
            case "rollback":
                assert self.table.newest_snapshot is not None
                self.table.rollback(1 + given % self.table.newest_snapshot)
            case _:
                self.run(self.table, step)

    def run(self, target: Any, statement: Step) -> None:
        name, given = statement
        match name:
            case "append":
                target.append(self.rows(given))
            case "delete":
                target.delete(self.sql(given))
            case "update":
                where, values = given
                target.update(
                    self.sql(where), {self.names[c]: self.sql(v) for c, v in values.items()}
                )
            case "merge":
                rows, when_matched = given
                once = {number: (k, number, t) for k, number, t in rows}
                target.merge(
                    self.rows(list(once.values())), self.names["n"], when_matched=when_matched
                )
            case "overwrite":
                matching = [row for row in given if row[1] < 2]
                target.overwrite(self.rows(matching), self.sql("n < 2"))
            case "drop":
                # Under another spec partitions may match in part.
                with suppress(phalanx.PhalanxError):
                    target.drop_partitions(given)
            case "overwrite_partitions":
                target.overwrite_partitions(self.rows(given))

    def rows(self, rows: list[tuple[Any, ...]]) -> pa.Table:
        there = self.table.schema
        values = {self.names["k"]: 0, self.names["n"]: 1, self.names["t"]: 2}
        return pa.table(
            {
                field.name: pa.array(
                    [row[values[field.name]] if field.name in values else None for row in rows],
                    field.type,
                )
                for field in there
            }
        )

    def sql(self, text: str) -> str:
        return text.replace("n ", f"{self.names['n']} ")

    def use_current_name(self, field: Any) -> Any:
        return phalanx.bucket(self.names["n"], 2) if field == phalanx.bucket("n", 2) else field


def rows_at(table: phalanx.Table, snapshot: int, last: int, where: str | None) -> Counter[Any]:
    """The rows of a snapshot in the columns of another, by the ids of the columns."""
    if snapshot == 0:
        return Counter()
    then, now = table.at(snapshot), table.at(last)
    known = {field.metadata[FIELD_ID.encode()]: field.name for field in then.schema}
    found = then.scan().to_arrow()
    columns = []
    for field in now.schema:
        name = known.get(field.metadata[FIELD_ID.encode()])
        column = pa.nulls(found.num_rows, field.type) if name is None else found.column(name)
        columns.append(column.cast(field.type))
    in_line = pa.table(columns, names=now.schema.names)
    return Counter(map(tuple, map(dict.values, filter_rows(in_line, where).to_pylist())))


def filter_rows(rows: pa.Table, where: str | None) -> pa.Table:
    """Return the rows that match by DuckDB."""
    if where is None:
        return rows
    judged = by_duckdb(rows, where)
    assert judged is not None, where
    return rows.filter(judged)


def replay(rows: Counter[Any], feed: phalanx.ChangeFeed) -> Counter[Any]:
    """Return the rows after all changes in order, and check that each removed row exists."""
    found = Counter(rows)
    last = 0
    for change in feed.to_arrow().to_pylist():
        kind, snapshot, link = (change.pop(name) for name in ("_change", "_snapshot", "_update"))
        assert last <= snapshot
        assert (link is None) == (kind in ("insert", "delete"))
        last = snapshot
        row = tuple(change.values())
        if kind in ("insert", "update_after"):
            found[row] += 1
        else:
            assert found[row] > 0, (kind, row)
            found[row] -= 1
    return +found


def check(steps: list[Step], spans: list[tuple[int, int]], condition: str) -> None:
    folder = tempfile.mkdtemp()
    try:
        history = History(folder)
        for step in steps:
            history.take(step)
        table = history.table
        newest = table.newest_snapshot
        assert newest is not None
        for start, end in [(0, newest), *spans]:
            first, last = sorted((start % (newest + 1), 1 + end % newest))
            assert replay(rows_at(table, first, last, None), table.changes(first, last)) == (
                rows_at(table, last, last, None)
            )
        name = history.names["n"]
        where = condition.replace("n ", f"{name} ")
        feed = table.changes(0, where=where)
        assert replay(Counter(), feed) == rows_at(table, newest, newest, where)
        feed = table.changes(newest // 2, where=where)
        before = rows_at(table, newest // 2, newest, where)
        assert replay(before, feed) == rows_at(table, newest, newest, where)
    finally:
        shutil.rmtree(folder)


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=2)
Check = Callable[[list[Step], list[tuple[int, int]], str], None]
_FEW = [("a", 0, "x"), ("b", 1, "y"), ("cc", 2, None), (None, 3, "x")]


@example(
    [
        *[("append", _FEW), ("update", ("n < 2", {"n": "n + 1"})), ("compact", None)],
        *[("promote", None), ("delete", "k = 'a'"), ("evolve", []), ("move", None)],
        *[("rollback", 2), ("rename", None), ("merge", (_FEW, "update"))],
    ],
    [(2, 5), (4, 9)],
    "n < 2",
)
@given(st.lists(STEPS, max_size=9), SPANS, CONDITIONS)
@settings(max_examples=settings().max_examples // 8)
def test_the_feed_makes_one_snapshot_another(
    steps: list[Step], spans: list[tuple[int, int]], condition: str
) -> None:
    check([("append", _FEW), *steps], spans, condition)
