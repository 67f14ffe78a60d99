"""SQL statements that run at the same time on one table, and the rows that may result.

Each statement exists twice: as SQL, and as a function of plain rows. The result of concurrent
statements must be that of those that succeeded, run one after another in some order.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

import phalanx
from spark.lakes import Lake, rows_of

Row = tuple[int, str, int]
Rows = list[Row]
SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("n", pa.int64())])
OLD: Rows = [(number, "abc"[number % 3], number) for number in range(6)]
CONFLICT = "Cannot commit to"


@dataclass(frozen=True)
class Statement:
    """A statement on `lake.t`, and what it does to rows."""

    sql: str
    run: Callable[[Rows], Rows]


# ── sources ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Source:
    """The rows of a statement's source: existing ids, and others."""

    sql: str
    rows: tuple[Row, ...]


def values(*rows: Row) -> Source:
    """Rows in the statement itself, which Spark treats as a constant."""
    listed = ", ".join(f"({i}L, '{k}', {n}L)" for i, k, n in rows)
    return Source(f"(SELECT * FROM VALUES {listed} AS v (id, k, n))", rows)


NOTHING = Source("(SELECT id, 'a' AS k, id AS n FROM range(0))", ())
ONE = values((100, "a", 1))
TWO = values((100, "b", 1), (4, "b", 10))
MANY = Source(
    "(SELECT id, string('a') AS k, id AS n FROM range(3, 43, 1, 2))",
    tuple((i, "a", i) for i in range(3, 43)),
)
SOURCES = {"none": NOTHING, "one": ONE, "two": TWO, "many": MANY}
EQUAL = "t.id = s.id"
CONDITIONS = {"equal": EQUAL, "range": "t.id >= s.id AND t.id < s.id + 1"}


# ── statements ───────────────────────────────────────────────────────────────────────────────


def upsert(source: Source, condition: str = EQUAL) -> Statement:
    """Updates the existing rows, and inserts the others."""

    def run(rows: Rows) -> Rows:
        more = {i: n for i, _, n in source.rows}
        there = {row[0] for row in rows}
        changed = [(i, k, n + more.get(i, 0)) for i, k, n in rows]
        return changed + [row for row in source.rows if row[0] not in there]

    return Statement(
        f"MERGE INTO lake.t AS t USING {source.sql} AS s ON {condition} WHEN MATCHED THEN UPDATE "
        "SET n = t.n + s.n WHEN NOT MATCHED THEN INSERT *",
        run,
    )


def _insert_missing(source: Source) -> Callable[[Rows], Rows]:
    def run(rows: Rows) -> Rows:
        there = {row[0] for row in rows}
        return rows + [row for row in source.rows if row[0] not in there]

    return run


def insert_only(source: Source, condition: str = EQUAL) -> Statement:
    """Inserts the rows whose ids do not exist."""
    return Statement(
        f"MERGE INTO lake.t AS t USING {source.sql} AS s ON {condition} WHEN NOT MATCHED THEN "
        "INSERT *",
        _insert_missing(source),
    )


def insert_missing(source: Source, condition: str = EQUAL) -> Statement:
    """The same as an INSERT."""
    return Statement(
        f"INSERT INTO lake.t SELECT * FROM {source.sql} AS s WHERE NOT EXISTS "
        f"(SELECT 1 FROM lake.t AS t WHERE {condition})",
        _insert_missing(source),
    )


def replace_rows(source: Source, condition: str = EQUAL) -> Statement:
    """Keeps the rows that the source has, and inserts the rest of the source."""

    def run(rows: Rows) -> Rows:
        wanted = {row[0] for row in source.rows}
        return _insert_missing(source)([row for row in rows if row[0] in wanted])

    return Statement(
        f"MERGE INTO lake.t AS t USING {source.sql} AS s ON {condition} WHEN NOT MATCHED THEN "
        "INSERT * WHEN NOT MATCHED BY SOURCE THEN DELETE",
        run,
    )


def delete_rows(source: Source, condition: str = EQUAL) -> Statement:
    """Deletes the rows that the source has."""

    def run(rows: Rows) -> Rows:
        wanted = {row[0] for row in source.rows}
        return [row for row in rows if row[0] not in wanted]

    return Statement(
        f"DELETE FROM lake.t AS t WHERE EXISTS (SELECT 1 FROM {source.sql} AS s WHERE {condition})",
        run,
    )


def _next(rows: Rows) -> Rows:
    return [*rows, (max(row[0] for row in rows) + 1, "a", 0)]


def _next_by_rows(rows: Rows) -> Rows:
    return [*rows, (max(row[0] + 0 * row[2] for row in rows) + 1, "b", 0)]


def _above_all(rows: Rows) -> Rows:
    top = max(row[2] for row in rows)
    return [(i, k, top + 1) if i == 1 else (i, k, n) for i, k, n in rows]


def _copy_rows(rows: Rows) -> Rows:
    there = {row[0] for row in rows}
    return rows + [(i + 50, k, n) for i, k, n in rows if i < 50 and i + 50 not in there]


BY_MERGE = {
    "upsert": upsert,
    "insert only": insert_only,
    "insert missing": insert_missing,
    "replace": replace_rows,
    "delete": delete_rows,
}
# Statements that also read rows that they do not change.
OF_ITSELF = {
    "next id, from metadata": Statement(
        "INSERT INTO lake.t SELECT max(id) + 1, 'a', 0L FROM lake.t", _next
    ),
    "next id, from rows": Statement(
        "INSERT INTO lake.t SELECT max(id + 0 * n) + 1, 'b', 0L FROM lake.t", _next_by_rows
    ),
    "above all": Statement(
        "UPDATE lake.t SET n = (SELECT max(n + 0 * id) + 1 FROM lake.t) WHERE id = 1", _above_all
    ),
    "merge of itself": Statement(
        "MERGE INTO lake.t AS t USING (SELECT id + 50 AS id, k, n FROM lake.t WHERE id < 50) AS s "
        "ON t.id = s.id WHEN NOT MATCHED THEN INSERT *",
        _copy_rows,
    ),
    "delete the largest": Statement(
        "DELETE FROM lake.t WHERE id = (SELECT max(id + 0 * n) FROM lake.t)",
        lambda rows: [row for row in rows if row[0] != max(each[0] for each in rows)],
    ),
    "delete by values": Statement(
        "DELETE FROM lake.t WHERE n > 3", lambda rows: [row for row in rows if row[2] <= 3]
    ),
    "move what is small": Statement(
        "UPDATE lake.t SET k = 'z' WHERE n < (SELECT avg(n) FROM lake.t)",
        lambda rows: [
            (i, "z" if n * len(rows) < sum(each[2] for each in rows) else k, n) for i, k, n in rows
        ],
    ),
    "overwrite by a count": Statement(
        "INSERT INTO lake.t REPLACE WHERE k = 'c' SELECT count(id + 0 * n), 'c', 0L FROM lake.t",
        lambda rows: [row for row in rows if row[1] != "c"] + [(len(rows), "c", 0)],
    ),
}
# Each changes what the other one reads.
SWAPS = (
    Statement(
        "UPDATE lake.t SET id = 4 WHERE id = 3",
        lambda rows: [(4 if i == 3 else i, k, n) for i, k, n in rows],
    ),
    Statement(
        "UPDATE lake.t SET id = 3 WHERE id = 4",
        lambda rows: [(3 if i == 4 else i, k, n) for i, k, n in rows],
    ),
)
APPEND = Statement("INSERT INTO lake.t VALUES (100L, 'a', 7L)", lambda rows: [*rows, (100, "a", 7)])


# ── races ────────────────────────────────────────────────────────────────────────────────────


def create_table(root: str, partition_by: str) -> phalanx.Table:
    """Create the table again."""
    table = phalanx.create(f"{root}/t", SCHEMA, partition_by, transaction="strong")
    columns = zip(*OLD, strict=True)
    table.append(pa.table([list(column) for column in columns], schema=SCHEMA))
    return table


def list_allowed(statements: Iterable[Statement]) -> list[Rows]:
    """Return what these statements may leave, in any order."""
    found = []
    for order in itertools.permutations(statements):
        rows = OLD
        for each in order:
            rows = each.run(rows)
        found.append(sorted(rows, key=repr))
    return found


def check_outcome(
    table: phalanx.Table, statements: Sequence[Statement], errors: Sequence[str | None]
) -> None:
    """Check that the rows are as if the statements that succeeded had run one after the other."""
    done = [each for each, error in zip(statements, errors, strict=True) if error is None]
    told = [each.sql for each in statements], errors
    assert done, told
    for error in errors:
        assert error is None or CONFLICT in error, told
    assert rows_of(table) in list_allowed(done), (told, rows_of(table))


def race(lakes: Sequence[Lake], statements: Sequence[Statement]) -> list[str | None]:
    """Run the statements at the same time, each in its session; return the errors."""
    start = threading.Barrier(len(statements))
    errors: list[str | None] = [None] * len(statements)

    def run(place: int) -> None:
        start.wait()
        try:
            lakes[place].sql(statements[place].sql)
        except Exception as error:
            errors[place] = str(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(statements))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors
