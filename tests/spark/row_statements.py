"""Statements that change rows, and queries that return what the table should hold afterwards.

A query is over two views, `old` with the rows of the table, whose ids are unique, and `s`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COLUMNS = ("id", "k", "n", "d")


@dataclass(frozen=True)
class Update:
    """Assignments to the rows for which a condition is TRUE."""

    values: Mapping[str, str]
    where: str = "true"

    def statement(self, table: str) -> str:
        values = ", ".join(f"{name} = {text}" for name, text in self.values.items())
        return f"UPDATE {table} AS t SET {values} WHERE {self.where}"

    def query(self) -> str:
        new = ", ".join(f"{self.values.get(name, f't.{name}')} AS {name}" for name in COLUMNS)
        return f"SELECT {new} FROM old t WHERE {self.where} UNION ALL {Delete(self.where).query()}"


@dataclass(frozen=True)
class Delete:
    """Delete the rows for which a condition is TRUE."""

    where: str

    def statement(self, table: str) -> str:
        return f"DELETE FROM {table} AS t WHERE {self.where}"

    def query(self) -> str:
        return (
            f"SELECT * FROM old LEFT ANTI JOIN (SELECT id FROM old t WHERE {self.where}) m "
            "ON old.id = m.id"
        )


# A condition, and the new values of columns; None removes the row.
Clause = tuple[str, Mapping[str, str] | None]
ALL = {name: f"s.{name}" for name in COLUMNS}


@dataclass(frozen=True)
class Merge:
    """The actions on rows that match, and on rows of the source or the table alone."""

    on: str
    matched: Sequence[Clause] = ()
    not_matched: Sequence[Clause] = ()
    by_source: Sequence[Clause] = ()
    source: str = "s"

    def statement(self, table: str) -> str:
        clauses = [_changing("MATCHED", *each) for each in self.matched]
        for condition, values in self.not_matched:
            assert values is not None
            names, texts = ", ".join(values), ", ".join(values.values())
            told = "*" if values == ALL else f"({names}) VALUES ({texts})"
            clauses.append(f"WHEN NOT MATCHED AND {condition} THEN INSERT {told}")
        clauses += [_changing("NOT MATCHED BY SOURCE", *each) for each in self.by_source]
        return f"MERGE INTO {table} AS t USING {self.source} AS s ON {self.on} {' '.join(clauses)}"

    def query(self) -> str:
        """A clause applies only where no earlier clause did."""
        is_there = f"EXISTS (SELECT 1 FROM {self.source} AS s WHERE {self.on})"
        parts = [_first(f"old t JOIN {self.source} AS s ON {self.on}", self.matched, "true")]
        parts.append(_first("old t", self.by_source, f"NOT {is_there}"))
        parts.append(
            _first(
                f"{self.source} AS s",
                self.not_matched,
                f"NOT EXISTS (SELECT 1 FROM old t WHERE {self.on})",
                keeps="",
            )
        )
        return " UNION ALL ".join(part for part in parts if part)


def _changing(when: str, condition: str, values: Mapping[str, str] | None) -> str:
    if values is None:
        return f"WHEN {when} AND {condition} THEN DELETE"
    texts = ", ".join(f"{name} = {text}" for name, text in values.items())
    return f"WHEN {when} AND {condition} THEN UPDATE SET {'*' if values == ALL else texts}"


def _first(rows: str, clauses: Sequence[Clause], where: str, keeps: str = "t.") -> str:
    found = []
    before = where
    for condition, values in [*clauses, ("true", {} if keeps else None)]:
        if values is not None:
            new = ", ".join(
                f"{values.get(name, f't.{name}' if keeps else 'NULL')} AS {name}"
                for name in COLUMNS
            )
            found.append(
                f"SELECT {new} FROM {rows} WHERE {before} AND coalesce({condition}, false)"
            )
        before = f"{before} AND NOT coalesce({condition}, false)"
    return " UNION ALL ".join(found)


def _truth(condition: str) -> str:
    return f"coalesce({condition}, false)"
